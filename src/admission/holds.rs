//! The slots that a class holds, in the order in which they were granted.

use std::time::Duration;

use slab::Slab;

use crate::status::{CallSite, Holder, OldestHolds};

use super::estimate::nanos;

/// One held slot and its neighbours in the order of granting.
#[derive(Debug)]
struct Node {
    since: Duration,
    by: CallSite,
    seq: u64,
    state: State,
    before: Option<usize>,
    after: Option<usize>,
}

/// What became of a hold whose owner still has the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Held,
    /// The slot was taken away from its owner.
    Revoked,
    /// The slot is taken until the token comes back, and is no hold any more.
    Detached,
}

/// The held slots of one class: the oldest, the mean age, and the end of any of them, all in O(1).
#[derive(Debug, Default)]
pub(super) struct Holds {
    nodes: Slab<Node>,
    /// Those in `nodes` that are held.
    held: usize,
    oldest: Option<usize>,
    newest: Option<usize>,
    next_seq: u64,
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
        self.held
    }

    /// How many ever began.
    pub(super) const fn begun(&self) -> u64 {
        self.next_seq
    }

    /// The ages of all that run, together, in nanoseconds.
    pub(super) fn ages(&self, now: Duration) -> u128 {
        let all = u128::from(nanos(now)) * self.held as u128;
        all.saturating_sub(self.since_sum)
    }

    #[inline]
    pub(super) fn begin(&mut self, now: Duration, by: CallSite) -> (usize, u64) {
        let before = self.newest;
        let seq = self.next_seq;
        self.next_seq += 1;
        let key = self.nodes.insert(Node {
            since: now,
            by,
            seq,
            state: State::Held,
            before,
            after: None,
        });
        match before {
            Some(last) => self.nodes[last].after = Some(key),
            None => self.oldest = Some(key),
        }
        self.newest = Some(key);
        self.since_sum += u128::from(nanos(now));
        self.held += 1;
        (key, seq)
    }

    /// Ends a hold, and tells what it was.
    #[inline]
    pub(super) fn end(&mut self, key: usize) -> State {
        let node = self.nodes.remove(key);
        if node.state == State::Held {
            self.unlink(node.before, node.after, node.since);
        }
        node.state
    }

    /// Counts a hold no more although its token is not back, as `to` says; when its slot was granted, if it was held
    /// until now.
    pub(super) fn leave(&mut self, key: usize, seq: u64, to: State) -> Option<Duration> {
        let node = self.nodes.get_mut(key)?;
        if node.seq != seq || node.state != State::Held {
            return None;
        }
        node.state = to;
        let (before, after, since) = (node.before, node.after, node.since);
        self.unlink(before, after, since);
        Some(since)
    }

    #[inline]
    fn unlink(&mut self, before: Option<usize>, after: Option<usize>, since: Duration) {
        match before {
            Some(before) => self.nodes[before].after = after,
            None => self.oldest = after,
        }
        match after {
            Some(after) => self.nodes[after].before = before,
            None => self.newest = before,
        }
        self.since_sum -= u128::from(nanos(since));
        self.held -= 1;
    }

    /// What is held, oldest first: key, sequence number and holder.
    pub(super) fn iter(&self, now: Duration) -> impl Iterator<Item = (usize, u64, Holder)> {
        let after = |key: &usize| self.nodes[*key].after;
        std::iter::successors(self.oldest, after).map(move |key| {
            let node = &self.nodes[key];
            let age = now.saturating_sub(node.since);
            (key, node.seq, Holder::new(node.by, age))
        })
    }

    /// The oldest few.
    pub(super) fn oldest_few(&self, now: Duration) -> OldestHolds {
        self.iter(now).map(|(_, _, holder)| holder).collect()
    }

    pub(super) fn oldest(&self, now: Duration) -> Option<Holder> {
        let oldest = &self.nodes[self.oldest?];
        Some(Holder::new(oldest.by, now.saturating_sub(oldest.since)))
    }

    pub(super) fn mean_age(&self, now: Duration) -> Option<Duration> {
        let count = u128::try_from(self.held).ok().filter(|n| *n > 0)?;
        let mean = self.ages(now) / count;
        Some(Duration::from_nanos(
            u64::try_from(mean).unwrap_or(u64::MAX),
        ))
    }
}
