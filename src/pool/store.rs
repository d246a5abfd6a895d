//! The connections of a budget: the idle ones, the count of all, and who waits for one.
//!
//! The store lives under the lock of its bulkhead. It opens and closes nothing; it says what may be.
//! It wakes nobody, and drops neither connections nor wakers: whoever they belong to may call back.
//!
//! Each partition of the budget is a class, with a shelf of its own.
//!
//! 1. `opening + idle + checking + used + returning + closing + ghosts + detached <= capacity`, always, and for each class
//!    `<= max`: a [`Place`] is made before a connection is opened and ends when its backend is known
//!    gone.
//! 2. `capacity - all connections >= sum over the classes of max(0, reserved - connections)`: what a
//!    class has open, or leaves behind as ghosts, never takes the place that another has reserved.
//! 3. A caller with a slot and without a connection is a seeker. While a class has more seekers than
//!    openings and may open one (a place is free, 2 and its pace allow it), an opening is due.
//! 4. A connection that comes free goes to the seeker of its class that has waited longest, else to the
//!    idle stack. The stack is last in, first out, so that what nobody needs grows old at its bottom.
//! 5. Only a class that may not open one takes over an idle connection of another class, the one that
//!    nobody has needed for longest: in a steady mix each class keeps its own. The taker dresses it
//!    (session limits) before use. Where it cannot, since role or database differ, the connection is
//!    closed to make room. Whoever has one of its own on the way back is first patient for a moment.
//! 6. An idle connection lies on the shelf of the class whose dress it wears.
//! 7. A closed shelf keeps nothing.
//! 8. After a failure that can pass, a class opens nothing but by one prober, and then slowly more
//!    (`pace.rs`). Others go on: what failed may be its role, its database or its own timeout.

mod known;
mod shelf;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use crate::admission::{ClassId, Hold, HoldId};
use crate::bulkhead::Stock;
use crate::driver::Leash;
use crate::error::Failure;

use known::Registry;
use shelf::{Seat, Shelf};

pub(super) use shelf::{ClassOfStore, Counts, Stage};

/// The right to be one of the connections of a budget. It ends by [`Store::gone`].
#[must_use = "a place that is not given up is a connection lost for ever"]
#[derive(Debug)]
pub(super) struct Place {
    stage: Stage,
    class: ClassId,
    /// Of its entry in [`Store::known`].
    key: usize,
}

impl Place {
    /// The class that it counts for.
    pub(super) fn class(&self) -> ClassId {
        self.class
    }
}

/// A connection, its place, and its dates on the clock of the bulkhead.
///
/// It is boxed for all of its life: it changes hands on every acquire and every return, and moving
/// it by value costs more than the rest of both.
#[derive(Debug)]
pub(crate) struct Link<C> {
    pub(super) client: C,
    pub(super) place: Place,
    /// The class whose session limits are in force; `None` while that is being changed.
    pub(super) dress: Option<ClassId>,
    pub(super) expires: Option<Duration>,
    /// In which tenure of a seat it was opened; 0 where there are none.
    pub(super) tenure: u64,
    pub(super) idle_since: Duration,
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
    /// Wait; if patient, then for a moment before [`Store::lose_patience`] and whatever is due.
    Seeking {
        key: usize,
        patient: bool,
    },
    Closed,
}

/// What is to be done for a seeker, or for callers to come.
#[must_use]
pub(super) enum Step<C> {
    /// Open a connection in this place.
    Open(Place),
    /// A seeker has taken over an idle connection: wake it.
    Served(Option<Waker>),
    /// Close this idle connection: it stands in the way of one that nobody can dress it for.
    Close(Box<Link<C>>),
}

pub(crate) struct Store<C> {
    capacity: u32,
    shelves: Vec<Shelf<C>>,
    /// Whether a failure that can pass is tried again, rather than told.
    retries: bool,
    known: Registry,
    seekers: Slab<Seeker<C>>,
    next_seq: u64,
}

