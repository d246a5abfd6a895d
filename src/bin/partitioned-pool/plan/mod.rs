//! `partitioned-pool plan`.

mod compare;
mod describe;
mod file;
mod flow;
mod models;
mod partitions;
mod picture;
mod reference;
mod show;
mod simulate;
mod size;
mod source;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::output::{self, Answer, Stop};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Proposes sizes, each with its reason; or says what is wrong with the sizes that the file states.
    /// Exit code 1 if they do not fit, or break a promise.
    Size(size::Options),
    /// Simulates a day through the pool's own admission rule, and tells what becomes of every call.
    Simulate(Input),
    /// Runs the same calls in several layouts: fixed, shared, borrowing, and those of the file.
    Compare(Input),
    /// Replays the published runs, and prints theirs beside ours. Exit code 1 if a figure differs.
    Reference(reference::Options),
}

/// Does what was asked.
pub(crate) fn run(command: Command) -> Result<Answer, Stop> {
    match command {
        Command::Size(options) => size::run(&options),
        Command::Compare(input) => compare::run(&input),
        Command::Simulate(input) => simulate::run(&input),
        Command::Reference(options) => reference::run(&options),
    }
}

/// What is read, and how the outcome is shown.
#[derive(Args)]
pub(crate) struct Input {
    /// The description, in TOML; `-` is standard input. Examples are in examples/plan.
    file: PathBuf,
    /// Prints one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Draws the curves.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// An outcome in each form.
struct Shown {
    text: String,
    json: Value,
    svg: String,
}

impl Input {
    /// In the forms that were asked for.
    fn answer(&self, shown: Shown, good: bool) -> Result<Answer, Stop> {
        if let Some(file) = &self.svg {
            output::write(file, &shown.svg)?;
        }
        Ok(match self.json {
            true => Answer::of(shown.json, good),
            false => Answer::of(shown.text, good),
        })
    }
}
