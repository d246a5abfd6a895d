//! What the owner of a service states, from code, a TOML file or the environment, and what becomes of it.
//!
//! [`PoolConfig`] is what was stated; it can be built, read ([`from_toml`](PoolConfig::from_toml),
//! [`from_env`](PoolConfig::from_env), serde) and overridden ([`apply_env`](PoolConfig::apply_env)), and may be
//! incomplete or wrong. [`resolve`](PoolConfig::resolve) checks it whole, fills in the [`Defaults`], and gives
//! [`Settings`], whose types cannot be wrong; or a [`ConfigError`] that holds every problem with its field and
//! place, and no secret. Nothing is clamped in silence, and nothing panics.
//!
//! Durations are text with a unit (`"250ms"`), a limit that may be absent is `"off"`, and 0 is never "for ever".
//! Unknown keys and variables are errors.
//!
//! # The same configuration three times
//! ```
//! # use std::time::Duration;
//! # use partitioned_pool::config::{ConfigError, FleetConfig, PartitionConfig, PoolConfig};
//! # fn main() -> Result<(), ConfigError> {
//! let built = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(3, 1))
//!     .transactional(PartitionConfig::transactional(20).statement_timeout(Duration::from_secs(2)))
//!     .analytical(PartitionConfig::analytical(10));
//!
//! let file = PoolConfig::from_toml(r#"
//!     service = "shop"
//!     url = "postgres://shop@db/shop"
//!
//!     [fleet]
//!     max_replicas = 3
//!     surge = 1
//!
//!     [[partition]]
//!     name = "transactional"
//!     max_connections = 20
//!     statement_timeout = "2s"
//!
//!     [[partition]]
//!     name = "analytical"
//!     max_connections = 10
//! "#)?;
//!
//! let environment = PoolConfig::from_vars("SHOP_DB", [
//!     ("SHOP_DB_SERVICE", "shop"),
//!     ("SHOP_DB_URL", "postgres://shop@db/shop"),
//!     ("SHOP_DB_FLEET_MAX_REPLICAS", "3"),
//!     ("SHOP_DB_FLEET_SURGE", "1"),
//!     ("SHOP_DB_TRANSACTIONAL_MAX_CONNECTIONS", "20"),
//!     ("SHOP_DB_TRANSACTIONAL_STATEMENT_TIMEOUT", "2s"),
//!     ("SHOP_DB_ANALYTICAL_MAX_CONNECTIONS", "10"),
//! ].map(|(name, value)| (name.to_owned(), value.to_owned())))?;
//!
//! assert_eq!(built.resolve()?, file.resolve()?);
//! assert_eq!(built.resolve()?, environment.resolve()?);
//! # Ok(())
//! # }
//! ```
//!
//! # Lending idle slots
//! Partitions on one server may share a [budget](BudgetConfig): what none of them has reserved goes to whoever asks.
//! ```
//! # use partitioned_pool::config::{BudgetConfig, ConfigError, FleetConfig, HandOver, PartitionConfig, PoolConfig};
//! # fn main() -> Result<(), ConfigError> {
//! let built = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(3, 1))
//!     .budget(BudgetConfig::new("main", 30).hand_over(HandOver::DeclaredOrder))
//!     .transactional(PartitionConfig::transactional(25).budget("main").reserved(12))
//!     .analytical(PartitionConfig::analytical(10).budget("main").reserved(0));
//!
//! let file = PoolConfig::from_toml(r#"
//!     service = "shop"
//!     url = "postgres://shop@db/shop"
//!     fleet = { max_replicas = 3, surge = 1 }
//!
//!     [[budget]]
//!     name = "main"
//!     capacity = 30
//!     hand_over = "declared_order"
//!
//!     [[partition]]
//!     name = "transactional"
//!     budget = "main"
//!     reserved = 12
//!     max_connections = 25
//!
//!     [[partition]]
//!     name = "analytical"
//!     budget = "main"
//!     reserved = 0
//!     max_connections = 10
//! "#)?;
//!
//! let environment = PoolConfig::from_vars("SHOP_DB", [
//!     ("SHOP_DB_SERVICE", "shop"),
//!     ("SHOP_DB_URL", "postgres://shop@db/shop"),
//!     ("SHOP_DB_FLEET_MAX_REPLICAS", "3"),
//!     ("SHOP_DB_FLEET_SURGE", "1"),
//!     ("SHOP_DB_BUDGETS", "main"),
//!     ("SHOP_DB_BUDGET_MAIN_CAPACITY", "30"),
//!     ("SHOP_DB_BUDGET_MAIN_HAND_OVER", "declared_order"),
//!     ("SHOP_DB_TRANSACTIONAL_BUDGET", "main"),
//!     ("SHOP_DB_TRANSACTIONAL_RESERVED", "12"),
//!     ("SHOP_DB_TRANSACTIONAL_MAX_CONNECTIONS", "25"),
//!     ("SHOP_DB_ANALYTICAL_BUDGET", "main"),
//!     ("SHOP_DB_ANALYTICAL_RESERVED", "0"),
//!     ("SHOP_DB_ANALYTICAL_MAX_CONNECTIONS", "10"),
//! ].map(|(name, value)| (name.to_owned(), value.to_owned())))?;
//!
//! assert_eq!(built.resolve()?, file.resolve()?);
//! assert_eq!(built.resolve()?, environment.resolve()?);
//! # Ok(())
//! # }
//! ```

mod boot;
mod budget;
mod defaults;
mod env;
mod error;
mod fleet;
mod leaf;
mod limit;
mod origin;
mod partition;
mod pooler;
mod resolve;
mod rules;
mod seats;
mod session;
mod settings;
mod sharing;
mod toml_file;
mod url;

