//! What a diagnosis rests on.

use std::fmt;
use std::time::Duration;

use crate::plan::figures::{Level, Refused};
use crate::status::Seconds;

use super::Size;

/// A fact of the window, with its figures. Printed, it is a sentence without its full stop.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::diagnosis::{Window, diagnose};
///
/// let mut window = Window::new(Duration::from_secs(60), 10);
/// (window.arrivals, window.refused.queue_full) = (1_000, 200);
/// for evidence in &diagnose(&window).evidence {
///     println!("{evidence}"); // a sentence with its figures
/// }
/// # assert!(!diagnose(&window).evidence.is_empty());
/// ```
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
        match *self {
            Self::InUse { in_use, slots } => usage(f, in_use, slots),
            Self::Refusals { refused, arrivals } => refusals(f, refused, arrivals),
            Self::Load { size, slots } => load(f, size, slots),
            Self::HoldGrew { before, now } => grew(f, before, now),
            Self::NothingEnds { before, age } => ends(f, Seconds(before), Seconds(age)),
            Self::HeldThrough {
                slots,
                oldest,
                hold,
            } => held(f, slots, Seconds(oldest), Seconds(hold)),
            Self::Waiting {
                waiting,
                slots,
                max_waiters,
            } => queue(f, waiting, slots, max_waiters),
            Self::UselessQueue {
                max_waiters,
                useful,
                deadline,
            } => useless(f, max_waiters, useful, Seconds(deadline)),
            Self::NeighboursRefused {
                refused,
                arrivals,
                spare,
                reserved,
            } => neighbours(f, [refused, arrivals], [spare, reserved]),
        }
    }
}

fn usage(f: &mut fmt::Formatter<'_>, in_use: Level, slots: u32) -> fmt::Result {
    let Level { average, peak } = in_use;
    write!(
        f,
        "{average:.1} of {slots} slots in use on average, {peak} at most"
    )
}

fn refusals(f: &mut fmt::Formatter<'_>, refused: Refused, arrivals: u64) -> fmt::Result {
    write!(f, "{} of {arrivals} calls refused", refused.total())?;
    let reasons = [
        (refused.queue_full, "queue full"),
        (refused.deadline_too_short, "deadline too short"),
        (refused.no_free_slot, "no free slot"),
        (refused.wait_timeout, "waited too long"),
    ];
    let reasons = reasons.into_iter().filter(|(count, _)| *count > 0);
    for (n, (count, reason)) in reasons.enumerate() {
        write!(f, "{}{count} {reason}", if n == 0 { " (" } else { ", " })?;
    }
    f.write_str(if refused.total() > 0 { ")" } else { "" })
}

fn load(f: &mut fmt::Formatter<'_>, size: Size, slots: u32) -> fmt::Result {
    let (rate, hold, little) = (size.rate.as_per_second(), Seconds(size.hold), size.little);
    write!(
        f,
        "{rate:.1} calls/s of {hold} need {little} slots on average"
    )?;
    if let Some(for_bursts) = size.for_bursts {
        write!(f, ", {for_bursts} for their bursts")?;
    }
    write!(f, "; there are {slots}")
}

fn grew(f: &mut fmt::Formatter<'_>, before: Duration, now: Duration) -> fmt::Result {
    let times = now.as_secs_f64() / before.as_secs_f64();
    let (before, now) = (Seconds(before), Seconds(now));
    write!(
        f,
        "a hold lasts {now}, {times:.1} times the {before} of before"
    )
}

fn ends(f: &mut fmt::Formatter<'_>, before: Seconds, age: Seconds) -> fmt::Result {
    write!(
        f,
        "half of the slots in use are held for {age} or more, and a hold lasts {before}"
    )
}

fn held(f: &mut fmt::Formatter<'_>, slots: u32, oldest: Seconds, hold: Seconds) -> fmt::Result {
    let were = if slots == 1 { "slot was" } else { "slots were" };
    write!(
        f,
        "{slots} {were} held all the time, the oldest for {oldest}, and a hold lasts {hold}"
    )
}

fn queue(f: &mut fmt::Formatter<'_>, waiting: Level, slots: u32, bound: u32) -> fmt::Result {
    let Level { average, peak } = waiting;
    write!(
        f,
        "{average:.1} callers wait for {slots} slots on average, {peak} at most, of {bound} that may"
    )
}

fn useless(f: &mut fmt::Formatter<'_>, bound: u32, useful: u32, deadline: Seconds) -> fmt::Result {
    write!(
        f,
        "{bound} may wait, but only {useful} of them would be done within {deadline}"
    )
}

fn neighbours(
    f: &mut fmt::Formatter<'_>,
    [refused, arrivals]: [u64; 2],
    [spare, reserved]: [u32; 2],
) -> fmt::Result {
    write!(
        f,
        "{refused} of {arrivals} calls of its neighbours were refused while slots were free here; \
         {spare} of {reserved} reserved ones were not needed"
    )
}
