//! What the owner of a pool should know although nothing is wrong: told once, and silenced by its code.

use std::fmt;
use std::time::Duration;

use crate::config::{Limit, WarningCode};

/// Something about a pool that has started which its owner should know.
///
/// Each is told to the log once, when the pool starts, and kept for
/// [`PartitionedPool::warnings`](crate::PartitionedPool::warnings). Whoever knows, silences it by its code, in
/// [`BootConfig::silence`](crate::config::BootConfig::silence). What the fleet check has to say of its sum is in its
/// [report](crate::fleet::FleetReport::warnings).
///
/// # Examples
/// ```
/// use partitioned_pool::{BootWarning, PartitionedPool, TokioPostgres};
///
/// fn small_partitions(pool: &PartitionedPool<TokioPostgres>) -> bool {
///     pool.warnings().iter().any(|warning| matches!(warning, BootWarning::OverIsolation { .. }))
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BootWarning {
    /// Partitions share a server, whose CPU, I/O and locks they do not divide. Given once, for all servers where it is
    /// so; without a fleet check, servers are told apart by the hosts of their URLs. What to do is in
    /// `docs/isolation.md`.
    SharedServer {
        /// The servers.
        servers: Vec<String>,
    },
    /// At least three partitions of one or two slots, none of which borrows.
    OverIsolation {
        /// The partitions.
        partitions: Vec<String>,
        /// Their slots, together.
        slots: u32,
        /// The share of calls that find no free slot, at half load and without a queue (Erlang B): apart,
        apart: f64,
        /// and with the same slots in one partition.
        together: f64,
    },
    /// A caller may wait for a connection for all the time that callers usually have.
    AcquireTimeout {
        /// The partition.
        partition: String,
        /// Its acquire timeout.
        acquire_timeout: Duration,
        /// What was stated of its callers.
        caller_deadline: Duration,
    },
    /// The server ends idle sessions before we close them: a caller may be given one that has just ended.
    IdleTimeout {
        /// The partition.
        partition: String,
        /// Its idle timeout; `None` if it is off.
        idle_timeout: Option<Duration>,
        /// That of the server (`idle_session_timeout`, 14 or later).
        idle_session_timeout: Duration,
    },
    /// A statement may take longer than a connection lives: it is not cut short, but its connection is replaced after
    /// it, and lives longer than was stated.
    MaxLifetime {
        /// The partition.
        partition: String,
        /// Its lifetime, less the jitter.
        max_lifetime: Duration,
        /// The longest allowed statement; `None` if it is off.
        statement_timeout: Option<Duration>,
    },
}

impl BootWarning {
    /// Its code.
    #[must_use]
    pub const fn code(&self) -> WarningCode {
        match self {
            Self::SharedServer { .. } => WarningCode::SharedServer,
            Self::OverIsolation { .. } => WarningCode::OverIsolation,
            Self::AcquireTimeout { .. } => WarningCode::AcquireTimeout,
            Self::IdleTimeout { .. } => WarningCode::IdleTimeout,
            Self::MaxLifetime { .. } => WarningCode::MaxLifetime,
        }
    }
}

impl fmt::Display for BootWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SharedServer { servers } => write!(
                f,
                "several partitions share {}: they divide its connections, not its CPU, I/O or locks. If reports slow \
                 the server down, give them one of their own (a url, such as that of a standby)",
                servers.join(" and ")
            ),
            Self::OverIsolation {
                partitions,
                slots,
                apart,
                together,
            } => write!(
                f,
                "{} are small: {slots} slots, of which at half load {:.0} of 100 calls find none free, and {:.0} with \
                 all in one partition. Merge them, or let them share a budget",
                partitions.join(", "),
                apart * 100.0,
                together * 100.0
            ),
            Self::AcquireTimeout {
                partition,
                acquire_timeout,
                caller_deadline,
            } => write!(
                f,
                "{partition}: acquire_timeout {} leaves nothing of its callers' {} for the work: lower it",
                Limit::After(*acquire_timeout),
                Limit::After(*caller_deadline)
            ),
            Self::IdleTimeout {
                partition,
                idle_timeout,
                idle_session_timeout,
            } => write!(
                f,
                "{partition}: idle_timeout {} is above the server's idle_session_timeout {}, which ends connections \
                 that are kept: set it below, or idle_session_timeout = 0 among the partition's settings",
                shown(*idle_timeout),
                Limit::After(*idle_session_timeout)
            ),
            Self::MaxLifetime {
                partition,
                max_lifetime,
                statement_timeout,
            } => write!(
                f,
                "{partition}: max_lifetime, with its jitter from {}, is below statement_timeout {}: a connection may \
                 be replaced after a single statement. Raise it, or lower statement_timeout",
                Limit::After(*max_lifetime),
                shown(*statement_timeout)
            ),
        }
    }
}

fn shown(limit: Option<Duration>) -> Limit {
    limit.map_or(Limit::Off, Limit::After)
}
