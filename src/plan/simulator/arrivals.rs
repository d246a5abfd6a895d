//! When calls come.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Arc;
use std::time::Duration;

use crate::plan::formulas::Rate;
use crate::plan::number::{float, nanos, whole};

use super::csv::{self, InvalidCsv};
use super::random::Random;

/// When the calls of a flow come.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::simulator::Arrivals;
///
/// let every = Duration::from_millis(5);
/// assert_eq!(Arrivals::regular(Rate::of(200)), Arrivals::Regular { every, batch: 1 });
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Arrivals {
    /// `batch` calls at once, at 0 and then always after `every`.
    Regular {
        /// From one batch to the next; not zero.
        every: Duration,
        /// Calls of a batch.
        batch: u32,
    },
    /// Independent callers: a Poisson process of this rate.
    Poisson(Rate),
    /// At these times, in ascending order.
    Trace(Arc<[Duration]>),
}

impl Arrivals {
    /// One call at a time, evenly spaced. No call at all at a rate of 0.
    #[must_use]
    pub fn regular(rate: Rate) -> Self {
        match crate::plan::formulas::full_after(1, rate) {
            Some(every) => Self::Regular { every, batch: 1 },
            None => Self::trace([]),
        }
    }

    /// At these times, put in order.
    #[must_use]
    pub fn trace(times: impl IntoIterator<Item = Duration>) -> Self {
        let mut times: Vec<_> = times.into_iter().collect();
        times.sort_unstable();
        Self::Trace(times.into())
    }

    /// A trace from the first column of a CSV text: seconds since the start, with up to nine decimals.
    /// A first line that begins with a letter and has no number in any column is a heading; empty lines and lines that begin with `#` are passed over.
    ///
    /// # Errors
    /// The first line that has no time, with its number.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use partitioned_pool::plan::simulator::Arrivals;
    ///
    /// let day = Arrivals::from_csv("seconds,path\n0.25,/pay\n1.5,/cart\n")?;
    /// let times = [Duration::from_millis(250), Duration::from_millis(1500)];
    /// assert_eq!(day, Arrivals::trace(times));
    /// # Ok::<(), partitioned_pool::plan::simulator::InvalidCsv>(())
    /// ```
    pub fn from_csv(text: &str) -> Result<Self, InvalidCsv> {
        csv::seconds(text).map(Self::trace)
    }

    /// How many calls there will be before `length`: for a Poisson process, on average.
    pub(super) fn expected(&self, length: Duration) -> u64 {
        match self {
            Self::Regular { every, batch } => {
                let batches = length.as_nanos().div_ceil(every.as_nanos().max(1));
                let calls = batches.saturating_mul((*batch).into());
                u64::try_from(calls).unwrap_or(u64::MAX)
            }
            Self::Poisson(rate) => whole(rate.as_per_second() * length.as_secs_f64()),
            Self::Trace(times) => times.iter().filter(|at| **at < length).count() as u64,
        }
    }

    pub(super) fn source(&self, random: Random) -> Source<'_> {
        match self {
            Self::Regular { every, batch } => Source::Regular {
                at: 0,
                every: nanos(*every),
                batch: *batch,
                left: *batch,
            },
            Self::Poisson(rate) => Source::Poisson {
                at: 0,
                mean_gap: 1e15 / float(rate.as_millionths().into()),
                random,
            },
            Self::Trace(times) => Source::Trace(times.iter()),
        }
    }
}

/// The times at which calls come, in nanoseconds and in order.
pub(super) enum Source<'a> {
    Regular {
        at: u64,
        every: u64,
        batch: u32,
        left: u32,
    },
    Poisson {
        at: u64,
        /// In nanoseconds; infinite for a rate of 0.
        mean_gap: f64,
        random: Random,
    },
    Trace(std::slice::Iter<'a, Duration>),
}

