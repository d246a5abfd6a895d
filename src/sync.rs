//! The primitives that the waiting floor stands on. `sync_model.rs` is the twin for the model checker.

use std::time::Duration;

use tokio::time::Instant;

pub(crate) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Reads the time as a [`Duration`] since the clock was made.
///
/// It is tokio's clock, so that tests with paused time pause the pool, too.
#[derive(Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    #[inline]
    pub(crate) fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}
