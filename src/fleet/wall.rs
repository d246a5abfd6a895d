//! The plan of a fleet as limits of its roles, in SQL: a wall that holds when an application does not.
//!
//! 1. Running it again changes nothing, and running that of a new plan leaves nothing of the old one's limits.
//! 2. All of it is done, or nothing.
//! 3. A name is quoted wherever it stands, also in a comment; there is no password in it.

use std::fmt::{self, Display, Formatter, Write as _};

use crate::config::{PartitionSettings, Settings};
use crate::session::{CLIENT_CHECK_INTERVAL, NEWEST, SERVER_KEEPALIVE, ServerLimit, limits};

use super::capacity::ServerLimits;
use super::constraint::{Constraint, Part, Scope};
use super::stated::{Login, StatedLimits, assess_stated, of_seats};

/// What Postgres keeps of the name of a role, in bytes.
const NAME_BYTES: usize = 63;

/// The first version that has `client_connection_check_interval`.
const CLIENT_CHECK_SINCE: u32 = 140_000;

/// The statements that put the limits of a fleet in force in the database.
///
/// `Display` is the script, for `psql` or any driver. For each role that partitions log in with:
/// - It is made if it is not there, without a password.
/// - `CONNECTION LIMIT`: what the whole fleet opens as this role, surge included. A client that opens more is
///   refused by Postgres (SQLSTATE 53300).
/// - The timeouts of its partition, for sessions that state none: those that are no longer dressed by a pool. Where
///   partitions share a role, the longest, so that none is cut short; the pool still sets each partition's own.
///   `transaction_timeout` is left out before Postgres 17.
/// - How soon a backend notices that its client is gone.
///
/// All partitions count as if they were on one server. So one script is right for a primary and its standby, which
/// have the same roles, and after a failover that brings both partitions to one of them.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
/// use partitioned_pool::fleet::{Login, Wall};
///
/// let settings = PoolConfig::new("shop", "postgres://app@db/shop", FleetConfig::new(3, 1))
///     .transactional(PartitionConfig::transactional(20))
///     .analytical(PartitionConfig::analytical(10))
///     .resolve()?;
/// let logins = ["app", "app_reports"].map(|role| Login::new("db:5432", role, "shop"));
/// let sql = Wall::of(&settings, &logins)?.to_string();
/// assert!(sql.contains(r#"ALTER ROLE "app" CONNECTION LIMIT 80;"#)); // (3 + 1) x 20
/// assert!(sql.contains(r#"ALTER ROLE "app_reports" CONNECTION LIMIT 40;"#));
/// assert!(sql.contains(r#"ALTER ROLE "app_reports" SET statement_timeout = 300000;"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wall {
    roles: Vec<WallRole>,
    left_out: Vec<String>,
}

/// One role of a [`Wall`].
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::Wall;
///
/// /// Connections that the database will grant to all roles of the wall together.
/// fn granted(wall: &Wall) -> u32 {
///     wall.roles().iter().map(|role| role.connection_limit).sum()
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WallRole {
    /// The role.
    pub name: String,
    /// The partitions that log in with it; none for the role of the seats, if that is another.
    pub partitions: Vec<String>,
    /// The most connections of the whole fleet.
    pub connection_limit: u32,
    databases: Vec<String>,
    sum: String,
    timeouts: Vec<Timeout>,
    /// Further settings in which all of its partitions agree.
    settings: Vec<(String, String)>,
}

/// A timeout of a role, in milliseconds; 0: none.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Timeout {
    name: &'static str,
    millis: u128,
    since: u32,
}

/// A wall that cannot be made.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
/// use partitioned_pool::fleet::{Login, NoWall, Wall};
///
/// let settings = PoolConfig::new("shop", "postgres://app@db/shop", FleetConfig::new(3, 1))
///     .transactional(PartitionConfig::transactional(20))
///     .analytical(PartitionConfig::analytical(10))
///     .resolve()?;
/// let long = vec![Login::new("db:5432", "r".repeat(64), "shop"); 2];
/// assert!(matches!(Wall::of(&settings, &long), Err(NoWall::RoleTooLong { .. })));
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoWall {
    /// Postgres cuts longer names off, and would limit another role.
    #[error(
        "the role of partition {partition} is longer than {NAME_BYTES} bytes; choose a shorter name"
    )]
    RoleTooLong {
        /// The partition.
        partition: String,
    },
    /// The partitions have several roles, and one of them may be that of an external pool: its limit would be too low.
    #[error(
        "the external pool {pool} does not say which role it uses, and the partitions use several; state its role in \
         fleet.external"
    )]
    ExternalWithoutRole {
        /// The pool.
        pool: String,
    },
}

