//! The connections of a budget: the idle ones, the count of all, and who waits for one.
//!
//! The store lives under the lock of its bulkhead. It opens and closes nothing; it says what may be.
//! It wakes nobody, and drops neither connections nor wakers: whoever they belong to may call back.
//!
//! Each partition of the budget is a class, with a shelf of its own.
//!
//! 1. `opening + idle + used + returning + closing + ghosts <= capacity`, always, and for each class
//!    `<= max`: a [`Place`] is made before a connection is opened and ends when its backend is known
//!    gone.
//! 2. A caller with a slot and without a connection is a seeker. While a class has more seekers than
//!    openings and a place is free, an opening is due.
//! 3. A connection that comes free goes to the seeker of its class that has waited longest, else to the
//!    idle stack. The stack is last in, first out, so that what nobody needs grows old at its bottom.
//! 4. Only when no place is free is an idle connection of another class taken over, the one that nobody
//!    has needed for longest: in a steady mix each class keeps its own. The taker dresses it (session
//!    limits) before use. Where it cannot, since role or database differ, the connection is closed
//!    to make room. Whoever has one of its own on the way back is first patient for a moment.
//! 5. An idle connection lies on the shelf of the class whose dress it wears.
//! 6. A closed store keeps nothing.
//! 7. After a failure that can pass, nobody opens but one prober, and then slowly more (`pace.rs`).

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

use super::pace::Pace;

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
    open: bool,
    shelves: Vec<Shelf<C>>,
    pace: Pace,
    /// Whether a failure that can pass is tried again, rather than told.
    patient: bool,
    /// What the last failed opening reported, while the pace is not free.
    trouble: Option<Failure>,
    known: Registry,
    seekers: Slab<Seeker<C>>,
    next_seq: u64,
}

