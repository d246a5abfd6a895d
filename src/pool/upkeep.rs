//! What is done for a partition without being asked: once a second, stale connections are closed,
//! `min_idle` is kept, forgotten holds are told to the log, the observer has its look, and what has happened is
//! noted for a diagnosis.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::admission::HoldId;
use crate::driver::{Driver, Readiness};
use crate::observe::Event;
use crate::status::Seconds;

use super::core::Core;

const TICK: Duration = Duration::from_secs(1);

/// Between two holds that are ended: each costs the server a cancel, the end of a backend and, mostly, the
/// start of another, and its other partitions would feel many at once.
const APART: Duration = Duration::from_millis(100);

/// So many are ended in one look, and the rest in the next.
const AT_A_TIME: u32 = 10;

/// Ends when the pool is closed or gone.
pub(super) async fn keep_up<D: Driver>(core: Weak<Core<D>>) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = None;
    loop {
        tick.tick().await;
        let open = core.upgrade().filter(|core| !core.bulkhead.is_closed());
        let Some(open) = open else {
            return;
        };
        told = open.look(told);
        // A pool that is dropped while we sleep goes at once.
        drop(open);
        end_long_holds(&core).await;
    }
}

/// Takes the connection away from holds that have passed `max_hold`, one after the other.
async fn end_long_holds<D: Driver>(core: &Weak<Core<D>>) {
    for _ in 0..AT_A_TIME {
        if !core.upgrade().is_some_and(|core| core.end_a_long_hold()) {
            return;
        }
        sleep(APART).await;
    }
}

impl<D: Driver> Core<D> {
    fn look(self: &Arc<Self>, told: Option<HoldId>) -> Option<HoldId> {
        self.close_stale();
        self.open_due(self.settings.min_idle);
        self.sample();
        self.take_note();
        self.warn_of_long_holds(told)
    }

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

    /// Takes the connection away from the oldest hold that has passed `max_hold`; `false` if there is none.
    fn end_a_long_hold(self: &Arc<Self>) -> bool {
        let Some(limit) = self.settings.max_hold else {
            return false;
        };
        let holders = self.bulkhead.holders(self.class).into_iter();
        let mut long = holders.take_while(|(_, holder)| holder.age > limit);
        // Those that are being taken away already, it leaves alone.
        let Some((_, holder)) = long.find(|(hold, holder)| self.take_away(*hold, *holder)) else {
            return false;
        };
        let (partition, max_hold) = (&self.settings.name, Seconds(limit));
        tracing::warn!(%partition, %holder, %max_hold, "a connection is taken away from its owner");
        true
    }
}
