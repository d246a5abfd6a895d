//! The published worked figures, and what must hold of every proposal and every review.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::config::{Kind, PoolConfig};
use crate::fleet::{Fleet, Role, ServerLimits};
use crate::plan::formulas::Rate;
use crate::plan::simulator::{AtDeadline, HoldTime};

const MS: Duration = Duration::from_millis(1);

fn per_replica(calls: u32) -> Load {
    Load::PerReplica(Rate::of(calls))
}

fn flow(name: &str, kind: Kind, load: Load, hold: Duration) -> FlowNeed {
    FlowNeed::new(name, kind, load, HoldTime::Exponential(hold))
}

/// 200 calls a second of 40 ms, in each replica.
fn checkout(headroom_percent: u32) -> FlowNeed {
    let mut flow = flow("checkout", Kind::Transactional, per_replica(200), 40 * MS);
    flow.partition = "transactional".to_owned();
    flow.headroom_percent = headroom_percent;
    flow.deadline = Some(1000 * MS);
    flow
}

fn reports(calls: u32) -> FlowNeed {
    let mut flow = flow("reports", Kind::Analytical, per_replica(calls), 1000 * MS);
    flow.partition = "analytical".to_owned();
    flow
}

fn service(flows: Vec<FlowNeed>, fleet: Fleet, max_connections: u32) -> Service {
    let mut limits = ServerLimits::new(170_000, max_connections);
    limits.superuser_reserved_connections = 0;
    Service::new("shop", flows, fleet, limits)
}

fn fixed(sizes: [u32; 2]) -> Sizes {
    Sizes::apart(vec![
        PartitionSizes::fixed("transactional", Kind::Transactional, sizes[0]),
        PartitionSizes::fixed("analytical", Kind::Analytical, sizes[1]),
    ])
}

#[test]
fn two_hundred_calls_of_forty_milliseconds_need_what_was_worked_out() {
    for (headroom, reserved) in [(200, 16), (250, 20)] {
        let service = service(vec![checkout(headroom)], Fleet::new(1, 0), 100);
        let need = &service.partitions()[0];
        assert_eq!((need.mean, need.peak), (8, reserved));
        let proposal = propose(&service).unwrap();
        assert_eq!(proposal.sizes.partitions[0].reserved, reserved);
        let factor = f64::from(headroom) / 100.0;
        assert_eq!(
            proposal.partitions[0].reserved.to_string(),
            format!("ceil(200/s x 0.04 s x {factor})")
        );
    }
}

#[test]
fn the_worked_fleet_does_not_fit_and_three_replicas_would() {
    let service = service(vec![checkout(250), reports(2)], Fleet::new(20, 0), 100);
    let report = fixed([20, 10]).check(&service);
    assert!(!report.fits());
    assert_eq!((report.needed(), report.granted()), (Some(600), Some(100)));
    assert_eq!(report.largest_fleet(), Some(3));
}

#[test]
fn the_calls_of_a_fleet_are_shared_by_its_replicas() {
    let mut of_fleet = checkout(150);
    of_fleet.load = Load::OfFleet(Rate::of(4000));
    let service = service(vec![of_fleet], Fleet::new(20, 1), 1000);
    assert_eq!(service.partitions()[0].peak, 12);
    let proposal = propose(&service).unwrap();
    let reason = proposal.partitions[0].reserved.to_string();
    assert_eq!(reason, "ceil((4000/s / 20 replicas) x 0.04 s x 1.5)");
}

#[test]
fn a_proposal_says_what_does_not_fit_and_what_would() {
    let service = service(vec![checkout(200), reports(2)], Fleet::new(6, 1), 100);
    let proposal = propose(&service).unwrap();
    assert!(!proposal.is_good() && !proposal.report.fits());
    let needed = u64::from(proposal.sizes.capacity()) * 7;
    assert_eq!(
        proposal.report.needed(),
        Some(needed),
        "nothing was made smaller"
    );
    let largest = proposal.largest.unwrap();
    assert!(largest.sizes.check(&service).fits());
    assert!(largest.sizes.capacity() < proposal.sizes.capacity());
    let text = proposal.report.to_string();
    assert!(text.contains("Largest fleet that fits"), "{text}");
}

#[test]
fn where_not_even_one_connection_each_fits_there_is_no_largest() {
    let service = service(vec![checkout(200), reports(2)], Fleet::new(101, 0), 100);
    let proposal = propose(&service).unwrap();
    assert!(!proposal.report.fits());
    assert!(proposal.largest.is_none());
}

