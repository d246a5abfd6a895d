//! The seat of a replica, as its partitions see it: may anything be admitted now?
//!
//! The keeper of the seat (`fleet/seats`) opens and shuts the gate; every admission looks at it, by the clock. So a
//! process that was stopped or asleep admits nothing on a lease that has ended meanwhile, though nobody has had the
//! time yet to shut the gate.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;

use crate::driver::Driver;
use crate::fleet::lease::Seat;
use crate::observe::Event;
use crate::status::SeatStatus;

use super::boottime;
use super::core::Core;
use super::deadline::Deadline;

/// What the gate is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The replica has a seat.
    Open,
    /// It has none.
    Shut,
    /// The pool is closed or gone, and the seat is to be given back.
    Leaving,
    /// It was given back, or nobody will.
    Left,
}

/// What every admission looks at.
#[derive(Debug)]
pub(crate) struct Gate {
    /// In nanoseconds of the clock: until when what we have of a seat may be trusted. 0: not at all.
    until: AtomicU64,
    /// Grows whenever the gate is opened or shut: what was opened in another tenure is not used.
    tenure: AtomicU64,
    /// The seat, and since when it is held; without one, since when there is none.
    seat: Mutex<(Option<Seat>, Duration)>,
    phase: watch::Sender<Phase>,
    /// When it is worth to come back: after the next try to have a seat.
    retry_after: Duration,
}

impl Gate {
    pub(crate) fn new(retry_after: Duration) -> Self {
        Self {
            until: AtomicU64::new(0),
            tenure: AtomicU64::new(0),
            seat: Mutex::new((None, boottime::now())),
            phase: watch::Sender::new(Phase::Shut),
            retry_after,
        }
    }

    /// Whether a seat is held, for all that is known at this very moment.
    #[inline]
    pub(crate) fn admits(&self) -> bool {
        nanos(boottime::now()) < self.until.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn tenure(&self) -> u64 {
        self.tenure.load(Ordering::Acquire)
    }

    pub(super) fn retry_after(&self) -> Duration {
        self.retry_after
    }

    /// A seat was taken.
    pub(crate) fn open(&self, seat: Seat, until: Duration) {
        *self.seat.lock().unwrap_or_else(PoisonError::into_inner) = (Some(seat), boottime::now());
        self.tenure.fetch_add(1, Ordering::AcqRel);
        self.move_to(Phase::Open);
        self.extend(until);
    }

    /// The lease was renewed.
    pub(crate) fn extend(&self, until: Duration) {
        self.until.store(nanos(until), Ordering::Release);
    }

    /// Nothing is admitted from now on, and everyone who waits is told.
    pub(crate) fn shut(&self) {
        self.until.store(0, Ordering::Release);
        self.tenure.fetch_add(1, Ordering::AcqRel);
        *self.seat.lock().unwrap_or_else(PoisonError::into_inner) = (None, boottime::now());
        self.move_to(Phase::Shut);
    }

    /// Who is leaving does not come back.
    fn move_to(&self, phase: Phase) {
        self.phase.send_if_modified(|now| {
            let moves = matches!(now, Phase::Open | Phase::Shut) && *now != phase;
            if moves {
                *now = phase;
            }
            moves
        });
    }

    /// `work`, unless the seat is lost before it has ended.
    pub(super) async fn unless_lost<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut phase = self.phase.subscribe();
        tokio::select! {
            biased;
            done = work => Some(done),
            _ = phase.wait_for(|phase| *phase == Phase::Shut) => None,
        }
    }

    /// Whether the seat is to be given back.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Leaving | Phase::Left)
    }

    /// Completes when the seat is to be given back.
    pub(crate) async fn leaving(&self) {
        let mut phase = self.phase.subscribe();
        let leaving = |phase: &Phase| matches!(phase, Phase::Leaving | Phase::Left);
        let _ = phase.wait_for(leaving).await;
    }

    /// Nobody keeps it any more.
    pub(crate) fn has_left(&self) {
        self.until.store(0, Ordering::Release);
        self.phase.send_replace(Phase::Left);
    }

    /// Has the seat given back, and waits for it until `deadline`.
    pub(crate) async fn leave(&self, deadline: Deadline) {
        self.ask_to_leave();
        let mut phase = self.phase.subscribe();
        let left = phase.wait_for(|phase| *phase == Phase::Left);
        let _ = tokio::time::timeout_at(deadline.instant(), left).await;
    }

    fn ask_to_leave(&self) {
        self.move_to(Phase::Leaving);
    }

    pub(super) fn status(&self) -> SeatStatus {
        let (seat, since) = *self.seat.lock().unwrap_or_else(PoisonError::into_inner);
        let now = boottime::now();
        let until = Duration::from_nanos(self.until.load(Ordering::Acquire));
        SeatStatus {
            seat: seat.map(|seat| seat.number),
            epoch: seat.map(|seat| seat.epoch),
            admits_for: until.saturating_sub(now),
            lasted: now.saturating_sub(since),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What the partitions of a pool share for as long as one of them, or a connection of theirs, is there. With the last, the
/// seat is given back.
#[derive(Debug)]
pub(crate) struct Tenancy(Arc<Gate>);

impl Tenancy {
    pub(crate) fn new(gate: Arc<Gate>) -> Self {
        Self(gate)
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.0
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        self.0.ask_to_leave();
    }
}

/// The partitions of a pool, for the keeper of their seat, who does not keep them.
pub(crate) struct Tenants<D: Driver>(Vec<Weak<Core<D>>>);

impl<D: Driver> Tenants<D> {
    pub(super) fn new(cores: Vec<Weak<Core<D>>>) -> Self {
        Self(cores)
    }

    fn all(&self) -> impl Iterator<Item = Arc<Core<D>>> {
        self.0.iter().filter_map(Weak::upgrade)
    }

    /// What their sessions have behind their names from now on.
    pub(crate) fn tag(&self, tag: &str) {
        self.all().for_each(|core| core.driver.tag(tag));
    }

    /// The gate is shut: closes what is idle, and takes away what is held; returns how many holds that were.
    pub(crate) fn cut(&self) -> usize {
        let cut = |core: Arc<Core<D>>| {
            core.close_idle();
            core.take_all_away().len()
        };
        self.all().map(cut).sum()
    }

    /// Tells their observers.
    pub(crate) fn tell(&self, event: &Event<'_>) {
        self.all().for_each(|core| core.watch.tell_about(event));
    }
}
