//! Closing a pool.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use tokio::time::timeout_at;

use crate::driver::Driver;
use crate::status::Holder;

use super::core::Core;
use super::deadline::Deadline;
use super::store::Store;

/// What [`PartitionedPool::close`](crate::PartitionedPool::close) found at its deadline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// The partitions of which something was still held, in the order of the pool. Empty: drained.
    pub still_held: Vec<StillHeld>,
}

/// What a partition still held when closing ended.
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
    /// Whether everything was given back and closed in time.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.still_held.is_empty()
    }
}

impl fmt::Display for CloseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_drained() {
            return f.write_str("closed: every connection was given back");
        }
        f.write_str("closed, but still held:")?;
        for held in &self.still_held {
            let (name, in_use, open) = (&held.partition, held.in_use, held.connections);
            write!(f, " {name}: {in_use} in use, {open} connections")?;
            if let Some(holder) = held.oldest_hold {
                write!(f, ", oldest hold {holder}")?;
            }
            f.write_str(";")?;
        }
        Ok(())
    }
}

impl<D: Driver> Core<D> {
    /// Refuses everyone from now on and closes what is idle.
    pub(super) fn shut(self: &Arc<Self>) {
        self.bulkhead.close();
        let seekers = self.bulkhead.with_stock(Store::close);
        seekers.into_iter().for_each(Waker::wake);
        while let Some(link) = self.bulkhead.with_stock(Store::take_last) {
            self.discard(link, None);
        }
    }

    /// What is left when everything was given back and is gone, or at `deadline`.
    pub(super) async fn drain(&self, deadline: Deadline) -> Option<StillHeld> {
        let empty = async {
            self.bulkhead.drained().await;
            self.emptied().await;
        };
        match timeout_at(deadline.instant(), empty).await {
            Ok(()) => None,
            Err(_elapsed) => Some(self.still_held()),
        }
    }

    fn still_held(&self) -> StillHeld {
        let status = self.status();
        StillHeld {
            connections: status.connections(),
            partition: status.name,
            in_use: status.in_use,
            oldest_hold: status.oldest_hold,
        }
    }
}
