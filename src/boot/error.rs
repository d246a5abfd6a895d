//! Why a pool does not start.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::config::{ConfigError, PoolerMode};
use crate::driver::Endpoint;
use crate::error::{AcquireError, Failure, Phase};
use crate::fleet::{FleetReport, SeatHolder};
use crate::session::SettingNotInForce;
use crate::status::Seconds;

/// A pool was not started. It prints as one readable block that says what to do, without any secret;
/// also by `Debug`, because that is how a `main` that returns it is told.
///
/// # Examples
/// ```
/// use partitioned_pool::BootError;
///
/// /// Whether another try can help: not if the configuration or the sum of the fleet is wrong.
/// fn is_worth_a_retry(error: &BootError) -> bool {
///     matches!(error, BootError::Unavailable { .. } | BootError::NoSeat { .. })
/// }
/// ```
#[derive(Error)]
#[non_exhaustive]
pub enum BootError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The database of a partition could not be reached, or refused us.
    #[error(
        "partition {partition}: no connection to {endpoint} within {}:\n  {}{}",
        Seconds(*tried),
        reported(error),
        hint(advice(error))
    )]
    Unavailable {
        /// The partition.
        partition: String,
        /// Where its connections go to.
        endpoint: Box<Endpoint>,
        /// For how long it was tried.
        tried: Duration,
        /// The last that was reported.
        #[source]
        error: Box<AcquireError>,
    },
    /// Session limits were set and are not in force.
    #[error(
        "partition {partition}: not in force on {endpoint}:{}{}",
        NotInForceList(limits, *pooler),
        NotInForceHint(limits, endpoint, *pooler)
    )]
    LimitsNotInForce {
        /// The partition.
        partition: String,
        /// Where its connections go to.
        endpoint: Box<Endpoint>,
        /// The mode of the pooler that is stated, if one is. Behind a transaction pooler nothing was set, only
        /// looked at.
        pooler: Option<PoolerMode>,
        /// Which.
        limits: Vec<NotInForce>,
    },
    /// Further settings of a partition's sessions are refused by its server, or are not in force.
    #[error(
        "partition {partition}: settings not in force on {endpoint}:{}",
        SettingsList(settings)
    )]
    SettingsNotInForce {
        /// The partition.
        partition: String,
        /// Where its connections go to.
        endpoint: Box<Endpoint>,
        /// Which.
        settings: Vec<SettingNotInForce>,
    },
    /// A pooler is in between that is not stated, or that is in another mode than is stated.
    #[error(
        "partition {partition}: {} between us and {endpoint}{}{}",
        Found(*stated, *found),
        NotInForceList(limits, *found),
        PoolerHint(limits, endpoint, *stated, *found)
    )]
    Pooler {
        /// The partition.
        partition: String,
        /// Where its connections go to.
        endpoint: Box<Endpoint>,
        /// The mode that is stated; `None` if no pooler is.
        stated: Option<PoolerMode>,
        /// The mode that was found; `None` if it could not be looked at.
        found: Option<PoolerMode>,
        /// In transaction mode: the session limits that are not in force, as far as that was looked at.
        limits: Vec<NotInForce>,
    },
    /// The fleet does not fit what Postgres grants.
    #[error("{0}")]
    DoesNotFit(Box<FleetReport>),
    /// No [seat](crate::config::SeatsConfig) of the fleet came free.
    #[error(
        "no seat is free: all {seats} of fleet {fleet} are held, and none came free within {}{}{}",
        Seconds(*waited),
        HolderList(holders),
        hint(NO_SEAT)
    )]
    NoSeat {
        /// The name of the service.
        fleet: String,
        /// How many there are.
        seats: u32,
        /// For how long it was tried.
        waited: Duration,
        /// Who holds them.
        holders: Vec<SeatHolder>,
    },
    /// The table of the seats could not be used.
    #[error(
        "the seats in table {table}, {endpoint}, cannot be used:\n  {failure}{}",
        hint(&seats_advice(table, &endpoint.user, failure))
    )]
    SeatsFailed {
        /// The table.
        table: String,
        /// Where it is looked for.
        endpoint: Box<Endpoint>,
        /// What was reported.
        #[source]
        failure: Failure,
    },
    /// The server could not be asked for its limits.
    #[error(
        "partition {partition}: the boot check of {endpoint} failed:\n  {failure}{}",
        hint(CHECK)
    )]
    CheckFailed {
        /// The partition.
        partition: String,
        /// Where its connections go to.
        endpoint: Box<Endpoint>,
        /// What was reported.
        #[source]
        failure: Failure,
    },
}

