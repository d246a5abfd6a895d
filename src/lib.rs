//! Postgres connections in partitions (bulkheads), so that slow reports can never take checkout down.

pub mod config;
