//! What becomes of calls, and how many of them ended in which way.

#![allow(dead_code, reason = "each example uses its own part of this module")]

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use partitioned_pool::error::{AcquireError, Failure, RunError};

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was done, within the deadline of whoever called.
    Ok,
    /// The pool refused before the database was asked.
    Rejected(String),
    /// The database, or the way to it, said no.
    Failed(String),
    /// There was no answer by the deadline, and the caller left.
    Late,
}

/// How many calls ended in which way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) started: u32,
    pub(crate) ok: u32,
    pub(crate) rejected: u32,
    pub(crate) failed: u32,
    pub(crate) late: u32,
    /// What the first rejected or failed call was told.
    pub(crate) first_trouble: Option<String>,
}

impl Tally {
    /// Counts them.
    pub(crate) fn of<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Self {
        let mut tally = Self::default();
        outcomes.for_each(|outcome| tally.add(outcome));
        tally
    }

    pub(crate) fn add(&mut self, outcome: &Outcome) {
        self.started += 1;
        let (count, told) = match outcome {
            Outcome::Ok => (&mut self.ok, None),
            Outcome::Late => (&mut self.late, None),
            Outcome::Rejected(told) => (&mut self.rejected, Some(told)),
            Outcome::Failed(told) => (&mut self.failed, Some(told)),
        };
        *count += 1;
        self.first_trouble = self.first_trouble.take().or_else(|| told.cloned());
    }

    /// Calls that were of no use to their caller.
    pub(crate) fn lost(&self) -> u32 {
        self.started - self.ok
    }
}

/// The least value that `percent` of 100 do not exceed: one that was measured, nothing in between.
pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// What a call with this answer came to.
pub(crate) fn of_call(answer: Result<(), Outcome>) -> Outcome {
    answer.err().unwrap_or(Outcome::Ok)
}

/// What a partition, or the work in it, said.
pub(crate) fn of_run(error: RunError<impl Said>) -> Outcome {
    match error {
        RunError::Acquire(error) => of_acquire(error),
        RunError::DeadlineExceeded { .. } => Outcome::Late,
        RunError::Work(error) => failed(error),
        other => Outcome::Failed(other.to_string()),
    }
}

/// What a partition said.
pub(crate) fn of_acquire(error: AcquireError) -> Outcome {
    if error.is_rejection() {
        Outcome::Rejected(error.to_string())
    } else if error.is_timeout() {
        Outcome::Late
    } else {
        Outcome::Failed(error.to_string())
    }
}

/// What the database, or the way to it, said.
pub(crate) fn failed(error: impl Said) -> Outcome {
    Outcome::Failed(error.failure().to_string())
}

/// A driver's error.
pub(crate) trait Said: Display {
    /// With all its causes.
    fn failure(self) -> Failure;
}

impl Said for tokio_postgres::Error {
    fn failure(self) -> Failure {
        let sqlstate = self.code().map(|code| code.code().to_owned());
        Failure::new(sqlstate, self)
    }
}

impl Said for sqlx::Error {
    fn failure(self) -> Failure {
        let sqlstate = self.as_database_error().and_then(|error| error.code());
        Failure::new(sqlstate.map(Cow::into_owned), self)
    }
}
