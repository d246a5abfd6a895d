//! The integration tests, in one binary.

#[path = "../support/postgres/mod.rs"]
mod postgres;

mod postgres_source;
