//! What the owner states about the fleet: everything else that draws on the same server.

use serde::Deserialize;

use super::leaf::{Named, Overlay, replace};
use super::seats::SeatsConfig;

/// What the fleet check does when the fleet does not fit. As text: `"enforce"`, `"warn"` or `"off"`.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{FleetCheck, FleetConfig};
///
/// let in_a_test = FleetConfig::new(1, 0).mode(FleetCheck::Off);
/// # let _ = in_a_test;
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum FleetCheck {
    /// The service does not boot. The default: a fleet that does not fit fails later, and at the worst time.
    #[default]
    Enforce,
    /// The report is logged, and the service boots.
    Warn,
    /// Nothing is checked.
    Off,
}

/// The fleet, as its owner states it: how many replicas there can be, and who else uses the server.
///
/// `max_replicas` and `surge` have no default, because nobody but the owner knows them: a rolling deploy runs
/// old and new replicas together, and the ones that are terminating count too.
///
/// In TOML this is the table `[fleet]`.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{ExternalPool, FleetCheck, FleetConfig};
///
/// let fleet = FleetConfig::new(3, 1)
///     .reserve(5)
///     .external(ExternalPool::new("jobs", 4).role("jobs"))
///     .mode(FleetCheck::Warn);
/// # let _ = fleet;
/// ```
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetConfig {
    pub(super) max_replicas: Option<u32>,
    pub(super) surge: Option<u32>,
    pub(super) reserve: Option<u32>,
    #[serde(default)]
    pub(super) external: Vec<ExternalPool>,
    pub(super) mode: Option<FleetCheck>,
    pub(super) seats: Option<SeatsConfig>,
}

impl FleetConfig {
    /// A fleet of at most `max_replicas`, and `surge` more during a deploy (0 is allowed, but must be said).
    pub fn new(max_replicas: u32, surge: u32) -> Self {
        Self {
            max_replicas: Some(max_replicas),
            surge: Some(surge),
            ..Self::default()
        }
    }

    /// Connections left to others, such as people with `psql` and monitoring; in total, not for each replica.
    /// Default: 0.
    #[must_use]
    pub fn reserve(mut self, connections: u32) -> Self {
        self.reserve = Some(connections);
        self
    }

    /// Adds a pool of each replica that is not ours, such as that of a job library. Default: none.
    #[must_use]
    pub fn external(mut self, pool: ExternalPool) -> Self {
        self.external.push(pool);
        self
    }

    /// What happens when the fleet does not fit. Default: [`FleetCheck::Enforce`].
    #[must_use]
    pub fn mode(mut self, mode: FleetCheck) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Has the database enforce that no more replicas than these have connections at any time. Default: none, and nothing
    /// but the check stands between the fleet and the server.
    #[must_use]
    pub fn seats(mut self, seats: SeatsConfig) -> Self {
        self.seats = Some(seats);
        self
    }
}

impl Overlay for FleetConfig {
    fn overlay(&mut self, over: Self) {
        let Self {
            max_replicas,
            surge,
            reserve,
            external,
            mode,
            seats,
        } = over;
        replace(&mut self.max_replicas, max_replicas);
        replace(&mut self.surge, surge);
        replace(&mut self.reserve, reserve);
        replace(&mut self.mode, mode);
        replace(&mut self.seats, seats);
        if !external.is_empty() {
            self.external = external;
        }
    }
}

/// A pool in each replica that this library does not manage, but that draws on the same server.
///
/// In TOML each is a table `[[fleet.external]]`; in the environment they are `name=size`, with commas between.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{ExternalPool, FleetConfig};
///
/// let fleet = FleetConfig::new(3, 1).external(ExternalPool::new("jobs", 4).role("jobs").database("shop"));
/// # let _ = fleet;
/// ```
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalPool {
    pub(super) name: Option<String>,
    pub(super) size: Option<u32>,
    pub(super) role: Option<String>,
    pub(super) database: Option<String>,
}

impl ExternalPool {
    /// A pool of at most `size` connections in each replica.
    pub fn new(name: impl Into<String>, size: u32) -> Self {
        Self {
            name: Some(name.into()),
            size: Some(size),
            ..Self::default()
        }
    }

    /// The role it connects as, whose own limit it counts against. Default: not known; if the partitions use exactly one role, it
    /// is counted toward that, else for the server only.
    #[must_use]
    pub fn role(mut self, role: impl Into<String>) -> Self {
        self.role = Some(role.into());
        self
    }

    /// The database it connects to, whose own limit it counts against. Default: not known; if the
    /// partitions use exactly one database, it is counted toward that, else for the server only.
    #[must_use]
    pub fn database(mut self, database: impl Into<String>) -> Self {
        self.database = Some(database.into());
        self
    }
}

impl Overlay for ExternalPool {
    fn overlay(&mut self, over: Self) {
        let Self {
            name,
            size,
            role,
            database,
        } = over;
        replace(&mut self.name, name);
        replace(&mut self.size, size);
        replace(&mut self.role, role);
        replace(&mut self.database, database);
    }
}

impl Named for ExternalPool {
    const LIST: &'static str = "fleet.external";

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}
