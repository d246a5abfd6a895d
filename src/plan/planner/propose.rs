//! Sizes from needs.
//!
//! 1. A transactional partition has its peak reserved, by Little's law, or more if the bursts of an ordinary day need
//!    it; an analytical one its mean. What is reserved is instant, whatever the others do.
//! 2. Each may hold as many as carry the bursts of its peak, by M/M/c/K, with half of the loss that is allowed: the other
//!    half is for the moments in which what it could borrow is in use elsewhere.
//! 3. Both are simulated alone, and grow until they lose no more than that: holds may be spread wider than
//!    the formula's.
//! 4. All share one budget, the smallest with which the simulated peak of all flows at once loses no more than is allowed.
//!    It is searched between the least that there can be and the sum of the partitions.
//! 5. Then each flow in turn has an incident. A transactional partition that loses in that of another gets one more
//!    reserved, or a twentieth, and 4 is done again.
//! 6. The fleet check has the last word. Nothing is made smaller to please it: what does not fit is said, with what would.

use std::time::Duration;

use crate::config::{ANALYTICAL, Defaults, Kind, TRANSACTIONAL};
use crate::fleet::{FleetReport, PartitionSize};
use crate::plan::formulas::{Rate, mmck, useful_queue};
use crate::plan::simulator::InvalidScenario;

use super::day::{Day, Days, What};
use super::need::{FlowNeed, Pace, PartitionNeed, Service};
use super::reason::{Reason, Term};
use super::review::{Finding, outlasting};
use super::sizes::{PartitionSizes, Sizes};

/// How often a size may grow after it was simulated; by a twentieth at least, so that this is enough to triple it.
pub(super) const ROUNDS: u32 = 24;

/// The part of what it may lose that a partition loses because of the most that it may hold. The other half is for the
/// moments in which what it could borrow is in use elsewhere: without it, nothing would be gained by sharing.
const ALONE: f64 = 0.5;

/// The most connections that a Postgres can be told to accept.
const MOST: u32 = 262_143;

/// Sizes with their reasons, and how they did.
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
/// println!("{}", proposal.sizes.to_toml(&service).expect("it can be used"));
/// # assert!(proposal.is_good());
/// # Ok::<(), partitioned_pool::plan::planner::InvalidService>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Proposal {
    /// The sizes. All partitions share one budget.
    pub sizes: Sizes,
    /// Why the budget has its capacity.
    pub capacity: Reason,
    /// Why the partitions have theirs, in their order.
    pub partitions: Vec<PartitionReasons>,
    /// The simulated days.
    pub days: Vec<Day>,
    /// What no size helps: [`Finding::OutlastsDeadline`].
    pub advice: Vec<Finding>,
    /// Whether the fleet fits the server.
    pub report: FleetReport,
    /// Where it does not: the largest sizes that would, if there are any.
    pub largest: Option<Largest>,
}

/// Why a partition has its sizes.
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
/// let why = &proposal.partitions[0];
/// assert_eq!(why.reserved.to_string(), "ceil(200/s x 0.04 s x 2)");
/// # Ok::<(), partitioned_pool::plan::planner::InvalidService>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PartitionReasons {
    /// Why so much is reserved.
    pub reserved: Reason,
    /// Why it may hold so many.
    pub max_connections: Reason,
    /// Why so many may wait.
    pub max_waiters: Reason,
    /// Why they may wait so long.
    pub acquire_timeout: Reason,
    /// Why a statement may last so long.
    pub statement_timeout: Reason,
}

/// The largest sizes that fit, and what they would lose.
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
/// // Five replicas and one more do not fit a hundred connections.
/// let service = Service::new("shop", vec![checkout], Fleet::new(5, 1), ServerLimits::new(170_004, 100));
/// let proposal = propose(&service)?;
/// let largest = proposal.largest.expect("something fits");
/// assert!(!proposal.report.fits() && largest.sizes.capacity() < proposal.sizes.capacity());
/// # Ok::<(), partitioned_pool::plan::planner::InvalidService>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Largest {
    /// The sizes.
    pub sizes: Sizes,
    /// How they do.
    pub days: Vec<Day>,
}

