//! What is wrong with a partition, from its figures over a window of time.
//!
//! [`diagnose`] looks at a [`Window`] and names one [`Finding`], with the evidence that it rests on and
//! the size that Little's law would give. The figures may be those of a live partition or of a
//! simulation. Nothing else is looked at: the same window gives the same diagnosis.
//!
//! The findings are tried in this order, and the first that holds is named:
//!
//! 1. [`DatabaseSlow`](Finding::DatabaseSlow), because holds that ended lasted at least [`SLOW`] times as
//!    long as before. Whatever else there is to see then follows from it, and more slots would only send
//!    more work to a database that is in trouble.
//! 2. [`Leaking`](Finding::Leaking): slots were held all through the window, [`STUCK`] times as long as a
//!    hold lasts, while others came and went.
//! 3. `DatabaseSlow`, because callers find no slot, and half of those who hold one have done so for [`SLOW`]
//!    times as long as a hold lasted before. In a stall nothing ends, so that ended holds tell nothing.
//! 4. [`QueueHidesOverload`](Finding::QueueHidesOverload): busy all the time, and callers are made to wait
//!    instead of being told.
//! 5. [`TooSmall`](Finding::TooSmall): at least [`LOSS`] of the calls are refused, or their healthy load
//!    exceeds the size.
//! 6. [`Stranded`](Finding::Stranded): slots reserved here were never used while neighbours were refused.
//! 7. [`Healthy`](Finding::Healthy).
//!
//! # How a stall is told from a leak
//!
//! Both end with every slot taken by something old. A stall takes the slot of every caller, so that all
//! slots are gone as fast as callers come; a leak takes some, now and then, so that they are taken over a
//! long time, and others still come and go. So it is a leak while slots are free and nobody waits; and
//! else, if the oldest and the youngest hold lie further apart than [`SPREAD`] times the time in which
//! callers would fill the partition.
//!
//! # When a queue hides overload
//!
//! A queue of a turn or two absorbs a burst; that it is full in an overload, and that callers are refused, is
//! as it should be, and the partition is too small. A queue hides the overload if, while every slot is busy,
//!
//! - a whole turn of callers waits on average, and less than [`LOSS`] are refused as they come;
//! - or more leave after having waited than are refused as they come;
//! - or more wait on average than can be done within the deadline
//!   ([`useful_queue`](formulas::useful_queue));
//! - or [`LONG_QUEUE`] turns of them wait.

mod evidence;
mod window;

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use super::formulas::{self, Rate};

pub use evidence::Evidence;
pub use window::{Neighbours, Window};

/// How many times as long as before a hold must last to say that the database is slow. Below 2 it may be
/// a change of the workload or a cold cache; incidents are tenfold and more.
pub const SLOW: u32 = 3;

/// How many times as long as a hold lasts a slot must be held to count as stuck. Of exponential holds, one
/// in 500 million lasts that long.
pub const STUCK: u32 = 20;

/// See [how a stall is told from a leak](self#how-a-stall-is-told-from-a-leak). A stall that is random, not
/// even, rarely needs three times as long.
pub const SPREAD: u32 = 3;

/// The share of calls, in percent, that may be refused without anything being wrong: bursts happen.
pub const LOSS: u64 = 1;

/// The fewest calls or holds of a kind that are evidence.
pub const FEWEST: u64 = 3;

/// The share of slots, in percent, from which on a partition is busy all the time.
pub const BUSY: u32 = 90;

/// How many turns of callers may wait in an overload: each waits as many holds. The default bound of a queue
/// is two.
pub const LONG_QUEUE: u32 = 10;

/// What is wrong.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::diagnosis::Finding;
///
/// assert_eq!(Finding::DatabaseSlow.to_string(), "the database is slow");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Finding {
    /// Nothing.
    Healthy,
    /// It has fewer slots than its own healthy load needs.
    TooSmall,
    /// Work takes much longer than before. More slots would not help.
    DatabaseSlow,
    /// Slots are reserved that it does not use, while neighbours are refused.
    Stranded,
    /// Slots are held by work that does not end.
    Leaking,
    /// More comes than can be done, and the queue makes callers wait instead of telling them.
    QueueHidesOverload,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Healthy => "healthy",
            Self::TooSmall => "too small",
            Self::DatabaseSlow => "the database is slow",
            Self::Stranded => "stranded capacity",
            Self::Leaking => "leaking",
            Self::QueueHidesOverload => "the queue hides overload",
        })
    }
}

