//! What partitions on one server may share.

use serde::Deserialize;

/// Which partition of a budget is looked at first when a slot comes free. As text: `"oldest_first"` or
/// `"declared_order"`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HandOver {
    /// The caller that has waited longest, whatever its partition. The default: nobody starves.
    #[default]
    OldestFirst,
    /// The partitions in the order in which they are stated: the most critical first.
    DeclaredOrder,
}
