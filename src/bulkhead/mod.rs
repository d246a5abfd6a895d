//! Waiting for a slot: an admission ledger under one lock, and the callers that wait.
//!
//! A [`Bulkhead`] hands out [`Permit`]s. It needs no runtime and sets no timer: whoever waits puts the
//! limit around the wait, and dropping a wait leaves the queue. What else changes hands together with
//! a slot (for the pool: an idle connection) is a [`Stock`], kept under the same lock, so that a
//! waiter is given both in one step.
//!
//! 1. A dropped [`Waiting`] is gone from the queue at once; a grant that crosses it is passed on.
//! 2. A dropped [`Permit`] gives its slot back, also in a panic.
//! 3. No waker is called or dropped, and no item dropped, while the lock is held.
//! 4. After [`Bulkhead::close`] nobody is granted a slot, and every waiter is told.

#[cfg(all(test, partitioned_pool_model))]
mod model;
mod state;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::admission::{
    ClassId, Figures, Hold, HoldId, InvalidRules, Ledger, Patience, Refusal, Rules, Ticket, Totals,
};
use crate::status::{CallSite, Holder};
use crate::sync::{Arc, Clock, Mutex, MutexGuard, PoisonError};

use state::{Answer, Cell, EndOfHold, State};

/// Things that change hands together with a slot.
///
/// Its methods are called under the lock of the bulkhead: they must not call back into it, panic, or
/// drop what belongs to a caller.
///
/// # Examples
/// ```
/// use std::task::Waker;
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Hold};
/// use partitioned_pool::bulkhead::Stock;
///
/// /// Numbers that go out with slots, the last that came back first.
/// struct Numbers(Vec<u32>);
///
/// impl Stock for Numbers {
///     type Item = u32;
///
///     fn take(&mut self, _: &Hold) -> Option<u32> {
///         self.0.pop()
///     }
///
///     fn put(&mut self, _: ClassId, item: u32, _: Duration) -> Result<Option<Waker>, u32> {
///         self.0.push(item);
///         Ok(None)
///     }
/// }
/// ```
pub trait Stock {
    /// One of them.
    type Item;

    /// The item that goes out with the slot `hold`, if there is one.
    fn take(&mut self, hold: &Hold) -> Option<Self::Item>;

    /// Takes back, at `now`, an item that came with a slot of `class`. Returns whom to wake, if it
    /// went to somebody.
    ///
    /// # Errors
    /// The item itself, if it cannot be kept.
    fn put(
        &mut self,
        class: ClassId,
        item: Self::Item,
        now: Duration,
    ) -> Result<Option<Waker>, Self::Item>;

    /// How many slots of `class` are about to come back, so that a caller may wait for one of them
    /// though the queue has no room. Default: none is known.
    fn returning(&self, class: ClassId) -> u32 {
        let _ = class;
        0
    }
}

/// No stock: slots alone.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Patience, Rules};
/// use partitioned_pool::bulkhead::{Bulkhead, NoStock, Request};
///
/// let bulkhead = Bulkhead::new(Rules::fixed(1, 1), NoStock)?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// assert!(matches!(bulkhead.request(only, second), Request::Granted(_, None)));
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStock;

impl Stock for NoStock {
    type Item = std::convert::Infallible;

    fn take(&mut self, _: &Hold) -> Option<Self::Item> {
        None
    }

    fn put(
        &mut self,
        _: ClassId,
        item: Self::Item,
        _: Duration,
    ) -> Result<Option<Waker>, Self::Item> {
        match item {}
    }
}

/// A slot, and the item that came with it.
type Granted<S> = (Permit<S>, Option<<S as Stock>::Item>);

/// The answer to [`Bulkhead::request`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Patience, Rules};
/// use partitioned_pool::bulkhead::{Bulkhead, NoStock, Request};
///
/// let bulkhead = Bulkhead::new(Rules::fixed(1, 1), NoStock)?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// let held = bulkhead.request(only, second);
/// assert!(matches!(bulkhead.request(only, second), Request::Waiting(_)));
/// # drop(held);
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[must_use]
pub enum Request<S: Stock> {
    /// A slot, at once.
    Granted(Permit<S>, Option<S::Item>),
    /// A place in the queue: await it.
    Waiting(Waiting<S>),
    /// No.
    Refused(Refusal, Figures),
    /// No: the bulkhead is closed.
    Closed,
}

