//! The connections of a budget: the idle ones, the count of all, and who waits for one.
//!
//! The store lives under the lock of its bulkhead. It opens and closes nothing; it says what may be.
//! It wakes nobody, and drops neither connections nor wakers: whoever they belong to may call back.
//!
//! 1. `opening + idle + used + returning + closing + ghosts <= capacity`, always: a [`Place`] is made
//!    before a connection is opened and ends when its backend is known gone.
//! 2. A caller with a slot and without a connection is a seeker. While there are more seekers than
//!    openings and a place is free, an opening is due.
//! 3. A connection that comes free goes to the seeker that has waited longest, else to the idle
//!    stack. The stack is last in, first out, so that what nobody needs grows old at its bottom.
//! 4. A closed store keeps nothing.
//! 5. After a failure that can pass, nobody opens but one prober, and then slowly more (`pace.rs`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use crate::admission::{ClassId, Hold, HoldId};
use crate::bulkhead::Stock;
use crate::driver::Leash;
use crate::error::Failure;

use super::pace::Pace;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Opening,
    Idle,
    Used,
    Returning,
    Closing,
    Ghost,
}

/// The right to be one of the connections of a budget. It ends by [`Store::gone`].
#[must_use = "a place that is not given up is a connection lost for ever"]
#[derive(Debug)]
pub(super) struct Place {
    stage: Stage,
    /// Of its entry in [`Store::known`].
    key: usize,
}

/// What is known of a connection, wherever it is.
#[derive(Default)]
struct Known {
    /// `None` while it is being opened, and for a driver that has none.
    leash: Option<Arc<dyn Leash>>,
    /// The hold of the caller that has it.
    held_by: Option<HoldId>,
    /// It is being taken away, or was, from a hold that had lasted this long.
    taken: Option<Duration>,
    /// Its backend is known gone, though a late owner still has it: it counts no more.
    gone: bool,
}

/// A connection, its place, and its dates on the clock of the bulkhead.
///
/// It is boxed for all of its life: it changes hands on every acquire and every return, and moving
/// it by value costs more than the rest of both.
#[derive(Debug)]
pub(crate) struct Link<C> {
    pub(super) client: C,
    pub(super) place: Place,
    pub(super) expires: Option<Duration>,
    pub(super) idle_since: Duration,
}

/// How many connections stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    stages: [u32; 6],
    /// Slots held by the return path rather than by callers.
    pub(super) slots_returning: u32,
}

impl Counts {
    pub(super) fn of(&self, stage: Stage) -> u32 {
        self.stages[stage as usize]
    }

    pub(super) fn total(&self) -> u32 {
        self.stages.iter().sum()
    }
}

/// Why a seeker gets no connection.
#[derive(Debug)]
pub(super) enum Trouble {
    Failed(Failure),
    Closed,
}

/// What a seeker is told.
pub(super) type Found<C> = Result<Box<Link<C>>, Trouble>;

/// A caller that has a slot and wants a connection.
pub(super) enum Seeker<C> {
    Seeking(Option<Waker>, HoldId),
    Answered(Found<C>),
}

/// What follows a failed opening.
pub(super) enum After {
    /// A seeker was told: wake it.
    Told(Option<Waker>),
    /// Nobody needed to be told.
    Untold(Failure),
    /// Whoever failed sleeps for so long, and then probes.
    Probe(Duration, Failure),
    /// Somebody else probes.
    Nothing,
}

/// The answer to [`Store::seek`].
pub(super) enum Seek<C> {
    Idle(Box<Link<C>>),
    Seeking(usize),
    Closed,
}

pub(crate) struct Store<C> {
    capacity: u32,
    open: bool,
    pub(super) counts: Counts,
    pace: Pace,
    /// Whether a failure that can pass is tried again, rather than told.
    patient: bool,
    /// What the last failed opening reported, while the pace is not free.
    trouble: Option<Failure>,
    idle: Vec<Box<Link<C>>>,
    known: Slab<Known>,
    seekers: Slab<Seeker<C>>,
    /// Keys of those in `seekers` that have no answer, oldest first.
    seeking: VecDeque<usize>,
}

