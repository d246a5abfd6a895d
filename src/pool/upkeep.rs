//! What is done for a partition without being asked: once a second, stale connections are closed,
//! `min_idle` is kept, forgotten holds are told to the log, and the observer has its look.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::driver::{Driver, Readiness};
use crate::observe::Event;
use crate::status::{PartitionStatus, Seconds};

use super::core::Core;

const TICK: Duration = Duration::from_secs(1);

/// Ends when the pool is closed or gone.
pub(super) async fn keep_up<D: Driver>(core: Weak<Core<D>>) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut warned = false;
    loop {
        tick.tick().await;
        let Some(core) = core.upgrade() else {
            return;
        };
        if core.bulkhead.is_closed() {
            return;
        }
        core.close_stale();
        core.open_due(core.settings.min_idle);
        warned = core.warn_of_long_holds(&core.sample(), warned);
    }
}

impl<D: Driver> Core<D> {
    fn close_stale(self: &Arc<Self>) {
        let now = self.bulkhead.now();
        let (idle_timeout, min_idle) = (self.settings.idle_timeout, self.settings.min_idle);
        let is_lost = |client: &_| D::readiness(client) == Readiness::Lost;
        let next = || {
            self.bulkhead
                .with_stock(|s| s.take_stale(now, idle_timeout, min_idle, is_lost))
        };
        while let Some(link) = next() {
            self.discard(link, None);
        }
    }

    pub(super) fn sample(&self) -> PartitionStatus {
        let status = self.status();
        self.watch.tell_about(&Event::Sampled(&status));
        status
    }

    /// Warns once when the oldest hold passes `max_hold`, and again for the next that does.
    fn warn_of_long_holds(&self, status: &PartitionStatus, warned: bool) -> bool {
        let (Some(limit), Some(holder)) = (self.settings.max_hold, status.oldest_hold) else {
            return false;
        };
        let over = holder.age > limit;
        if over && !warned {
            let partition = &self.settings.name;
            let max_hold = Seconds(limit);
            tracing::warn!(%partition, %holder, %max_hold, "a connection is held for longer than max_hold");
        }
        over
    }
}
