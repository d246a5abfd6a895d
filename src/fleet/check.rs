//! What a server says of itself, by SQL that needs no right beyond LOGIN.

use crate::config::{BudgetSettings, PartitionSettings, Settings};
use crate::driver::{Driver, Endpoint, Rows};
use crate::error::Failure;
use crate::pool::Connection;

use super::capacity::{
    Database, Demand, ExternalDemand, Fleet, Limits, OpenSessions, Role, Server, ServerLimits,
    SharedBudget,
};

/// Limits of the server, of our role and of our database; one row.
const LIMITS: &str = "\
SELECT current_setting('server_version_num'), current_setting('max_connections'), \
current_setting('superuser_reserved_connections'), \
coalesce(current_setting('reserved_connections', true), '0'), \
pg_is_in_recovery(), pg_postmaster_start_time(), \
r.rolname, r.rolsuper, r.rolconnlimit, \
coalesce(pg_has_role(r.oid, u.oid, 'USAGE'), false), d.datname, d.datconnlimit \
FROM pg_roles r LEFT JOIN pg_roles u ON u.rolname = 'pg_use_reserved_connections', pg_database d \
WHERE r.rolname = session_user AND d.datname = current_database()";

/// A server and its copies differ in when they were started. Some providers withhold this.
const IDENTITY: &str = "SELECT system_identifier FROM pg_control_system()";

/// What one session has seen of its server.
pub(crate) struct Sight {
    identity: Identity,
    limits: ServerLimits,
}

/// Which server it really is, whatever URL led there.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    system: Option<String>,
    started: String,
    in_recovery: bool,
}

/// Looks at the server behind `connection`: three round trips.
pub(crate) async fn look<D: Driver>(
    connection: &mut Connection<D>,
    service: &str,
) -> Result<Sight, Failure> {
    let (driver, session) = connection.driver_parts();
    let limits = driver.query(session, LIMITS).await?;
    let others = driver.query(session, &others(service)).await?;
    let system = driver.query(session, IDENTITY).await.unwrap_or_default();
    let unreadable = || Failure::new(None, "the server's limits came back in an unknown form");
    sight(&limits, &others, &system).ok_or_else(unreadable)
}

/// Sessions that are not of this fleet, by role and database. Parallel workers are no sessions.
fn others(service: &str) -> String {
    let prefix = format!("{service}/");
    let literal = prefix.replace('\\', "\\\\").replace('\'', "''");
    format!(
        "SELECT usename, datname, count(*) FROM pg_stat_activity \
         WHERE usename IS NOT NULL AND datname IS NOT NULL AND leader_pid IS NULL \
         AND left(application_name, {}) <> E'{literal}' GROUP BY 1, 2 ORDER BY 1, 2",
        prefix.len(),
    )
}

fn sight(limits: &Rows, others: &Rows, system: &Rows) -> Option<Sight> {
    let row = limits.first()?;
    let text = |at: usize| row.get(at)?.as_deref();
    let number = |at| text(at)?.parse::<u32>().ok();
    let yes = |at| Some(text(at)? == "t");
    let limit = |at| {
        let limit = text(at)?.parse::<i64>().ok()?;
        Some((u32::try_from(limit).ok(), limit != -2))
    };
    let mut server = ServerLimits::new(number(0)?, number(1)?);
    server.superuser_reserved_connections = number(2)?;
    server.reserved_connections = number(3)?;
    server.in_recovery = yes(4)?;
    let mut role = Role::new(text(6)?);
    role.superuser = yes(7)?;
    role.connection_limit = limit(8)?.0;
    role.may_use_reserved = yes(9)?;
    let mut database = Database::new(text(10)?);
    (database.connection_limit, database.valid) = limit(11)?;
    server.roles.push(role);
    server.databases.push(database);
    server.others = others.iter().map(sessions).collect::<Option<_>>()?;
    let system = system.first().and_then(|row| row.first()?.clone());
    Some(Sight {
        identity: Identity {
            system,
            started: text(5)?.to_owned(),
            in_recovery: server.in_recovery,
        },
        limits: server,
    })
}

fn sessions(row: &Vec<Option<String>>) -> Option<OpenSessions> {
    let [Some(role), Some(database), Some(count)] = row.as_slice() else {
        return None;
    };
    Some(OpenSessions::new(role, database, count.parse().ok()?))
}

/// The servers that a pool really uses: endpoints that turned out to be one server are merged.
#[derive(Default)]
pub(crate) struct Survey {
    servers: Vec<(Option<Identity>, Server)>,
}

impl Survey {
    /// Takes in what a partition, which draws from `budget`, needs of the server behind `endpoint`, and what
    /// its driver keeps `beside` it; instead of a sight, what the server said when it had no free connection to look through.
    pub(crate) fn add(
        &mut self,
        endpoint: &Endpoint,
        settings: &PartitionSettings,
        budget: &BudgetSettings,
        beside: u32,
        sight: Result<Sight, String>,
    ) {
        let size = settings.max_connections.get();
        let mut demand =
            Demand::partition(&settings.name, size, &endpoint.user, &endpoint.database);
        if is_shared(budget) {
            demand = demand.sharing(&budget.name, settings.reserved);
        }
        let server = match sight {
            Ok(sight) => self.known(&endpoint.hosts, sight),
            Err(said) => self.full(&endpoint.hosts, said),
        };
        server.demands.push(demand);
        if beside > 0 {
            let (user, database) = (&endpoint.user, &endpoint.database);
            server.demands.push(Demand::control(beside, user, database));
        }
    }

