//! The integration tests, in one binary.

#[path = "../support/memory/mod.rs"]
mod memory;
#[path = "../support/postgres/mod.rs"]
mod postgres;

#[cfg(feature = "metrics")]
mod metrics;
mod observe;
mod postgres_source;