impl<C> Store<C> {
    pub(super) fn new(capacity: u32, classes: impl IntoIterator<Item = ClassOfStore>) -> Self {
        Self {
            capacity,
            shelves: classes.into_iter().map(Shelf::new).collect(),
            retries: false,
            known: Registry::new(),
            seekers: Slab::new(),
            next_seq: 0,
        }
    }

    #[inline]
    fn shelf(&mut self, class: ClassId) -> &mut Shelf<C> {
        &mut self.shelves[class.index()]
    }

    /// How many connections of `class` stand where.
    pub(super) fn counts(&self, class: ClassId) -> Counts {
        self.shelves[class.index()].counts
    }

    /// The connections of all classes.
    pub(super) fn total(&self) -> u32 {
        self.shelves.iter().map(|shelf| shelf.counts.total()).sum()
    }

    /// Those of them that have left the pool.
    pub(super) fn detached(&self) -> u32 {
        let detached = |shelf: &Shelf<C>| shelf.counts.of(Stage::Detached);
        self.shelves.iter().map(detached).sum()
    }

    #[inline]
    pub(super) fn shift(&mut self, place: &mut Place, to: Stage) {
        if !self.known.is_left(place.key) {
            return;
        }
        let counts = &mut self.shelves[place.class.index()].counts;
        counts.stages[place.stage as usize] -= 1;
        counts.stages[to as usize] += 1;
        place.stage = to;
    }

    /// From now on a place counts for another class.
    fn change_class(&mut self, place: &mut Place, to: ClassId) {
        self.shelf(place.class).counts.stages[place.stage as usize] -= 1;
        self.shelf(to).counts.stages[place.stage as usize] += 1;
        place.class = to;
    }

    /// Takes note that a slot of `class` is on the return path.
    pub(super) fn slot_returns(&mut self, class: ClassId) {
        self.shelf(class).counts.slots_returning += 1;
    }

    /// Takes note that a slot of `class` has left the return path without its connection.
    pub(super) fn slot_returned(&mut self, class: ClassId) {
        self.shelf(class).counts.slots_returning -= 1;
    }

    /// Gives up a place: its backend is known gone, or was never there. What was known of it is to be
    /// dropped outside of the lock.
    #[must_use = "dropping it may wake a task"]
    pub(super) fn gone(&mut self, place: Place) -> Option<Arc<dyn Leash>> {
        let (counted, leash) = self.known.remove(place.key);
        if counted {
            self.shelf(place.class).counts.stages[place.stage as usize] -= 1;
        }
        leash
    }

    /// Takes the connection of a hold away from it, which has lasted for `age`: returns what it takes
    /// to do so, unless the hold has ended or somebody is at it already.
    pub(super) fn take_away(&mut self, from: HoldId, age: Duration) -> Option<Arc<dyn Leash>> {
        self.known.take_away(from, age)
    }

    /// The backend of a connection that was taken away from a hold is gone. `true` if its late owner
    /// still has it: then the slot is to be revoked; else it comes back, or came, by itself.
    pub(super) fn taken_is_gone(&mut self, from: HoldId) -> bool {
        let is_with_its_owner = self.known.taken_is_gone(from);
        if is_with_its_owner {
            self.shelf(from.class()).counts.stages[Stage::Used as usize] -= 1;
        }
        is_with_its_owner
    }

    /// Whether a connection was taken away, after a hold of which length, and whether its backend is
    /// gone.
    pub(super) fn taken(&self, place: &Place) -> Option<(Duration, bool)> {
        self.known.taken(place.key)
    }

    /// The backend of the connection that a hold has.
    pub(super) fn backend_pid(&self, of: HoldId) -> Option<i32> {
        self.known.backend_pid(of)
    }

