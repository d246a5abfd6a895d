//! Days that are simulated with some sizes, and what flows lose on them.

use std::fmt;
use std::time::Duration;

use crate::admission::{ClassId, Rules};
use crate::config::Kind;
use crate::plan::figures::Refused;
use crate::plan::formulas::Rate;
use crate::plan::number::float;
use crate::plan::simulator::{Arrivals, Flow, InvalidScenario, Measured, Scenario, simulate};

use super::need::{Pace, Service};
use super::sizes::{PartitionSizes, Sizes};

/// How many times as long holds last in an incident.
pub const INCIDENT: u32 = 10;

/// Calls of a simulated day: at one in a thousand that may be lost, thirty of them.
const CALLS: f64 = 30_000.0;

/// Calls of the flow that calls most rarely: at one in a hundred that may be lost, ten of them.
const RARE_CALLS: f64 = 1_000.0;

/// Mean holds that a day lasts at least, so that an incident of tenfold ones shows.
const HOLDS: f64 = 100.0;

/// The most calls of a day that is long for the sake of one flow.
const MOST_CALLS: f64 = 300_000.0;

/// What kind of day it is.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::Kind;
/// use partitioned_pool::fleet::{Fleet, ServerLimits};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::planner::{FlowNeed, Load, Pace, Service, What, propose};
/// use partitioned_pool::plan::simulator::HoldTime;
///
/// let load = Load::PerReplica(Rate::of(200));
/// let hold = HoldTime::Exponential(Duration::from_millis(40));
/// let checkout = FlowNeed::new("transactional", Kind::Transactional, load, hold);
/// let service = Service::new("shop", vec![checkout], Fleet::new(3, 1), ServerLimits::new(170_004, 100));
/// let proposal = propose(&service)?;
/// assert_eq!(proposal.days[0].what, What::Healthy(Pace::Mean));
/// # Ok::<(), partitioned_pool::plan::planner::InvalidService>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// Nothing is wrong.
    Healthy(Pace),
    /// On an ordinary day, the holds of this flow are [`INCIDENT`] times as long for two fifths of the time.
    Incident {
        /// Its position.
        flow: usize,
    },
}

/// A day that was simulated.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::Kind;
/// use partitioned_pool::fleet::{Fleet, ServerLimits};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::planner::{FlowNeed, Load, Service, propose};
/// use partitioned_pool::plan::simulator::HoldTime;
///
/// let load = Load::PerReplica(Rate::of(200));
/// let hold = HoldTime::Exponential(Duration::from_millis(40));
/// let checkout = FlowNeed::new("transactional", Kind::Transactional, load, hold);
/// let service = Service::new("shop", vec![checkout], Fleet::new(3, 1), ServerLimits::new(170_004, 100));
/// let proposal = propose(&service)?;
/// for day in &proposal.days {
///     println!("{}: {} of {} calls lost", day.name(&service), day.flows[0].lost(), day.flows[0].arrived);
/// }
/// # Ok::<(), partitioned_pool::plan::planner::InvalidService>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Day {
    /// What kind of day.
    pub what: What,
    /// What was measured; the first fifth, in which everything starts empty, is left out.
    pub measured: Measured,
    /// What each flow lost.
    pub flows: Vec<Loss>,
}

/// Calls that a flow lost on a day.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::Kind;
/// use partitioned_pool::fleet::{Fleet, ServerLimits};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::planner::{FlowNeed, Load, Loss, Service, propose};
/// use partitioned_pool::plan::simulator::HoldTime;
///
/// let load = Load::PerReplica(Rate::of(200));
/// let hold = HoldTime::Exponential(Duration::from_millis(40));
/// let checkout = FlowNeed::new("transactional", Kind::Transactional, load, hold);
/// let service = Service::new("shop", vec![checkout], Fleet::new(3, 1), ServerLimits::new(170_004, 100));
/// let proposal = propose(&service)?;
/// let loss: &Loss = &proposal.days[0].flows[0];
/// assert!(loss.is_shown() && loss.share() <= loss.allowed);
/// # Ok::<(), partitioned_pool::plan::planner::InvalidService>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Loss {
    /// Calls that came.
    pub arrived: u64,
    /// Those that got no slot.
    pub refused: Refused,
    /// Those that were not done by their deadline.
    pub late: u64,
    /// Those that would have been late on this day with any number of slots, because their own hold is longer than that.
    pub late_anyway: u64,
    /// The share of calls that may be lost.
    pub allowed: f64,
    /// Whether a promise is made for it on this day.
    pub promised: bool,
}

