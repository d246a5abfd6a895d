//! What is to be planned for.

use std::fmt;
use std::time::Duration;

use crate::config::Kind;
use crate::fleet::{Fleet, ServerLimits};
use crate::plan::formulas::{self, Rate};
use crate::plan::simulator::{AtDeadline, HoldTime};

/// How often a flow calls, and whose calls these are.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::planner::Load;
///
/// assert_eq!(Load::OfFleet(Rate::of(600)).per_replica(3), Rate::of(200));
/// assert_eq!(Load::PerReplica(Rate::of(200)).per_replica(3), Rate::of(200));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Those that one replica gets.
    PerReplica(Rate),
    /// Those of the whole fleet, which share them evenly when there are as many replicas as there may be.
    OfFleet(Rate),
}

impl Load {
    /// The calls that one of so many replicas gets.
    #[must_use]
    pub const fn per_replica(self, replicas: u32) -> Rate {
        match self {
            Self::PerReplica(rate) => rate,
            Self::OfFleet(rate) => rate.divided(replicas),
        }
    }
}

/// Calls of one kind, and what they need.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::Kind;
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::planner::{FlowNeed, Load};
/// use partitioned_pool::plan::simulator::HoldTime;
///
/// let hold = HoldTime::Exponential(Duration::from_millis(40));
/// let mut checkout = FlowNeed::new("checkout", Kind::Transactional, Load::PerReplica(Rate::of(200)), hold);
/// checkout.partition = "transactional".to_owned();
/// checkout.deadline = Some(Duration::from_secs(1));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FlowNeed {
    /// Its name.
    pub name: String,
    /// The partition that its calls go to. Default: one of the flow's name.
    pub partition: String,
    /// What the partition is for. [`Kind::Transactional`] is critical: its reservation carries its peak. A
    /// [`Kind::Analytical`] one has its mean reserved, and borrows for its peak.
    pub kind: Kind,
    /// How often it calls, on average.
    pub load: Load,
    /// How long a call holds its connection.
    pub hold: HoldTime,
    /// How long its caller has, waiting and work together. Default: not known.
    pub deadline: Option<Duration>,
    /// What its caller does when the deadline comes while its call works. Default: it leaves, and its slot is free.
    pub at_deadline: AtDeadline,
    /// The longest that its caller waits for a slot. Default: as its partition has it.
    pub acquire_timeout: Option<Duration>,
    /// Its peak, in percent of its mean. Default: [`HEADROOM_PERCENT`].
    pub headroom_percent: u32,
    /// The share of its calls that may be lost on a day on which nothing is wrong. Default: [`allowed_loss`].
    pub loss: f64,
}

/// The peak of a flow that says nothing of it: twice its mean. A rate is mostly known as the mean of an hour or a
/// day, and the best minute of a day is about twice that.
pub const HEADROOM_PERCENT: u32 = 200;

/// The share of the calls that a partition of this kind may lose at its peak: one in a thousand where somebody
/// waits for the answer; one in a hundred of reports, which are told at once and can be asked for again.
#[must_use]
pub const fn allowed_loss(kind: Kind) -> f64 {
    match kind {
        Kind::Transactional => 0.001,
        Kind::Analytical => 0.01,
    }
}

impl FlowNeed {
    /// A flow with a partition of its own name, and the defaults of its fields.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: Kind, load: Load, hold: HoldTime) -> Self {
        let name = name.into();
        Self {
            partition: name.clone(),
            name,
            kind,
            load,
            hold,
            deadline: None,
            at_deadline: AtDeadline::Free,
            acquire_timeout: None,
            headroom_percent: HEADROOM_PERCENT,
            loss: allowed_loss(kind),
        }
    }
}

/// A service, its fleet and its server.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::Kind;
/// use partitioned_pool::fleet::{Fleet, ServerLimits};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::planner::{FlowNeed, Load, Service};
/// use partitioned_pool::plan::simulator::HoldTime;
///
/// let load = Load::PerReplica(Rate::of(200));
/// let hold = HoldTime::Exponential(Duration::from_millis(40));
/// let checkout = FlowNeed::new("transactional", Kind::Transactional, load, hold);
/// let service = Service::new("shop", vec![checkout], Fleet::new(3, 1), ServerLimits::new(170_004, 100));
/// assert_eq!(service.role, "app");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Service {
    /// As the database knows it.
    pub name: String,
    /// The role that it logs in with.
    pub role: String,
    /// The database that it uses.
    pub database: String,
    /// The budget that its partitions share, if any do.
    pub budget: String,
    /// Who calls.
    pub flows: Vec<FlowNeed>,
    /// Replicas, surge, reserve, and pools that are not ours. Its budgets are not looked at.
    pub fleet: Fleet,
    /// What the server grants.
    pub server: ServerLimits,
}

