//! What partitions on one server may share.

use serde::{Deserialize, Serialize};

use super::leaf::{Named, Overlay, replace};

/// Which partition of a budget is looked at first when a slot comes free. As text: `"oldest_first"` or
/// `"declared_order"`.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{BudgetConfig, HandOver};
///
/// let by_importance = BudgetConfig::new("main", 30).hand_over(HandOver::DeclaredOrder);
/// assert_eq!(HandOver::default(), HandOver::OldestFirst);
/// # let _ = by_importance;
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HandOver {
    /// The caller that has waited longest, whatever its partition. The default: nobody starves.
    #[default]
    OldestFirst,
    /// The partitions in the order in which they are stated: the most critical first.
    DeclaredOrder,
}

/// A budget that several partitions share, as its owner states it: the connections that one replica may have to
/// one server, for all of them together.
///
/// A partition that names no budget has one of its own, of its `max_connections`, and lends nothing. The
/// partitions that name this one each state what is guaranteed to them
/// ([`reserved`](super::PartitionConfig::reserved)) and the most that they may hold
/// (`max_connections`); what is not reserved goes to whoever asks.
/// A slot that is reserved is never lent, so a partition below its reservation waits for nobody.
///
/// Their roles and databases may differ, but a budget is on one server.
///
/// In TOML each is a table `[[budget]]`, with `name`, `capacity` and `hand_over` as keys.
///
/// # Examples
/// Twelve of thirty slots are kept for checkout; reports may take up to ten of the others while they are free:
/// ```
/// use partitioned_pool::config::{BudgetConfig, FleetConfig, HandOver, PartitionConfig, PoolConfig};
///
/// let settings = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(3, 1))
///     .budget(BudgetConfig::new("main", 30).hand_over(HandOver::DeclaredOrder))
///     .transactional(PartitionConfig::transactional(25).budget("main").reserved(12))
///     .analytical(PartitionConfig::analytical(10).budget("main").reserved(0))
///     .resolve()?;
/// assert_eq!(settings.budget_of(1).capacity.get(), 30);
/// # Ok::<(), partitioned_pool::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetConfig {
    pub(super) name: Option<String>,
    pub(super) capacity: Option<u32>,
    pub(super) hand_over: Option<HandOver>,
}

impl BudgetConfig {
    /// A budget of `capacity` connections in each replica.
    ///
    /// Its name is of `a-z`, `0-9`, `_` and `-`, at most 32 characters long, and not that of a partition which
    /// does not draw from it. There is no default for the capacity: it must be at least what the partitions
    /// reserve together, and at least the `max_connections` of each.
    pub fn new(name: impl Into<String>, capacity: u32) -> Self {
        Self {
            name: Some(name.into()),
            capacity: Some(capacity),
            hand_over: None,
        }
    }

    /// Which partition is looked at first when a slot comes free. Default: [`HandOver::OldestFirst`].
    #[must_use]
    pub fn hand_over(mut self, hand_over: HandOver) -> Self {
        self.hand_over = Some(hand_over);
        self
    }
}

impl Overlay for BudgetConfig {
    fn overlay(&mut self, over: Self) {
        let Self {
            name,
            capacity,
            hand_over,
        } = over;
        replace(&mut self.name, name);
        replace(&mut self.capacity, capacity);
        replace(&mut self.hand_over, hand_over);
    }
}

impl Named for BudgetConfig {
    const LIST: &'static str = "budget";

    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}