#[test]
fn the_limit_of_the_role_counts() {
    let mut service = service(vec![checkout(200), reports(2)], Fleet::new(2, 0), 1000);
    assert!(propose(&service).unwrap().is_good());
    let mut role = Role::new("app");
    role.connection_limit = Some(40);
    service.server.roles = vec![role];
    let proposal = propose(&service).unwrap();
    assert!(!proposal.report.fits());
    assert_eq!(proposal.report.granted(), Some(40));
}

#[test]
fn sharing_needs_less_than_partitions_apart() {
    let service = service(vec![checkout(150), reports(3)], Fleet::new(2, 1), 1000);
    let proposal = propose(&service).unwrap();
    assert!(proposal.is_good());
    let apart: u32 = proposal
        .sizes
        .partitions
        .iter()
        .map(|p| p.max_connections)
        .sum();
    assert!(
        proposal.sizes.capacity() < apart,
        "{} of {apart}",
        proposal.sizes.capacity()
    );
    assert!(matches!(
        proposal.capacity,
        Reason::Pooled { .. } | Reason::LeastBudget { .. }
    ));
}

#[test]
fn a_queue_is_no_longer_than_what_is_in_time() {
    let mut slow = checkout(150);
    slow.hold = HoldTime::Exponential(400 * MS);
    let service = service(vec![slow], Fleet::new(1, 0), 1000);
    let proposal = propose(&service).unwrap();
    let sizes = &proposal.sizes.partitions[0];
    assert_eq!(
        sizes.max_waiters, sizes.max_connections,
        "one turn, not two"
    );
    assert_eq!(sizes.acquire_timeout, 600 * MS);
    assert_eq!(sizes.statement_timeout, Some(1000 * MS));
    assert!(matches!(
        proposal.partitions[0].max_waiters,
        Reason::UsefulQueue { .. }
    ));
}

#[test]
fn holds_that_are_spread_wider_than_the_formula_has_them_get_more_slots() {
    let with = |hold| {
        let mut reports = reports(2);
        (reports.hold, reports.deadline) = (hold, None);
        let mut flow = checkout(100);
        flow.loss = 0.000_2;
        flow.hold = HoldTime::LogNormal {
            mean: 40 * MS,
            spread: 6.0,
        };
        propose(&service(vec![flow, reports], Fleet::new(1, 0), 1000)).unwrap()
    };
    let proposal = with(HoldTime::Exponential(1000 * MS));
    let simulated = |reason: &Reason| matches!(reason, Reason::Simulated { .. });
    let reasons = &proposal.partitions[0];
    assert!(
        simulated(&reasons.max_connections) || simulated(&reasons.reserved),
        "{reasons:?}"
    );
    assert!(proposal.is_good());
}

#[test]
fn a_service_that_no_size_would_help_is_refused() {
    let refused = |flows| propose(&service(flows, Fleet::new(1, 0), 100)).unwrap_err();
    assert_eq!(refused(vec![]), InvalidService::NoFlow);
    let mut late = checkout(200);
    late.deadline = Some(40 * MS);
    assert!(matches!(refused(vec![late]), InvalidService::Late { .. }));
    let mut torn = reports(1);
    torn.partition = "transactional".to_owned();
    assert!(matches!(
        refused(vec![checkout(200), torn]),
        InvalidService::Kinds { .. }
    ));
    let huge = Load::PerReplica(Rate::per_second(1e9).unwrap());
    let huge = flow("huge", Kind::Transactional, huge, 1000 * MS);
    assert!(matches!(
        refused(vec![huge]),
        InvalidService::TooLarge { .. }
    ));
}

#[test]
fn partitions_that_nobody_calls_get_one_slot_because_every_pool_has_them() {
    let flow = flow("batch", Kind::Analytical, per_replica(1), 100 * MS);
    let service = service(vec![flow], Fleet::new(1, 0), 100);
    let proposal = propose(&service).unwrap();
    let names: Vec<_> = proposal
        .sizes
        .partitions
        .iter()
        .map(|p| p.name.as_str())
        .collect();
    assert_eq!(names, ["batch", "transactional", "analytical"]);
    assert_eq!(proposal.partitions[1].reserved, Reason::NoFlow);
    resolves(&proposal, &service);
}

#[track_caller]
fn resolves(proposal: &Proposal, service: &Service) {
    let text = proposal.sizes.to_toml(service).unwrap();
    let settings = PoolConfig::from_toml(&text).unwrap().resolve().unwrap();
    assert_eq!(settings.budget_of(0).capacity.get(), proposal.sizes.shared);
    for (settings, sizes) in settings.partitions.iter().zip(&proposal.sizes.partitions) {
        assert_eq!(settings.name, sizes.name);
        assert_eq!(settings.reserved, sizes.reserved);
        assert_eq!(settings.max_connections.get(), sizes.max_connections);
        assert_eq!(settings.max_waiters, sizes.max_waiters);
        assert_eq!(settings.acquire_timeout, sizes.acquire_timeout);
        let timeout = sizes.statement_timeout;
        assert!(timeout.is_none() || settings.statement_timeout == timeout);
    }
}

