//! Closing a pool.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout_at;

use crate::driver::Driver;
use crate::status::Holder;

use super::core::Core;
use super::deadline::Deadline;

/// The last part of the time to close, in which what is still held is taken away: a fifth of it, but
/// no more than this.
const LAST_PART: Duration = Duration::from_secs(1);

/// What [`PartitionedPool::close`](crate::PartitionedPool::close) found by its deadline.
///
/// # Examples
/// ```
/// use partitioned_pool::CloseReport;
///
/// let report = CloseReport::default();
/// assert!(report.is_drained());
/// assert_eq!(report.to_string(), "closed: every connection was given back");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// Holds that were ended by us: cancelled, and their connections taken away.
    pub taken_away: Vec<TakenAway>,
    /// The partitions of which something was still not known gone, in the order of the pool.
    pub still_held: Vec<StillHeld>,
    /// Connections that were [detached](crate::Connection::detach) and are still open: they have left the pool, and it
    /// neither waits for them nor takes them away.
    pub detached: u32,
}

/// A hold that closing ended.
///
/// # Examples
/// ```
/// use partitioned_pool::{CloseReport, TakenAway};
///
/// fn cut_off(report: &CloseReport) {
///     for TakenAway { partition, holder, .. } in &report.taken_away {
///         eprintln!("{partition}: {holder} was cut off");
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TakenAway {
    /// The partition.
    pub partition: String,
    /// Who held it, and for how long.
    pub holder: Holder,
}

/// What a partition still held when closing ended.
///
/// # Examples
/// ```
/// use partitioned_pool::CloseReport;
///
/// /// Connections that the server may still be counting when the process ends.
/// fn left_behind(report: &CloseReport) -> u32 {
///     report.still_held.iter().map(|held| held.connections).sum()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StillHeld {
    /// The partition.
    pub partition: String,
    /// Slots held by callers.
    pub in_use: u32,
    /// Connections of which the backend is not known gone, those of callers included.
    pub connections: u32,
    /// Who has held longest, and for how long.
    pub oldest_hold: Option<Holder>,
}

impl CloseReport {
    /// Whether every connection was given back by its owner, and is gone.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.taken_away.is_empty() && self.is_empty()
    }

    /// Whether every connection is gone, given back or taken away.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.still_held.is_empty()
    }
}

impl fmt::Display for CloseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_drained() {
            f.write_str("closed: every connection was given back")?;
        } else {
            f.write_str("closed")?;
        }
        if self.detached > 0 {
            write!(f, "; detached and still open: {}", self.detached)?;
        }
        for TakenAway { partition, holder } in &self.taken_away {
            write!(f, "\n  {partition}: taken away, held for {holder}")?;
        }
        for held in &self.still_held {
            let (name, in_use, open) = (&held.partition, held.in_use, held.connections);
            write!(
                f,
                "\n  {name}: still held, {in_use} in use, {open} connections"
            )?;
            if let Some(holder) = held.oldest_hold {
                write!(f, ", oldest hold {holder}")?;
            }
        }
        Ok(())
    }
}

/// When closing stops waiting and begins to take away.
pub(super) fn begin_to_take(deadline: Deadline) -> Deadline {
    let left = deadline.left();
    (left - (left / 5).min(LAST_PART)).into()
}

impl<D: Driver> Core<D> {
    /// Refuses everyone from now on and closes what is idle.
    pub(super) fn shut(self: &Arc<Self>) {
        self.bulkhead.close();
        self.keep_nothing();
    }

    /// What is left when everything was given back and is gone, or at `deadline`.
    pub(super) async fn drain(&self, deadline: Deadline) -> Option<StillHeld> {
        let empty = async {
            self.bulkhead.drained().await;
            self.budget.emptied().await;
        };
        match timeout_at(deadline.instant(), empty).await {
            Ok(()) => None,
            Err(_elapsed) => self.still_held(),
        }
    }

    /// Takes everything away that is still held.
    pub(super) fn take_all_away(self: &Arc<Self>) -> Vec<TakenAway> {
        let holders = self.bulkhead.holders(self.class).into_iter();
        let taken = holders.filter(|(hold, holder)| self.take_away(*hold, *holder));
        let named = |(_, holder)| TakenAway {
            partition: self.settings.name.clone(),
            holder,
        };
        taken.map(named).collect()
    }

    /// `None` if it is only others of its budget that hold something.
    fn still_held(&self) -> Option<StillHeld> {
        let status = self.status();
        let held = StillHeld {
            connections: status.connections() - status.detached,
            partition: status.name,
            in_use: status.in_use,
            oldest_hold: status.oldest_hold,
        };
        (held.in_use > 0 || held.connections > 0).then_some(held)
    }
}
