//! What the partition alone isolated, and what it did not, in plain words.

use std::time::Duration;

use super::Experiment;
use super::calls::Tally;
use super::layout::Kind;
use super::measure::{LayoutFigures, Watched};
use super::plan::{ANALYTICAL, Phase, REPORTS};
use super::variant::Reports;
use super::verdict::{Finding, judge};
use super::words::{grouped, millis};

/// A sentence for the picture, which has room for one.
pub(crate) const SHARED: &str = "slots are divided; CPUs are not";

const ASLEEP: &str = "\
These reports sleep: what partitions of one server share beside its connections (CPU, I/O, locks) is not in these
figures. `--reports scan` measures it.";

const IN_MEMORY: &str = "\
I/O, locks  not in these figures: what the reports scan stays in memory, and they lock nothing that checkout needs";

/// The lines below the table.
pub(crate) fn lines(experiment: &Experiment) -> Vec<String> {
    if experiment.variant.is_usual() {
        return vec![ASLEEP.to_owned()];
    }
    let partitioned = experiment.layout(Kind::Partitioned);
    let mut lines = vec![
        "What the partition isolated, and what it did not:".to_owned(),
        format!("slots       {}", slots(experiment, partitioned)),
    ];
    match experiment.variant.reports {
        Reports::Sleep => lines.push(format!(
            "CPU, I/O    not in these figures: these reports sleep; {}",
            p99s(partitioned).unwrap_or_default()
        )),
        Reports::Scan => {
            lines.push(format!(
                "CPU         {}",
                processors(experiment, partitioned)
            ));
            lines.push(IN_MEMORY.to_owned());
            lines.push(format!("reports     {}", read(experiment)));
        }
    }
    lines.extend(standby(experiment, partitioned));
    lines
}

fn slots(experiment: &Experiment, figures: &LayoutFigures) -> String {
    let failed = |finding: &Finding| matches!(finding, Finding::NotIsolated(_));
    if judge(experiment).iter().any(failed) {
        return "NOT isolated; see the findings".to_owned();
    }
    let incident = figures.phase(Phase::Incident);
    let most = |of: fn(&Watched) -> u32| incident.servers().map(of).max().unwrap_or(0);
    let looks: u32 = incident.servers().map(|watched| watched.looks).sum();
    format!(
        "isolated: in {} looks at most {} reports at work, {ANALYTICAL} may, and none in a slot of checkout's; {} of \
         {REPORTS} refused at once",
        grouped(looks),
        most(|watched| watched.peak_reports),
        incident.reports.rejected,
    )
}

fn processors(experiment: &Experiment, figures: &LayoutFigures) -> String {
    let checkout = &figures.phase(Phase::Incident).checkout;
    let p99s = p99s(figures).unwrap_or_else(|| "no checkout was answered".to_owned());
    let lost = match checkout.lost() {
        0 => format!("none of {} checkouts lost", grouped(checkout.started)),
        _ => lost(checkout),
    };
    let machine = match (experiment.processors, experiment.variant.standby) {
        (Some(count), false) => {
            format!(". The callers and the server share this machine's {count} CPUs")
        }
        (Some(count), true) => {
            format!(". The callers, the primary and the standby share this machine's {count} CPUs")
        }
        (None, _) => String::new(),
    };
    format!("shared: {p99s}; {lost}{machine}")
}

fn lost(checkout: &Tally) -> String {
    format!(
        "{} of {} checkouts lost ({} rejected, {} failed, {} late), to slowness and not to reports in their slots",
        grouped(checkout.lost()),
        grouped(checkout.started),
        grouped(checkout.rejected),
        grouped(checkout.failed),
        grouped(checkout.late),
    )
}

/// Before the incident, and in it.
fn p99s(figures: &LayoutFigures) -> Option<String> {
    let p99 = |phase| Some(figures.phase(phase).latency?.p99);
    let (before, incident) = (p99(Phase::Before)?, p99(Phase::Incident)?);
    Some(format!(
        "the p99 of checkout went from {} to {} ({:.1} times)",
        millis(before),
        millis(incident),
        incident.as_secs_f64() / before.as_secs_f64().max(f64::MIN_POSITIVE)
    ))
}

fn read(experiment: &Experiment) -> String {
    let rows = |kind| grouped(experiment.layout(kind).phase(Phase::Incident).rows);
    format!(
        "{ANALYTICAL} at a time read {} rows; {REPORTS} at a time, through the shared pool, {}",
        rows(Kind::Partitioned),
        rows(Kind::Shared)
    )
}

fn standby(experiment: &Experiment, figures: &LayoutFigures) -> Vec<String> {
    let Some(server) = &experiment.standby else {
        return Vec::new();
    };
    let behind = |phase| figures.phase(phase).standby.as_ref()?.behind;
    let shown = |behind: Option<Duration>| behind.map_or("an unknown time".to_owned(), seconds);
    let mut lines = vec![
        format!(
            "standby     reports ran on it and nowhere else: Postgres {} from {}",
            server.version, server.source
        ),
        format!(
            "            it was up to {} behind in the incident, and up to {} before: replay waits for reports",
            shown(behind(Phase::Incident)),
            shown(behind(Phase::Before))
        ),
    ];
    if experiment.processors.is_some() {
        let here = "            it is on this machine: the latencies show what that costs, not what a standby elsewhere would";
        lines.push(here.to_owned());
    }
    lines
}

/// Seconds where milliseconds would be too many digits.
fn seconds(duration: Duration) -> String {
    match duration < Duration::from_secs(1) {
        true => millis(duration),
        false => format!("{:.1} s", duration.as_secs_f64()),
    }
}
