//! The tables, for people.

use std::fmt;
use std::time::Duration;

use crate::calls::percentile;
use crate::figures::{Figures, Work};
use crate::plan::{CAPACITY, Flow, Layout, Plan};
use crate::words::millis;

const DEFINITIONS: &str = "\
simulated   what the simulator says of the very same calls; there is no database in it, and a hold is the sleep alone
refused     by the pool, before the database was asked
late        checkout only: no answer within 1 s of the planned arrival, whereupon its caller leaves; or a slot that came
            so late that the time for waiting was over before the connection was there
open        not done when the hour was over
wait p99    from the call to the connection in hand, of the calls that had one
used        connections in callers' hands, on average over the hour, of all
peak        most connections in pg_stat_activity at one moment, looked at so often a second
opened      connections; dressed: taken over from the other partition, and given the limits of the new one";

const BELOW: &str = "\
calls       whose partition held fewer slots than are reserved to it in the moment in which it was asked
queued      of those, the calls that had to wait for a slot; refused: those that had none; neither must be
wait p99    of all of them; it may not be above what is allowed
not at once the calls that had to wait for a connection at all, with the p99 of them alone, and the longest wait
opening     p99 of opening a connection in these hours, and of dressing one
moment      p99 of a sleep of 1 ms: so long the pool lets a caller wait for one of its own that is on the way back,
            and what is above it is what this machine adds to any wait
allowed     the larger p99 of opening and dressing, and a moment";

/// The tables with their definitions.
pub(crate) struct Table<'a> {
    pub(crate) figures: &'a [Figures],
    pub(crate) plan: Plan,
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        heads(f)?;
        for figures in self.figures {
            measured(f, figures)?;
            predicted(f, figures)?;
        }
        writeln!(f, "\n{DEFINITIONS}\n\nPartitions below their reservation:")?;
        below_heads(f)?;
        let reserving = |figures: &&Figures| figures.layout != Layout::Shared;
        let figures = self.figures.iter().filter(reserving);
        figures
            .into_iter()
            .try_for_each(|figures| below(f, figures))?;
        writeln!(f, "\n{BELOW}\n")?;
        for layout in Layout::ALL {
            writeln!(f, "{layout:<12}{}", layout.what())?;
        }
        let (incident, seconds) = (self.plan.incident(), self.plan.length.as_secs());
        writeln!(
            f,
            "incident    reports that start between {:.1} s and {:.1} s of {seconds} s take twenty times as long",
            incident.from.as_secs_f64(),
            incident.until.as_secs_f64(),
        )
    }
}

fn heads(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "{:<21}{:-^45}{:-^41}", "", " checkout ", " reporting ")?;
    writeln!(
        f,
        "{:<21}{:>7}{:>8}{:>7}{:>6}{:>11}{:>12}{:>9}{:>6}{:>11} {:>8}{:>10}{:>8}{:>8}{:>9}",
        "day and layout",
        "served",
        "refused",
        "late",
        "open",
        "wait p99",
        "served",
        "refused",
        "open",
        "wait p99",
        "used",
        "peak",
        "looks/s",
        "opened",
        "dressed"
    )
}

fn works(f: &mut fmt::Formatter<'_>, name: &str, works: &[Work; 2], used: f64) -> fmt::Result {
    let [checkout, reporting] = works;
    write!(
        f,
        "{name:<21}{:>7}{:>8}{:>7}{:>6}{:>11}{:>12}{:>9}{:>6}{:>11} {:>8}",
        checkout.served,
        checkout.refused,
        checkout.late + checkout.failed,
        checkout.unfinished,
        time(checkout.p99()),
        reporting.served,
        reporting.refused + reporting.failed,
        reporting.unfinished,
        time(reporting.p99()),
        format!("{:.1} %", 100.0 * used),
    )
}

fn measured(f: &mut fmt::Formatter<'_>, figures: &Figures) -> fmt::Result {
    let name = format!("{} {}", figures.day, figures.layout);
    let costs = figures.costs();
    works(
        f,
        &name,
        &Flow::ALL.map(|flow| figures.work(flow)),
        figures.utilisation().0,
    )?;
    writeln!(
        f,
        "{:>10}{:>8.0}{:>8}{:>9}",
        format!("{} of {CAPACITY}", figures.peak()),
        figures.looks_a_second(),
        costs.openings.len(),
        costs.dressings.len(),
    )
}

fn predicted(f: &mut fmt::Formatter<'_>, figures: &Figures) -> fmt::Result {
    let predicted = Flow::ALL.map(|flow| figures.predicted(flow));
    works(f, "  simulated", &predicted, figures.utilisation().1)?;
    writeln!(f)
}

fn below_heads(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        f,
        "{:<21}{:>7}{:>8}{:>8}{:>11}{:>13}{:>10}{:>11}{:>11}{:>11}{:>10}{:>10}",
        "day and layout",
        "calls",
        "queued",
        "refused",
        "wait p99",
        "not at once",
        "their p99",
        "longest",
        "opening",
        "dressing",
        "moment",
        "allowed"
    )
}

fn below(f: &mut fmt::Formatter<'_>, figures: &Figures) -> fmt::Result {
    let (below, costs) = (figures.below(), figures.costs());
    writeln!(
        f,
        "{:<21}{:>7}{:>8}{:>8}{:>11}{:>13}{:>10}{:>11}{:>11}{:>11}{:>10}{:>10}",
        format!("{} {}", figures.day, figures.layout),
        below.calls,
        below.queued,
        below.refused,
        time(percentile(&below.waits, 99)),
        below.not_at_once.len(),
        time(percentile(&below.not_at_once, 99)),
        time(below.waits.last().copied()),
        time(percentile(&costs.openings, 99)),
        time(percentile(&costs.dressings, 99)),
        time(percentile(&costs.moments, 99)),
        millis(costs.allowed()),
    )
}

fn time(time: Option<Duration>) -> String {
    time.map_or("-".to_owned(), millis)
}
