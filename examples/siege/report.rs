//! The table, for people.

use std::fmt;

use crate::figures::{Figures, Outage};
use crate::plan::{BUDGET, allowed};
use crate::side::Maker;
use crate::words::millis;

const DEFINITIONS: &str = "\
steady    100 calls a second by the clock, a prepared statement of 5 ms; lost: no answer within 1 s of the planned arrival
p99       of the steady calls during the siege, from the planned arrival to the answer; the median of the rounds
baseline  the same before the siege: with a quiet neighbour where that has a server of its own or only holds
          connections, or with an equally loaded neighbour that behaves well where both burn the same server
allowed   the larger of 1.3 times the baseline and 10 ms more
left      calls of the neighbour whose callers had left before the answer
peak      most connections in pg_stat_activity at one moment, looked at every 4 ms, of a budget of 16; a
          driver's control connection is beside it
taken     slots of the neighbour that are not free 1 s after the end; leaking: when max_hold has taken the last of
          them away, while their owners still hold on to them
orphans   queries of the siege that run on the server 1 s after the end
usable    from then on, until 8 callers of the neighbour who come together have their answers; -: not within 5 s";

/// The table with its definitions.
pub(crate) struct Table<'a> {
    pub(crate) sieges: &'a [Figures],
    pub(crate) beside: &'a [Figures],
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        heads(f)?;
        self.sieges.iter().try_for_each(|figures| row(f, figures))?;
        if !self.beside.is_empty() {
            writeln!(f, "\nBeside it, two plain pools of 8 each, not judged:")?;
            self.beside.iter().try_for_each(|figures| row(f, figures))?;
        }
        for figures in self.sieges {
            outage(f, figures)?;
        }
        writeln!(f, "\n{DEFINITIONS}\n")?;
        for figures in self.sieges {
            writeln!(f, "{:<11}{}", figures.siege, figures.siege.what())?;
        }
        Ok(())
    }
}

/// How often it was tried to connect to a server that was not there.
fn outage(f: &mut fmt::Formatter<'_>, figures: &Figures) -> fmt::Result {
    let Some(Outage {
        failed,
        most,
        lasted,
    }) = figures.outage()
    else {
        return Ok(());
    };
    writeln!(
        f,
        "\n{}: {failed} attempts to connect failed within {}; at most {most} may, by one prober with growing pauses",
        figures.siege,
        millis(lasted)
    )
}

fn heads(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        f,
        "{:<20}{:-^55}{:-^30}{:-^35}",
        "", " steady ", " neighbour ", " server, and after "
    )?;
    writeln!(
        f,
        "{:<20}{:>8}{:>5}{:>10}{:>10} {:<9}{:>10}  {:>7}{:>8}{:>7}{:>7}  {:>9}{:>6}{:>8}{:>10}",
        "siege",
        "started",
        "lost",
        "p99",
        "baseline",
        "",
        "allowed",
        "ok",
        "reject.",
        "failed",
        "left",
        "peak",
        "taken",
        "orphans",
        "usable"
    )
}

fn row(f: &mut fmt::Formatter<'_>, figures: &Figures) -> fmt::Result {
    let (median, baseline) = (figures.median(), figures.median().baseline.p99);
    writeln!(
        f,
        "{:<20}{:>8}{:>5}{:>10}{:>10} {:<9}{:>10}  {:>7}{:>8}{:>7}{:>7}  {:>9}{:>6}{:>8}{:>10}",
        name(figures),
        figures.started(),
        figures.lost(),
        millis(median.steady.p99),
        millis(baseline),
        figures.siege.baseline(),
        millis(allowed(baseline)),
        figures.sum(|round| round.neighbour.ok),
        figures.sum(|round| round.neighbour.rejected),
        figures.sum(|round| round.neighbour.failed),
        figures.sum(|round| round.neighbour.late),
        format!("{} of {BUDGET}", figures.most(|round| round.seen.most)),
        figures.most(|round| round.in_use_after),
        figures.most(|round| round.orphans_after),
        figures.usable().map_or("-".to_owned(), millis),
    )
}

/// The siege, and on whose pools if they are not ours.
pub(crate) fn name(figures: &Figures) -> String {
    match figures.maker {
        Maker::Partitions => figures.siege.to_string(),
        maker => format!("{} {maker}", figures.siege),
    }
}