impl Proposal {
    /// Whether the fleet fits, and no simulated day breaks a promise. What too few calls show is not broken: see
    /// [`Loss::is_open`](super::Loss::is_open).
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.report.fits() && self.days.iter().all(|day| day.broken().next().is_none())
    }
}

/// A service that cannot be planned for.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Fleet, ServerLimits};
/// use partitioned_pool::plan::planner::{InvalidService, Service, propose};
///
/// let nobody = Service::new("shop", Vec::new(), Fleet::new(3, 1), ServerLimits::new(170_004, 100));
/// assert_eq!(propose(&nobody).unwrap_err(), InvalidService::NoFlow);
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidService {
    /// Nobody calls.
    #[error("no flow calls")]
    NoFlow,
    /// Flows of one partition want different things of it.
    #[error("the flows of partition {partition} must be all transactional or all analytical")]
    Kinds {
        /// The partition.
        partition: String,
    },
    /// The deadline of a flow is not longer than its own work.
    #[error("flow {flow}: its mean hold is not below its deadline, so no size helps")]
    Late {
        /// The flow.
        flow: String,
    },
    /// A flow needs more than any server accepts.
    #[error(
        "partition {partition}: its peak needs {slots} connections in one replica, more than any Postgres accepts"
    )]
    TooLarge {
        /// The partition.
        partition: String,
        /// What it needs.
        slots: u32,
    },
    /// A day cannot be simulated.
    #[error(transparent)]
    Scenario(#[from] InvalidScenario),
}

impl Service {
    pub(super) fn check(&self) -> Result<(), InvalidService> {
        let silent = |flow: &FlowNeed| self.rate(flow) == Rate::default();
        if self.flows.iter().all(silent) {
            return Err(InvalidService::NoFlow);
        }
        for flow in &self.flows {
            if flow
                .deadline
                .is_some_and(|deadline| deadline <= flow.hold.mean())
            {
                let flow = flow.name.clone();
                return Err(InvalidService::Late { flow });
            }
        }
        self.partitions().into_iter().try_for_each(|need| {
            let partition = need.name;
            if need.flows.iter().any(|n| self.flows[*n].kind != need.kind) {
                return Err(InvalidService::Kinds { partition });
            }
            match need.peak {
                slots if slots > MOST => Err(InvalidService::TooLarge { partition, slots }),
                _ => Ok(()),
            }
        })
    }
}

/// Proposes sizes for a service.
///
/// # Errors
/// A service that no size would help, or that cannot be simulated: see [`InvalidService`]. That the fleet does
/// not fit its server is no error: see [`Proposal::report`].
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
///
/// let proposal = propose(&service)?;
/// assert!(proposal.is_good());
/// let reserved = (proposal.sizes.partitions[0].reserved, proposal.partitions[0].reserved.to_string());
/// assert_eq!(reserved, (16, "ceil(200/s x 0.04 s x 2)".to_owned()));
/// # Ok::<(), partitioned_pool::plan::planner::InvalidService>(())
/// ```
pub fn propose(service: &Service) -> Result<Proposal, InvalidService> {
    service.check()?;
    let mut drafts = Vec::new();
    for need in service.partitions() {
        drafts.push(Draft::new(service, need)?);
    }
    for name in [TRANSACTIONAL, ANALYTICAL] {
        if drafts.iter().all(|draft| draft.sizes.name != name) {
            drafts.push(Draft::without_flows(name));
        }
    }
    let days = Days::new(service)?;
    let (sizes, capacity, all) = together(&days, &mut drafts)?;
    let report = sizes.check(service);
    let largest = match report.fits() {
        true => None,
        false => largest(&days, &sizes, &report)?,
    };
    let partitions = drafts.into_iter().map(|draft| draft.reasons).collect();
    Ok(Proposal {
        sizes,
        capacity,
        partitions,
        advice: outlasting(service, &all),
        days: all,
        report,
        largest,
    })
}

/// A partition that is being sized.
struct Draft {
    sizes: PartitionSizes,
    reasons: PartitionReasons,
    flows: Vec<usize>,
}