#[test]
fn a_partition_below_its_own_peak_is_found_and_told_what_it_needs() {
    let service = service(vec![checkout(200), reports(2)], Fleet::new(1, 0), 100);
    let found = review(&service, &fixed([10, 12])).unwrap();
    let small = found.findings.iter().find(|finding| finding.is_wrong());
    let Some(Finding::TooSmall {
        partition, needs, ..
    }) = small
    else {
        panic!("{:?}", found.findings);
    };
    assert_eq!(partition, "transactional");
    let needs = needs.unwrap();
    assert!((16..=22).contains(&needs), "{needs}");
    assert!(!found.is_good());
    let healthy = review(&service, &fixed([20, 12])).unwrap();
    assert!(healthy.is_good(), "{:?}", healthy.findings);
}

#[test]
fn an_incident_that_takes_what_is_not_reserved_is_found() {
    let service = service(vec![checkout(150), reports(4)], Fleet::new(1, 0), 100);
    let with = |reserved| {
        let kind = Kind::Transactional;
        let mut critical = PartitionSizes::borrowing("transactional", kind, reserved, 44);
        // With a queue its callers would be first whenever a slot comes free, and lose nothing.
        critical.max_waiters = 0;
        let reports = PartitionSizes::borrowing("analytical", Kind::Analytical, 0, 42);
        Sizes::sharing(44, vec![critical, reports])
    };
    let found = review(&service, &with(2)).unwrap();
    let struck = found
        .findings
        .iter()
        .any(|f| matches!(f, Finding::Struck { by, .. } if by == "reports"));
    assert!(struck, "{:?}", found.findings);
    let found = review(&service, &with(24)).unwrap();
    assert!(found.is_good(), "{:?}", found.findings);
}

#[test]
fn who_is_too_small_on_any_day_is_not_the_victim_of_a_neighbour() {
    let names = [("a", 10), ("b", 30), ("c", 10)];
    let kind = Kind::Transactional;
    let flows = names.map(|(name, calls)| flow(name, kind, per_replica(calls), 40 * MS));
    let service = service(flows.to_vec(), Fleet::new(1, 0), 200);
    let slots = [("a", 18, 19), ("b", 1, 2), ("c", 1, 2)];
    let partitions = slots.map(|(name, own, max)| PartitionSizes::borrowing(name, kind, own, max));
    let found = review(&service, &Sizes::sharing(20, partitions.to_vec())).unwrap();
    let small =
        |finding: &Finding| matches!(finding, Finding::TooSmall { flow, .. } if flow == "b");
    assert!(found.findings.iter().any(small), "{:?}", found.findings);
    for finding in &found.findings {
        if let Finding::Struck { loss, without, .. } = finding {
            assert!(loss.share() - without.share() > loss.allowed, "{finding}");
        }
        let blames_a =
            matches!(finding, Finding::Struck { flow, by, .. } if flow == "b" && by == "a");
        assert!(!blames_a, "{finding}");
    }
}

#[test]
fn what_a_partition_is_told_to_need_is_more_than_failed_and_carries_its_peak() {
    let mut wide = checkout(100);
    wide.loss = 0.000_2;
    wide.hold = HoldTime::LogNormal {
        mean: 40 * MS,
        spread: 6.0,
    };
    let service = service(vec![wide], Fleet::new(1, 0), 1000);
    let sizes = |slots| {
        let kind = Kind::Transactional;
        Sizes::apart(vec![PartitionSizes::fixed("transactional", kind, slots)])
    };
    let found = review(&service, &sizes(9)).unwrap();
    let Some(Finding::TooSmall {
        needs: Some(needs), ..
    }) = found.findings.first()
    else {
        panic!("{:?}", found.findings);
    };
    assert!(*needs > 9, "{needs}");
    let found = review(&service, &sizes(*needs)).unwrap();
    assert!(found.is_good(), "{needs}: {:?}", found.findings);
}

