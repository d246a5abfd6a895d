//! Was every promise kept?

use std::fmt;
use std::time::Duration;

use crate::calls::percentile;
use crate::figures::{Figures, Hour};
use crate::plan::{CAPACITY, Day, Flow, Layout};
use crate::words::millis;

/// The least looks a second that a peak may rest on.
const LOOKS: f64 = 100.0;
/// The server is looked at every 4 ms. If that was not possible for so long, whatever else ran stood still, too.
const STALL: Duration = Duration::from_millis(150);

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// A promise was broken.
    Broken(String),
    /// Every call was answered, but slower than allowed. On a machine that is busy with something else, that may be why.
    Slower(String),
    /// The run cannot tell.
    ShowsNothing(String),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(what) => write!(f, "broken: {what}"),
            Self::Slower(what) => write!(
                f,
                "broken, unless this machine was busy with something else: {what}"
            ),
            Self::ShowsNothing(what) => write!(f, "the run cannot tell: {what}"),
        }
    }
}

/// Everything that is not as it must be; empty if all is well.
pub(crate) fn judge(figures: &[Figures]) -> Vec<Finding> {
    figures.iter().flat_map(judge_one).collect()
}

fn judge_one(figures: &Figures) -> Vec<Finding> {
    let name = format!("{}, {}", figures.layout, figures.day);
    let mut findings = Vec::new();
    for hour in &figures.hours {
        let name = format!("{name}, seed {}", hour.seed);
        findings.extend(over_capacity(&name, hour));
        findings.extend(failed(&name, hour));
        findings.extend(not_instant(&name, hour));
        findings.extend(seldom(&name, hour));
        match (figures.layout, figures.day) {
            (Layout::Borrowing, Day::Incident) => findings.extend(not_whole(&name, hour)),
            (Layout::Shared, Day::Incident) => findings.extend(harmless(&name, hour)),
            _ => {}
        }
    }
    findings.extend(slower(&name, figures));
    findings
}

/// P1: never more connections than the capacity.
fn over_capacity(name: &str, hour: &Hour) -> Option<Finding> {
    let most = hour.seen.most;
    let text = format!("{name}: {most} server connections, the capacity is {CAPACITY}");
    (most > CAPACITY).then_some(Finding::Broken(text))
}

/// The database fails nobody, and nobody works under the limits of another partition.
fn failed(name: &str, hour: &Hour) -> Option<Finding> {
    let work = hour.works.iter().find(|work| work.failed > 0)?;
    let told = work.trouble.as_deref().unwrap_or_default();
    let text = format!(
        "{name}: {} calls failed; the first was told: {told}",
        work.failed
    );
    Some(Finding::Broken(text))
}

/// P3: a partition below its reservation is neither refused nor put into a queue.
fn not_instant(name: &str, hour: &Hour) -> Option<Finding> {
    let below = &hour.below;
    let text = format!(
        "{name}: of {} calls of a partition below its reservation, {} were refused and {} had to wait for a slot",
        below.calls, below.refused, below.queued
    );
    (below.refused + below.queued > 0).then_some(Finding::Broken(text))
}

/// And waits for its connection no longer than the opening or re-dressing of one takes.
fn slower(name: &str, figures: &Figures) -> Option<Finding> {
    let (below, costs) = (figures.below(), figures.costs());
    let p99 = percentile(&below.waits, 99)?;
    let text = format!(
        "{name}: the p99 of the waits of partitions below their reservation is {}, and the opening or re-dressing of a \
        connection takes {} (p99), to which a moment of patience and this machine add {}{}",
        millis(p99),
        millis(costs.connection()),
        millis(costs.allowance()),
        still(figures),
    );
    (p99 > costs.allowed()).then_some(Finding::Slower(text))
}

fn still(figures: &Figures) -> String {
    let gaps = figures.hours.iter().map(|hour| hour.seen.longest_gap);
    match gaps.max().filter(|gap| *gap > STALL) {
        Some(gap) => format!(
            "; for {} the server did not answer over a connection outside of the pool, either",
            millis(gap)
        ),
        None => String::new(),
    }
}

