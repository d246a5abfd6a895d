//! What a server says of itself, by SQL that needs no right beyond LOGIN.
//!
//! A server is asked once, in one round trip, for all roles and databases that the pool names anywhere: they can be
//! read by everybody. What the partitions need of it is added up by [`Survey`].

use crate::config::{BudgetSettings, PartitionSettings, PoolerSettings, Settings};
use crate::driver::{Driver, Endpoint, Rows};
use crate::error::Failure;
use crate::session::literal;

use super::capacity::{
    Database, Demand, FullRole, Limits, OpenSessions, Role, Server, ServerLimits,
};
use super::pooler;
use super::stated::{Login, demands};

/// What to ask a server for.
pub(crate) struct Question {
    sql: String,
}

impl Question {
    /// What a pool wants to know of each of the servers behind `endpoints`.
    pub(crate) fn new<'a>(
        settings: &Settings,
        endpoints: impl Iterator<Item = &'a Endpoint>,
    ) -> Self {
        let external = || settings.fleet.external.iter();
        let mut roles: Vec<&str> = external().filter_map(|e| e.role.as_deref()).collect();
        let mut databases: Vec<&str> = external().filter_map(|e| e.database.as_deref()).collect();
        for endpoint in endpoints {
            roles.push(&endpoint.user);
            databases.push(&endpoint.database);
        }
        let parts = [
            SERVER.to_owned(),
            role_limits(&roles),
            database_limits(&databases),
            others(&settings.service),
        ];
        Self {
            sql: parts.join("; "),
        }
    }
}

const SERVER: &str = "\
SELECT 'server', current_setting('server_version_num'), current_setting('max_connections'), \
current_setting('superuser_reserved_connections'), \
coalesce(current_setting('reserved_connections', true), '0'), pg_is_in_recovery(), \
(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint";

fn role_limits(names: &[&str]) -> String {
    format!(
        "SELECT 'role', r.rolname, r.rolsuper, r.rolconnlimit, \
         coalesce(pg_has_role(r.oid, u.oid, 'USAGE'), false) \
         FROM pg_roles r LEFT JOIN pg_roles u ON u.rolname = 'pg_use_reserved_connections' \
         WHERE r.rolname = session_user OR r.rolname IN ({})",
        literals(names)
    )
}

fn database_limits(names: &[&str]) -> String {
    format!(
        "SELECT 'database', datname, datconnlimit FROM pg_database \
         WHERE datname = current_database() OR datname IN ({})",
        literals(names)
    )
}

/// Sessions that are not of this fleet, by role and database. Parallel workers are no sessions.
fn others(service: &str) -> String {
    let prefix = format!("{service}/");
    format!(
        "SELECT 'others', usename, datname, count(*) FROM pg_stat_activity \
         WHERE usename IS NOT NULL AND datname IS NOT NULL AND leader_pid IS NULL \
         AND left(application_name, {}) <> {} GROUP BY usename, datname ORDER BY usename, datname",
        prefix.len(),
        literal(&prefix),
    )
}

fn literals(names: &[&str]) -> String {
    let each: Vec<String> = names.iter().map(|name| literal(name)).collect();
    each.join(", ")
}

/// A server and its copies differ in when they were started.
const IDENTITY: &str = "SELECT 'system', system_identifier FROM pg_control_system()";

/// `insufficient_privilege`.
const WITHHELD: &str = "42501";

/// What one session has seen of its server.
#[derive(Clone)]
pub(crate) struct Sight {
    identity: Identity,
    limits: ServerLimits,
}

/// Which server it really is, whatever URL led there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    system: Option<String>,
    /// In microseconds since 1970: as text it would depend on the time zone of the role.
    started: String,
    in_recovery: bool,
}

