//! What the owner states about one partition.

use std::time::Duration;

use serde::Deserialize;

use super::{
    leaf::{self, Leaf, LeafError, Named, Overlay, replace},
    limit::{self, Limit},
    pooler::PoolerConfig,
    session::{self, SessionConfig},
    url::DatabaseUrl,
};

/// The name of the partition for short transactions, which always exists.
pub const TRANSACTIONAL: &str = "transactional";

/// The name of the partition for reports, which always exists.
pub const ANALYTICAL: &str = "analytical";

/// How much of `max_lifetime` is taken off at random, in percent, so that connections which were opened together
/// do not all end together: a `max_lifetime` of 30 min ends between 27 and 30 min.
pub const LIFETIME_JITTER_PERCENT: u32 = 10;

/// What a partition is for; it chooses the [`Defaults`](super::Defaults). As text: `"transactional"` or
/// `"analytical"`.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{Kind, PartitionConfig};
///
/// let importer = PartitionConfig::named("importer", Kind::Analytical, 4);
/// assert_eq!(Kind::Analytical.as_str(), "analytical");
/// # let _ = importer;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Kind {
    /// Short work that somebody waits for: it may queue for a moment, and is soon given up.
    Transactional,
    /// Long work: it never queues, and may run for minutes.
    Analytical,
}

impl Kind {
    /// The kind that a name implies; `None` for a name of the owner's own.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        match name {
            TRANSACTIONAL => Some(Self::Transactional),
            ANALYTICAL => Some(Self::Analytical),
            _ => None,
        }
    }

    /// The kind as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Transactional => TRANSACTIONAL,
            Self::Analytical => ANALYTICAL,
        }
    }
}

/// A partition as its owner states it.
///
/// Only the size must be stated: there is no default size. What else is not stated gets the default of the
/// partition's kind; [`Defaults`](super::Defaults) lists them with their reasons. Nothing is checked here: all
/// checks are made together, by [`PoolConfig::resolve`](super::PoolConfig::resolve).
///
/// In TOML each partition is a table `[[partition]]`, with the methods below as keys.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::{Kind, Limit, PartitionConfig};
///
/// let checkout = PartitionConfig::transactional(20).statement_timeout(Duration::from_secs(2));
/// let batch = PartitionConfig::named("batch", Kind::Analytical, 5).max_hold(Limit::Off);
/// # let _ = (checkout, batch);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionConfig {
    pub(super) name: Option<String>,
    pub(super) kind: Option<Kind>,
    pub(super) url: Option<DatabaseUrl>,
    pub(super) pooler: Option<PoolerConfig>,
    pub(super) max_connections: Option<u32>,
    #[serde(default, deserialize_with = "leaf::name")]
    pub(super) budget: Option<String>,
    pub(super) reserved: Option<u32>,
    pub(super) max_waiters: Option<u32>,
    #[serde(default, deserialize_with = "limit::duration")]
    pub(super) acquire_timeout: Option<Duration>,
    #[serde(default, deserialize_with = "limit::duration")]
    pub(super) connect_timeout: Option<Duration>,
    pub(super) statement_timeout: Option<Limit>,
    pub(super) lock_timeout: Option<Limit>,
    pub(super) idle_in_transaction_session_timeout: Option<Limit>,
    pub(super) transaction_timeout: Option<Limit>,
    pub(super) hold_warning: Option<Limit>,
    pub(super) max_hold: Option<Limit>,
    pub(super) idle_timeout: Option<Limit>,
    pub(super) max_lifetime: Option<Limit>,
    pub(super) min_idle: Option<u32>,
    pub(super) validate_after_idle: Option<Limit>,
    pub(super) reset_session: Option<bool>,
    #[serde(default, deserialize_with = "limit::duration")]
    pub(super) caller_deadline: Option<Duration>,
    #[serde(default)]
    pub(super) settings: SessionConfig,
}

impl PartitionConfig {
    /// The partition for short transactions, which every pool has.
    pub fn transactional(max_connections: u32) -> Self {
        Self::named(TRANSACTIONAL, Kind::Transactional, max_connections)
    }

    /// The partition for reports, which every pool has.
    pub fn analytical(max_connections: u32) -> Self {
        Self::named(ANALYTICAL, Kind::Analytical, max_connections)
    }

    /// A further partition. Its name is of `a-z`, `0-9`, `_` and `-`, and at most 32 characters long.
    pub fn named(name: impl Into<String>, kind: Kind, max_connections: u32) -> Self {
        let (name, kind) = (Some(name.into()), Some(kind));
        Self {
            name,
            kind,
            max_connections: Some(max_connections),
            ..Self::default()
        }
    }

