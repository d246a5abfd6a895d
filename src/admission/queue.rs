//! The waiting callers of one class, first in, first out, with removal from anywhere in O(1).

use std::time::Duration;

use slab::Slab;

use crate::status::CallSite;

use super::estimate::nanos;

/// A waiter and its neighbours in the queue.
#[derive(Debug)]
struct Node<W> {
    waiter: W,
    by: CallSite,
    seq: u64,
    since: Duration,
    before: Option<usize>,
    after: Option<usize>,
}

/// A first-in-first-out queue; its keys stay valid until the waiter is taken out.
#[derive(Debug)]
pub(super) struct Queue<W> {
    nodes: Slab<Node<W>>,
    head: Option<usize>,
    tail: Option<usize>,
    /// Sum of all `since`, in nanoseconds.
    since_sum: u128,
    /// How long those waited that are out again, together, in nanoseconds.
    waited: u128,
    /// The most at a time since [`restart_peak`](Self::restart_peak).
    peak: usize,
}

impl<W> Queue<W> {
    pub(super) fn new() -> Self {
        Self {
            nodes: Slab::new(),
            head: None,
            tail: None,
            since_sum: 0,
            waited: 0,
            peak: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// The sequence number of the waiter at the head.
    pub(super) fn head_seq(&self) -> Option<u64> {
        self.head.map(|key| self.nodes[key].seq)
    }

    /// How long everyone who ever came in here has waited until `now`, together, in nanoseconds.
    pub(super) fn waited(&self, now: Duration) -> u128 {
        let ages = u128::from(nanos(now)) * self.nodes.len() as u128;
        self.waited + ages.saturating_sub(self.since_sum)
    }

    pub(super) const fn peak(&self) -> usize {
        self.peak
    }

    pub(super) fn restart_peak(&mut self) {
        self.peak = self.len();
    }

    pub(super) fn push(&mut self, waiter: W, by: CallSite, seq: u64, now: Duration) -> usize {
        let before = self.tail;
        let key = self.nodes.insert(Node {
            waiter,
            by,
            seq,
            since: now,
            before,
            after: None,
        });
        match before {
            Some(last) => self.nodes[last].after = Some(key),
            None => self.head = Some(key),
        }
        self.tail = Some(key);
        self.since_sum += u128::from(nanos(now));
        self.peak = self.peak.max(self.nodes.len());
        key
    }

    pub(super) fn pop(&mut self, now: Duration) -> Option<(W, CallSite)> {
        let key = self.head?;
        Some(self.unlink(key, now))
    }

    /// Takes the waiter at `key` out, if it is still the one that was given `seq`.
    pub(super) fn remove(&mut self, key: usize, seq: u64, now: Duration) -> Option<W> {
        match self.nodes.get(key) {
            Some(node) if node.seq == seq => Some(self.unlink(key, now).0),
            _ => None,
        }
    }

    fn unlink(&mut self, key: usize, now: Duration) -> (W, CallSite) {
        let node = self.nodes.remove(key);
        self.since_sum -= u128::from(nanos(node.since));
        self.waited += u128::from(nanos(now.saturating_sub(node.since)));
        match node.before {
            Some(before) => self.nodes[before].after = node.after,
            None => self.head = node.after,
        }
        match node.after {
            Some(after) => self.nodes[after].before = node.before,
            None => self.tail = node.before,
        }
        (node.waiter, node.by)
    }
}
