//! The formulas of sizing.
//!
//! What can be a whole number is one: rates in millionths of a call per second, times in nanoseconds,
//! factors in percent. So 100 calls a second of 70 ms each need 7 slots; in floating point it would be 8,
//! since `100.0 * 0.07` is a little above 7.

use std::fmt;
use std::time::Duration;

use super::number::{float, nanos, ratio, whole};

const MILLION: u64 = 1_000_000;

/// Millionths of a call per second times nanoseconds, in one call.
const PER_CALL: u128 = 1_000_000_000_000_000;

/// Calls per second, in whole millionths.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::formulas::Rate;
///
/// assert_eq!(Rate::of(200).to_string(), "200/s");
/// assert_eq!(Rate::per_second(416.67).unwrap().to_string(), "416.67/s");
/// assert_eq!(Rate::per_second(-1.0), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// So many calls per second.
    #[must_use]
    pub const fn of(calls: u32) -> Self {
        Self(calls as u64 * MILLION)
    }

    /// So many calls per second, to the nearest millionth. `None` if that is negative, no number, or above
    /// a thousand million.
    #[must_use]
    pub fn per_second(calls: f64) -> Option<Self> {
        (0.0..=1e9)
            .contains(&calls)
            .then(|| Self(whole(calls * 1e6)))
    }

    /// So many calls in `time`, rounded down; 0 in no time.
    #[must_use]
    pub fn over(calls: u64, time: Duration) -> Self {
        let rate = u128::from(calls)
            .saturating_mul(PER_CALL)
            .checked_div(time.as_nanos());
        Self(u64::try_from(rate.unwrap_or(0)).unwrap_or(u64::MAX))
    }

    /// Calls per second.
    #[must_use]
    pub fn as_per_second(self) -> f64 {
        ratio(self.0.into(), MILLION.into())
    }

    /// Whole millionths of a call per second.
    #[must_use]
    pub const fn as_millionths(self) -> u64 {
        self.0
    }

    /// So many percent of it, rounded down to a millionth.
    #[must_use]
    pub fn percent(self, percent: u32) -> Self {
        let millionths = u128::from(self.0) * u128::from(percent) / 100;
        Self(u64::try_from(millionths).unwrap_or(u64::MAX))
    }

    /// The part of each of `replicas` that share it evenly, rounded up to a millionth; all of it for none.
    #[must_use]
    pub const fn divided(self, replicas: u32) -> Self {
        match replicas {
            0 => self,
            n => Self(self.0.div_ceil(n as u64)),
        }
    }

    /// What is left of it after `other`; not below 0.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.as_per_second())
    }
}

/// Slots that `rate` calls of `hold` each need, with `headroom_percent` of the mean: 100 is the mean itself,
/// 200 twice as much. `ceil(rate x hold x headroom)`.
///
/// Little's law: the mean number in a system is the rate of arrivals times the mean time spent in it
/// (J. D. C. Little, "A Proof for the Queuing Formula L = λW", Operations Research 9, 1961). It holds
/// whatever the distributions are, and says nothing of the peaks: that is what headroom is for.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::formulas::{Rate, slots};
///
/// assert_eq!(slots(Rate::of(100), Duration::from_millis(70), 100), 7);
/// assert_eq!(slots(Rate::of(200), Duration::from_millis(40), 200), 16);
/// ```
#[must_use]
pub fn slots(rate: Rate, hold: Duration, headroom_percent: u32) -> u32 {
    slots_together([(rate, hold, headroom_percent)])
}

/// As [`slots`], for several flows that share them: rounded up once.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::formulas::{Rate, slots, slots_together};
///
/// let small = (Rate::of(1), Duration::from_millis(400), 100);
/// assert_eq!(slots(small.0, small.1, small.2) * 2, 2);
/// assert_eq!(slots_together([small, small]), 1);
/// ```
#[must_use]
pub fn slots_together(flows: impl IntoIterator<Item = (Rate, Duration, u32)>) -> u32 {
    let load = |(rate, hold, percent): (Rate, Duration, u32)| {
        let load = u128::from(rate.0).saturating_mul(hold.as_nanos());
        load.saturating_mul(percent.into())
    };
    let load = flows.into_iter().map(load).fold(0, u128::saturating_add);
    u32::try_from(load.div_ceil(PER_CALL * 100)).unwrap_or(u32::MAX)
}