/// Looks at the server behind `session`: one round trip; two where a provider withholds what the system is called.
pub(crate) async fn look<D: Driver>(
    driver: &D,
    session: &mut D::Type,
    question: &Question,
) -> Result<Sight, Failure> {
    let sql = format!("{}; {IDENTITY}", question.sql);
    let rows = match driver.query(session, &sql).await {
        Err(failure) if failure.sqlstate() == Some(WITHHELD) => {
            driver.query(session, &question.sql).await?
        }
        answer => answer?,
    };
    let unreadable = || Failure::new(None, "the server's limits came back in an unknown form");
    sight(&rows).ok_or_else(unreadable)
}

fn sight(rows: &Rows) -> Option<Sight> {
    let of = |kind: &'static str| {
        let of_kind = move |row: &&Vec<Option<String>>| row[0].as_deref() == Some(kind);
        rows.iter().filter(of_kind)
    };
    let server = of("server").next()?;
    let text = |at: usize| server.get(at)?.as_deref();
    let number = |at| text(at)?.parse::<u32>().ok();
    let mut limits = ServerLimits::new(number(1)?, number(2)?);
    limits.superuser_reserved_connections = number(3)?;
    limits.reserved_connections = number(4)?;
    limits.in_recovery = text(5)? == "t";
    limits.roles = of("role").map(|row| role(row)).collect::<Option<_>>()?;
    limits.databases = of("database")
        .map(|row| database(row))
        .collect::<Option<_>>()?;
    limits.others = of("others")
        .map(|row| sessions(row))
        .collect::<Option<_>>()?;
    Some(Sight {
        identity: Identity {
            system: of("system").next().and_then(|row| row.get(1)?.clone()),
            started: text(6)?.to_owned(),
            in_recovery: limits.in_recovery,
        },
        limits,
    })
}

fn role(row: &[Option<String>]) -> Option<Role> {
    let [
        _,
        Some(name),
        Some(superuser),
        Some(limit),
        Some(may_use_reserved),
    ] = row
    else {
        return None;
    };
    let mut role = Role::new(name);
    role.superuser = superuser == "t";
    role.connection_limit = limit.parse::<i64>().ok()?.try_into().ok();
    role.may_use_reserved = may_use_reserved == "t";
    Some(role)
}

fn database(row: &[Option<String>]) -> Option<Database> {
    let [_, Some(name), Some(limit)] = row else {
        return None;
    };
    let limit = limit.parse::<i64>().ok()?;
    let mut database = Database::new(name);
    database.connection_limit = limit.try_into().ok();
    database.valid = limit != -2;
    Some(database)
}

fn sessions(row: &[Option<String>]) -> Option<OpenSessions> {
    let [_, Some(role), Some(database), Some(count)] = row else {
        return None;
    };
    Some(OpenSessions::new(role, database, count.parse().ok()?))
}

/// The servers that a pool really uses: endpoints that turned out to be one server are merged.
#[derive(Default)]
pub(crate) struct Survey {
    servers: Vec<Seen>,
    wanted: Vec<Wanted>,
}

/// A server, and the hosts of each endpoint that led there.
struct Seen {
    identity: Option<Identity>,
    server: Server,
    by: Vec<String>,
    /// It is a part of another.
    is_merged: bool,
}

