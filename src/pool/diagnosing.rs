//! What is wrong with a live partition: its figures as a window, and the diagnosis of it.

use std::fmt;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use crate::driver::Driver;
use crate::plan::diagnosis::{Diagnosis, Finding, Neighbours, Window, diagnose};
use crate::plan::{Ages, Level};
use crate::status::{OldestHolds, Seconds};

use super::core::Core;
use super::history::{History, Span, seen_from};

/// What is wrong with a partition: see [`Partition::diagnose`](crate::Partition::diagnose).
///
/// Printed, it is one line.
///
/// # Examples
/// ```
/// use partitioned_pool::PartitionDiagnosis;
/// use partitioned_pool::plan::diagnosis::Finding;
///
/// /// Where to look for a leak.
/// fn suspects(diagnosis: &PartitionDiagnosis) -> Vec<String> {
///     match diagnosis.finding() {
///         Finding::Leaking => diagnosis.oldest_holds.iter().map(|hold| hold.at.to_string()).collect(),
///         _ => Vec::new(),
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PartitionDiagnosis {
    /// The partition.
    pub partition: String,
    /// Its figures.
    pub window: Window,
    /// What they say.
    pub diagnosis: Diagnosis,
    /// The oldest holds, with their places in the code: where to look for a leak.
    pub oldest_holds: OldestHolds,
}

impl PartitionDiagnosis {
    /// What is wrong.
    #[must_use]
    pub const fn finding(&self) -> Finding {
        self.diagnosis.finding
    }
}

impl fmt::Display for PartitionDiagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = Seconds(self.window.length);
        write!(f, "{} (last {length}): {}", self.partition, self.diagnosis)?;
        let is_of_holds = matches!(self.finding(), Finding::Leaking | Finding::DatabaseSlow);
        if is_of_holds && !self.oldest_holds.is_empty() {
            write!(f, "; oldest holds {}", self.oldest_holds)?;
        }
        Ok(())
    }
}

/// What is wrong with each partition of a pool: see [`PartitionedPool::diagnose`](crate::PartitionedPool::diagnose).
///
/// Printed, it is a line for each.
///
/// # Examples
/// ```
/// use partitioned_pool::PoolDiagnosis;
/// use partitioned_pool::plan::diagnosis::Finding;
///
/// fn is_healthy(diagnosis: &PoolDiagnosis) -> bool {
///     diagnosis.partitions.iter().all(|one| one.finding() == Finding::Healthy)
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PoolDiagnosis {
    /// One entry a partition, in the order in which they were configured.
    pub partitions: Vec<PartitionDiagnosis>,
}

impl fmt::Display for PoolDiagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (line, partition) in self.partitions.iter().enumerate() {
            let before = if line > 0 { "\n" } else { "" };
            write!(f, "{before}{partition}")?;
        }
        Ok(())
    }
}

/// The last minute, and how long a hold lasted before it.
struct Recent {
    spans: Vec<Span>,
    hold_before: Option<Duration>,
}

impl<D: Driver> Core<D> {
    /// The boot is over; what it did is no call of a service.
    pub(super) fn begin_history(&self) {
        let mut history = self.history();
        history.begin(&self.bulkhead.take_totals(self.class));
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The regular look.
    pub(super) fn take_note(&self) {
        let mut history = self.history();
        history.note(&self.bulkhead.take_totals(self.class));
    }

    pub(super) fn diagnose(&self) -> PartitionDiagnosis {
        let window = self.window();
        PartitionDiagnosis {
            partition: self.settings.name.clone(),
            diagnosis: diagnose(&window),
            window,
            oldest_holds: self.bulkhead.figures(self.class).oldest_holds,
        }
    }

    fn recent(&self) -> Recent {
        let history = self.history();
        let spans = history.recent(&self.bulkhead.totals(self.class));
        let hold_before = history.hold_before(spans[0].from);
        Recent { spans, hold_before }
    }

    fn window(&self) -> Window {
        let Recent { spans, hold_before } = self.recent();
        let all = Span::all(&spans);
        let holders = self.bulkhead.holders(self.class).into_iter();
        let mut window = Window::new(all.length(), self.settings.max_connections.get());
        window.reserved = self.settings.reserved;
        window.max_waiters = self.settings.max_waiters;
        window.in_use = level(all.held_time, all.length(), all.most_used);
        window.waiting = level(all.waited_time, all.length(), all.most_waiting);
        (window.arrivals, window.refused) = (all.arrived, all.refused);
        (window.ended, window.hold) = (all.ended, all.mean_hold());
        window.hold_before = hold_before;
        window.ages = Ages::of(holders.map(|(_, holder)| holder.age), all.length());
        window.neighbours = self.seen_of_neighbours(&spans);
        window
    }

    fn seen_of_neighbours(&self, own: &[Span]) -> Neighbours {
        let mut all = Neighbours::default();
        for neighbour in self.neighbours() {
            let one = seen_from(own, self.settings.reserved, &neighbour.recent().spans);
            all.arrivals += one.arrivals;
            all.refused_while_free += one.refused_while_free;
        }
        all
    }
}

fn level(time: Duration, length: Duration, peak: u32) -> Level {
    let average = if length.is_zero() {
        0.0
    } else {
        time.as_secs_f64() / length.as_secs_f64()
    };
    Level { average, peak }
}
