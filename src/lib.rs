//! Postgres connections in partitions (bulkheads), so that slow reports can never take checkout down.

pub mod admission;
mod boot;
pub mod bulkhead;
pub mod config;
pub mod driver;
#[cfg(feature = "tokio-postgres")]
#[path = "driver/tokio_postgres/mod.rs"]
pub mod driver_tokio_postgres;
pub mod error;
pub mod fleet;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod observe;
mod pool;
mod session;
mod status;
#[cfg(not(partitioned_pool_model))]
mod sync;
#[cfg(partitioned_pool_model)]
#[path = "sync_model.rs"]
mod sync;

pub use boot::{BootError, Builder, NotInForce};
pub use driver::Driver;
#[cfg(feature = "tokio-postgres")]
pub use driver_tokio_postgres::TokioPostgres;
pub use pool::{CloseReport, Connection, Deadline, Partition, PartitionedPool, StillHeld};
pub use status::{PartitionStatus, PoolStatus};