    /// What is due: for the seeker that has waited longest, of whatever class (3, 5); or, if nobody
    /// seeks in vain, to keep `min_idle` connections of `class` ready.
    pub(super) fn next_step(&mut self, class: ClassId, min_idle: u32) -> Option<Step<C>> {
        let wanted = self.wanted();
        if wanted.is_empty() {
            return self.filling(class, min_idle).map(Step::Open);
        }
        let mut wanted = wanted.into_iter();
        wanted.find_map(|class| {
            if self.may_open(class) {
                return Some(Step::Open(self.opening(class)));
            }
            self.make_room(class)
        })
    }

    /// The classes of seekers for whom nothing is being opened, and that have room; the oldest first.
    fn wanted(&self) -> Vec<ClassId> {
        let shelves = self.shelves.iter().enumerate();
        let wanted = shelves.filter(|(_, shelf)| shelf.unserved() > 0 && shelf.has_room());
        let mut wanted: Vec<_> = wanted
            .filter_map(|(index, shelf)| Some((shelf.seeking.front()?.seq, ClassId::new(index))))
            .collect();
        wanted.sort_unstable();
        wanted.into_iter().map(|(_, class)| class).collect()
    }

    fn may_open(&self, class: ClassId) -> bool {
        let shelf = &self.shelves[class.index()];
        let free = self.capacity - self.total();
        shelf.may_open() && free > 0 && (shelf.lack() > 0 || free > self.lack())
    }

    /// Places that are reserved, and not taken by whom they are reserved for.
    fn lack(&self) -> u32 {
        self.shelves.iter().map(Shelf::lack).sum()
    }

    fn opening(&mut self, class: ClassId) -> Place {
        self.shelf(class).counts.stages[Stage::Opening as usize] += 1;
        Place {
            stage: Stage::Opening,
            class,
            key: self.known.insert(),
        }
    }

    /// A seeker of a class that may open nothing takes over what another class does not use, or has it
    /// closed.
    fn make_room(&mut self, class: ClassId) -> Option<Step<C>> {
        if let Some(link) = self.take_over(class) {
            return Some(Step::Served(self.hand_to_seeker(class, link)));
        }
        let other = |worn: ClassId| !self.can_dress(class, worn);
        let from = self.least_needed(class, other)?;
        self.would_help_to_close(class)
            .then(|| Step::Close(self.take_to_close(from, 0)))
    }

    /// Whether one more free place would let `class` open a connection, and none is about to come free.
    fn would_help_to_close(&self, class: ClassId) -> bool {
        let shelf = &self.shelves[class.index()];
        let closing = |shelf: &Shelf<C>| shelf.counts.of(Stage::Closing) as usize;
        let unserved = |shelf: &Shelf<C>| {
            if shelf.has_room() {
                shelf.unserved()
            } else {
                0
            }
        };
        let is_short = self.shelves.iter().map(unserved).sum::<usize>()
            > self.shelves.iter().map(closing).sum::<usize>();
        shelf.may_open() && !self.may_open(class) && is_short
    }

    fn filling(&mut self, class: ClassId, min_idle: u32) -> Option<Place> {
        let shelf = &self.shelves[class.index()];
        let ready = shelf.counts.of(Stage::Idle) + shelf.counts.of(Stage::Opening);
        let wanted = shelf.seeking.len() + min_idle as usize > ready as usize;
        (wanted && self.may_open(class)).then(|| self.opening(class))
    }

    #[inline]
    pub(super) fn take_idle(&mut self, hold: HoldId) -> Option<Box<Link<C>>> {
        let class = hold.class();
        let shelf = self.shelf(class);
        let mut link = match shelf.idle.pop() {
            Some(link) => link,
            None if shelf.is_about_to_have_one() => return None,
            None => self.take_over(class)?,
        };
        self.hand_out(&mut link, hold);
        Some(link)
    }

