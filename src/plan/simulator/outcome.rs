//! What came of a run.

use std::time::Duration;

use crate::admission::ClassRules;
use crate::plan::figures::{Ages, Level, Refused};
use crate::plan::number::{float, ratio, whole};

use super::scenario::Span;

/// What came of a [`Scenario`](super::Scenario).
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
/// let came = simulate(&day)?;
/// assert_eq!((came.spans.len(), came.curve.is_none()), (1, true));
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Simulation {
    /// One entry a span: the whole run, if none was named.
    pub spans: Vec<Measured>,
    /// Slots and refusals over time, if a step was named.
    pub curve: Option<Curve>,
}

/// What came of one span of a run.
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
/// let measured = &simulate(&day)?.spans[0];
/// assert_eq!((measured.capacity, measured.utilisation()), (1, 1.0));
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Measured {
    /// The span.
    pub span: Span,
    /// Slots of the budget.
    pub capacity: u32,
    /// One entry a flow, in their order.
    pub flows: Vec<FlowOutcome>,
    /// One entry a class of the rules, in their order.
    pub classes: Vec<ClassOutcome>,
    /// Refusals while a slot was free that is reserved for a class other than that of the refused: each
    /// counts once, however many classes kept one.
    pub stranded_refusals: u64,
}

impl Measured {
    /// Slots held on average, as a share of all.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        let held: f64 = self.classes.iter().map(|class| class.held.average).sum();
        held / f64::from(self.capacity)
    }

    /// For each refusal, how many slots of the budget were free at that moment, all together: capacity
    /// that others keep, or that the class of the refused may not have.
    #[must_use]
    pub fn idle_when_refused(&self) -> u64 {
        self.flows.iter().map(|flow| flow.idle_when_refused).sum()
    }
}

/// What became of the calls of one flow that came in a span.
///
/// `arrived = served + late + refused.total() + running + waiting`.
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
/// assert_eq!((reports.arrived, reports.refused.queue_full), (20, 10));
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct FlowOutcome {
    /// The flow.
    pub name: String,
    /// Calls that came.
    pub arrived: u64,
    /// Calls that ended within their deadline.
    pub served: u64,
    /// Calls that got a slot, and were not done at their deadline.
    pub late: u64,
    /// Calls that never got a slot.
    pub refused: Refused,
    /// Calls that still held a slot when the run ended.
    pub running: u64,
    /// Calls that still waited when the run ended.
    pub waiting: u64,
    /// How long those waited that got a slot.
    pub waits: Waits,
    /// Slots held by the flow in this span, whenever their calls came.
    pub held: Level,
    /// For each refusal, the slots of the budget that were free at that moment, all together.
    pub idle_when_refused: u64,
}

impl FlowOutcome {
    /// Calls that got a slot.
    #[must_use]
    pub const fn started(&self) -> u64 {
        self.waits.count()
    }

    /// Calls that were refused or late.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.refused.total() + self.late
    }

    /// The share of the calls that got a slot, in percent; 0 if none came.
    #[must_use]
    pub fn started_percent(&self) -> f64 {
        ratio(u128::from(self.started()) * 100, self.arrived.into())
    }
}

/// How long calls waited for their slot.
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
/// assert_eq!(reports.waits.longest(), Duration::ZERO, "there is no queue");
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Those that did not wait.
    at_once: u64,
    /// The others, in nanoseconds; in ascending order once the run has ended.
    waited: Vec<u64>,
}

impl Waits {
    /// Calls that got a slot.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.at_once + self.waited.len() as u64
    }

    /// The wait that `percent` of the calls did not exceed, to the very call; zero without calls.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Duration {
        let rank = float(self.count().into()) * percent.clamp(0.0, 100.0) / 100.0;
        let after = whole(rank.ceil()).saturating_sub(self.at_once);
        let position = usize::try_from(after).unwrap_or(usize::MAX);
        let wait = position.checked_sub(1).and_then(|i| self.waited.get(i));
        Duration::from_nanos(wait.copied().unwrap_or_default())
    }

    /// The mean.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let sum = self.waited.iter().map(|wait| u128::from(*wait)).sum();
        Duration::from_nanos(whole(ratio(sum, self.count().into())))
    }

    /// The longest.
    #[must_use]
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.waited.last().copied().unwrap_or_default())
    }

    #[inline]
    pub(super) fn record(&mut self, wait: u64) {
        if wait == 0 {
            self.at_once += 1;
        } else {
            self.waited.push(wait);
        }
    }

    pub(super) fn sort(&mut self) {
        self.waited.sort_unstable();
    }
}

/// What one class of the budget looked like in a span.
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
/// let class = &simulate(&day)?.spans[0].classes[0];
/// assert_eq!(class.mean_hold, Some(second));
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ClassOutcome {
    /// Its limits.
    pub rules: ClassRules,
    /// Calls that came.
    pub arrived: u64,
    /// Those of them that never got a slot.
    pub refused: Refused,
    /// Slots held.
    pub held: Level,
    /// Callers waiting.
    pub waiting: Level,
    /// Holds that ended.
    pub ended: u64,
    /// Their mean, if one ended.
    pub mean_hold: Option<Duration>,
    /// The holds that ran when the span ended.
    pub ages: Ages,
    /// Refusals of other classes while slots that are reserved for this one were free.
    pub stranded_refusals: u64,
    /// How many those slots were at each such refusal, all together.
    pub stranded_slots: u64,
    /// Calls of other classes in the span.
    pub neighbours_arrived: u64,
}

impl ClassOutcome {
    /// Slots held on average, as a share of the most that it may hold.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        self.held.average / f64::from(self.rules.max)
    }
}

/// A run over time, for a plot.
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
/// let drawn = day.step(second);
/// let curve = simulate(&drawn)?.curve.unwrap();
/// assert_eq!(curve.step, second);
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Curve {
    /// From one point to the next; the first is at 0.
    pub step: Duration,
    /// One entry a flow, in their order.
    pub flows: Vec<FlowCurve>,
}

/// One flow over time. At a point, what ends in that instant has ended, and who comes has not come yet.
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
/// let drawn = day.step(second);
/// let curve = &simulate(&drawn)?.curve.unwrap().flows[0];
/// assert_eq!(curve.held.len(), curve.waiting.len());
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowCurve {
    /// The flow.
    pub name: String,
    /// Slots held, at each point.
    pub held: Vec<u32>,
    /// Callers waiting, at each point.
    pub waiting: Vec<u32>,
    /// Calls refused from each point to the next.
    pub refused: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_wait_of_a_call() {
        let mut waits = Waits::default();
        for wait in [0, 0, 30, 10, 20, 0, 40, 0, 60, 50] {
            waits.record(wait);
        }
        waits.sort();
        let at = |percent| waits.percentile(percent).as_nanos();
        assert_eq!(
            [0.0, 40.0, 40.1, 50.0, 90.0, 99.0, 100.0].map(at),
            [0, 0, 10, 10, 50, 60, 60]
        );
        assert_eq!((waits.count(), waits.mean().as_nanos()), (10, 21));
        assert_eq!(waits.longest().as_nanos(), 60);
        assert_eq!(Waits::default().percentile(99.0), Duration::ZERO);
    }
}
