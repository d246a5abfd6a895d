//! The ledger of one budget.
//!
//! A budget has a capacity C and classes c with `reserved[c]`, `max[c]` and a queue bound `q[c]`;
//! `used[c]` counts held slots, `free = C - sum(used)`, `lack[c] = max(0, reserved[c] - used[c])`.
//!
//! ```text
//! admit(c):  used[c] < max[c]  and  free > 0
//!            and ( used[c] < reserved[c]  or  free > sum over j != c of lack[j] )
//! ```
//!
//! Invariants, upheld here and checked after every step by `tests/it/ledger.rs`:
//!
//! 1. `sum(used) <= C`.
//! 2. `used[c] <= max[c]`.
//! 3. `free >= sum(lack)`: what is reserved is never lent. It is what makes the rule sound.
//! 4. A class below its reservation is refused only behind its own waiters.
//! 5. No admissible waiter is left waiting.
//! 6. `waiting[c] <= q[c]`, or, with [`Ledger::admit_for`], the number of slots that are known to
//!    be on their way back; checking and counting are one step.
//! 7. First in, first out inside a class: nobody overtakes.
//! 8. Nothing leaks: every granted hold is released once, every waiter leaves or is granted once.

mod outlook;

use std::time::Duration;

use crate::status::{CallSite, Holder, OldestHolds};

use super::estimate::HoldEstimate;
use super::holds::{Holds, State};
use super::queue::Queue;
use super::rules::{ClassId, ClassRules, HandOver, InvalidRules, Rules};
use super::totals::{Account, Totals};

/// The right to hold one slot. Only [`Ledger`] makes it, and it ends by [`Ledger::release`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{Admission, ClassId, Ledger, Patience, Rules};
///
/// let mut ledger = Ledger::new(Rules::fixed(1, 0))?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// let Admission::Granted(hold) = ledger.admit(only, Duration::ZERO, second, || "first") else { panic!() };
/// assert_eq!((hold.class(), hold.since()), (only, Duration::ZERO));
/// assert!(ledger.release(hold, Duration::from_millis(40)).is_none(), "nobody waits");
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[must_use = "a hold that is not released is a slot lost for ever"]
#[derive(Debug, PartialEq, Eq)]
pub struct Hold {
    id: HoldId,
    since: Duration,
}

/// Names one hold, among all that there ever were.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{Admission, ClassId, Ledger, Patience, Rules};
///
/// let mut ledger = Ledger::new(Rules::fixed(1, 0))?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// let Admission::Granted(hold) = ledger.admit(only, Duration::ZERO, second, || "first") else { panic!() };
/// let id = hold.id();
/// assert_eq!(id.class(), only);
/// # ledger.release(hold, Duration::ZERO);
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldId {
    class: ClassId,
    key: usize,
    seq: u64,
}

impl Hold {
    /// The class that holds the slot.
    #[must_use]
    #[inline]
    pub const fn class(&self) -> ClassId {
        self.id.class
    }

    /// Its name.
    #[must_use]
    #[inline]
    pub const fn id(&self) -> HoldId {
        self.id
    }

    /// When the slot was granted.
    #[must_use]
    #[inline]
    pub const fn since(&self) -> Duration {
        self.since
    }
}

impl HoldId {
    /// The class that holds, or held, the slot.
    #[must_use]
    #[inline]
    pub const fn class(&self) -> ClassId {
        self.class
    }

    /// Whether this slot was granted after that one, of the same class.
    #[must_use]
    pub const fn is_later(&self, than: Self) -> bool {
        self.seq > than.seq
    }
}

/// A place in a queue. It ends when a [`Grant`] names its waiter, or by [`Ledger::leave`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{Admission, ClassId, Ledger, Patience, Rules};
///
/// let mut ledger = Ledger::new(Rules::fixed(1, 1))?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// let Admission::Granted(hold) = ledger.admit(only, Duration::ZERO, second, || "first") else { panic!() };
/// let Admission::Queued(ticket) = ledger.admit(only, Duration::ZERO, second, || "second") else { panic!() };
/// ledger.leave(ticket, Duration::from_millis(5));
/// assert!(ledger.release(hold, Duration::from_millis(40)).is_none(), "it has left");
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[must_use = "a waiter that goes away must leave the queue"]
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    class: ClassId,
    key: usize,
    seq: u64,
}

