//! Why a figure is what it is.

use std::fmt;
use std::time::Duration;

use crate::config::Kind;

use super::need::Load;

/// One flow's part of Little's law.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::Kind;
/// use partitioned_pool::fleet::{Fleet, ServerLimits};
/// use partitioned_pool::plan::formulas::Rate;
/// use partitioned_pool::plan::planner::{FlowNeed, Load, Reason, Service, propose};
/// use partitioned_pool::plan::simulator::HoldTime;
///
/// let load = Load::PerReplica(Rate::of(200));
/// let hold = HoldTime::Exponential(Duration::from_millis(40));
/// let checkout = FlowNeed::new("transactional", Kind::Transactional, load, hold);
/// let service = Service::new("shop", vec![checkout], Fleet::new(3, 1), ServerLimits::new(170_004, 100));
/// let proposal = propose(&service)?;
/// let Reason::Little(terms) = &proposal.partitions[0].reserved else { panic!() };
/// assert_eq!(terms[0].to_string(), "200/s x 0.04 s x 2");
/// # Ok::<(), partitioned_pool::plan::planner::InvalidService>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Term {
    /// Its calls.
    pub load: Load,
    /// Replicas that share the calls of a fleet.
    pub replicas: u32,
    /// Its mean hold.
    pub hold: Duration,
    /// How many percent of it.
    pub percent: u32,
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.load {
            Load::PerReplica(rate) => write!(f, "{rate}")?,
            Load::OfFleet(rate) => write!(f, "({rate} / {} replicas)", self.replicas)?,
        }
        write!(f, " x {} s", self.hold.as_secs_f64())?;
        if self.percent != 100 {
            write!(f, " x {}", f64::from(self.percent) / 100.0)?;
        }
        Ok(())
    }
}

/// The formula behind a figure. Printed, it goes behind the figure and a `=`.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::planner::Reason;
///
/// let patience = Reason::Patience { deadline: Duration::from_secs(1), hold: Duration::from_millis(40) };
/// println!("960ms = {patience}");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// Little's law: the slots that are held on average, with what the flows say of their peak.
    Little(Vec<Term>),
    /// What carries the bursts about the mean.
    Bursts {
        /// The calls in flight on average.
        erlangs: f64,
        /// Callers that may wait.
        queue: u32,
        /// The share of calls that may be refused.
        loss: f64,
    },
    /// More than the formulas give, because a simulated day lost too much with that.
    Simulated {
        /// What the formulas give.
        formula: u32,
    },
    /// More than the formulas give, because the partition lost too much in the incident of another with that.
    Incident {
        /// What the formulas give.
        formula: u32,
    },
    /// No flow calls the partition, but every pool has it.
    NoFlow,
    /// All that is reserved, and the most that one partition may hold: a budget cannot be smaller.
    LeastBudget {
        /// What the same partitions would need apart.
        apart: u32,
    },
    /// The smallest budget with which the simulated peak of all flows at once loses no more than allowed.
    Pooled {
        /// What the same partitions would need apart.
        apart: u32,
    },
    /// As much as the partitions may hold; and even so the simulated peak of all loses more than allowed.
    TooLittle,
    /// Callers that are still done in time.
    UsefulQueue {
        /// Slots.
        slots: u32,
        /// How long callers have.
        deadline: Duration,
        /// How long a hold lasts.
        hold: Duration,
    },
    /// Two turns of callers, the pool's default: they absorb a burst, and more would only hide overload.
    TwoTurns {
        /// Slots.
        slots: u32,
        /// Callers that would still be done in time, if it is known how long they have.
        useful: Option<u32>,
    },
    /// Reports do not queue: who cannot start is told at once.
    NoQueue,
    /// What the deadline leaves for waiting.
    Patience {
        /// How long callers have.
        deadline: Duration,
        /// How long a hold lasts.
        hold: Duration,
    },
    /// When it comes, nobody waits for the answer any more.
    Deadline,
    /// The pool's default for the kind.
    Default(Kind),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Little(terms) => {
                let terms: Vec<_> = terms.iter().map(Term::to_string).collect();
                write!(f, "ceil({})", terms.join(" + "))
            }
            Self::Bursts {
                erlangs,
                queue,
                loss,
            } => write!(
                f,
                "the fewest that refuse at most {} % of {erlangs:.1} erlangs, {queue} waiting (M/M/c/K)",
                percent(*loss)
            ),
            Self::Simulated { formula } => {
                write!(
                    f,
                    "grown from the {formula} of the formulas, with which a simulated day lost more than allowed"
                )
            }
            Self::Incident { formula } => {
                write!(
                    f,
                    "grown from the {formula} of the formulas, with which the incident of another did harm"
                )
            }
            Self::NoFlow => f.write_str("the least: no flow calls it, but every pool has it"),
            Self::LeastBudget { apart } => write!(
                f,
                "the least: all that is reserved, and the most that one may hold; apart they need {apart}"
            ),
            Self::Pooled { apart } => write!(
                f,
                "the fewest with which the simulated peak of all loses no more than allowed; apart they need {apart}"
            ),
            Self::TooLittle => f.write_str(
                "all that the partitions may hold; even so the simulated peak of all loses more than allowed",
            ),
            Self::UsefulQueue {
                slots,
                deadline,
                hold,
            } => write!(
                f,
                "{slots} x floor(({0} s - {1} s) / {1} s): those behind would be late",
                deadline.as_secs_f64(),
                hold.as_secs_f64()
            ),
            Self::TwoTurns { slots, useful } => {
                write!(f, "2 x {slots}, two turns")?;
                match useful {
                    Some(useful) => write!(f, " (of {useful} that would be in time)"),
                    None => Ok(()),
                }
            }
            Self::NoQueue => f.write_str("reports do not queue: who cannot start is told at once"),
            Self::Patience { deadline, hold } => write!(
                f,
                "{} s - {} s: what the deadline leaves for waiting",
                deadline.as_secs_f64(),
                hold.as_secs_f64()
            ),
            Self::Deadline => f.write_str("the deadline: then nobody waits for the answer"),
            Self::Default(kind) => write!(f, "the default of {} partitions", kind.as_str()),
        }
    }
}

/// A share in percent, as short as it can be written.
pub(super) fn percent(share: f64) -> f64 {
    (share * 1e6).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::formulas::Rate;

    #[test]
    fn reasons_are_formulas() {
        let hold = Duration::from_millis(40);
        let term = |load, percent| Term {
            load,
            replicas: 20,
            hold,
            percent,
        };
        let one = term(Load::PerReplica(Rate::of(200)), 150);
        let two = term(Load::OfFleet(Rate::of(4000)), 100);
        let print = |reason: Reason| reason.to_string();
        assert_eq!(
            print(Reason::Little(vec![one])),
            "ceil(200/s x 0.04 s x 1.5)"
        );
        assert_eq!(
            print(Reason::Little(vec![one, two])),
            "ceil(200/s x 0.04 s x 1.5 + (4000/s / 20 replicas) x 0.04 s)"
        );
        let deadline = Duration::from_secs(1);
        assert_eq!(
            print(Reason::UsefulQueue {
                slots: 20,
                deadline,
                hold
            }),
            "20 x floor((1 s - 0.04 s) / 0.04 s): those behind would be late"
        );
        let bursts = Reason::Bursts {
            erlangs: 8.0,
            queue: 24,
            loss: 0.001,
        };
        assert_eq!(
            print(bursts),
            "the fewest that refuse at most 0.1 % of 8.0 erlangs, 24 waiting (M/M/c/K)"
        );
    }
}