impl<C> Store<C> {
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            capacity,
            open: true,
            counts: Counts::default(),
            pace: Pace::Free,
            patient: false,
            trouble: None,
            idle: Vec::new(),
            known: Slab::new(),
            seekers: Slab::new(),
            seeking: VecDeque::new(),
        }
    }

    #[inline]
    pub(super) fn shift(&mut self, place: &mut Place, to: Stage) {
        let known = &mut self.known[place.key];
        if known.gone {
            return;
        }
        known.held_by = None;
        self.counts.stages[place.stage as usize] -= 1;
        self.counts.stages[to as usize] += 1;
        place.stage = to;
    }

    /// Gives up a place: its backend is known gone, or was never there.
    pub(super) fn gone(&mut self, place: Place) {
        let known = self.known.remove(place.key);
        if !known.gone {
            self.counts.stages[place.stage as usize] -= 1;
        }
    }

    /// Takes the connection of a hold away from it, which has lasted for `age`: returns what it takes
    /// to do so, unless the hold has ended or somebody is at it already.
    pub(super) fn take_away(&mut self, from: HoldId, age: Duration) -> Option<Arc<dyn Leash>> {
        let mut known = self.known.iter_mut().map(|(_, known)| known);
        let known = known.find(|known| known.held_by == Some(from))?;
        let leash = known.leash.clone().filter(|_| known.taken.is_none())?;
        known.taken = Some(age);
        Some(leash)
    }

    /// The backend of a connection that was taken away from a hold is gone. `true` if its late owner
    /// still has it: then the slot is to be revoked; else it comes back, or came, by itself.
    pub(super) fn taken_is_gone(&mut self, from: HoldId) -> bool {
        let mut known = self.known.iter_mut().map(|(_, known)| known);
        let taken = |known: &&mut Known| known.held_by == Some(from) && known.taken.is_some();
        let Some(known) = known.find(taken) else {
            return false;
        };
        known.held_by = None;
        known.gone = true;
        self.counts.stages[Stage::Used as usize] -= 1;
        true
    }

    /// Whether a connection was taken away, after a hold of which length, and whether its backend is
    /// gone.
    pub(super) fn taken(&self, place: &Place) -> Option<(Duration, bool)> {
        let known = &self.known[place.key];
        known.taken.map(|age| (age, known.gone))
    }

    /// The backend of the connection that a hold has.
    pub(super) fn backend_pid(&self, of: HoldId) -> Option<i32> {
        let mut known = self.known.iter().map(|(_, known)| known);
        let known = known.find(|known| known.held_by == Some(of))?;
        known.leash.as_ref()?.backend_pid()
    }

    /// A place for an opening, if one is due: for a seeker (2), or to keep `min_idle` connections
    /// ready for callers to come.
    pub(super) fn next_opening(&mut self, min_idle: u32) -> Option<Place> {
        let opening = self.counts.of(Stage::Opening) as usize;
        let wanted = self.seeking.len() + min_idle.saturating_sub(self.idle_len()) as usize;
        let allowed = self.pace.allows(self.counts.of(Stage::Opening));
        if !self.open || !allowed || opening >= wanted || self.counts.total() >= self.capacity {
            return None;
        }
        self.counts.stages[Stage::Opening as usize] += 1;
        Some(Place {
            stage: Stage::Opening,
            key: self.known.insert(Known::default()),
        })
    }

    fn idle_len(&self) -> u32 {
        self.counts.of(Stage::Idle)
    }

    #[inline]
    pub(super) fn take_idle(&mut self, hold: HoldId) -> Option<Box<Link<C>>> {
        let mut link = self.idle.pop()?;
        self.hand_out(&mut link, hold);
        Some(link)
    }

    #[inline]
    fn hand_out(&mut self, link: &mut Link<C>, hold: HoldId) {
        self.shift(&mut link.place, Stage::Used);
        self.known[link.place.key].held_by = Some(hold);
    }

    /// An idle connection, or a place among the seekers.
    pub(super) fn seek(&mut self, hold: HoldId) -> Seek<C> {
        if !self.open {
            return Seek::Closed;
        }
        if let Some(link) = self.take_idle(hold) {
            return Seek::Idle(link);
        }
        let key = self.seekers.insert(Seeker::Seeking(None, hold));
        self.seeking.push_back(key);
        Seek::Seeking(key)
    }

    /// A waker that is no longer needed goes to `replaced`, to be dropped outside of the lock.
    pub(super) fn poll_seeker(
        &mut self,
        key: usize,
        cx: &mut Context<'_>,
        replaced: &mut Option<Waker>,
    ) -> Poll<Found<C>> {
        if let Seeker::Seeking(waker, _) = &mut self.seekers[key] {
            if !matches!(waker, Some(waker) if waker.will_wake(cx.waker())) {
                *replaced = waker.replace(cx.waker().clone());
            }
            return Poll::Pending;
        }
        match self.seekers.remove(key) {
            Seeker::Answered(found) => Poll::Ready(found),
            Seeker::Seeking(..) => unreachable!("bug: checked above"),
        }
    }

    /// Ends a search. What was found in that moment is in the seeker and must be passed on.
    pub(super) fn stop_seeking(&mut self, key: usize) -> Seeker<C> {
        let seeker = self.seekers.remove(key);
        if let Seeker::Seeking(..) = seeker {
            self.seeking.retain(|other| *other != key);
        }
        seeker
    }

    /// Takes in a connection that was opened, or that a seeker did not wait for.
    ///
    /// # Errors
    /// The connection, if the store is closed, or if it is just being taken away.
    pub(super) fn offer(
        &mut self,
        mut link: Box<Link<C>>,
        now: Duration,
    ) -> Result<Option<Waker>, Box<Link<C>>> {
        if !self.open || self.known[link.place.key].taken.is_some() {
            return Err(link);
        }
        if link.place.stage == Stage::Returning {
            self.counts.slots_returning -= 1;
        }
        link.idle_since = now;
        if let Some(key) = self.seeking.pop_front() {
            if let Seeker::Seeking(_, hold) = self.seekers[key] {
                self.hand_out(&mut link, hold);
            }
            return Ok(self.answer(key, Ok(link)));
        }
        self.shift(&mut link.place, Stage::Idle);
        self.idle.push(link);
        Ok(None)
    }

    /// From now on a failure that can pass is tried again.
    pub(super) fn be_patient(&mut self) {
        self.patient = true;
    }

    /// What stands in the way of connecting, if anything does.
    pub(super) fn trouble(&self) -> Option<Failure> {
        self.trouble.clone()
    }

    /// A connection was opened: the pace quickens.
    pub(super) fn opened(&mut self, place: &Place, leash: Option<Arc<dyn Leash>>) {
        self.known[place.key].leash = leash;
        self.pace.succeeded(self.capacity);
        self.trouble = None;
    }

    /// The prober has slept.
    pub(super) fn probe(&mut self) {
        self.pace.probe();
    }

    /// An opening failed. If that can pass, the caller may have to be the prober; if not, and those
    /// that go on cannot serve every seeker, the oldest seeker is told.
    pub(super) fn opening_failed(&mut self, failure: Failure) -> After {
        if self.patient && failure.is_transient() {
            self.trouble = Some(failure.clone());
            return match self.pace.failed(fastrand::f64()) {
                Some(pause) => After::Probe(pause, failure),
                None => After::Nothing,
            };
        }
        if self.seeking.len() <= self.counts.of(Stage::Opening) as usize {
            return After::Untold(failure);
        }
        match self.seeking.pop_front() {
            Some(key) => After::Told(self.answer(key, Err(Trouble::Failed(failure)))),
            None => After::Untold(failure),
        }
    }

    fn answer(&mut self, key: usize, found: Found<C>) -> Option<Waker> {
        match std::mem::replace(&mut self.seekers[key], Seeker::Answered(found)) {
            Seeker::Seeking(waker, _) => waker,
            Seeker::Answered(_) => unreachable!("bug: a seeker was answered twice"),
        }
    }

    /// Takes out one idle connection that has expired or is lost, or that nobody has needed for
    /// `idle_timeout` and that is not among the `min_idle` to be kept.
    pub(super) fn take_stale(
        &mut self,
        now: Duration,
        idle_timeout: Option<Duration>,
        min_idle: u32,
        is_lost: impl Fn(&C) -> bool,
    ) -> Option<Box<Link<C>>> {
        let spare = self.idle_len() > min_idle;
        let stale = |link: &Link<C>| {
            let unneeded = idle_timeout.is_some_and(|limit| now >= link.idle_since + limit);
            (spare && unneeded) || link.has_expired(now) || is_lost(&link.client)
        };
        let at = self.idle.iter().position(|link| stale(link))?;
        Some(self.take_to_close(at))
    }

    /// Keeps nothing from now on, and tells every seeker.
    pub(super) fn close(&mut self) -> Vec<Waker> {
        self.open = false;
        let seeking = std::mem::take(&mut self.seeking);
        let answer = |key| self.answer(key, Err(Trouble::Closed));
        seeking.into_iter().filter_map(answer).collect()
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Takes out an idle connection of a closed store.
    pub(super) fn take_last(&mut self) -> Option<Box<Link<C>>> {
        let at = self.idle.len().checked_sub(1)?;
        Some(self.take_to_close(at))
    }

    fn take_to_close(&mut self, at: usize) -> Box<Link<C>> {
        let mut link = self.idle.remove(at);
        self.shift(&mut link.place, Stage::Closing);
        link
    }
}

impl<C> Link<C> {
    #[inline]
    pub(super) fn has_expired(&self, now: Duration) -> bool {
        self.expires.is_some_and(|at| now >= at)
    }
}

impl<C> Stock for Store<C> {
    type Item = Box<Link<C>>;

    #[inline]
    fn take(&mut self, hold: &Hold) -> Option<Box<Link<C>>> {
        self.take_idle(hold.id())
    }

    #[inline]
    fn put(
        &mut self,
        _: ClassId,
        link: Box<Link<C>>,
        now: Duration,
    ) -> Result<Option<Waker>, Box<Link<C>>> {
        self.offer(link, now)
    }

    /// One that is being closed may take long; one whose caller has left is about to be quiet.
    #[inline]
    fn returning(&self, _: ClassId) -> u32 {
        self.counts.of(Stage::Returning)
    }
}