impl Draft {
    fn new(service: &Service, need: PartitionNeed) -> Result<Self, InvalidService> {
        let mut draft = Self::blank(&need.name, need.kind, need.flows);
        draft.timeouts(service);
        draft.reserve(service, need.mean, need.peak);
        let reserved = draft.sizes.reserved;
        draft.allow(service, reserved);
        draft.grow(service)?;
        Ok(draft)
    }

    /// One slot of its own.
    fn without_flows(name: &str) -> Self {
        let kind = match name {
            ANALYTICAL => Kind::Analytical,
            _ => Kind::Transactional,
        };
        Self::blank(name, kind, Vec::new())
    }

    fn blank(name: &str, kind: Kind, flows: Vec<usize>) -> Self {
        let default = || Reason::Default(kind);
        Self {
            sizes: PartitionSizes::borrowing(name, kind, 1, 1),
            reasons: PartitionReasons {
                reserved: Reason::NoFlow,
                max_connections: Reason::NoFlow,
                max_waiters: default(),
                acquire_timeout: default(),
                statement_timeout: default(),
            },
            flows,
        }
    }

    fn timeouts(&mut self, service: &Service) {
        let Some(deadline) = service.deadline(&self.flows) else {
            return;
        };
        let hold = service.hold(&self.flows);
        let patience = whole_millis(deadline.saturating_sub(hold));
        self.sizes.acquire_timeout = patience;
        self.reasons.acquire_timeout = Reason::Patience { deadline, hold };
        self.sizes.statement_timeout = Some(whole_millis(deadline));
        self.reasons.statement_timeout = Reason::Deadline;
    }

    fn reserve(&mut self, service: &Service, mean: u32, peak: u32) {
        let (pace, little) = match self.sizes.kind {
            Kind::Transactional => (Pace::Peak, peak),
            Kind::Analytical => (Pace::Mean, mean),
        };
        self.sizes.reserved = little.max(1);
        self.reasons.reserved = Reason::Little(terms(service, &self.flows, pace));
        if self.sizes.kind == Kind::Transactional {
            let bursts = self.bursts(service, Pace::Mean, 1.0);
            if bursts.0 > self.sizes.reserved {
                (self.sizes.reserved, self.reasons.reserved) = bursts;
            }
        }
    }

    /// At least so many.
    fn allow(&mut self, service: &Service, least: u32) {
        let (max, reason) = self.bursts(service, Pace::Peak, ALONE);
        self.sizes.max_connections = max.max(least);
        self.reasons.max_connections = match max < least {
            true => self.reasons.reserved.clone(),
            false => reason,
        };
        self.queue(service);
    }

    fn queue(&mut self, service: &Service) {
        let max = self.sizes.max_connections;
        (self.sizes.max_waiters, self.reasons.max_waiters) = self.queue_for(service, max);
    }

    fn queue_for(&self, service: &Service, slots: u32) -> (u32, Reason) {
        let kind = self.sizes.kind;
        let turns = Defaults::of(kind).max_waiters(slots);
        if kind == Kind::Analytical {
            return (turns, Reason::NoQueue);
        }
        let hold = service.hold(&self.flows);
        let deadline = service.deadline(&self.flows);
        match deadline.map(|deadline| (deadline, useful_queue(slots, deadline, hold))) {
            Some((deadline, useful)) if useful < turns => (
                useful,
                Reason::UsefulQueue {
                    slots,
                    deadline,
                    hold,
                },
            ),
            useful => {
                let useful = useful.map(|(_, useful)| useful);
                (turns, Reason::TwoTurns { slots, useful })
            }
        }
    }

    /// The fewest slots that carry the bursts, and lose no more than `part` of what may be lost.
    fn bursts(&self, service: &Service, pace: Pace, part: f64) -> (u32, Reason) {
        let erlangs = service.erlangs(&self.flows, pace);
        let loss = service.loss(&self.flows) * part;
        let queue = |slots| self.queue_for(service, slots).0;
        let enough = |slots| mmck(slots, queue(slots), erlangs).refused <= loss;
        let (mut too_few, mut fewest) = (0, MOST);
        while fewest - too_few > 1 {
            let middle = too_few.midpoint(fewest);
            match enough(middle) {
                true => fewest = middle,
                false => too_few = middle,
            }
        }
        let queue = queue(fewest);
        (
            fewest,
            Reason::Bursts {
                erlangs,
                queue,
                loss,
            },
        )
    }