impl fmt::Debug for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A session limit that is not in force.
///
/// # Examples
/// ```
/// use partitioned_pool::BootError;
///
/// fn missing(error: &BootError) -> Vec<String> {
///     match error {
///         BootError::LimitsNotInForce { limits, .. } => limits.iter().map(|limit| limit.name.clone()).collect(),
///         _ => Vec::new(),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotInForce {
    /// Its name in Postgres.
    pub name: String,
    /// What it should be, in milliseconds; 0: no limit.
    pub wanted_ms: u128,
    /// What the server says.
    pub found: String,
}

const CHECK: &str =
    "try again, raise boot.check_timeout, or set fleet.mode = \"off\" to start unchecked";

const NO_SEAT: &str = "run fewer replicas, raise fleet.seats.count if the server has room for more, or wait longer \
    (fleet.seats.wait)";

fn seats_advice(table: &str, role: &str, failure: &Failure) -> String {
    match failure.sqlstate() {
        Some("42P01" | "3F000") => format!(
            "run migrations/0001_seats.sql (the constant fleet::SEATS_TABLE) as the owner of the database, then \
             GRANT SELECT, INSERT, UPDATE ON {table} TO {role}"
        ),
        Some("42501") => format!("GRANT SELECT, INSERT, UPDATE ON {table} TO {role}"),
        Some("25006") => {
            "the server or the role takes no writes: set fleet.seats.url to one that does"
                .to_owned()
        }
        Some("42703") => "the table is another one: run migrations/0001_seats.sql".to_owned(),
        _ => failure
            .advice()
            .unwrap_or("check fleet.seats.url, and that the server is up and reachable from here")
            .to_owned(),
    }
}

struct HolderList<'a>(&'a [SeatHolder]);

impl fmt::Display for HolderList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|holder| write!(f, "\n  {holder}"))
    }
}

fn hint(text: &str) -> String {
    format!("\n  to do: {text}")
}

fn reported(error: &AcquireError) -> String {
    let text = match error {
        AcquireError::Failed {
            phase: phase @ Phase::OnConnect,
            failure,
            ..
        } => format!("{phase} failed: {failure}"),
        AcquireError::Failed { failure, .. } => failure.to_string(),
        other => other.to_string(),
    };
    text.replace('\n', "\n  ")
}

fn advice(error: &AcquireError) -> &'static str {
    let known = match error {
        _ if error.phase() == Phase::OnConnect => {
            Some("mend what was given to Builder::on_connect, or give it more connect_timeout")
        }
        AcquireError::Failed { failure, .. } => failure.advice(),
        _ => None,
    };
    known.unwrap_or("check the url, and that the server is up and reachable from here")
}

/// Each setting with what to do about it.
struct SettingsList<'a>(&'a [SettingNotInForce]);

impl fmt::Display for SettingsList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut settings = self.0.iter();
        settings.try_for_each(|setting| write!(f, "\n  {setting}{}", hint(setting.advice())))
    }
}

struct NotInForceList<'a>(&'a [NotInForce], Option<PoolerMode>);

