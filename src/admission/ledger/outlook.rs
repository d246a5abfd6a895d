//! What a caller can expect: how long it waits, and when it is worth to come back.
//!
//! A caller waits for a slot that it may have. If its class is at its max, that is one of its own. If it is
//! the budget that is exhausted, it is also one of any class that holds more than is reserved for it: how long a
//! borrower waits is decided by those who borrow, not by how long its own work takes. Each of them counts
//! with all that it holds, though it stops helping once it is down to what is reserved for it: behind a long
//! queue the expectation is a hopeful one, and the timeout is what bounds the wait.

use std::time::Duration;

use crate::admission::estimate::nanos;
use crate::admission::rules::{ClassId, HandOver};

use super::{Cause, Class, Ledger, Patience};

/// Fixed point: slots per nanosecond, times this.
const ONE: u128 = 1 << 64;

impl<W> Ledger<W> {
    /// Expected wait of a caller that would queue now; `None` without evidence.
    pub(super) fn expected_wait(&self, class: ClassId, now: Duration) -> Option<Duration> {
        let turns = u128::from(self.ahead(class)) + 1;
        let mut awaited = self.awaited(class);
        let first = awaited.next()?;
        let wait = match awaited.next() {
            // With n slots one comes free every hold / n.
            None => turns * first.hold_nanos(now)? / u128::from(first.slots()),
            Some(second) => {
                let all = [first, second].into_iter().chain(awaited);
                let flow = all.map(|class| class.flow(now)).sum::<Option<u128>>()?;
                turns * ONE / flow.max(1)
            }
        };
        Some(Duration::from_nanos(
            u64::try_from(wait).unwrap_or(u64::MAX),
        ))
    }

    /// The classes one of whose slots a caller of `class` waits for.
    fn awaited(&self, class: ClassId) -> impl Iterator<Item = &Class<W>> {
        let own = &self.classes[class.0];
        let by_its_own = own.used >= own.rules.max || self.admissible(class);
        let classes = self.classes.iter().enumerate();
        let awaited = classes.filter(move |(index, other)| {
            let is_own = *index == class.0;
            let borrows = other.used > other.rules.reserved;
            if by_its_own {
                is_own
            } else {
                borrows || (is_own && other.used > 0)
            }
        });
        awaited.map(|(_, class)| class)
    }

    /// Callers whose turn is before that of one who queues now.
    fn ahead(&self, class: ClassId) -> u32 {
        let own = &self.classes[class.0];
        if own.used >= own.rules.max {
            return own.waiting();
        }
        let classes = self.classes.iter().enumerate();
        let is_before = |(index, other): &(usize, &Class<W>)| match self.hand_over {
            _ if *index == class.0 => true,
            HandOver::DeclaredOrder if *index > class.0 => false,
            _ => other.used < other.rules.max,
        };
        classes
            .filter(is_before)
            .map(|(_, other)| other.waiting())
            .sum()
    }

    /// When it is worth to come back: when everyone who waits, and one more, can be expected to have
    /// had a slot, and not before the first hold can be expected to have ended. (Holds that began
    /// together end together; counting on an even flow, the first slot would be promised too early.)
    pub(super) fn retry_after(&self, class: ClassId, now: Duration) -> Option<Duration> {
        let mut first = None;
        for awaited in self.awaited(class) {
            // The age of young holds says nothing of when they end.
            if !awaited.estimate.has_evidence() {
                return None;
            }
            let oldest = awaited.holds.oldest(now).map_or(Duration::ZERO, |h| h.age);
            let end = awaited.expected_hold(now)?.saturating_sub(oldest);
            first = Some(first.map_or(end, |first: Duration| first.min(end)));
        }
        Some(self.expected_wait(class, now)?.max(first?))
    }

    pub(super) fn check_patience(
        &self,
        class: ClassId,
        patience: Patience,
        now: Duration,
    ) -> Result<(), Cause> {
        let Some(expected_hold) = self.classes[class.0].expected_hold(now) else {
            return Ok(());
        };
        let Some(expected_wait) = self.expected_wait(class, now) else {
            return Ok(());
        };
        let short = |left| Cause::DeadlineTooShort {
            expected_wait,
            expected_hold,
            left,
        };
        if expected_wait > patience.wait {
            return Err(short(patience.wait));
        }
        match patience.work {
            Some(left) if expected_wait.saturating_add(expected_hold) > left => Err(short(left)),
            _ => Ok(()),
        }
    }

    /// Whether a slot that `class` gives back can go to nobody else.
    pub(super) fn keeps_what_it_gives_back(&self, class: ClassId) -> bool {
        let own = &self.classes[class.0];
        self.classes.len() == 1 || own.used <= own.rules.reserved
    }
}

impl<W> Class<W> {
    /// Slots whose turnover counts.
    fn slots(&self) -> u32 {
        let taken = self.rules.reserved.max(self.used);
        taken.saturating_sub(self.detached).max(1)
    }

    fn hold_nanos(&self, now: Duration) -> Option<u128> {
        Some(u128::from(nanos(self.expected_hold(now)?)))
    }

    /// Slots that it gives back, per nanosecond.
    fn flow(&self, now: Duration) -> Option<u128> {
        Some(u128::from(self.used - self.detached) * ONE / self.hold_nanos(now)?.max(1))
    }
}