    /// An idle connection of another class, undressed, for a `class` that may not open one (5).
    fn take_over(&mut self, class: ClassId) -> Option<Box<Link<C>>> {
        if self.shelves.len() == 1 || self.may_open(class) {
            return None;
        }
        let from = self.least_needed(class, |worn| self.can_dress(class, worn))?;
        let mut link = self.shelf(from).idle.remove(0);
        self.change_class(&mut link.place, class);
        Some(link)
    }

    /// The class, other than `class`, with the idle connection that nobody has needed for longest; among
    /// those that `suit`, and that may lose one to it (2).
    fn least_needed(&self, class: ClassId, suits: impl Fn(ClassId) -> bool) -> Option<ClassId> {
        let shelves = self.shelves.iter().enumerate();
        let idle = shelves.filter_map(|(index, shelf)| {
            let other = ClassId::new(index);
            let since = shelf.idle.first()?.idle_since;
            (other != class && self.may_move(other, class) && suits(other))
                .then_some((since, other))
        });
        idle.min().map(|(_, other)| other)
    }

    /// Whether a place may count for another class from now on (1, 2).
    fn may_move(&self, from: ClassId, to: ClassId) -> bool {
        let (from, to) = (&self.shelves[from.index()], &self.shelves[to.index()]);
        let spare = self.capacity - self.total() > self.lack();
        to.has_room() && (to.lack() > 0 || from.has_surplus() || spare)
    }

    #[inline]
    fn hand_out(&mut self, link: &mut Link<C>, hold: HoldId) {
        self.shift(&mut link.place, Stage::Used);
        self.known.is_held(link.place.key, hold);
    }

    /// An idle connection, or a place among the seekers.
    pub(super) fn seek(&mut self, hold: HoldId) -> Seek<C> {
        if !self.shelf(hold.class()).open {
            return Seek::Closed;
        }
        if let Some(link) = self.take_idle(hold) {
            return Seek::Idle(link);
        }
        let key = self.seekers.insert(Seeker::Seeking(None, hold));
        let seq = self.next_seq;
        self.next_seq += 1;
        let may_open = self.may_open(hold.class());
        let shelf = self.shelf(hold.class());
        let patient = !may_open && shelf.is_about_to_have_one();
        shelf.seeking.push_back(Seat { key, seq, patient });
        Seek::Seeking { key, patient }
    }

    /// A seeker of `class` has been patient for long enough.
    pub(super) fn lose_patience(&mut self, class: ClassId, key: usize) {
        let mut seats = self.shelf(class).seeking.iter_mut();
        if let Some(seat) = seats.find(|seat| seat.key == key) {
            seat.patient = false;
        }
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
        if let Seeker::Seeking(_, hold) = &seeker {
            let seeking = &mut self.shelf(hold.class()).seeking;
            seeking.retain(|seat| seat.key != key);
        }
        seeker
    }

    /// Takes in a connection that was opened, that came back, or that a seeker did not wait for.
    ///
    /// # Errors
    /// The connection, if it is to be closed: its shelf is closed, it is just being taken away, there is no
    /// room for it where it belongs, or it stands in the way of one that is sought (5).
    pub(super) fn offer(
        &mut self,
        mut link: Box<Link<C>>,
        now: Duration,
    ) -> Result<Option<Waker>, Box<Link<C>>> {
        let came_from = link.place.class;
        let was_returning = link.place.stage == Stage::Returning;
        let home = match self.go_home(&mut link) {
            Some(home) => home,
            // It cannot leave the class that has taken it over, but it may serve there.
            None if self.may_serve(&link) => came_from,
            None => return Err(link),
        };
        let wanted = self.who_wants(home);
        if wanted.is_some_and(|class| !self.can_dress(class, home)) {
            if home != came_from {
                self.change_class(&mut link.place, came_from);
            }
            return Err(link);
        }
        if was_returning {
            self.slot_returned(came_from);
        }
        link.idle_since = now;
        if let Some(class) = wanted {
            if class != home {
                self.change_class(&mut link.place, class);
            }
            return Ok(self.hand_to_seeker(class, link));
        }
        self.shift(&mut link.place, Stage::Idle);
        self.shelf(home).idle.push(link);
        Ok(None)
    }