/// The bulkhead was closed while the caller waited.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Patience, Rules};
/// use partitioned_pool::bulkhead::{Bulkhead, Closed, NoStock, Request};
///
/// let bulkhead = Bulkhead::new(Rules::fixed(1, 1), NoStock)?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// # use std::task::{Context, Poll, Waker};
/// # use std::{future::Future, pin::pin};
/// let held = bulkhead.try_acquire(only);
/// let Request::Waiting(waiting) = bulkhead.request(only, second) else { panic!() };
/// bulkhead.close();
/// // Whoever waits is told.
/// let told = pin!(waiting).poll(&mut Context::from_waker(Waker::noop()));
/// assert!(matches!(told, Poll::Ready(Err(Closed))));
/// # drop(held);
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bulkhead is closed")]
pub struct Closed;

struct Shared<S: Stock> {
    state: Mutex<State<S>>,
    clock: Clock,
}

impl<S: Stock> Shared<S> {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn finish(&self, hold: Hold, item: Option<S::Item>, end: EndOfHold) -> Option<S::Item> {
        let now = self.clock.now();
        let (wakes, refused) = self.lock().finish(hold, item, end, now);
        wakes.wake();
        refused
    }
}

/// A bounded number of slots, shared by one or more classes.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Patience, Rules};
/// use partitioned_pool::bulkhead::{Bulkhead, NoStock, Request};
///
/// let bulkhead = Bulkhead::new(Rules::fixed(1, 0), NoStock)?;
/// let patience = Patience::wait(Duration::from_secs(1));
/// let Request::Granted(permit, None) = bulkhead.request(ClassId::new(0), patience) else {
///     panic!("the slot is free");
/// };
/// assert!(matches!(bulkhead.request(ClassId::new(0), patience), Request::Refused(..)));
/// drop(permit);
/// assert!(bulkhead.try_acquire(ClassId::new(0)).is_some());
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
pub struct Bulkhead<S: Stock> {
    shared: Arc<Shared<S>>,
}