#[test]
fn a_partition_that_nobody_calls_carries_what_its_hold_allows() {
    let silent = flow("silent", Kind::Transactional, per_replica(0), 40 * MS);
    let flows = vec![checkout(150), silent.clone()];
    let service_of = |flows| service(flows, Fleet::new(1, 0), 100);
    let sizes = Sizes::apart(vec![
        PartitionSizes::fixed("transactional", Kind::Transactional, 20),
        PartitionSizes::fixed("silent", Kind::Transactional, 4),
    ]);
    let found = review(&service_of(flows), &sizes).unwrap();
    assert_eq!(found.partitions[1].most, Rate::of(100));
    let nobody = propose(&service_of(vec![silent]));
    assert_eq!(nobody.unwrap_err(), InvalidService::NoFlow);
}

#[test]
fn a_flow_that_calls_too_rarely_for_a_day_has_its_promise_open() {
    let mut often = checkout(150);
    often.hold = HoldTime::Exponential(MS);
    often.load = per_replica(20_000);
    let mut rare = flow("rare", Kind::Analytical, per_replica(0), 1000 * MS);
    rare.load = Load::PerReplica(Rate::per_second(0.02).unwrap());
    let service_of = |flows| service(flows, Fleet::new(1, 0), 1000);
    let proposal = propose(&service_of(vec![often, rare])).unwrap();
    assert!(proposal.is_good());
    for day in &proposal.days {
        let [often, rare] = [day.flows[0], day.flows[1]];
        assert!(often.is_shown() && !often.is_open(), "{often:?}");
        assert!(rare.arrived < 100 && !rare.is_shown(), "{rare:?}");
        assert_eq!(rare.is_open(), rare.promised, "{rare:?}");
    }
}

#[test]
fn work_that_is_left_behind_and_a_callers_own_patience_count() {
    let lost = |change: fn(&mut FlowNeed)| {
        let mut slow = checkout(150);
        slow.deadline = Some(60 * MS);
        change(&mut slow);
        let service = service(vec![slow], Fleet::new(1, 0), 100);
        let kind = Kind::Transactional;
        let sizes = Sizes::apart(vec![PartitionSizes::fixed("transactional", kind, 8)]);
        let found = review(&service, &sizes).unwrap();
        found.days[0].flows[0].refused.total()
    };
    let plain = lost(|_| ());
    let behind = lost(|flow| flow.at_deadline = AtDeadline::Pin);
    let hasty = lost(|flow| flow.acquire_timeout = Some(MS));
    assert!(behind > plain && hasty > plain, "{plain} {behind} {hasty}");
}

#[test]
fn calls_that_are_late_by_their_own_work_are_told_and_not_lost() {
    let mut slow = checkout(150);
    slow.deadline = Some(120 * MS);
    let service = service(vec![slow], Fleet::new(1, 0), 1000);
    let kind = Kind::Transactional;
    let plenty = Sizes::apart(vec![PartitionSizes::fixed("transactional", kind, 900)]);
    let found = review(&service, &plenty).unwrap();
    assert!(found.is_good(), "{:?}", found.findings);
    for day in &found.days {
        let loss = day.flows[0];
        assert_eq!(
            (loss.lost(), loss.late),
            (0, loss.late_anyway),
            "{:?}",
            day.what
        );
    }
    // One exponential hold in e^3 is three times the mean.
    let late = found.findings.iter().find_map(|finding| match finding {
        Finding::OutlastsDeadline { share, .. } => Some(*share),
        _ => None,
    });
    assert!((0.045..0.055).contains(&late.unwrap()), "{late:?}");
    assert_eq!(propose(&service).unwrap().advice.len(), 1);
}

#[test]
fn capacity_that_is_kept_for_nothing_is_found() {
    let service = service(vec![checkout(100), reports(4)], Fleet::new(1, 0), 100);
    let found = review(&service, &fixed([40, 5])).unwrap();
    let stranded = found.findings.iter().find_map(|finding| match finding {
        Finding::Stranded {
            partition,
            reserved,
            refused,
            ..
        } => Some((partition.as_str(), *reserved, *refused > 0)),
        _ => None,
    });
    assert_eq!(stranded, Some(("transactional", 40, true)));
}

#[test]
fn small_partitions_of_one_kind_are_too_many_and_large_ones_are_not() {
    let many = |calls: u32| {
        let names = ["a", "b", "c", "d"];
        let flows = names.map(|name| flow(name, Kind::Analytical, per_replica(calls), 250 * MS));
        let service = service(flows.to_vec(), Fleet::new(1, 0), 1000);
        let sizes = names.map(|name| PartitionSizes::fixed(name, Kind::Analytical, 4 * calls));
        review(&service, &Sizes::apart(sizes.to_vec()))
            .unwrap()
            .findings
    };
    let found = many(1);
    let too_many = found.iter().find_map(|finding| match finding {
        Finding::TooMany {
            partitions,
            apart,
            together,
        } => Some((partitions.len(), *apart, *together)),
        _ => None,
    });
    assert_eq!(too_many, Some((4, 16, 7)));
    assert!(
        !many(40)
            .iter()
            .any(|finding| matches!(finding, Finding::TooMany { .. }))
    );
}