/// What somebody wants of the server that its endpoint led to.
struct Wanted {
    hosts: String,
    at: usize,
    demands: Vec<Demand>,
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
        let mut login = Login::new(&endpoint.hosts, &endpoint.user, &endpoint.database);
        login.control = beside;
        let hosts = endpoint.hosts.clone();
        let demands: Vec<Demand> = demands(settings, budget, &login).collect();
        if let Some(pooler) = &settings.pooler {
            let (at, demands) = (self.pooler(endpoint, pooler), demands.clone());
            let hosts = hosts.clone();
            self.wanted.push(Wanted { hosts, at, demands });
        }
        if !settings.has_sessions() {
            return;
        }
        self.want(endpoint, sight, demands);
    }

    /// Takes in one connection beside the partitions, to the server behind `endpoint`.
    pub(crate) fn add_control(&mut self, endpoint: &Endpoint, sight: Result<Sight, String>) {
        let demand = Demand::control(1, &endpoint.user, &endpoint.database);
        self.want(endpoint, sight, vec![demand]);
    }

    fn want(&mut self, endpoint: &Endpoint, sight: Result<Sight, String>, demands: Vec<Demand>) {
        let hosts = endpoint.hosts.clone();
        let at = match sight {
            Ok(sight) => self.known(&hosts, sight),
            Err(said) => self.full(endpoint, said),
        };
        self.wanted.push(Wanted { hosts, at, demands });
    }

    /// The pooler that the endpoint leads to.
    fn pooler(&mut self, endpoint: &Endpoint, stated: &PoolerSettings) -> usize {
        let label = pooler::label(&endpoint.hosts);
        let same = |seen: &Seen| seen.identity.is_none() && seen.server.label == label;
        let at = match self.servers.iter().position(same) {
            Some(at) => at,
            // Not by its hosts: those of a list may be servers of their own.
            None => self.insert(None, &label, pooler::server(&label, stated)),
        };
        if let Limits::Pooler(limits) = &mut self.servers[at].server.limits {
            limits.take_in(stated, &endpoint.user, &endpoint.database);
        }
        at
    }

    fn known(&mut self, hosts: &str, sight: Sight) -> usize {
        let same = |seen: &Seen| seen.identity.as_ref() == Some(&sight.identity);
        let Some(at) = self.servers.iter().position(same) else {
            let label = label(hosts, sight.limits.in_recovery);
            let server = Server::new(label, Limits::Known(sight.limits));
            return self.insert(Some(sight.identity), hosts, server);
        };
        let seen = &mut self.servers[at];
        seen.by.push(hosts.to_owned());
        if let Limits::Known(limits) = &mut seen.server.limits {
            // All looks ask for the same; the later has the sessions of others as they are now.
            *limits = sight.limits;
        }
        at
    }

    fn full(&mut self, endpoint: &Endpoint, said: String) -> usize {
        let hosts = &endpoint.hosts;
        let same = |seen: &Seen| seen.identity.is_none() && seen.server.label == *hosts;
        let at = match self.servers.iter().position(same) {
            Some(at) => at,
            None => {
                let said = said.clone();
                self.insert(None, hosts, Server::new(hosts, Limits::Full { said }))
            }
        };
        let refused = FullRole::new(&endpoint.user, &endpoint.database, said);
        let full = &mut self.servers[at].server.full;
        let same =
            |known: &FullRole| (&known.role, &known.database) == (&refused.role, &refused.database);
        if !full.iter().any(same) {
            full.push(refused);
        }
        at
    }

    /// The server that another role has read, for one that was full for a role. Of several hosts it could be any.
    fn read_by_another(&self, full: &Seen) -> Option<usize> {
        let label = &full.server.label;
        let is_full = matches!(full.server.limits, Limits::Full { .. }) && !is_list(label);
        let by_it = |seen: &Seen| seen.identity.is_some() && seen.by.contains(label);
        is_full.then(|| self.servers.iter().position(by_it))?
    }

    /// Makes one of a server that some roles could read and some could not.
    fn merge_full(&mut self) {
        for at in 0..self.servers.len() {
            let Some(read) = self.read_by_another(&self.servers[at]) else {
                continue;
            };
            let refused = std::mem::take(&mut self.servers[at].server.full);
            self.servers[read].server.full.extend(refused);
            for wanted in self.wanted.iter_mut().filter(|wanted| wanted.at == at) {
                wanted.at = read;
            }
            self.servers[at].is_merged = true;
        }
        for seen in &mut self.servers {
            if seen.identity.is_none() {
                // Its state says so.
                seen.server.full.clear();
            }
        }
    }

    fn insert(&mut self, identity: Option<Identity>, hosts: &str, server: Server) -> usize {
        self.servers.push(Seen {
            identity,
            server,
            by: vec![hosts.to_owned()],
            is_merged: false,
        });
        self.servers.len() - 1
    }

    /// Each demand on the server that its endpoint led to, and on every other one to which its hosts could bring it.
    pub(crate) fn servers(mut self) -> Vec<Server> {
        self.merge_full();
        let Self { servers, wanted } = self;
        let place = |(at, seen): (usize, Seen)| {
            let mut server = seen.server;
            for wanted in &wanted {
                let may_come = || seen.by.iter().any(|by| wanted.may_come_to(by));
                if wanted.at == at || seen.identity.is_some() && may_come() {
                    server.demands.extend(wanted.demands.iter().cloned());
                }
            }
            server
        };
        let own = servers.into_iter().enumerate();
        own.filter(|(_, seen)| !seen.is_merged).map(place).collect()
    }
}

