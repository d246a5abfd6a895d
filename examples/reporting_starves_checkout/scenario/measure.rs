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
    /// What the reports have read, together.
    pub(crate) rows: u64,
    pub(crate) primary: Watched,
    /// The server of the analytical partition, if it has one of its own.
    pub(crate) standby: Option<Watched>,
}

/// What pg_stat_activity of a server showed in a phase, over a connection that has nothing to do with the layout.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    /// The most connections of the layout.
    pub(crate) peak: u32,
    /// The most of them that ran a report,
    pub(crate) peak_reports: u32,
    /// and that did so although they are not the analytical partition's.
    pub(crate) peak_strays: u32,
    /// The furthest that a standby was behind.
    pub(crate) behind: Option<Duration>,
    /// How often it was looked at.
    pub(crate) looks: u32,
    /// The longest time between two looks.
    pub(crate) longest_gap: Duration,
}

impl PhaseFigures {
    /// The servers, the primary first.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Watched> {
        std::iter::once(&self.primary).chain(&self.standby)
    }
}

impl Watched {
    fn of(seen: &[Seen], lasts: Duration) -> Self {
        let most = |of: fn(&Seen) -> u32| seen.iter().map(of).max().unwrap_or(0);
        let gaps = seen.windows(2).map(|pair| pair[1].at - pair[0].at);
        Self {
            peak: most(|seen| seen.backends),
            peak_reports: most(|seen| seen.reports),
            peak_strays: most(|seen| seen.strays),
            behind: seen.iter().filter_map(|seen| seen.behind).max(),
            looks: u32::try_from(seen.len()).expect("bug: fifty a second"),
            longest_gap: gaps.max().unwrap_or(lasts),
        }
    }
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
    /// At the primary,
    pub(super) seen: Vec<Seen>,
    /// and at the standby, if the layout uses one.
    pub(super) seen_at_standby: Option<Vec<Seen>>,
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
        let watched = |seen| Watched::of(&self.of_phase(seen, phase, plan), plan.lasts(phase));
        PhaseFigures {
            phase,
            checkout: Tally::of(checkouts.iter().map(|c| &c.outcome)),
            latency: Latency::of(&checkouts),
            reports: Tally::of(reports.iter().map(|r| &r.outcome)),
            slowest_rejection: slowest_rejection(reports),
            rows: reports.iter().map(|r| r.rows).sum(),
            primary: watched(&self.seen),
            standby: self.seen_at_standby.as_ref().map(|seen| watched(seen)),
        }
    }

    fn of_phase(&self, seen: &[Seen], phase: Phase, plan: &Plan) -> Vec<Seen> {
        let at = |seen: &Seen| seen.at.checked_duration_since(self.start);
        let in_phase = |seen: &&Seen| at(seen).is_some_and(|at| plan.phase_at(at) == phase);
        seen.iter().filter(in_phase).copied().collect()
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
