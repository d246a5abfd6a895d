//! How often a pool tries to connect in vain, and how often one prober may.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use partitioned_pool::observe::{Event, Observer, PartitionObserver};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Notes when an opening has failed, in whatever partition.
#[derive(Clone, Default)]
pub(crate) struct Attempts(Arc<Mutex<Vec<Instant>>>);

impl Attempts {
    /// How many have failed.
    pub(crate) fn failed(&self) -> u64 {
        u64::try_from(self.failures().len()).unwrap()
    }

    /// From the first failure to the last.
    pub(crate) fn lasted(&self) -> Duration {
        let failures = self.failures();
        let ends = failures.first().zip(failures.last());
        ends.map_or(Duration::ZERO, |(first, last)| *last - *first)
    }

    fn failures(&self) -> std::sync::MutexGuard<'_, Vec<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Attempts {
    fn partition(&self, _: &str) -> Box<dyn PartitionObserver> {
        Box::new(self.clone())
    }
}

impl PartitionObserver for Attempts {
    fn on(&self, event: &Event<'_>) {
        if let Event::OpenFailed { .. } = event {
            self.failures().push(Instant::now());
        }
    }
}

/// The most that one prober may try in an outage: its pauses are at least half of 25, 50, 100, ... ms, and of a
/// second in the end. On top, what was being opened when it began.
pub(crate) fn most_attempts(outage: Duration, capacity: u32) -> u64 {
    let (mut pause, mut left, mut tries) = (25 * MS / 2, outage, u64::from(capacity) + 1);
    while let Some(rest) = left.checked_sub(pause) {
        (left, tries, pause) = (rest, tries + 1, (2 * pause).min(SECOND / 2));
    }
    tries
}

#[test]
fn the_bound_of_the_attempts_is_two_a_second_in_the_end() {
    assert_eq!(most_attempts(Duration::ZERO, 4), 5);
    let minutes = |n: u32| most_attempts(SECOND * 60 * n, 4);
    assert_eq!(minutes(2) - minutes(1), 120);
}
