//! From calls to figures: of an hour, and of all hours of a layout and a day.

use std::time::Duration;

use partitioned_pool::plan::simulator::FlowOutcome;

use crate::calls::{Outcome, percentile};
use crate::plan::{CAPACITY, Day, Flow, Layout};
use crate::script::Predicted;
use crate::watch::Seen;

/// A call that was made.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) flow: Flow,
    /// `None` if the hour was over first.
    pub(crate) outcome: Option<Outcome>,
    /// From the call to the connection in hand.
    pub(crate) wait: Option<Duration>,
    /// From when until when it had its connection, since the start of the hour.
    pub(crate) held: Option<(Duration, Duration)>,
    /// Its partition was below its reservation in the moment in which it asked.
    pub(crate) below: bool,
    /// It was not served in that very moment, and was put into the queue of its partition.
    pub(crate) queued: bool,
    /// It was not served in that very moment.
    pub(crate) waited: bool,
}

/// What became of the calls of one flow, on the server or in the simulator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) late: u64,
    pub(crate) failed: u64,
    /// The hour was over first.
    pub(crate) unfinished: u64,
    /// Of those that had a connection: how long they waited for it; in ascending order.
    pub(crate) waits: Vec<Duration>,
    /// What the first call was told that was refused or failed.
    pub(crate) trouble: Option<String>,
}

impl Work {
    pub(crate) fn predicted(outcome: &FlowOutcome, mut waits: Vec<Duration>) -> Self {
        waits.sort_unstable();
        Self {
            served: outcome.served,
            refused: outcome.refused.total(),
            late: outcome.late,
            failed: 0,
            unfinished: outcome.running + outcome.waiting,
            waits,
            trouble: None,
        }
    }

    pub(crate) fn measured<'a>(calls: impl Iterator<Item = &'a Made>) -> Self {
        let mut work = Self::default();
        for call in calls {
            let count = match &call.outcome {
                Some(Outcome::Ok) => &mut work.served,
                Some(Outcome::Rejected(_)) => &mut work.refused,
                Some(Outcome::Failed(_)) => &mut work.failed,
                Some(Outcome::Late) => &mut work.late,
                None => &mut work.unfinished,
            };
            *count += 1;
            if let Some(Outcome::Rejected(told) | Outcome::Failed(told)) = &call.outcome {
                work.trouble.get_or_insert_with(|| told.clone());
            }
            work.waits.extend(call.wait);
        }
        work.waits.sort_unstable();
        work
    }

    pub(crate) fn arrived(&self) -> u64 {
        self.served + self.lost() + self.unfinished
    }

    /// Calls that were of no use to their caller.
    pub(crate) fn lost(&self) -> u64 {
        self.refused + self.late + self.failed
    }

    pub(crate) fn p99(&self) -> Option<Duration> {
        percentile(&self.waits, 99)
    }

    fn add(mut self, other: &Self) -> Self {
        self.served += other.served;
        self.refused += other.refused;
        self.late += other.late;
        self.failed += other.failed;
        self.unfinished += other.unfinished;
        self.waits.extend(&other.waits);
        self.waits.sort_unstable();
        self.trouble = self.trouble.or_else(|| other.trouble.clone());
        self
    }
}

/// The calls of partitions that were below their reservation when they asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Below {
    pub(crate) calls: u64,
    /// Those that were refused, or never had an answer.
    pub(crate) refused: u64,
    /// Those that had to wait for a slot.
    pub(crate) queued: u64,
    /// How long they waited for their connection, in ascending order.
    pub(crate) waits: Vec<Duration>,
    /// The same of those only that had to wait at all.
    pub(crate) not_at_once: Vec<Duration>,
}

impl Below {
    fn of(calls: &[Made]) -> Self {
        let mut below = Self::default();
        for call in calls.iter().filter(|call| call.below) {
            below.calls += 1;
            below.refused += u64::from(matches!(call.outcome, Some(Outcome::Rejected(_))));
            below.queued += u64::from(call.queued);
            below.waits.extend(call.wait);
            below.not_at_once.extend(call.wait.filter(|_| call.waited));
        }
        below.waits.sort_unstable();
        below.not_at_once.sort_unstable();
        below
    }

