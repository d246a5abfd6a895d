//! Does the fleet fit? All replicas together, against what Postgres really grants.
//!
//! A pool that is right for one replica is wrong for twenty: its connections are multiplied by the
//! replicas, by the surge of a rolling deploy, and met by whatever else is connected. [`assess`]
//! does that sum for every real server, and the [`FleetReport`] shows it.
//!
//! This is arithmetic only. It asks no server, reads no clock and cannot fail: whoever calls it
//! brings the figures, read from a server or stated by hand ([`assess_stated`]).
//!
//! A [`Wall`] is the same plan as limits of the roles in the database, which holds when an application does not.
//! The command `partitioned-pool fleet` (feature `cli`) prints both, for a pipeline.

mod capacity;
pub(crate) mod check;
mod constraint;
pub(crate) mod lease;
mod pooler;
mod report;
pub(crate) mod seats;
mod shrink;
mod stated;
mod sum;
mod text;
mod wall;
mod warning;

#[cfg(test)]
mod tests;

pub use capacity::{
    Criticality, Database, Demand, DemandKind, ExternalDemand, Fleet, FullRole, Limits,
    OpenSessions, Role, Server, ServerLimits, Share, SharedBudget,
};
pub use constraint::{
    BudgetPart, Constraint, Part, PartitionShare, Scope, SmallestLimit, Term, Verdict,
};
pub use pooler::{PoolSize, PoolerLimits};
pub use report::{FleetReport, PartitionSize, RoleGrant, ServerReport, ServerState};
pub use seats::{SEATS_TABLE, SeatHolder};
pub use stated::{Login, StatedLimits, assess_stated};
pub use sum::assess;
pub use wall::{NoWall, Wall, WallRole};
pub use warning::Warning;
