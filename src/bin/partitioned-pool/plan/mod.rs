//! `partitioned-pool plan`.

mod reference;

use clap::Subcommand;

use crate::output::{Answer, Stop};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Replays the published runs, and prints theirs beside ours. Exit code 1 if a figure differs.
    Reference(reference::Options),
}

/// Does what was asked.
pub(crate) fn run(command: Command) -> Result<Answer, Stop> {
    match command {
        Command::Reference(options) => reference::run(&options),
    }
}
