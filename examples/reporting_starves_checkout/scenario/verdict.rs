//! Did isolation hold, and did the experiment show anything?
//!
//! Reports that sleep take connections and nothing else, so that checkout must be as fast as before. Reports that scan
//! take the server's processors as well, which no partition divides: how slow checkout becomes is then for the table, and
//! what is judged does not depend on the speed of any machine.

use std::fmt;
use std::time::Duration;

use super::Experiment;
use super::layout::Kind;
use super::measure::{LayoutFigures, PhaseFigures, Watched};
use super::plan::{ANALYTICAL, Phase, Plan, REPORTS, TRANSACTIONAL};
use super::variant::Reports;
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
    let work = experiment.variant.reports;
    let mut findings = Vec::new();
    for figures in &experiment.layouts {
        let phases = figures.phases.iter();
        findings.extend(phases.flat_map(|f| looked_enough(f, work, plan)));
        match figures.layout {
            Kind::Shared => findings.extend(starved(figures, work)),
            Kind::Partitioned => findings.extend(isolated(figures, work, plan)),
        }
    }
    findings
}

/// The shared pool must suffer, or there is nothing that a partition could have kept out.
fn starved(figures: &LayoutFigures, work: Reports) -> Vec<Finding> {
    let before = &figures.phase(Phase::Before).checkout;
    let incident = &figures.phase(Phase::Incident).checkout;
    let mut findings = Vec::new();
    findings.extend(read_nothing(figures, work));
    if before.lost() > 0 && work == Reports::Sleep {
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

fn isolated(figures: &LayoutFigures, work: Reports, plan: &Plan) -> Vec<Finding> {
    let phases = || figures.phases.iter();
    let incident = figures.phase(Phase::Incident);
    let mut findings = Vec::new();
    if work == Reports::Sleep {
        findings.extend(phases().filter_map(every_checkout_succeeds));
    }
    findings.extend(phases().flat_map(within_the_plan));
    findings.extend(phases().flat_map(reports_keep_to_their_own));
    findings.extend(reports_beyond_the_partition_are_rejected(
        incident,
        at_once(work, plan),
    ));
    findings.extend(read_nothing(figures, work));
    if work == Reports::Sleep {
        findings.extend(as_fast_as_before(figures, plan));
        if !findings.is_empty() {
            findings.extend(phases().filter_map(stalled));
        }
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

/// Each server, what it is called, and the connections that the plan has for it.
fn planned(figures: &PhaseFigures) -> Vec<(&'static str, &Watched, u32)> {
    let primary = &figures.primary;
    match &figures.standby {
        None => vec![("server", primary, Kind::Partitioned.budget())],
        Some(standby) => vec![
            ("primary", primary, TRANSACTIONAL),
            ("standby", standby, ANALYTICAL),
        ],
    }
}

fn within_the_plan(figures: &PhaseFigures) -> Vec<Finding> {
    let beyond = |(name, watched, plan): (_, &Watched, _)| {
        let peak = watched.peak;
        let text = format!(
            "the {name} had up to {peak} connections of the pool in phase {}, and the plan is {plan}",
            figures.phase
        );
        (peak > plan).then_some(Finding::NotIsolated(text))
    };
    planned(figures).into_iter().filter_map(beyond).collect()
}

/// No report ever had a slot of checkout's, so that no checkout can have waited for one behind a report.
fn reports_keep_to_their_own(figures: &PhaseFigures) -> Vec<Finding> {
    let phase = figures.phase;
    let mut findings = Vec::new();
    for (name, watched, _) in planned(figures) {
        let (reports, strays) = (watched.peak_reports, watched.peak_strays);
        if reports > ANALYTICAL {
            findings.push(Finding::NotIsolated(format!(
                "{reports} connections to the {name} ran reports in phase {phase}, and {ANALYTICAL} may"
            )));
        }
        if strays > 0 {
            findings.push(Finding::NotIsolated(format!(
                "{strays} connections to the {name} that are not the analytical partition's ran reports in phase {phase}"
            )));
        }
    }
    if figures.standby.is_some() && figures.primary.peak_reports > 0 {
        findings.push(Finding::NotIsolated(format!(
            "reports ran on the primary in phase {phase}, and they should on the standby"
        )));
    }
    findings
}

/// Reports that scan must have scanned.
fn read_nothing(figures: &LayoutFigures, work: Reports) -> Option<Finding> {
    let text = format!(
        "with the {} layout the reports read nothing",
        figures.layout
    );
    let nothing = figures.phase(Phase::Incident).rows == 0;
    (work == Reports::Scan && nothing).then_some(Finding::ShowsNothing(text))
}

/// Within which time a report is rejected at once. Where reports take all processors, it is before one of them has ended.
fn at_once(work: Reports, plan: &Plan) -> Duration {
    match work {
        Reports::Sleep => AT_ONCE,
        Reports::Scan => plan.incident,
    }
}

fn reports_beyond_the_partition_are_rejected(
    incident: &PhaseFigures,
    at_once: Duration,
) -> Vec<Finding> {
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
    let slowest = incident.slowest_rejection.filter(|took| *took > at_once);
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

/// Where reports take all processors, the looks wait for one as well; then their number is said beside the peak.
fn looked_enough(figures: &PhaseFigures, work: Reports, plan: &Plan) -> Vec<Finding> {
    let phase = figures.phase;
    let wanted = match work {
        Reports::Sleep => plan.lasts(phase).as_secs_f64() * f64::from(LOOKS),
        Reports::Scan => 1.0,
    };
    let seldom = |watched: &Watched| {
        let looks = watched.looks;
        let text = format!(
            "pg_stat_activity was looked at only {looks} times in phase {phase}, and {wanted:.0} are needed for its peak to mean something"
        );
        (f64::from(looks) < wanted).then_some(Finding::ShowsNothing(text))
    };
    figures.servers().filter_map(seldom).collect()
}

/// Whether the machine or the server stood still, which no partition can help.
fn stalled(figures: &PhaseFigures) -> Option<Finding> {
    let gap = figures.primary.longest_gap;
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
