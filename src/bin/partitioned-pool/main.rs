//! `partitioned-pool`: what can be known of a service's connections before it is deployed.
//!
//! Exit code: 0 done, 1 it does not fit or a promise fails, 2 the input is wrong or nobody could be asked.

mod fleet;
mod output;
mod plan;
mod svg;
mod table;
mod usage;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Postgres connections in partitions: what can be known before a deploy.
///
/// Exit code: 0 done, 1 it does not fit or a promise fails, 2 the input is wrong or nobody could be asked.
#[derive(Parser)]
#[command(name = "partitioned-pool", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sizes, simulations and comparisons, from a description in TOML.
    #[command(subcommand)]
    Plan(plan::Command),
    /// Whether all replicas together fit the database, and the limits that hold them there.
    #[command(subcommand)]
    Fleet(fleet::Command),
}

fn main() -> ExitCode {
    let done = match Cli::try_parse().map(|cli| cli.command) {
        Ok(Command::Plan(command)) => plan::run(command),
        Ok(Command::Fleet(command)) => fleet::run(command),
        Err(error) => usage::told(&error),
    };
    output::exit(done)
}
