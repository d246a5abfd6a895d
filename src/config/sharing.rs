//! Which partition draws from which budget, and whether the partitions of one can share it.
//!
//! What is accepted here, the admission ledger can keep: the conditions are the same, in the words of the owner.

use std::num::NonZeroU32;

use super::{
    budget::{BudgetConfig, HandOver},
    leaf::{Named, is_name},
    partition::PartitionConfig,
    resolve::Check,
    rules,
    settings::{BudgetSettings, PartitionSettings},
};

/// A budget as stated, with what of it could be accepted.
pub(super) struct Stated {
    path: String,
    /// `None` if partitions cannot name it.
    name: Option<String>,
    /// `None` if it is wrong, which was reported.
    capacity: Option<NonZeroU32>,
    hand_over: HandOver,
}

/// The budgets, each for itself.
pub(super) fn stated(check: &mut Check<'_>, budgets: &[BudgetConfig]) -> Vec<Stated> {
    check.unique(budgets);
    let mut all: Vec<Stated> = Vec::new();
    for (index, budget) in budgets.iter().enumerate() {
        let mut next = stated_one(check, budget, budget.path(index));
        let again = all.iter().any(|known| known.name == next.name);
        next.name = next.name.filter(|_| !again);
        all.push(next);
    }
    all
}

fn stated_one(check: &mut Check<'_>, budget: &BudgetConfig, path: String) -> Stated {
    let BudgetConfig {
        name,
        capacity,
        hand_over,
    } = budget;
    let missing =
        "state how many connections its partitions may have together; there is no default";
    let capacity = rules::size(*capacity, missing);
    Stated {
        name: check.accept(&format!("{path}.name"), rules::name(name.as_deref())),
        capacity: check.accept(&format!("{path}.capacity"), capacity),
        hand_over: hand_over.unwrap_or_default(),
        path,
    }
}

/// Each partition in its budget: one that it names, or one of its own.
pub(super) fn budgets(
    check: &mut Check<'_>,
    stated: &[Stated],
    configs: &[PartitionConfig],
    partitions: &[PartitionSettings],
) -> Vec<BudgetSettings> {
    let paths = configs.iter().enumerate().map(|(at, it)| it.path(at));
    let paths: Vec<_> = paths.collect();
    let known = |config: &PartitionConfig| {
        let named = |budget: &Stated| budget.name.is_some() && budget.name == config.budget;
        stated.iter().position(named)
    };
    let drawn: Vec<_> = configs.iter().map(known).collect();
    report_unknown(check, stated, configs, &paths, &drawn);

    let mut budgets = Vec::new();
    for (index, budget) in stated.iter().enumerate() {
        let drawing = |at: &usize| drawn[*at] == Some(index);
        let members = (0..configs.len()).filter(drawing).collect();
        let share = Share {
            budget,
            configs,
            partitions,
            paths: &paths,
            members,
        };
        share.check(check);
        budgets.extend(share.settings());
    }
    let alone = (0..configs.len()).filter(|at| configs[*at].budget.is_none());
    budgets.extend(alone.map(|at| of_its_own(at, &partitions[at])));
    budgets.sort_by_key(|budget| budget.partitions.first().copied());
    budgets
}

fn of_its_own(index: usize, partition: &PartitionSettings) -> BudgetSettings {
    BudgetSettings {
        name: partition.name.clone(),
        capacity: partition.max_connections,
        hand_over: HandOver::default(),
        partitions: vec![index],
    }
}

/// The name that was written is not repeated: it may be a secret in the wrong place.
fn report_unknown(
    check: &mut Check<'_>,
    stated: &[Stated],
    configs: &[PartitionConfig],
    paths: &[String],
    drawn: &[Option<usize>],
) {
    let names: Vec<_> = stated.iter().filter_map(|it| it.name.as_deref()).collect();
    let problem = if names.is_empty() {
        "is not a budget; none is stated: state one with this name and a capacity, or leave this out".to_owned()
    } else {
        format!("is not a budget; stated are {}", names.join(", "))
    };
    for (at, config) in configs.iter().enumerate() {
        if config.budget.is_some() && drawn[at].is_none() {
            check.report(&format!("{}.budget", paths[at]), problem.as_str());
        }
    }
}