impl Iterator for Source<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        match self {
            Self::Regular { batch: 0, .. } => None,
            Self::Regular {
                at,
                every,
                batch,
                left,
            } => {
                if *left == 0 {
                    (*at, *left) = (at.checked_add(*every)?, *batch);
                }
                *left -= 1;
                Some(*at)
            }
            Self::Poisson {
                at,
                mean_gap,
                random,
            } => {
                let gap = random.exponential() * *mean_gap;
                *at = at.checked_add(whole(gap)).filter(|_| gap.is_finite())?;
                Some(*at)
            }
            Self::Trace(times) => times.next().map(|at| nanos(*at)),
        }
    }
}

/// The calls of several flows, in order of time; at the same instant in the order of the flows.
pub(super) struct Merged<'a> {
    sources: Vec<Source<'a>>,
    /// The next call of each flow that has one.
    next: BinaryHeap<Reverse<(u64, usize)>>,
}

impl<'a> Merged<'a> {
    pub(super) fn new(sources: impl IntoIterator<Item = Source<'a>>) -> Self {
        let mut sources: Vec<_> = sources.into_iter().collect();
        let first = sources.iter_mut().enumerate();
        let first = first.filter_map(|(flow, source)| Some(Reverse((source.next()?, flow))));
        Self {
            next: first.collect(),
            sources,
        }
    }
}

impl Iterator for Merged<'_> {
    /// The time, and the position of the flow.
    type Item = (u64, usize);

    #[inline]
    fn next(&mut self) -> Option<(u64, usize)> {
        let mut head = self.next.peek_mut()?;
        let Reverse((at, flow)) = *head;
        match self.sources[flow].next() {
            Some(next) => *head = Reverse((next, flow)),
            None => drop(PeekMut::pop(head)),
        }
        Some((at, flow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(arrivals: &Arrivals, n: usize) -> Vec<u64> {
        arrivals.source(Random::new(1)).take(n).collect()
    }

    #[test]
    fn regular_calls_come_in_batches_from_the_start() {
        let every = Duration::from_nanos(10);
        let arrivals = Arrivals::Regular { every, batch: 2 };
        assert_eq!(times(&arrivals, 5), [0, 0, 10, 10, 20]);
        assert_eq!(arrivals.expected(Duration::from_nanos(21)), 6);
        assert_eq!(times(&Arrivals::regular(Rate::of(4)), 2), [0, 250_000_000]);
        assert!(times(&Arrivals::regular(Rate::of(0)), 2).is_empty());
        assert!(times(&Arrivals::Regular { every, batch: 0 }, 2).is_empty());
    }

    #[test]
    fn a_poisson_process_has_its_rate_and_its_spread() {
        let arrivals = Arrivals::Poisson(Rate::of(1000));
        let calls = arrivals.source(Random::new(9));
        let mut per_second = [0_i64; 200];
        for at in calls.take_while(|at| *at < 200_000_000_000) {
            per_second[usize::try_from(at / 1_000_000_000).unwrap()] += 1;
        }
        let mean = per_second.iter().sum::<i64>() / 200;
        let variance = per_second.iter().map(|n| (n - 1000).pow(2)).sum::<i64>() / 200;
        assert!((995..=1005).contains(&mean), "{mean}");
        assert!((800..=1200).contains(&variance), "{variance}");
        assert!(times(&Arrivals::Poisson(Rate::of(0)), 2).is_empty());
    }

    #[test]
    fn flows_are_merged_in_order_of_time_and_then_of_their_own() {
        let at = |times: [u64; 3]| Arrivals::trace(times.map(Duration::from_nanos));
        let (a, b) = (at([9, 5, 5]), at([7, 5, 1]));
        let merged = Merged::new([&a, &b].map(|flow| flow.source(Random::new(0))));
        let expected = [(1, 1), (5, 0), (5, 0), (5, 1), (7, 1), (9, 0)];
        assert!(merged.eq(expected));
    }
}
