//! The integration tests: one binary, a module a subject.

#[path = "../support/postgres/mod.rs"]
mod postgres;

mod house;
mod postgres_source;
mod scenario;
