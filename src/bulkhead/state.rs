//! What is under the lock of a bulkhead. No method here wakes anybody or drops an item.

use std::mem;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use slab::Slab;

use crate::admission::{
    Admission, ClassId, Figures, Grant, Hold, Ledger, Patience, Refusal, Ticket,
};

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
enum Cell<I> {
    Waiting(Option<Waker>),
    Granted(Hold, Option<I>),
    Closed,
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
    cells: Slab<Cell<S::Item>>,
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
            .admit_beyond(class, now, patience, returning, enter);
        match admission {
            Admission::Granted(hold) => Answer::Granted(hold, self.stock.take(class)),
            Admission::Queued(ticket) => Answer::Queued(ticket, cell),
            Admission::Refused(refusal) => {
                Answer::Refused(refusal, self.ledger.figures(class, now))
            }
        }
    }

    #[inline]
    pub(super) fn try_acquire(&mut self, class: ClassId, now: Duration) -> Option<Delivery<S>> {
        if self.closed {
            return None;
        }
        let hold = self.ledger.try_admit(class, now)?;
        Some((hold, self.stock.take(class)))
    }

    #[inline]
    pub(super) fn finish(
        &mut self,
        hold: Hold,
        item: Option<S::Item>,
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
        if let Some(grant) = self.ledger.release(hold, now) {
            wakes.second = self.deliver(grant);
        }
        if self.ledger.used() == 0 && !self.draining.is_empty() {
            wakes.more = mem::take(&mut self.draining);
        }
        (wakes, refused)
    }

    fn deliver(&mut self, grant: Grant<usize>) -> Option<Waker> {
        let item = self.stock.take(grant.hold.class());
        let cell = &mut self.cells[grant.waiter];
        match mem::replace(cell, Cell::Granted(grant.hold, item)) {
            Cell::Waiting(waker) => waker,
            Cell::Granted(..) | Cell::Closed => unreachable!("bug: a waiter was answered twice"),
        }
    }

    pub(super) fn poll_waiting(
        &mut self,
        cell: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Delivery<S>, Closed>> {
        if let Cell::Waiting(waker) = &mut self.cells[cell] {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                None => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        match self.cells.remove(cell) {
            Cell::Granted(hold, item) => Poll::Ready(Ok((hold, item))),
            Cell::Closed => Poll::Ready(Err(Closed)),
            Cell::Waiting(_) => unreachable!("bug: checked above"),
        }
    }

    /// Ends a wait; what was granted in that moment comes back and must be passed on.
    pub(super) fn leave(&mut self, ticket: Ticket, cell: usize) -> Option<Delivery<S>> {
        match self.cells.remove(cell) {
            Cell::Granted(hold, item) => Some((hold, item)),
            Cell::Closed => None,
            Cell::Waiting(_) => {
                let left = self.ledger.leave(ticket);
                debug_assert_eq!(left, Some(cell));
                None
            }
        }
    }

    pub(super) fn close(&mut self) -> Wakes {
        self.closed = true;
        let mut wakes = Wakes::default();
        for cell in self.ledger.leave_all() {
            if let Cell::Waiting(waker) = mem::replace(&mut self.cells[cell], Cell::Closed) {
                wakes.more.extend(waker);
            }
        }
        wakes
    }

    pub(super) fn poll_drained(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.ledger.used() == 0 {
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