impl Wall {
    /// The wall of these settings, whose partitions log in so, in their order; and their seats, if that login is another
    /// ([`Builder::logins`](crate::Builder::logins)). A role need not be there yet.
    ///
    /// # Errors
    /// [`NoWall`]: a limit would be wrong.
    ///
    /// # Panics
    /// If there are not as many logins as partitions, and one for seats.
    pub fn of(settings: &Settings, logins: &[Login]) -> Result<Self, NoWall> {
        let too_long = |login: &Login| login.role.len() > NAME_BYTES;
        if let Some(at) = logins.iter().position(too_long) {
            let partition = settings.partitions.get(at);
            let partition = partition.map_or("seats", |partition| &partition.name);
            let partition = partition.to_owned();
            return Err(NoWall::RoleTooLong { partition });
        }
        let totals = totals(settings, logins);
        let (of_partitions, _) = of_seats(settings, logins);
        let several = of_partitions.windows(2).any(|w| w[0].role != w[1].role);
        let unknown = settings.fleet.external.iter().find(|e| e.role.is_none());
        if let (Some(pool), true) = (unknown, several) {
            let pool = pool.name.clone();
            return Err(NoWall::ExternalWithoutRole { pool });
        }
        let role = |total: &Constraint| WallRole::new(total, settings, logins);
        let roles: Vec<_> = totals.iter().filter_map(role).collect();
        let elsewhere = settings.fleet.external.iter().filter_map(|pool| {
            let known = |role: &&String| roles.iter().all(|r| r.name != **role);
            let role = pool.role.as_ref().filter(known)?;
            Some(format!(
                "external pool {}, role {}",
                pool.name,
                identifier(role)
            ))
        });
        let pooled = settings.partitions.iter().filter(|p| !p.has_sessions());
        let pooled = pooled.map(|partition| {
            let name = &partition.name;
            format!("partition {name}, whose server connections a pooler in transaction mode opens")
        });
        let left_out = elsewhere.chain(pooled).collect();
        Ok(Self { roles, left_out })
    }

    /// The roles, in the order of their partitions.
    #[must_use]
    pub fn roles(&self) -> &[WallRole] {
        &self.roles
    }
}

/// What the fleet opens as each role, if it all comes to one server: the check's own sum, under limits that leave
/// everything in.
fn totals(settings: &Settings, logins: &[Login]) -> Vec<Constraint> {
    let on_one = |login: &Login| Login {
        hosts: String::new(),
        ..login.clone()
    };
    let logins: Vec<_> = logins.iter().map(on_one).collect();
    let mut limits = StatedLimits::new(ServerLimits::new(NEWEST, u32::MAX));
    limits.role_limit = Some(u32::MAX);
    let report = assess_stated(settings, &logins, &limits);
    let constraints = report.servers().iter().flat_map(|s| &s.constraints);
    let of_roles = constraints.filter(|c| matches!(c.scope, Scope::Role { .. }));
    of_roles.cloned().collect()
}

impl WallRole {
    fn new(total: &Constraint, settings: &Settings, logins: &[Login]) -> Option<Self> {
        let Scope::Role { name } = &total.scope else {
            return None;
        };
        let with = settings.partitions.iter().zip(logins);
        let own: Vec<_> = with.filter(|(_, login)| login.role == *name).collect();
        let partitions: Vec<_> = own.iter().map(|(partition, _)| *partition).collect();
        let as_it = logins.iter().filter(|login| login.role == *name);
        let mut databases: Vec<_> = as_it.map(|login| login.database.clone()).collect();
        databases.sort();
        databases.dedup();
        Some(Self {
            name: name.clone(),
            partitions: partitions.iter().map(|p| p.name.clone()).collect(),
            connection_limit: u32::try_from(total.needed).unwrap_or(u32::MAX).min(MOST),
            databases,
            sum: sum(total),
            timeouts: longest(&partitions),
            settings: agreed(&partitions),
        })
    }
}

/// The largest limit that Postgres takes.
const MOST: u32 = i32::MAX.unsigned_abs();

