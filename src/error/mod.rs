//! What can go wrong, by type: a rejection by us, or a failure of the database or the way to it.

mod acquire;
mod failure;
mod rejection;
mod run;

pub use acquire::{AcquireError, Phase};
pub use failure::{Failure, NoPassword, UndeclaredPooler};
pub use rejection::{Reason, Rejection};
pub use run::RunError;

#[cfg(test)]
mod tests {
    use std::error::Error as StdError;
    use std::time::Duration;
    use std::{fmt, io};

    use super::*;

    fn boxed<E: fmt::Debug + fmt::Display + 'static>(error: RunError<E>) -> Box<dyn StdError> {
        error.into()
    }

    #[test]
    fn work_may_return_errors_of_any_type_and_gives_them_out() {
        let text = boxed(RunError::Work("no stock".to_owned()));
        assert_eq!(text.to_string(), "no stock");
        let none: Box<dyn StdError + Send + Sync> = "none".into();
        assert_eq!(boxed(RunError::Work(none)).to_string(), "none");

        let work = || RunError::Work(io::Error::other("no stock"));
        assert!(work().work().is_some() && !work().never_began());
        assert_eq!(work().into_work().unwrap().to_string(), "no stock");
        let late: RunError<io::Error> = RunError::DeadlineExceeded {
            partition: "transactional".to_owned(),
            limit: Duration::from_secs(1),
        };
        assert!(late.work().is_none());
        assert!(late.into_work().is_err());
    }

    #[test]
    fn of_an_answer_nothing_is_printed_but_message_and_code() {
        let failure = Failure::answered("23505", "duplicate key value", "Key (x)=(S3CRET)");
        let error = AcquireError::Failed {
            partition: "transactional".to_owned(),
            phase: Phase::OnConnect,
            failure: failure.in_phase(Phase::OnConnect),
        };
        let mut printed = format!("{error:?} {error:#?}");
        let mut next: Option<&dyn StdError> = Some(&error);
        while let Some(error) = next {
            printed += &format!(" {error} {error:?}");
            next = error.source();
        }
        assert!(!printed.contains("S3CRET"), "{printed}");
        assert!(printed.contains("on_connect failed: duplicate key value (SQLSTATE 23505)"));
        let told = error.failure().unwrap().driver_error().to_string();
        assert!(told.contains("S3CRET"), "{told}");
    }

    #[test]
    fn the_cause_of_a_failed_acquire_is_kept() {
        let failure = Failure::new(Some("28P01".to_owned()), "no such password");
        let acquire = AcquireError::Failed {
            partition: "transactional".to_owned(),
            phase: Phase::Connect,
            failure,
        };
        let error = boxed(RunError::<String>::Acquire(acquire));
        let cause = error.source().unwrap().downcast_ref::<Failure>();
        assert_eq!(cause.unwrap().sqlstate(), Some("28P01"));
    }
}