#[cfg(test)]
mod tests;

use serde::Deserialize;

#[cfg(test)]
pub(crate) use self::rules::{MOST_SEATS, SEAT_TAG_BYTES};
pub use self::{
    boot::{BootConfig, DEFAULT_CHECK_TIMEOUT, WarningCode, WhenUnavailable},
    budget::{BudgetConfig, HandOver},
    defaults::Defaults,
    error::{ConfigError, Problem},
    fleet::{ExternalPool, FleetCheck, FleetConfig},
    limit::Limit,
    partition::{ANALYTICAL, Kind, LIFETIME_JITTER_PERCENT, PartitionConfig, TRANSACTIONAL},
    pooler::{PoolerConfig, PoolerMode},
    seats::SeatsConfig,
    settings::{
        BootSettings, BudgetSettings, ExternalSettings, FleetSettings, PartitionSettings,
        PoolerSettings, SeatsSettings, Settings,
    },
    url::DatabaseUrl,
};
use self::{
    leaf::{Overlay, replace},
    origin::Origins,
};

/// The configuration of a pool, as its owner states it.
///
/// Two partitions must be there, `transactional` and `analytical`; more can be added, and their order is kept.
/// Nothing is checked before [`resolve`](Self::resolve).
///
/// It can also be a part of a larger configuration, through serde. Then the messages are those of the format
/// it is read from, which may repeat a value that is in the wrong field; those of
/// [`from_toml`](Self::from_toml) and [`from_env`](Self::from_env) never do.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetConfig, Kind, PartitionConfig, PoolConfig};
///
/// let settings = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(3, 1))
///     .transactional(PartitionConfig::transactional(20))
///     .analytical(PartitionConfig::analytical(10))
///     .partition(PartitionConfig::named("batch", Kind::Analytical, 5))
///     .resolve()?;
/// assert_eq!(settings.partitions[2].application_name, "shop/batch");
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    service: Option<String>,
    url: Option<DatabaseUrl>,
    pooler: Option<PoolerConfig>,
    #[serde(default)]
    fleet: FleetConfig,
    #[serde(default)]
    boot: BootConfig,
    #[serde(default, rename = "budget")]
    budgets: Vec<BudgetConfig>,
    #[serde(default, rename = "partition")]
    partitions: Vec<PartitionConfig>,
    #[serde(skip)]
    misplaced: Vec<Problem>,
    #[serde(skip)]
    origins: Origins,
}

impl PoolConfig {
    /// A pool of this service, on this server, in this fleet; still without partitions.
    ///
    /// `service` is how the service is known to the database: sessions have the `application_name`
    /// `<service>/<partition>`, of at most 63 bytes of printable ASCII.
    pub fn new(
        service: impl Into<String>,
        url: impl Into<DatabaseUrl>,
        fleet: FleetConfig,
    ) -> Self {
        Self {
            service: Some(service.into()),
            url: Some(url.into()),
            fleet,
            ..Self::default()
        }
    }

    /// The server of every partition that has no URL of its own; replaces the one stated before.
    #[must_use]
    pub fn url(mut self, url: impl Into<DatabaseUrl>) -> Self {
        self.url = Some(url.into());
        self
    }

    /// The pooler that the URL of the pool leads to. Default: none, it leads to Postgres itself.
    #[must_use]
    pub fn pooler(mut self, pooler: PoolerConfig) -> Self {
        self.pooler = Some(pooler);
        self
    }

    /// Adds the partition for short transactions; one of another name is an error on [`resolve`](Self::resolve).
    #[must_use]
    pub fn transactional(self, partition: PartitionConfig) -> Self {
        self.expect_name(TRANSACTIONAL, &partition)
            .partition(partition)
    }

    /// Adds the partition for reports; one of another name is an error on [`resolve`](Self::resolve).
    #[must_use]
    pub fn analytical(self, partition: PartitionConfig) -> Self {
        self.expect_name(ANALYTICAL, &partition)
            .partition(partition)
    }

    /// Adds a partition, after those that are there.
    #[must_use]
    pub fn partition(mut self, partition: PartitionConfig) -> Self {
        self.partitions.push(partition);
        self
    }

    /// Adds a budget for partitions that name it. Default: none, and each partition has its own.
    #[must_use]
    pub fn budget(mut self, budget: BudgetConfig) -> Self {
        self.budgets.push(budget);
        self
    }

    /// Adds a pool of each replica that is not ours, after those of the [fleet](FleetConfig::external). Default: none.
    #[must_use]
    pub fn external(mut self, pool: ExternalPool) -> Self {
        self.fleet = self.fleet.external(pool);
        self
    }

    /// How the pool boots. Default: [`BootConfig::new`].
    #[must_use]
    pub fn boot(mut self, boot: BootConfig) -> Self {
        self.boot = boot;
        self
    }

    fn expect_name(mut self, name: &str, partition: &PartitionConfig) -> Self {
        if partition.name.as_deref() != Some(name) {
            let problem =
                format!("the partition given to {name}() has another name; give it to partition()");
            self.misplaced
                .push(Problem::new(format!("partition.{name}"), problem));
        }
        self
    }
}

impl Overlay for PoolConfig {
    /// Only what is a field of the pool itself: its parts are laid over one by one.
    fn overlay(&mut self, over: Self) {
        replace(&mut self.service, over.service);
        replace(&mut self.url, over.url);
    }

    fn pooler(&mut self) -> Option<&mut PoolerConfig> {
        Some(self.pooler.get_or_insert_default())
    }
}