    fn known(&mut self, label: &str, sight: Sight) -> &mut Server {
        let identity = Some(sight.identity);
        match self
            .servers
            .iter()
            .position(|(known, _)| *known == identity)
        {
            Some(at) => {
                let server = &mut self.servers[at].1;
                if let Limits::Known(limits) = &mut server.limits {
                    merge(limits, sight.limits);
                }
                server
            }
            None => self.insert(identity, Server::new(label, Limits::Known(sight.limits))),
        }
    }

    fn full(&mut self, label: &str, said: String) -> &mut Server {
        let same =
            |(known, server): &(Option<Identity>, Server)| known.is_none() && server.label == label;
        match self.servers.iter().position(same) {
            Some(at) => &mut self.servers[at].1,
            None => self.insert(None, Server::new(label, Limits::Full { said })),
        }
    }

    fn insert(&mut self, identity: Option<Identity>, server: Server) -> &mut Server {
        self.servers.push((identity, server));
        let last = self.servers.last_mut().expect("bug: just pushed");
        &mut last.1
    }

    pub(crate) fn servers(self) -> Vec<Server> {
        self.servers.into_iter().map(|(_, server)| server).collect()
    }
}

/// Roles and databases of both; the later look at the sessions of others replaces the earlier.
fn merge(limits: &mut ServerLimits, later: ServerLimits) {
    for role in later.roles {
        if limits.roles.iter().all(|known| known.name != role.name) {
            limits.roles.push(role);
        }
    }
    for database in later.databases {
        if limits
            .databases
            .iter()
            .all(|known| known.name != database.name)
        {
            limits.databases.push(database);
        }
    }
    limits.others = later.others;
}

fn is_shared(budget: &BudgetSettings) -> bool {
    budget.partitions.len() > 1
}

/// The fleet as its owner stated it, in the words of the arithmetic.
pub(crate) fn fleet(settings: &Settings) -> Fleet {
    let shared = settings.budgets.iter().filter(|budget| is_shared(budget));
    let budgets = shared.map(|b| SharedBudget::new(&b.name, b.capacity.get()));
    let settings = &settings.fleet;
    let external = |pool: &crate::config::ExternalSettings| {
        let mut demand = ExternalDemand::new(&pool.name, pool.size.get());
        demand.role.clone_from(&pool.role);
        demand.database.clone_from(&pool.database);
        demand
    };
    let mut fleet = Fleet::new(settings.max_replicas.get(), settings.surge);
    fleet.budgets = budgets.collect();
    fleet.seats = settings.seats.as_ref().map(|seats| seats.count.get());
    fleet.reserve = settings.reserve;
    fleet.external = settings.external.iter().map(external).collect();
    fleet
}

#[cfg(test)]
mod tests {
    use crate::config::{BudgetConfig, FleetConfig, Kind, PartitionConfig, PoolConfig};

    use super::super::{FleetReport, Warning, assess};
    use super::*;

    fn sight(system: &str) -> Sight {
        let mut limits = ServerLimits::new(170_004, 100);
        limits.roles.push(Role::new("shop"));
        limits.databases.push(Database::new("shop"));
        Sight {
            identity: Identity {
                system: Some(system.to_owned()),
                started: "today".to_owned(),
                in_recovery: false,
            },
            limits,
        }
    }

    /// Three partitions, of which the first two share `main` of 30, as they were found on these systems.
    fn found_on(systems: [&str; 3]) -> FleetReport {
        let fleet_of_two = FleetConfig::new(2, 0).reserve(1);
        let batch = PartitionConfig::named("batch", Kind::Analytical, 5);
        let settings = PoolConfig::new("shop", "postgres://shop@db/shop", fleet_of_two)
            .budget(BudgetConfig::new("main", 30))
            .transactional(
                PartitionConfig::transactional(25)
                    .budget("main")
                    .reserved(12),
            )
            .analytical(PartitionConfig::analytical(10).budget("main").reserved(0))
            .partition(batch)
            .resolve()
            .unwrap();
        let mut survey = Survey::default();
        for (index, system) in systems.into_iter().enumerate() {
            let endpoint = Endpoint {
                hosts: format!("{system}:5432"),
                user: "shop".to_owned(),
                database: "shop".to_owned(),
            };
            let (partition, budget) = (&settings.partitions[index], settings.budget_of(index));
            survey.add(&endpoint, partition, budget, 0, Ok(sight(system)));
        }
        assess(&fleet(&settings), &survey.servers())
    }

    fn needed(report: &FleetReport) -> Vec<u64> {
        let servers = report.servers().iter();
        servers.map(|server| server.constraints[0].needed).collect()
    }

    #[test]
    fn partitions_of_one_budget_on_one_server_are_one_demand() {
        let report = found_on(["a", "a", "a"]);
        assert_eq!(needed(&report), [2 * (30 + 5) + 1]);
        let parts = &report.servers()[0].constraints[0].per_replica;
        let names: Vec<_> = parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["main", "batch"]);
    }

    #[test]
    fn partitions_of_one_budget_on_two_servers_are_counted_on_each_and_told() {
        let report = found_on(["a", "b", "a"]);
        assert_eq!(needed(&report), [2 * (25 + 5) + 1, 2 * 10 + 1]);
        let spread =
            |w: &Warning| matches!(w, Warning::SpreadBudget { budget, .. } if budget == "main");
        assert!(report.warnings().iter().any(spread), "{report}");
    }
}
