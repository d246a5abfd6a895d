//! A day before it happens: flows of calls, over a virtual clock, through the ledger of the pool.
//!
//! A [`Scenario`] says who calls when, for how long, and with what patience; [`simulate`] tells what
//! becomes of them. Waiting, refusing and handing over are not modelled: the
//! [`Ledger`](crate::admission::Ledger) itself is driven, and its answers are counted.
//!
//! What is not in it: opening connections, cancelling queries (a slot that is freed is free at once), and
//! the database, of which holds are the only trace.
//!
//! 1. The same scenario gives the same result, on every machine.
//! 2. A call's arrival and its luck do not depend on the rules or on other flows: layouts are compared
//!    over the same calls.
//! 3. No call is lost: each is served, late, refused, or still there at the end.

mod arrivals;
mod csv;
mod gauge;
mod holds;
mod outcome;
mod random;
mod record;
mod run;
mod scenario;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::admission::Refusal;
use crate::plan::number::nanos;

use arrivals::Merged;
use random::Random;
use run::Run;

pub use arrivals::Arrivals;
pub use csv::InvalidCsv;
pub use holds::HoldTime;
pub use outcome::{ClassOutcome, Curve, FlowCurve, FlowOutcome, Measured, Simulation, Waits};
pub(super) use scenario::MOST_CALLS;
pub use scenario::{AtDeadline, Flow, Incident, InvalidScenario, Scenario, Span};

/// Something that happened in a run.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Rules};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::simulator::{Arrivals, Event, Flow, HoldTime, Scenario, What, simulate_watched};
///
/// // Two calls a second, of a second each, for one slot.
/// let second = Duration::from_secs(1);
/// let flow = Flow::new("reports", ClassId::new(0), Arrivals::regular(Rate::of(2)), HoldTime::Fixed(second));
/// let day = Scenario::new(10 * second, Rules::fixed(1, 0)).flow(flow);
/// let mut refused = Vec::new();
/// simulate_watched(&day, |event: Event| {
///     if let What::Refused(_) = event.what {
///         refused.push(event.at);
///     }
/// })?;
/// assert_eq!(refused[0], second / 2);
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// When.
    pub at: Duration,
    /// To which call; they are counted from 0 as they come.
    pub call: u64,
    /// Of which flow: its position.
    pub flow: usize,
    /// What.
    pub what: What,
}

/// What happened to a call.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Rules};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::simulator::{Arrivals, Flow, HoldTime, Scenario, What, simulate_watched};
///
/// // Two calls a second, of a second each, for one slot.
/// let second = Duration::from_secs(1);
/// let flow = Flow::new("reports", ClassId::new(0), Arrivals::regular(Rate::of(2)), HoldTime::Fixed(second));
/// let day = Scenario::new(10 * second, Rules::fixed(1, 0)).flow(flow);
/// let mut ended = 0;
/// simulate_watched(&day, |event| ended += u32::from(event.what == What::Ended { late: false }))?;
/// assert_eq!(ended, 9);
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// It was given a slot: as it came, or after it was [`Queued`](Self::Queued).
    Granted,
    /// It waits.
    Queued,
    /// It was refused as it came.
    Refused(Refusal),
    /// It waited as long as it could, and left.
    GaveUp,
    /// Its slot came back.
    Ended {
        /// Not within its deadline.
        late: bool,
    },
}

/// Runs a scenario.
///
/// # Errors
/// A scenario that cannot be run: see [`InvalidScenario`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Rules};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::simulator::{Arrivals, Flow, HoldTime, Scenario, simulate};
///
/// // Two calls a second, of a second each, for one slot.
/// let second = Duration::from_secs(1);
/// let flow = Flow::new("reports", ClassId::new(0), Arrivals::regular(Rate::of(2)), HoldTime::Fixed(second));
/// let day = Scenario::new(10 * second, Rules::fixed(1, 0)).flow(flow);
/// let reports = &simulate(&day)?.spans[0].flows[0];
/// assert_eq!(reports.started_percent(), 50.0);
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
pub fn simulate(scenario: &Scenario) -> Result<Simulation, InvalidScenario> {
    simulate_watched(scenario, |_| {})
}

