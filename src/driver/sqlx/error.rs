//! Our errors, on their way through sqlx's.

use std::error::Error as StdError;
use std::io;

use ::sqlx::Error;

use crate::error::AcquireError;

/// A partition that is used as an `Executor`, and [`begin`](crate::Partition::begin), can only return sqlx's error. What
/// the partition itself said is in it, as [`Error::Io`]: the variant that services already take for "not now". Get
/// it back by [`acquire_error`].
impl From<AcquireError> for Error {
    fn from(error: AcquireError) -> Self {
        let kind = match error.is_timeout() {
            true => io::ErrorKind::TimedOut,
            false => io::ErrorKind::Other,
        };
        Self::Io(io::Error::new(kind, error))
    }
}

/// The error of the partition in an error of sqlx; `None` if it is sqlx's or the database's own.
///
/// It is also found where sqlx or the service has wrapped it once more, as a `MigrateError` does.
///
/// # Examples
/// ```
/// use partitioned_pool::driver_sqlx::{acquire_error, sqlx};
///
/// /// Status code and `Retry-After`, in seconds.
/// fn answer(error: &sqlx::Error) -> (u16, Option<u64>) {
///     match acquire_error(error) {
///         Some(refused) if refused.is_rejection() => {
///             (429, refused.retry_after().map(|after| after.as_secs().max(1)))
///         }
///         Some(_) => (503, None),
///         None => (500, None),
///     }
/// }
/// ```
#[must_use]
pub fn acquire_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a AcquireError> {
    let mut next = Some(error);
    while let Some(error) = next {
        let inside = error
            .downcast_ref::<io::Error>()
            .and_then(|io| io.get_ref());
        let found = error.downcast_ref().or_else(|| inside?.downcast_ref());
        if found.is_some() {
            return found;
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::error::{Failure, Phase};

    use super::*;

    #[test]
    fn an_acquire_error_survives_the_way_through_sqlx() {
        let failure = Failure::new(Some("28P01".to_owned()), "no such password");
        let error = AcquireError::Failed {
            partition: "transactional".to_owned(),
            phase: Phase::Connect,
            failure,
        };
        let error = Error::from(error);
        assert!(matches!(error, Error::Io(_)));
        assert!(error.to_string().contains("transactional: connect failed"));
        let found = acquire_error(&error).unwrap();
        assert_eq!(found.sqlstate(), Some("28P01"));
        let wrapped = io::Error::other(error);
        assert!(acquire_error(&wrapped).is_some());
        assert!(acquire_error(&Error::RowNotFound).is_none());
        assert!(acquire_error(&Error::Io(io::ErrorKind::BrokenPipe.into())).is_none());
    }
}
