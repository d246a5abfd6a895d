//! The largest partitions that fit, where the stated ones do not.
//!
//! A partition with a budget of its own is a [`Unit`], and so is a budget that several share, which
//! shrinks as a whole. Every limit becomes a [`Room`]: what the units under it may open in one
//! replica.
//!
//! Sizes are given by [`Criticality`]. Every unit starts at 1. Then the most critical have their turn:
//! all units are raised together, each by the same share of the way to its [mark](Unit::mark) for this
//! turn, until a room is full. The units in that room stay there; the others are raised on, until every one is at
//! its mark or is held by a room. What rounding down has left over then goes out one by one, to the
//! largest remainder first. Then the less critical have theirs, with what is left.
//!
//! What holds for the result:
//! 1. It fits every room.
//! 2. No unit below its stated size can grow by one.
//! 3. No unit, and no partition in one, is below 1, nor above its stated size; and the capacity of a
//!    budget is not above what its partitions may hold together.
//! 4. If the stated partitions of a budget can share it, those of the result can share its new
//!    capacity: no reservation is above what its partition may hold, they are together at most the
//!    capacity, and where a partition reserves nothing, something is left for it.
//! 5. Of partitions with a budget of their own, one is below its stated size only if there is a room
//!    in which no less critical one is above 1.

use std::cmp::{Ordering, Reverse};

use super::capacity::Criticality;
use super::constraint::{Constraint, Part, PartitionShare};
use super::report::PartitionSize;
use crate::config::HandOver;

/// One connection, and the share that is a whole mark, in fixed point: so fine that partitions of any
/// `u32` size are told apart, and small enough that a sum of sizes times a size fits a `u128`.
const WHOLE: u128 = 1 << 48;

/// `None` if not even one connection each fits, or if there is nothing to shrink.
pub(super) fn largest_partitions<'a>(
    constraints: impl Iterator<Item = &'a Constraint>,
) -> Option<Vec<PartitionSize>> {
    let plan = Plan::new(constraints)?;
    let sizes = plan.sizes()?;
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
    /// The owner has stated which of its partitions matter more, by their order.
    is_ordered: bool,
    /// As stated; that of a partition is its size.
    capacity: u32,
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
                criticality: part.criticality,
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
            let capacity = &mut self.units[known].capacity;
            *capacity = size.max(*capacity);
            return known;
        }
        let order = part.budget.as_ref().map(|b| b.hand_over);
        self.units.push(Unit {
            name: part.name.clone(),
            is_shared,
            is_ordered: order == Some(HandOver::DeclaredOrder),
            capacity: size,
            partitions: Vec::new(),
        });
        self.units.len() - 1
    }

    /// The size of each unit. `None` if not even one connection each fits.
    fn sizes(&self) -> Option<Vec<u32>> {
        let least = |unit: &Unit| unit.stated().min(1);
        let mut sizes: Vec<u32> = self.units.iter().map(least).collect();
        if !self.keep(&sizes) {
            return None;
        }
        for of in Criticality::IN_TURN {
            let turn = Turn::new(self, of, &sizes);
            sizes = turn.hand_out(&turn.shares());
        }
        Some(sizes)
    }

    /// Whether every room keeps what is opened at these sizes.
    fn keep(&self, sizes: &[u32]) -> bool {
        let opened = |m: &Member| self.units[m.unit].opened(&m.partitions, sizes[m.unit]);
        self.rooms.iter().all(|room| room.keeps(1, opened))
    }
}

/// The turn of all partitions that are at least so critical.
struct Turn<'a> {
    plan: &'a Plan,
    /// What each unit has from the turns before.
    floors: &'a [u32],
    /// What it has at most after this one.
    marks: Vec<u32>,
}

impl<'a> Turn<'a> {
    fn new(plan: &'a Plan, of: Criticality, floors: &'a [u32]) -> Self {
        let units = plan.units.iter().zip(floors);
        let marks = units.map(|(unit, floor)| unit.mark(of).max(*floor));
        Self {
            plan,
            floors,
            marks: marks.collect(),
        }
    }

