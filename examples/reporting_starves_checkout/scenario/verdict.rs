//! Did isolation hold, and did the experiment show anything?

use std::fmt;
use std::time::Duration;

use super::Experiment;
use super::layout::Kind;
use super::measure::{LayoutFigures, PhaseFigures};
use super::plan::{ANALYTICAL, Phase, Plan, REPORTS};
use super::words::{grouped, millis};

/// A report that is rejected at once knows it within this time: a thousand times what it takes, for a busy machine.
const AT_ONCE: Duration = Duration::from_millis(50);
/// The sampler looks every 20 ms. If it could not for so long, whatever else ran could not, either.
const STALL: Duration = Duration::from_millis(150);
/// The least looks a second at the server's connections that a peak may rest on.
const LOOKS: u32 = 20;

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// A partition did not keep its neighbour's trouble out.
    NotIsolated(String),
    /// Checkouts were answered, but slower than allowed. On a machine that is busy with something else, that may be why.
    Slower(String),
    /// The run cannot tell.
    ShowsNothing(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotIsolated(what) => write!(f, "isolation failed: {what}"),
            Self::Slower(what) => write!(
                f,
                "isolation failed, unless this machine was busy with something else: {what}"
            ),
            Self::ShowsNothing(what) => write!(f, "the experiment shows nothing: {what}"),
        }
    }
}

/// Everything that is not as it must be; empty if all is well.
pub(crate) fn judge(experiment: &Experiment) -> Vec<Finding> {
    let plan = &experiment.plan;
    let mut findings = Vec::new();
    for figures in &experiment.layouts {
        findings.extend(figures.phases.iter().filter_map(|f| looked_enough(f, plan)));
        match figures.layout {
            Kind::Shared => findings.extend(starved(figures)),
            Kind::Partitioned => findings.extend(isolated(figures, plan)),
        }
    }
    findings
}

/// The shared pool must suffer, or there is nothing that a partition could have kept out.
fn starved(figures: &LayoutFigures) -> Vec<Finding> {
    let before = &figures.phase(Phase::Before).checkout;
    let incident = &figures.phase(Phase::Incident).checkout;
    let mut findings = Vec::new();
    if before.lost() > 0 {
        findings.push(Finding::ShowsNothing(format!(
            "with the shared pool {} of {} checkouts got no answer in time before any report ran{}; \
            this machine or this server is too slow or too busy for 200 checkouts a second",
            grouped(before.lost()),
            grouped(before.started),
            first(before.first_trouble.as_deref()),
        )));
    }
    if incident.lost() * 2 <= incident.started {
        findings.push(Finding::ShowsNothing(format!(
            "with the shared pool only {} of {} checkouts of the incident failed or were late, and it should be most",
            grouped(incident.lost()),
            grouped(incident.started),
        )));
    }
    findings
}

fn isolated(figures: &LayoutFigures, plan: &Plan) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(figures.phases.iter().filter_map(every_checkout_succeeds));
    findings.extend(figures.phases.iter().filter_map(within_the_plan));
    findings.extend(reports_beyond_the_partition_are_rejected(
        figures.phase(Phase::Incident),
    ));
    findings.extend(as_fast_as_before(figures, plan));
    if !findings.is_empty() {
        findings.extend(figures.phases.iter().filter_map(stalled));
    }
    findings
}

fn every_checkout_succeeds(figures: &PhaseFigures) -> Option<Finding> {
    let checkout = &figures.checkout;
    let text = format!(
        "{} of {} checkouts in phase {} had no success ({} rejected, {} failed, {} late){}",
        grouped(checkout.lost()),
        grouped(checkout.started),
        figures.phase,
        checkout.rejected,
        checkout.failed,
        checkout.late,
        first(checkout.first_trouble.as_deref()),
    );
    (checkout.lost() > 0 || checkout.started == 0).then_some(Finding::NotIsolated(text))
}

fn within_the_plan(figures: &PhaseFigures) -> Option<Finding> {
    let (peak, plan) = (figures.peak_backends, Kind::Partitioned.budget());
    let text = format!(
        "the server had up to {peak} connections of the pool in phase {}, and the plan is {plan}",
        figures.phase
    );
    (peak > plan).then_some(Finding::NotIsolated(text))
}

fn reports_beyond_the_partition_are_rejected(incident: &PhaseFigures) -> Vec<Finding> {
    let reports = &incident.reports;
    let mut findings = Vec::new();
    if (reports.ok, reports.rejected) != (ANALYTICAL, REPORTS - ANALYTICAL) {
        findings.push(Finding::NotIsolated(format!(
            "of {REPORTS} reports {} ran and {} were rejected ({} failed), and it should be {ANALYTICAL} and {}{}",
            reports.ok,
            reports.rejected,
            reports.failed,
            REPORTS - ANALYTICAL,
            first(reports.first_trouble.as_deref()),
        )));
    }
    let slowest = incident.slowest_rejection.filter(|took| *took > AT_ONCE);
    findings.extend(slowest.map(|took| {
        Finding::Slower(format!(
            "a report was rejected only after {}, and it should be at once",
            millis(took)
        ))
    }));
    findings
}

fn as_fast_as_before(figures: &LayoutFigures, plan: &Plan) -> Option<Finding> {
    let p99 = |phase| figures.phase(phase).latency.map(|latency| latency.p99);
    let (before, incident) = (p99(Phase::Before)?, p99(Phase::Incident)?);
    let allowed = allowed_p99(before, plan);
    let text = format!(
        "the p99 of checkout was {} in the incident and {} before it; allowed is {} ({})",
        millis(incident),
        millis(before),
        millis(allowed),
        tolerance(plan),
    );
    (incident > allowed).then_some(Finding::Slower(text))
}

fn allowed_p99(before: Duration, plan: &Plan) -> Duration {
    (before * 6 / 5).max(before + plan.p99_slack)
}

/// The tolerance in words.
pub(crate) fn tolerance(plan: &Plan) -> String {
    if plan.p99_slack.is_zero() {
        return "1.2 times".to_owned();
    }
    let slack = millis(plan.p99_slack);
    format!("1.2 times, or {slack} more, since a short run has few checkouts")
}

fn looked_enough(figures: &PhaseFigures, plan: &Plan) -> Option<Finding> {
    let wanted = plan.lasts(figures.phase).as_secs_f64() * f64::from(LOOKS);
    let text = format!(
        "pg_stat_activity was looked at only {} times in phase {}, and {wanted:.0} are needed for its peak to mean something",
        figures.looks, figures.phase
    );
    (f64::from(figures.looks) < wanted).then_some(Finding::ShowsNothing(text))
}

/// Whether the machine or the server stood still, which no partition can help.
fn stalled(figures: &PhaseFigures) -> Option<Finding> {
    let gap = figures.longest_gap;
    let text = format!(
        "in phase {} the server did not answer for {}, not even over a connection that has nothing to do with the pool: \
        what else was found may come from that",
        figures.phase,
        millis(gap)
    );
    (gap > STALL).then_some(Finding::ShowsNothing(text))
}

fn first(trouble: Option<&str>) -> String {
    trouble.map_or_else(String::new, |told| format!("; the first said: {told}"))
}