/// `(3 + 1) x (transactional 20 + analytical 10) = 120`, or `8 seats x (..) = 240`.
fn sum(total: &Constraint) -> String {
    let part = |part: &Part| format!("{} {}", part.name, part.size);
    let parts: Vec<_> = total.per_replica.iter().map(part).collect();
    let counted = match total.seats {
        Some(seats) => format!("{seats} seats"),
        None => format!("({} + {})", total.max_replicas, total.surge),
    };
    format!("{counted} x ({}) = {}", parts.join(" + "), total.needed)
}

/// Of each timeout the longest that one of the partitions has; off is longer than any.
fn longest(partitions: &[&PartitionSettings]) -> Vec<Timeout> {
    let mut all: Vec<Timeout> = Vec::new();
    for ServerLimit {
        name,
        millis,
        since,
    } in partitions.iter().flat_map(|p| limits(p, NEWEST))
    {
        match all.iter_mut().find(|known| known.name == name) {
            Some(known) if known.millis == 0 || millis == 0 => known.millis = 0,
            Some(known) => known.millis = known.millis.max(millis),
            None => all.push(Timeout {
                name,
                millis,
                since,
            }),
        }
    }
    all
}

/// The settings that all partitions have alike.
fn agreed(partitions: &[&PartitionSettings]) -> Vec<(String, String)> {
    let Some((first, others)) = partitions.split_first() else {
        return Vec::new();
    };
    let alike = |(name, value): &(&String, &String)| {
        let mut others = others.iter();
        others.all(|other| other.session_settings.get(*name) == Some(*value))
    };
    let settings = first.session_settings.iter().filter(alike);
    let owned = |(name, value): (&String, &String)| (name.clone(), value.clone());
    settings.map(owned).collect()
}

/// Lists, whose members `ALTER ROLE` wants one by one, in quotes of their own.
const LISTS: [&str; 4] = [
    "local_preload_libraries",
    "search_path",
    "session_preload_libraries",
    "temp_tablespaces",
];

impl Display for Wall {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(HEAD)?;
        for role in &self.roles {
            write!(f, "\n{role}")?;
        }
        f.write_str("\nCOMMIT;\n")?;
        for pool in &self.left_out {
            writeln!(f, "\n-- Not limited here: {pool}.")?;
        }
        f.write_str(FOOT)?;
        self.roles.iter().try_for_each(|role| role.fmt_grants(f))
    }
}

const HEAD: &str = "\
-- Limits of the fleet's roles. Run it as an owner of the server; running it again is fine. Sessions that are open
-- keep the limits that they have.
BEGIN;
";

const FOOT: &str = "
-- Left to you: a password for each role, from wherever you keep secrets, and what it may do. At least:
";

impl Display for WallRole {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let role = identifier(&self.name);
        let whose = match &self.partitions[..] {
            [] => "seats".to_owned(),
            partitions => partitions.join(", "),
        };
        writeln!(f, "-- {whose}: {}", self.sum)?;
        self.fmt_creation(f)?;
        let limit = self.connection_limit;
        writeln!(f, "ALTER ROLE {role} CONNECTION LIMIT {limit};")?;
        for Timeout {
            name,
            millis,
            since,
        } in &self.timeouts
        {
            let statement = format!("ALTER ROLE {role} SET {name} = {millis};");
            match since {
                0 => writeln!(f, "{statement}")?,
                since => fmt_guarded(f, &from_version(*since), &statement)?,
            }
        }
        for (name, value) in SERVER_KEEPALIVE {
            writeln!(f, "ALTER ROLE {role} SET {name} = {value};")?;
        }
        for (name, value) in &self.settings {
            self.fmt_setting(f, name, value)?;
        }
        // Where the platform cannot do it, setting it is an error.
        let condition = from_version(CLIENT_CHECK_SINCE) + " AND version() LIKE '%linux%'";
        let name = "client_connection_check_interval";
        let statement = format!("ALTER ROLE {role} SET {name} = '{CLIENT_CHECK_INTERVAL}';");
        fmt_guarded(f, &condition, &statement)
    }
}

impl WallRole {
    fn fmt_creation(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (role, name) = (identifier(&self.name), literal(&self.name));
        let missing = format!("NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {name})");
        fmt_guarded(f, &missing, &format!("CREATE ROLE {role} LOGIN;"))?;
        let superuser = format!("(SELECT rolsuper FROM pg_roles WHERE rolname = {name})");
        let told = "RAISE WARNING 'role % is a superuser, whom no connection limit binds',";
        fmt_guarded(f, &superuser, &format!("{told} {name};"))
    }