    /// A server of its own, such as a standby for reports. Default: the URL of the pool.
    #[must_use]
    pub fn url(mut self, url: impl Into<DatabaseUrl>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// The pooler that its own [`url`](Self::url) leads to; an error without one. Default: with a `url` of its own,
    /// none; without, that of the pool.
    #[must_use]
    pub fn pooler(mut self, pooler: PoolerConfig) -> Self {
        self.pooler = Some(pooler);
        self
    }

    /// The [budget](super::BudgetConfig) that this partition draws from, with others on its server; then
    /// [`reserved`](Self::reserved) must be stated. Default: a budget of its own, of `max_connections`, of which
    /// nothing is lent.
    #[must_use]
    pub fn budget(mut self, name: impl Into<String>) -> Self {
        self.budget = Some(name.into());
        self
    }

    /// The slots that are guaranteed to this partition: never lent, and granted at once. From 0 to
    /// `max_connections` where it names a [`budget`](Self::budget), and must be stated there; 0 only if the
    /// other partitions of that budget do not reserve all of it. Default without one: `max_connections`, which is then
    /// the only value allowed.
    #[must_use]
    pub fn reserved(mut self, slots: u32) -> Self {
        self.reserved = Some(slots);
        self
    }

    /// The most callers that may queue; 0 refuses at once when every slot is taken. Default by kind: twice
    /// `max_connections`, or 0.
    #[must_use]
    pub fn max_waiters(mut self, callers: u32) -> Self {
        self.max_waiters = Some(callers);
        self
    }

    /// The longest that an acquire may take: waiting, connecting and validating together. It cannot be off:
    /// every wait is bounded. Default by kind: 1 s or 5 s.
    #[must_use]
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.acquire_timeout = Some(timeout);
        self
    }

    /// The longest that opening a connection may take: address, TLS and authentication. It cannot be off.
    /// Default by kind: 3 s or 5 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// The server ends a statement that takes longer. In whole milliseconds. Default by kind: 5 s or 5 min.
    #[must_use]
    pub fn statement_timeout(mut self, timeout: impl Into<Limit>) -> Self {
        self.statement_timeout = Some(timeout.into());
        self
    }

    /// The server ends a statement that waits longer for a lock. In whole milliseconds. Default by kind: 1 s or 5 s.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: impl Into<Limit>) -> Self {
        self.lock_timeout = Some(timeout.into());
        self
    }

    /// The server ends a session that is silent longer inside a transaction. In whole milliseconds. Default by
    /// kind: 5 s or 30 s.
    #[must_use]
    pub fn idle_in_transaction_session_timeout(mut self, timeout: impl Into<Limit>) -> Self {
        self.idle_in_transaction_session_timeout = Some(timeout.into());
        self
    }

    /// The server (Postgres 17 or later) ends a transaction that takes longer. In whole milliseconds. Default by
    /// kind: 30 s or 15 min.
    #[must_use]
    pub fn transaction_timeout(mut self, timeout: impl Into<Limit>) -> Self {
        self.transaction_timeout = Some(timeout.into());
        self
    }

    /// A hold that is older than this is told to the log, once, with the place in the code that acquired it.
    /// Default by kind: 30 s or 15 min.
    #[must_use]
    pub fn hold_warning(mut self, limit: impl Into<Limit>) -> Self {
        self.hold_warning = Some(limit.into());
        self
    }

    /// The longest that a caller may keep a connection. Then its query is cancelled and the connection taken
    /// away: the slot is free for others, and what the late owner does with the connection fails with the
    /// driver's "connection closed". It is kept on the client's side, so it also holds when the network is cut.
    /// Looked at once a second; many are ended one after the other, the oldest first, ten a second in each partition. Default: off.
    #[must_use]
    pub fn max_hold(mut self, limit: impl Into<Limit>) -> Self {
        self.max_hold = Some(limit.into());
        self
    }

    /// An idle connection beyond `min_idle` is closed after this time. Default by kind: 10 min or 1 min.
    #[must_use]
    pub fn idle_timeout(mut self, limit: impl Into<Limit>) -> Self {
        self.idle_timeout = Some(limit.into());
        self
    }

    /// A connection is replaced at this age, less up to [`LIFETIME_JITTER_PERCENT`] at random. Default: 30 min.
    #[must_use]
    pub fn max_lifetime(mut self, limit: impl Into<Limit>) -> Self {
        self.max_lifetime = Some(limit.into());
        self
    }

    /// The idle connections that are kept ready; at most `max_connections`, and those of the partitions of one
    /// budget at most its capacity together. Default by kind: a quarter of `max_connections`, rounded up, or 0; in
    /// a shared budget at most `reserved`.
    #[must_use]
    pub fn min_idle(mut self, connections: u32) -> Self {
        self.min_idle = Some(connections);
        self
    }

    /// A connection that was idle for longer is pinged before a caller gets it; off: never. Default: 30 s.
    #[must_use]
    pub fn validate_after_idle(mut self, limit: impl Into<Limit>) -> Self {
        self.validate_after_idle = Some(limit.into());
        self
    }

    /// Whether a connection that comes back is freed of session state before anyone else gets it: settings,
    /// the role, advisory locks, `LISTEN`, temporary tables, held cursors and the last values of sequences.
    /// Prepared statements stay, and the limits of the partition are put in force again. It costs a round trip
    /// for each hold, which keeps its slot meanwhile; a connection that fails at it is closed. Without it, what
    /// a caller sets for its session, the next caller finds. As `true` or `false`. Default: `false`.
    #[must_use]
    pub fn reset_session(mut self, reset: bool) -> Self {
        self.reset_session = Some(reset);
        self
    }

    /// How long callers usually give the whole of their call, work included, before they turn away; only for a
    /// [warning](crate::BootWarning) when `acquire_timeout` leaves nothing of it. A call that knows its own deadline
    /// says so by [`acquire_by`](crate::Partition::acquire_by) or [`run`](crate::Partition::run). Default: not known.
    #[must_use]
    pub fn caller_deadline(mut self, deadline: Duration) -> Self {
        self.caller_deadline = Some(deadline);
        self
    }

    /// A setting of each of its sessions, by its name in Postgres: `work_mem`, `search_path`,
    /// `default_transaction_read_only`, `max_parallel_workers_per_gather`, ... It is put in force when a connection is
    /// opened, taken over or [reset](Self::reset_session), in the same round trip as the limits. Stated twice, the
    /// last one counts. Default: none.
    ///
    /// The value is written as in `postgresql.conf`, with its unit. The server is asked at boot whether it knows the
    /// setting, takes the value from this role, and has it in force; if not, the pool does not start
    /// ([`BootError::SettingsNotInForce`](crate::BootError::SettingsNotInForce)). What the pool sets itself
    /// (`statement_timeout` and the other limits, `application_name`, keepalive) is refused, with the field to use.
    ///
    /// In TOML this is the table `[partition.settings]`, whose values may also be numbers and booleans; in the
    /// environment `.._<PARTITION>_SETTINGS_WORK_MEM`, with `__` for the dot in the name of an extension's setting.
    /// Values are printed in messages and by `Debug`: they are no place for a secret.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::config::PartitionConfig;
    ///
    /// let reports = PartitionConfig::analytical(10)
    ///     .setting("work_mem", "64MB")
    ///     .setting("default_transaction_read_only", "on")
    ///     .setting("search_path", "reporting, public");
    /// # let _ = reports;
    /// ```
    #[must_use]
    pub fn setting(mut self, name: impl AsRef<str>, value: impl Into<String>) -> Self {
        self.settings.insert(name.as_ref(), value.into());
        self
    }
}

