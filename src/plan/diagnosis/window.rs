//! The figures of one partition over a window of time.

use std::time::Duration;

use crate::admission::ClassId;
use crate::plan::figures::{Ages, Level, Refused};
use crate::plan::formulas::{Rate, useful_queue};
use crate::plan::simulator::Measured;

use super::{Evidence, Size, is_loss};

/// What one partition went through in a window of time.
///
/// The window should be as long as twenty holds or more, and short enough for what it shows to be of now: a
/// minute, for most.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::diagnosis::{Finding, Window, diagnose};
///
/// let quiet = Window::new(Duration::from_secs(60), 10);
/// assert_eq!(diagnose(&quiet).finding, Finding::Healthy);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Window {
    /// How long it is.
    pub length: Duration,
    /// The most slots that the partition may hold.
    pub max_connections: u32,
    /// Those of them that are never lent.
    pub reserved: u32,
    /// The bound of its queue.
    pub max_waiters: u32,
    /// Slots held.
    pub in_use: Level,
    /// Callers waiting.
    pub waiting: Level,
    /// Calls that came.
    pub arrivals: u64,
    /// Those that got no slot.
    pub refused: Refused,
    /// Holds that ended.
    pub ended: u64,
    /// The mean of the holds that ended, if one did.
    pub hold: Option<Duration>,
    /// The mean hold of a time that was healthy, if it is known.
    pub hold_before: Option<Duration>,
    /// The holds that run at its end.
    pub ages: Ages,
    /// How long its callers have, waiting and work together, if it is known.
    pub deadline: Option<Duration>,
    /// The other partitions of the budget, or, live, of the server.
    pub neighbours: Neighbours,
}

/// The other partitions of a budget or a server, in a window.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::diagnosis::{Finding, Window, diagnose};
///
/// let mut idle = Window::new(Duration::from_secs(60), 10);
/// (idle.neighbours.arrivals, idle.neighbours.refused_while_free) = (1_000, 100);
/// assert_eq!(diagnose(&idle).finding, Finding::Stranded);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Neighbours {
    /// Their calls.
    pub arrivals: u64,
    /// Those that were refused while slots reserved for this partition were free.
    pub refused_while_free: u64,
}

impl Window {
    /// A window in which nothing happened, of a partition without a queue whose slots are all its own.
    #[must_use]
    pub fn new(length: Duration, max_connections: u32) -> Self {
        Self {
            length,
            max_connections,
            reserved: max_connections,
            ..Self::default()
        }
    }

    /// The figures of a class in a span of a simulation. What a hold lasted before is taken from another
    /// span, or another run, if it is given.
    ///
    /// # Panics
    /// If `class` is not a class of the simulation.
    #[must_use]
    pub fn of(measured: &Measured, class: ClassId, before: Option<&Measured>) -> Self {
        let outcome = &measured.classes[class.index()];
        let before = before.map(|before| &before.classes[class.index()]);
        Self {
            length: measured.span.length(),
            max_connections: outcome.rules.max,
            reserved: outcome.rules.reserved,
            max_waiters: outcome.rules.queue,
            in_use: outcome.held,
            waiting: outcome.waiting,
            arrivals: outcome.arrived,
            refused: outcome.refused,
            ended: outcome.ended,
            hold: outcome.mean_hold,
            hold_before: before.and_then(|before| before.mean_hold),
            ages: outcome.ages,
            deadline: None,
            neighbours: Neighbours {
                arrivals: outcome.neighbours_arrived,
                refused_while_free: outcome.stranded_refusals,
            },
        }
    }

    pub(super) fn rate(&self) -> Rate {
        Rate::over(self.arrivals, self.length)
    }

    /// How long a hold lasts when nothing is wrong, as far as it is known.
    pub(super) fn healthy_hold(&self) -> Option<Duration> {
        let hold = self.hold_before.or(self.hold);
        hold.filter(|hold| !hold.is_zero())
    }

    /// Whether so many calls are too many to be lost.
    pub(super) const fn is_loss(&self, calls: u64) -> bool {
        is_loss(calls, self.arrivals)
    }

    /// Whether callers find no slot. (A borrower may find none long before it holds the most that it may.)
    pub(super) fn is_pressed(&self) -> bool {
        self.ages.running >= self.max_connections
            || self.waiting.average >= 1.0
            || self.is_loss(self.refused.total())
    }

    pub(super) const fn usage(&self) -> Evidence {
        Evidence::InUse {
            in_use: self.in_use,
            slots: self.max_connections,
        }
    }

    pub(super) const fn queue(&self) -> Evidence {
        Evidence::Waiting {
            waiting: self.waiting,
            slots: self.max_connections,
            max_waiters: self.max_waiters,
        }
    }

    pub(super) fn refusals(&self) -> Option<Evidence> {
        let (refused, arrivals) = (self.refused, self.arrivals);
        (refused.total() > 0).then_some(Evidence::Refusals { refused, arrivals })
    }

    pub(super) const fn load(&self, size: Size) -> Evidence {
        Evidence::Load {
            size,
            slots: self.max_connections,
        }
    }

    /// The most callers that are done in time, if it is known how long they have.
    pub(super) fn useful_queue(&self) -> Option<u32> {
        let (hold, deadline) = (self.healthy_hold()?, self.deadline?);
        Some(useful_queue(self.max_connections, deadline, hold))
    }

    /// The queue is longer than any caller has time for.
    pub(super) fn useless_queue(&self) -> Option<Evidence> {
        let useful = self.useful_queue()?;
        (self.max_waiters > useful).then_some(Evidence::UselessQueue {
            max_waiters: self.max_waiters,
            useful,
            deadline: self.deadline?,
        })
    }
}