    fn fmt_setting(&self, f: &mut Formatter<'_>, name: &str, value: &str) -> fmt::Result {
        if LISTS.contains(&name) {
            return writeln!(f, "-- {name} is left to the pool.");
        }
        let parts: Vec<_> = name.split('.').map(identifier).collect();
        let (role, name, value) = (identifier(&self.name), parts.join("."), literal(value));
        writeln!(f, "ALTER ROLE {role} SET {name} = {value};")
    }

    fn fmt_grants(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let role = identifier(&self.name);
        self.databases.iter().try_for_each(|database| {
            let database = identifier(database);
            writeln!(f, "-- GRANT CONNECT ON DATABASE {database} TO {role};")
        })
    }
}

fn from_version(version: u32) -> String {
    format!("current_setting('server_version_num')::int >= {version}")
}

/// The statement under a condition, as a block of its own.
fn fmt_guarded(f: &mut Formatter<'_>, condition: &str, statement: &str) -> fmt::Result {
    let tag = tag(&format!("{condition}{statement}"));
    writeln!(f, "DO {tag} BEGIN")?;
    writeln!(f, "  IF {condition} THEN")?;
    writeln!(f, "    {statement}")?;
    writeln!(f, "  END IF;\nEND {tag};")
}

/// A dollar quote that does not occur in `text`: a role may be called anything.
fn tag(text: &str) -> String {
    let tags = (0_u64..).map(|n| match n {
        0 => "$wall$".to_owned(),
        n => format!("$wall{n}$"),
    });
    let mut free = tags.filter(|tag| !text.contains(tag.as_str()));
    free.next().expect("bug: a text holds finitely many tags")
}

