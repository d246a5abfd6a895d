//! What a class has been through, counted as it happens, at next to no cost.

use std::time::Duration;

use super::estimate::nanos;
use super::holds::Holds;
use super::ledger::Cause;
use super::queue::Queue;

/// What a class has been through since its ledger was made, until one moment.
///
/// Of two, the later less the earlier is what happened between; only the two peaks are since
/// [`Ledger::restart_peaks`](super::Ledger::restart_peaks).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{Admission, ClassId, Ledger, Patience, Rules};
///
/// let mut ledger = Ledger::new(Rules::fixed(1, 0))?;
/// let (only, second) = (ClassId::new(0), Patience::wait(Duration::from_secs(1)));
/// let Admission::Granted(hold) = ledger.admit(only, Duration::ZERO, second, || "first") else { panic!() };
/// ledger.release(hold, Duration::from_millis(40));
/// let totals = ledger.totals(only, Duration::from_secs(1));
/// assert_eq!((totals.arrived, totals.ended, totals.ended_time), (1, 1, Duration::from_millis(40)));
/// # Ok::<(), partitioned_pool::admission::InvalidRules>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// The moment.
    pub at: Duration,
    /// Calls that came, those that wait included.
    pub arrived: u64,
    /// Slots that were granted, also to waiters that had left in that moment.
    pub granted: u64,
    /// Holds that their owners ended; neither those that were [revoked](super::Ledger::revoke) or
    /// [detached](super::Ledger::detach) nor those that were [passed on](super::Ledger::pass_on).
    pub ended: u64,
    /// How long those lasted, all together.
    pub ended_time: Duration,
    /// For how long slots were held, all together: the holds that run, too, and every other; a detached one, until it
    /// was detached.
    pub held_time: Duration,
    /// For how long callers have waited, all together: those that wait, too.
    pub waited_time: Duration,
    /// Callers that were refused because the queue was full.
    pub queue_full: u64,
    /// Callers that were refused because they had too little time.
    pub deadline_too_short: u64,
    /// Callers that were [turned away](super::Ledger::turn_away).
    pub turned_away: u64,
    /// Callers that waited, and left without a slot.
    pub left: u64,
    /// The most slots held at one moment, without the detached ones.
    pub most_used: u32,
    /// The most callers waiting at one moment.
    pub most_waiting: u32,
}

/// What is counted for it beside what the ledger knows anyway.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// In nanoseconds.
    ended_time: u128,
    /// Of holds that no owner ended, in nanoseconds.
    other_time: u128,
    passed_on: u64,
    taken_away: u64,
    queue_full: u64,
    deadline_too_short: u64,
    turned_away: u64,
    left: u64,
    peak: u32,
}

impl Account {
    /// A slot was granted: now there are so many.
    #[inline]
    pub(super) fn begin(&mut self, used: u32) {
        self.peak = self.peak.max(used);
    }

    #[inline]
    pub(super) fn end(&mut self, length: Duration) {
        self.ended_time += u128::from(nanos(length));
    }

    /// A grant crossed a waiter that left.
    pub(super) fn cross(&mut self, length: Duration) {
        self.passed_on += 1;
        self.other_time += u128::from(nanos(length));
    }

    pub(super) fn take_away(&mut self, length: Duration) {
        self.taken_away += 1;
        self.other_time += u128::from(nanos(length));
    }

    pub(super) const fn refuse(&mut self, cause: &Cause) {
        match cause {
            Cause::QueueFull => self.queue_full += 1,
            Cause::DeadlineTooShort { .. } => self.deadline_too_short += 1,
        }
    }

    pub(super) const fn turn_away(&mut self) {
        self.turned_away += 1;
    }

    pub(super) const fn leave(&mut self) {
        self.left += 1;
    }

    pub(super) const fn restart_peak(&mut self, used: u32) {
        self.peak = used;
    }

    pub(super) fn totals<W>(&self, holds: &Holds, queue: &Queue<W>, now: Duration) -> Totals {
        let granted = holds.begun();
        let refused = self.queue_full + self.deadline_too_short + self.turned_away;
        Totals {
            at: now,
            arrived: granted + refused + self.left + queue.len() as u64,
            granted,
            ended: granted - holds.len() as u64 - self.passed_on - self.taken_away,
            ended_time: time(self.ended_time),
            held_time: time(self.ended_time + self.other_time + holds.ages(now)),
            waited_time: time(queue.waited(now)),
            queue_full: self.queue_full,
            deadline_too_short: self.deadline_too_short,
            turned_away: self.turned_away,
            left: self.left + self.passed_on,
            most_used: self.peak,
            most_waiting: u32::try_from(queue.peak()).expect("bug: a queue bound is a u32"),
        }
    }
}

fn time(nanos: u128) -> Duration {
    Duration::from_nanos_u128(nanos)
}
