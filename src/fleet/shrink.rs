//! The largest partitions that fit, where the stated ones do not.
//!
//! Every limit becomes a [`Room`]: what the shrinking partitions under it may open in one replica.
//! All partitions are raised together, each to the same share of its stated size (but at least 1),
//! until a room is full. The partitions in that room stay there; the others are raised on, until
//! every one has its stated size or is held by a room. What rounding down has left over then goes
//! out one by one, to the largest remainder first.
//!
//! What holds for the result:
//! 1. It fits every room.
//! 2. No partition below its stated size can grow by one.
//! 3. No partition is below 1, nor above its stated size.

use std::cmp::Reverse;

use super::report::{Constraint, PartitionSize};

/// The share that is the whole stated size. Shares are fractions of it: so fine that partitions of
/// any `u32` size are told apart, and small enough that a sum of sizes times shares fits a `u128`.
const WHOLE: u128 = 1 << 64;

/// `None` if not even one connection each fits, or if there is nothing to shrink.
pub(super) fn largest_partitions<'a>(
    constraints: impl Iterator<Item = &'a Constraint>,
) -> Option<Vec<PartitionSize>> {
    let plan = Plan::new(constraints)?;
    let shares = plan.shares()?;
    let sizes = plan.hand_out(&shares);
    let named = plan.names.into_iter().zip(sizes);
    let sizes: Vec<_> = named
        .map(|(name, size)| PartitionSize { name, size })
        .collect();
    (!sizes.is_empty()).then_some(sizes)
}

/// The partitions that may shrink, and the rooms they are in.
#[derive(Default)]
struct Plan {
    names: Vec<String>,
    stated: Vec<u32>,
    rooms: Vec<Room>,
}

/// What is left under one limit, in each replica, for the partitions that may shrink.
struct Room {
    free: u64,
    /// Indices of partitions. One that counts twice under the limit is here twice.
    members: Vec<usize>,
}

impl Plan {
    /// `None` if there is a limit that no sizes can keep.
    fn new<'a>(constraints: impl Iterator<Item = &'a Constraint>) -> Option<Self> {
        let mut plan = Self::default();
        for constraint in constraints {
            let room = plan.room(constraint)?;
            plan.rooms.push(room);
        }
        Some(plan)
    }

    fn room(&mut self, constraint: &Constraint) -> Option<Room> {
        let granted = constraint.granted_to_fleet()?;
        let each = granted.checked_div(constraint.replicas());
        let mut free = each.unwrap_or(u64::MAX);
        let mut members = Vec::new();
        for part in &constraint.per_replica {
            if part.may_shrink {
                members.push(self.partition(&part.name, part.size));
            } else {
                free = free.checked_sub(u64::from(part.size))?;
            }
        }
        Some(Room { free, members })
    }

    /// One name is one partition, wherever it is met.
    fn partition(&mut self, name: &str, size: u32) -> usize {
        if let Some(known) = self.names.iter().position(|n| n == name) {
            self.stated[known] = self.stated[known].max(size);
            return known;
        }
        self.names.push(name.into());
        self.stated.push(size);
        self.names.len() - 1
    }

    /// The share of its stated size at which each partition is held.
    fn shares(&self) -> Option<Vec<u128>> {
        let mut held = vec![None; self.stated.len()];
        if self.first_full(&held, 0).is_some() {
            return None;
        }
        loop {
            let share = self.greatest_share(&held);
            let Some(full) = self.first_full(&held, share + 1).filter(|_| share < WHOLE) else {
                return Some(held.into_iter().map(|h| h.unwrap_or(WHOLE)).collect());
            };
            for &member in &full.members {
                held[member].get_or_insert(share);
            }
        }
    }

    /// The greatest share for all that are not held, by bisection: the rooms are kept at `low` and
    /// not kept above `high`.
    fn greatest_share(&self, held: &[Option<u128>]) -> u128 {
        let (mut low, mut high) = (0, WHOLE);
        while low < high {
            let middle = (low + high).div_ceil(2);
            match self.first_full(held, middle) {
                None => low = middle,
                Some(_) => high = middle - 1,
            }
        }
        low
    }

    /// The first room that would overflow if all that are not held had this share.
    fn first_full(&self, held: &[Option<u128>], share: u128) -> Option<&Room> {
        let size = |&member: &usize| self.scaled(member, held[member].unwrap_or(share));
        let overflows = |room: &&Room| {
            let wanted: u128 = room.members.iter().map(size).sum();
            wanted > u128::from(room.free) * WHOLE
        };
        self.rooms.iter().find(overflows)
    }

    /// This share of the stated size, in units of `1 / WHOLE` connections, and never below one.
    fn scaled(&self, partition: usize, share: u128) -> u128 {
        let stated = self.stated[partition];
        let least = u128::from(stated.min(1)) * WHOLE;
        least.max(u128::from(stated) * share)
    }

    /// Whole sizes: rounded down, then the left-over slots to the largest remainder first.
    fn hand_out(&self, shares: &[u128]) -> Vec<u32> {
        let scaled = |p: usize| self.scaled(p, shares[p]);
        let mut sizes: Vec<u32> = (0..shares.len()).map(|p| whole(scaled(p))).collect();
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_by_key(|&p| Reverse(scaled(p) % WHOLE));
        loop {
            let grew = order.iter().filter(|&&p| self.grow(&mut sizes, p)).count();
            if grew == 0 {
                return sizes;
            }
        }
    }

    /// One more for this partition, if every room allows it.
    fn grow(&self, sizes: &mut [u32], partition: usize) -> bool {
        if sizes[partition] >= self.stated[partition] {
            return false;
        }
        sizes[partition] += 1;
        let fits = self.rooms.iter().all(|room| room.keeps(sizes));
        if !fits {
            sizes[partition] -= 1;
        }
        fits
    }
}

impl Room {
    fn keeps(&self, sizes: &[u32]) -> bool {
        let wanted: u64 = self.members.iter().map(|&m| u64::from(sizes[m])).sum();
        wanted <= self.free
    }
}

fn whole(scaled: u128) -> u32 {
    u32::try_from(scaled / WHOLE).unwrap_or(u32::MAX)
}