/// What is wrong, why we think so, and what size would do.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::diagnosis::{Diagnosis, Window, diagnose};
///
/// let diagnosis: Diagnosis = diagnose(&Window::new(Duration::from_secs(60), 10));
/// println!("{diagnosis}"); // the finding, and what it rests on
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Diagnosis {
    /// What is wrong.
    pub finding: Finding,
    /// What it rests on; the most telling first.
    pub evidence: Vec<Evidence>,
    /// The size for the calls that came, once it is known how long a hold lasts.
    pub size: Option<Size>,
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.finding)?;
        for (n, evidence) in self.evidence.iter().enumerate() {
            let before = if n == 0 { ": " } else { "; " };
            write!(f, "{before}{evidence}")?;
        }
        Ok(())
    }
}

/// How many slots the calls of a window need, at the hold of healthy days if that is known.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::diagnosis::{Window, diagnose};
///
/// // 1,200 calls of half a second in a minute need ten slots on average.
/// let mut window = Window::new(Duration::from_secs(60), 8);
/// (window.arrivals, window.ended, window.hold) = (1_200, 900, Some(Duration::from_millis(500)));
/// window.refused.queue_full = 300;
/// let size = diagnose(&window).size.unwrap();
/// assert_eq!(size.little, 10);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Size {
    /// Calls per second that came.
    pub rate: Rate,
    /// How long each holds its slot.
    pub hold: Duration,
    /// By Little's law: the mean number in flight, rounded up. With fewer, calls pile up for ever.
    pub little: u32,
    /// The fewest with which at most [`LOSS`] percent of the calls are refused, were they to come at random
    /// ([`slots_for_loss`](formulas::slots_for_loss)).
    pub for_bursts: Option<u32>,
}

impl Size {
    fn of(window: &Window) -> Option<Self> {
        let (rate, hold) = (window.rate(), window.healthy_hold()?);
        let load = formulas::erlangs(rate, hold);
        Some(Self {
            rate,
            hold,
            little: formulas::slots(rate, hold, 100),
            for_bursts: formulas::slots_for_loss(load, window.max_waiters, 0.01),
        })
    }
}

/// Says what is wrong with a partition.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::diagnosis::{Finding, Window, diagnose};
///
/// // A minute of 20 connections: 200 calls a second, 40 ms each.
/// let mut minute = Window::new(Duration::from_secs(60), 20);
/// (minute.arrivals, minute.ended) = (12_000, 12_000);
/// minute.hold = Some(Duration::from_millis(40));
/// (minute.in_use.average, minute.in_use.peak) = (8.0, 17);
/// assert_eq!(diagnose(&minute).finding, Finding::Healthy);
///
/// // The same calls, a month after they took 4 ms.
/// minute.hold_before = Some(Duration::from_millis(4));
/// let diagnosis = diagnose(&minute);
/// assert_eq!(diagnosis.finding, Finding::DatabaseSlow);
/// assert_eq!(diagnosis.size.unwrap().little, 1);
/// assert_eq!(
///     diagnosis.to_string(),
///     "the database is slow: a hold lasts 40 ms, 10.0 times the 4 ms of before; \
///      8.0 of 20 slots in use on average, 17 at most",
/// );
/// ```
#[must_use]
pub fn diagnose(window: &Window) -> Diagnosis {
    let size = Size::of(window);
    let findings = [
        slow_holds(window),
        leaking(window),
        stalled(window),
        queue_hides_overload(window),
        too_small(window, size),
        stranded(window, size),
    ];
    let found = findings.into_iter().flatten().next();
    let (finding, evidence) = found.unwrap_or_else(|| (Finding::Healthy, healthy(window, size)));
    Diagnosis {
        finding,
        evidence,
        size,
    }
}

type Found = Option<(Finding, Vec<Evidence>)>;

fn slow_holds(window: &Window) -> Found {
    let (before, now) = (window.hold_before?, window.hold?);
    let slow = window.ended >= FEWEST && now >= before.saturating_mul(SLOW);
    let mut evidence = vec![Evidence::HoldGrew { before, now }, window.usage()];
    evidence.extend(window.refusals());
    slow.then_some((Finding::DatabaseSlow, evidence))
}