impl Loss {
    /// Calls that got no slot, and those that were late beyond as many as are late with slots in plenty.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.refused.total() + self.late.saturating_sub(self.late_anyway)
    }

    /// The share of the calls that are late by their own work: no number of slots saves them.
    #[must_use]
    pub fn late_anyway_share(&self) -> f64 {
        float(self.late_anyway.into()) / float(self.arrived.max(1).into())
    }

    /// The share of the calls that were lost.
    #[must_use]
    pub fn share(&self) -> f64 {
        float(self.lost().into()) / float(self.arrived.max(1).into())
    }

    /// Whether enough calls came to show that a promise is kept: so many that one of them may be lost. A flow that
    /// calls very rarely beside one that calls very often comes too seldom in a day that can be simulated.
    #[must_use]
    pub fn is_shown(&self) -> bool {
        float(self.arrived.into()) * self.allowed >= 1.0
    }

    /// A promise is made, and neither broken nor shown to be kept.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.promised && !self.is_shown() && !self.breaks_a_promise()
    }

    /// More than is allowed, on a day on which that is a promise.
    #[must_use]
    pub fn breaks_a_promise(&self) -> bool {
        self.promised && self.share() > self.allowed
    }
}

impl Day {
    /// The flows for which a promise is broken.
    pub fn broken(&self) -> impl Iterator<Item = usize> + '_ {
        let flows = self.flows.iter().enumerate();
        flows
            .filter(|(_, loss)| loss.breaks_a_promise())
            .map(|(n, _)| n)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self, service: &Service) -> String {
        match self.what {
            What::Healthy(pace) => pace.to_string(),
            What::Incident { flow } => {
                format!("holds of {} x {INCIDENT}", service.flows[flow].name)
            }
        }
    }
}

/// Simulates days of one service.
#[derive(Clone, Debug)]
pub(super) struct Days<'a> {
    pub(super) service: &'a Service,
    /// Which flows take part: the others do not call.
    flows: Vec<usize>,
    /// Their late calls with slots in plenty, at each pace.
    late_anyway: [Vec<u64>; 2],
    /// Those of each flow in an incident of its own, which changes nothing for the others; none where it has no deadline.
    late_in_incident: Vec<u64>,
}

impl<'a> Days<'a> {
    /// Of all flows.
    pub(super) fn new(service: &'a Service) -> Result<Self, InvalidScenario> {
        let mut days = Self::of(service, (0..service.flows.len()).collect())?;
        for (n, flow) in service.flows.iter().enumerate() {
            let late = match flow.deadline {
                Some(_) => days.with_slots_in_plenty(&What::Incident { flow: n })?[n],
                None => 0,
            };
            days.late_in_incident.push(late);
        }
        Ok(days)
    }

    /// Of these flows alone.
    pub(super) fn of(service: &'a Service, flows: Vec<usize>) -> Result<Self, InvalidScenario> {
        let mut days = Self {
            service,
            flows,
            late_anyway: [Vec::new(), Vec::new()],
            late_in_incident: Vec::new(),
        };
        for pace in [Pace::Mean, Pace::Peak] {
            days.late_anyway[index(pace)] = days.with_slots_in_plenty(&What::Healthy(pace))?;
        }
        Ok(days)
    }

    fn with_slots_in_plenty(&self, what: &What) -> Result<Vec<u64>, InvalidScenario> {
        let flows = &self.service.flows;
        if flows.iter().all(|flow| flow.deadline.is_none()) {
            return Ok(vec![0; flows.len()]);
        }
        let mut day = Scenario::new(self.whole_length(), Rules::fixed(u32::MAX, 0));
        for n in 0..flows.len() {
            day = day.flow(self.flow_on(n, what, ClassId::new(0)));
        }
        let measured = run(&day)?;
        Ok(measured.flows.iter().map(|flow| flow.late).collect())
    }

    /// Late calls of a flow with slots in plenty.
    fn late_anyway(&self, n: usize, what: &What) -> u64 {
        match what {
            What::Healthy(pace) => self.late_anyway[index(*pace)][n],
            What::Incident { flow } if *flow == n => self.late_in_incident[n],
            What::Incident { .. } => self.late_anyway[index(Pace::Mean)][n],
        }
    }

    /// Five fifths.
    fn whole_length(&self) -> Duration {
        self.length() / 5 * 5
    }

    /// So long that every flow calls often enough, within reason.
    fn length(&self) -> Duration {
        let loads = self.service.loads(&self.flows, Pace::Mean);
        let loads: Vec<_> = loads
            .map(|(rate, hold, _)| (rate.as_per_second(), hold))
            .collect();
        let rate = loads.iter().map(|(rate, _)| rate).sum::<f64>();
        let rarest = loads.iter().map(|(rate, _)| *rate).fold(rate, f64::min);
        let hold = loads
            .iter()
            .map(|(_, hold)| *hold)
            .max()
            .unwrap_or_default();
        let long = (hold.as_secs_f64() * HOLDS).max(RARE_CALLS / rarest);
        let seconds = (CALLS / rate).max(long.min(MOST_CALLS / rate));
        Duration::try_from_secs_f64(seconds.clamp(1e-6, 1e8)).unwrap_or(Duration::from_secs(1))
    }