/// Runs a scenario, and tells `watch` of everything that happens, in order.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_watched(
    scenario: &Scenario,
    watch: impl FnMut(Event),
) -> Result<Simulation, InvalidScenario> {
    scenario.check()?;
    let stream = |n: u64| Random::stream(scenario.seed, 2 * n);
    let flows = scenario.flows.iter().zip(0..);
    let calls = Merged::new(flows.map(|(flow, n)| flow.arrivals.source(stream(n))));
    Run::new(scenario, watch)?.go(calls)
}

/// Runs a scenario over calls that come from elsewhere, each a time and the position of its flow; what the
/// flows themselves say of arrivals is not looked at. Calls of the same instant come in the order given.
///
/// # Errors
/// As [`simulate`]; and a call of no flow, or out of order.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Rules};
/// use partitioned_pool::plan::simulator::{Arrivals, Flow, HoldTime, Scenario, replay};
///
/// let second = Duration::from_secs(1);
/// let flow = |name| {
///     Flow::new(name, ClassId::new(0), Arrivals::trace([]), HoldTime::Fixed(second))
/// };
/// let shared = Scenario::new(10 * second, Rules::fixed(1, 0)).flow(flow("a")).flow(flow("b"));
/// let came = replay(&shared, [(second, 1), (second, 0)])?;
/// let flows = &came.spans[0].flows;
/// assert_eq!((flows[0].refused.queue_full, flows[1].served), (1, 1));
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
pub fn replay(
    scenario: &Scenario,
    calls: impl IntoIterator<Item = (Duration, usize)>,
) -> Result<Simulation, InvalidScenario> {
    scenario.check()?;
    let calls = calls.into_iter().map(|(at, flow)| (nanos(at), flow));
    Run::new(scenario, |_| {})?.go(calls)
}

/// A flow that lost calls in the incident of another.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Rules};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::simulator::{Arrivals, Flow, HoldTime, Scenario, blast_radius};
///
/// // Two flows share a slot, and the calls of one begin to last.
/// let s = Duration::from_secs;
/// let short = HoldTime::Fixed(Duration::from_millis(100));
/// let flow = |name| Flow::new(name, ClassId::new(0), Arrivals::regular(Rate::of(2)), short.clone());
/// let day = Scenario::new(s(60), Rules::fixed(1, 4))
///     .flow(flow("checkout"))
///     .flow(flow("reports").incident(s(10), s(40), HoldTime::Fixed(s(20))));
/// let struck = &blast_radius(&day)?[0];
/// assert_eq!((struck.flow.as_str(), struck.lost_without_incident), ("checkout", 0));
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Struck {
    /// The flow.
    pub flow: String,
    /// Its calls that were refused or late.
    pub lost: u64,
    /// How many it would have lost on the same day without any incident.
    pub lost_without_incident: u64,
}

/// The blast radius of the incidents of a scenario: the flows whose own work is healthy all day, and that
/// lose more calls than they would on the same day without any incident.
///
/// # Errors
/// As [`simulate`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Rules};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::simulator::{Arrivals, Flow, HoldTime, Scenario, blast_radius};
///
/// // Two calls a second, of a second each, for one slot.
/// let second = Duration::from_secs(1);
/// let flow = Flow::new("reports", ClassId::new(0), Arrivals::regular(Rate::of(2)), HoldTime::Fixed(second));
/// let day = Scenario::new(10 * second, Rules::fixed(1, 0)).flow(flow);
/// let struck = blast_radius(&day)?;
/// assert!(struck.is_empty(), "there is no incident");
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
pub fn blast_radius(scenario: &Scenario) -> Result<Vec<Struck>, InvalidScenario> {
    let (incident, healthy) = (
        simulate(scenario)?,
        simulate(&scenario.without_incidents())?,
    );
    let lost =
        |day: &Simulation, flow: usize| day.spans.iter().map(|span| span.flows[flow].lost()).sum();
    let flows = scenario.flows.iter().enumerate();
    let flows = flows.filter(|(_, flow)| flow.incident.is_none());
    let struck = flows.map(|(n, flow)| Struck {
        flow: flow.name.clone(),
        lost: lost(&incident, n),
        lost_without_incident: lost(&healthy, n),
    });
    Ok(struck
        .filter(|s| s.lost > s.lost_without_incident)
        .collect())
}
