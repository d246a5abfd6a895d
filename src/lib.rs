//! Postgres connections in partitions (bulkheads), so that slow reports can never take checkout down.

pub mod admission;
pub mod bulkhead;
#[cfg(not(partitioned_pool_model))]
mod sync;
#[cfg(partitioned_pool_model)]
#[path = "sync_model.rs"]
mod sync;