impl fmt::Display for NotInForceList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(limits, pooler) = self;
        let set = match pooler {
            Some(PoolerMode::Transaction) => "must be",
            _ => "set to",
        };
        for limit in *limits {
            let (name, wanted, found) = (&limit.name, limit.wanted_ms, &limit.found);
            write!(
                f,
                "\n  {name}: {set} {wanted} ms, the server says {found} ms"
            )?;
        }
        Ok(())
    }
}

const DIRECTLY: &str = "connect to Postgres directly";

const SESSION_MODE: &str = "use the pooler's session mode, and state it beside the url: [pooler] in TOML, with \
    mode = \"session\", max_client_conn and default_pool_size";

const TRANSACTION_MODE: &str = "state the pooler beside the url: [pooler] in TOML, with mode = \"transaction\" and \
    max_client_conn; and have Postgres start each session of the role with the limits, since none can be set there";

/// Statements that put limits in force for every session of the role that starts from then on.
struct ForTheRole<'a>(&'a [NotInForce], &'a Endpoint);

impl fmt::Display for ForTheRole<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(limits, endpoint) = self;
        let (role, database) = (quoted(&endpoint.user), quoted(&endpoint.database));
        for NotInForce {
            name, wanted_ms, ..
        } in *limits
        {
            let value = match wanted_ms {
                0 => "0".to_owned(),
                millis => format!("'{millis}ms'"),
            };
            write!(
                f,
                "\n      ALTER ROLE {role} IN DATABASE {database} SET {name} = {value};"
            )?;
        }
        Ok(())
    }
}

fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

const ROLE_FOOTNOTE: &str = "\n    then RECONNECT in the pooler, whose connections have started without them. A partition with \
    other limits needs a role of its own";

struct NotInForceHint<'a>(&'a [NotInForce], &'a Endpoint, Option<PoolerMode>);

impl fmt::Display for NotInForceHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(limits, endpoint, pooler) = self;
        let role = ForTheRole(limits, endpoint);
        match pooler {
            Some(PoolerMode::Transaction) => write!(
                f,
                "\n  to do, one of these:\n  - have Postgres start each session of the role with them:{role}\
                 {ROLE_FOOTNOTE}\n  - {SESSION_MODE}\n  - {DIRECTLY}"
            ),
            _ => write!(
                f,
                "\n  to do: a connection pooler in between drops session settings: {DIRECTLY}, or {SESSION_MODE}; or set \
                 the limits with ALTER ROLE ... SET"
            ),
        }
    }
}

/// What is between us and the server.
struct Found(Option<PoolerMode>, Option<PoolerMode>);

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(stated, found) = self;
        f.write_str("a pooler ")?;
        if let Some(found) = found {
            write!(f, "in {} mode ", found.as_str())?;
        }
        match stated {
            Some(stated) => write!(f, "that is stated to be in {} mode is", stated.as_str()),
            None => f.write_str("that the configuration does not state is"),
        }
    }
}

struct PoolerHint<'a>(
    &'a [NotInForce],
    &'a Endpoint,
    Option<PoolerMode>,
    Option<PoolerMode>,
);

impl fmt::Display for PoolerHint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(limits, endpoint, stated, found) = self;
        if *found == Some(PoolerMode::Session) {
            return write!(
                f,
                ". Its limits count, not only those of Postgres\n  to do: state it beside the url: [pooler] in TOML, with \
                 mode = \"session\", max_client_conn and default_pool_size; or {DIRECTLY}"
            );
        }
        if stated.is_none() && found.is_none() {
            return write!(
                f,
                ". Its limits count, and in transaction mode no session limit can be set\n  to do: state it beside the url: \
                 [pooler] in TOML, with its mode and max_client_conn; or {DIRECTLY}"
            );
        }
        write!(
            f,
            "\n  to do, one of these:\n  - {DIRECTLY}\n  - {SESSION_MODE}\n  - {TRANSACTION_MODE}"
        )?;
        if limits.is_empty() {
            return Ok(());
        }
        write!(f, ":{}{ROLE_FOOTNOTE}", ForTheRole(limits, endpoint))
    }
}
