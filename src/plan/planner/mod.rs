//! Sizes for a service, each with its reason, checked by simulation and by the fleet check.
//!
//! In goes a [`Service`]: its flows with their rates, holds, deadlines and peaks; replicas and surge; what the server
//! grants. [`propose`] gives sizes for it, [`review`] looks at sizes that are given.
//!
//! # What a proposal promises
//!
//! Simulated, through the pool's own admission rule, with Poisson arrivals:
//!
//! - On an ordinary day, and when all flows are at their peaks at once, no flow loses more calls than it may.
//! - When the holds of a flow last [`INCIDENT`] times as long, the transactional partitions of others lose no more
//!   than they may.
//!
//! A promise is shown by a day in which so many calls of the flow come that one of them may be lost. Where a flow calls
//! too rarely for that, it stays open: see [`Loss::is_open`].
//!
//! A call is lost if it is refused, or late because it had to wait. One whose own work takes longer than its deadline
//! is late with any number of slots, and is not counted.
//!
//! # More partitions than are useful
//!
//! A wall costs slots: each side needs its own for its bursts. It is worth them between what is transactional and what
//! is analytical, since that is where one side can hurt the other most, and around a load that is large. [`review`]
//! says that there are too many if several partitions of one kind have less than [`FEW_ERLANGS`] calls in flight each,
//! and as one would need at most [`WORTH_POOLING_PERCENT`] percent of their slots for the same loss (Erlang B).

mod day;
mod need;
mod propose;
mod reason;
mod review;
mod sizes;

#[cfg(test)]
mod tests;

pub use day::{Day, INCIDENT, Loss, What};
pub use need::{FlowNeed, HEADROOM_PERCENT, Load, Pace, PartitionNeed, Service, allowed_loss};
pub use propose::{InvalidService, Largest, PartitionReasons, Proposal, propose};
pub use reason::{Reason, Term};
pub use review::{Carried, FEW_ERLANGS, Finding, Review, WORTH_POOLING_PERCENT, review};
pub use sizes::{PartitionSizes, Sizes};
