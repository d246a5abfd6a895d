//! A configuration that was checked and completed.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    time::Duration,
};

use super::{
    boot::{WarningCode, WhenUnavailable},
    budget::HandOver,
    fleet::FleetCheck,
    partition::Kind,
    pooler::PoolerMode,
    url::DatabaseUrl,
};

/// Everything that the pool needs to know, checked and complete; made by
/// [`PoolConfig::resolve`](super::PoolConfig::resolve) only.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
///
/// let settings = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(3, 1))
///     .transactional(PartitionConfig::transactional(20))
///     .analytical(PartitionConfig::analytical(10))
///     .resolve()?;
/// assert_eq!((settings.partitions.len(), settings.budgets.len()), (2, 2));
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// How the service is known to the database.
    pub service: String,
    /// The fleet.
    pub fleet: FleetSettings,
    /// How the pool boots.
    pub boot: BootSettings,
    /// The partitions, in the order in which the owner stated them; each name once, and always `transactional`
    /// and `analytical`.
    pub partitions: Vec<PartitionSettings>,
    /// What they draw from, in the order of their first partitions: each partition is in exactly one budget, alone
    /// or with others.
    pub budgets: Vec<BudgetSettings>,
}

impl Settings {
    /// The budget that the partition at this position of [`partitions`](Self::partitions) draws from.
    ///
    /// # Panics
    /// If there is no partition at this position.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
    ///
    /// let settings = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(3, 1))
    ///     .transactional(PartitionConfig::transactional(20))
    ///     .analytical(PartitionConfig::analytical(10))
    ///     .resolve()?;
    /// assert_eq!(settings.budget_of(1).name, "analytical");
    /// # Ok::<(), partitioned_pool::config::ConfigError>(())
    /// ```
    #[must_use]
    pub fn budget_of(&self, partition: usize) -> &BudgetSettings {
        let of = |budget: &&BudgetSettings| budget.partitions.contains(&partition);
        self.budgets
            .iter()
            .find(of)
            .unwrap_or_else(|| panic!("there is no partition {partition}"))
    }
}

/// The connections that one replica may have to one server, for one or more partitions; checked and complete.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
///
/// let settings = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(3, 1))
///     .transactional(PartitionConfig::transactional(20))
///     .analytical(PartitionConfig::analytical(10))
///     .resolve()?;
/// assert_eq!((settings.budgets[0].capacity.get(), &settings.budgets[0].partitions[..]), (20, &[0][..]));
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetSettings {
    /// Its name; that of its partition, where that names no budget.
    pub name: String,
    /// The most connections; at least as many as its partitions reserve together, and as each may hold.
    pub capacity: NonZeroU32,
    /// Which partition is looked at first when a slot comes free.
    pub hand_over: HandOver,
    /// Its partitions, as positions in [`Settings::partitions`]; ascending, and never empty.
    pub partitions: Vec<usize>,
}

/// One partition, checked and complete. Limits are `None` where they are off.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
///
/// let settings = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(3, 1))
///     .transactional(PartitionConfig::transactional(20))
///     .analytical(PartitionConfig::analytical(10))
///     .resolve()?;
/// let checkout = &settings.partitions[0];
/// assert_eq!((checkout.application_name.as_str(), checkout.max_waiters, checkout.min_idle), ("shop/transactional", 40, 5));
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionSettings {
    /// The name: of `a-z`, `0-9`, `_` and `-`, 1 to 32 characters.
    pub name: String,
    /// What the partition is for.
    pub kind: Kind,
    /// The server: its own, or that of the pool.
    pub url: DatabaseUrl,
    /// The pooler that `url` leads to, if it does not lead to Postgres itself.
    pub pooler: Option<PoolerSettings>,
    /// `<service>/<partition>`: at most 63 bytes of printable ASCII.
    pub application_name: String,
    /// The most slots that the partition may hold.
    pub max_connections: NonZeroU32,
    /// The slots guaranteed to it; `max_connections` where it names no budget.
    pub reserved: u32,
    /// The most callers that may queue.
    pub max_waiters: u32,
    /// The longest that an acquire may take. Above 0.
    pub acquire_timeout: Duration,
    /// The longest that opening a connection may take. Above 0.
    pub connect_timeout: Duration,
    /// In whole milliseconds, from 1 to `i32::MAX`.
    pub statement_timeout: Option<Duration>,
    /// In whole milliseconds, from 1 to `i32::MAX`.
    pub lock_timeout: Option<Duration>,
    /// In whole milliseconds, from 1 to `i32::MAX`.
    pub idle_in_transaction_session_timeout: Option<Duration>,
    /// In whole milliseconds, from 1 to `i32::MAX`; for Postgres 17 or later.
    pub transaction_timeout: Option<Duration>,
    /// A hold older than this is told to the log.
    pub hold_warning: Option<Duration>,
    /// The longest that a caller may keep a connection; then it is taken away.
    pub max_hold: Option<Duration>,
    /// An idle connection beyond `min_idle` is closed after this time.
    pub idle_timeout: Option<Duration>,
    /// The age at which a connection is replaced, before the jitter is taken off.
    pub max_lifetime: Option<Duration>,
    /// The idle connections that are kept ready; at most `max_connections`, and at most the capacity of the budget
    /// together with those of the other partitions in it.
    pub min_idle: u32,
    /// A connection that was idle for longer is pinged before a caller gets it.
    pub validate_after_idle: Option<Duration>,
    /// Whether a connection that comes back is freed of session state before anyone else gets it.
    pub reset_session: bool,
    /// How long callers usually give the whole of their call, if that was stated.
    pub caller_deadline: Option<Duration>,
    /// Further settings of each session, by their names in Postgres.
    pub session_settings: BTreeMap<String, String>,
}