/// In the incident of the other, checkout loses nothing for which its reservation is enough.
fn not_whole(name: &str, hour: &Hour) -> Option<Finding> {
    if !hour.covers {
        return Some(Finding::ShowsNothing(format!(
            "{name}: what is reserved to checkout does not cover its load in this hour; take another seed"
        )));
    }
    let work = hour.work(Flow::Checkout);
    let text = format!(
        "{name}: checkout loses {} of {} calls ({} refused, {} late, {} failed), and what is reserved to it covers \
        its load{}",
        work.lost(),
        work.arrived(),
        work.refused,
        work.late,
        work.failed,
        first(work.trouble.as_deref()),
    );
    (work.lost() > 0).then_some(Finding::Broken(text))
}

/// One shared pool must suffer, or there is nothing that a reservation could have kept out.
fn harmless(name: &str, hour: &Hour) -> Option<Finding> {
    let lost = hour.work(Flow::Checkout).lost();
    let text = format!("{name}: checkout loses no call, so nothing had to be kept out");
    (lost == 0).then_some(Finding::ShowsNothing(text))
}

fn seldom(name: &str, hour: &Hour) -> Option<Finding> {
    let looks = hour.looks_a_second;
    let text = format!(
        "{name}: pg_stat_activity was looked at {looks:.0} times a second, and {LOOKS} are needed for its peak to mean something"
    );
    (looks < LOOKS).then_some(Finding::ShowsNothing(text))
}

fn first(trouble: Option<&str>) -> String {
    trouble.map_or_else(String::new, |told| format!("; the first was told: {told}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Below, Costs, Work};
    use crate::script::Predicted;
    use crate::watch::Seen;

    type Change = fn(&mut Hour);

    fn well() -> Hour {
        let works = || [Work::default(), Work::default()];
        let ms = Duration::from_millis;
        Hour {
            seed: 1,
            works: works(),
            below: Below {
                calls: 100,
                waits: vec![ms(3); 100],
                ..Below::default()
            },
            costs: Costs {
                openings: vec![ms(2)],
                dressings: vec![ms(1)],
                moments: vec![ms(1)],
            },
            utilisation: 0.5,
            curves: [Vec::new(), Vec::new()],
            seen: Seen {
                most: CAPACITY,
                control: 0,
                looks: 1_000,
                longest_gap: ms(8),
            },
            looks_a_second: 200.0,
            predicted: Predicted {
                works: works(),
                utilisation: 0.5,
            },
            covers: true,
        }
    }

    fn judged(layout: Layout, change: impl FnOnce(&mut Hour)) -> Vec<Finding> {
        let mut hour = well();
        change(&mut hour);
        let day = Day::Incident;
        judge_one(&Figures {
            layout,
            day,
            hours: vec![hour],
        })
    }

    #[test]
    fn an_hour_in_which_all_is_well_has_no_findings() {
        assert_eq!(judged(Layout::Borrowing, |_| {}), []);
        assert_eq!(judged(Layout::Fixed, |_| {}), []);
    }

    #[test]
    fn each_broken_promise_is_found() {
        let breaks: [Change; 6] = [
            |hour| hour.seen.most = CAPACITY + 1,
            |hour| hour.works[1].failed = 1,
            |hour| hour.below.queued = 1,
            |hour| hour.below.refused = 1,
            |hour| hour.works[0].late = 1,
            |hour| hour.works[0].refused = 1,
        ];
        for change in breaks {
            let found = judged(Layout::Borrowing, change);
            assert!(matches!(found[..], [Finding::Broken(_)]), "{found:?}");
        }
        let found = judged(Layout::Borrowing, |hour| {
            hour.below.waits = vec![Duration::from_micros(3_001); 100];
        });
        assert!(matches!(found[..], [Finding::Slower(_)]), "{found:?}");
    }

    #[test]
    fn a_run_that_cannot_tell_says_so() {
        let nothing: [(Layout, Change); 3] = [
            (Layout::Borrowing, |hour| hour.looks_a_second = 99.0),
            (Layout::Borrowing, |hour| hour.covers = false),
            (Layout::Shared, |_| {}),
        ];
        for (layout, change) in nothing {
            let found = judged(layout, change);
            assert!(matches!(found[..], [Finding::ShowsNothing(_)]), "{found:?}");
        }
    }
}
