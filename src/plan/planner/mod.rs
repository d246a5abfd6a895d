//! Sizes for a service, each with its reason, checked by simulation and by the fleet check.

mod need;
mod sizes;

pub use need::{FlowNeed, HEADROOM_PERCENT, Load, Pace, PartitionNeed, Service, allowed_loss};
pub use sizes::{PartitionSizes, Sizes};