    fn add(mut self, other: &Self) -> Self {
        self.calls += other.calls;
        self.refused += other.refused;
        self.queued += other.queued;
        self.waits.extend(&other.waits);
        self.waits.sort_unstable();
        self.not_at_once.extend(&other.not_at_once);
        self.not_at_once.sort_unstable();
        self
    }
}

/// What connections cost in an hour, and this machine; each in ascending order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) openings: Vec<Duration>,
    pub(crate) dressings: Vec<Duration>,
    /// How long a sleep of a millisecond takes in the runtime of the calls. The pool lets a caller wait so long for
    /// a connection of its own partition that is on the way back; what is above it is what the machine adds.
    pub(crate) moments: Vec<Duration>,
}

impl Costs {
    /// The p99 of openings or that of dressings, whichever is larger.
    pub(crate) fn connection(&self) -> Duration {
        let p99 = |sorted: &[Duration]| percentile(sorted, 99).unwrap_or_default();
        p99(&self.openings).max(p99(&self.dressings))
    }

    /// What the pool's patience and this machine may add to it.
    pub(crate) fn allowance(&self) -> Duration {
        percentile(&self.moments, 99).unwrap_or_default()
    }

    /// The p99 that a partition below its reservation may have.
    pub(crate) fn allowed(&self) -> Duration {
        self.connection() + self.allowance()
    }

    fn add(mut self, other: &Self) -> Self {
        for (mine, others) in [
            (&mut self.openings, &other.openings),
            (&mut self.dressings, &other.dressings),
            (&mut self.moments, &other.moments),
        ] {
            mine.extend(others);
            mine.sort_unstable();
        }
        self
    }
}

/// One hour in one layout.
#[derive(Clone, Debug)]
pub(crate) struct Hour {
    pub(crate) seed: u64,
    pub(crate) works: [Work; 2],
    pub(crate) below: Below,
    pub(crate) costs: Costs,
    pub(crate) utilisation: f64,
    /// Connections in callers' hands, for the picture.
    pub(crate) curves: [Vec<f64>; 2],
    pub(crate) seen: Seen,
    pub(crate) looks_a_second: f64,
    pub(crate) predicted: Predicted,
    /// What is reserved to checkout carries its load with nothing borrowed.
    pub(crate) covers: bool,
}

/// What an hour left behind.
#[derive(Debug)]
pub(crate) struct Played {
    pub(crate) length: Duration,
    pub(crate) calls: Vec<Made>,
    pub(crate) costs: Costs,
    pub(crate) seen: Seen,
    pub(crate) looks_a_second: f64,
}

impl Hour {
    pub(crate) fn new(seed: u64, played: Played, predicted: Predicted, covers: bool) -> Self {
        let of = |flow| played.calls.iter().filter(move |call| call.flow == flow);
        let curves = Flow::ALL.map(|flow| curve(of(flow), played.length));
        let both = curves[0].iter().chain(&curves[1]);
        Self {
            seed,
            works: Flow::ALL.map(|flow| Work::measured(of(flow))),
            below: Below::of(&played.calls),
            costs: Costs::default().add(&played.costs),
            utilisation: both.sum::<f64>() / POINTS_F / f64::from(CAPACITY),
            curves,
            seen: played.seen,
            looks_a_second: played.looks_a_second,
            predicted,
            covers,
        }
    }

    pub(crate) fn work(&self, flow: Flow) -> &Work {
        &self.works[flow.index()]
    }
}

/// Points of a curve; each is the mean over its time.
const POINTS: u32 = 200;
const POINTS_F: f64 = 200.0;

