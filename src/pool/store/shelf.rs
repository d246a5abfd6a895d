//! What a class has in the store: its counts, its idle connections, and who seeks one.

use std::collections::VecDeque;

use crate::error::Failure;
use crate::pool::pace::Pace;

use super::Link;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Stage {
    Opening,
    Idle,
    Used,
    Returning,
    Closing,
    Ghost,
    /// It has left the pool, and is open.
    Detached,
    /// Nobody holds it, and it is being asked whether it lives.
    Checking,
}

/// How many connections of a class stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::pool) struct Counts {
    pub(super) stages: [u32; 8],
    /// Slots held by the return path rather than by callers.
    pub(in crate::pool) slots_returning: u32,
}

impl Counts {
    #[inline]
    pub(in crate::pool) fn of(&self, stage: Stage) -> u32 {
        self.stages[stage as usize]
    }

    pub(in crate::pool) fn total(&self) -> u32 {
        self.stages.iter().sum()
    }
}

/// A seeker that has no answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    pub(super) key: usize,
    pub(super) seq: u64,
    /// It waits for one of its own class that is on the way back.
    pub(super) patient: bool,
}

/// What a store must know of a class.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct ClassOfStore {
    /// Places that are guaranteed to it.
    pub(in crate::pool) reserved: u32,
    /// The most connections that may count for it.
    pub(in crate::pool) max: u32,
    /// Classes with the same wardrobe can dress each other's connections.
    pub(in crate::pool) wardrobe: usize,
}

/// What a class has in the store.
pub(super) struct Shelf<C> {
    pub(super) rules: ClassOfStore,
    pub(super) open: bool,
    pub(super) counts: Counts,
    pub(super) pace: Pace,
    /// What the last failed opening reported, while the pace is not free.
    pub(super) trouble: Option<Failure>,
    pub(super) idle: Vec<Box<Link<C>>>,
    /// Its seekers that have no answer, oldest first.
    pub(super) seeking: VecDeque<Seat>,
}

impl<C> Shelf<C> {
    pub(super) fn new(rules: ClassOfStore) -> Self {
        Self {
            rules,
            open: true,
            pace: Pace::Free,
            trouble: None,
            counts: Counts::default(),
            idle: Vec::new(),
            seeking: VecDeque::new(),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.counts.total() < self.rules.max
    }

    /// Whether nothing of its own keeps it from opening one more.
    pub(super) fn may_open(&self) -> bool {
        self.open && self.has_room() && self.pace.allows(self.counts.of(Stage::Opening))
    }

    /// Places that are reserved for it and that it does not take.
    pub(super) fn lack(&self) -> u32 {
        self.rules.reserved.saturating_sub(self.counts.total())
    }

    /// Whether it has more than is reserved for it.
    pub(super) fn has_surplus(&self) -> bool {
        self.counts.total() > self.rules.reserved
    }

    fn patient(&self) -> usize {
        self.seeking.iter().filter(|seat| seat.patient).count()
    }

    /// Seekers for whom nothing is on its way.
    pub(super) fn unserved(&self) -> usize {
        let opening = self.counts.of(Stage::Opening) as usize;
        (self.seeking.len() - self.patient()).saturating_sub(opening)
    }

    /// Whether more of its connections are on the way back than seekers wait for.
    pub(super) fn is_about_to_have_one(&self) -> bool {
        self.counts.of(Stage::Returning) as usize > self.patient()
    }
}
