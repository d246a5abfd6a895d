//! Was every promise kept?

use std::fmt;
use std::time::Duration;

use crate::figures::Figures;
use crate::plan::{BUDGET, allowed};
use crate::words::millis;

/// The least looks a second that a peak may rest on.
const LOOKS: f64 = 100.0;
/// A driver's control connections: one, and one more where the neighbour has an address of its own.
const CONTROL: u32 = 2;
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

/// What is wrong with these figures, if they are of partitions.
pub(crate) fn judge(figures: &Figures) -> Vec<Finding> {
    let promises = [
        lost(figures),
        slower(figures),
        over_budget(figures),
        beside_it(figures),
        in_use(figures),
        orphans(figures),
        left(figures),
        hammered(figures),
        seldom(figures),
    ];
    promises.into_iter().flatten().collect()
}

fn lost(figures: &Figures) -> Option<Finding> {
    let lost = figures.lost();
    let told = figures.trouble().unwrap_or("it came too late");
    let text = format!(
        "{}: the steady partition lost {lost} of {} calls; the first: {told}",
        figures.siege,
        figures.started()
    );
    (lost > 0).then_some(Finding::Broken(text))
}

fn slower(figures: &Figures) -> Option<Finding> {
    let round = figures.median();
    let (p99, baseline) = (round.steady.p99, round.baseline.p99);
    let gap = figures.longest_gap();
    let still = match gap > STALL {
        true => format!(
            "; for {} the server did not answer over a connection outside of the pool, either",
            millis(gap)
        ),
        false => String::new(),
    };
    let text = format!(
        "{}: the steady p99 is {}, {} is allowed over a baseline of {}{still}",
        figures.siege,
        millis(p99),
        millis(allowed(baseline)),
        millis(baseline)
    );
    (p99 > allowed(baseline)).then_some(Finding::Slower(text))
}

fn over_budget(figures: &Figures) -> Option<Finding> {
    let most = figures.most(|round| round.seen.most);
    let text = format!(
        "{}: {most} server connections, the budget is {BUDGET}",
        figures.siege
    );
    (most > BUDGET).then_some(Finding::Broken(text))
}

fn beside_it(figures: &Figures) -> Option<Finding> {
    let control = figures.most(|round| round.seen.control);
    let text = format!(
        "{}: {control} control connections, at most {CONTROL} are counted",
        figures.siege
    );
    (control > CONTROL).then_some(Finding::Broken(text))
}

fn in_use(figures: &Figures) -> Option<Finding> {
    let slots = figures.most(|round| round.in_use_after);
    let text = format!(
        "{}: {slots} slots of the neighbour are taken when it is over",
        figures.siege
    );
    (slots > 0).then_some(Finding::Broken(text))
}

fn orphans(figures: &Figures) -> Option<Finding> {
    let queries = figures.most(|round| round.orphans_after);
    let text = format!(
        "{}: {queries} queries run on the server for nobody when it is over",
        figures.siege
    );
    (queries > 0).then_some(Finding::Broken(text))
}

fn left(figures: &Figures) -> Option<Finding> {
    let left = figures.most(|round| round.left);
    let text = format!(
        "{}: {left} server connections are left when the pool is closed",
        figures.siege
    );
    (left > 0).then_some(Finding::Broken(text))
}

fn hammered(figures: &Figures) -> Option<Finding> {
    let outage = figures.hammered()?;
    let (failed, most, lasted) = (outage.failed, outage.most, millis(outage.lasted));
    Some(Finding::Broken(format!(
        "{}: {failed} attempts to connect failed within {lasted}, at most {most} may",
        figures.siege
    )))
}

fn seldom(figures: &Figures) -> Option<Finding> {
    let looks = figures.looks_a_second();
    let text = format!(
        "{}: pg_stat_activity was looked at {looks:.0} times a second, and {LOOKS} are needed for its peak to mean something",
        figures.siege
    );
    (looks < LOOKS).then_some(Finding::ShowsNothing(text))
}
