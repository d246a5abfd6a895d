//! What is to be simulated, and whether it can be.

use std::time::Duration;

use crate::admission::{ClassId, InvalidRules, Ledger, Rules};

use super::arrivals::Arrivals;
use super::holds::HoldTime;

/// The most calls that a run may have. Each that waits costs 8 bytes until the end.
pub(in crate::plan) const MOST_CALLS: u64 = 50_000_000;

/// The most points of a curve.
const MOST_POINTS: u128 = 1_000_000;

/// The longest run: times are nanoseconds in 64 bits, and sums of them must fit, too.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A day to be simulated: flows of calls, and the rules of the budget that they share.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::{ClassId, Rules};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::simulator::{Arrivals, Flow, HoldTime, Scenario, simulate};
///
/// // 200 calls a second that hold a connection for 40 ms, on 20 connections with a queue of 40.
/// let checkout = Flow::new(
///     "checkout",
///     ClassId::new(0),
///     Arrivals::Poisson(Rate::of(200)),
///     HoldTime::Exponential(Duration::from_millis(40)),
/// );
/// let hour = Scenario::new(Duration::from_secs(3600), Rules::fixed(20, 40)).flow(checkout);
/// let simulation = simulate(&hour)?;
/// let checkout = &simulation.spans[0].flows[0];
/// assert_eq!(checkout.refused.total(), 0);
/// assert!(checkout.waits.percentile(99.9) < Duration::from_millis(10));
/// # Ok::<(), partitioned_pool::plan::simulator::InvalidScenario>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Scenario {
    /// Where the random numbers begin. The same seed gives the same run, everywhere.
    pub seed: u64,
    /// How long it runs. What has not ended by then is counted as such.
    pub length: Duration,
    /// The budget: fixed bulkheads, one shared pool, or borrowing.
    pub rules: Rules,
    /// Who calls.
    pub flows: Vec<Flow>,
    /// The times to be reported, in order and apart from each other. Empty: the whole run.
    pub spans: Vec<Span>,
    /// The distance between two points of the [`Curve`](super::Curve). Default: none is drawn.
    pub step: Option<Duration>,
}

impl Scenario {
    /// Nobody calls yet. Seed 1, the whole run is reported, no curve.
    #[must_use]
    pub const fn new(length: Duration, rules: Rules) -> Self {
        Self {
            seed: 1,
            length,
            rules,
            flows: Vec::new(),
            spans: Vec::new(),
            step: None,
        }
    }

    /// With this flow, too.
    #[must_use]
    pub fn flow(mut self, flow: Flow) -> Self {
        self.flows.push(flow);
        self
    }

    /// With this seed.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Reports this time, too.
    #[must_use]
    pub fn span(mut self, from: Duration, until: Duration) -> Self {
        self.spans.push(Span { from, until });
        self
    }

    /// With a curve of a point each `step`.
    #[must_use]
    pub const fn step(mut self, step: Duration) -> Self {
        self.step = Some(step);
        self
    }

    /// The same day, on which nothing happens.
    #[must_use]
    pub fn without_incidents(&self) -> Self {
        let mut healthy = self.clone();
        healthy
            .flows
            .iter_mut()
            .for_each(|flow| flow.incident = None);
        healthy
    }

    pub(super) fn reported(&self) -> Vec<Span> {
        let whole = Span {
            from: Duration::ZERO,
            until: self.length,
        };
        if self.spans.is_empty() {
            vec![whole]
        } else {
            self.spans.clone()
        }
    }

    pub(in crate::plan) fn check(&self) -> Result<(), InvalidScenario> {
        Ledger::<()>::new(self.rules.clone())?;
        if self.length.is_zero() || self.length > LONGEST {
            return Err(InvalidScenario::Length(self.length));
        }
        self.check_spans()?;
        self.flows
            .iter()
            .try_for_each(|flow| self.check_flow(flow))?;
        let calls = self.flows.iter().map(|f| f.arrivals.expected(self.length));
        let calls = calls.fold(0, u64::saturating_add);
        if calls > MOST_CALLS {
            return Err(InvalidScenario::TooManyCalls(calls));
        }
        match self.step {
            Some(step) if points(self.length, step).is_none_or(|n| n > MOST_POINTS) => {
                Err(InvalidScenario::Step(step))
            }
            _ => Ok(()),
        }
    }

