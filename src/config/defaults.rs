//! The one table of defaults.

use std::time::Duration;

use super::{limit::Limit, partition::Kind};

/// What a partition gets when its owner states nothing, by kind. There is no default for `max_connections`.
///
/// | field | transactional | reason | analytical | reason |
/// |---|---|---|---|---|
/// | `max_waiters` | 2 x `max_connections` | absorbs a burst; the last waits for two holds, which is still worth waiting for | 0 | a report that cannot start is told so at once; a queue of long jobs only hides overload |
/// | `acquire_timeout` | 1 s | somebody waits for the answer; later it is of no use | 5 s | nobody queues: it covers connecting |
/// | `connect_timeout` | 3 s | survives one lost SYN, which is sent again after 1 s | 5 s | the same, and a slow TLS or authentication; nobody is waiting |
/// | `statement_timeout` | 5 s | a hundred times an ordinary statement; beyond it the caller has left | 5 min | a long report, not a forgotten one |
/// | `lock_timeout` | 1 s | whoever waits for a lock holds a slot, and often other locks | 5 s | a report that queues for a lock makes everyone queue behind it |
/// | `idle_in_transaction_session_timeout` | 5 s | a silent transaction keeps its locks and holds back vacuum | 30 s | time to work on a result between two statements |
/// | `transaction_timeout` | 30 s | many short statements may add up, but not without end | 15 min | three long statements |
/// | `hold_warning` | 30 s | as `transaction_timeout`, and it holds when the network is cut | 15 min | as `transaction_timeout` |
/// | `max_hold` | off | taking a connection away from its owner is the owner's decision | off | the same |
/// | `idle_timeout` | 10 min | a connection outlives the gap between two bursts | 1 min | a backend that reported keeps its memory; reports are rare |
/// | `max_lifetime` | 30 min | gives back the memory of the backend and follows changes of address | 30 min | the same |
/// | `min_idle` | a quarter of `max_connections`, rounded up | a first burst does not pay for connecting; in a shared budget at most `reserved`, so that filling takes nothing that another could borrow | 0 | a report can wait for its connection |
/// | `validate_after_idle` | 30 s | a connection in steady use is never pinged; one that a firewall forgot is found | 30 s | the same |
/// | `reset_session` | no | it costs a round trip for each hold; what is set with `SET LOCAL` ends by itself | no | the same |
///
/// # Examples
/// ```
/// use partitioned_pool::config::{Defaults, Kind};
///
/// assert_eq!(Defaults::of(Kind::Transactional).max_waiters(20), 40);
/// assert_eq!(Defaults::of(Kind::Analytical).max_waiters(10), 0);
/// assert_eq!(Defaults::of(Kind::Transactional).min_idle(10), 3);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Defaults {
    /// Waiters for each connection of `max_connections`.
    pub waiters_per_connection: u32,
    /// Idle connections kept ready, in percent of `max_connections`, rounded up.
    pub min_idle_percent: u32,
    /// See [`PartitionConfig::acquire_timeout`](super::PartitionConfig::acquire_timeout).
    pub acquire_timeout: Duration,
    /// See [`PartitionConfig::connect_timeout`](super::PartitionConfig::connect_timeout).
    pub connect_timeout: Duration,
    /// See [`PartitionConfig::statement_timeout`](super::PartitionConfig::statement_timeout).
    pub statement_timeout: Limit,
    /// See [`PartitionConfig::lock_timeout`](super::PartitionConfig::lock_timeout).
    pub lock_timeout: Limit,
    /// See [`PartitionConfig::idle_in_transaction_session_timeout`](super::PartitionConfig::idle_in_transaction_session_timeout).
    pub idle_in_transaction_session_timeout: Limit,
    /// See [`PartitionConfig::transaction_timeout`](super::PartitionConfig::transaction_timeout).
    pub transaction_timeout: Limit,
    /// See [`PartitionConfig::hold_warning`](super::PartitionConfig::hold_warning).
    pub hold_warning: Limit,
    /// See [`PartitionConfig::max_hold`](super::PartitionConfig::max_hold).
    pub max_hold: Limit,
    /// See [`PartitionConfig::idle_timeout`](super::PartitionConfig::idle_timeout).
    pub idle_timeout: Limit,
    /// See [`PartitionConfig::max_lifetime`](super::PartitionConfig::max_lifetime).
    pub max_lifetime: Limit,
    /// See [`PartitionConfig::validate_after_idle`](super::PartitionConfig::validate_after_idle).
    pub validate_after_idle: Limit,
    /// See [`PartitionConfig::reset_session`](super::PartitionConfig::reset_session).
    pub reset_session: bool,
}

const TRANSACTIONAL: Defaults = Defaults {
    waiters_per_connection: 2,
    min_idle_percent: 25,
    acquire_timeout: Duration::from_secs(1),
    connect_timeout: Duration::from_secs(3),
    statement_timeout: seconds(5),
    lock_timeout: seconds(1),
    idle_in_transaction_session_timeout: seconds(5),
    transaction_timeout: seconds(30),
    hold_warning: seconds(30),
    max_hold: Limit::Off,
    idle_timeout: minutes(10),
    max_lifetime: minutes(30),
    validate_after_idle: seconds(30),
    reset_session: false,
};

const ANALYTICAL: Defaults = Defaults {
    waiters_per_connection: 0,
    min_idle_percent: 0,
    acquire_timeout: Duration::from_secs(5),
    connect_timeout: Duration::from_secs(5),
    statement_timeout: minutes(5),
    lock_timeout: seconds(5),
    idle_in_transaction_session_timeout: seconds(30),
    transaction_timeout: minutes(15),
    hold_warning: minutes(15),
    max_hold: Limit::Off,
    idle_timeout: minutes(1),
    max_lifetime: minutes(30),
    validate_after_idle: seconds(30),
    reset_session: false,
};

impl Defaults {
    /// The defaults of this kind.
    pub fn of(kind: Kind) -> &'static Self {
        match kind {
            Kind::Transactional => &TRANSACTIONAL,
            Kind::Analytical => &ANALYTICAL,
        }
    }

    /// The default queue of a partition of this size; `u32::MAX` if it is longer than that.
    pub fn max_waiters(&self, max_connections: u32) -> u32 {
        max_connections.saturating_mul(self.waiters_per_connection)
    }

    /// The default number of connections kept ready in a partition of this size.
    pub fn min_idle(&self, max_connections: u32) -> u32 {
        let percent = u64::from(max_connections) * u64::from(self.min_idle_percent);
        u32::try_from(percent.div_ceil(100)).unwrap_or(u32::MAX)
    }
}

const fn seconds(n: u64) -> Limit {
    Limit::After(Duration::from_secs(n))
}

const fn minutes(n: u64) -> Limit {
    seconds(60 * n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_rounded_up() {
        let defaults = Defaults::of(Kind::Transactional);
        let quarters = [1, 4, 5, 20, u32::MAX].map(|size| defaults.min_idle(size));
        assert_eq!(quarters, [1, 1, 2, 5, 1 << 30]);
    }

    #[test]
    fn analytical_keeps_nothing_ready_and_queues_nobody() {
        let defaults = Defaults::of(Kind::Analytical);
        assert_eq!((defaults.min_idle(10), defaults.max_waiters(10)), (0, 0));
    }
}
