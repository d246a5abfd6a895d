//! The table, for people.

use std::fmt;
use std::time::Duration;

use super::Experiment;
use super::measure::{LayoutFigures, PhaseFigures};
use super::scope;
use super::variant::Reports;
use super::verdict::tolerance;
use super::words::{millis, percent};

/// What the columns mean.
const DEFINITIONS: &str = "\
checkout  200 a second by the clock, whatever became of the last; 40 ms in the database; its caller waits 1 s
ok        committed, and the caller knew it within 1 s of the planned arrival
late      no answer by then: the caller has left
rejected  refused by the pool before the database was asked
failed    the database, or the way to it, said no
p50..max  from the planned arrival to the answer, or to the caller's leaving; of what was ok or late
server    most connections of the layout in pg_stat_activity, looked at every 20 ms; primary+standby where there are two
A checkout counts for the phase in which it was planned to arrive. Before `before` there is a warm-up that does not count.";

/// The table with its definitions.
pub(crate) struct Table<'a>(pub(crate) &'a Experiment);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:24}{:-^58}{:-^28}  {:>6}",
            "", " checkout ", " reports ", "server"
        )?;
        writeln!(
            f,
            "{:<13}{:<11}{:>7}{:>9}{:>10}{:>10}{:>10}{:>6}{:>6}{:>6}{:>5}{:>10}{:>7}{:>8}",
            "layout",
            "phase",
            "started",
            "ok",
            "p50",
            "p99",
            "max",
            "rej.",
            "fail.",
            "late",
            "ok",
            "rejected",
            "failed",
            "peak"
        )?;
        for layout in &self.0.layouts {
            for figures in &layout.phases {
                row(f, layout, figures)?;
            }
        }
        write!(f, "\n{DEFINITIONS}\n{}\n", self.judged())?;
        for line in scope::lines(self.0) {
            write!(f, "\n{line}")?;
        }
        Ok(())
    }
}

impl Table<'_> {
    fn judged(&self) -> String {
        match self.0.variant.reports {
            Reports::Sleep => {
                let tolerance = tolerance(&self.0.plan);
                format!("Allowed for the p99 in the incident: {tolerance}.")
            }
            Reports::Scan => {
                "Judged are slots and connections; latencies and losses are said.".to_owned()
            }
        }
    }
}

/// Of the primary, and of the standby.
fn peaks(figures: &PhaseFigures) -> String {
    let peaks: Vec<_> = figures.servers().map(|w| w.peak.to_string()).collect();
    peaks.join("+")
}

fn row(f: &mut fmt::Formatter<'_>, layout: &LayoutFigures, figures: &PhaseFigures) -> fmt::Result {
    let (checkout, reports) = (&figures.checkout, &figures.reports);
    let latency = |pick: fn(super::measure::Latency) -> Duration| {
        figures.latency.map_or("-".to_owned(), |l| millis(pick(l)))
    };
    writeln!(
        f,
        "{:<13}{:<11}{:>7}{:>9}{:>10}{:>10}{:>10}{:>6}{:>6}{:>6}{:>5}{:>10}{:>7}{:>8}",
        layout.layout,
        figures.phase,
        checkout.started,
        percent(checkout.ok, checkout.started),
        latency(|l| l.p50),
        latency(|l| l.p99),
        latency(|l| l.max),
        checkout.rejected,
        checkout.failed,
        checkout.late,
        reports.ok,
        reports.rejected,
        reports.failed,
        peaks(figures)
    )
}
