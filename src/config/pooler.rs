//! What the owner states about a pooler between the service and Postgres.

use serde::Deserialize;

use super::leaf::{Overlay, replace};

/// When a pooler hands a server connection to somebody else: PgBouncer's `pool_mode`. As text: `"session"` or
/// `"transaction"`.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{PoolerConfig, PoolerMode};
///
/// let pooler = PoolerConfig::default().mode(PoolerMode::Transaction).max_client_conn(500);
/// assert_eq!(pooler, PoolerConfig::transaction(500));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PoolerMode {
    /// When its client has gone: what is set for a session stays.
    Session,
    /// When a transaction has ended: what is set for a session does not stay, and may hit a stranger. The session
    /// limits of a partition are then not set, only verified. Not with sqlx.
    Transaction,
}

impl PoolerMode {
    /// The mode as it is written.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
        }
    }
}

/// A pooler between the service and Postgres, such as PgBouncer, with the limits that its owner gave it.
///
/// It is stated where the URL is stated that leads to it: for the pool
/// ([`PoolConfig::pooler`](super::PoolConfig::pooler)), or for a partition that has a `url` of its own
/// ([`PartitionConfig::pooler`](super::PartitionConfig::pooler)). A pooler that is not stated is found when the
/// pool starts, and refused: nobody but its owner knows its limits, and Postgres says nothing of them. The names are those
/// of `pgbouncer.ini`.
///
/// In TOML this is the table `[pooler]`, or `[partition.pooler]` below its `[[partition]]`.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig, PoolerConfig};
///
/// let settings = PoolConfig::new("shop", "postgres://shop@pgbouncer:6432/shop", FleetConfig::new(3, 1))
///     .pooler(PoolerConfig::transaction(500))
///     .transactional(PartitionConfig::transactional(20))
///     .analytical(PartitionConfig::analytical(10).url("postgres://shop@standby/shop"))
///     .resolve()?;
/// assert!(settings.partitions[0].pooler.is_some());
/// assert!(settings.partitions[1].pooler.is_none(), "it has a url of its own");
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolerConfig {
    pub(super) mode: Option<PoolerMode>,
    pub(super) max_client_conn: Option<u32>,
    pub(super) default_pool_size: Option<u32>,
    pub(super) max_db_connections: Option<u32>,
}

impl PoolerConfig {
    /// A pooler in transaction mode that takes so many client connections, from everybody together.
    #[must_use]
    pub fn transaction(max_client_conn: u32) -> Self {
        Self {
            mode: Some(PoolerMode::Transaction),
            max_client_conn: Some(max_client_conn),
            ..Self::default()
        }
    }

    /// A pooler in session mode that takes so many client connections from everybody together, and opens so many
    /// server connections for each pair of role and database.
    #[must_use]
    pub fn session(max_client_conn: u32, default_pool_size: u32) -> Self {
        Self {
            mode: Some(PoolerMode::Session),
            max_client_conn: Some(max_client_conn),
            default_pool_size: Some(default_pool_size),
            ..Self::default()
        }
    }

    /// The mode. No default.
    #[must_use]
    pub fn mode(mut self, mode: PoolerMode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// The client connections that it takes, from everybody together. No default.
    #[must_use]
    pub fn max_client_conn(mut self, connections: u32) -> Self {
        self.max_client_conn = Some(connections);
        self
    }

    /// The server connections for each pair of role and database: `default_pool_size`, or `pool_size` where the
    /// database or the role has one of its own. In session mode each client needs one, and who comes later waits in the
    /// pooler where no queue of ours is seen; so it must be stated there, and cannot be in transaction mode, where clients
    /// share them on purpose.
    #[must_use]
    pub fn default_pool_size(mut self, connections: u32) -> Self {
        self.default_pool_size = Some(connections);
        self
    }

    /// The server connections of a database, whatever the role. In session mode only, as above. Default: no limit.
    #[must_use]
    pub fn max_db_connections(mut self, connections: u32) -> Self {
        self.max_db_connections = Some(connections);
        self
    }
}

impl Overlay for PoolerConfig {
    fn overlay(&mut self, over: Self) {
        let Self {
            mode,
            max_client_conn,
            default_pool_size,
            max_db_connections,
        } = over;
        replace(&mut self.mode, mode);
        replace(&mut self.max_client_conn, max_client_conn);
        replace(&mut self.default_pool_size, default_pool_size);
        replace(&mut self.max_db_connections, max_db_connections);
    }
}