    /// Until it loses no more than is allowed when it has only what is its own.
    fn grow(&mut self, service: &Service) -> Result<(), InvalidService> {
        let days = Days::of(service, self.flows.clone())?;
        for _ in 0..ROUNDS {
            if days.alone(&self.sizes, Pace::Peak)? <= ALONE {
                break;
            }
            self.allow_more(service);
        }
        for _ in 0..ROUNDS {
            let mut own = self.sizes.clone();
            own.max_connections = own.reserved;
            let critical = own.kind == Kind::Transactional;
            if !critical || days.alone(&own, Pace::Mean)? <= 1.0 {
                break;
            }
            self.reserve_more(service, |formula| Reason::Simulated { formula });
        }
        Ok(())
    }

    fn allow_more(&mut self, service: &Service) {
        let formula = formula(&self.reasons.max_connections, self.sizes.max_connections);
        self.sizes.max_connections = more(self.sizes.max_connections);
        self.reasons.max_connections = Reason::Simulated { formula };
        self.queue(service);
    }

    fn reserve_more(&mut self, service: &Service, reason: fn(u32) -> Reason) {
        self.reasons.reserved = reason(formula(&self.reasons.reserved, self.sizes.reserved));
        self.sizes.reserved = more(self.sizes.reserved);
        if self.sizes.max_connections < self.sizes.reserved {
            self.sizes.max_connections = self.sizes.reserved;
            self.reasons.max_connections = self.reasons.reserved.clone();
            self.queue(service);
        }
    }
}

/// What the formulas gave for a size that may have grown since.
const fn formula(reason: &Reason, size: u32) -> u32 {
    match reason {
        Reason::Simulated { formula } | Reason::Incident { formula } => *formula,
        _ => size,
    }
}

/// One more, or a twentieth.
pub(super) fn more(slots: u32) -> u32 {
    slots.saturating_add((slots / 20).max(1)).min(MOST)
}

/// The server counts in whole milliseconds; less than one is none.
fn whole_millis(time: Duration) -> Duration {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(millis.max(1))
}

fn terms(service: &Service, flows: &[usize], pace: Pace) -> Vec<Term> {
    let term = |n: &usize| {
        let flow = &service.flows[*n];
        Term {
            load: flow.load,
            replicas: service.fleet.max_replicas,
            hold: flow.hold.mean(),
            percent: match pace {
                Pace::Mean => 100,
                Pace::Peak => flow.headroom_percent,
            },
        }
    };
    flows.iter().map(term).collect()
}

/// The smallest budget that carries the peak of all, and in which nobody is struck by the incident of another.
fn together(
    days: &Days<'_>,
    drafts: &mut [Draft],
) -> Result<(Sizes, Reason, Vec<Day>), InvalidService> {
    let mut round = 0;
    loop {
        let (sizes, reason) = smallest(days, drafts)?;
        let all = days.all(&sizes)?;
        round += 1;
        let broken = all
            .iter()
            .find_map(|day| Some((&day.what, day.broken().next()?)));
        let Some((what, flow)) = broken.filter(|_| round < ROUNDS) else {
            return Ok((sizes, reason, all));
        };
        let draft = drafts.iter_mut().find(|draft| draft.flows.contains(&flow));
        let draft = draft.expect("bug: every flow has a partition");
        match what {
            What::Healthy(_) => draft.allow_more(days.service),
            What::Incident { .. } => {
                draft.reserve_more(days.service, |formula| Reason::Incident { formula });
            }
        }
    }
}

