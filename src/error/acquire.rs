//! A call got no connection.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::status::Seconds;

use super::failure::Failure;
use super::rejection::{Reason, Rejection};

/// A part of acquiring a connection. One deadline runs over all of them.
///
/// # Examples
/// ```
/// use partitioned_pool::AcquireError;
/// use partitioned_pool::error::Phase;
///
/// /// Whether it was the password provider that took too long.
/// fn is_of_the_vault(error: &AcquireError) -> bool {
///     matches!(error, AcquireError::TimedOut { phase: Phase::Password, .. })
/// }
/// # assert_eq!(Phase::OnConnect.to_string(), "on_connect");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Waiting for a slot.
    Wait,
    /// Asking the [`PasswordProvider`](crate::driver::PasswordProvider), the first part of opening a connection.
    Password,
    /// Opening a connection: address, TLS, authentication, session limits.
    Connect,
    /// What the service does to a connection that was opened, before anyone gets it:
    /// [`Builder::on_connect`](crate::Builder::on_connect).
    OnConnect,
    /// Checking a connection that was idle for long.
    Validate,
}

impl Phase {
    /// A short lower-case name, for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Password => "password",
            Self::Connect => "connect",
            Self::OnConnect => "on_connect",
            Self::Validate => "validate",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A call got no connection.
///
/// # Examples
/// A service that answers "busy, come back" apart from "the database is down":
/// ```
/// use std::time::Duration;
/// use partitioned_pool::AcquireError;
///
/// /// Status code and `Retry-After`, in seconds.
/// fn answer(error: &AcquireError) -> (u16, Option<u64>) {
///     let after = error.retry_after().unwrap_or(Duration::from_secs(1));
///     if error.is_rejection() {
///         (429, Some(after.as_secs().max(1)))
///     } else {
///         (503, None)
///     }
/// }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The partition refused: it is full, or closed. The database was not asked.
    #[error(transparent)]
    Rejected(Box<Rejection>),
    /// A slot was granted, but opening or checking a connection outlasted the deadline.
    #[error("{partition}: no connection within {}, stuck in phase {phase} (waited {} for a slot){}", Seconds(*limit), Seconds(*waited), last(failure.as_ref()))]
    TimedOut {
        /// The partition.
        partition: String,
        /// The phase that used the deadline up.
        phase: Phase,
        /// The deadline, from the call on.
        limit: Duration,
        /// How much of it went into waiting for a slot.
        waited: Duration,
        /// What the last try to connect reported, if one has failed.
        #[source]
        failure: Option<Failure>,
    },
    /// The database, or the way to it, said no.
    #[error("{partition}: {phase} failed: {failure}")]
    Failed {
        /// The partition.
        partition: String,
        /// What was being done.
        phase: Phase,
        /// What was reported.
        #[source]
        failure: Failure,
    },
}

impl AcquireError {
    /// Whether we refused, rather than the database failed.
    #[must_use]
    pub const fn is_rejection(&self) -> bool {
        matches!(self, Self::Rejected(_))
    }

    /// Whether time ran out, in whatever phase.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Rejected(rejection) => rejection.reason == Reason::WaitTimeout,
            Self::TimedOut { .. } => true,
            Self::Failed { .. } => false,
        }
    }

    /// Whether the pool is closed: no later call will succeed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.rejection().is_some_and(|r| r.reason == Reason::Closed)
    }

    /// When to come back, if we refused.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.rejection()?.retry_after
    }

    /// The refusal, if it was one.
    #[must_use]
    pub fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::Rejected(rejection) => Some(rejection),
            _ => None,
        }
    }

    /// The partition that was asked.
    #[must_use]
    pub fn partition(&self) -> &str {
        match self {
            Self::Rejected(rejection) => &rejection.partition,
            Self::TimedOut { partition, .. } | Self::Failed { partition, .. } => partition,
        }
    }

    /// The phase in which the call ended.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        match self {
            Self::Rejected(_) => Phase::Wait,
            Self::TimedOut { phase, .. } | Self::Failed { phase, .. } => *phase,
        }
    }

    /// The server's SQLSTATE, if the server answered with one.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        self.failure()?.sqlstate()
    }

    /// What the database, or the way to it, reported.
    #[must_use]
    pub const fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed { failure, .. } => Some(failure),
            Self::TimedOut { failure, .. } => failure.as_ref(),
            Self::Rejected(_) => None,
        }
    }
}

fn last(failure: Option<&Failure>) -> String {
    failure.map_or_else(String::new, |failure| format!("; the last try: {failure}"))
}
