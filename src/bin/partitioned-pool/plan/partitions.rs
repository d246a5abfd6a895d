//! The sizes of the file.

use std::ops::Range;

use partitioned_pool::plan::planner::{PartitionNeed, PartitionSizes, Sizes};
use toml::Spanned;

use super::file::{File, OtherTable, PartitionTable, Size};
use super::flow::Kinds;
use super::source::Source;
use crate::output::Stop;

/// The sizes that the file states: all of them, or none.
pub(super) fn stated(
    source: &Source,
    file: &File,
    needs: &[PartitionNeed],
) -> Result<Option<Sizes>, Stop> {
    if let [_, second, ..] = file.budgets.as_slice() {
        return Err(source.at(
            &second.span(),
            "a plan has one budget that is shared; partitions without a budget have their own",
        ));
    }
    if file
        .partitions
        .iter()
        .all(|table| table.get_ref().max_connections.is_none())
    {
        return Ok(None);
    }
    let budget = file.budgets.first().map(Spanned::get_ref);
    let named = budget.map(|budget| budget.name.clone());
    let mut sizes = layout(source, &file.partitions, needs, |table, at| {
        match (&table.budget, &named) {
            (None, _) => Ok(false),
            (Some(name), Some(Some(known))) if name == known => Ok(true),
            (Some(name), _) => Err(source.at(
                at,
                format!(
                    "partition {}: there is no [[budget]] with name = \"{}\"",
                    table.name.0, name.0
                ),
            )),
        }
    })?;
    if let Some(budget) = budget.filter(|_| sizes.partitions.iter().any(|p| p.shares)) {
        (sizes.shared, sizes.hand_over) = (budget.capacity.0, budget.hand_over);
    }
    Ok(Some(sizes))
}

/// A further layout, with its name.
pub(super) fn other_layout(
    source: &Source,
    table: &Spanned<OtherTable>,
    needs: &[PartitionNeed],
    capacity: Option<u32>,
) -> Result<(String, Sizes), Stop> {
    let other = table.get_ref();
    let mut sizes = layout(source, &other.partitions, needs, |table, _| {
        Ok(table.reserved.is_some())
    })?;
    if sizes.partitions.iter().any(|p| p.shares) {
        let capacity = other.capacity.map(|count| count.0).or(capacity);
        sizes.shared = capacity.ok_or_else(|| {
            source.at(
                &table.span(),
                "state the capacity that its partitions share",
            )
        })?;
    }
    Ok((other.name.0.clone(), sizes))
}

fn layout(
    source: &Source,
    tables: &[Spanned<PartitionTable>],
    needs: &[PartitionNeed],
    shares: impl Fn(&PartitionTable, &Range<usize>) -> Result<bool, Stop>,
) -> Result<Sizes, Stop> {
    let mut sizes = Sizes::apart(Vec::new());
    for table in tables {
        let (at, table) = (table.span(), table.get_ref());
        let wrong =
            |problem: &str| source.at(&at, format!("partition {}: {problem}", table.name.0));
        if sizes.position(&table.name.0).is_some() {
            return Err(wrong("is there twice; names are unique"));
        }
        let max = table
            .max_connections
            .ok_or_else(|| wrong("state max_connections, as the others do"))?
            .0;
        let shares = shares(table, &at)?;
        let reserved = match (table.reserved, shares) {
            (Some(Size(reserved)), true) => reserved,
            (None, true) => {
                return Err(wrong(
                    "state reserved: what is guaranteed to it of the budget (0 if nothing)",
                ));
            }
            (_, false) => max,
        };
        if reserved > max {
            return Err(wrong("reserved is above max_connections"));
        }
        sizes
            .partitions
            .push(one_partition(table, needs, shares, reserved, max));
    }
    let missing = needs
        .iter()
        .find(|need| sizes.position(&need.name).is_none());
    match missing {
        Some(need) => Err(source.whole(format!("flows call the partition {}, which is not stated; add [[partition]] with its name and max_connections", need.name))),
        None => Ok(sizes),
    }
}

fn one_partition(
    table: &PartitionTable,
    needs: &[PartitionNeed],
    shares: bool,
    reserved: u32,
    max: u32,
) -> PartitionSizes {
    let name = &table.name.0;
    let need = needs.iter().find(|need| need.name == *name);
    let implied = Kinds(&[]).of(name, table.kind);
    let kind = need.map_or(implied, |need| need.kind);
    let mut sizes = PartitionSizes::borrowing(name, kind, reserved, max);
    sizes.shares = shares;
    sizes.max_waiters = table.max_waiters.map_or(sizes.max_waiters, |size| size.0);
    sizes.acquire_timeout = table
        .acquire_timeout
        .map_or(sizes.acquire_timeout, |time| time.0);
    sizes.statement_timeout = table.statement_timeout.map(|time| time.0);
    sizes
}
