//! The waiting callers of one class, first in, first out, with removal from anywhere in O(1).

use slab::Slab;

use crate::status::CallSite;

/// A waiter and its neighbours in the queue.
#[derive(Debug)]
struct Node<W> {
    waiter: W,
    by: CallSite,
    seq: u64,
    before: Option<usize>,
    after: Option<usize>,
}

/// A first-in-first-out queue; its keys stay valid until the waiter is taken out.
#[derive(Debug)]
pub(super) struct Queue<W> {
    nodes: Slab<Node<W>>,
    head: Option<usize>,
    tail: Option<usize>,
}

impl<W> Queue<W> {
    pub(super) fn new() -> Self {
        Self {
            nodes: Slab::new(),
            head: None,
            tail: None,
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

    pub(super) fn push(&mut self, waiter: W, by: CallSite, seq: u64) -> usize {
        let before = self.tail;
        let key = self.nodes.insert(Node {
            waiter,
            by,
            seq,
            before,
            after: None,
        });
        match before {
            Some(last) => self.nodes[last].after = Some(key),
            None => self.head = Some(key),
        }
        self.tail = Some(key);
        key
    }

    pub(super) fn pop(&mut self) -> Option<(W, CallSite)> {
        let key = self.head?;
        Some(self.unlink(key))
    }

    /// Takes the waiter at `key` out, if it is still the one that was given `seq`.
    pub(super) fn remove(&mut self, key: usize, seq: u64) -> Option<W> {
        match self.nodes.get(key) {
            Some(node) if node.seq == seq => Some(self.unlink(key).0),
            _ => None,
        }
    }

    fn unlink(&mut self, key: usize) -> (W, CallSite) {
        let node = self.nodes.remove(key);
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