/// The mean number of calls in flight, `rate x hold`, in erlangs: Little's law without rounding.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::formulas::{Rate, erlangs};
///
/// assert_eq!(erlangs(Rate::of(200), Duration::from_millis(40)), 8.0);
/// ```
#[must_use]
pub fn erlangs(rate: Rate, hold: Duration) -> f64 {
    ratio(u128::from(rate.0).saturating_mul(hold.as_nanos()), PER_CALL)
}

/// Calls per second that `slots` can carry: `slots / hold`, rounded down to a millionth.
///
/// Little's law with every slot busy. No arrangement of a queue carries more.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::formulas::{Rate, capacity};
///
/// assert_eq!(capacity(20, Duration::from_millis(40)), Rate::of(500));
/// ```
#[must_use]
pub fn capacity(slots: u32, hold: Duration) -> Rate {
    if hold.is_zero() {
        return Rate(u64::MAX);
    }
    Rate::over(slots.into(), hold)
}

/// How long `slots` that are all free last when calls come at `rate` and none ends: `slots / rate`.
/// `None` if none comes.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::formulas::{Rate, full_after};
///
/// assert_eq!(full_after(50, Rate::of(25)), Some(Duration::from_secs(2)));
/// ```
#[must_use]
pub fn full_after(slots: u32, rate: Rate) -> Option<Duration> {
    let nanos = (u128::from(slots) * PER_CALL).checked_div(rate.0.into())?;
    Some(Duration::from_nanos(
        u64::try_from(nanos).unwrap_or(u64::MAX),
    ))
}

/// The most callers of whom the last still ends in time: `slots x floor((deadline - hold) / hold)`.
///
/// Served in turns of `slots` calls, each turn lasting `hold`, a caller in the k-th turn of the queue
/// starts after k holds and ends after k + 1. Those behind it would wait to be late.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::formulas::useful_queue;
///
/// assert_eq!(useful_queue(15, Duration::from_secs(1), Duration::from_millis(40)), 360);
/// ```
#[must_use]
pub fn useful_queue(slots: u32, deadline: Duration, hold: Duration) -> u32 {
    let spare = deadline.saturating_sub(hold).as_nanos();
    let turns = spare.checked_div(hold.as_nanos()).unwrap_or(u128::MAX);
    u32::try_from(turns.saturating_mul(slots.into())).unwrap_or(u32::MAX)
}

/// How long the last of `queue` callers waits: `ceil(queue / slots) x hold`, in turns as in
/// [`useful_queue`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::formulas::last_wait;
///
/// assert_eq!(last_wait(15, 30, Duration::from_millis(40)), Duration::from_millis(80));
/// ```
#[must_use]
pub fn last_wait(slots: u32, queue: u32, hold: Duration) -> Duration {
    hold.saturating_mul(queue.div_ceil(slots.max(1)))
}

/// Replicas of `per_replica` connections that fit under a limit.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::formulas::replicas_that_fit;
///
/// assert_eq!(replicas_that_fit(97, 30), 3);
/// ```
#[must_use]
pub const fn replicas_that_fit(limit: u32, per_replica: u32) -> u32 {
    match limit.checked_div(per_replica) {
        Some(replicas) => replicas,
        None => u32::MAX,
    }
}

/// The share of calls that find all `slots` taken, without a queue.
///
/// Erlang's loss formula, by its recursion `B(0) = 1`, `B(n) = a B(n-1) / (n + a B(n-1))` (A. K. Erlang,
/// 1917). For Poisson arrivals; it depends on the mean of the holds and on nothing else of them.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::formulas::erlang_b;
///
/// assert_eq!(format!("{:.3}", erlang_b(10, 5.0)), "0.018");
/// ```
#[must_use]
pub fn erlang_b(slots: u32, erlangs: f64) -> f64 {
    (1..=slots).fold(1.0, |loss, n| {
        let busy = erlangs * loss;
        busy / (f64::from(n) + busy)
    })
}

/// A bounded queue before some slots, in the long run.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::formulas::mmck;
///
/// // One slot at half load, a long queue: who has to wait is every second, for two holds.
/// let one = mmck(1, 500, 0.5);
/// assert_eq!(format!("{:.2}", one.waits), "0.50");
/// assert_eq!(one.wait(Duration::from_millis(40)), Duration::from_millis(40));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Queueing {
    /// The share of calls that are refused because the queue is full.
    pub refused: f64,
    /// The share of calls that have to wait.
    pub waits: f64,
    /// Callers that wait, on average.
    pub waiting: f64,
    /// The mean wait of those who are served, as a multiple of the mean hold.
    pub wait_in_holds: f64,
}

