//! Settings of the models that cannot be run.

use crate::plan::simulator::InvalidScenario;

use super::two_flows::Layout;

/// The longest name, in characters.
const LONGEST_NAME: usize = 64;

/// Settings of [`TenWorkers`](super::TenWorkers) or [`TwoFlows`](super::TwoFlows) that cannot be run.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::reference::{InvalidModel, TwoFlows};
///
/// let mut model = TwoFlows::default();
/// model.slots = 0;
/// assert_eq!(model.check(), Err(InvalidModel::NoSlots));
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidModel {
    /// The scenario that follows from them cannot be run.
    #[error(transparent)]
    Scenario(#[from] InvalidScenario),
    /// A class or a flow without a name that can be shown.
    #[error(
        "name: {name:?} is no name; one has 1 to {LONGEST_NAME} characters, and no control characters"
    )]
    Name {
        /// Which, in their order.
        position: usize,
        /// What it says.
        name: String,
    },
    /// A class or a flow with the name of one before it.
    #[error("name: {name:?} is there twice; names are unique")]
    NameTwice {
        /// Which, in their order.
        position: usize,
        /// The name of both.
        name: String,
    },
    /// There is no class, or no flow.
    #[error("there is none; state one at least")]
    Nothing,
    /// There is no worker.
    #[error("workers must be 1 or more")]
    NoWorkers,
    /// There is no slot.
    #[error("slots must be 1 or more")]
    NoSlots,
    /// The incident is empty, or not within the run.
    #[error(
        "an incident is [from, until], within the {seconds} seconds of the run, not {incident:?}"
    )]
    Incident {
        /// From, until.
        incident: [u32; 2],
        /// How long the run is.
        seconds: u32,
    },
    /// The limits of a class cannot be.
    #[error("class {name}: {problem}")]
    Class {
        /// Which, in their order.
        position: usize,
        /// Its name.
        name: String,
        /// Why.
        problem: &'static str,
    },
    /// What is reserved is more than there is.
    #[error("the classes reserve {reserved} workers, and there are {workers}")]
    Reserved {
        /// All together.
        reserved: u64,
        /// What there is.
        workers: u32,
    },
    /// A split has not one pool for each flow.
    #[error("split {split}: it needs a pool for each flow, and there are {flows}")]
    Pools {
        /// The split.
        split: Layout,
        /// How many flows there are.
        flows: usize,
    },
    /// A split divides other slots than there are.
    #[error("split {split}: these are {sum} slots, and slots is {slots}")]
    Sum {
        /// The split.
        split: Layout,
        /// Its slots, all together.
        sum: u64,
        /// Those of the single pool.
        slots: u32,
    },
    /// The seed gives nothing but zeros.
    #[error("a seed of {0} gives nothing but zeros")]
    Seed(u32),
    /// A rate is no rate, or makes more than 700 calls a round.
    #[error("flow {0}: its rate must be from 0 to 700 calls a round")]
    Rate(String),
    /// The slowdown begins after the run has ended.
    #[error("the slowdown begins after the run has ended")]
    Slowdown,
    /// There is no such flow.
    #[error("there is no such flow")]
    Flow,
}

/// Each is a name, and no other's.
pub(super) fn check_names(names: &[&str]) -> Result<(), InvalidModel> {
    if names.is_empty() {
        return Err(InvalidModel::Nothing);
    }
    for (position, name) in names.iter().enumerate() {
        let fine = (1..=LONGEST_NAME).contains(&name.chars().count());
        let (twice, name) = (names[..position].contains(name), (*name).to_owned());
        if !fine || name.trim().is_empty() || name.contains(char::is_control) {
            return Err(InvalidModel::Name { position, name });
        }
        if twice {
            return Err(InvalidModel::NameTwice { position, name });
        }
    }
    Ok(())
}