#[test]
fn a_queue_whose_end_is_late_is_found() {
    let mut sizes = fixed([20, 12]);
    sizes.partitions[0].max_waiters = 481;
    let service = service(vec![checkout(150), reports(2)], Fleet::new(1, 0), 100);
    let found = review(&service, &sizes).unwrap();
    let useless = found
        .findings
        .iter()
        .any(|finding| matches!(finding, Finding::UselessQueue { useful: 480, .. }));
    assert!(useless && found.is_good(), "{:?}", found.findings);
}

#[test]
fn what_the_pool_would_refuse_is_not_written() {
    let mut shop = service(vec![checkout(150), reports(2)], Fleet::new(1, 0), 100);
    shop.budget = "shop".to_owned();
    shop.role = "a@b".to_owned();
    let mut sizes = fixed([20, 12]);
    for partition in &mut sizes.partitions {
        (partition.shares, partition.reserved) = (true, 4);
    }
    sizes.shared = 24;
    let text = sizes.to_toml(&shop).unwrap();
    assert!(text.contains("name = \"shop\"\ncapacity = 24"), "{text}");
    assert!(text.contains("postgres://a%40b@localhost/app"), "{text}");
    let settings = PoolConfig::from_toml(&text).unwrap().resolve().unwrap();
    assert_eq!(settings.budgets[0].name, "shop");
    let refused = |service: &Service, sizes: &Sizes| {
        let error = sizes.to_toml(service).unwrap_err();
        error.problems()[0].field.clone()
    };
    // A partition beside the budget has one of its own name.
    let mut clash = sizes.clone();
    let apart = PartitionSizes::fixed("shop", Kind::Transactional, 5);
    clash.partitions.push(apart);
    assert!(refused(&shop, &clash).starts_with("budget"));
    let mut lacks = sizes.clone();
    lacks.partitions.remove(1);
    assert!(refused(&shop, &lacks).starts_with("partition.analytical"));
    shop.name = String::new();
    assert_eq!(refused(&shop, &sizes), "service");
}

fn any_flow(kind: Kind) -> impl Strategy<Value = FlowNeed> {
    let hold = prop_oneof![
        (5_u32..300).prop_map(|ms| HoldTime::Exponential(ms * MS)),
        (5_u32..300).prop_map(|ms| HoldTime::Fixed(ms * MS)),
        (5_u32..300, 0.2_f64..1.5).prop_map(|(ms, spread)| HoldTime::LogNormal {
            mean: ms * MS,
            spread
        }),
    ];
    let deadline = prop::option::of(500_u32..3000);
    (1_u32..200, hold, 100_u32..250, deadline).prop_map(move |(rate, hold, headroom, deadline)| {
        let mut flow = FlowNeed::new(kind.as_str(), kind, per_replica(rate), hold);
        flow.headroom_percent = headroom;
        flow.deadline = deadline.map(|ms| ms * MS);
        flow
    })
}

proptest! {
    // A case is a dozen simulated days.
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn a_proposal_fits_what_is_granted_keeps_its_promises_and_is_called_healthy_by_the_review(
        critical in any_flow(Kind::Transactional),
        reports in any_flow(Kind::Analytical),
        max_connections in 20_u32..2000,
    ) {
        let service = service(vec![critical, reports], Fleet::new(3, 1), max_connections);
        let proposal = propose(&service).unwrap();
        let needed = u64::from(proposal.sizes.capacity()) * 4;
        prop_assert_eq!(proposal.report.fits(), needed <= u64::from(max_connections));
        for day in &proposal.days {
            for loss in day.flows.iter().filter(|loss| loss.promised) {
                prop_assert!(loss.share() <= loss.allowed, "{:?}: {:?}", day.what, loss);
            }
        }
        let found = review(&service, &proposal.sizes).unwrap();
        prop_assert_eq!(found.is_good(), proposal.is_good(), "{:?}", found.findings);
        prop_assert!(!found.findings.iter().any(Finding::is_wrong), "{:?}", found.findings);
        // Not by prop_assert_eq, which would print every wait.
        prop_assert!(found.days == proposal.days);
        if let Some(largest) = &proposal.largest {
            prop_assert!(largest.sizes.check(&service).fits());
        }
        resolves(&proposal, &service);
    }
}