impl Service {
    /// A service whose role and database are called `app`, and its budget `main`.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        flows: Vec<FlowNeed>,
        fleet: Fleet,
        server: ServerLimits,
    ) -> Self {
        Self {
            name: name.into(),
            role: "app".to_owned(),
            database: "app".to_owned(),
            budget: "main".to_owned(),
            flows,
            fleet,
            server,
        }
    }

    /// The partitions that its flows call, in the order in which they are first named.
    #[must_use]
    pub fn partitions(&self) -> Vec<PartitionNeed> {
        let mut partitions: Vec<PartitionNeed> = Vec::new();
        for (n, flow) in self.flows.iter().enumerate() {
            match partitions.iter_mut().find(|p| p.name == flow.partition) {
                Some(partition) => partition.flows.push(n),
                None => partitions.push(PartitionNeed {
                    name: flow.partition.clone(),
                    kind: flow.kind,
                    flows: vec![n],
                    mean: 0,
                    peak: 0,
                }),
            }
        }
        for partition in &mut partitions {
            partition.mean = formulas::slots_together(self.loads(&partition.flows, Pace::Mean));
            partition.peak = formulas::slots_together(self.loads(&partition.flows, Pace::Peak));
        }
        partitions
    }

    /// Rate in each replica, mean hold, and percent of it.
    pub(super) fn loads(
        &self,
        flows: &[usize],
        pace: Pace,
    ) -> impl Iterator<Item = (Rate, Duration, u32)> {
        flows.iter().map(move |n| {
            let flow = &self.flows[*n];
            let percent = match pace {
                Pace::Mean => 100,
                Pace::Peak => flow.headroom_percent,
            };
            (self.rate(flow), flow.hold.mean(), percent)
        })
    }

    /// The calls of a flow in each replica.
    #[must_use]
    pub fn rate(&self, flow: &FlowNeed) -> Rate {
        flow.load.per_replica(self.fleet.max_replicas)
    }

    /// The mean number of calls in flight.
    pub(super) fn erlangs(&self, flows: &[usize], pace: Pace) -> f64 {
        let loads = self.loads(flows, pace);
        let erlangs = |(rate, hold, percent): (Rate, Duration, u32)| {
            formulas::erlangs(rate.percent(percent), hold)
        };
        loads.map(erlangs).sum()
    }

    /// The mean of all holds of these flows; if nobody calls, the longest of their means.
    pub(super) fn hold(&self, flows: &[usize]) -> Duration {
        let rates = flows.iter().map(|n| self.rate(&self.flows[*n]));
        let rates = rates.map(Rate::as_per_second).sum::<f64>();
        let mean = self.erlangs(flows, Pace::Mean) / rates;
        Duration::try_from_secs_f64(mean).unwrap_or_else(|_| {
            let holds = flows.iter().map(|n| self.flows[*n].hold.mean());
            holds.max().unwrap_or_default()
        })
    }

    /// The shortest of their deadlines.
    pub(super) fn deadline(&self, flows: &[usize]) -> Option<Duration> {
        flows.iter().filter_map(|n| self.flows[*n].deadline).min()
    }

    /// The smallest of their losses that are allowed.
    pub(super) fn loss(&self, flows: &[usize]) -> f64 {
        let losses = flows.iter().map(|n| self.flows[*n].loss);
        losses.fold(1.0, f64::min)
    }
}

/// How much is called for.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::planner::Pace;
///
/// assert_eq!(Pace::Peak.to_string(), "peak of all");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pace {
    /// As on average.
    Mean,
    /// Every flow at its peak at once.
    Peak,
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mean => "ordinary day",
            Self::Peak => "peak of all",
        })
    }
}

/// A partition, as its flows need it.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::Kind;
/// use partitioned_pool::fleet::{Fleet, ServerLimits};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::planner::{FlowNeed, Load, Service};
/// use partitioned_pool::plan::simulator::HoldTime;
///
/// let load = Load::PerReplica(Rate::of(200));
/// let hold = HoldTime::Exponential(Duration::from_millis(40));
/// let checkout = FlowNeed::new("transactional", Kind::Transactional, load, hold);
/// let service = Service::new("shop", vec![checkout], Fleet::new(3, 1), ServerLimits::new(170_004, 100));
/// let needs = &service.partitions()[0];
/// assert_eq!((needs.mean, needs.peak), (8, 16));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionNeed {
    /// Its name.
    pub name: String,
    /// What it is for: as its first flow says.
    pub kind: Kind,
    /// Positions of its flows in [`Service::flows`].
    pub flows: Vec<usize>,
    /// Slots that its calls hold on average, rounded up.
    pub mean: u32,
    /// Slots that they hold on average at their peaks, rounded up.
    pub peak: u32,
}