/// A budget and the partitions that draw from it.
///
/// What was not accepted counts as 0 in the sums, so that no problem is reported that is only another one's echo.
struct Share<'a> {
    budget: &'a Stated,
    configs: &'a [PartitionConfig],
    partitions: &'a [PartitionSettings],
    paths: &'a [String],
    members: Vec<usize>,
}

impl Share<'_> {
    fn settings(&self) -> Option<BudgetSettings> {
        Some(BudgetSettings {
            name: self.budget.name.clone()?,
            capacity: self.budget.capacity?,
            hand_over: self.budget.hand_over,
            partitions: self.members.clone(),
        })
    }

    fn check(&self, check: &mut Check<'_>) {
        let Some(name) = self.budget.name.as_deref() else {
            return;
        };
        self.check_name(check, name);
        if self.members.is_empty() {
            let problem = format!(
                "no partition draws from it; state budget = \"{name}\" in the partitions that do, or leave it out"
            );
            check.report(&self.budget.path, problem);
        }
        if let Some(capacity) = self.budget.capacity {
            self.check_sizes(check, name, capacity.get());
            self.check_reserved(check, name, capacity.get());
            self.check_idle(check, capacity.get());
        }
    }

    /// In a report, one name is one thing.
    fn check_name(&self, check: &mut Check<'_>, name: &str) {
        let outside = |(at, it): (usize, &PartitionConfig)| {
            it.name() == Some(name) && !self.members.contains(&at)
        };
        if self.configs.iter().enumerate().any(outside) {
            check.report(
                &self.budget.path,
                "is also the name of a partition that does not draw from it; rename one of them",
            );
        }
    }

    fn check_sizes(&self, check: &mut Check<'_>, name: &str, capacity: u32) {
        for &at in &self.members {
            let max = self.partitions[at].max_connections.get();
            if max > capacity {
                let problem = format!(
                    "{max} is above the capacity of its budget {name}, which is {capacity}"
                );
                check.report(&format!("{}.max_connections", self.paths[at]), problem);
            }
        }
    }

    fn check_reserved(&self, check: &mut Check<'_>, name: &str, capacity: u32) {
        let reserved = self.sum(|partition| partition.reserved);
        if reserved > u64::from(capacity) {
            let parts = self.sum_text(|partition| partition.reserved);
            let problem =
                format!("{capacity} is below what its partitions reserve: {parts} = {reserved}");
            check.report(&self.capacity_field(), problem);
        }
        let out = self
            .members
            .iter()
            .filter(|at| self.configs[**at].reserved == Some(0));
        for &at in out.filter(|_| reserved == u64::from(capacity)) {
            let problem = format!(
                "is 0, and the others reserve all {capacity} of the budget {name}: its callers would wait for ever; \
                 reserve 1 for it, or less for the others"
            );
            check.report(&format!("{}.reserved", self.paths[at]), problem);
        }
    }

    fn check_idle(&self, check: &mut Check<'_>, capacity: u32) {
        let idle = self.sum(|partition| partition.min_idle);
        if idle > u64::from(capacity) {
            let parts = self.sum_text(|partition| partition.min_idle);
            let problem =
                format!("{capacity} is below the min_idle of its partitions: {parts} = {idle}");
            check.report(&self.capacity_field(), problem);
        }
    }

    fn capacity_field(&self) -> String {
        format!("{}.capacity", self.budget.path)
    }

    fn sum(&self, of: fn(&PartitionSettings) -> u32) -> u64 {
        let members = self.members.iter().map(|at| &self.partitions[*at]);
        members.map(|partition| u64::from(of(partition))).sum()
    }

    fn sum_text(&self, of: fn(&PartitionSettings) -> u32) -> String {
        let members = self.members.iter().map(|at| &self.partitions[*at]);
        let named = members.filter(|partition| is_name(&partition.name));
        let parts = named.map(|partition| format!("{} {}", of(partition), partition.name));
        parts.collect::<Vec<_>>().join(" + ")
    }
}
