//! The slots that a class holds, in the order in which they were granted.

use std::time::Duration;

use slab::Slab;

use crate::status::{CallSite, Holder};

use super::estimate::nanos;

/// One held slot and its neighbours in the order of granting.
#[derive(Debug)]
struct Node {
    since: Duration,
    by: CallSite,
    before: Option<usize>,
    after: Option<usize>,
}

/// The held slots of one class: the oldest, the mean age, and the end of any of them, all in O(1).
#[derive(Debug, Default)]
pub(super) struct Holds {
    nodes: Slab<Node>,
    oldest: Option<usize>,
    newest: Option<usize>,
    /// Sum of all `since`, in nanoseconds.
    since_sum: u128,
}

impl Holds {
    pub(super) fn with_capacity(slots: u32) -> Self {
        Self {
            nodes: Slab::with_capacity(slots.min(1024) as usize),
            ..Self::default()
        }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    #[inline]
    pub(super) fn begin(&mut self, now: Duration, by: CallSite) -> usize {
        let before = self.newest;
        let key = self.nodes.insert(Node {
            since: now,
            by,
            before,
            after: None,
        });
        match before {
            Some(last) => self.nodes[last].after = Some(key),
            None => self.oldest = Some(key),
        }
        self.newest = Some(key);
        self.since_sum += u128::from(nanos(now));
        key
    }

    #[inline]
    pub(super) fn end(&mut self, key: usize) {
        let node = self.nodes.remove(key);
        match node.before {
            Some(before) => self.nodes[before].after = node.after,
            None => self.oldest = node.after,
        }
        match node.after {
            Some(after) => self.nodes[after].before = node.before,
            None => self.newest = node.before,
        }
        self.since_sum -= u128::from(nanos(node.since));
    }

    pub(super) fn oldest(&self, now: Duration) -> Option<Holder> {
        let oldest = &self.nodes[self.oldest?];
        Some(Holder::new(oldest.by, now.saturating_sub(oldest.since)))
    }

    pub(super) fn mean_age(&self, now: Duration) -> Option<Duration> {
        let count = u128::try_from(self.nodes.len()).ok().filter(|n| *n > 0)?;
        let sum = u128::from(nanos(now)) * count;
        let mean = sum.saturating_sub(self.since_sum) / count;
        Some(Duration::from_nanos(
            u64::try_from(mean).unwrap_or(u64::MAX),
        ))
    }
}
