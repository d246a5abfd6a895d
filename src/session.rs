//! The session limits of a partition as SQL, for whatever server version: what a driver sends when it has
//! connected.

use std::fmt::{self, Write as _};
use std::time::Duration;

use crate::config::PartitionSettings;
use crate::error::Failure;

/// How often a backend that runs a query looks whether its client is still there (Postgres 14+).
pub(crate) const CLIENT_CHECK_INTERVAL: &str = "500ms";

/// TCP keepalive of the server: a client that vanished is noticed after 10 s + 3 x 5 s.
pub(crate) const SERVER_KEEPALIVE: [(&str, &str); 3] = [
    ("tcp_keepalives_idle", "10"),
    ("tcp_keepalives_interval", "5"),
    ("tcp_keepalives_count", "3"),
];

/// Later than every version: all limits.
pub(crate) const NEWEST: u32 = u32::MAX;

/// A limit of the server, its value in milliseconds (0: no limit), and the first version that has it.
pub(crate) struct ServerLimit {
    pub(crate) name: &'static str,
    pub(crate) millis: u128,
    pub(crate) since: u32,
}

/// The limits of a partition that the server enforces, as far as `version` (`server_version_num`)
/// knows them.
pub(crate) fn limits(settings: &PartitionSettings, version: u32) -> Vec<ServerLimit> {
    let limit = |name, value: Option<Duration>, since| ServerLimit {
        name,
        millis: value.map_or(0, |v| v.as_millis()),
        since,
    };
    let all = [
        limit("statement_timeout", settings.statement_timeout, 0),
        limit("lock_timeout", settings.lock_timeout, 0),
        limit(
            "idle_in_transaction_session_timeout",
            settings.idle_in_transaction_session_timeout,
            0,
        ),
        limit("transaction_timeout", settings.transaction_timeout, 170_000),
    ];
    all.into_iter().filter(|l| l.since <= version).collect()
}

/// Several statements that free a session of its state, outside of a transaction: `DISCARD ALL` without what would
/// make prepared statements and their plans useless, as deadpool-postgres's `RecyclingMethod::Clean` does it. The
/// [`dress`] of its partition must follow.
pub const UNDRESS: &str = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; \
     SELECT pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES;";

/// One statement that puts the limits, the name and the further settings of a partition in force for a session on a server of `version`
/// (`server_version_num`); what that version does not know is left out. The first column of its one row
/// is the process id of the backend.
///
/// Behind a transaction pooler it is the name only, which poolers keep for their clients: anything else would
/// stay with a backend that serves a stranger next.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
/// use partitioned_pool::session::dress;
///
/// let settings = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(3, 1))
///     .transactional(PartitionConfig::transactional(20))
///     .analytical(PartitionConfig::analytical(10))
///     .resolve()?;
/// let sql = dress(&settings.partitions[0], 150_018);
/// assert!(sql.contains("set_config('statement_timeout', '5000', false)"));
/// assert!(!sql.contains("transaction_timeout', '30000'"), "Postgres 17 and later");
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[must_use]
pub fn dress(settings: &PartitionSettings, version: u32) -> String {
    let mut sql = String::from("SELECT pg_backend_pid(), ");
    let application_name = literal(&settings.application_name);
    let _ = write!(
        sql,
        "set_config('application_name', {application_name}, false), "
    );
    if settings.has_sessions() {
        put_in_force(&mut sql, settings, version);
    }
    sql.truncate(sql.trim_end_matches(", ").len());
    sql
}

fn put_in_force(sql: &mut String, settings: &PartitionSettings, version: u32) {
    for ServerLimit { name, millis, .. } in limits(settings, version) {
        let _ = write!(sql, "set_config('{name}', '{millis}', false), ");
    }
    for (name, value) in SERVER_KEEPALIVE {
        let _ = write!(sql, "set_config('{name}', '{value}', false), ");
    }
    for (name, value) in &settings.session_settings {
        let (name, value) = (literal(name), literal(value));
        let _ = write!(sql, "set_config({name}, {value}, false), ");
    }
    // Where the platform cannot do it, setting it is an error.
    let check = if version >= 140_000 {
        format!("set_config('client_connection_check_interval', '{CLIENT_CHECK_INTERVAL}', false)")
    } else {
        "NULL".to_owned()
    };
    let _ = write!(sql, "CASE WHEN version() LIKE '%linux%' THEN {check} END");
}

/// The [`dress`] for a session of which the key for cancel requests has this process id. If that is not its backend, it
/// has no row and does nothing: somebody in between has made the key up.
#[must_use]
pub fn dress_if(settings: &PartitionSettings, version: u32, key_pid: i32) -> String {
    let dress = dress(settings, version);
    format!("{dress} WHERE pg_backend_pid() = {key_pid}")
}

/// Several statements that make a used session one of the partition's: its state goes ([`UNDRESS`]), and the
/// [`dress`] follows. Behind a transaction pooler there is no state of its own to go.
#[must_use]
pub fn redress(settings: &PartitionSettings, version: u32) -> String {
    let dress = dress(settings, version);
    match settings.has_sessions() {
        true => format!("{UNDRESS} {dress}"),
        false => dress,
    }
}

/// A statement for each further setting of a partition, with its name and its value: for a driver whose whole [`dress`]
/// was refused, to find out which of them the server refuses.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
/// use partitioned_pool::session::one_by_one;
///
/// let settings = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(3, 1))
///     .transactional(PartitionConfig::transactional(20).setting("work_mem", "64MB"))
///     .analytical(PartitionConfig::analytical(10))
///     .resolve()?;
/// let all: Vec<_> = one_by_one(&settings.partitions[0]).collect();
/// assert_eq!(all[0].0, "work_mem");
/// assert_eq!(all[0].2, "SELECT set_config(E'work_mem', E'64MB', false)");
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
pub fn one_by_one(settings: &PartitionSettings) -> impl Iterator<Item = (&str, &str, String)> {
    settings.session_settings.iter().map(|(name, value)| {
        let sql = format!(
            "SELECT set_config({}, {}, false)",
            literal(name),
            literal(value)
        );
        (name.as_str(), value.as_str(), sql)
    })
}

