//! Postgres connections in partitions (bulkheads), so that slow reports can never take checkout down.
//!
//! A [`PartitionedPool`] divides the Postgres connections of a service into partitions, each with its
//! own size, queue bound, timeouts and session limits. A workload can exhaust only its own.
//!
//! ```no_run
//! use std::time::Duration;
//! use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
//! # #[cfg(feature = "tokio-postgres")]
//! use partitioned_pool::{PartitionedPool, TokioPostgres};
//!
//! # #[cfg(feature = "tokio-postgres")]
//! # async fn start(url: String) -> Result<(), Box<dyn std::error::Error>> {
//! // At most 2 replicas, 1 more in a rolling deploy, 5 for others: (2 + 1) x (20 + 10) + 5 connections must fit.
//! let config = PoolConfig::new("shop", url, FleetConfig::new(2, 1).reserve(5))
//!     .transactional(PartitionConfig::transactional(20))
//!     .analytical(PartitionConfig::analytical(10));
//! let pool = PartitionedPool::<TokioPostgres>::connect(config).await?;
//!
//! let paid = pool.transactional().run(Duration::from_secs(1), async |conn| {
//!     conn.execute("UPDATE orders SET paid = true WHERE id = $1", &[&42]).await
//! }).await?;
//! let report = pool.analytical().acquire().await?; // refused at once when 10 reports run
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - Connections never exceed the stated sizes: they count from before they are opened until their
//!   backend is known gone.
//! - A slot is free only when its backend is quiet. Whoever leaves in the middle of a query or a
//!   transaction has it cancelled on the server and rolled back, before anybody else gets the
//!   connection.
//! - Every wait is bounded, and every refusal is typed: see [`error`].
//! - The fleet fits, or the service does not start: see [`fleet`].
//!
//! # What it does not do
//!
//! It isolates connections, not the CPU, I/O or locks of a server that partitions share. It never
//! retries work.
//!
//! # Where to look
//!
//! [`config`] has every setting and every default with its reason; [`PartitionedPool`],
//! [`Partition`] and [`Connection`] are what a service uses; [`observe`] is for those who watch it, and
//! metrics (feature `metrics`) are one way to do so; [`PartitionedPool::ready`] is for probes; [`driver`] and
//! [`session`] are for who writes another driver. [`PasswordProvider`](driver::PasswordProvider) is for passwords that
//! change. What a `url` may say, TLS included, is in `docs/connection-parameters.md`; TLS is the feature `tls`, on by
//! default. There are two drivers: tokio-postgres (the default), and sqlx (feature `sqlx`); their modules say what each costs, and
//! cannot do.
//! [`plan`] has formulas for sizes, a simulator of the same rule, a planner that uses both, and a diagnosis from
//! figures; the command `partitioned-pool plan` (feature `cli`) runs them over a file.
//! [`admission`] and [`bulkhead`] are the rule and the waiting behind it, usable without a database.

// docs.rs says beside each item which feature it needs; only a nightly rustdoc can.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod admission;
mod boot;
pub mod bulkhead;
pub mod config;
pub mod driver;
#[cfg(feature = "sqlx")]
#[path = "driver/sqlx/mod.rs"]
pub mod driver_sqlx;
#[cfg(feature = "tokio-postgres")]
#[path = "driver/tokio_postgres/mod.rs"]
pub mod driver_tokio_postgres;
pub mod error;
pub mod fleet;
mod join;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod observe;
#[cfg(all(test, any(feature = "sqlx", feature = "tokio-postgres")))]
#[path = "driver/parameters_page.rs"]
mod parameters_page;
pub mod plan;
mod pool;
pub mod session;
mod status;
#[cfg(not(partitioned_pool_model))]
mod sync;
#[cfg(partitioned_pool_model)]
#[path = "sync_model.rs"]
mod sync;
#[cfg(all(feature = "tls", feature = "tokio-postgres"))]
#[path = "driver/tokio_postgres/tls.rs"]
mod tls;
#[cfg(all(not(feature = "tls"), feature = "tokio-postgres"))]
#[path = "driver/tokio_postgres/tls_absent.rs"]
mod tls;
mod warning;

pub use boot::{BootError, Builder, NotInForce};
pub use driver::Driver;
#[cfg(feature = "sqlx")]
pub use driver_sqlx::Sqlx;
#[cfg(feature = "tokio-postgres")]
pub use driver_tokio_postgres::TokioPostgres;
pub use error::{AcquireError, Rejection, RunError};
pub use pool::{
    CloseReport, Connection, Deadline, Detached, Health, Holders, NotAsked, NotReady, Partition,
    PartitionDiagnosis, PartitionHealth, PartitionedPool, PoolDiagnosis, StillHeld, TakenAway,
};
pub use status::{
    BudgetStatus, CallSite, Held, Holder, OldestHolds, PartitionStatus, PoolStatus, SeatStatus,
    Statement,
};
pub use warning::BootWarning;

/// The README's code is compiled.
#[cfg(all(doctest, feature = "sqlx", feature = "tokio-postgres"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// The guide's code is compiled, and run where it needs no server.
#[cfg(all(doctest, feature = "sqlx", feature = "tokio-postgres"))]
#[doc = include_str!("../docs/guide.md")]
struct Guide;