impl<S: Stock> Clone for Bulkhead<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: Stock> Bulkhead<S> {
    /// A bulkhead in which every slot is free.
    ///
    /// # Errors
    /// Rules that cannot be kept: see [`InvalidRules`].
    pub fn new(rules: Rules, stock: S) -> Result<Self, InvalidRules> {
        let state = State::new(Ledger::new(rules)?, stock);
        Ok(Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                clock: Clock::start(),
            }),
        })
    }

    /// Asks for a slot: at once, in the queue, or not at all.
    ///
    /// An answer that is not [`Request::Waiting`] costs no allocation and no timer.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    #[inline]
    #[track_caller]
    pub fn request(&self, class: ClassId, patience: Patience) -> Request<S> {
        self.request_for(CallSite::here(), class, patience)
    }

    /// As [`request`](Self::request), for a caller elsewhere.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    #[inline]
    pub fn request_for(&self, by: CallSite, class: ClassId, patience: Patience) -> Request<S> {
        let now = self.shared.clock.now();
        let answer = self.shared.lock().request(by, class, now, patience);
        match answer {
            Answer::Granted(hold, item) => Request::Granted(self.permit(hold), item),
            Answer::Queued(ticket, cell) => Request::Waiting(Waiting {
                shared: Arc::clone(&self.shared),
                place: Some((ticket, cell)),
            }),
            Answer::Refused(refusal, figures) => Request::Refused(refusal, figures),
            Answer::Closed => Request::Closed,
        }
    }

    /// A slot if one is free now and nobody waits for it.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    #[inline]
    #[track_caller]
    pub fn try_acquire(&self, class: ClassId) -> Option<Granted<S>> {
        self.try_acquire_for(CallSite::here(), class)
    }

    /// As [`try_acquire`](Self::try_acquire), for a caller elsewhere.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    #[inline]
    pub fn try_acquire_for(&self, by: CallSite, class: ClassId) -> Option<Granted<S>> {
        let now = self.shared.clock.now();
        let (hold, item) = self.shared.lock().try_acquire(by, class, now)?;
        Some((self.permit(hold), item))
    }

    /// What `class` looks like now.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    #[must_use]
    pub fn figures(&self, class: ClassId) -> Figures {
        let now = self.shared.clock.now();
        self.shared.lock().ledger.figures(class, now)
    }

    /// What `class` has been through until now.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    #[must_use]
    pub fn totals(&self, class: ClassId) -> Totals {
        let now = self.shared.clock.now();
        self.shared.lock().ledger.totals(class, now)
    }

    /// The same, and the peaks of a new time begin.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    #[must_use]
    pub fn take_totals(&self, class: ClassId) -> Totals {
        let now = self.shared.clock.now();
        let ledger = &mut self.shared.lock().ledger;
        let totals = ledger.totals(class, now);
        ledger.restart_peaks(class);
        totals
    }

    /// Counts a caller to whom [`try_acquire`](Self::try_acquire) gave nothing, and who would have used a slot.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    pub fn turn_away(&self, class: ClassId) {
        self.shared.lock().ledger.turn_away(class);
    }

    /// Slots held by all classes together.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.shared.lock().ledger.used()
    }

    /// Who holds a slot of `class`, oldest first.
    ///
    /// # Panics
    /// If `class` is not a class of this budget.
    #[must_use]
    pub fn holders(&self, class: ClassId) -> Vec<(HoldId, Holder)> {
        let now = self.shared.clock.now();
        self.shared.lock().ledger.holders(class, now).collect()
    }

    /// Takes a slot away from whoever holds it; its permit then gives back nothing. If the hold has
    /// ended, nothing happens.
    pub fn revoke(&self, id: HoldId) {
        let now = self.shared.clock.now();
        let wakes = self.shared.lock().revoke(id, now);
        wakes.wake();
    }

    /// Counts a hold no more as one, though its slot stays taken until its permit is dropped: see
    /// [`Ledger::detach`]. `false` if the hold has ended.
    pub fn detach(&self, id: HoldId) -> bool {
        let now = self.shared.clock.now();
        let (detached, wakes) = self.shared.lock().detach(id, now);
        wakes.wake();
        detached
    }

    /// The time on this bulkhead's clock, since it was made.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.shared.clock.now()
    }

    /// Looks at, or changes, the stock under the lock.
    ///
    /// `look` must not call back into the bulkhead, wake anybody, or drop items.
    pub fn with_stock<R>(&self, look: impl FnOnce(&mut S) -> R) -> R {
        look(&mut self.shared.lock().stock)
    }

    /// Grants nothing from now on and tells everyone who waits. Slots that are held stay held.
    pub fn close(&self) {
        let now = self.shared.clock.now();
        let wakes = self.shared.lock().close(now);
        wakes.wake();
    }

    /// Whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }

    /// Completes as soon as no slot is held, but for those that were detached.
    ///
    /// # Cancel safety
    /// Dropping it changes nothing.
    pub async fn drained(&self) {
        std::future::poll_fn(|cx| self.shared.lock().poll_drained(cx)).await;
    }

    #[inline]
    fn permit(&self, hold: Hold) -> Permit<S> {
        Permit {
            shared: Arc::clone(&self.shared),
            hold: Some(hold),
        }
    }
}

impl<S: Stock> fmt::Debug for Bulkhead<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("Bulkhead")
            .field("capacity", &state.ledger.capacity())
            .field("used", &state.ledger.used())
            .field("closed", &state.closed)
            .finish_non_exhaustive()
    }
}

/// The right to one slot. Dropping it gives the slot back.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Patience, Rules};
/// use partitioned_pool::bulkhead::{Bulkhead, NoStock};
///
/// let bulkhead = Bulkhead::new(Rules::fixed(1, 1), NoStock)?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// let (permit, _) = bulkhead.try_acquire(only).unwrap();
/// assert_eq!(bulkhead.used(), 1);
/// drop(permit);
/// assert_eq!(bulkhead.used(), 0);
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[must_use = "dropping a permit gives its slot back"]
pub struct Permit<S: Stock> {
    shared: Arc<Shared<S>>,
    hold: Option<Hold>,
}