    /// A connection counts from now on for the class whose dress it wears, if that may be (1, 2).
    fn go_home(&mut self, link: &mut Link<C>) -> Option<ClassId> {
        let (from, home) = (link.place.class, link.dress?);
        if !self.may_be_kept(link) || !self.shelves[home.index()].open {
            return None;
        }
        if from != home {
            if !self.may_move(from, home) {
                return None;
            }
            self.change_class(&mut link.place, home);
        }
        Some(home)
    }

    fn may_be_kept(&self, link: &Link<C>) -> bool {
        self.known.taken(link.place.key).is_none()
    }

    /// Whether the class that has taken a connection over has a seeker for it.
    fn may_serve(&self, link: &Link<C>) -> bool {
        let shelf = &self.shelves[link.place.class.index()];
        link.dress.is_some() && self.may_be_kept(link) && !shelf.seeking.is_empty()
    }

    /// The class of the oldest seeker that a connection on its way to the shelf of `home` serves, or makes
    /// room for.
    fn who_wants(&self, home: ClassId) -> Option<ClassId> {
        if !self.shelves[home.index()].seeking.is_empty() {
            return Some(home);
        }
        if self.shelves.len() == 1 {
            return None;
        }
        let wants = |class: &ClassId| {
            let may_take = !self.may_open(*class) && self.may_move(home, *class);
            may_take && (self.can_dress(*class, home) || self.would_help_to_close(*class))
        };
        self.wanted().into_iter().find(wants)
    }

    fn can_dress(&self, class: ClassId, worn: ClassId) -> bool {
        let wardrobe = |of: ClassId| self.shelves[of.index()].rules.wardrobe;
        wardrobe(class) == wardrobe(worn)
    }

    /// Hands a connection that counts for `class` to the oldest of its seekers.
    fn hand_to_seeker(&mut self, class: ClassId, mut link: Box<Link<C>>) -> Option<Waker> {
        let seat = self.shelf(class).seeking.pop_front();
        let key = seat.expect("bug: nobody seeks").key;
        if let Seeker::Seeking(_, hold) = self.seekers[key] {
            self.hand_out(&mut link, hold);
        }
        self.answer(key, Ok(link))
    }

    /// From now on a failure that can pass is tried again.
    pub(super) fn retry(&mut self) {
        self.retries = true;
    }

    /// What stands in the way of connecting for `class`, if anything does.
    pub(super) fn trouble(&self, class: ClassId) -> Option<Failure> {
        self.shelves[class.index()].trouble.clone()
    }

    /// A connection was opened: the pace of its class quickens.
    pub(super) fn opened(&mut self, place: &Place, leash: Option<Arc<dyn Leash>>) {
        self.known.opened(place.key, leash);
        let shelf = self.shelf(place.class);
        shelf.pace.succeeded(shelf.rules.max);
        shelf.trouble = None;
    }

    /// The prober of `class` has slept.
    pub(super) fn probe(&mut self, class: ClassId) {
        self.shelf(class).pace.probe();
    }

    /// An opening failed. If that can pass, the caller may have to be the prober; if not, and those
    /// that go on cannot serve every seeker of its class, the oldest is told.
    pub(super) fn opening_failed(&mut self, class: ClassId, failure: Failure) -> After {
        let retries = self.retries && failure.is_transient();
        let shelf = self.shelf(class);
        if retries {
            shelf.trouble = Some(failure.clone());
            return match shelf.pace.failed(fastrand::f64()) {
                Some(pause) => After::Probe(pause, failure),
                None => After::Nothing,
            };
        }
        if shelf.unserved() == 0 {
            return After::Untold(failure);
        }
        match shelf.seeking.pop_front() {
            Some(seat) => After::Told(self.answer(seat.key, Err(Trouble::Failed(failure)))),
            None => After::Untold(failure),
        }
    }