impl<C> Store<C> {
    pub(super) fn new(capacity: u32, classes: impl IntoIterator<Item = ClassOfStore>) -> Self {
        Self {
            capacity,
            open: true,
            shelves: classes.into_iter().map(Shelf::new).collect(),
            pace: Pace::Free,
            patient: false,
            trouble: None,
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

    /// Gives up a place: its backend is known gone, or was never there.
    pub(super) fn gone(&mut self, place: Place) {
        if self.known.remove(place.key) {
            self.shelf(place.class).counts.stages[place.stage as usize] -= 1;
        }
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

    /// What is due: for the seeker that has waited longest, of whatever class (2, 4); or, if nobody
    /// seeks in vain, to keep `min_idle` connections of `class` ready.
    pub(super) fn next_step(&mut self, class: ClassId, min_idle: u32) -> Option<Step<C>> {
        if !self.open {
            return None;
        }
        let wanted = self.wanted();
        match wanted.first() {
            Some(oldest) if self.total() < self.capacity => self.opening(*oldest).map(Step::Open),
            Some(_) => wanted.into_iter().find_map(|class| self.make_room(class)),
            None => self.filling(class, min_idle).map(Step::Open),
        }
    }

    /// The classes of seekers for whom nothing is being opened, and something may be; the oldest first.
    fn wanted(&self) -> Vec<ClassId> {
        let shelves = self.shelves.iter().enumerate();
        let wanted = shelves.filter(|(_, shelf)| shelf.unserved() > 0 && shelf.has_room());
        let mut wanted: Vec<_> = wanted
            .filter_map(|(index, shelf)| Some((shelf.seeking.front()?.seq, ClassId::new(index))))
            .collect();
        wanted.sort_unstable();
        wanted.into_iter().map(|(_, class)| class).collect()
    }

    fn opening(&mut self, class: ClassId) -> Option<Place> {
        let opening = |shelf: &Shelf<C>| shelf.counts.of(Stage::Opening);
        if !self.pace.allows(self.shelves.iter().map(opening).sum()) {
            return None;
        }
        self.shelf(class).counts.stages[Stage::Opening as usize] += 1;
        Some(Place {
            stage: Stage::Opening,
            class,
            key: self.known.insert(),
        })
    }

    /// No place is free: a seeker of `class` takes over what another class does not use, or has it closed.
    fn make_room(&mut self, class: ClassId) -> Option<Step<C>> {
        if let Some(link) = self.take_over(class) {
            return Some(Step::Served(self.hand_to_seeker(class, link)));
        }
        let other = |shelf: &Shelf<C>, own: &Shelf<C>| shelf.rules.wardrobe != own.rules.wardrobe;
        let from = self
            .least_needed(class, other)
            .filter(|_| self.room_is_short())?;
        Some(Step::Close(self.take_to_close(from, 0)))
    }

    /// Whether more seekers are without prospect than places are about to come free.
    fn room_is_short(&self) -> bool {
        let closing = |shelf: &Shelf<C>| shelf.counts.of(Stage::Closing) as usize;
        let closing: usize = self.shelves.iter().map(closing).sum();
        self.shelves.iter().map(Shelf::unserved).sum::<usize>() > closing
    }

    fn filling(&mut self, class: ClassId, min_idle: u32) -> Option<Place> {
        let shelf = &self.shelves[class.index()];
        let ready = shelf.counts.of(Stage::Idle) + shelf.counts.of(Stage::Opening);
        let wanted = shelf.seeking.len() + min_idle as usize > ready as usize;
        if !wanted || !shelf.has_room() || self.total() >= self.capacity {
            return None;
        }
        self.opening(class)
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

    /// An idle connection of another class, undressed, for `class`; only when no place is free (4).
    fn take_over(&mut self, class: ClassId) -> Option<Box<Link<C>>> {
        if self.shelves.len() == 1 || self.total() < self.capacity {
            return None;
        }
        let same = |shelf: &Shelf<C>, own: &Shelf<C>| shelf.rules.wardrobe == own.rules.wardrobe;
        let from = self.least_needed(class, same)?;
        let mut link = self.shelf(from).idle.remove(0);
        self.change_class(&mut link.place, class);
        Some(link)
    }

    /// The class, other than `class`, with the idle connection that nobody has needed for longest, among
    /// those that compare with it as asked for.
    fn least_needed(
        &self,
        class: ClassId,
        compares: impl Fn(&Shelf<C>, &Shelf<C>) -> bool,
    ) -> Option<ClassId> {
        let own = &self.shelves[class.index()];
        if !own.has_room() {
            return None;
        }
        let shelves = self.shelves.iter().enumerate();
        let others =
            shelves.filter(|(index, shelf)| *index != class.index() && compares(shelf, own));
        let oldest =
            others.filter_map(|(index, shelf)| Some((shelf.idle.first()?.idle_since, index)));
        oldest.min().map(|(_, index)| ClassId::new(index))
    }

    #[inline]
    fn hand_out(&mut self, link: &mut Link<C>, hold: HoldId) {
        self.shift(&mut link.place, Stage::Used);
        self.known.is_held(link.place.key, hold);
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
        let seq = self.next_seq;
        self.next_seq += 1;
        let is_full = self.total() >= self.capacity;
        let shelf = self.shelf(hold.class());
        let patient = is_full && shelf.is_about_to_have_one();
        shelf.seeking.push_back(Seat { key, seq, patient });
        Seek::Seeking { key, patient }
    }

    /// A seeker has been patient for long enough.
    pub(super) fn lose_patience(&mut self, key: usize) {
        let seats = self.shelves.iter_mut().flat_map(|shelf| &mut shelf.seeking);
        for seat in seats.filter(|seat| seat.key == key) {
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
    /// The connection, if it is to be closed: the store is closed, it is just being taken away, or it
    /// stands in the way of one that is sought (4).
    pub(super) fn offer(
        &mut self,
        mut link: Box<Link<C>>,
        now: Duration,
    ) -> Result<Option<Waker>, Box<Link<C>>> {
        let Some(home) = self.home(&link) else {
            return Err(link);
        };
        let wanted = self.who_wants(home);
        if wanted.is_some_and(|class| !self.can_dress(class, home)) {
            return Err(link);
        }
        if link.place.stage == Stage::Returning {
            self.slot_returned(link.place.class);
        }
        link.idle_since = now;
        let class = wanted.unwrap_or(home);
        if class != link.place.class {
            self.change_class(&mut link.place, class);
        }
        if wanted.is_some() {
            return Ok(self.hand_to_seeker(class, link));
        }
        self.shift(&mut link.place, Stage::Idle);
        self.shelf(home).idle.push(link);
        Ok(None)
    }

    /// The class whose dress a connection wears, if it can be kept at all.
    fn home(&self, link: &Link<C>) -> Option<ClassId> {
        if !self.open || self.known.taken(link.place.key).is_some() {
            return None;
        }
        let home = link.dress?;
        let is_there = link.place.class == home;
        (is_there || self.shelves[home.index()].has_room()).then_some(home)
    }

    /// The class of the oldest seeker that a connection on its way to the shelf of `home` serves, or makes
    /// room for.
    fn who_wants(&self, home: ClassId) -> Option<ClassId> {
        if !self.shelves[home.index()].seeking.is_empty() {
            return Some(home);
        }
        if self.shelves.len() == 1 || self.total() < self.capacity {
            return None;
        }
        let short = self.room_is_short();
        let serves = |class: &ClassId| self.can_dress(*class, home) || short;
        self.wanted().into_iter().find(serves)
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
    pub(super) fn be_patient(&mut self) {
        self.patient = true;
    }

    /// What stands in the way of connecting, if anything does.
    pub(super) fn trouble(&self) -> Option<Failure> {
        self.trouble.clone()
    }

    /// A connection was opened: the pace quickens.
    pub(super) fn opened(&mut self, place: &Place, leash: Option<Arc<dyn Leash>>) {
        self.known.opened(place.key, leash);
        self.pace.succeeded(self.capacity);
        self.trouble = None;
    }

    /// The prober has slept.
    pub(super) fn probe(&mut self) {
        self.pace.probe();
    }

    /// An opening failed. If that can pass, the caller may have to be the prober; if not, and those
    /// that go on cannot serve every seeker of its class, the oldest is told.
    pub(super) fn opening_failed(&mut self, class: ClassId, failure: Failure) -> After {
        if self.patient && failure.is_transient() {
            self.trouble = Some(failure.clone());
            return match self.pace.failed(fastrand::f64()) {
                Some(pause) => After::Probe(pause, failure),
                None => After::Nothing,
            };
        }
        if self.shelf(class).unserved() == 0 {
            return After::Untold(failure);
        }
        match self.shelf(class).seeking.pop_front() {
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

    /// Keeps nothing from now on, and tells every seeker.
    pub(super) fn close(&mut self) -> Vec<Waker> {
        self.open = false;
        let seeking = |shelf: &mut Shelf<C>| std::mem::take(&mut shelf.seeking);
        let seeking: Vec<_> = self.shelves.iter_mut().flat_map(seeking).collect();
        let answer = |seat: Seat| self.answer(seat.key, Err(Trouble::Closed));
        seeking.into_iter().filter_map(answer).collect()
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
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
