//! The integration tests: one binary, a module a subject.

#[path = "../support/postgres/mod.rs"]
mod postgres;

mod bulkhead;
mod house;
mod ledger;
mod postgres_source;
