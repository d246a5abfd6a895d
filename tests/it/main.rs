//! The integration tests: one binary, a module a subject.

#[path = "../support/postgres/mod.rs"]
mod postgres;

mod acquiring;
mod booting;
mod bulkhead;
mod closing;
mod healing;
mod house;
mod leaving;
mod ledger;
mod ordinary_path;
mod postgres_source;
mod soak;
mod support;