    fn flow(&self, n: usize, pace: Pace, class: ClassId) -> Flow {
        let need = &self.service.flows[n];
        let percent = match pace {
            Pace::Mean => 100,
            Pace::Peak => need.headroom_percent,
        };
        let rate = match self.flows.contains(&n) {
            true => self.service.rate(need).percent(percent),
            false => Rate::default(),
        };
        let flow = Flow::new(
            &need.name,
            class,
            Arrivals::Poisson(rate),
            need.hold.clone(),
        );
        match need.deadline {
            Some(deadline) => flow.deadline(deadline, need.at_deadline),
            None => flow,
        }
    }

    /// The same, with its incident if this is its day.
    fn flow_on(&self, n: usize, what: &What, class: ClassId) -> Flow {
        let fifth = self.length() / 5;
        match what {
            What::Healthy(pace) => self.flow(n, *pace, class),
            What::Incident { flow } if *flow == n => {
                let hold = self.service.flows[n].hold.times(INCIDENT);
                let flow = self.flow(n, Pace::Mean, class);
                flow.incident(fifth * 2, fifth * 4, hold)
            }
            What::Incident { .. } => self.flow(n, Pace::Mean, class),
        }
    }

    /// One day with these sizes.
    pub(super) fn day(&self, sizes: &Sizes, what: What) -> Result<Day, InvalidScenario> {
        let incident = match what {
            What::Healthy(_) => None,
            What::Incident { flow } => Some(flow),
        };
        let mut day = Scenario::new(self.whole_length(), sizes.rules());
        for (n, need) in self.service.flows.iter().enumerate() {
            let class = sizes.position(&need.partition).unwrap_or_default();
            let timeout = need.acquire_timeout;
            let timeout = timeout.unwrap_or(sizes.partitions[class].acquire_timeout);
            let flow = self.flow_on(n, &what, ClassId::new(class));
            day = day.flow(flow.acquire_timeout(timeout));
        }
        let measured = run(&day)?;
        let losses = measured.flows.iter().enumerate();
        let losses = losses.map(|(n, outcome)| {
            let need = &self.service.flows[n];
            Loss {
                arrived: outcome.arrived,
                refused: outcome.refused,
                late: outcome.late,
                late_anyway: self.late_anyway(n, &what),
                allowed: need.loss,
                promised: self.promised(n, incident),
            }
        });
        let flows = losses.collect();
        Ok(Day {
            what,
            measured,
            flows,
        })
    }

    /// In an incident, transactional partitions are promised to be whole, but that of the incident itself.
    fn promised(&self, flow: usize, incident: Option<usize>) -> bool {
        let flows = &self.service.flows;
        incident.is_none_or(|struck| {
            flows[flow].kind == Kind::Transactional
                && flows[struck].partition != flows[flow].partition
        })
    }

    /// What these flows lose with as many slots of their own as the partition may hold: the worst of them, as a
    /// multiple of what it may lose.
    pub(super) fn alone(
        &self,
        partition: &PartitionSizes,
        pace: Pace,
    ) -> Result<f64, InvalidScenario> {
        let mut own = partition.clone();
        (own.shares, own.reserved) = (false, own.max_connections);
        let day = self.day(&Sizes::apart(vec![own]), What::Healthy(pace))?;
        let losses = self.flows.iter().map(|n| &day.flows[*n]);
        Ok(losses.map(|l| l.share() / l.allowed).fold(0.0, f64::max))
    }

    /// The healthy days, and an incident of each flow.
    pub(super) fn all(&self, sizes: &Sizes) -> Result<Vec<Day>, InvalidScenario> {
        let healthy = [Pace::Mean, Pace::Peak].map(What::Healthy).into_iter();
        let incidents = self.flows.iter().map(|flow| What::Incident { flow: *flow });
        healthy
            .chain(incidents)
            .map(|what| self.day(sizes, what))
            .collect()
    }
}

const fn index(pace: Pace) -> usize {
    match pace {
        Pace::Mean => 0,
        Pace::Peak => 1,
    }
}

/// What happens after its first fifth.
fn run(day: &Scenario) -> Result<Measured, InvalidScenario> {
    let (from, until) = (day.length / 5, day.length);
    let mut simulation = simulate(&day.clone().span(from, until))?;
    Ok(simulation.spans.remove(0))
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} calls", self.lost(), self.arrived)
    }
}