/// A name as SQL. What would end the line is written by its code, so that it can stand in a comment.
fn identifier(name: &str) -> String {
    if !name.contains(char::is_control) {
        return format!("\"{}\"", name.replace('"', "\"\""));
    }
    let mut quoted = String::from("U&\"");
    for c in name.chars() {
        match c {
            '"' => quoted.push_str("\"\""),
            '\\' => quoted.push_str("\\\\"),
            c if c.is_control() => _ = write!(quoted, "\\{:04x}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// A text as SQL, whatever `standard_conforming_strings` is.
fn literal(text: &str) -> String {
    let mut quoted = String::from("E'");
    for c in text.chars() {
        match c {
            '\'' => quoted.push_str("''"),
            '\\' => quoted.push_str("\\\\"),
            c if c.is_control() => _ = write!(quoted, "\\u{:04x}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "'"
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::config::{
        BudgetConfig, ExternalPool, FleetConfig, Limit, PartitionConfig, PoolConfig, PoolerConfig,
    };

    use super::*;

    fn settings(fleet: FleetConfig) -> Settings {
        let seconds = Duration::from_secs;
        PoolConfig::new("shop", "postgres://app@db/shop", fleet)
            .transactional(PartitionConfig::transactional(20).statement_timeout(seconds(2)))
            .analytical(PartitionConfig::analytical(10).lock_timeout(Limit::Off))
            .resolve()
            .unwrap()
    }

    fn logins(roles: [&str; 2]) -> [Login; 2] {
        roles.map(|role| Login::new("db:5432", role, "shop"))
    }

    fn limits_of<'a>(wall: &'a Wall) -> Vec<(&'a str, u32)> {
        let role = |role: &'a WallRole| (role.name.as_str(), role.connection_limit);
        wall.roles.iter().map(role).collect()
    }

    #[test]
    fn partitions_of_one_role_are_one_limit_and_the_longest_timeouts() {
        let fleet = FleetConfig::new(3, 1).external(ExternalPool::new("jobs", 4));
        let mut both = logins(["app", "app"]);
        both[0].control = 1;
        both[1].hosts = "standby:5432".to_owned();
        let wall = Wall::of(&settings(fleet), &both).unwrap();
        assert_eq!(limits_of(&wall), [("app", 4 * (20 + 10 + 1 + 4))]);
        let sql = wall.to_string();
        assert!(sql.contains("SET statement_timeout = 300000;"), "{sql}");
        assert!(sql.contains("SET lock_timeout = 0;"), "{sql}");
    }

    #[test]
    fn settings_are_the_roles_where_its_partitions_agree() {
        let with = |of: PartitionConfig, work_mem| {
            of.setting("work_mem", work_mem)
                .setting("pg_trgm.similarity_threshold", "0.5")
                .setting("search_path", "shop, public")
        };
        let sql = |work_mem| {
            let fleet = FleetConfig::new(3, 1);
            let config = PoolConfig::new("shop", "postgres://app@db/shop", fleet)
                .transactional(with(PartitionConfig::transactional(20), "64MB"))
                .analytical(with(PartitionConfig::analytical(10), work_mem));
            let settings = config.resolve().unwrap();
            Wall::of(&settings, &logins(["app", "app"]))
                .unwrap()
                .to_string()
        };
        let alike = sql("64MB");
        let told = r#"ALTER ROLE "app" SET "work_mem" = E'64MB';"#;
        assert!(alike.contains(told), "{alike}");
        let dotted = r#"SET "pg_trgm"."similarity_threshold" = E'0.5';"#;
        assert!(alike.contains(dotted), "{alike}");
        assert!(
            alike.contains("-- search_path is left to the pool."),
            "{alike}"
        );
        assert!(!sql("1GB").contains("work_mem"), "they do not agree");
    }

    #[test]
    fn partitions_behind_a_transaction_pooler_are_named_and_not_limited() {
        let pooler = PoolerConfig::transaction(500);
        let config = PoolConfig::new("shop", "postgres://app@db/shop", FleetConfig::new(3, 1))
            .pooler(pooler)
            .transactional(PartitionConfig::transactional(20))
            .analytical(PartitionConfig::analytical(10).url("postgres://app@standby/shop"));
        let mut logins = logins(["app", "reports"]);
        logins[1].hosts = "standby:5432".to_owned();
        let wall = Wall::of(&config.resolve().unwrap(), &logins).unwrap();
        assert_eq!(limits_of(&wall), [("reports", 40)]);
        let sql = wall.to_string();
        assert!(
            sql.contains("Not limited here: partition transactional, whose"),
            "{sql}"
        );
    }

    #[test]
    fn what_shares_a_budget_never_needs_more_than_it() {
        let config = PoolConfig::new("shop", "postgres://app@db/shop", FleetConfig::new(2, 0))
            .budget(BudgetConfig::new("main", 30))
            .transactional(
                PartitionConfig::transactional(25)
                    .budget("main")
                    .reserved(5),
            )
            .analytical(PartitionConfig::analytical(10).budget("main").reserved(0));
        let settings = config.resolve().unwrap();
        let wall = |roles| Wall::of(&settings, &logins(roles)).unwrap();
        assert_eq!(limits_of(&wall(["a", "a"])), [("a", 60)]);
        assert_eq!(limits_of(&wall(["a", "b"])), [("a", 50), ("b", 20)]);
    }

    #[test]
    fn a_pool_of_another_role_is_named_and_not_limited() {
        let jobs = ExternalPool::new("jobs", 4).role("worker");
        let fleet = FleetConfig::new(3, 1).external(jobs);
        let wall = Wall::of(&settings(fleet), &logins(["a", "b"])).unwrap();
        assert_eq!(limits_of(&wall), [("a", 80), ("b", 40)]);
        let sql = wall.to_string();
        let told = "-- Not limited here: external pool jobs, role \"worker\".\n";
        assert!(sql.contains(told), "{sql}");
        assert!(!sql.contains("ALTER ROLE \"worker\""), "{sql}");
    }

    #[test]
    fn a_limit_that_would_be_wrong_is_not_written() {
        let fleet = FleetConfig::new(3, 1).external(ExternalPool::new("jobs", 4));
        let refused = |roles| Wall::of(&settings(fleet.clone()), &logins(roles)).unwrap_err();
        let pool = "jobs".to_owned();
        assert_eq!(refused(["a", "b"]), NoWall::ExternalWithoutRole { pool });
        let partition = "analytical".to_owned();
        let long = "b".repeat(64);
        assert_eq!(refused(["a", &long]), NoWall::RoleTooLong { partition });
    }

    #[test]
    fn a_name_stays_a_name_wherever_it_stands() {
        let evil = "a\"; DROP\nTABLE $wall$ \\'x";
        let wall = Wall::of(&settings(FleetConfig::new(1, 0)), &logins([evil, "b"])).unwrap();
        let sql = wall.to_string();
        assert!(!sql.contains("\nTABLE"), "{sql}");
        let quoted = r#"U&"a""; DROP\000aTABLE $wall$ \\'x""#;
        let altered = format!("ALTER ROLE {quoted} CONNECTION LIMIT 20;");
        assert!(sql.contains(&altered), "{sql}");
        assert!(
            sql.contains(r#"E'a"; DROP\u000aTABLE $wall$ \\''x'"#),
            "{sql}"
        );
        assert!(sql.contains("DO $wall1$ BEGIN"), "{sql}");
    }
}