/// How long a caller can wait.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::Patience;
///
/// let second = Duration::from_secs(1);
/// assert_eq!(Patience::wait(second), Patience { wait: second, work: None });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// What is left for the wait alone (an acquire timeout).
    pub wait: Duration,
    /// What is left for the wait and the work together (a caller's deadline), if there is one.
    pub work: Option<Duration>,
}

impl Patience {
    /// Waits at most `wait`, whatever the work takes.
    #[must_use]
    #[inline]
    pub const fn wait(wait: Duration) -> Self {
        Self { wait, work: None }
    }
}

/// The answer to [`Ledger::admit`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{Admission, ClassId, Ledger, Patience, Rules};
///
/// let mut ledger = Ledger::new(Rules::fixed(1, 0))?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// let Admission::Granted(hold) = ledger.admit(only, Duration::ZERO, second, || "first") else { panic!() };
/// let another = ledger.admit(only, Duration::ZERO, second, || "second");
/// assert!(matches!(another, Admission::Refused(_)), "no queue");
/// # ledger.release(hold, Duration::ZERO);
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Admission {
    /// A slot, at once.
    Granted(Hold),
    /// A place in the queue.
    Queued(Ticket),
    /// No.
    Refused(Refusal),
}

/// Why a call was refused, and when to come back.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{Admission, ClassId, Ledger, Patience, Rules};
///
/// let mut ledger = Ledger::new(Rules::fixed(1, 0))?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// let Admission::Granted(hold) = ledger.admit(only, Duration::ZERO, second, || "first") else { panic!() };
/// let Admission::Refused(refusal) = ledger.admit(only, Duration::ZERO, second, || "second") else { panic!() };
/// assert_eq!(refusal.retry_after, None, "nothing has ended yet");
/// # ledger.release(hold, Duration::ZERO);
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub cause: Cause,
    /// The expected time until everyone who waits now, and one more, has had a slot, and at least
    /// until the oldest hold has ended; `None` before enough holds have ended to tell.
    pub retry_after: Option<Duration>,
}

/// Why a call was refused.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{Admission, Cause, ClassId, Ledger, Patience, Rules};
///
/// let mut ledger = Ledger::new(Rules::fixed(1, 0))?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// let Admission::Granted(hold) = ledger.admit(only, Duration::ZERO, second, || "first") else { panic!() };
/// let Admission::Refused(refusal) = ledger.admit(only, Duration::ZERO, second, || "second") else { panic!() };
/// assert_eq!(refusal.cause, Cause::QueueFull);
/// # ledger.release(hold, Duration::ZERO);
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// No slot is free and the queue is at its bound.
    QueueFull,
    /// The wait (and the work, where the caller stated a deadline for both) would outlast the caller.
    DeadlineTooShort {
        /// The expected wait.
        expected_wait: Duration,
        /// The expected hold that follows it.
        expected_hold: Duration,
        /// What the caller had left: for the wait alone, or for both.
        left: Duration,
    },
}

/// A slot that a waiter was given.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{Admission, ClassId, Ledger, Patience, Rules};
///
/// let mut ledger = Ledger::new(Rules::fixed(1, 1))?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// let Admission::Granted(hold) = ledger.admit(only, Duration::ZERO, second, || "first") else { panic!() };
/// let Admission::Queued(_) = ledger.admit(only, Duration::ZERO, second, || "second") else { panic!() };
/// let grant = ledger.release(hold, Duration::from_millis(40)).unwrap();
/// assert_eq!((grant.waiter, grant.hold.since()), ("second", Duration::from_millis(40)));
/// # ledger.release(grant.hold, Duration::from_millis(80));
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a grant that nobody takes must be released"]
pub struct Grant<W> {
    /// The waiter, as it was given to [`Ledger::admit`].
    pub waiter: W,
    /// Its slot.
    pub hold: Hold,
}

