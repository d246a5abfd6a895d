//! What is told of sqlx's errors: of an answer of the server its message. The rest can hold values of a statement's
//! parameters, and sqlx adds the line of Postgres's own source.

use std::error::Error as StdError;

use ::sqlx::Error as DriverError;
use ::sqlx::error::DatabaseError;

use crate::error::Failure;

/// What sqlx reports of a connection, or of what was asked over it.
pub(super) fn failure(error: DriverError) -> Failure {
    if let Some((code, said)) = answer(&error) {
        return Failure::answered(code, said, error);
    }
    match error {
        DriverError::Io(error) => Failure::new(None, error),
        // So it says as well when a proxy whose server is gone hangs up on the first message.
        error @ DriverError::Protocol(_) => Failure::lost(error),
        error => Failure::new(None, error),
    }
}

/// What somebody else has made of sqlx's error, or an error of their own.
pub(super) fn failure_of(error: Box<dyn StdError + Send + Sync>) -> Failure {
    match error.downcast::<DriverError>() {
        Ok(error) => failure(*error),
        Err(error) => match answer(&*error) {
            Some((code, said)) => Failure::answered(code, said, error),
            None => Failure::new(None, error),
        },
    }
}

/// SQLSTATE and message of the server's answer, however often it was wrapped, behind what its wrappings tell.
fn answer(error: &(dyn StdError + 'static)) -> Option<(String, String)> {
    let mut told = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let of_driver = error.downcast_ref::<DriverError>();
        let answer = of_driver.and_then(DriverError::as_database_error);
        let boxed = || error.downcast_ref::<Box<dyn DatabaseError>>();
        if let Some(answer) = answer.or_else(|| boxed().map(|boxed| &**boxed)) {
            return Some((answer.code()?.into_owned(), told + answer.message()));
        }
        told += &format!("{error}: ");
        next = error.source();
    }
    None
}