impl Queueing {
    /// The mean wait of those who are served.
    #[must_use]
    pub fn wait(&self, hold: Duration) -> Duration {
        Duration::from_nanos(whole(self.wait_in_holds * float(nanos(hold).into())))
    }
}

/// Poisson arrivals of `erlangs`, exponential holds, `slots`, and at most `queue` that wait.
///
/// The system M/M/c/K with `c = slots` and `K = slots + queue` (L. Kleinrock, "Queueing Systems" I, 1975,
/// section 3.8), place by place: `P(n+1) = r P(n) / (1 + r P(n))` with `r = erlangs / slots`, the mean
/// scaled along. It neither overflows nor cancels. With a queue of 0 it is [`erlang_b`]. Takes time in
/// proportion to `slots + queue`.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::formulas::{erlang_b, mmck};
///
/// let queueing = mmck(10, 20, 8.0);
/// assert!(queueing.refused < mmck(10, 0, 8.0).refused);
/// assert_eq!(mmck(10, 0, 8.0).refused, erlang_b(10, 8.0));
/// ```
#[must_use]
pub fn mmck(slots: u32, queue: u32, erlangs: f64) -> Queueing {
    let r = erlangs / f64::from(slots.max(1));
    // `busy` is the probability that every slot is held, `full` that the last place is taken, too.
    let mut full = erlang_b(slots, erlangs);
    let (mut busy, mut waiting) = (full, 0.0);
    for place in 1..=queue {
        full = r * full / (1.0 + r * full);
        busy = busy * (1.0 - full) + full;
        waiting = waiting * (1.0 - full) + f64::from(place) * full;
    }
    let served = erlangs * (1.0 - full);
    Queueing {
        refused: full,
        waits: busy - full,
        waiting,
        wait_in_holds: if served > 0.0 { waiting / served } else { 0.0 },
    }
}

/// The share that [`mmck`] refuses, without a step for each place of the queue: the reciprocals of its
/// `P(n)` follow `1 / P(n+1) = 1 + 1 / (r P(n))`, a geometric series.
fn refused(slots: u32, queue: u32, erlangs: f64) -> f64 {
    let (loss, places) = (erlang_b(slots, erlangs), f64::from(queue));
    let log_r = libm::log(erlangs / f64::from(slots.max(1)));
    if queue == 0 || loss <= 0.0 || log_r.abs() < 1e-12 {
        return loss / (1.0 + places * loss);
    }
    let series = libm::expm1(-places * log_r) / libm::expm1(-log_r);
    1.0 / (libm::exp(-places * log_r) / loss + series)
}

/// The most slots that [`slots_for_loss`] looks at.
const MOST_SLOTS: u32 = 100_000;

