//! What is to be said of sizes that are given.

use std::fmt;
use std::time::Duration;

use crate::admission::ClassId;
use crate::config::Kind;
use crate::fleet::FleetReport;
use crate::plan::diagnosis::{Finding as Diagnosed, Window, diagnose};
use crate::plan::formulas::{self, Rate, mmck, slots_for_loss, useful_queue};

use super::day::{Day, Days, INCIDENT, Loss, What};
use super::need::{Pace, PartitionNeed, Service};
use super::propose::{InvalidService, Largest, ROUNDS, more, shrunk};
use super::reason::percent;
use super::sizes::{PartitionSizes, Sizes};

/// A partition with a mean load below this may be one too many.
///
/// So few calls in flight come in bursts that are large beside them: at one in a hundred that may be refused, half an erlang
/// needs 4 slots, which then are busy an eighth of the time; four such partitions 16, but 7 if they were one.
pub const FEW_ERLANGS: f64 = 2.0;

/// Small partitions of a kind are too many if together they would need at most this share of their slots, in percent.
pub const WORTH_POOLING_PERCENT: u32 = 75;

/// What was found about given sizes.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::Kind;
/// use partitioned_pool::fleet::{Fleet, ServerLimits};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::planner::{FlowNeed, Load, PartitionSizes, Service, Sizes, review};
/// use partitioned_pool::plan::simulator::HoldTime;
///
/// let load = Load::PerReplica(Rate::of(200));
/// let hold = HoldTime::Exponential(Duration::from_millis(40));
/// let checkout = FlowNeed::new("transactional", Kind::Transactional, load, hold);
/// let service = Service::new("shop", vec![checkout], Fleet::new(3, 1), ServerLimits::new(170_004, 100));
/// let sizes = Sizes::apart(vec![
///     PartitionSizes::fixed("transactional", Kind::Transactional, 6),
///     PartitionSizes::fixed("analytical", Kind::Analytical, 4),
/// ]);
/// let review = review(&service, &sizes)?;
/// assert!(!review.is_good(), "6 slots are too few for 8 calls in flight");
/// # Ok::<(), partitioned_pool::plan::planner::InvalidService>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Review {
    /// What each partition carries.
    pub partitions: Vec<Carried>,
    /// The simulated days.
    pub days: Vec<Day>,
    /// What is wrong, or could be better.
    pub findings: Vec<Finding>,
    /// Whether the fleet fits the server.
    pub report: FleetReport,
    /// Where it does not: the largest sizes that would, if there are any.
    pub largest: Option<Largest>,
}

impl Review {
    /// The fleet fits, no partition was seen too small for its own peak, and no transactional one losing in another's
    /// incident. What too few calls show is not seen: see [`Loss::is_open`].
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.report.fits() && !self.findings.iter().any(Finding::is_wrong)
    }
}

/// What a partition carries.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::Kind;
/// use partitioned_pool::fleet::{Fleet, ServerLimits};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::planner::{FlowNeed, Load, PartitionSizes, Service, Sizes, review};
/// use partitioned_pool::plan::simulator::HoldTime;
///
/// let load = Load::PerReplica(Rate::of(200));
/// let hold = HoldTime::Exponential(Duration::from_millis(40));
/// let checkout = FlowNeed::new("transactional", Kind::Transactional, load, hold);
/// let service = Service::new("shop", vec![checkout], Fleet::new(3, 1), ServerLimits::new(170_004, 100));
/// let sizes = Sizes::apart(vec![
///     PartitionSizes::fixed("transactional", Kind::Transactional, 6),
///     PartitionSizes::fixed("analytical", Kind::Analytical, 4),
/// ]);
/// let review = review(&service, &sizes)?;
/// assert_eq!((review.partitions[0].most, review.partitions[0].rate), (Rate::of(150), Rate::of(200)));
/// # Ok::<(), partitioned_pool::plan::planner::InvalidService>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Carried {
    /// Calls per second with all its slots busy.
    pub most: Rate,
    /// Calls per second that come.
    pub rate: Rate,
    /// Calls in flight on average.
    pub mean: f64,
    /// Calls in flight on average, at the peak.
    pub peak: f64,
    /// The share that is refused at the mean with only what is reserved, by M/M/c/K.
    pub refused_on_its_own: f64,
    /// The share that is refused at the peak with the most that it may hold, by M/M/c/K.
    pub refused_at_peak: f64,
}

