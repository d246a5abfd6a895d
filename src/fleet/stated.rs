//! From the settings of a pool to the words of the arithmetic.

use crate::config::{BudgetSettings, ExternalSettings, PartitionSettings, Settings};

use super::capacity::{
    Database, Demand, ExternalDemand, Fleet, Limits, Role, Server, ServerLimits, SharedBudget,
    assess,
};
use super::pooler;
use super::report::FleetReport;

/// How a partition logs in, without any secret.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::Login;
///
/// let login = Login::new("db:5432", "app", "shop");
/// assert_eq!(login.control, 0);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Login {
    /// Hosts and ports, as the report calls them.
    pub hosts: String,
    /// The role.
    pub role: String,
    /// The database.
    pub database: String,
    /// The connections that the driver keeps beside those of the partition, in each replica.
    pub control: u32,
}

impl Login {
    /// A login beside which the driver keeps nothing.
    #[must_use]
    pub fn new(
        hosts: impl Into<String>,
        role: impl Into<String>,
        database: impl Into<String>,
    ) -> Self {
        Self {
            hosts: hosts.into(),
            role: role.into(),
            database: database.into(),
            control: 0,
        }
    }
}

/// What a server grants, where it is stated by hand and not asked for.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{ServerLimits, StatedLimits};
///
/// let mut limits = StatedLimits::new(ServerLimits::new(170_000, 200));
/// limits.role_limit = Some(100);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatedLimits {
    /// The limits of each server. Its roles and databases are taken from the logins.
    pub server: ServerLimits,
    /// `rolconnlimit` of each role that a partition logs in with. Default: none.
    pub role_limit: Option<u32>,
    /// `datconnlimit` of each database that a partition uses. Default: none.
    pub database_limit: Option<u32>,
}

impl StatedLimits {
    /// A server without limits of roles and databases.
    #[must_use]
    pub fn new(server: ServerLimits) -> Self {
        Self {
            server,
            role_limit: None,
            database_limit: None,
        }
    }
}

/// The fleet check without a server: the settings against limits that are stated.
///
/// `logins` are those of the partitions, in their order. Servers are told apart by [`Login::hosts`], because
/// nobody is asked what they are.
///
/// # Panics
/// If there are not as many logins as partitions.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
/// use partitioned_pool::fleet::{Login, ServerLimits, StatedLimits, assess_stated};
///
/// let settings = PoolConfig::new("shop", "postgres://app@db/shop", FleetConfig::new(3, 1))
///     .transactional(PartitionConfig::transactional(20))
///     .analytical(PartitionConfig::analytical(10))
///     .resolve()?;
/// let logins = vec![Login::new("db:5432", "app", "shop"); 2];
/// let mut limits = StatedLimits::new(ServerLimits::new(170_000, 200));
/// limits.role_limit = Some(100);
/// let report = assess_stated(&settings, &logins, &limits);
/// assert_eq!((report.needed(), report.granted()), (Some(120), Some(100)));
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[must_use]
pub fn assess_stated(settings: &Settings, logins: &[Login], limits: &StatedLimits) -> FleetReport {
    assert_eq!(
        logins.len(),
        settings.partitions.len(),
        "a login for each partition"
    );
    let mut servers: Vec<Server> = Vec::new();
    for (index, login) in logins.iter().enumerate() {
        let partition = &settings.partitions[index];
        let opens: Vec<Demand> = demands(partition, settings.budget_of(index), login).collect();
        if let Some(stated) = &partition.pooler {
            let label = pooler::label(&login.hosts);
            let server = known(&mut servers, &label, || pooler::server(&label, stated));
            if let Limits::Pooler(limits) = &mut server.limits {
                limits.take_in(stated, &login.role, &login.database);
            }
            server.demands.extend(opens.iter().cloned());
        }
        if partition.has_sessions() {
            let stated = || Server::new(&login.hosts, Limits::Known(limits.server.clone()));
            let server = known(&mut servers, &login.hosts, stated);
            if let Limits::Known(known) = &mut server.limits {
                name_login(known, login, limits);
            }
            server.demands.extend(opens);
        }
    }
    assess(&Fleet::of(settings), &servers)
}

/// The server of this label, which is made if it is not there yet.
fn known<'a>(
    servers: &'a mut Vec<Server>,
    label: &str,
    new: impl FnOnce() -> Server,
) -> &'a mut Server {
    let known = servers.iter().position(|server| server.label == label);
    let at = known.unwrap_or_else(|| {
        servers.push(new());
        servers.len() - 1
    });
    &mut servers[at]
}

/// Makes role and database known to the server, with their stated limits.
fn name_login(server: &mut ServerLimits, login: &Login, limits: &StatedLimits) {
    if server.roles.iter().all(|r| r.name != login.role) {
        let mut role = Role::new(&login.role);
        role.connection_limit = limits.role_limit;
        server.roles.push(role);
    }
    if server.databases.iter().all(|d| d.name != login.database) {
        let mut database = Database::new(&login.database);
        database.connection_limit = limits.database_limit;
        server.databases.push(database);
    }
}

/// What a partition, which draws from `budget`, opens on the server of its login.
pub(crate) fn demands(
    partition: &PartitionSettings,
    budget: &BudgetSettings,
    login: &Login,
) -> impl Iterator<Item = Demand> {
    let size = partition.max_connections.get();
    let mut demand = Demand::partition(&partition.name, size, &login.role, &login.database)
        .criticality(partition.kind);
    if is_shared(budget) {
        demand = demand.sharing(&budget.name, partition.reserved);
    }
    let control = Demand::control(login.control, &login.role, &login.database);
    let control = (login.control > 0).then_some(control);
    std::iter::once(demand).chain(control)
}

fn is_shared(budget: &BudgetSettings) -> bool {
    budget.partitions.len() > 1
}

impl Fleet {
    /// The fleet as its owner stated it.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let shared = settings.budgets.iter().filter(|budget| is_shared(budget));
        let budgets = shared.map(|b| {
            let mut budget = SharedBudget::new(&b.name, b.capacity.get());
            budget.hand_over = b.hand_over;
            budget
        });
        let settings = &settings.fleet;
        let mut fleet = Self::new(settings.max_replicas.get(), settings.surge);
        fleet.budgets = budgets.collect();
        fleet.seats = settings.seats.as_ref().map(|seats| seats.count.get());
        fleet.reserve = settings.reserve;
        fleet.external = settings.external.iter().map(external).collect();
        fleet
    }
}

fn external(pool: &ExternalSettings) -> ExternalDemand {
    let mut demand = ExternalDemand::new(&pool.name, pool.size.get());
    demand.role.clone_from(&pool.role);
    demand.database.clone_from(&pool.database);
    demand
}