    fn check_spans(&self) -> Result<(), InvalidScenario> {
        let mut last = Duration::ZERO;
        for (position, span) in self.spans.iter().enumerate() {
            if span.from < last || span.from >= span.until || span.until > self.length {
                return Err(InvalidScenario::Span { position });
            }
            last = span.until;
        }
        Ok(())
    }

    fn check_flow(&self, flow: &Flow) -> Result<(), InvalidScenario> {
        let wrong = |reason| InvalidScenario::Flow {
            flow: flow.name.clone(),
            reason,
        };
        if flow.class.index() >= self.rules.classes.len() {
            return Err(wrong("its class is none of the rules"));
        }
        flow.check().map_err(wrong)
    }
}

/// From, until: the beginning is in, the end is out.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::simulator::Span;
///
/// let span = Span { from: Duration::from_secs(10), until: Duration::from_secs(40) };
/// assert_eq!(span.length(), Duration::from_secs(30));
/// assert!(span.contains(span.from) && !span.contains(span.until));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub from: Duration,
    /// Where it ends.
    pub until: Duration,
}

impl Span {
    /// How long it is.
    #[must_use]
    pub const fn length(&self) -> Duration {
        self.until.saturating_sub(self.from)
    }

    /// Whether `at` is in it.
    #[must_use]
    pub fn contains(&self, at: Duration) -> bool {
        self.from <= at && at < self.until
    }
}

/// Calls of one kind: when they come, what they need, and what they put up with.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::ClassId;
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::simulator::{Arrivals, AtDeadline, Flow, HoldTime};
///
/// let ms = Duration::from_millis;
/// let checkout = Flow::new("checkout", ClassId::new(0), Arrivals::Poisson(Rate::of(200)), HoldTime::Exponential(ms(40)))
///     .acquire_timeout(ms(960))
///     .deadline(ms(1_000), AtDeadline::Free);
/// # let _ = checkout;
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Flow {
    /// Its name.
    pub name: String,
    /// The class of the budget that its calls take their slots from. Several flows may share one.
    pub class: ClassId,
    /// When its calls come.
    pub arrivals: Arrivals,
    /// How long they hold a slot.
    pub hold: HoldTime,
    /// A time in which they hold it for another time. Default: none.
    pub incident: Option<Incident>,
    /// The longest that a call waits for its slot. Default: as long as it takes.
    pub acquire_timeout: Option<Duration>,
    /// The longest that a call may take, waiting and work together. Default: as long as it takes.
    pub deadline: Option<Duration>,
    /// What its caller does when the deadline comes. Default: it stays, and is late.
    pub at_deadline: AtDeadline,
}

impl Flow {
    /// Calls that wait and work as long as it takes, on a day without an incident.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        class: ClassId,
        arrivals: Arrivals,
        hold: HoldTime,
    ) -> Self {
        Self {
            name: name.into(),
            class,
            arrivals,
            hold,
            incident: None,
            acquire_timeout: None,
            deadline: None,
            at_deadline: AtDeadline::default(),
        }
    }

    /// Calls that start in this time hold their slot for `hold`.
    #[must_use]
    pub fn incident(mut self, from: Duration, until: Duration, hold: HoldTime) -> Self {
        let span = Span { from, until };
        self.incident = Some(Incident { span, hold });
        self
    }

    /// A call waits at most this long.
    #[must_use]
    pub const fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.acquire_timeout = Some(timeout);
        self
    }

    /// A call should be done after this long; if it is not, its caller does that.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration, then: AtDeadline) -> Self {
        self.deadline = Some(deadline);
        self.at_deadline = then;
        self
    }

    fn check(&self) -> Result<(), &'static str> {
        if matches!(&self.arrivals, Arrivals::Regular { every, .. } if every.is_zero()) {
            return Err("regular calls need a time between them");
        }
        if matches!(&self.arrivals, Arrivals::Trace(times) if !times.is_sorted()) {
            return Err("the times of a trace must ascend");
        }
        if self
            .incident
            .as_ref()
            .is_some_and(|i| i.span.from >= i.span.until)
        {
            return Err("its incident ends before it begins");
        }
        let incident = self.incident.as_ref().map(|i| &i.hold);
        incident
            .into_iter()
            .chain([&self.hold])
            .try_for_each(check_hold)
    }
}

