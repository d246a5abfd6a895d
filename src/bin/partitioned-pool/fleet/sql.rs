//! `partitioned-pool fleet sql`.

use clap::Args;
use partitioned_pool::config::Settings;
use partitioned_pool::fleet::{
    Constraint, FleetReport, Login, Scope, ServerReport, ServerState, Wall, WallRole,
};

use super::check::text;
use super::input::{Found, Input};
use crate::output::{Answer, Stop};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    input: Input,
    /// A role for each partition, named ROLE_PARTITION after the one that it has. Otherwise the roles are those of the
    /// urls.
    #[arg(long)]
    role_per_partition: bool,
}

pub(super) fn run(options: &Options) -> Result<Answer, Stop> {
    options.limits_are_known()?;
    let mut found = options.input.check()?;
    if options.role_per_partition {
        part(&mut found.logins, &found.settings);
    }
    let wall = Wall::of(&found.settings, &found.logins).map_err(Stop::new)?;
    let fits = fits(&found.report, wall.roles());
    let report = comment(&text(&found.report, options.input.is_offline()));
    Ok(match fits {
        true => Answer::of(format!("{report}\n{}{wall}", options.users(&found)), true),
        false => Answer::of(format!("{report}\n{NOTHING}"), false),
    })
}

const NOTHING: &str = "-- Nothing is written: the fleet does not fit.\n";

impl Options {
    /// Flags say neither which role there is nor what a partition of another name is for.
    fn limits_are_known(&self) -> Result<(), Stop> {
        if !self.input.names_roles() {
            return Err(Stop::new(
                "state the role and the database by --url or DATABASE_URL",
            ));
        }
        match self.input.kindless() {
            Some(name) => Err(Stop(format!(
                "the timeouts of partition {name} are not known from flags; state it in a file, and give that by --config"
            ))),
            None => Ok(()),
        }
    }

    /// What has to change in the urls.
    fn users(&self, found: &Found) -> String {
        if !self.role_per_partition {
            return String::new();
        }
        let pairs = found.settings.partitions.iter().zip(&found.logins);
        let lines = pairs.map(|(partition, login)| {
            let user = login.role.escape_debug();
            format!(
                "-- In its url, partition {} has the user {user}.\n",
                partition.name
            )
        });
        lines.collect::<String>() + "\n"
    }
}

/// Gives each partition a role of its own.
fn part(logins: &mut [Login], settings: &Settings) {
    for (login, partition) in logins.iter_mut().zip(&settings.partitions) {
        login.role = format!("{}_{}", login.role, partition.name);
    }
}

/// Whether the plan fits, but for limits that the wall replaces: else a fleet that has a wall could never grow.
fn fits(report: &FleetReport, roles: &[WallRole]) -> bool {
    let replaced = |constraint: &Constraint| match &constraint.scope {
        Scope::Role { name } => roles.iter().any(|role| role.name == *name),
        _ => false,
    };
    let is_full = |server: &ServerReport| matches!(server.state, ServerState::Full { .. });
    let servers = report.servers();
    let mut constraints = servers.iter().flat_map(|server| &server.constraints);
    !servers.iter().any(is_full) && constraints.all(|c| c.fits() || replaced(c))
}

/// As a comment, whatever is in it.
fn comment(text: &str) -> String {
    let line = |line: &str| match line {
        "" => "--\n".to_owned(),
        line => format!("-- {line}\n"),
    };
    text.trim_end().lines().map(line).collect()
}
