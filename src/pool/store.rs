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

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use crate::admission::ClassId;
use crate::bulkhead::Stock;
use crate::error::Failure;

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
}

/// A connection, its place, and its dates on the clock of the bulkhead.
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
pub(super) type Found<C> = Result<Link<C>, Trouble>;

/// A caller that has a slot and wants a connection.
pub(super) enum Seeker<C> {
    Seeking(Option<Waker>),
    Answered(Found<C>),
}

/// The answer to [`Store::seek`].
pub(super) enum Seek<C> {
    Idle(Link<C>),
    Seeking(usize),
    Closed,
}

pub(crate) struct Store<C> {
    capacity: u32,
    open: bool,
    pub(super) counts: Counts,
    idle: Vec<Link<C>>,
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
            idle: Vec::new(),
            seekers: Slab::new(),
            seeking: VecDeque::new(),
        }
    }

    #[inline]
    pub(super) fn shift(&mut self, place: &mut Place, to: Stage) {
        self.counts.stages[place.stage as usize] -= 1;
        self.counts.stages[to as usize] += 1;
        place.stage = to;
    }

    /// Gives up a place: its backend is known gone, or was never there.
    pub(super) fn gone(&mut self, place: Place) {
        self.counts.stages[place.stage as usize] -= 1;
    }

    /// A place for an opening, if one is due: for a seeker (2), or to keep `min_idle` connections
    /// ready for callers to come.
    pub(super) fn next_opening(&mut self, min_idle: u32) -> Option<Place> {
        let opening = self.counts.of(Stage::Opening) as usize;
        let wanted = self.seeking.len() + min_idle.saturating_sub(self.idle_len()) as usize;
        if !self.open || opening >= wanted || self.counts.total() >= self.capacity {
            return None;
        }
        self.counts.stages[Stage::Opening as usize] += 1;
        Some(Place {
            stage: Stage::Opening,
        })
    }

    fn idle_len(&self) -> u32 {
        self.counts.of(Stage::Idle)
    }

    #[inline]
    pub(super) fn take_idle(&mut self) -> Option<Link<C>> {
        let mut link = self.idle.pop()?;
        self.shift(&mut link.place, Stage::Used);
        Some(link)
    }

    /// An idle connection, or a place among the seekers.
    pub(super) fn seek(&mut self) -> Seek<C> {
        if !self.open {
            return Seek::Closed;
        }
        if let Some(link) = self.take_idle() {
            return Seek::Idle(link);
        }
        let key = self.seekers.insert(Seeker::Seeking(None));
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
        if let Seeker::Seeking(waker) = &mut self.seekers[key] {
            if !matches!(waker, Some(waker) if waker.will_wake(cx.waker())) {
                *replaced = waker.replace(cx.waker().clone());
            }
            return Poll::Pending;
        }
        match self.seekers.remove(key) {
            Seeker::Answered(found) => Poll::Ready(found),
            Seeker::Seeking(_) => unreachable!("bug: checked above"),
        }
    }

    /// Ends a search. What was found in that moment is in the seeker and must be passed on.
    pub(super) fn stop_seeking(&mut self, key: usize) -> Seeker<C> {
        let seeker = self.seekers.remove(key);
        if let Seeker::Seeking(_) = seeker {
            self.seeking.retain(|other| *other != key);
        }
        seeker
    }

    /// Takes in a connection that was opened, or that a seeker did not wait for.
    ///
    /// # Errors
    /// The connection, if the store is closed.
    pub(super) fn offer(
        &mut self,
        mut link: Link<C>,
        now: Duration,
    ) -> Result<Option<Waker>, Link<C>> {
        if !self.open {
            return Err(link);
        }
        if link.place.stage == Stage::Returning {
            self.counts.slots_returning -= 1;
        }
        if let Some(key) = self.seeking.pop_front() {
            self.shift(&mut link.place, Stage::Used);
            return Ok(self.answer(key, Ok(link)));
        }
        self.shift(&mut link.place, Stage::Idle);
        link.idle_since = now;
        self.idle.push(link);
        Ok(None)
    }

    /// Gives up the place of a failed opening. If those that go on cannot serve every seeker, the
    /// oldest is told.
    ///
    /// # Errors
    /// The failure, if nobody needs to be told.
    pub(super) fn fail(
        &mut self,
        place: Place,
        failure: Failure,
    ) -> Result<Option<Waker>, Failure> {
        self.gone(place);
        self.tell(failure)
    }

    /// Tells the oldest seeker of a failure, if the openings that go on cannot serve every seeker.
    ///
    /// # Errors
    /// The failure, if nobody needs to be told.
    pub(super) fn tell(&mut self, failure: Failure) -> Result<Option<Waker>, Failure> {
        if self.seeking.len() <= self.counts.of(Stage::Opening) as usize {
            return Err(failure);
        }
        match self.seeking.pop_front() {
            Some(key) => Ok(self.answer(key, Err(Trouble::Failed(failure)))),
            None => Err(failure),
        }
    }

    fn answer(&mut self, key: usize, found: Found<C>) -> Option<Waker> {
        match std::mem::replace(&mut self.seekers[key], Seeker::Answered(found)) {
            Seeker::Seeking(waker) => waker,
            Seeker::Answered(_) => unreachable!("bug: a seeker was answered twice"),
        }
    }

    /// Takes out one idle connection that has expired, or that nobody has needed for `idle_timeout`
    /// and that is not among the `min_idle` to be kept.
    pub(super) fn take_stale(
        &mut self,
        now: Duration,
        idle_timeout: Option<Duration>,
        min_idle: u32,
    ) -> Option<Link<C>> {
        let spare = self.idle_len() > min_idle;
        let stale = |link: &Link<C>| {
            let unneeded = idle_timeout.is_some_and(|limit| now >= link.idle_since + limit);
            (spare && unneeded) || link.has_expired(now)
        };
        let at = self.idle.iter().position(stale)?;
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
    pub(super) fn take_last(&mut self) -> Option<Link<C>> {
        let at = self.idle.len().checked_sub(1)?;
        Some(self.take_to_close(at))
    }

    fn take_to_close(&mut self, at: usize) -> Link<C> {
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
    type Item = Link<C>;

    #[inline]
    fn take(&mut self, _: ClassId) -> Option<Link<C>> {
        self.take_idle()
    }

    #[inline]
    fn put(&mut self, _: ClassId, link: Link<C>, now: Duration) -> Result<Option<Waker>, Link<C>> {
        self.offer(link, now)
    }
}
