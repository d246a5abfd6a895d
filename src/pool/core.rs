//! One partition from the inside: what its connections do, and in which task.

use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::Waker;
use std::time::Duration;

use deadpool::managed::Manager;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::admission::{ClassId, Figures, HoldId};
use crate::bulkhead::{Bulkhead, Permit};
use crate::config::{LIFETIME_JITTER_PERCENT, PartitionSettings};
use crate::driver::{Driver, Readiness};
use crate::error::Failure;
use crate::observe::Watch;
use crate::status::{Held, Holder, PartitionStatus};

use super::budget::Budget;
use super::health::Pulse;
use super::history::History;
use super::leaving::{Leaving, see_the_end};
use super::on_connect::Prepares;
use super::opening::{Opening, Prober};
use super::seat::Tenancy;
use super::store::{After, Counts, Link, Place, Stage, Step, Store};
use super::upkeep::keep_up;

pub(super) type ConnectionOf<D> = <D as Manager>::Type;
pub(super) type LinkOf<D> = Box<Link<ConnectionOf<D>>>;
pub(super) type Slot<D> = Permit<Store<ConnectionOf<D>>>;

/// How often a thread steps aside for a poll that is about to end.
const YIELDS: u32 = 3;

pub(super) struct Core<D: Driver> {
    pub(super) settings: PartitionSettings,
    pub(super) driver: D,
    /// Which class of its budget it is.
    pub(super) class: ClassId,
    /// That of its budget.
    pub(super) bulkhead: Bulkhead<Store<ConnectionOf<D>>>,
    pub(super) budget: Arc<Budget<D>>,
    pub(super) watch: Watch,
    pub(super) prepares: Prepares<D>,
    pub(super) pulse: Pulse,
    /// What it went through lately. Locked before the bulkhead, never after it.
    pub(super) history: Mutex<History>,
    /// The other partitions on the same server.
    neighbours: OnceLock<Vec<Weak<Self>>>,
    runtime: Handle,
    upkeep: OnceLock<AbortHandle>,
    /// The seat of its replica, where the fleet has seats.
    pub(super) seat: Option<Arc<Tenancy>>,
}

impl<D: Driver> Core<D> {
    pub(super) fn new(
        settings: PartitionSettings,
        driver: D,
        class: ClassId,
        budget: &Arc<Budget<D>>,
        watch: Watch,
        prepares: Prepares<D>,
        runtime: Handle,
    ) -> Self {
        Self {
            settings,
            driver,
            class,
            bulkhead: budget.bulkhead().clone(),
            budget: Arc::clone(budget),
            watch,
            prepares,
            pulse: Pulse::default(),
            history: Mutex::default(),
            neighbours: OnceLock::new(),
            runtime,
            upkeep: OnceLock::new(),
            seat: None,
        }
    }

    /// The same, which admits nothing without a seat.
    pub(super) fn seated(self, seat: Option<Arc<Tenancy>>) -> Self {
        Self { seat, ..self }
    }

    /// Whether anything may be admitted, as far as seats go.
    #[inline]
    pub(super) fn is_seated(&self) -> bool {
        self.seat.as_ref().is_none_or(|seat| seat.gate().admits())
    }

    /// What connections that are opened now belong to.
    #[inline]
    pub(super) fn tenure(&self) -> u64 {
        self.seat.as_ref().map_or(0, |seat| seat.gate().tenure())
    }

    /// Makes it known to the partitions on the same server.
    pub(super) fn introduce(&self, neighbours: Vec<Weak<Self>>) {
        // Set once, by the one that makes the pool.
        let _ = self.neighbours.set(neighbours);
    }

    /// The other partitions on the same server that are not gone.
    pub(super) fn neighbours(&self) -> impl Iterator<Item = Arc<Self>> {
        self.neighbours
            .get()
            .into_iter()
            .flatten()
            .filter_map(Weak::upgrade)
    }

    /// The boot is over: starts the task that keeps the partition up (it ends with the partition),
    /// and is patient with a database that is not there.
    pub(super) fn start(self: &Arc<Self>) {
        self.bulkhead.with_stock(Store::retry);
        self.begin_history();
        self.upkeep.get_or_init(|| {
            let upkeep = keep_up(Arc::downgrade(self));
            self.runtime.spawn(upkeep).abort_handle()
        });
    }

    /// Nobody can call any more: ends the upkeep, closes what is idle, and what is still in use when it comes
    /// back.
    pub(super) fn retire(self: &Arc<Self>) {
        if let Some(upkeep) = self.upkeep.get() {
            upkeep.abort();
        }
        self.keep_nothing();
    }