fn leaking(window: &Window) -> Found {
    let (hold, oldest) = (window.healthy_hold()?, window.ages.oldest?);
    let slots = window.ages.stuck;
    let apart = oldest.saturating_sub(window.ages.youngest?);
    let is_stall = window.is_pressed() && apart <= stall_spread(window, hold);
    let leaks = slots > 0 && oldest >= hold.saturating_mul(STUCK) && !is_stall;
    let held = Evidence::HeldThrough {
        slots,
        oldest,
        hold,
    };
    let mut evidence = vec![held, window.usage()];
    evidence.extend(window.refusals());
    leaks.then_some((Finding::Leaking, evidence))
}

/// How far apart the holds of a stall may lie; in no time, if nobody has come whom it could have taken.
fn stall_spread(window: &Window, hold: Duration) -> Duration {
    let fill = formulas::full_after(window.max_connections, window.rate());
    let spread = fill.map(|fill| fill.saturating_add(hold).saturating_mul(SPREAD));
    spread.unwrap_or_default()
}

fn stalled(window: &Window) -> Found {
    let (before, age) = (window.healthy_hold()?, window.ages.median?);
    let stalled = window.is_pressed() && age >= before.saturating_mul(SLOW);
    let mut evidence = vec![Evidence::NothingEnds { before, age }, window.usage()];
    evidence.extend(window.refusals());
    stalled.then_some((Finding::DatabaseSlow, evidence))
}

fn queue_hides_overload(window: &Window) -> Found {
    let slots = f64::from(window.max_connections);
    let busy = window.in_use.average * 100.0 >= slots * f64::from(BUSY);
    let mut evidence = vec![window.queue(), window.usage()];
    evidence.extend(window.refusals());
    evidence.extend(window.useless_queue());
    (busy && waits_in_vain(window)).then_some((Finding::QueueHidesOverload, evidence))
}

/// See [the queue that hides](self#when-a-queue-hides-overload).
fn waits_in_vain(window: &Window) -> bool {
    let turns = window.waiting.average / f64::from(window.max_connections.max(1));
    let (told, gave_up) = (window.refused.at_once(), window.refused.wait_timeout);
    let untold = turns >= 1.0 && !window.is_loss(told);
    let left = window.is_loss(gave_up) && gave_up > told;
    let late = window
        .useful_queue()
        .is_some_and(|useful| window.waiting.average > f64::from(useful));
    untold || left || late || turns >= f64::from(LONG_QUEUE)
}

fn too_small(window: &Window, size: Option<Size>) -> Found {
    let overloaded = size.filter(|size| size.little > window.max_connections);
    let small = overloaded.is_some() || window.is_loss(window.refused.total());
    let mut evidence = Vec::from_iter(window.refusals());
    evidence.extend(size.map(|size| window.load(size)));
    evidence.push(window.usage());
    small.then_some((Finding::TooSmall, evidence))
}

fn stranded(window: &Window, size: Option<Size>) -> Found {
    let needed = size.and_then(|size| size.for_bursts).unwrap_or(0);
    let used = window.in_use.peak.max(needed);
    let spare = window
        .reserved
        .checked_sub(used)
        .filter(|spare| *spare > 0)?;
    let neighbours = window.neighbours;
    let refused = neighbours.refused_while_free;
    let matters = is_loss(refused, neighbours.arrivals);
    let strands = Evidence::NeighboursRefused {
        refused,
        arrivals: neighbours.arrivals,
        spare,
        reserved: window.reserved,
    };
    matters.then(|| (Finding::Stranded, vec![strands, window.usage()]))
}

/// Whether `calls` of `arrivals` are too many to be lost.
pub(crate) const fn is_loss(calls: u64, arrivals: u64) -> bool {
    calls >= FEWEST && calls.saturating_mul(100) >= arrivals.saturating_mul(LOSS)
}

fn healthy(window: &Window, size: Option<Size>) -> Vec<Evidence> {
    let load = size.map(|size| window.load(size));
    Vec::from_iter([window.usage()].into_iter().chain(load))
}
