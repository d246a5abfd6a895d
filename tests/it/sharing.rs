//! What a configuration accepts for a budget, the admission ledger keeps; and nothing else.

use partitioned_pool::admission::{ClassRules, Ledger, Rules};
use partitioned_pool::config::{
    BudgetConfig, BudgetSettings, FleetConfig, HandOver, Kind, PartitionConfig, PoolConfig,
    Settings,
};
use proptest::prelude::*;

/// A partition in one of three budgets: which, reserved and max.
type Stated = (usize, u32, u32);

fn rules(capacity: u32, classes: impl Iterator<Item = (u32, u32)>) -> Rules {
    let class = |(reserved, max)| ClassRules {
        reserved,
        max,
        queue: 0,
    };
    Rules {
        capacity,
        classes: classes.map(class).collect(),
        hand_over: HandOver::default(),
    }
}

fn is_kept(rules: Rules) -> bool {
    Ledger::<()>::new(rules).is_ok()
}

fn stated_rules(capacities: &[u32], partitions: &[Stated]) -> Vec<Rules> {
    let of = |(at, capacity): (usize, &u32)| {
        let drawing = partitions.iter().filter(move |(budget, ..)| *budget == at);
        rules(
            *capacity,
            drawing.map(|(_, reserved, max)| (*reserved, *max)),
        )
    };
    capacities.iter().enumerate().map(of).collect()
}

fn resolved_rules(settings: &Settings, budget: &BudgetSettings) -> Rules {
    let drawing = budget.partitions.iter().map(|at| &settings.partitions[*at]);
    let drawing = drawing.map(|it| (it.reserved, it.max_connections.get()));
    rules(budget.capacity.get(), drawing)
}

fn config(capacities: &[u32], partitions: &[Stated]) -> PoolConfig {
    let config = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(1, 0));
    let budgets = capacities.iter().enumerate();
    let config = budgets.fold(config, |config, (at, capacity)| {
        config.budget(BudgetConfig::new(format!("b{at}"), *capacity))
    });
    let named = partitions.iter().enumerate();
    named.fold(config, |config, (at, (budget, reserved, max))| {
        let partition = match at {
            0 => PartitionConfig::transactional(*max),
            1 => PartitionConfig::analytical(*max),
            _ => PartitionConfig::named(format!("p{at}"), Kind::Transactional, *max),
        };
        config.partition(partition.budget(format!("b{budget}")).reserved(*reserved))
    })
}

fn any_case() -> impl Strategy<Value = (Vec<u32>, Vec<Stated>)> {
    (1..3_usize).prop_flat_map(|budgets| {
        let partition = (0..budgets, 0..5_u32, 0..9_u32);
        (
            prop::collection::vec(0..16_u32, budgets),
            prop::collection::vec(partition, 2..6),
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_configuration_is_accepted_exactly_if_a_ledger_keeps_each_of_its_budgets((capacities, partitions) in any_case()) {
        let kept = stated_rules(&capacities, &partitions).into_iter().all(is_kept);
        let resolved = config(&capacities, &partitions).resolve();
        prop_assert_eq!(resolved.is_ok(), kept, "{:?}", resolved);
        let Ok(settings) = resolved else { return Ok(()) };
        for budget in &settings.budgets {
            prop_assert!(is_kept(resolved_rules(&settings, budget)));
        }
        for (at, partition) in settings.partitions.iter().enumerate() {
            prop_assert!(partition.min_idle <= partition.reserved);
            prop_assert_eq!(&settings.budget_of(at).name, &format!("b{}", partitions[at].0));
        }
        let mut members: Vec<_> = settings.budgets.iter().flat_map(|it| it.partitions.clone()).collect();
        members.sort_unstable();
        prop_assert!(members.into_iter().eq(0..partitions.len()), "each partition is in exactly one budget");
    }
}