impl PartitionSettings {
    /// Whether what is set for a session stays there; not so behind a transaction pooler.
    #[must_use]
    pub fn has_sessions(&self) -> bool {
        let mode = self.pooler.as_ref().map(|pooler| pooler.mode);
        mode != Some(PoolerMode::Transaction)
    }
}

/// A pooler between a partition and Postgres, checked and complete.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig, PoolerConfig};
///
/// let settings = PoolConfig::new("shop", "postgres://shop@pgbouncer:6432/shop", FleetConfig::new(3, 1))
///     .pooler(PoolerConfig::session(500, 130))
///     .transactional(PartitionConfig::transactional(20))
///     .analytical(PartitionConfig::analytical(10))
///     .resolve()?;
/// let pooler = settings.partitions[0].pooler.as_ref().unwrap();
/// assert_eq!(pooler.default_pool_size.map(u32::from), Some(130));
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolerSettings {
    /// When it hands a server connection to somebody else.
    pub mode: PoolerMode,
    /// The client connections that it takes, from everybody together.
    pub max_client_conn: NonZeroU32,
    /// The server connections for each pair of role and database; always there in session mode, and only there.
    pub default_pool_size: Option<NonZeroU32>,
    /// The server connections of a database, if they are limited; only in session mode.
    pub max_db_connections: Option<NonZeroU32>,
}

/// The fleet, checked and complete.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
///
/// let settings = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(3, 1))
///     .transactional(PartitionConfig::transactional(20))
///     .analytical(PartitionConfig::analytical(10))
///     .resolve()?;
/// assert_eq!((settings.fleet.max_replicas.get(), settings.fleet.surge, settings.fleet.reserve), (3, 1, 0));
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetSettings {
    /// The most replicas in steady running.
    pub max_replicas: NonZeroU32,
    /// The most replicas on top of that during a deploy.
    pub surge: u32,
    /// Connections left to others, in total.
    pub reserve: u32,
    /// Pools in each replica that are not ours; each name once.
    pub external: Vec<ExternalSettings>,
    /// What happens when the fleet does not fit.
    pub mode: FleetCheck,
    /// How many of its replicas may have connections, if the database is to enforce that.
    pub seats: Option<SeatsSettings>,
}

/// Seats, checked and complete.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig, SeatsConfig};
///
/// let fleet = FleetConfig::new(8, 2).seats(SeatsConfig::new(10));
/// let settings = PoolConfig::new("shop", "postgres://shop@db/shop", fleet)
///     .transactional(PartitionConfig::transactional(4))
///     .analytical(PartitionConfig::analytical(2))
///     .resolve()?;
/// let seats = settings.fleet.seats.unwrap();
/// assert_eq!((seats.count.get(), seats.lease.as_secs()), (10, 15));
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeatsSettings {
    /// How many; at most 9,999.
    pub count: NonZeroU32,
    /// How long a seat stays taken when its replica says nothing any more; from 1 s to 1 h, in whole milliseconds.
    pub lease: Duration,
    /// How long a replica waits for a seat when it boots; `None` if it does not.
    pub wait: Option<Duration>,
    /// `table` or `schema.table`: lower-case letters, digits and `_`, so that it needs no quotes.
    pub table: String,
    /// Where the table is.
    pub url: DatabaseUrl,
}

/// A pool in each replica that is not ours, checked.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{ExternalPool, FleetConfig, PartitionConfig, PoolConfig};
///
/// let fleet = FleetConfig::new(3, 1).external(ExternalPool::new("jobs", 4));
/// let settings = PoolConfig::new("shop", "postgres://shop@db/shop", fleet)
///     .transactional(PartitionConfig::transactional(20))
///     .analytical(PartitionConfig::analytical(10))
///     .resolve()?;
/// assert_eq!((settings.fleet.external[0].size.get(), &settings.fleet.external[0].role), (4, &None));
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExternalSettings {
    /// Its name; by the same rule as that of a partition.
    pub name: String,
    /// Its connections in each replica.
    pub size: NonZeroU32,
    /// The role it connects as, if stated.
    pub role: Option<String>,
    /// The database it connects to, if stated.
    pub database: Option<String>,
}

/// How the pool boots, checked and complete.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
///
/// let settings = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(3, 1))
///     .transactional(PartitionConfig::transactional(20))
///     .analytical(PartitionConfig::analytical(10))
///     .resolve()?;
/// assert!(settings.boot.silence.is_empty() && settings.boot.check_timeout.as_secs() == 10);
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BootSettings {
    /// What happens when a database is not there yet; a bound on waiting is above 0.
    pub when_unavailable: WhenUnavailable,
    /// The longest that one try to connect may take, and then the look at the server. Above 0.
    pub check_timeout: Duration,
    /// The warnings that are not given.
    pub silence: BTreeSet<WarningCode>,
}
