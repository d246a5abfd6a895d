//! `partitioned-pool fleet`: does the fleet fit, and the limits that hold it in the database.

mod check;
mod input;
mod secret;
mod sql;

use clap::Subcommand;
use partitioned_pool::BootError;
use partitioned_pool::config::ConfigError;

use crate::output::{Answer, Stop};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Holds all replicas together against what Postgres grants.
    /// Exit code: 0 they fit, 1 they do not, 2 it could not be checked.
    Check(check::Options),
    /// Prints the limits of the checked plan as SQL: roles, connection limits, timeouts; no passwords.
    /// Exit code as of `check`; what does not fit is not written.
    Sql(sql::Options),
}

/// Does what was asked.
pub(crate) fn run(command: Command) -> Result<Answer, Stop> {
    match command {
        Command::Check(options) => check::run(&options),
        Command::Sql(options) => sql::run(&options),
    }
}

/// Every problem of a configuration, in one line.
fn invalid(error: &ConfigError) -> Stop {
    let problems: Vec<_> = error.problems().iter().map(ToString::to_string).collect();
    Stop(problems.join("; "))
}

/// Why there is no report, in one line.
fn unchecked(error: &BootError) -> Stop {
    match error {
        BootError::Config(error) => invalid(error),
        error => Stop(one_line(&error.to_string())),
    }
}

/// The lines of a block as one: what follows a colon belongs to it.
fn one_line(block: &str) -> String {
    let mut line = String::new();
    for part in block.lines().map(str::trim).filter(|part| !part.is_empty()) {
        if !line.is_empty() {
            line.push_str(if line.ends_with(':') { " " } else { "; " });
        }
        line.push_str(part);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_becomes_one_line() {
        let block = "partition a: no connection:\n  refused\n  to do: wait\n";
        assert_eq!(
            one_line(block),
            "partition a: no connection: refused; to do: wait"
        );
    }
}