/// Further settings of a partition that a server refuses, or does not have in force.
///
/// It is the [`source`](std::error::Error::source) of the [`Failure`] when a connection could
/// not be opened because of it.
///
/// # Examples
/// ```
/// use std::error::Error;
/// use partitioned_pool::error::Failure;
/// use partitioned_pool::session::SettingsNotInForce;
///
/// /// The names of the settings for which a connection could not be opened.
/// fn refused(failure: &Failure) -> Vec<&str> {
///     let found = failure.source().and_then(|source| source.downcast_ref::<SettingsNotInForce>());
///     found.into_iter().flat_map(|found| &found.settings).map(|setting| setting.name.as_str()).collect()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingsNotInForce {
    /// Which, and why; never empty.
    pub settings: Vec<SettingNotInForce>,
}

/// One setting that is not in force.
///
/// # Examples
/// ```
/// use partitioned_pool::error::Failure;
/// use partitioned_pool::session::SettingNotInForce;
///
/// let failure = Failure::new(Some("42704".to_owned()), "unrecognized configuration parameter");
/// let setting = SettingNotInForce::refused("work_men", "64MB", &failure).unwrap();
/// assert_eq!(setting.advice(), "check its name, and whether this version of Postgres has it");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingNotInForce {
    /// Its name in Postgres.
    pub name: String,
    /// What the configuration says, as the server writes it where it has taken it.
    pub wanted: String,
    /// What there is instead.
    pub found: Found,
}

/// What there is instead of the value of a setting that was wanted.
///
/// # Examples
/// ```
/// use partitioned_pool::session::{Found, SettingNotInForce};
///
/// /// Whether something in between drops what was set.
/// fn is_dropped(setting: &SettingNotInForce) -> bool {
///     matches!(setting.found, Found::Value(_))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// The server refuses it.
    Refused {
        /// With this code.
        sqlstate: String,
        /// In these words.
        said: String,
    },
    /// The server has taken it, and says later that another value is in force.
    Value(String),
}

impl SettingsNotInForce {
    /// Those that a driver or the boot check has found; `None` if there are none.
    #[must_use]
    pub fn of(settings: Vec<SettingNotInForce>) -> Option<Self> {
        (!settings.is_empty()).then_some(Self { settings })
    }
}

impl SettingNotInForce {
    pub(crate) fn new(name: &str, wanted: &str, found: Found) -> Self {
        Self {
            name: name.to_owned(),
            wanted: wanted.to_owned(),
            found,
        }
    }

    /// One that the server refuses; `None` if the failure is not the server's word.
    #[must_use]
    pub fn refused(name: &str, wanted: &str, failure: &Failure) -> Option<Self> {
        let found = Found::Refused {
            sqlstate: failure.sqlstate()?.to_owned(),
            said: failure.to_string(),
        };
        Some(Self::new(name, wanted, found))
    }

    /// What its owner can do about it.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        let Found::Refused { sqlstate, .. } = &self.found else {
            return "something in between, such as a connection pooler, drops session settings: connect to Postgres \
                directly, use the pooler's session mode, or set it with ALTER ROLE ... SET";
        };
        match sqlstate.as_str() {
            "42704" => "check its name, and whether this version of Postgres has it",
            "42501" => {
                "this role may not set it: GRANT SET ON PARAMETER (15 or later), or leave it out"
            }
            "55P02" => "it cannot be changed in a session: set it on the server, or leave it out",
            _ => "state a value that the server takes",
        }
    }
}

impl fmt::Display for SettingNotInForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            wanted,
            found,
        } = self;
        match found {
            Found::Refused { said, .. } => write!(f, "{name}: wanted '{wanted}', refused: {said}"),
            Found::Value(value) => {
                write!(f, "{name}: wanted '{wanted}', the server says '{value}'")
            }
        }
    }
}

impl fmt::Display for SettingsNotInForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("session settings are not in force")?;
        let mut settings = self.settings.iter();
        settings.try_for_each(|setting| write!(f, "; {setting}"))
    }
}

impl std::error::Error for SettingsNotInForce {}

/// A text as a literal of SQL that means the same whatever `standard_conforming_strings` is.
pub(crate) fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// `server_version_num` from the `server_version` that a server reports when a session starts, such
/// as `17.2 (Debian 17.2-1)` or `18beta1`; 0 if it cannot be read.
#[must_use]
pub fn version_num(server_version: &str) -> u32 {
    let digits = |text: &str| -> u32 {
        let end = text.find(|c: char| !c.is_ascii_digit());
        text[..end.unwrap_or(text.len())].parse().unwrap_or(0)
    };
    let mut parts = server_version.split('.');
    let major = parts.next().map_or(0, digits);
    let minor = parts.next().map_or(0, digits);
    major.saturating_mul(10_000).saturating_add(minor.min(99))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_says_what_the_text_says() {
        assert_eq!(literal("shop/reports"), "E'shop/reports'");
        assert_eq!(literal(r"it's \ here"), r"E'it''s \\ here'");
    }

    #[test]
    fn versions_are_read_as_servers_write_them() {
        assert_eq!(version_num("17.2 (Debian 17.2-1.pgdg120+1)"), 170_002);
        assert_eq!(version_num("15.18"), 150_018);
        assert_eq!(version_num("18beta1"), 180_000);
        assert_eq!(version_num("nonsense"), 0);
    }
}
