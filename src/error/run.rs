//! `run` gave no result.

use std::time::Duration;

use thiserror::Error;

use crate::status::Seconds;

use super::acquire::AcquireError;

/// [`Partition::run`](crate::Partition::run) gave no result.
///
/// The work's own error may be of any type: also one that is no [`Error`](std::error::Error), such as `anyhow::Error`,
/// a boxed error or a `String`. This error is an `Error` for all of them, and so cannot have the
/// work's error as its [`source`](std::error::Error::source): Rust knows no "if it is one". It prints it, and gives it
/// out by [`work`](Self::work) and [`into_work`](Self::into_work); the source of `Acquire` is kept.
///
/// # Examples
/// ```
/// use std::error::Error;
/// use partitioned_pool::RunError;
///
/// /// The work's error itself, for a chain of causes; or that of the pool.
/// fn cause<E: Error + 'static>(error: &RunError<E>) -> &(dyn Error + 'static) {
///     error.work().map_or(error, |work| work)
/// }
/// let error = RunError::Work(std::io::Error::other("no stock"));
/// assert!(cause(&error).is::<std::io::Error>());
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError<E> {
    /// There was no connection: the work never began, and repeating it is safe.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The deadline passed while the work ran. It is being cancelled on the server; what it had
    /// committed by then stays, so it may have taken effect.
    #[error("{partition}: the deadline of {} passed while the work ran; it may have taken effect", Seconds(*limit))]
    DeadlineExceeded {
        /// The partition.
        partition: String,
        /// The deadline, from the call on.
        limit: Duration,
    },
    /// The connection was taken away while the work ran, and the work failed: it may have taken
    /// effect.
    #[error("{partition}: the connection was taken away after {} (max_hold, its seat was lost, or the pool was closed); the work may have taken effect", Seconds(*held))]
    TakenAway {
        /// The partition.
        partition: String,
        /// How long the connection had been held.
        held: Duration,
        /// What the work returned.
        error: E,
    },
    /// The work itself returned an error.
    #[error("{0}")]
    Work(E),
}

impl<E> RunError<E> {
    /// Whether the work never began, so that repeating it is safe.
    #[must_use]
    pub const fn never_began(&self) -> bool {
        matches!(self, Self::Acquire(_))
    }

    /// What the work returned, if it returned an error.
    #[must_use]
    pub const fn work(&self) -> Option<&E> {
        match self {
            Self::Work(error) | Self::TakenAway { error, .. } => Some(error),
            Self::Acquire(_) | Self::DeadlineExceeded { .. } => None,
        }
    }

    /// What the work returned, if it returned an error; else the error of the pool.
    ///
    /// # Errors
    /// This error, if the work returned none: it never began, or its deadline passed.
    pub fn into_work(self) -> Result<E, Self> {
        match self {
            Self::Work(error) | Self::TakenAway { error, .. } => Ok(error),
            other => Err(other),
        }
    }

    /// Whether a partition refused, rather than the database failed.
    #[must_use]
    pub const fn is_rejection(&self) -> bool {
        matches!(self, Self::Acquire(error) if error.is_rejection())
    }

    /// When to come back, if a partition refused.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Acquire(error) => error.retry_after(),
            _ => None,
        }
    }
}