    /// Closes what is idle, and from now on whatever comes back.
    pub(super) fn keep_nothing(self: &Arc<Self>) {
        let seekers = self.bulkhead.with_stock(|s| s.close(self.class));
        seekers.into_iter().for_each(Waker::wake);
        self.close_idle();
    }

    /// Closes what is idle.
    pub(super) fn close_idle(self: &Arc<Self>) {
        while let Some(link) = self.bulkhead.with_stock(|s| s.take_last(self.class)) {
            self.discard(link, None);
        }
    }

    /// Does all that is due: for those who seek a connection, in whatever partition of the budget, and
    /// for `min_idle` to come.
    pub(super) fn open_due(self: &Arc<Self>, min_idle: u32) {
        if !self.is_seated() {
            return;
        }
        // Bounded: a runtime that stops drops what is spawned on the spot, and its place is free again.
        for _ in 0..self.budget.capacity() {
            match self
                .bulkhead
                .with_stock(|s| s.next_step(self.class, min_idle))
            {
                Some(Step::Open(place)) => self.open(place),
                Some(Step::Served(waker)) => waker.into_iter().for_each(Waker::wake),
                Some(Step::Close(link)) => self.discard(link, None),
                None => return,
            }
        }
    }

    /// Opens a connection for whoever the place is for.
    fn open(self: &Arc<Self>, place: Place) {
        let of_another = || self.budget.member(place.class());
        let opener = if place.class() == self.class {
            Some(Arc::clone(self))
        } else {
            of_another()
        };
        match opener {
            Some(core) => drop(self.runtime.spawn(Opening::new(&core, place).run())),
            // Nobody seeks in a partition that is gone.
            None => self.give_up(place),
        }
    }

    /// A new connection, with its dates.
    pub(super) fn link(&self, client: ConnectionOf<D>, place: Place, tenure: u64) -> LinkOf<D> {
        let now = self.bulkhead.now();
        let expires = self.settings.max_lifetime.map(|lifetime| {
            let jitter = lifetime / 100 * LIFETIME_JITTER_PERCENT;
            now + lifetime - jitter.mul_f64(fastrand::f64())
        });
        Box::new(Link {
            client,
            place,
            dress: Some(self.class),
            expires,
            tenure,
            idle_since: now,
        })
    }

    /// Passes a connection on to a seeker or the idle stack; that of a closed store is closed.
    pub(super) fn offer(self: &Arc<Self>, link: LinkOf<D>) {
        let now = self.bulkhead.now();
        match self.bulkhead.with_stock(|s| s.offer(link, now)) {
            Ok(waker) => waker.into_iter().for_each(Waker::wake),
            Err(link) => self.discard(link, None),
        }
    }

    /// An opening failed. Returns how long the caller has to sleep before it probes, if it must.
    pub(super) fn opening_failed(&self, failure: Failure) -> Option<Duration> {
        self.pulse.fails(self.bulkhead.now(), failure.clone());
        let partition = &self.settings.name;
        let endpoint = self.driver.endpoint();
        match self
            .bulkhead
            .with_stock(|s| s.opening_failed(self.class, failure))
        {
            After::Told(waker) => waker.into_iter().for_each(Waker::wake),
            After::Untold(failure) => {
                tracing::warn!(%partition, %endpoint, %failure, "no connection could be opened");
            }
            After::Probe(pause, failure) => {
                tracing::warn!(%partition, %endpoint, %failure, ?pause, "no connection could be opened; trying again");
                return Some(pause);
            }
            After::Nothing => {}
        }
        None
    }

    /// Sleeps for `pause`, and lets somebody probe then.
    pub(super) fn probe_after(self: &Arc<Self>, pause: Duration) {
        let prober = Prober::new(self);
        self.runtime.spawn(prober.sleep(pause));
    }

    /// Gives up a place.
    pub(super) fn give_up(&self, place: Place) {
        self.budget.give_up(place);
    }

    /// The return path: straight back if the backend is quiet and need not be reset, else by a task that
    /// holds the slot until the backend is clean or gone.
    #[inline]
    pub(super) fn take_back(self: &Arc<Self>, permit: Slot<D>, link: LinkOf<D>) {
        let as_it_was = link.dress.is_some() && !self.settings.reset_session;
        if settled::<D>(&link.client) != Readiness::Quiet || !as_it_was {
            if self.is_gone(&link) {
                // It was taken away long ago: neither slot nor place counts any more.
                let Link { client, place, .. } = *link;
                self.give_up(place);
                drop((client, permit));
                return;
            }
            let leaving = Leaving::new(self, Some(permit), link, Stage::Returning);
            self.runtime.spawn(leaving.settle());
        } else if link.has_expired(permit.since()) || link.tenure != self.tenure() {
            self.discard(link, Some(permit));
        } else if let Some(link) = permit.give_back(link) {
            self.discard(link, None);
        }
    }