impl<S: Stock> Permit<S> {
    /// Gives the slot back together with `item`: the next waiter is given both in one step.
    /// Returns the item if the stock does not keep it; the slot is given back all the same.
    #[inline]
    pub fn give_back(mut self, item: S::Item) -> Option<S::Item> {
        let hold = self.hold.take();
        let hold = hold.expect("bug: a permit without a slot");
        self.shared.finish(hold, Some(item), EndOfHold::Used)
    }

    /// When the slot was granted, on the clock of its bulkhead.
    #[must_use]
    #[inline]
    pub fn since(&self) -> Duration {
        self.hold.as_ref().map_or(Duration::ZERO, Hold::since)
    }

    /// The name of the hold.
    #[must_use]
    #[inline]
    pub fn hold(&self) -> Option<HoldId> {
        self.hold.as_ref().map(Hold::id)
    }
}

impl<S: Stock> Drop for Permit<S> {
    #[inline]
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.shared.finish(hold, None, EndOfHold::Used);
        }
    }
}

impl<S: Stock> fmt::Debug for Permit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("hold", &self.hold).finish()
    }
}

/// A caller in the queue.
///
/// # Cancel safety
/// Dropping it leaves the queue; a slot that was granted in that moment goes to the next waiter.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Patience, Rules};
/// use partitioned_pool::bulkhead::{Bulkhead, NoStock, Request};
///
/// let bulkhead = Bulkhead::new(Rules::fixed(1, 1), NoStock)?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// let held = bulkhead.try_acquire(only);
/// let Request::Waiting(waiting) = bulkhead.request(only, second) else { panic!() };
/// assert_eq!(bulkhead.figures(only).waiting, 1);
/// drop(waiting);
/// assert_eq!(bulkhead.figures(only).waiting, 0);
/// # drop(held);
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[must_use = "a wait does nothing unless it is awaited"]
pub struct Waiting<S: Stock> {
    shared: Arc<Shared<S>>,
    /// `None` once the wait has ended.
    place: Option<(Ticket, usize)>,
}

impl<S: Stock> Future for Waiting<S> {
    type Output = Result<Granted<S>, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let (_, cell) = *self.place.as_ref().expect("bug: polled after its end");
        let mut replaced = None;
        let answer = self.shared.lock().poll_waiting(cell, cx, &mut replaced);
        let Poll::Ready(answer) = answer else {
            return Poll::Pending;
        };
        self.place = None;
        let granted = answer.map(|(hold, item)| {
            let permit = Permit {
                shared: Arc::clone(&self.shared),
                hold: Some(hold),
            };
            (permit, item)
        });
        Poll::Ready(granted)
    }
}

impl<S: Stock> Waiting<S> {
    /// Leaves the queue, as dropping does. Returns the item that came with a slot in that moment, if the
    /// stock does not keep it.
    pub fn leave(mut self) -> Option<S::Item> {
        self.go()
    }

    fn go(&mut self) -> Option<S::Item> {
        let (ticket, cell) = self.place.take()?;
        let now = self.shared.clock.now();
        let answer = self.shared.lock().leave(ticket, cell, now);
        match answer {
            Cell::Granted(hold, item) => self.shared.finish(hold, item, EndOfHold::Crossed),
            Cell::Waiting(_) | Cell::Closed => None,
        }
    }
}

impl<S: Stock> Drop for Waiting<S> {
    fn drop(&mut self) {
        // What the stock does not keep is dropped here, outside of the lock.
        drop(self.go());
    }
}

impl<S: Stock> fmt::Debug for Waiting<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl<S: Stock> fmt::Debug for Request<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Granted(..) => "Granted",
            Self::Waiting(_) => "Waiting",
            Self::Refused(..) => "Refused",
            Self::Closed => "Closed",
        })
    }
}
