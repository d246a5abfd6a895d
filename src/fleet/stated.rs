//! From the settings of a pool to the words of the arithmetic.

use crate::config::{BudgetSettings, ExternalSettings, PartitionSettings, Settings};

use super::capacity::{
    Database, Demand, ExternalDemand, Fleet, Limits, Role, Server, ServerLimits, SharedBudget,
};
use super::pooler;
use super::report::FleetReport;
use super::sum::assess;

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
/// `logins` are those of the partitions, in their order; behind them may come that of the seats, where its role
/// is none of theirs, as [`Builder::logins`](crate::Builder::logins) gives them. Servers are told apart by
/// [`Login::hosts`], because nobody is asked what they are.
///
/// # Panics
/// If there are not as many logins as partitions, and one for seats.
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
    let (logins, of_seats) = of_seats(settings, logins);
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
    if let Some(login) = of_seats {
        let stated = || Server::new(&login.hosts, Limits::Known(limits.server.clone()));
        let server = known(&mut servers, &login.hosts, stated);
        if let Limits::Known(known) = &mut server.limits {
            name_login(known, login, limits);
        }
        let keeper = Demand::control(1, &login.role, &login.database);
        server.demands.push(keeper);
    }
    assess(&Fleet::of(settings), &servers)
}

/// The logins of the partitions, and that of the seats if it is another.
pub(super) fn of_seats<'a>(
    settings: &Settings,
    logins: &'a [Login],
) -> (&'a [Login], Option<&'a Login>) {
    let (of_partitions, others) = logins
        .split_at_checked(settings.partitions.len())
        .expect("a login for each partition");
    let may_have = usize::from(settings.fleet.seats.is_some());
    assert!(others.len() <= may_have, "a login for each partition");
    (of_partitions, others.first())
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

#[cfg(test)]
mod tests {
    use crate::config::{ExternalPool, FleetConfig, PartitionConfig, PoolConfig, SeatsConfig};

    use super::super::{Scope, Wall};
    use super::*;

    fn settings() -> Settings {
        let fleet = FleetConfig::new(4, 0).reserve(3).seats(SeatsConfig::new(5));
        PoolConfig::new("shop", "postgres://app@db/shop", fleet)
            .transactional(PartitionConfig::transactional(6))
            .analytical(PartitionConfig::analytical(2))
            .external(ExternalPool::new("jobs", 1))
            .resolve()
            .unwrap()
    }

    fn logins() -> Vec<Login> {
        let mut app = Login::new("db:5432", "app", "shop");
        app.control = 1;
        let reports = Login::new("db:5432", "app", "shop");
        vec![app, reports]
    }

    /// Server, scope and what is needed there.
    fn needed(logins: &[Login]) -> Vec<(String, Scope, u64)> {
        let mut limits = StatedLimits::new(ServerLimits::stated(100));
        (limits.role_limit, limits.database_limit) = (Some(90), Some(95));
        let report = assess_stated(&settings(), logins, &limits);
        let constraints = report.servers().iter().flat_map(|s| &s.constraints);
        let each = constraints.map(|c| (c.server.clone(), c.scope.clone(), c.needed));
        each.collect()
    }

    #[test]
    fn the_keeper_of_a_seat_counts_where_it_connects_and_as_whom() {
        let name = |name: &str| name.to_owned();
        let (db, primary) = (|| name("db:5432"), || name("primary:5432"));
        let role = |it: &str| Scope::Role { name: name(it) };
        let database = |it: &str| Scope::Database { name: name(it) };
        let of_app = 5 * (6 + 1 + 2 + 1);
        assert_eq!(
            needed(&logins()),
            [
                (db(), Scope::Server, of_app + 3),
                (db(), role("app"), of_app),
                (db(), database("shop"), of_app),
            ]
        );
        let keeper = Login::new("db:5432", "keeper", "seats");
        assert_eq!(
            needed(&[logins(), vec![keeper]].concat()),
            [
                (db(), Scope::Server, of_app + 5 + 3),
                (db(), role("app"), of_app),
                (db(), role("keeper"), 5),
                (db(), database("shop"), of_app),
                (db(), database("seats"), 5),
            ]
        );
        let elsewhere = Login::new("primary:5432", "app", "shop");
        let found = needed(&[logins(), vec![elsewhere]].concat());
        // An external pool counts on every server.
        assert_eq!(found[3], (primary(), Scope::Server, 5 * (1 + 1) + 3));
    }

    #[test]
    fn a_wall_has_the_role_of_the_seats_and_no_partition_for_it() {
        let keeper = Login::new("db:5432", "keeper", "seats");
        let logins = [logins(), vec![keeper]].concat();
        let wall = Wall::of(&settings(), &logins).unwrap();
        let keeper = &wall.roles()[1];
        assert_eq!((&*keeper.name, keeper.connection_limit), ("keeper", 5));
        assert!(keeper.partitions.is_empty());
        let text = wall.to_string();
        assert!(
            text.contains("-- seats: 5 seats x (control 1) = 5\n"),
            "{text}"
        );
        assert!(
            text.contains("GRANT CONNECT ON DATABASE \"seats\" TO \"keeper\""),
            "{text}"
        );
    }

    #[test]
    #[should_panic(expected = "a login for each partition")]
    fn a_login_too_many_is_a_mistake() {
        let logins = [logins(), logins()].concat();
        let _ = assess_stated(
            &settings(),
            &logins,
            &StatedLimits::new(ServerLimits::stated(1)),
        );
    }
}