    fn is_gone(&self, link: &LinkOf<D>) -> bool {
        let taken = self.bulkhead.with_stock(|s| s.taken(&link.place));
        taken.is_some_and(|(_, gone)| gone)
    }

    /// Closes a connection in a task of its own, which holds its slot, if there is one, to the end.
    pub(super) fn discard(self: &Arc<Self>, link: LinkOf<D>, permit: Option<Slot<D>>) {
        let leaving = Leaving::new(self, permit, link, Stage::Closing);
        self.runtime.spawn(leaving.close());
    }

    /// Closes a connection that had left the pool, and gives up its slot when its backend is gone.
    pub(super) fn end_detached(self: &Arc<Self>, permit: Slot<D>, link: LinkOf<D>) {
        let leaving = Leaving::new(self, None, link, Stage::Closing);
        self.runtime.spawn(async move {
            leaving.close().await;
            drop(permit);
        });
    }

    /// Whether a connection can be handed out at `now` without asking the server.
    #[inline]
    pub(super) fn is_fresh(&self, link: &LinkOf<D>, now: Duration) -> bool {
        let idle = now.saturating_sub(link.idle_since);
        let trusted = |limit| idle < limit;
        D::readiness(&link.client) == Readiness::Quiet
            && link.dress == Some(self.class)
            && self.settings.validate_after_idle.is_none_or(trusted)
            && !link.has_expired(now)
            && link.tenure == self.tenure()
    }

    /// Takes its connection away from a hold: cancels, cuts, and frees place and slot once the backend
    /// is gone, though the owner keeps an empty guard.
    pub(super) fn take_away(self: &Arc<Self>, from: HoldId, holder: Holder) -> bool {
        let taken = self.bulkhead.with_stock(|s| s.take_away(from, holder.age));
        let Some(leash) = taken else {
            return false;
        };
        let core = Arc::clone(self);
        self.runtime.spawn(async move {
            see_the_end(leash.take_away()).await;
            if core.bulkhead.with_stock(|s| s.taken_is_gone(from)) {
                core.budget.one_less();
                core.bulkhead.revoke(from);
                core.open_due(0);
            }
        });
        true
    }

    /// Who holds a slot, oldest first.
    pub(super) fn holders(&self) -> Vec<Held> {
        let holders = self.bulkhead.holders(self.class);
        self.bulkhead.with_stock(|s| {
            let held = |(hold, holder)| Held {
                holder,
                backend_pid: s.backend_pid(hold),
                statement: None,
            };
            holders.into_iter().map(held).collect()
        })
    }

    pub(super) fn status(&self) -> PartitionStatus {
        let figures = self.bulkhead.figures(self.class);
        let counts = self.bulkhead.with_stock(|s| s.counts(self.class));
        PartitionStatus {
            name: self.settings.name.clone(),
            budget: self.budget.name().to_owned(),
            reserved: self.settings.reserved,
            max_connections: self.settings.max_connections.get(),
            max_waiters: self.settings.max_waiters,
            min_idle: self.settings.min_idle,
            in_use: in_use(&figures, &counts),
            waiting: figures.waiting,
            opening: counts.of(Stage::Opening),
            idle: counts.of(Stage::Idle) + counts.of(Stage::Checking),
            used: counts.of(Stage::Used),
            returning: counts.of(Stage::Returning),
            closing: counts.of(Stage::Closing),
            ghosts: counts.of(Stage::Ghost),
            detached: counts.of(Stage::Detached),
            oldest_hold: figures.oldest_holds.first(),
            expected_hold: figures.expected_hold,
        }
    }
}

/// Slots in the hands of callers: neither on the return path nor detached. The two looks are not one: what changes
/// in between is not counted twice.
pub(super) fn in_use(figures: &Figures, counts: &Counts) -> u32 {
    let others = counts.slots_returning.saturating_add(figures.detached);
    figures.used.saturating_sub(others)
}

/// What is known of a backend, after a moment's patience if its task is being polled: the answer that
/// woke the caller may have come from that very poll, on another thread. Bounded, and short: to start a
/// task for it would cost more.
#[inline]
fn settled<D: Driver>(client: &D::Type) -> Readiness {
    let mut readiness = D::readiness(client);
    for _ in 0..YIELDS {
        if readiness != Readiness::Settling {
            break;
        }
        std::thread::yield_now();
        readiness = D::readiness(client);
    }
    readiness
}
