//! The integration tests: one binary, a module a subject.

#[path = "../support/leavings/mod.rs"]
mod leavings;
#[path = "../support/memory/mod.rs"]
mod memory;
#[path = "../support/postgres/mod.rs"]
mod postgres;

mod acquiring;
mod booting;
mod borrowing;
mod bulkhead;
#[cfg(feature = "cli")]
mod cli;
mod closing;
mod diagnosing;
mod faults;
mod healing;
mod holding;
mod house;
mod leaving;
mod ledger;
#[cfg(feature = "metrics")]
mod metrics;
mod observe;
#[cfg(feature = "sqlx")]
mod only_sqlx;
mod ordinary_path;
mod plan_agreement;
mod plan_reference;
mod postgres_source;
mod resetting;
mod seats;
mod seats_processes;
mod sharing;
mod soak;
mod support;
mod two_dependencies;
