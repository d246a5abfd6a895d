//! The integration tests, in one binary.

#[path = "../support/memory/mod.rs"]
mod memory;
#[path = "../support/postgres/mod.rs"]
mod postgres;

mod observe;
mod postgres_source;