/// Something about given sizes.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::Kind;
/// use partitioned_pool::fleet::{Fleet, ServerLimits};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::planner::{FlowNeed, Finding, Load, PartitionSizes, Service, Sizes, review};
/// use partitioned_pool::plan::simulator::HoldTime;
///
/// let load = Load::PerReplica(Rate::of(200));
/// let hold = HoldTime::Exponential(Duration::from_millis(40));
/// let checkout = FlowNeed::new("transactional", Kind::Transactional, load, hold);
/// let service = Service::new("shop", vec![checkout], Fleet::new(3, 1), ServerLimits::new(170_004, 100));
/// let sizes = Sizes::apart(vec![
///     PartitionSizes::fixed("transactional", Kind::Transactional, 6),
///     PartitionSizes::fixed("analytical", Kind::Analytical, 4),
/// ]);
/// let review = review(&service, &sizes)?;
/// assert!(matches!(&review.findings[0], Finding::TooSmall { partition, .. } if partition == "transactional"));
/// # Ok::<(), partitioned_pool::plan::planner::InvalidService>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Finding {
    /// It loses more than is allowed on a healthy day.
    TooSmall {
        /// The partition.
        partition: String,
        /// The flow that loses.
        flow: String,
        /// On which day.
        pace: Pace,
        /// What it loses.
        loss: Loss,
        /// Slots that it may hold, and slots of the budget.
        slots: [u32; 2],
        /// What its own peak needs when it is simulated alone, to within a twentieth; `None` if that was not found.
        needs: Option<u32>,
    },
    /// It loses in the incident of another, although it is transactional.
    Struck {
        /// The flow that loses.
        flow: String,
        /// The flow that has the incident.
        by: String,
        /// What it loses.
        loss: Loss,
        /// What it loses on the same day without the incident.
        without: Loss,
        /// What is reserved for it.
        reserved: u32,
    },
    /// It keeps slots that it does not need, while others are refused at the peak.
    Stranded {
        /// The partition.
        partition: String,
        /// Slots that it keeps.
        reserved: u32,
        /// The most that it used at the peak.
        used: u32,
        /// Calls of others that were refused meanwhile.
        refused: u64,
    },
    /// Walls between callers of one kind that cost more than they are worth.
    TooMany {
        /// The partitions.
        partitions: Vec<String>,
        /// The slots that they need apart.
        apart: u32,
        /// The slots that they would need as one.
        together: u32,
    },
    /// More of its calls than may be lost are late by their own work on an ordinary day. No size helps.
    OutlastsDeadline {
        /// The flow.
        flow: String,
        /// The share of its calls.
        share: f64,
    },
    /// The last in its queue are late in any case.
    UselessQueue {
        /// The partition.
        partition: String,
        /// The bound of its queue.
        max_waiters: u32,
        /// Callers that would be done in time.
        useful: u32,
        /// How long they have.
        deadline: Duration,
    },
}

impl Finding {
    /// A promise is broken; else it is advice.
    #[must_use]
    pub const fn is_wrong(&self) -> bool {
        matches!(self, Self::TooSmall { .. } | Self::Struck { .. })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall {
                partition,
                flow,
                pace,
                loss,
                slots: [max, budget],
                needs,
            } => write!(
                f,
                "{partition} is too small for a healthy day: {flow} loses {loss} ({:.2} %, allowed {} %) on the {pace} \
                 with {max} slots in a budget of {budget}; {}",
                100.0 * loss.share(),
                percent(loss.allowed),
                needed(*needs)
            ),
            Self::Struck {
                flow,
                by,
                loss,
                without,
                reserved,
            } => write!(
                f,
                "{flow} loses {loss} ({:.2} %, allowed {} %) when the holds of {by} last {INCIDENT} times as long, {} more \
                 than otherwise: the {reserved} slots reserved for it are too few",
                100.0 * loss.share(),
                percent(loss.allowed),
                loss.lost().saturating_sub(without.lost())
            ),
            Self::Stranded {
                partition,
                reserved,
                used,
                refused,
            } => write!(
                f,
                "{partition} strands capacity: it keeps {reserved} slots and uses {used} at most, while {refused} calls of \
                 others are refused; reserve less and lend the rest"
            ),
            Self::TooMany {
                partitions,
                apart,
                together,
            } => write!(
                f,
                "{} are more partitions than are useful: so few calls need {apart} slots apart, and {together} together",
                partitions.join(", ")
            ),
            Self::OutlastsDeadline { flow, share } => write!(
                f,
                "{:.1} % of the own holds of {flow} outlast its deadline; no size helps",
                100.0 * share
            ),
            Self::UselessQueue {
                partition,
                max_waiters,
                useful,
                deadline,
            } => write!(
                f,
                "{partition} lets {max_waiters} wait, but only {useful} of them would be done within {deadline:?}"
            ),
        }
    }
}

