//! Seats: the limiter that a fleet shares, as its owner states it.

use std::time::Duration;

use serde::Deserialize;

use super::leaf::{Overlay, replace};
use super::limit::{self, Limit};
use super::url::DatabaseUrl;

/// The default of [`SeatsConfig::lease`].
pub(super) const DEFAULT_LEASE: Duration = Duration::from_secs(15);

/// The default of [`SeatsConfig::table`]: that of the migration.
pub(super) const DEFAULT_TABLE: &str = "partitioned_pool_seats";

/// A fleet whose size nobody can promise: at most so many of its replicas may have connections, whatever an autoscaler
/// does. Each takes a row of a table before it opens any.
///
/// In TOML this is the table `[fleet.seats]`; in the environment, `.._FLEET_SEATS_COUNT` and so on.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::{FleetConfig, SeatsConfig};
///
/// let seats = SeatsConfig::new(8).lease(Duration::from_secs(10)).wait(Duration::from_secs(60));
/// let fleet = FleetConfig::new(8, 0).seats(seats);
/// # let _ = fleet;
/// ```
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeatsConfig {
    pub(super) count: Option<u32>,
    #[serde(default, deserialize_with = "limit::duration")]
    pub(super) lease: Option<Duration>,
    pub(super) wait: Option<Limit>,
    pub(super) table: Option<String>,
    pub(super) url: Option<DatabaseUrl>,
}

impl SeatsConfig {
    /// So many seats, from 1 to 9,999. There is no default: it is how many replicas the server has room for.
    pub fn new(count: u32) -> Self {
        Self {
            count: Some(count),
            ..Self::default()
        }
    }

    /// How long a seat stays taken when its replica says nothing any more. Default: 15 s, from 1 s to 1 h.
    ///
    /// It is renewed every fifth of that, and nothing is admitted in the last fifth. So with the default the database may be
    /// out of reach for 9 s before anything is refused, which is longer than most restarts take; and the seat of a
    /// replica that was killed comes free after 15 s, which is about when its successor has started.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How long a replica waits for a seat when it boots and none is free; [`Limit::Off`] refuses at once. Default: twice
    /// the lease, in which the seat of a replica that was killed comes free.
    #[must_use]
    pub fn wait(mut self, wait: impl Into<Limit>) -> Self {
        self.wait = Some(wait.into());
        self
    }

    /// The table, as `table` or `schema.table`, of lower-case letters, digits and `_`. Default: `partitioned_pool_seats`,
    /// wherever the role's `search_path` finds it.
    #[must_use]
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = Some(table.into());
        self
    }

    /// Where the table is: a server that takes writes, and not through a pooler. Default: the URL of the pool, or that of
    /// `transactional` where the pool has none.
    #[must_use]
    pub fn url(mut self, url: impl Into<DatabaseUrl>) -> Self {
        self.url = Some(url.into());
        self
    }
}

impl Overlay for SeatsConfig {
    fn overlay(&mut self, over: Self) {
        let Self {
            count,
            lease,
            wait,
            table,
            url,
        } = over;
        replace(&mut self.count, count);
        replace(&mut self.lease, lease);
        replace(&mut self.wait, wait);
        replace(&mut self.table, table);
        replace(&mut self.url, url);
    }
}