/// What a class looks like now.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{Admission, ClassId, Ledger, Patience, Rules};
///
/// let mut ledger = Ledger::new(Rules::fixed(1, 1))?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// let Admission::Granted(hold) = ledger.admit(only, Duration::ZERO, second, || "first") else { panic!() };
/// let figures = ledger.figures(only, Duration::from_millis(40));
/// assert_eq!((figures.used, figures.waiting), (1, 0));
/// # ledger.release(hold, Duration::from_millis(40));
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Slots held, the detached ones included.
    pub used: u32,
    /// Of those, the slots that were [detached](Ledger::detach).
    pub detached: u32,
    /// Callers waiting.
    pub waiting: u32,
    /// The oldest holds.
    pub oldest_holds: OldestHolds,
    /// Expected length of a hold, once there is evidence.
    pub expected_hold: Option<Duration>,
    /// Expected wait of a caller that would queue now, once there is evidence.
    pub expected_wait: Option<Duration>,
    /// When a caller that is refused now should come back, as in [`Refusal::retry_after`].
    pub retry_after: Option<Duration>,
}

#[derive(Debug)]
struct Class<W> {
    rules: ClassRules,
    used: u32,
    /// Of those used, the slots that were detached.
    detached: u32,
    holds: Holds,
    queue: Queue<W>,
    estimate: HoldEstimate,
    account: Account,
}

impl<W> Class<W> {
    fn new(rules: ClassRules) -> Self {
        Self {
            rules,
            used: 0,
            detached: 0,
            holds: Holds::with_capacity(rules.max),
            queue: Queue::new(),
            estimate: HoldEstimate::default(),
            account: Account::default(),
        }
    }

    fn leave_all(&mut self, now: Duration) -> impl Iterator<Item = W> {
        std::iter::from_fn(move || {
            let (waiter, _) = self.queue.pop(now)?;
            self.account.leave();
            Some(waiter)
        })
    }

    fn lack(&self) -> u32 {
        self.rules.reserved.saturating_sub(self.used)
    }

    fn waiting(&self) -> u32 {
        u32::try_from(self.queue.len()).expect("bug: a queue bound is a u32")
    }

    fn expected_hold(&self, now: Duration) -> Option<Duration> {
        self.estimate.expected(self.holds.mean_age(now), now)
    }
}

/// The admission ledger of one budget: pure, synchronous, without a clock.
///
/// `W` is whatever the caller uses to find a waiter again when it is granted a slot.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{Admission, ClassId, Ledger, Patience, Rules};
///
/// let mut ledger = Ledger::new(Rules::fixed(1, 1))?;
/// let checkout = ClassId::new(0);
/// let second = Patience::wait(Duration::from_secs(1));
///
/// let Admission::Granted(hold) = ledger.admit(checkout, Duration::ZERO, second, || "first") else {
///     panic!("the slot is free");
/// };
/// let Admission::Queued(_) = ledger.admit(checkout, Duration::ZERO, second, || "second") else {
///     panic!("the queue is empty");
/// };
/// let grant = ledger.release(hold, Duration::from_millis(40)).expect("somebody waits");
/// assert_eq!(grant.waiter, "second");
/// # ledger.release(grant.hold, Duration::from_millis(80));
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[derive(Debug)]
pub struct Ledger<W> {
    capacity: u32,
    hand_over: HandOver,
    classes: Vec<Class<W>>,
    used: u32,
    /// Sum of `lack` over all classes.
    lack: u32,
    next_seq: u64,
}

impl<W> Ledger<W> {
    /// An empty ledger.
    ///
    /// # Errors
    /// Rules that cannot be kept: see [`InvalidRules`].
    pub fn new(rules: Rules) -> Result<Self, InvalidRules> {
        rules.check()?;
        Ok(Self {
            capacity: rules.capacity,
            hand_over: rules.hand_over,
            lack: rules.classes.iter().map(|c| c.reserved).sum(),
            classes: rules.classes.into_iter().map(Class::new).collect(),
            used: 0,
            next_seq: 0,
        })
    }

