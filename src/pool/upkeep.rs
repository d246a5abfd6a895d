//! What is done for a partition without being asked: once a second, stale connections are closed,
//! `min_idle` is kept, forgotten holds are told to the log, and the observer has its look.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::admission::HoldId;
use crate::driver::{Driver, Readiness};
use crate::observe::Event;
use crate::status::Seconds;

use super::core::Core;

const TICK: Duration = Duration::from_secs(1);

/// Ends when the pool is closed or gone.
pub(super) async fn keep_up<D: Driver>(core: Weak<Core<D>>) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = None;
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
        core.sample();
        told = core.warn_of_long_holds(told);
        core.end_long_holds();
    }
}

impl<D: Driver> Core<D> {
    fn close_stale(self: &Arc<Self>) {
        let now = self.bulkhead.now();
        let (idle_timeout, min_idle) = (self.settings.idle_timeout, self.settings.min_idle);
        let is_lost = |client: &_| D::readiness(client) == Readiness::Lost;
        let next = || {
            self.bulkhead
                .with_stock(|s| s.take_stale(self.class, now, idle_timeout, min_idle, is_lost))
        };
        while let Some(link) = next() {
            self.discard(link, None);
        }
    }

    pub(super) fn sample(&self) {
        if self.watch.is_on() {
            self.watch.tell_about(&Event::Sampled(&self.status()));
        }
    }

    /// Tells the log of each hold that passes `hold_warning`, once; returns the newest that was told.
    fn warn_of_long_holds(&self, told: Option<HoldId>) -> Option<HoldId> {
        let limit = self.settings.hold_warning?;
        let partition = &self.settings.name;
        let holders = self.bulkhead.holders(self.class);
        let long = holders.iter().take_while(|(_, holder)| holder.age > limit);
        let mut newest = told;
        for (hold, holder) in long.filter(|(hold, _)| told.is_none_or(|told| hold.is_later(told))) {
            let hold_warning = Seconds(limit);
            tracing::warn!(%partition, %holder, %hold_warning, "a connection is held for long");
            newest = Some(*hold);
        }
        newest
    }

    /// Takes the connection away from each hold that has passed `max_hold`.
    fn end_long_holds(self: &Arc<Self>) {
        let Some(limit) = self.settings.max_hold else {
            return;
        };
        let partition = &self.settings.name;
        let holders = self.bulkhead.holders(self.class).into_iter();
        for (hold, holder) in holders.take_while(|(_, holder)| holder.age > limit) {
            if self.take_away(hold, holder) {
                let max_hold = Seconds(limit);
                tracing::warn!(%partition, %holder, %max_hold, "a connection is taken away from its owner");
            }
        }
    }
}
