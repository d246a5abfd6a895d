//! Why a pool does not start.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::config::ConfigError;
use crate::driver::Endpoint;
use crate::error::{AcquireError, Failure};
use crate::fleet::{FleetReport, SeatHolder};
use crate::status::Seconds;

/// A pool was not started. It prints as one readable block that says what to do, without any secret;
/// also by `Debug`, because that is how a `main` that returns it is told.
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
        hint(advice(error).unwrap_or("check the url, and that the server is up and reachable from here"))
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
        NotInForceList(limits),
        hint(POOLER)
    )]
    LimitsNotInForce {
        /// The partition.
        partition: String,
        /// Where its connections go to.
        endpoint: Box<Endpoint>,
        /// Which.
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

/// A session limit that was set and is not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotInForce {
    /// Its name in Postgres.
    pub name: String,
    /// What was set, in milliseconds; 0: no limit.
    pub wanted_ms: u128,
    /// What the server says.
    pub found: String,
}

const POOLER: &str = "a connection pooler in between drops session settings: connect to Postgres \
    directly, use the pooler's session mode, or set the limits with ALTER ROLE ... SET";

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
        AcquireError::Failed { failure, .. } => failure.to_string(),
        other => other.to_string(),
    };
    text.replace('\n', "\n  ")
}

fn advice(error: &AcquireError) -> Option<&'static str> {
    match error {
        AcquireError::Failed { failure, .. } => failure.advice(),
        _ => None,
    }
}

struct NotInForceList<'a>(&'a [NotInForce]);

impl fmt::Display for NotInForceList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for limit in self.0 {
            let (name, wanted, found) = (&limit.name, limit.wanted_ms, &limit.found);
            write!(
                f,
                "\n  {name}: set to {wanted} ms, the server says {found} ms"
            )?;
        }
        Ok(())
    }
}