impl Wanted {
    /// Whether one of several hosts may be that of a server to which `others` led.
    fn may_come_to(&self, others: &str) -> bool {
        let mut own = self.hosts.split(',');
        is_list(&self.hosts) && own.any(|host| others.split(',').any(|other| other == host))
    }
}

/// Several hosts are several servers, which are told apart by what they are.
fn label(hosts: &str, in_recovery: bool) -> String {
    match (is_list(hosts), in_recovery) {
        (false, _) => hosts.to_owned(),
        (true, true) => format!("{hosts} (standby)"),
        (true, false) => format!("{hosts} (primary)"),
    }
}

/// Whether an endpoint may lead to several servers.
pub(crate) fn is_list(hosts: &str) -> bool {
    hosts.contains(',')
}

#[cfg(test)]
mod tests {
    use crate::config::{BudgetConfig, FleetConfig, Kind, PartitionConfig, PoolConfig};

    use super::super::{Fleet, FleetReport, Warning, assess};
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
        assess(&Fleet::of(&settings), &survey.servers())
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

    fn endpoint(hosts: &str, user: &str) -> Endpoint {
        Endpoint {
            hosts: hosts.to_owned(),
            user: user.to_owned(),
            database: "shop".to_owned(),
        }
    }

    #[test]
    fn a_server_that_is_full_for_one_role_is_one_server_whoever_comes_first() {
        let fleet_of_two = FleetConfig::new(2, 0).reserve(1);
        let settings = PoolConfig::new("shop", "postgres://shop@db/shop", fleet_of_two)
            .transactional(PartitionConfig::transactional(20))
            .analytical(PartitionConfig::analytical(5))
            .resolve()
            .unwrap();
        for full in [0, 1] {
            let mut survey = Survey::default();
            for (index, role) in ["shop", "reports"].into_iter().enumerate() {
                let (partition, budget) = (&settings.partitions[index], settings.budget_of(index));
                let seen = match index == full {
                    true => Err("too many connections for role".to_owned()),
                    false => Ok(sight("a")),
                };
                survey.add(&endpoint("db:5432", role), partition, budget, 0, seen);
            }
            let report = assess(&Fleet::of(&settings), &survey.servers());
            assert_eq!(needed(&report), [2 * (20 + 5) + 1], "{report}");
            let server = &report.servers()[0];
            assert_eq!(server.full.len(), 1);
            assert_eq!(server.full[0].role, ["shop", "reports"][full]);
            let text = report.to_string();
            let title = format!(
                "fleet check: db:5432 is full for role {} at this moment\n",
                server.full[0].role
            );
            assert!(text.starts_with(&title), "{text}");
            assert!(
                text.contains("It said: too many connections for role"),
                "{text}"
            );
            assert!(!report.fits() && !text.contains("Largest"), "{text}");
        }
        // Of several hosts it could be any; and where nobody could read anything, that is what there is to say.
        let mut survey = Survey::default();
        survey.add_control(&endpoint("db:5432,other:5432", "shop"), Ok(sight("a")));
        let full = || Err("sorry".to_owned());
        survey.add_control(&endpoint("db:5432,other:5432", "reports"), full());
        survey.add_control(&endpoint("third:5432", "shop"), full());
        survey.add_control(&endpoint("third:5432", "reports"), full());
        let report = assess(&Fleet::of(&settings), &survey.servers());
        assert_eq!(report.servers().len(), 3, "{report}");
        assert!(report.servers().iter().all(|server| server.full.is_empty()));
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