fn points(length: Duration, step: Duration) -> Option<u128> {
    length.as_nanos().checked_div(step.as_nanos())
}

fn check_hold(hold: &HoldTime) -> Result<(), &'static str> {
    match hold {
        HoldTime::LogNormal { mean, spread } => {
            let fine = !mean.is_zero() && (0.0..=100.0).contains(spread);
            fine.then_some(())
                .ok_or("a log-normal hold needs a mean above 0 and a spread from 0 to 100")
        }
        HoldTime::Empirical(times) if times.is_empty() => Err("its list of holds is empty"),
        _ => Ok(()),
    }
}

/// A time in which a flow's own work is not healthy.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::ClassId;
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::simulator::{Arrivals, Flow, HoldTime};
///
/// let s = Duration::from_secs;
/// let reports = Flow::new("reports", ClassId::new(0), Arrivals::regular(Rate::of(2)), HoldTime::Fixed(s(1)))
///     .incident(s(10), s(40), HoldTime::Fixed(s(20)));
/// assert_eq!(reports.incident.unwrap().span.length(), s(30));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Incident {
    /// Calls that start in it are concerned. (A call that has started before is not.)
    pub span: Span,
    /// How long they hold their slot.
    pub hold: HoldTime,
}

/// What a caller does when its deadline comes.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::simulator::AtDeadline;
///
/// assert_eq!(AtDeadline::default(), AtDeadline::Stay);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtDeadline {
    /// Nothing: it waits and works on, and is late. The ledger is not told of its deadline.
    #[default]
    Stay,
    /// It leaves, and its work ends with it: the slot is free. This is what the pool does.
    Free,
    /// It leaves, but its work goes on: the slot is held until the hold would have ended. This is what
    /// happens where nobody cancels the query.
    Pin,
}

/// A [`Scenario`] that cannot be run.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::admission::Rules;
/// use partitioned_pool::plan::simulator::{InvalidScenario, Scenario, simulate};
///
/// let none = Scenario::new(Duration::ZERO, Rules::fixed(1, 0));
/// assert!(matches!(simulate(&none), Err(InvalidScenario::Length(_))));
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidScenario {
    /// No ledger can keep its rules.
    #[error(transparent)]
    Rules(#[from] InvalidRules),
    /// It has no length, or more than ten years of it.
    #[error("a run must last more than nothing and at most ten years, not {0:?}")]
    Length(Duration),
    /// A span is empty, out of order, or not inside the run.
    #[error("span {position} must begin after the one before it, and end later and within the run")]
    Span {
        /// Its position in [`Scenario::spans`].
        position: usize,
    },
    /// A flow says what cannot be.
    #[error("flow {flow}: {reason}")]
    Flow {
        /// The flow.
        flow: String,
        /// Why.
        reason: &'static str,
    },
    /// A call in [`replay`](super::replay) is of no flow, or earlier than the one before it.
    #[error("call {position} must name a flow and come no earlier than the one before it")]
    Call {
        /// Its position.
        position: u64,
    },
    /// More calls than a run may have.
    #[error("{0} calls are expected; a run may have {MOST_CALLS}")]
    TooManyCalls(u64),
    /// The points of the curve are too close together.
    #[error("a step of {0:?} makes more than {MOST_POINTS} points")]
    Step(Duration),
}