fn curve<'a>(calls: impl Iterator<Item = &'a Made>, length: Duration) -> Vec<f64> {
    let held: Vec<_> = calls.filter_map(|call| call.held).collect();
    let step = length / POINTS;
    let point = |n: u32| {
        let (from, until) = (step * n, step * (n + 1));
        let within = |(a, b): &(Duration, Duration)| (*b).min(until).saturating_sub((*a).max(from));
        held.iter().map(within).sum::<Duration>().as_secs_f64() / step.as_secs_f64()
    };
    (0..POINTS).map(point).collect()
}

/// All hours of one layout and day.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) layout: Layout,
    pub(crate) day: Day,
    /// At least one.
    pub(crate) hours: Vec<Hour>,
}

impl Figures {
    pub(crate) fn work(&self, flow: Flow) -> Work {
        let works = self.hours.iter().map(|hour| hour.work(flow));
        works.fold(Work::default(), Work::add)
    }

    pub(crate) fn predicted(&self, flow: Flow) -> Work {
        let works = self
            .hours
            .iter()
            .map(|hour| &hour.predicted.works[flow.index()]);
        works.fold(Work::default(), Work::add)
    }

    pub(crate) fn below(&self) -> Below {
        let all = self.hours.iter().map(|hour| &hour.below);
        all.fold(Below::default(), Below::add)
    }

    pub(crate) fn costs(&self) -> Costs {
        let all = self.hours.iter().map(|hour| &hour.costs);
        all.fold(Costs::default(), Costs::add)
    }

    /// Measured and predicted, as shares of all connections.
    pub(crate) fn utilisation(&self) -> (f64, f64) {
        let hours = f64::from(u32::try_from(self.hours.len()).expect("bug: a few hours"));
        let mean = |pick: fn(&Hour) -> f64| self.hours.iter().map(pick).sum::<f64>() / hours;
        (
            mean(|hour| hour.utilisation),
            mean(|hour| hour.predicted.utilisation),
        )
    }

    pub(crate) fn peak(&self) -> u32 {
        self.hours
            .iter()
            .map(|hour| hour.seen.most)
            .max()
            .unwrap_or(0)
    }

    pub(crate) fn looks_a_second(&self) -> f64 {
        let looks = self.hours.iter().map(|hour| hour.looks_a_second);
        looks.fold(f64::INFINITY, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(outcome: Option<Outcome>, below: bool, wait: u64) -> Made {
        let ms = Duration::from_millis;
        Made {
            flow: Flow::Checkout,
            outcome,
            wait: Some(ms(wait)),
            held: Some((ms(100), ms(200))),
            below,
            queued: false,
            waited: wait > 0,
        }
    }

    #[test]
    fn every_call_is_counted_once_and_only_the_first_trouble_is_kept() {
        let told = |text: &str| Some(Outcome::Rejected(text.to_owned()));
        let calls = [
            made(Some(Outcome::Ok), true, 3),
            made(told("full"), true, 1),
            made(told("late"), false, 2),
            made(Some(Outcome::Late), false, 0),
            made(None, false, 0),
        ];
        let work = Work::measured(calls.iter());
        assert_eq!(
            (work.served, work.refused, work.late, work.unfinished),
            (1, 2, 1, 1)
        );
        assert_eq!((work.arrived(), work.lost()), (5, 3));
        assert_eq!(work.trouble.as_deref(), Some("full"));
        assert!(work.waits.is_sorted());
        let below = Below::of(&calls);
        assert_eq!((below.calls, below.refused, below.waits.len()), (2, 1, 2));
    }

    #[test]
    fn a_curve_is_the_mean_number_of_connections_in_hand() {
        let calls = [made(None, false, 0), made(None, false, 0)];
        let curve = curve(calls.iter(), Duration::from_secs(1));
        // Two hold from 100 ms to 200 ms, and a point is 5 ms.
        assert!(
            curve[..20]
                .iter()
                .chain(&curve[40..])
                .all(|held| *held == 0.0)
        );
        assert!(curve[20..40].iter().all(|held| (held - 2.0).abs() < 1e-9));
    }
}