impl Overlay for PartitionConfig {
    fn set(&mut self, key: &str, value: Leaf<'_>) -> Result<(), LeafError> {
        let in_table = key.strip_prefix(session::TABLE);
        match in_table.and_then(|rest| rest.strip_prefix('.')) {
            Some(name) => self.settings.set(name, value),
            None => self.set_field(key, value),
        }
    }

    fn overlay(&mut self, over: Self) {
        // Exhaustive, so that a new field cannot be forgotten.
        let Self {
            name,
            kind,
            url,
            pooler,
            max_connections,
            budget,
            reserved,
            max_waiters,
            acquire_timeout,
            connect_timeout,
            statement_timeout,
            lock_timeout,
            idle_in_transaction_session_timeout,
            transaction_timeout,
            hold_warning,
            max_hold,
            idle_timeout,
            max_lifetime,
            min_idle,
            validate_after_idle,
            reset_session,
            caller_deadline,
            settings,
        } = over;
        replace(&mut self.name, name);
        replace(&mut self.kind, kind);
        replace(&mut self.url, url);
        replace(&mut self.pooler, pooler);
        replace(&mut self.max_connections, max_connections);
        replace(&mut self.budget, budget);
        replace(&mut self.reserved, reserved);
        replace(&mut self.max_waiters, max_waiters);
        replace(&mut self.acquire_timeout, acquire_timeout);
        replace(&mut self.connect_timeout, connect_timeout);
        replace(&mut self.statement_timeout, statement_timeout);
        replace(&mut self.lock_timeout, lock_timeout);
        replace(
            &mut self.idle_in_transaction_session_timeout,
            idle_in_transaction_session_timeout,
        );
        replace(&mut self.transaction_timeout, transaction_timeout);
        replace(&mut self.hold_warning, hold_warning);
        replace(&mut self.max_hold, max_hold);
        replace(&mut self.idle_timeout, idle_timeout);
        replace(&mut self.max_lifetime, max_lifetime);
        replace(&mut self.min_idle, min_idle);
        replace(&mut self.validate_after_idle, validate_after_idle);
        replace(&mut self.reset_session, reset_session);
        replace(&mut self.caller_deadline, caller_deadline);
        self.settings.overlay(settings);
    }

    fn pooler(&mut self) -> Option<&mut PoolerConfig> {
        Some(self.pooler.get_or_insert_default())
    }
}

impl Named for PartitionConfig {
    const LIST: &'static str = "partition";
    const TABLE: Option<&'static str> = Some(session::TABLE);

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}
