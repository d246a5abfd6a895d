//! What is under the lock of a bulkhead. No method here wakes anybody, or drops a waker or
//! an item: whoever they belong to may call back.

use std::mem;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use crate::admission::{
    Admission, ClassId, Figures, Grant, Hold, HoldId, Ledger, Patience, Refusal, Ticket,
};

use crate::status::CallSite;

use super::{Closed, Stock};

/// Whom to wake once the lock is free.
#[derive(Default)]
#[must_use = "somebody waits for this"]
pub(super) struct Wakes {
    first: Option<Waker>,
    second: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakes {
    #[inline]
    pub(super) fn wake(self) {
        self.first.into_iter().for_each(Waker::wake);
        self.second.into_iter().for_each(Waker::wake);
        self.more.into_iter().for_each(Waker::wake);
    }
}

/// A slot and the item that came with it.
type Delivery<S> = (Hold, Option<<S as Stock>::Item>);

/// A caller in the queue, as the lock sees it.
pub(super) enum Cell<I> {
    Waiting(Option<Waker>),
    Granted(Hold, Option<I>),
    Closed,
}

/// How a slot comes back.
#[derive(Clone, Copy)]
pub(super) enum EndOfHold {
    /// From a caller.
    Used,
    /// From a waiter that had left when it was granted.
    Crossed,
}

pub(super) enum Answer<I> {
    Granted(Hold, Option<I>),
    Queued(Ticket, usize),
    Refused(Refusal, Figures),
    Closed,
}

pub(super) struct State<S: Stock> {
    /// A waiter of the ledger is the key of its cell.
    pub(super) ledger: Ledger<usize>,
    pub(super) stock: S,
    pub(super) closed: bool,
    pub(super) cells: Slab<Cell<S::Item>>,
    draining: Vec<Waker>,
}

impl<S: Stock> State<S> {
    pub(super) fn new(ledger: Ledger<usize>, stock: S) -> Self {
        Self {
            ledger,
            stock,
            closed: false,
            cells: Slab::new(),
            draining: Vec::new(),
        }
    }

    #[inline]
    pub(super) fn request(
        &mut self,
        by: CallSite,
        class: ClassId,
        now: Duration,
        patience: Patience,
    ) -> Answer<S::Item> {
        if self.closed {
            return Answer::Closed;
        }
        let cells = &mut self.cells;
        let cell = cells.vacant_key();
        let returning = self.stock.returning(class);
        let enter = || cells.insert(Cell::Waiting(None));
        let admission = self
            .ledger
            .admit_for(by, class, now, patience, returning, enter);
        match admission {
            Admission::Granted(hold) => {
                let item = self.stock.take(&hold);
                Answer::Granted(hold, item)
            }
            Admission::Queued(ticket) => Answer::Queued(ticket, cell),
            Admission::Refused(refusal) => {
                Answer::Refused(refusal, self.ledger.figures(class, now))
            }
        }
    }

    #[inline]
    pub(super) fn try_acquire(
        &mut self,
        by: CallSite,
        class: ClassId,
        now: Duration,
    ) -> Option<Delivery<S>> {
        if self.closed {
            return None;
        }
        let hold = self.ledger.try_admit_for(by, class, now)?;
        let item = self.stock.take(&hold);
        Some((hold, item))
    }

    #[inline]
    pub(super) fn finish(
        &mut self,
        hold: Hold,
        item: Option<S::Item>,
        end: EndOfHold,
        now: Duration,
    ) -> (Wakes, Option<S::Item>) {
        let mut wakes = Wakes::default();
        let mut refused = None;
        if let Some(item) = item {
            match self.stock.put(hold.class(), item, now) {
                Ok(waker) => wakes.first = waker,
                Err(item) => refused = Some(item),
            }
        }
        let grant = match end {
            EndOfHold::Used => self.ledger.release(hold, now),
            EndOfHold::Crossed => self.ledger.pass_on(hold, now),
        };
        self.after(grant, &mut wakes);
        (wakes, refused)
    }

    pub(super) fn revoke(&mut self, id: HoldId, now: Duration) -> Wakes {
        let mut wakes = Wakes::default();
        let grant = self.ledger.revoke(id, now);
        self.after(grant, &mut wakes);
        wakes
    }

    /// Whoever waits for the end of all holds does not wait for this one.
    pub(super) fn detach(&mut self, id: HoldId, now: Duration) -> (bool, Wakes) {
        let mut wakes = Wakes::default();
        let detached = self.ledger.detach(id, now);
        self.after(None, &mut wakes);
        (detached, wakes)
    }

    fn is_drained(&self) -> bool {
        self.ledger.used() == self.ledger.detached()
    }

    #[inline]
    fn after(&mut self, grant: Option<Grant<usize>>, wakes: &mut Wakes) {
        if let Some(grant) = grant {
            wakes.second = self.deliver(grant);
        }
        if !self.draining.is_empty() && self.is_drained() {
            wakes.more = mem::take(&mut self.draining);
        }
    }

    fn deliver(&mut self, grant: Grant<usize>) -> Option<Waker> {
        let item = self.stock.take(&grant.hold);
        let cell = &mut self.cells[grant.waiter];
        match mem::replace(cell, Cell::Granted(grant.hold, item)) {
            Cell::Waiting(waker) => waker,
            Cell::Granted(..) | Cell::Closed => unreachable!("bug: a waiter was answered twice"),
        }
    }

    /// A waker that is no longer needed goes to `replaced`, to be dropped outside of the lock.
    pub(super) fn poll_waiting(
        &mut self,
        cell: usize,
        cx: &mut Context<'_>,
        replaced: &mut Option<Waker>,
    ) -> Poll<Result<Delivery<S>, Closed>> {
        if let Cell::Waiting(waker) = &mut self.cells[cell] {
            if !matches!(waker, Some(waker) if waker.will_wake(cx.waker())) {
                *replaced = waker.replace(cx.waker().clone());
            }
            return Poll::Pending;
        }
        match self.cells.remove(cell) {
            Cell::Granted(hold, item) => Poll::Ready(Ok((hold, item))),
            Cell::Closed => Poll::Ready(Err(Closed)),
            Cell::Waiting(_) => unreachable!("bug: checked above"),
        }
    }

    /// Ends a wait. What was granted in that moment is in the cell and must be passed on.
    pub(super) fn leave(&mut self, ticket: Ticket, key: usize, now: Duration) -> Cell<S::Item> {
        let cell = self.cells.remove(key);
        if let Cell::Waiting(_) = cell {
            let left = self.ledger.leave(ticket, now);
            debug_assert_eq!(left, Some(key));
        }
        cell
    }

    pub(super) fn close(&mut self, now: Duration) -> Wakes {
        self.closed = true;
        let mut wakes = Wakes::default();
        for cell in self.ledger.leave_all(now) {
            if let Cell::Waiting(waker) = mem::replace(&mut self.cells[cell], Cell::Closed) {
                wakes.more.extend(waker);
            }
        }
        wakes
    }

    pub(super) fn poll_drained(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_drained() {
            return Poll::Ready(());
        }
        if !self
            .draining
            .iter()
            .any(|waker| waker.will_wake(cx.waker()))
        {
            self.draining.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
