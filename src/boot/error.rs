//! Why a pool does not start.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::config::ConfigError;
use crate::driver::Endpoint;
use crate::error::{AcquireError, Failure, Phase};
use crate::fleet::FleetReport;
use crate::session::SettingNotInForce;
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
    /// The fleet does not fit what Postgres grants.
    #[error("{0}")]
    DoesNotFit(Box<FleetReport>),
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
