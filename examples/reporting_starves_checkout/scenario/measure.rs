//! From calls to figures, by phase.

use std::time::Duration;

use tokio::time::Instant;

use super::backends::Seen;
use super::calls::{Outcome, Tally, percentile};
use super::layout::Kind;
use super::plan::{Phase, Plan};
use super::workload::{Checkout, Report};

/// Latencies of the calls that were answered or left at the deadline. What was rejected or failed is not in
/// it: a quick refusal must not make a phase look fast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latency {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) max: Duration,
}

impl Latency {
    /// `None` without a call.
    pub(crate) fn of(checkouts: &[&Checkout]) -> Option<Self> {
        let counts = |c: &&&Checkout| matches!(c.outcome, Outcome::Ok | Outcome::Late);
        let mut sorted: Vec<_> = checkouts.iter().filter(counts).map(|c| c.latency).collect();
        sorted.sort_unstable();
        Some(Self {
            p50: percentile(&sorted, 50)?,
            p99: percentile(&sorted, 99)?,
            max: percentile(&sorted, 100)?,
        })
    }
}

/// What a phase came to.
#[derive(Clone, Debug)]
pub(crate) struct PhaseFigures {
    pub(crate) phase: Phase,
    pub(crate) checkout: Tally,
    pub(crate) latency: Option<Latency>,
    pub(crate) reports: Tally,
    /// Until the last report that was rejected knew it.
    pub(crate) slowest_rejection: Option<Duration>,
    /// The most server connections that pg_stat_activity showed.
    pub(crate) peak_backends: u32,
    /// How often it was looked at.
    pub(crate) looks: u32,
    /// The longest time between two looks, over a connection that has nothing to do with the layout.
    pub(crate) longest_gap: Duration,
}

/// What a layout came to.
#[derive(Clone, Debug)]
pub(crate) struct LayoutFigures {
    pub(crate) layout: Kind,
    pub(crate) phases: [PhaseFigures; 3],
    /// Every checkout, by its planned arrival.
    pub(crate) checkouts: Vec<Checkout>,
}

/// What was observed of a layout, as it came.
pub(super) struct Observed {
    pub(super) start: Instant,
    pub(super) checkouts: Vec<Checkout>,
    pub(super) reports: Vec<Report>,
    pub(super) seen: Vec<Seen>,
}

impl LayoutFigures {
    pub(super) fn new(layout: Kind, plan: &Plan, observed: Observed) -> Self {
        Self {
            layout,
            phases: Phase::ALL.map(|phase| observed.figures(phase, plan)),
            checkouts: observed.checkouts,
        }
    }

    pub(crate) fn phase(&self, phase: Phase) -> &PhaseFigures {
        let found = self.phases.iter().find(|figures| figures.phase == phase);
        found.expect("bug: every phase has its figures")
    }
}

impl Observed {
    /// A checkout counts for the phase of its planned arrival, a report for the incident, in which all start.
    fn figures(&self, phase: Phase, plan: &Plan) -> PhaseFigures {
        let in_phase = |c: &&Checkout| plan.phase_at(c.planned) == phase;
        let checkouts: Vec<_> = self.checkouts.iter().filter(in_phase).collect();
        let reports = match phase {
            Phase::Incident => self.reports.as_slice(),
            Phase::Before | Phase::After => &[],
        };
        let seen = self.seen_in(phase, plan);
        let gaps = seen.windows(2).map(|pair| pair[1].at - pair[0].at);
        PhaseFigures {
            phase,
            checkout: Tally::of(checkouts.iter().map(|c| &c.outcome)),
            latency: Latency::of(&checkouts),
            reports: Tally::of(reports.iter().map(|r| &r.outcome)),
            slowest_rejection: slowest_rejection(reports),
            peak_backends: seen.iter().map(|seen| seen.backends).max().unwrap_or(0),
            looks: u32::try_from(seen.len()).expect("bug: fifty a second"),
            longest_gap: gaps.max().unwrap_or(plan.lasts(phase)),
        }
    }

    fn seen_in(&self, phase: Phase, plan: &Plan) -> Vec<Seen> {
        let at = |seen: &Seen| seen.at.checked_duration_since(self.start);
        let in_phase = |seen: &&Seen| at(seen).is_some_and(|at| plan.phase_at(at) == phase);
        self.seen.iter().filter(in_phase).copied().collect()
    }
}

fn slowest_rejection(reports: &[Report]) -> Option<Duration> {
    let rejected = |r: &&Report| matches!(r.outcome, Outcome::Rejected(_));
    reports.iter().filter(rejected).map(|r| r.latency).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkout(millis: u64, outcome: Outcome) -> Checkout {
        Checkout {
            planned: Duration::ZERO,
            latency: Duration::from_millis(millis),
            outcome,
        }
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let checkouts: Vec<_> = (1..=200).map(|n| checkout(n, Outcome::Ok)).collect();
        let latency = Latency::of(&checkouts.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(latency.p50, Duration::from_millis(100));
        assert_eq!(latency.p99, Duration::from_millis(198));
        assert_eq!(latency.max, Duration::from_millis(200));
    }

    #[test]
    fn a_quick_refusal_does_not_make_a_phase_look_fast() {
        let refused = Outcome::Rejected("full".into());
        let checkouts = [checkout(1, refused), checkout(1000, Outcome::Late)];
        let latency = Latency::of(&checkouts.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(latency.p50, Duration::from_millis(1000));
        assert_eq!(Latency::of(&[&checkouts[0]]), None);
    }
}
