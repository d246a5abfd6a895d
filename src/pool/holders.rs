//! Who holds, and what their backends run: asked of the server over a connection that nobody needs.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use crate::driver::{Driver, Rows};
use crate::error::{AcquireError, Failure};
use crate::session::literal;
use crate::status::{CallSite, Held, Seconds, Statement};

use super::connection::Connection;
use super::core::Core;
use super::deadline::Deadline;

/// Who holds a slot of a partition, with the statements of their backends if the server could be asked.
///
/// # Examples
/// ```
/// use partitioned_pool::Holders;
///
/// /// The statement that has run longest.
/// fn slowest(holders: &Holders) -> Option<&str> {
///     let statements = holders.held.iter().filter_map(|held| held.statement.as_ref());
///     statements.max_by_key(|statement| statement.lasts).map(|statement| statement.query.as_str())
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Holders {
    /// The partition.
    pub partition: String,
    /// Oldest first.
    pub held: Vec<Held>,
    /// Why the server was not asked, if it was not: then no statement is known.
    pub not_asked: Option<NotAsked>,
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} in use", self.partition, self.held.len())?;
        if let Some(reason) = &self.not_asked {
            write!(f, "; {reason}")?;
        }
        self.held
            .iter()
            .try_for_each(|held| write!(f, "\n  {held}"))
    }
}

/// Why a server was not asked for the statements of a partition's backends.
///
/// # Examples
/// ```
/// use partitioned_pool::{Holders, NotAsked};
///
/// /// Whether every partition that could have asked for it was full.
/// fn nothing_to_spare(holders: &Holders) -> bool {
///     matches!(&holders.not_asked, Some(NotAsked::NoConnection(error)) if error.is_rejection())
/// }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NotAsked {
    /// No partition with the same server, role and database had a connection to spare, or could open one in time.
    #[error("statements unknown, no connection to ask over: {0}")]
    NoConnection(#[source] AcquireError),
    /// The server refused the question, or the way to it broke.
    #[error("statements unknown: {0}")]
    Failed(#[source] Failure),
    /// The server did not answer in time.
    #[error("statements unknown: no answer within {}", Seconds(*limit))]
    Late {
        /// What was left for this partition.
        limit: Duration,
    },
}

/// What the server says of sessions, by the process id of their backends.
type Statements = HashMap<i32, Statement>;

/// Lists who holds a slot of each of `cores`, and asks what their backends run.
pub(super) async fn holders_with_statements<D: Driver>(
    cores: &[&Arc<Core<D>>],
    by: CallSite,
    deadline: Deadline,
) -> Vec<Holders> {
    let mut all = Vec::with_capacity(cores.len());
    for core in cores {
        let before = core.holders();
        let asked = Instant::now();
        let answer = match before.is_empty() {
            true => Ok(Statements::new()),
            // Nested in the futures of callers, what it awaits is too deep a type for the compiler.
            false => Box::pin(ask(cores, core, &before, by, deadline)).await,
        };
        let mut held = core.holders();
        let not_asked = match answer {
            Ok(mut statements) => {
                statements
                    .retain(|pid, _| before.iter().any(|held| held.backend_pid == Some(*pid)));
                assign(&mut held, statements, asked.elapsed());
                None
            }
            Err(reason) => Some(reason),
        };
        all.push(Holders {
            partition: core.settings.name.clone(),
            held,
            not_asked,
        });
    }
    all
}

/// A statement belongs to a hold that has had its connection since before the question.
fn assign(held: &mut [Held], mut statements: Statements, since: Duration) {
    for held in held.iter_mut().filter(|held| held.holder.age >= since) {
        held.statement = held.backend_pid.and_then(|pid| statements.remove(&pid));
    }
}

async fn ask<D: Driver>(
    cores: &[&Arc<Core<D>>],
    of: &Core<D>,
    held: &[Held],
    by: CallSite,
    deadline: Deadline,
) -> Result<Statements, NotAsked> {
    let limit = deadline.left();
    // The acquire has the deadline for a limit of its own: what it could not get in time is told with its phase.
    let mut connection = Box::pin(spare(cores, of, by, deadline)).await?;
    let (driver, session) = connection.driver_parts();
    let question = question(of, held);
    match timeout_at(deadline.instant(), driver.query(session, &question)).await {
        Ok(rows) => rows.map(|rows| read(&rows)).map_err(NotAsked::Failed),
        Err(_) => Err(NotAsked::Late { limit }),
    }
}

/// A connection to the same server as the same role, of whichever partition has one to spare: rather an open
/// one than one to be opened, never one for which somebody waits, and none for which another would be closed.
async fn spare<D: Driver>(
    cores: &[&Arc<Core<D>>],
    of: &Core<D>,
    by: CallSite,
    deadline: Deadline,
) -> Result<Connection<D>, NotAsked> {
    let endpoint = of.driver.endpoint();
    let mut cores: Vec<_> = cores
        .iter()
        .filter(|core| core.driver.endpoint() == endpoint)
        .collect();
    cores.sort_by_cached_key(|core| Reverse(core.status().idle));
    if let Some(connection) = cores.iter().find_map(|core| core.try_idle(by)) {
        return Ok(connection);
    }
    let mut refused = None;
    for core in cores {
        match core.try_acquire_unobserved(by, deadline.left()).await {
            Ok(connection) => return Ok(connection),
            // That one could not connect tells more than that another has no slot.
            Err(error) if refused.is_none() || !error.is_rejection() => refused = Some(error),
            Err(_) => {}
        }
    }
    Err(NotAsked::NoConnection(
        refused.expect("bug: a partition has its own endpoint"),
    ))
}

/// Sessions of another name are not ours: a pid may be that of a stranger on another server of a host list,
/// or behind a pooler.
fn question<D: Driver>(of: &Core<D>, held: &[Held]) -> String {
    let pids: Vec<_> = held.iter().filter_map(|held| held.backend_pid).collect();
    let pids: Vec<_> = pids.iter().map(ToString::to_string).collect();
    let name = literal(&of.settings.application_name);
    format!(
        "SELECT pid, state, \
         (extract(epoch FROM clock_timestamp() - state_change) * 1000000)::bigint, \
         wait_event_type || ': ' || wait_event, query \
         FROM pg_stat_activity WHERE pid = ANY ('{{{}}}'::int[]) \
         AND usename = current_user AND application_name = {name}",
        pids.join(",")
    )
}

fn read(rows: &Rows) -> Statements {
    rows.iter().filter_map(|row| statement(row)).collect()
}

fn statement(row: &[Option<String>]) -> Option<(i32, Statement)> {
    let [Some(pid), Some(state), Some(micros), waits_for, Some(query)] = row else {
        return None;
    };
    // The clock of the server may be set back.
    let lasts = Duration::from_micros(micros.parse().unwrap_or(0));
    let statement = Statement {
        query: query.clone(),
        state: state.clone(),
        lasts,
        waits_for: waits_for.clone(),
    };
    Some((pid.parse().ok()?, statement))
}
