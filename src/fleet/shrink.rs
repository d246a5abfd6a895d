//! The largest partitions that fit, where the stated ones do not.
//!
//! A partition with a budget of its own is a [`Unit`], and so is a budget that several share, which
//! shrinks as a whole. Every limit becomes a [`Room`]: what the units under it may open in one
//! replica. All units are raised together, each to the same share of its stated size (but at least
//! 1), until a room is full. The units in that room stay there; the others are raised on, until
//! every one has its stated size or is held by a room. What rounding down has left over then goes
//! out one by one, to the largest remainder first.
//!
//! What holds for the result:
//! 1. It fits every room.
//! 2. No unit below its stated size can grow by one.
//! 3. No unit, and no partition in one, is below 1, nor above its stated size.
//! 4. If the stated partitions of a budget can share it, those of the result can share its new
//!    capacity: no reservation is above what its partition may hold, they are together at most the
//!    capacity, and where a partition reserves nothing, something is left for it.

use std::cmp::Reverse;

use super::report::{Constraint, Part, PartitionShare, PartitionSize};

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
    let units = plan.units.iter().zip(sizes);
    let sizes: Vec<_> = units.map(|(unit, size)| unit.proposal(size)).collect();
    (!sizes.is_empty()).then_some(sizes)
}

/// What may shrink, and the rooms it is in.
#[derive(Default)]
struct Plan {
    units: Vec<Unit>,
    rooms: Vec<Room>,
}

/// A partition, or partitions that share a budget.
struct Unit {
    name: String,
    is_shared: bool,
    /// The stated size; of a budget, its capacity.
    stated: u32,
    /// What was stated for each partition.
    partitions: Vec<PartitionShare>,
}

/// What is left under one limit, in each replica, for the units that may shrink.
struct Room {
    free: u64,
    members: Vec<Member>,
}

