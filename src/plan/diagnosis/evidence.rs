//! What a diagnosis rests on.

use std::fmt;
use std::time::Duration;

use crate::plan::figures::{Level, Refused};

use super::Size;

/// A fact of the window, with its figures. Printed, it is a sentence without its full stop.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Evidence {
    /// How busy it was.
    InUse {
        /// Slots held.
        in_use: Level,
        /// The most that may be.
        slots: u32,
    },
    /// Calls were refused.
    Refusals {
        /// How many, and why.
        refused: Refused,
        /// Of so many.
        arrivals: u64,
    },
    /// What the calls need, and what there is.
    Load {
        /// The calls, and the slots for them.
        size: Size,
        /// The slots that there are.
        slots: u32,
    },
    /// Holds last longer than before.
    HoldGrew {
        /// The mean, before.
        before: Duration,
        /// The mean, in the window.
        now: Duration,
    },
    /// Half of the holds that run are old, and callers find no slot.
    NothingEnds {
        /// The mean hold, before.
        before: Duration,
        /// The median age of the holds that run.
        age: Duration,
    },
    /// Slots were held all through the window.
    HeldThrough {
        /// How many.
        slots: u32,
        /// Since when the oldest.
        oldest: Duration,
        /// How long a hold lasts.
        hold: Duration,
    },
    /// How many waited.
    Waiting {
        /// Callers waiting.
        waiting: Level,
        /// The slots that they wait for.
        slots: u32,
        /// The most that may wait.
        max_waiters: u32,
    },
    /// The last in the queue would be late in any case.
    UselessQueue {
        /// The most that may wait.
        max_waiters: u32,
        /// The most that end in time.
        useful: u32,
        /// How long they have.
        deadline: Duration,
    },
    /// Neighbours were refused while slots were free here.
    NeighboursRefused {
        /// How many of their calls.
        refused: u64,
        /// Of so many.
        arrivals: u64,
        /// Slots that are reserved and were never needed.
        spare: u32,
        /// Slots that are reserved.
        reserved: u32,
    },
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { in_use, slots } => write!(
                f,
                "{:.1} of {slots} slots in use on average, {} at most",
                in_use.average, in_use.peak
            ),
            Self::Refusals { refused, arrivals } => refusals(f, refused, *arrivals),
            Self::Load { size, slots } => load(f, size, *slots),
            Self::HoldGrew { before, now } => {
                let times = now.as_secs_f64() / before.as_secs_f64();
                write!(
                    f,
                    "a hold lasts {now:?}, {times:.1} times the {before:?} of before"
                )
            }
            Self::NothingEnds { before, age } => write!(
                f,
                "half of the slots in use are held for {age:?} or more, and a hold lasts {before:?}"
            ),
            Self::HeldThrough {
                slots,
                oldest,
                hold,
            } => write!(
                f,
                "{slots} slots were held all the time, the oldest for {oldest:?}, and a hold lasts {hold:?}"
            ),
            Self::Waiting {
                waiting,
                slots,
                max_waiters,
            } => write!(
                f,
                "{:.1} callers wait for {slots} slots on average, {} at most, of {max_waiters} that may",
                waiting.average, waiting.peak
            ),
            Self::UselessQueue {
                max_waiters,
                useful,
                deadline,
            } => write!(
                f,
                "{max_waiters} may wait, but only {useful} of them would be done within {deadline:?}"
            ),
            Self::NeighboursRefused {
                refused,
                arrivals,
                spare,
                reserved,
            } => write!(
                f,
                "{refused} of {arrivals} calls of its neighbours were refused while slots were free here; \
                 {spare} of {reserved} reserved ones were not needed"
            ),
        }
    }
}

fn refusals(f: &mut fmt::Formatter<'_>, refused: &Refused, arrivals: u64) -> fmt::Result {
    write!(f, "{} of {arrivals} calls refused", refused.total())?;
    let reasons = [
        (refused.queue_full, "queue full"),
        (refused.deadline_too_short, "deadline too short"),
        (refused.wait_timeout, "waited too long"),
    ];
    let reasons = reasons.into_iter().filter(|(count, _)| *count > 0);
    for (n, (count, reason)) in reasons.enumerate() {
        write!(f, "{}{count} {reason}", if n == 0 { " (" } else { ", " })?;
    }
    f.write_str(if refused.total() > 0 { ")" } else { "" })
}

fn load(f: &mut fmt::Formatter<'_>, size: &Size, slots: u32) -> fmt::Result {
    let (rate, hold, little) = (size.rate.as_per_second(), size.hold, size.little);
    write!(
        f,
        "{rate:.1} calls/s of {hold:?} need {little} slots on average"
    )?;
    if let Some(for_bursts) = size.for_bursts {
        write!(f, ", {for_bursts} for their bursts")?;
    }
    write!(f, "; there are {slots}")
}