    fn answer(&mut self, key: usize, found: Found<C>) -> Option<Waker> {
        match std::mem::replace(&mut self.seekers[key], Seeker::Answered(found)) {
            Seeker::Seeking(waker, _) => waker,
            Seeker::Answered(_) => unreachable!("bug: a seeker was answered twice"),
        }
    }

    /// Takes out one idle connection of `class` that has expired or is lost, or that nobody has needed for
    /// `idle_timeout` and that is not among the `min_idle` to be kept.
    pub(super) fn take_stale(
        &mut self,
        class: ClassId,
        now: Duration,
        idle_timeout: Option<Duration>,
        min_idle: u32,
        is_lost: impl Fn(&C) -> bool,
    ) -> Option<Box<Link<C>>> {
        let shelf = self.shelf(class);
        let spare = shelf.counts.of(Stage::Idle) > min_idle;
        let stale = |link: &Link<C>| {
            let unneeded = idle_timeout.is_some_and(|limit| now >= link.idle_since + limit);
            (spare && unneeded) || link.has_expired(now) || is_lost(&link.client)
        };
        let at = shelf.idle.iter().position(|link| stale(link))?;
        Some(self.take_to_close(class, at))
    }

    /// Takes out the idle connection of `class` that nobody has needed for longest, to ask it whether it lives.
    pub(super) fn take_to_check(&mut self, class: ClassId) -> Option<Box<Link<C>>> {
        let idle = &mut self.shelf(class).idle;
        let mut link = (!idle.is_empty()).then(|| idle.remove(0))?;
        self.shift(&mut link.place, Stage::Checking);
        Some(link)
    }

    /// Takes back a connection that was checked: it has been idle for as long as before.
    ///
    /// # Errors
    /// As [`offer`](Self::offer).
    pub(super) fn checked(&mut self, link: Box<Link<C>>) -> Result<Option<Waker>, Box<Link<C>>> {
        let (class, since) = (link.place.class, link.idle_since);
        let before = self.shelf(class).idle.len();
        let waker = self.offer(link, since)?;
        let idle = &mut self.shelf(class).idle;
        if idle.len() > before {
            idle.rotate_right(1);
        }
        Ok(waker)
    }

    /// When the idle connection of `class` that was the last to be used came back, of those that `live`.
    pub(super) fn last_used(&self, class: ClassId, live: impl Fn(&C) -> bool) -> Option<Duration> {
        let idle = self.shelves[class.index()].idle.iter();
        let living = idle.filter(|link| live(&link.client));
        living.map(|link| link.idle_since).max()
    }

    /// Whether a connection of `class` is being opened.
    pub(super) fn is_opening(&self, class: ClassId) -> bool {
        self.counts(class).of(Stage::Opening) > 0
    }

    /// Keeps nothing of `class` from now on, and tells each of its seekers.
    pub(super) fn close(&mut self, class: ClassId) -> Vec<Waker> {
        let shelf = self.shelf(class);
        shelf.open = false;
        let seeking = std::mem::take(&mut shelf.seeking);
        let answer = |seat: Seat| self.answer(seat.key, Err(Trouble::Closed));
        seeking.into_iter().filter_map(answer).collect()
    }

    /// Takes out an idle connection of `class`, to be closed.
    pub(super) fn take_last(&mut self, class: ClassId) -> Option<Box<Link<C>>> {
        let at = self.shelf(class).idle.len().checked_sub(1)?;
        Some(self.take_to_close(class, at))
    }

    fn take_to_close(&mut self, class: ClassId, at: usize) -> Box<Link<C>> {
        let mut link = self.shelf(class).idle.remove(at);
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
    fn returning(&self, class: ClassId) -> u32 {
        self.counts(class).of(Stage::Returning)
    }
}