/// The part of a unit that is under a limit.
struct Member {
    unit: usize,
    /// Indices of partitions of the unit. One that counts twice under the limit is here twice.
    partitions: Vec<usize>,
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
                members.push(self.member(part));
            } else {
                free = free.checked_sub(u64::from(part.size))?;
            }
        }
        Some(Room { free, members })
    }

    fn member(&mut self, part: &Part) -> Member {
        let index = self.unit(part);
        let unit = &mut self.units[index];
        let partitions = match &part.budget {
            Some(budget) => budget
                .partitions
                .iter()
                .map(|p| unit.partition(p))
                .collect(),
            None => vec![unit.partition(&PartitionShare {
                name: part.name.clone(),
                reserved: part.size,
                max_connections: part.size,
            })],
        };
        Member {
            unit: index,
            partitions,
        }
    }

    /// One name is one unit, wherever it is met.
    fn unit(&mut self, part: &Part) -> usize {
        let is_shared = part.budget.is_some();
        let size = part.budget.as_ref().map_or(part.size, |b| b.capacity);
        let same = |u: &Unit| u.name == part.name && u.is_shared == is_shared;
        if let Some(known) = self.units.iter().position(same) {
            let stated = &mut self.units[known].stated;
            *stated = size.max(*stated);
            return known;
        }
        self.units.push(Unit {
            name: part.name.clone(),
            is_shared,
            stated: size,
            partitions: Vec::new(),
        });
        self.units.len() - 1
    }

    /// The share of its stated size at which each unit is held.
    fn shares(&self) -> Option<Vec<u128>> {
        let mut held = vec![None; self.units.len()];
        if self.first_full(&held, 0).is_some() {
            return None;
        }
        loop {
            let share = self.greatest_share(&held);
            let Some(full) = self.first_full(&held, share + 1).filter(|_| share < WHOLE) else {
                return Some(held.into_iter().map(|h| h.unwrap_or(WHOLE)).collect());
            };
            for member in &full.members {
                held[member.unit].get_or_insert(share);
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
        let size = |m: &Member| self.units[m.unit].scaled(m, held[m.unit].unwrap_or(share));
        let overflows = |room: &&Room| {
            let wanted: u128 = room.members.iter().map(size).sum();
            wanted > u128::from(room.free) * WHOLE
        };
        self.rooms.iter().find(overflows)
    }

    /// Whole sizes: rounded down, then the left-over slots to the largest remainder first.
    fn hand_out(&self, shares: &[u128]) -> Vec<u32> {
        let scaled = |u: usize| scaled(self.units[u].stated, shares[u]);
        let mut sizes: Vec<u32> = (0..shares.len()).map(|u| whole(scaled(u))).collect();
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_by_key(|&u| Reverse(scaled(u) % WHOLE));
        for _ in &order {
            for &unit in &order {
                self.raise(&mut sizes, unit, 1);
            }
        }
        // Rounding has left no more than that, but for the partitions inside of a budget.
        for &unit in &order {
            self.raise(&mut sizes, unit, u32::MAX);
        }
        sizes
    }

    /// As many more for this unit as every room allows, and at most `by`; found by bisection.
    fn raise(&self, sizes: &mut [u32], unit: usize, by: u32) {
        let mut low = sizes[unit];
        let mut high = self.units[unit].stated.min(low.saturating_add(by));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            sizes[unit] = middle;
            if self.rooms.iter().all(|room| room.keeps(&self.units, sizes)) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        sizes[unit] = low;
    }
}

impl Unit {
    /// The index of the partition. Stated in several sizes, it has the largest.
    fn partition(&mut self, stated: &PartitionShare) -> usize {
        let same = |p: &PartitionShare| p.name == stated.name;
        let Some(at) = self.partitions.iter().position(same) else {
            self.partitions.push(stated.clone());
            return self.partitions.len() - 1;
        };
        let known = &mut self.partitions[at];
        known.reserved = known.reserved.max(stated.reserved);
        known.max_connections = known.max_connections.max(stated.max_connections);
        at
    }

    /// What the partitions of `member` open together at this share of their stated sizes and of the
    /// unit's; in units of `1 / WHOLE` connections.
    fn scaled(&self, member: &Member, share: u128) -> u128 {
        let stated = member.partitions.iter().map(|&p| &self.partitions[p]);
        let together = stated.map(|p| scaled(p.max_connections, share)).sum();
        scaled(self.stated, share).min(together)
    }

    /// What they open together where the unit has this size.
    fn opened(&self, member: &Member, size: u32) -> u64 {
        let maxima = member
            .partitions
            .iter()
            .map(|&p| u64::from(self.max(p, size)));
        u64::from(size).min(maxima.sum())
    }

    /// What a partition may hold where the unit has this size: at least 1.
    fn max(&self, partition: usize, size: u32) -> u32 {
        let stated = self.partitions[partition].max_connections;
        let least = stated.min(1);
        self.in_proportion(stated, size).max(least).min(size)
    }

    /// `stated` of the stated size is so much of this one, rounded down.
    fn in_proportion(&self, stated: u32, size: u32) -> u32 {
        let part = u64::from(stated) * u64::from(size);
        let part = part.checked_div(u64::from(self.stated));
        part.map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX))
    }

    fn proposal(&self, size: u32) -> PartitionSize {
        let mut partitions = Vec::new();
        if self.is_shared {
            partitions = self.proposed(size);
        }
        PartitionSize {
            name: self.name.clone(),
            size,
            partitions,
        }
    }

    fn proposed(&self, size: u32) -> Vec<PartitionShare> {
        let share = |(at, reserved): (usize, u32)| PartitionShare {
            name: self.partitions[at].name.clone(),
            reserved,
            max_connections: self.max(at, size),
        };
        let reserved = self.reservations(size).into_iter();
        reserved.enumerate().map(share).collect()
    }

    /// As stated, else in proportion but nothing down to 0, else in proportion: the first that
    /// leaves something for whoever reserves nothing. In proportion always does.
    fn reservations(&self, size: u32) -> Vec<u32> {
        let each = |of: &dyn Fn(u32) -> u32| -> Vec<u32> {
            let stated = self.partitions.iter().enumerate();
            let reserved = stated.map(|(at, p)| of(p.reserved).min(self.max(at, size)));
            reserved.collect()
        };
        let proportion = |stated| self.in_proportion(stated, size);
        let stated = each(&|stated| stated);
        let kept = each(&|stated| proportion(stated).max(stated.min(1)));
        let candidates = [stated, kept].into_iter();
        let first = candidates
            .into_iter()
            .find(|reserved| leaves_enough(reserved, size));
        first.unwrap_or_else(|| each(&proportion))
    }
}

/// Invariant 4.
fn leaves_enough(reserved: &[u32], size: u32) -> bool {
    let sum: u64 = reserved.iter().map(|r| u64::from(*r)).sum();
    let needs_more = reserved.contains(&0);
    sum + u64::from(needs_more) <= u64::from(size)
}

impl Room {
    fn keeps(&self, units: &[Unit], sizes: &[u32]) -> bool {
        let opened = |m: &Member| units[m.unit].opened(m, sizes[m.unit]);
        let wanted: u64 = self.members.iter().map(opened).sum();
        wanted <= self.free
    }
}

/// This share of a stated size, in units of `1 / WHOLE` connections, and never below one.
fn scaled(stated: u32, share: u128) -> u128 {
    let least = u128::from(stated.min(1)) * WHOLE;
    least.max(u128::from(stated) * share)
}

fn whole(scaled: u128) -> u32 {
    u32::try_from(scaled / WHOLE).unwrap_or(u32::MAX)
}