/// The fewest slots with which at most `loss` of the calls are refused, behind a queue of `queue`;
/// by [`mmck`]. `None` if 100,000 would not be enough.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::formulas::{mmck, slots_for_loss};
///
/// let slots = slots_for_loss(8.0, 16, 0.01).unwrap();
/// assert!(mmck(slots, 16, 8.0).refused <= 0.01 && mmck(slots - 1, 16, 8.0).refused > 0.01);
/// ```
#[must_use]
pub fn slots_for_loss(erlangs: f64, queue: u32, loss: f64) -> Option<u32> {
    let enough = |slots: &u32| refused(*slots, queue, erlangs) <= loss;
    let powers = (0..).map(|n| 1 << n).take_while(|n| *n < MOST_SLOTS);
    let most = powers.chain([MOST_SLOTS]).find(enough)?;
    let (mut too_few, mut fewest) = (most / 2, most);
    while fewest - too_few > 1 {
        let middle = too_few.midpoint(fewest);
        if enough(&middle) {
            fewest = middle;
        } else {
            too_few = middle;
        }
    }
    Some(fewest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    /// The stationary distribution of M/M/c/K as the balance equations give it.
    fn by_balance(slots: u32, queue: u32, erlangs: f64) -> Queueing {
        let mut weights = vec![1.0];
        for n in 1..=slots + queue {
            weights.push(weights.last().unwrap() * erlangs / f64::from(n.min(slots)));
        }
        let all = weights.iter().sum::<f64>();
        let waiting = (0..=queue).zip(&weights[slots as usize..]);
        let waiting = waiting.map(|(n, w)| f64::from(n) * w).sum::<f64>() / all;
        let full = weights.last().unwrap() / all;
        Queueing {
            refused: full,
            waits: weights[slots as usize..].iter().sum::<f64>() / all - full,
            waiting,
            wait_in_holds: waiting / (erlangs * (1.0 - full)),
        }
    }

    #[test]
    fn the_recursions_agree_with_the_balance_equations() {
        for (slots, queue, erlangs) in [(1, 0, 0.5), (3, 4, 2.5), (8, 20, 8.0), (5, 3, 40.0)] {
            let (ours, exact) = (
                mmck(slots, queue, erlangs),
                by_balance(slots, queue, erlangs),
            );
            assert!(near(ours.refused, exact.refused), "{ours:?} {exact:?}");
            assert!(near(ours.waits, exact.waits), "{ours:?} {exact:?}");
            assert!(near(ours.waiting, exact.waiting), "{ours:?} {exact:?}");
            assert!(near(ours.wait_in_holds, exact.wait_in_holds));
        }
        assert!(near(mmck(7, 0, 5.5).refused, erlang_b(7, 5.5)));
    }

    #[test]
    fn the_series_agrees_with_the_steps() {
        for (slots, queue, erlangs) in [
            (1, 0, 0.5),
            (3, 4, 2.5),
            (8, 20, 8.0),
            (8, 20, 8.000_001),
            (5, 3, 40.0),
            (5, 1000, 4.9),
            (9, 9, 0.0),
        ] {
            let (series, steps) = (refused(slots, queue, erlangs), mmck(slots, queue, erlangs));
            assert!(near(series, steps.refused), "{series} {steps:?}");
        }
        assert!(near(refused(4, u32::MAX, 5.0), 0.2) && refused(4, u32::MAX, 3.0) <= 0.0);
    }

    #[test]
    fn a_single_server_waits_as_the_textbook_says() {
        // M/M/1 with a load of one half: the mean wait is one hold.
        let long = mmck(1, 500, 0.5);
        assert!(near(long.wait_in_holds, 1.0) && near(long.waits, 0.5));
        assert_eq!(long.wait(ms(40)), ms(40));
    }

    #[test]
    fn the_fewest_slots_for_a_loss_are_the_fewest() {
        for (erlangs, queue) in [(0.0, 0), (3.0, 0), (8.0, 0), (8.0, 16), (120.0, 5)] {
            let slots = slots_for_loss(erlangs, queue, 0.01).unwrap();
            assert!(mmck(slots, queue, erlangs).refused <= 0.01);
            assert!(slots == 1 || mmck(slots - 1, queue, erlangs).refused > 0.01);
        }
        assert_eq!(slots_for_loss(1e9, 0, 0.01), None);
    }

    #[test]
    fn rates_are_scaled_and_shared() {
        assert_eq!(Rate::of(200).percent(150), Rate::of(300));
        assert_eq!(Rate::of(1).divided(3), Rate(333_334));
        assert_eq!(Rate::of(4000).divided(20), Rate::of(200));
        assert_eq!(Rate::of(4).divided(0), Rate::of(4));
        assert_eq!(Rate(u64::MAX).percent(u32::MAX), Rate(u64::MAX));
    }

    #[test]
    fn extremes_saturate() {
        let huge = Rate::per_second(1e9).unwrap();
        assert_eq!(slots(huge, Duration::MAX, u32::MAX), u32::MAX);
        assert_eq!(slots(Rate::of(0), secs(1), 100), 0);
        assert_eq!(capacity(1, Duration::ZERO), Rate(u64::MAX));
        assert_eq!(full_after(5, Rate::of(0)), None);
        assert_eq!(useful_queue(4, secs(1), Duration::ZERO), u32::MAX);
        assert_eq!(last_wait(0, 3, secs(1)), secs(3));
        assert_eq!(replicas_that_fit(100, 0), u32::MAX);
        assert!(
            [f64::NAN, -0.1, 1e10]
                .iter()
                .all(|r| Rate::per_second(*r).is_none())
        );
    }
}
