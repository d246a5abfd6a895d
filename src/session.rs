//! The session limits of a partition as SQL, for whatever server version: what a driver sends when it has
//! connected.

use std::fmt::Write as _;
use std::time::Duration;

use crate::config::PartitionSettings;

/// How often a backend that runs a query looks whether its client is still there (Postgres 14+).
const CLIENT_CHECK_INTERVAL: &str = "500ms";

/// TCP keepalive of the server: a client that vanished is noticed after 10 s + 3 x 5 s.
const SERVER_KEEPALIVE: [(&str, &str); 3] = [
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
    since: u32,
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

/// One statement that puts the limits and the name of a partition in force for a session on a server of `version`
/// (`server_version_num`); what that version does not know is left out. The first column of its one row
/// is the process id of the backend.
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
    for ServerLimit { name, millis, .. } in limits(settings, version) {
        let _ = write!(sql, "set_config('{name}', '{millis}', false), ");
    }
    for (name, value) in SERVER_KEEPALIVE {
        let _ = write!(sql, "set_config('{name}', '{value}', false), ");
    }
    // Where the platform cannot do it, setting it is an error.
    let check = if version >= 140_000 {
        format!("set_config('client_connection_check_interval', '{CLIENT_CHECK_INTERVAL}', false)")
    } else {
        "NULL".to_owned()
    };
    let _ = write!(sql, "CASE WHEN version() LIKE '%linux%' THEN {check} END");
    sql
}

/// Text as a literal of SQL, whatever the server's settings. Of printable ASCII, quotes and backslashes are all there is
/// to escape.
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
    fn versions_are_read_as_servers_write_them() {
        assert_eq!(version_num("17.2 (Debian 17.2-1.pgdg120+1)"), 170_002);
        assert_eq!(version_num("15.18"), 150_018);
        assert_eq!(version_num("18beta1"), 180_000);
        assert_eq!(version_num("nonsense"), 0);
    }
}