    /// The size of a unit at this share of the way to its mark, in fixed point. The way begins at 0, where it
    /// was given no more than the one that everybody has.
    fn scaled(&self, unit: usize, share: u128) -> u128 {
        let (floor, mark) = (u128::from(self.floors[unit]), u128::from(self.marks[unit]));
        let start = if floor > 1 { floor } else { 0 };
        (floor * WHOLE).max(start * WHOLE + (mark - start) * share)
    }

    /// The share of the way to its mark at which each unit is held.
    fn shares(&self) -> Vec<u128> {
        let mut held = vec![None; self.marks.len()];
        loop {
            let share = self.greatest_share(&held);
            let Some(full) = self.first_full(&held, share + 1).filter(|_| share < WHOLE) else {
                return held.into_iter().map(|h| h.unwrap_or(WHOLE)).collect();
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

    /// The first room with somebody in it who is not held that would overflow if all such had this share. One
    /// that what was handed out before has filled may overflow at any share, by what was rounded down there.
    fn first_full(&self, held: &[Option<u128>], share: u128) -> Option<&Room> {
        let opened = |m: &Member| {
            let size = self.scaled(m.unit, held[m.unit].unwrap_or(share));
            self.plan.units[m.unit].scaled(&m.partitions, size)
        };
        let is_open = |room: &&Room| room.members.iter().any(|m| held[m.unit].is_none());
        let mut rooms = self.plan.rooms.iter().filter(is_open);
        rooms.find(|room| !room.keeps(WHOLE, opened))
    }

    /// Whole sizes: rounded down, then the left-over slots to the largest remainder first.
    fn hand_out(&self, shares: &[u128]) -> Vec<u32> {
        let scaled = |u: usize| self.scaled(u, shares[u]);
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

    /// As many more for this unit as its mark and every room allow, and at most `by`; found by bisection.
    fn raise(&self, sizes: &mut [u32], unit: usize, by: u32) {
        let mut low = sizes[unit];
        let mut high = self.marks[unit].min(low.saturating_add(by));
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            sizes[unit] = middle;
            if self.plan.keep(sizes) {
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
        known.criticality = known.criticality.max(stated.criticality);
        known.reserved = known.reserved.max(stated.reserved);
        known.max_connections = known.max_connections.max(stated.max_connections);
        at
    }

    /// The capacity, as far as its partitions can use it.
    fn stated(&self) -> u32 {
        usable(
            self.capacity,
            self.partitions.iter().map(|p| p.max_connections),
        )
    }

    /// What the unit needs, so that its partitions that are at least so critical have what they had: what
    /// the others left them at worst, or what is reserved for them and one more, whichever is more.
    fn mark(&self, of: Criticality) -> u32 {
        let stated = self.stated();
        let (keep, give): (Vec<_>, Vec<_>) =
            self.partitions.iter().partition(|p| p.criticality >= of);
        if give.is_empty() {
            return stated;
        }
        if keep.is_empty() {
            return stated.min(1);
        }
        let given = sum(give.iter().map(|p| p.max_connections.saturating_sub(1)));
        let at_worst = u64::from(stated).saturating_sub(given);
        let promised = sum(keep.iter().map(|p| p.reserved)) + 1;
        u32::try_from(at_worst.max(promised)).map_or(stated, |mark| mark.min(stated))
    }

    /// What these partitions of it open together where the unit has this size.
    fn opened(&self, partitions: &[usize], size: u32) -> u128 {
        let here = sum(partitions.iter().map(|&p| self.whole_max(p, size)));
        let usable = usable(size, self.maxima(size));
        here.min(u64::from(usable)).into()
    }

    /// What each partition may hold where the unit has this size.
    fn maxima(&self, size: u32) -> impl Iterator<Item = u32> {
        (0..self.partitions.len()).map(move |p| self.whole_max(p, size))
    }

    fn whole_max(&self, partition: usize, size: u32) -> u32 {
        whole(self.max(partition, u128::from(size) * WHOLE))
    }

    /// The same, both in fixed point.
    fn scaled(&self, partitions: &[usize], size: u128) -> u128 {
        let maxima = partitions.iter().map(|&p| self.max(p, size));
        size.min(maxima.sum())
    }

    /// What a partition may hold where the unit has this size, both in fixed point.
    fn max(&self, partition: usize, size: u128) -> u128 {
        let stated = |p: usize| self.partitions[p].max_connections;
        let taken = (u128::from(self.stated()) * WHOLE).saturating_sub(size);
        self.less(stated, taken, partition).min(size)
    }

    /// What is left of one of `values`, a figure for each partition, when so much was taken away from
    /// all: from those first that give way first, from equals in proportion, and nothing below 1.
    fn less(&self, values: impl Fn(usize) -> u32, taken: u128, at: usize) -> u128 {
        let spare = |of: usize| u128::from(values(of).saturating_sub(1));
        let all = |order| -> u128 {
            let same = |of: &usize| self.gives_way(*of).cmp(&self.gives_way(at)) == order;
            (0..self.partitions.len()).filter(same).map(spare).sum()
        };
        let (before, beside) = (all(Ordering::Less), all(Ordering::Equal));
        let taken = taken.saturating_sub(before * WHOLE).min(beside * WHOLE);
        let left = spare(at) * (beside * WHOLE - taken);
        u128::from(values(at).min(1)) * WHOLE + left.checked_div(beside).unwrap_or(0)
    }

    /// The lower, the earlier it gives way.
    fn gives_way(&self, partition: usize) -> usize {
        if self.is_ordered {
            return self.partitions.len() - partition;
        }
        self.partitions[partition].criticality as usize
    }

    fn proposal(&self, size: u32) -> PartitionSize {
        let mut unit = PartitionSize {
            name: self.name.clone(),
            size,
            partitions: Vec::new(),
        };
        if self.is_shared {
            let maxima: Vec<u32> = self.maxima(size).collect();
            unit.size = usable(size, maxima.iter().copied());
            unit.partitions = self.proposed(unit.size, &maxima);
        }
        unit
    }

    fn proposed(&self, size: u32, maxima: &[u32]) -> Vec<PartitionShare> {
        let reserved = self.reservations(size, maxima);
        let each = self.partitions.iter().zip(reserved).zip(maxima);
        let share = |((stated, reserved), max): ((&PartitionShare, u32), &u32)| PartitionShare {
            reserved,
            max_connections: *max,
            ..stated.clone()
        };
        each.map(share).collect()
    }

    /// As stated, as long as that leaves something for whoever reserves nothing; else less, by who gives
    /// way first, and down to 0 only where there is no other way.
    fn reservations(&self, size: u32, maxima: &[u32]) -> Vec<u32> {
        let stated = self.partitions.iter().zip(maxima);
        let stated: Vec<u32> = stated.map(|(p, max)| p.reserved.min(*max)).collect();
        let excess = needed(&stated).saturating_sub(u64::from(size));
        let less = |p: usize| whole(self.less(|p| stated[p], u128::from(excess) * WHOLE, p));
        let mut reserved: Vec<u32> = (0..stated.len()).map(less).collect();
        let mut order: Vec<usize> = (0..stated.len()).rev().collect();
        order.sort_by_key(|&p| self.gives_way(p));
        for p in order {
            if needed(&reserved) > u64::from(size) {
                reserved[p] = 0;
            }
        }
        reserved
    }
}

/// The capacity that these reservations need by invariant 4.
fn needed(reserved: &[u32]) -> u64 {
    sum(reserved.iter().copied()) + u64::from(reserved.contains(&0))
}

impl Room {
    /// Whether what its members open has room; it is given in units of `1 / unit` connections.
    fn keeps(&self, unit: u128, opened: impl Fn(&Member) -> u128) -> bool {
        self.members.iter().map(opened).sum::<u128>() <= u128::from(self.free) * unit
    }
}

/// Of a capacity, what partitions can use of which each may hold so much.
fn usable(capacity: u32, maxima: impl Iterator<Item = u32>) -> u32 {
    u32::try_from(sum(maxima)).map_or(capacity, |all| all.min(capacity))
}

fn sum(figures: impl Iterator<Item = u32>) -> u64 {
    figures.map(u64::from).sum()
}

fn whole(scaled: u128) -> u32 {
    u32::try_from(scaled / WHOLE).unwrap_or(u32::MAX)
}
