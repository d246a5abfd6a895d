//! The integration tests: one binary, a module a subject.

mod bulkhead;
mod ledger;
