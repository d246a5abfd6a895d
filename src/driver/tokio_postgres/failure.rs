//! What is told of the driver's errors: of an answer of the server its message, since the rest can hold values of a
//! statement's parameters.

use std::error::Error as StdError;

use ::tokio_postgres::Error as DriverError;
use ::tokio_postgres::error::DbError;

use crate::error::Failure;

use super::connect::Failed;

/// Why a connection could not be opened, checked or asked.
pub(super) fn failure(failed: Failed) -> Failure {
    match failed {
        Failed::Driver(error) => of_driver(error),
        Failed::Io(error) => Failure::new(None, error),
        Failed::NoPassword(error) => Failure::new(None, error),
        Failed::BothWays { first, second } => match answer(&second) {
            Some((code, said)) => {
                let said = format!("{said}; before that, {}", words(&*first));
                Failure::answered(code, said, second)
            }
            None if second.is_closed() => Failure::lost(Failed::BothWays { first, second }),
            None => Failure::new(None, Failed::BothWays { first, second }),
        },
        Failed::Settings(error) => Failure::new(None, error),
        Failed::Pooled(found) => found.into(),
    }
}

/// What somebody else has made of the driver's error, or an error of their own.
pub(super) fn failure_of(error: Box<dyn StdError + Send + Sync>) -> Failure {
    match error.downcast::<DriverError>() {
        Ok(error) => of_driver(*error),
        Err(error) => match answer(&*error) {
            Some((code, said)) => Failure::answered(code, said, error),
            None => Failure::new(None, error),
        },
    }
}

fn of_driver(error: DriverError) -> Failure {
    match answer(&error) {
        Some((code, said)) => Failure::answered(code, said, error),
        // It has no cause that could be recognised later.
        None if error.is_closed() => Failure::lost(error),
        None => Failure::new(None, error),
    }
}

/// SQLSTATE and message of the server's answer, however often it was wrapped, behind what its wrappings tell.
fn answer(error: &(dyn StdError + 'static)) -> Option<(String, String)> {
    let mut told = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let of_driver = error.downcast_ref::<DriverError>();
        let answer = of_driver.and_then(DriverError::as_db_error);
        if let Some(answer) = answer.or_else(|| error.downcast_ref::<DbError>()) {
            return Some((answer.code().code().to_owned(), told + answer.message()));
        }
        told += &format!("{error}: ");
        next = error.source();
    }
    None
}

/// An error with all that it comes from, in words that may be told.
pub(super) fn words(error: &(dyn StdError + 'static)) -> String {
    match answer(error) {
        Some((_, said)) => said,
        None => {
            let causes = std::iter::successors(Some(error), |error| StdError::source(*error));
            let texts: Vec<String> = causes.map(ToString::to_string).collect();
            texts.join(": ")
        }
    }
}