    /// Asks for a slot for `class`.
    ///
    /// A slot is granted at once only if nobody of the same class waits (7). If the call must wait,
    /// `waiter` is called for what the later [`Grant`] will carry. Costs the same with an empty queue
    /// and with a full one.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    #[inline]
    #[track_caller]
    pub fn admit(
        &mut self,
        class: ClassId,
        now: Duration,
        patience: Patience,
        waiter: impl FnOnce() -> W,
    ) -> Admission {
        self.admit_for(CallSite::here(), class, now, patience, 0, waiter)
    }

    /// As [`admit`](Self::admit), for a caller elsewhere, when `returning` of the slots that `class`
    /// holds are about to be released: callers for whom such a slot is there wait for it, whatever
    /// the bound of the queue and however long a hold lasts. It is as good as free, and to refuse
    /// them would be untrue. (Not so for slots that the class has borrowed: they may go to another.)
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use partitioned_pool::CallSite;
    /// use partitioned_pool::admission::{Admission, ClassId, Ledger, Patience, Rules};
    ///
    /// let mut ledger = Ledger::new(Rules::fixed(1, 0))?;
    /// let (here, reports, now) = (CallSite::here(), ClassId::new(0), Duration::ZERO);
    /// let patience = Patience::wait(Duration::from_secs(1));
    /// let Admission::Granted(_held) = ledger.admit(reports, now, patience, || "first") else {
    ///     panic!("the slot is free");
    /// };
    /// let mut ask = |returning| ledger.admit_for(here, reports, now, patience, returning, || "next");
    /// assert!(matches!(ask(0), Admission::Refused(_)));
    /// assert!(matches!(ask(1), Admission::Queued(_)));
    /// assert!(matches!(ask(1), Admission::Refused(_)), "the slot on its way is spoken for");
    /// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
    /// ```
    #[inline]
    pub fn admit_for(
        &mut self,
        by: CallSite,
        class: ClassId,
        now: Duration,
        patience: Patience,
        returning: u32,
        waiter: impl FnOnce() -> W,
    ) -> Admission {
        if let Some(hold) = self.try_admit_for(by, class, now) {
            return Admission::Granted(hold);
        }
        let is_coming = self.classes[class.0].waiting() < returning;
        if is_coming && self.keeps_what_it_gives_back(class) {
            return Admission::Queued(self.enqueue(class, by, now, waiter()));
        }
        match self.may_queue(class, now, patience) {
            Ok(()) => Admission::Queued(self.enqueue(class, by, now, waiter())),
            Err(refusal) => {
                self.classes[class.0].account.refuse(&refusal.cause);
                Admission::Refused(refusal)
            }
        }
    }

    /// A slot for `class` if one can be had now; never waits and overtakes nobody.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    #[inline]
    #[track_caller]
    pub fn try_admit(&mut self, class: ClassId, now: Duration) -> Option<Hold> {
        self.try_admit_for(CallSite::here(), class, now)
    }

    /// As [`try_admit`](Self::try_admit), for a caller elsewhere.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    #[inline]
    pub fn try_admit_for(&mut self, by: CallSite, class: ClassId, now: Duration) -> Option<Hold> {
        let free = self.classes[class.0].queue.is_empty() && self.admissible(class);
        free.then(|| self.grant(class, by, now))
    }

    /// Counts a caller to whom [`try_admit`](Self::try_admit) gave nothing, and who would have used a slot.
    /// (Whoever only looks whether there is one is no call that was refused.)
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    pub fn turn_away(&mut self, class: ClassId) {
        self.classes[class.0].account.turn_away();
    }

    /// Gives a slot back. If that lets a waiter in, it is granted the slot in the same step (5).
    ///
    /// # Panics
    /// May panic if `hold` is of another ledger.
    #[inline]
    pub fn release(&mut self, hold: Hold, now: Duration) -> Option<Grant<W>> {
        if self.take_back(&hold) {
            let class = &mut self.classes[hold.id.class.0];
            let length = now.saturating_sub(hold.since);
            class.estimate.record(length, now);
            class.account.end(length);
        }
        self.hand_over(now)
    }

