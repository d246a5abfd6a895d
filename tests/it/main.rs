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
mod capacity;
#[cfg(feature = "cli")]
mod cli;
mod closing;
mod detaching;
mod diagnosing;
#[cfg(feature = "tls")]
mod encrypting;
mod faults;
#[cfg(feature = "cli")]
mod fleet_command;
mod healing;
mod holding;
mod house;
mod leaving;
mod ledger;
mod listening;
#[cfg(feature = "metrics")]
mod metrics;
mod nesting;
mod observe;
#[cfg(feature = "sqlx")]
mod only_sqlx;
mod only_tokio_postgres;
mod ordinary_path;
mod passwords;
mod plan_agreement;
mod plan_reference;
mod pooled;
mod postgres_source;
#[cfg(feature = "tls")]
mod quickstart;
mod readiness;
mod resetting;
mod seats;
mod seats_processes;
mod secrets;
mod sessions;
mod sharing;
mod soak;
mod sockets;
mod support;
mod two_dependencies;
mod unencrypted;