fn needed(needs: Option<u32>) -> String {
    match needs {
        Some(slots) => format!("its own peak needs {slots}"),
        None => "no number of slots was found that carries its own peak".to_owned(),
    }
}

/// Looks at given sizes.
///
/// # Errors
/// As [`propose`](super::propose); and sizes that no ledger can keep, or that lack a partition.
pub fn review(service: &Service, sizes: &Sizes) -> Result<Review, InvalidService> {
    service.check()?;
    let days = Days::new(service)?;
    let all = days.all(sizes)?;
    let needs = service.partitions();
    let drawn = |need: &PartitionNeed| {
        let position = sizes.position(&need.name)?;
        Some((position, &sizes.partitions[position]))
    };
    let known = needs.iter().filter_map(|need| Some((need, drawn(need)?)));
    let known: Vec<_> = known.collect();
    let mut findings = wrong(service, sizes, &all)?;
    findings.extend(stranded(&known, &all));
    findings.extend(too_many(service, &needs));
    findings.extend(outlasting(service, &all));
    findings.extend(
        known
            .iter()
            .filter_map(|(need, (_, partition))| useless(service, need, partition)),
    );
    let report = sizes.check(service);
    let fits = report.largest_partitions();
    let largest = match fits {
        Some(fits) => {
            let sizes = shrunk(sizes, fits);
            Some(Largest {
                days: days.all(&sizes)?,
                sizes,
            })
        }
        None => None,
    };
    Ok(Review {
        partitions: known
            .iter()
            .map(|(need, (_, p))| carried(service, need, p))
            .collect(),
        days: all,
        findings,
        report,
        largest,
    })
}

fn carried(service: &Service, need: &PartitionNeed, partition: &PartitionSizes) -> Carried {
    let [mean, peak] = [Pace::Mean, Pace::Peak].map(|pace| service.erlangs(&need.flows, pace));
    let refused = |slots: u32, erlangs| match slots {
        0 => 1.0,
        slots => mmck(slots, partition.max_waiters, erlangs).refused,
    };
    let rates = need.flows.iter().map(|n| service.rate(&service.flows[*n]));
    let rate = rates.map(Rate::as_per_second).sum();
    Carried {
        most: formulas::capacity(partition.max_connections, service.hold(&need.flows)),
        rate: Rate::per_second(rate).unwrap_or_default(),
        mean,
        peak,
        refused_on_its_own: refused(partition.reserved, mean),
        refused_at_peak: refused(partition.max_connections, peak),
    }
}

/// Every promise that a day breaks; each flow once for healthy days, and once for each incident that is to blame.
fn wrong(service: &Service, sizes: &Sizes, days: &[Day]) -> Result<Vec<Finding>, InvalidService> {
    let mut findings = Vec::new();
    let mut small = Vec::new();
    for day in days {
        for n in day.broken() {
            match day.what {
                What::Healthy(_) if small.contains(&n) => {}
                What::Healthy(pace) => {
                    small.push(n);
                    findings.push(too_small(service, sizes, n, pace, day.flows[n])?);
                }
                What::Incident { flow: by } => {
                    findings.extend(struck(
                        service,
                        sizes,
                        n,
                        by,
                        [day.flows[n], ordinary(days, n)],
                    ));
                }
            }
        }
    }
    Ok(findings)
}

/// What a flow loses when nothing is wrong.
fn ordinary(days: &[Day], flow: usize) -> Loss {
    let what = What::Healthy(Pace::Mean);
    let day = days.iter().find(|day| day.what == what);
    day.expect("bug: the ordinary day is always simulated")
        .flows[flow]
}

fn too_small(
    service: &Service,
    sizes: &Sizes,
    flow: usize,
    pace: Pace,
    loss: Loss,
) -> Result<Finding, InvalidService> {
    let partition = of_flow(service, sizes, flow);
    Ok(Finding::TooSmall {
        partition: partition.name.clone(),
        flow: service.flows[flow].name.clone(),
        pace,
        loss,
        slots: [partition.max_connections, sizes.capacity()],
        needs: own_peak(service, partition)?,
    })
}

/// A flow that loses too much on any day is too small; an incident is to blame for what it adds beyond what is allowed.
fn struck(
    service: &Service,
    sizes: &Sizes,
    flow: usize,
    by: usize,
    [loss, without]: [Loss; 2],
) -> Option<Finding> {
    let to_blame = !without.breaks_a_promise() || loss.share() - without.share() > loss.allowed;
    to_blame.then(|| Finding::Struck {
        flow: service.flows[flow].name.clone(),
        by: service.flows[by].name.clone(),
        loss,
        without,
        reserved: of_flow(service, sizes, flow).reserved,
    })
}