    /// Gives a slot back that nobody has used: its waiter had left when it was granted. As
    /// [`release`](Self::release), but it says nothing of how long a hold lasts.
    ///
    /// # Panics
    /// May panic if `hold` is of another ledger.
    #[inline]
    pub fn pass_on(&mut self, hold: Hold, now: Duration) -> Option<Grant<W>> {
        if self.take_back(&hold) {
            let account = &mut self.classes[hold.id.class.0].account;
            account.cross(now.saturating_sub(hold.since));
        }
        self.hand_over(now)
    }

    /// Takes a slot away from whoever holds it; to release it later changes nothing. If that lets a
    /// waiter in, it is granted the slot in the same step. `None` also if the hold has ended.
    pub fn revoke(&mut self, id: HoldId, now: Duration) -> Option<Grant<W>> {
        let holds = &mut self.classes[id.class.0].holds;
        let since = holds.leave(id.key, id.seq, State::Revoked)?;
        self.one_less(id.class);
        let class = &mut self.classes[id.class.0];
        let length = now.saturating_sub(since);
        class.estimate.record(length, now);
        class.account.take_away(length);
        self.hand_over(now)
    }

    /// Counts a hold no more as one: its slot stays taken until it is released, but nobody is expected to give it back,
    /// and it says nothing of how long a hold lasts. `false` if the hold has ended.
    pub fn detach(&mut self, id: HoldId, now: Duration) -> bool {
        let class = &mut self.classes[id.class.0];
        let Some(since) = class.holds.leave(id.key, id.seq, State::Detached) else {
            return false;
        };
        class.detached += 1;
        class.account.take_away(now.saturating_sub(since));
        true
    }