/// The smallest budget for these partitions; if none is enough, as much as they may hold.
fn smallest(days: &Days<'_>, drafts: &[Draft]) -> Result<(Sizes, Reason), InvalidService> {
    let partitions: Vec<_> = drafts.iter().map(|draft| draft.sizes.clone()).collect();
    let sum =
        |of: fn(&PartitionSizes) -> u32| partitions.iter().map(of).fold(0, u32::saturating_add);
    let (reserved, apart) = (sum(|p| p.reserved), sum(|p| p.max_connections));
    let most = partitions.iter().map(|p| p.max_connections).max();
    let least = reserved.max(most.unwrap_or(1));
    let sizes = |capacity| Sizes::sharing(capacity, partitions.clone());
    let carries = |capacity| {
        let day = days.day(&sizes(capacity), What::Healthy(Pace::Peak))?;
        Ok::<_, InvalidService>(day.broken().next().is_none())
    };
    if least >= apart || carries(least)? {
        return Ok((sizes(least), Reason::LeastBudget { apart }));
    }
    if !carries(apart)? {
        return Ok((sizes(apart), Reason::TooLittle));
    }
    let (mut too_few, mut fewest) = (least, apart);
    while fewest - too_few > 1 {
        let middle = too_few.midpoint(fewest);
        match carries(middle)? {
            true => fewest = middle,
            false => too_few = middle,
        }
    }
    Ok((sizes(fewest), Reason::Pooled { apart }))
}

/// What the fleet check says would fit, with what it would lose.
fn largest(
    days: &Days<'_>,
    sizes: &Sizes,
    report: &FleetReport,
) -> Result<Option<Largest>, InvalidService> {
    let Some(fits) = report.largest_partitions() else {
        return Ok(None);
    };
    let sizes = shrunk(sizes, fits);
    let days = days.all(&sizes)?;
    Ok(Some(Largest { sizes, days }))
}

/// The sizes, as small as a report says. Queues and timeouts stay.
pub(super) fn shrunk(sizes: &Sizes, fits: &[PartitionSize]) -> Sizes {
    let mut sizes = sizes.clone();
    for size in fits {
        if size.partitions.is_empty() {
            let alone = sizes.partitions.iter_mut().find(|p| p.name == size.name);
            alone.into_iter().for_each(|partition| {
                (partition.reserved, partition.max_connections) = (size.size, size.size);
            });
            continue;
        }
        sizes.shared = size.size;
        for share in &size.partitions {
            let drawing = sizes.partitions.iter_mut().find(|p| p.name == share.name);
            drawing.into_iter().for_each(|partition| {
                (partition.reserved, partition.max_connections) =
                    (share.reserved, share.max_connections);
            });
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use crate::fleet::{Fleet, ServerLimits};
    use crate::plan::planner::Load;
    use crate::plan::simulator::HoldTime;

    use super::*;

    fn service() -> Service {
        let flow = |name, kind| {
            let hold = HoldTime::Exponential(Duration::from_millis(40));
            FlowNeed::new(name, kind, Load::PerReplica(Rate::of(200)), hold)
        };
        let flows = [
            flow(TRANSACTIONAL, Kind::Transactional),
            flow(ANALYTICAL, Kind::Analytical),
        ];
        let limits = ServerLimits::new(170_000, 100);
        Service::new("shop", flows.to_vec(), Fleet::new(1, 0), limits)
    }

    fn draft(need: PartitionNeed, max: u32) -> Draft {
        let mut draft = Draft::blank(&need.name, need.kind, need.flows);
        draft.sizes.max_connections = max;
        draft
    }

    #[test]
    fn a_budget_that_is_not_enough_is_not_called_enough() {
        let service = service();
        let days = Days::new(&service).unwrap();
        let reason = |max| {
            let needs = service.partitions().into_iter();
            let drafts: Vec<_> = needs.map(|need| draft(need, max)).collect();
            let (sizes, reason) = smallest(&days, &drafts).unwrap();
            (sizes.shared, reason)
        };
        assert_eq!(reason(3), (6, Reason::TooLittle));
        let (capacity, enough) = reason(32);
        assert!(capacity < 64, "{capacity}");
        assert!(!matches!(enough, Reason::TooLittle), "{enough}");
    }

    #[test]
    fn what_has_grown_says_why_and_from_what() {
        let service = service();
        let mut draft = draft(service.partitions().remove(0), 16);
        draft.sizes.reserved = 16;
        draft.reserve_more(&service, |formula| Reason::Simulated { formula });
        draft.reserve_more(&service, |formula| Reason::Incident { formula });
        let Draft { sizes, reasons, .. } = draft;
        assert_eq!((sizes.reserved, sizes.max_connections), (18, 18));
        assert_eq!(reasons.reserved, Reason::Incident { formula: 16 });
    }
}