fn of_flow<'a>(service: &Service, sizes: &'a Sizes, flow: usize) -> &'a PartitionSizes {
    let position = sizes.position(&service.flows[flow].partition);
    &sizes.partitions[position.unwrap_or_default()]
}

/// Slots with which the peak of a partition loses no more than allowed, alone and simulated: what the formula says,
/// or more. With slots of its own it has lost too much, so it is more than those.
fn own_peak(service: &Service, partition: &PartitionSizes) -> Result<Option<u32>, InvalidService> {
    let needs = service.partitions();
    let Some(need) = needs.into_iter().find(|need| need.name == partition.name) else {
        return Ok(None);
    };
    let erlangs = service.erlangs(&need.flows, Pace::Peak);
    let loss = service.loss(&need.flows);
    let formula = slots_for_loss(erlangs, partition.max_waiters, loss).unwrap_or(need.peak);
    let known = match partition.shares {
        true => 1,
        false => more(partition.max_connections),
    };
    let days = Days::of(service, need.flows)?;
    let mut own = partition.clone();
    own.max_connections = formula.max(need.peak).max(known);
    for _ in 0..ROUNDS {
        if days.alone(&own, Pace::Peak)? <= 1.0 {
            return Ok(Some(own.max_connections));
        }
        own.max_connections = more(own.max_connections);
    }
    Ok(None)
}

/// Who keeps what it does not need at the peak of all, while others are refused.
fn stranded(known: &[(&PartitionNeed, (usize, &PartitionSizes))], days: &[Day]) -> Vec<Finding> {
    let peak = days
        .iter()
        .find(|day| day.what == What::Healthy(Pace::Peak));
    let Some(peak) = peak else { return Vec::new() };
    let found = known.iter().filter_map(|(_, (class, partition))| {
        let window = Window::of(&peak.measured, ClassId::new(*class), None);
        let strands = diagnose(&window).finding == Diagnosed::Stranded;
        strands.then(|| Finding::Stranded {
            partition: partition.name.clone(),
            reserved: partition.reserved,
            used: window.in_use.peak,
            refused: window.neighbours.refused_while_free,
        })
    });
    found.collect()
}

/// Partitions of one kind that are small, and would need much less together.
fn too_many(service: &Service, needs: &[PartitionNeed]) -> Vec<Finding> {
    let of_kind = |kind| needs.iter().filter(move |need| need.kind == kind);
    let kinds = [Kind::Transactional, Kind::Analytical].map(of_kind);
    kinds
        .into_iter()
        .filter_map(|needs| too_many_of(service, needs))
        .collect()
}

fn too_many_of<'a>(
    service: &Service,
    needs: impl Iterator<Item = &'a PartitionNeed>,
) -> Option<Finding> {
    let load = |need: &&PartitionNeed| service.erlangs(&need.flows, Pace::Mean);
    let small: Vec<_> = needs.filter(|need| load(need) < FEW_ERLANGS).collect();
    if small.len() < 2 {
        return None;
    }
    let flows: Vec<_> = small.iter().flat_map(|need| need.flows.clone()).collect();
    let slots = |flows: &[usize]| {
        slots_for_loss(service.erlangs(flows, Pace::Peak), 0, service.loss(flows))
    };
    let apart = small
        .iter()
        .map(|need| slots(&need.flows))
        .sum::<Option<u32>>()?;
    let together = slots(&flows)?;
    let worth = u64::from(together) * 100 <= u64::from(apart) * u64::from(WORTH_POOLING_PERCENT);
    worth.then(|| Finding::TooMany {
        partitions: small.iter().map(|need| need.name.clone()).collect(),
        apart,
        together,
    })
}

/// Flows whose deadline is short beside their own holds.
pub(super) fn outlasting(service: &Service, days: &[Day]) -> Vec<Finding> {
    let flows = service.flows.iter().enumerate();
    let late = flows.filter_map(|(n, flow)| {
        let loss = ordinary(days, n);
        let share = loss.late_anyway_share();
        (share > loss.allowed).then(|| Finding::OutlastsDeadline {
            flow: flow.name.clone(),
            share,
        })
    });
    late.collect()
}

fn useless(service: &Service, need: &PartitionNeed, partition: &PartitionSizes) -> Option<Finding> {
    let deadline = service.deadline(&need.flows)?;
    let hold = service.hold(&need.flows);
    let useful = useful_queue(partition.max_connections, deadline, hold);
    (partition.max_waiters > useful).then(|| Finding::UselessQueue {
        partition: partition.name.clone(),
        max_waiters: partition.max_waiters,
        useful,
        deadline,
    })
}