    /// Who holds a slot of `class`, oldest first.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    pub fn holders(&self, class: ClassId, now: Duration) -> impl Iterator<Item = (HoldId, Holder)> {
        let holds = self.classes[class.0].holds.iter(now);
        holds.map(move |(key, seq, holder)| (HoldId { class, key, seq }, holder))
    }

    #[inline]
    fn hand_over(&mut self, now: Duration) -> Option<Grant<W>> {
        let class = self.next_class()?;
        let (waiter, by) = self.classes[class.0].queue.pop(now)?;
        let hold = self.grant(class, by, now);
        debug_assert!(self.next_class().is_none(), "bug: one slot, two admissible");
        Some(Grant { waiter, hold })
    }

    /// Takes a waiter out of its queue. `None` if it was granted a slot before: then the grant must
    /// be [passed on](Self::pass_on).
    ///
    /// # Panics
    /// May panic if `ticket` is of another ledger.
    pub fn leave(&mut self, ticket: Ticket, now: Duration) -> Option<W> {
        let class = &mut self.classes[ticket.class.0];
        let waiter = class.queue.remove(ticket.key, ticket.seq, now)?;
        class.account.leave();
        Some(waiter)
    }

    /// Takes every waiter out, oldest first inside a class.
    pub fn leave_all(&mut self, now: Duration) -> Vec<W> {
        let classes = self.classes.iter_mut();
        classes.flat_map(|class| class.leave_all(now)).collect()
    }

    /// What `class` looks like now.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    #[must_use]
    pub fn figures(&self, class: ClassId, now: Duration) -> Figures {
        let c = &self.classes[class.0];
        Figures {
            used: c.used,
            detached: c.detached,
            waiting: c.waiting(),
            oldest_holds: c.holds.oldest_few(now),
            expected_hold: c.expected_hold(now),
            expected_wait: self.expected_wait(class, now),
            retry_after: self.retry_after(class, now),
        }
    }

    /// What `class` has been through until `now`.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use partitioned_pool::admission::{ClassId, Ledger, Rules};
    ///
    /// let mut ledger = Ledger::<()>::new(Rules::fixed(2, 0))?;
    /// let (class, ms) = (ClassId::new(0), Duration::from_millis(1));
    /// let first = ledger.try_admit(class, 10 * ms).expect("a slot is free");
    /// let _second = ledger.try_admit(class, 30 * ms).expect("a slot is free");
    /// ledger.release(first, 50 * ms);
    ///
    /// let totals = ledger.totals(class, 60 * ms);
    /// assert_eq!((totals.granted, totals.ended, totals.most_used), (2, 1, 2));
    /// assert_eq!((totals.ended_time, totals.held_time), (40 * ms, 70 * ms));
    /// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
    /// ```
    #[must_use]
    pub fn totals(&self, class: ClassId, now: Duration) -> Totals {
        let class = &self.classes[class.0];
        class.account.totals(&class.holds, &class.queue, now)
    }

    /// From now on, [`Totals::most_used`] and [`Totals::most_waiting`] of `class` are those of a new time.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    pub fn restart_peaks(&mut self, class: ClassId) {
        let class = &mut self.classes[class.0];
        class.account.restart_peak(class.used - class.detached);
        class.queue.restart_peak();
    }

    /// Slots held by all classes together, the detached ones included.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Slots of all classes that were [detached](Self::detach).
    #[must_use]
    pub fn detached(&self) -> u32 {
        self.classes.iter().map(|class| class.detached).sum()
    }

    /// Slots of the budget.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The rule at the top of this file, for `class`, whoever may be waiting.
    #[must_use]
    pub fn admissible(&self, class: ClassId) -> bool {
        let c = &self.classes[class.0];
        let free = self.capacity - self.used;
        c.used < c.rules.max && free > 0 && (c.used < c.rules.reserved || free > self.lack)
    }

    fn may_queue(&self, class: ClassId, now: Duration, patience: Patience) -> Result<(), Refusal> {
        let c = &self.classes[class.0];
        let full = c.waiting() >= c.rules.queue;
        let checked = if full {
            Err(Cause::QueueFull)
        } else {
            self.check_patience(class, patience, now)
        };
        checked.map_err(|cause| Refusal {
            cause,
            retry_after: self.retry_after(class, now),
        })
    }

    fn enqueue(&mut self, class: ClassId, by: CallSite, now: Duration, waiter: W) -> Ticket {
        let seq = self.next_seq;
        self.next_seq += 1;
        let key = self.classes[class.0].queue.push(waiter, by, seq, now);
        Ticket { class, key, seq }
    }

    #[inline]
    fn grant(&mut self, class: ClassId, by: CallSite, now: Duration) -> Hold {
        let c = &mut self.classes[class.0];
        let before = c.lack();
        c.used += 1;
        self.used += 1;
        self.lack -= before - c.lack();
        let (key, seq) = c.holds.begin(now, by);
        c.estimate.begin(now);
        c.account.begin(c.used - c.detached);
        Hold {
            id: HoldId { class, key, seq },
            since: now,
        }
    }

    #[inline]
    fn take_back(&mut self, hold: &Hold) -> bool {
        let class = &mut self.classes[hold.id.class.0];
        let was = class.holds.end(hold.id.key);
        if was == State::Detached {
            class.detached -= 1;
        }
        if was != State::Revoked {
            self.one_less(hold.id.class);
        }
        was == State::Held
    }

    #[inline]
    fn one_less(&mut self, class: ClassId) {
        let c = &mut self.classes[class.0];
        let before = c.lack();
        c.used -= 1;
        debug_assert_eq!(c.holds.len(), (c.used - c.detached) as usize);
        self.used -= 1;
        self.lack += c.lack() - before;
    }

    /// The class whose head is to have the next free slot.
    #[inline]
    fn next_class(&self) -> Option<ClassId> {
        let mut ready = (0..self.classes.len())
            .map(ClassId)
            .filter(|c| !self.classes[c.0].queue.is_empty() && self.admissible(*c));
        match self.hand_over {
            HandOver::OldestFirst => ready.min_by_key(|c| self.classes[c.0].queue.head_seq()),
            HandOver::DeclaredOrder => ready.next(),
        }
    }
}
