//! Does the fleet fit? All replicas together, against what Postgres really grants.
//!
//! A pool that is right for one replica is wrong for twenty: its connections are multiplied by the
//! replicas, by the surge of a rolling deploy, and met by whatever else is connected. [`assess`]
//! does that sum for every real server, and the [`FleetReport`] shows it.
//!
//! This is arithmetic only. It asks no server, reads no clock and cannot fail: whoever calls it
//! brings the figures, read from a server or stated by hand.

mod capacity;
pub(crate) mod check;
pub(crate) mod lease;
mod report;
pub(crate) mod seats;
mod shrink;
mod text;

#[cfg(test)]
mod tests;

pub use capacity::{
    Database, Demand, DemandKind, ExternalDemand, Fleet, Limits, OpenSessions, Role, Server,
    ServerLimits, Share, SharedBudget, assess,
};
pub use report::{
    BudgetPart, Constraint, FleetReport, Part, PartitionShare, PartitionSize, RoleGrant, Scope,
    ServerReport, ServerState, Term, Verdict, Warning,
};
pub use seats::{SEATS_TABLE, SeatHolder};
