//! Small days worked by hand, and the promises over random ones.

use proptest::prelude::*;

use crate::admission::{ClassId, ClassRules, HandOver, Rules};
use crate::plan::Level;
use crate::plan::formulas::{Rate, mmck};
use crate::plan::number::ratio;

use super::*;

const MS: Duration = Duration::from_millis(1);
const ONLY: ClassId = ClassId::new(0);

fn at(times: &[u32]) -> Arrivals {
    Arrivals::trace(times.iter().map(|ms| MS * *ms))
}

fn flow(times: &[u32], hold: u32) -> Flow {
    Flow::new("flow", ONLY, at(times), HoldTime::Fixed(MS * hold))
}

fn day(slots: u32, queue: u32, flow: Flow) -> Scenario {
    Scenario::new(1000 * MS, Rules::fixed(slots, queue)).flow(flow)
}

/// The flow of a day with one.
fn outcome(scenario: &Scenario) -> FlowOutcome {
    let mut simulation = simulate(scenario).unwrap();
    simulation.spans.remove(0).flows.remove(0)
}

#[test]
fn callers_are_served_queued_and_refused_as_the_ledger_says() {
    let flow = outcome(&day(1, 1, flow(&[0, 10, 20], 100)));
    assert_eq!(
        (flow.arrived, flow.served, flow.refused.queue_full),
        (3, 2, 1)
    );
    assert_eq!(flow.waits.longest(), 90 * MS);
    assert_eq!(
        flow.held,
        Level {
            average: 0.2,
            peak: 1
        }
    );
}

#[test]
fn a_caller_whose_patience_ends_leaves_and_takes_no_slot() {
    let two = flow(&[0, 10, 20], 100).acquire_timeout(85 * MS);
    let flow = outcome(&day(1, 9, two));
    assert_eq!((flow.served, flow.refused.wait_timeout), (2, 1));
    assert_eq!(flow.waits.longest(), 80 * MS);
}

#[test]
fn a_slot_that_comes_free_in_the_last_instant_is_still_taken() {
    let flow = outcome(&day(1, 9, flow(&[0, 10], 100).acquire_timeout(90 * MS)));
    assert_eq!((flow.served, flow.refused.total()), (2, 0));
}

/// Two slots: one call that takes 300 ms with 100 ms of time, and one of 50 ms that comes at 150 ms.
fn at_the_deadline(then: AtDeadline) -> (FlowOutcome, f64) {
    let slow = flow(&[0], 300).deadline(100 * MS, then);
    let rules = Rules::fixed(1, 9);
    let next = flow(&[150], 50);
    let scenario = Scenario::new(1000 * MS, rules).flow(slow).flow(next);
    let measured = simulate(&scenario).unwrap().spans.remove(0);
    assert_eq!((measured.flows[0].late, measured.flows[0].served), (1, 0));
    (measured.flows[1].clone(), measured.flows[0].held.average)
}

#[test]
fn a_late_call_that_is_cancelled_frees_its_slot_and_one_that_is_not_pins_it() {
    let (next, held) = at_the_deadline(AtDeadline::Free);
    assert_eq!((next.waits.longest(), held), (Duration::ZERO, 0.1));
    for then in [AtDeadline::Stay, AtDeadline::Pin] {
        let (next, held) = at_the_deadline(then);
        assert_eq!((next.waits.longest(), held), (150 * MS, 0.3));
    }
}

#[test]
fn a_caller_that_keeps_its_deadline_leaves_the_queue_and_one_that_does_not_waits_on() {
    let two = |then| outcome(&day(1, 9, flow(&[0, 10], 200).deadline(100 * MS, then)));
    for then in [AtDeadline::Free, AtDeadline::Pin] {
        let flow = two(then);
        let pinned = u64::from(then == AtDeadline::Pin);
        // The first is cancelled at 100 ms, and the second has its slot then; or it is not.
        assert_eq!((flow.late, flow.refused.wait_timeout), (2 - pinned, pinned));
    }
    let flow = two(AtDeadline::Stay);
    assert_eq!((flow.late, flow.refused.total()), (2, 0));
    assert_eq!(flow.waits.longest(), 190 * MS);
}

#[test]
fn an_incident_concerns_the_calls_that_start_in_it() {
    let incident = HoldTime::Fixed(200 * MS);
    let flow = flow(&[0, 100, 399, 400], 10).incident(100 * MS, 400 * MS, incident);
    let flow = outcome(&day(4, 0, flow));
    assert_eq!(flow.held.average, (10.0 + 200.0 + 200.0 + 10.0) / 1000.0);
}

#[test]
fn what_has_not_ended_is_counted_as_such_and_late_if_it_is() {
    let flow = outcome(&day(1, 2, flow(&[900, 950], 100)));
    assert_eq!((flow.arrived, flow.running, flow.waiting), (2, 1, 1));
    assert_eq!((flow.late, flow.lost()), (0, 0));
}

#[test]
fn a_call_that_is_past_its_deadline_at_the_end_is_late() {
    let flow = flow(&[900], 500).deadline(50 * MS, AtDeadline::Pin);
    let flow = outcome(&day(1, 2, flow));
    assert_eq!((flow.late, flow.running), (1, 0));
}

#[test]
fn spans_count_the_calls_that_come_in_them_and_the_slots_of_their_time() {
    let scenario = day(2, 0, flow(&[0, 90, 100, 150, 199], 20))
        .span(Duration::ZERO, 100 * MS)
        .span(100 * MS, 200 * MS)
        .span(500 * MS, 1000 * MS);
    let simulation = simulate(&scenario).unwrap();
    let [first, second, third] = &simulation.spans[..] else {
        panic!("three were asked for");
    };
    let arrived = |span: &Measured| span.flows[0].arrived;
    assert_eq!([arrived(first), arrived(second), arrived(third)], [2, 3, 0]);
    assert_eq!(
        first.classes[0].held,
        Level {
            average: 0.3,
            peak: 1
        }
    );
    assert_eq!(
        second.classes[0].held,
        Level {
            average: 0.51,
            peak: 2
        }
    );
    assert_eq!(third.classes[0].held, Level::default());
    let ended = |span: &Measured| (span.classes[0].ended, span.classes[0].mean_hold);
    assert_eq!(ended(second), (3, Some(20 * MS)));
    assert_eq!(ended(third), (0, None));
    assert_eq!(second.classes[0].ages.oldest, Some(MS));
}

#[test]
fn a_curve_looks_after_holds_have_ended_and_before_anybody_comes() {
    let scenario = day(1, 0, flow(&[0, 5, 100, 150], 100)).step(100 * MS);
    let curve = simulate(&scenario).unwrap().curve.unwrap();
    let flow = &curve.flows[0];
    assert_eq!(flow.held.len(), 10);
    assert_eq!(
        (&flow.held[..4], &flow.refused[..4]),
        (&[0; 4][..], &[1, 1, 0, 0][..])
    );
}

#[test]
fn capacity_that_others_keep_free_is_counted_at_each_refusal() {
    let rules = Rules {
        capacity: 5,
        classes: vec![ClassRules::fixed(1, 0), ClassRules::fixed(4, 0)],
        hand_over: HandOver::default(),
    };
    let mut neighbour = flow(&[5], 100);
    neighbour.class = ClassId::new(1);
    let scenario = Scenario::new(1000 * MS, rules)
        .flow(flow(&[0, 1, 10], 100))
        .flow(neighbour);
    let measured = simulate(&scenario).unwrap().spans.remove(0);
    assert_eq!(measured.idle_when_refused(), 4 + 3);
    let kept = &measured.classes[1];
    assert_eq!((kept.stranded_refusals, kept.stranded_slots), (2, 7));
    assert_eq!(
        (kept.neighbours_arrived, measured.classes[0].stranded_slots),
        (3, 0)
    );
    assert_eq!(
        (measured.utilisation(), measured.stranded_refusals),
        (0.04, 2)
    );
}

#[test]
fn a_refusal_is_stranded_once_however_many_classes_keep_slots() {
    let rules = Rules {
        capacity: 9,
        classes: vec![ClassRules::fixed(3, 0); 3],
        hand_over: HandOver::default(),
    };
    let mut full = flow(&[30, 30, 30], 100);
    full.class = ClassId::new(1);
    let mut full_too = full.clone();
    full_too.class = ClassId::new(2);
    // Two are refused while both others keep slots; then two while nobody does.
    let scenario = Scenario::new(1000 * MS, rules)
        .flow(flow(&[0, 0, 0, 1, 2, 40, 41], 100))
        .flow(full)
        .flow(full_too);
    let measured = simulate(&scenario).unwrap().spans.remove(0);
    let kept = measured.classes.iter().map(|class| class.stranded_refusals);
    assert_eq!(kept.collect::<Vec<_>>(), [0, 2, 2]);
    assert_eq!(
        (
            measured.stranded_refusals,
            measured.flows[0].refused.total()
        ),
        (2, 4)
    );
}

/// Checkout and reports on ten slots; reports take long from the 20th second on.
fn checkout_and_reports(rules: Rules) -> Scenario {
    let second = 1000 * MS;
    let reports = rules.classes.len() - 1;
    let calls = |rate| Arrivals::Poisson(Rate::of(rate));
    let checkout = Flow::new("checkout", ONLY, calls(50), HoldTime::Exponential(40 * MS));
    let hold = HoldTime::LogNormal {
        mean: 50 * MS,
        spread: 1.0,
    };
    let reports = Flow::new("reports", ClassId::new(reports), calls(5), hold).incident(
        20 * second,
        50 * second,
        HoldTime::Fixed(20 * second),
    );
    Scenario::new(60 * second, rules)
        .flow(checkout)
        .flow(reports)
}

#[test]
fn the_blast_radius_is_the_neighbours_without_walls_and_empty_with_them() {
    let shared = blast_radius(&checkout_and_reports(Rules::fixed(12, 0))).unwrap();
    assert_eq!(shared.len(), 1);
    let struck = &shared[0];
    assert_eq!(struck.flow, "checkout");
    assert!(
        struck.lost > 500 && struck.lost_without_incident < 5,
        "{struck:?}"
    );
    let walls = Rules {
        capacity: 12,
        classes: vec![ClassRules::fixed(9, 0), ClassRules::fixed(3, 0)],
        hand_over: HandOver::default(),
    };
    assert_eq!(blast_radius(&checkout_and_reports(walls)).unwrap(), []);
}

#[test]
fn a_long_run_agrees_with_the_formula_for_a_bounded_queue() {
    let (slots, queue) = (4, 6);
    let hold = HoldTime::Exponential(50 * MS);
    let calls = Flow::new("calls", ONLY, Arrivals::Poisson(Rate::of(72)), hold);
    let scenario = Scenario::new(6_000 * 1000 * MS, Rules::fixed(slots, queue)).flow(calls);
    let measured = simulate(&scenario).unwrap().spans.remove(0);
    let (flow, formula) = (&measured.flows[0], mmck(slots, queue, 3.6));
    let refused = ratio(flow.refused.queue_full.into(), flow.arrived.into());
    assert!(
        (refused - formula.refused).abs() < 0.003,
        "{refused} {formula:?}"
    );
    let waiting = measured.classes[0].waiting.average;
    assert!(
        (waiting - formula.waiting).abs() < 0.05,
        "{waiting} {formula:?}"
    );
    let wait = flow.waits.mean().as_secs_f64();
    assert!((wait / formula.wait(50 * MS).as_secs_f64() - 1.0).abs() < 0.04);
}

/// What a machine with other mathematics would get wrong. If this fails, runs have changed for everyone.
#[test]
fn the_same_seed_gives_the_same_run_for_ever() {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut note = |n: u64| hash = (hash ^ n).wrapping_mul(0x0100_0000_01b3);
    let scenario = checkout_and_reports(Rules::fixed(6, 3)).seed(42);
    let watch = |event: Event| {
        note(nanos(event.at));
        note(event.call);
    };
    simulate_watched(&scenario, watch).unwrap();
    assert_eq!(hash, 17_020_625_961_419_080_375);
}

#[test]
fn another_layout_sees_the_same_calls() {
    let came = |rules, seed| {
        let mut calls = Vec::new();
        let scenario = checkout_and_reports(rules).seed(seed);
        simulate_watched(&scenario, |event| {
            if event.what != What::GaveUp && !matches!(event.what, What::Ended { .. }) {
                calls.push((event.call, event.at, event.flow));
            }
        })
        .unwrap();
        calls.sort_unstable();
        calls.dedup_by_key(|call| call.0);
        calls
    };
    let calls = came(Rules::fixed(100, 0), 1);
    assert_eq!(calls, came(Rules::fixed(2, 0), 1));
    assert_ne!(calls, came(Rules::fixed(2, 0), 2));
}

#[test]
fn scenarios_that_cannot_be_run_are_refused_for_their_reason() {
    let flaw = |change: &dyn Fn(&mut Scenario)| {
        let mut scenario = day(1, 0, flow(&[1, 2], 10));
        change(&mut scenario);
        simulate(&scenario).unwrap_err()
    };
    assert!(matches!(
        flaw(&|s| s.rules.capacity = 0),
        InvalidScenario::Rules(_)
    ));
    assert!(matches!(
        flaw(&|s| s.length = Duration::ZERO),
        InvalidScenario::Length(_)
    ));
    assert!(matches!(
        flaw(&|s| s.length = Duration::MAX),
        InvalidScenario::Length(_)
    ));
    assert!(matches!(
        flaw(&|s| s.step = Some(Duration::ZERO)),
        InvalidScenario::Step(_)
    ));
    assert!(matches!(
        flaw(&|s| s.step = Some(Duration::from_nanos(9))),
        InvalidScenario::Step(_)
    ));
    let span = |s: &mut Scenario| *s = s.clone().span(Duration::ZERO, MS).span(MS, MS);
    assert_eq!(flaw(&span), InvalidScenario::Span { position: 1 });
    let many = |s: &mut Scenario| s.flows[0].arrivals = Arrivals::Poisson(Rate::of(u32::MAX));
    let many = |s: &mut Scenario| {
        many(s);
        s.length *= 1000;
    };
    assert!(matches!(flaw(&many), InvalidScenario::TooManyCalls(_)));
    let flows: [&dyn Fn(&mut Flow); 6] = [
        &|f| f.class = ClassId::new(1),
        &|f| f.hold = HoldTime::Empirical([].into()),
        &|f| {
            f.hold = HoldTime::LogNormal {
                mean: MS,
                spread: f64::NAN,
            }
        },
        &|f| {
            f.arrivals = Arrivals::Regular {
                every: Duration::ZERO,
                batch: 1,
            }
        },
        &|f| f.arrivals = Arrivals::Trace([2 * MS, MS].into()),
        &|f| *f = f.clone().incident(MS, MS, HoldTime::Fixed(MS)),
    ];
    for change in flows {
        let flaw = flaw(&|s| change(&mut s.flows[0]));
        assert!(matches!(flaw, InvalidScenario::Flow { .. }), "{flaw}");
    }
    let one = day(1, 0, flow(&[], 10));
    let calls = |calls: [(u32, usize); 2]| replay(&one, calls.map(|(ms, flow)| (MS * ms, flow)));
    assert_eq!(
        calls([(1, 0), (2, 1)]),
        Err(InvalidScenario::Call { position: 1 })
    );
    assert_eq!(
        calls([(2, 0), (1, 0)]),
        Err(InvalidScenario::Call { position: 1 })
    );
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let arrivals = prop_oneof![
        (1_u32..60, 1_u32..4).prop_map(|(ms, batch)| Arrivals::Regular {
            every: MS * ms,
            batch
        }),
        (1_u32..200).prop_map(|rate| Arrivals::Poisson(Rate::of(rate))),
        prop::collection::vec(0_u32..1000, 0..40).prop_map(|times| at(&times)),
    ];
    let hold = || {
        prop_oneof![
            (0_u32..80).prop_map(|ms| HoldTime::Fixed(MS * ms)),
            (1_u32..80).prop_map(|ms| HoldTime::Exponential(MS * ms)),
            (1_u32..80, 0.0..3.0).prop_map(|(ms, spread)| HoldTime::LogNormal {
                mean: MS * ms,
                spread
            }),
        ]
    };
    let patience = (
        prop::option::of(0_u32..100),
        prop::option::of(0_u32..200),
        0_usize..3,
    );
    let incident = prop::option::of((0_u32..500, 1_u32..500, hold()));
    (0_usize..2, arrivals, hold(), patience, incident).prop_map(
        |(class, arrivals, hold, (timeout, deadline, then), incident)| {
            let mut flow = Flow::new("flow", ClassId::new(class), arrivals, hold);
            flow.acquire_timeout = timeout.map(|ms| MS * ms);
            flow.deadline = deadline.map(|ms| MS * ms);
            flow.at_deadline = [AtDeadline::Stay, AtDeadline::Free, AtDeadline::Pin][then];
            match incident {
                Some((from, length, hold)) => flow.incident(MS * from, MS * (from + length), hold),
                None => flow,
            }
        },
    )
}

fn any_scenario() -> impl Strategy<Value = Scenario> {
    let class = (0_u32..4, 0_u32..4, 0_u32..5);
    let classes = (class.clone(), class);
    let flows = prop::collection::vec(any_flow(), 1..4);
    (classes, 1_u32..4, flows, any::<u64>(), any::<bool>()).prop_map(
        |((a, b), spare, flows, seed, order)| {
            let capacity = a.0 + b.0 + spare;
            let class = |(reserved, more, queue): (u32, u32, u32)| ClassRules {
                reserved,
                max: (reserved + more).clamp(1, capacity),
                queue,
            };
            let rules = Rules {
                capacity,
                classes: vec![class(a), class(b)],
                hand_over: if order {
                    HandOver::DeclaredOrder
                } else {
                    HandOver::OldestFirst
                },
            };
            let mut scenario = Scenario::new(1000 * MS, rules).seed(seed).step(10 * MS);
            scenario.flows = flows;
            scenario
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_call_is_lost_and_no_slot_is_held_twice(scenario in any_scenario()) {
        let mut held = 0_i64;
        let mut peak = 0;
        let mut last = Duration::ZERO;
        let simulation = simulate_watched(&scenario, |event| {
            assert!(event.at >= last && event.at < scenario.length);
            last = event.at;
            held += match event.what {
                What::Granted => 1,
                What::Ended { .. } => -1,
                _ => 0,
            };
            peak = peak.max(held);
        }).unwrap();
        prop_assert!(peak <= i64::from(scenario.rules.capacity));
        for flow in &simulation.spans[0].flows {
            let ended = flow.served + flow.late + flow.refused.total();
            prop_assert_eq!(flow.arrived, ended + flow.running + flow.waiting);
            prop_assert!(flow.started() <= flow.arrived - flow.refused.total());
        }
        prop_assert_eq!(simulate(&scenario).unwrap(), simulation);
    }

    /// What borrowing promises: an incident next door costs nothing where the reservation covers the load.
    #[test]
    fn a_flow_whose_reservation_covers_its_load_neither_waits_nor_loses_a_call(
        scenario in any_scenario(),
    ) {
        let mut scenario = scenario;
        let neighbour = |flow: &mut Flow| flow.class = ClassId::new(1);
        scenario.flows.iter_mut().for_each(neighbour);
        scenario.flows[0].class = ONLY;
        scenario.flows[0].at_deadline = AtDeadline::Stay;
        let mut alone = Scenario::new(scenario.length, Rules::fixed(10_000, 0)).seed(scenario.seed);
        alone.flows.push(scenario.flows[0].clone());
        let needed = simulate(&alone).unwrap().spans[0].classes[0].held.peak.max(1);
        let [own, others] = &mut scenario.rules.classes[..] else { unreachable!() };
        let spare = scenario.rules.capacity - own.reserved - others.reserved;
        scenario.rules.capacity = needed + others.reserved + spare;
        *own = ClassRules { reserved: needed, max: scenario.rules.capacity, queue: 0 };
        others.max = scenario.rules.capacity;
        let flow = simulate(&scenario).unwrap().spans.remove(0).flows.remove(0);
        prop_assert_eq!((flow.refused.total(), flow.waits.longest()), (0, Duration::ZERO));
    }

    #[test]
    fn spans_that_follow_each_other_add_up_to_the_whole(scenario in any_scenario(), edge in 1_u32..999) {
        let whole = simulate(&scenario).unwrap().spans.remove(0);
        let parts = scenario.span(Duration::ZERO, MS * edge).span(MS * edge, 1000 * MS);
        let parts = simulate(&parts).unwrap().spans;
        for (n, flow) in whole.flows.iter().enumerate() {
            let sum = |count: &dyn Fn(&FlowOutcome) -> u64| -> u64 {
                parts.iter().map(|part| count(&part.flows[n])).sum()
            };
            prop_assert_eq!(sum(&|f| f.arrived), flow.arrived);
            prop_assert_eq!(sum(&|f| f.lost()), flow.lost());
            prop_assert_eq!(sum(&|f| f.idle_when_refused), flow.idle_when_refused);
        }
        for (n, class) in whole.classes.iter().enumerate() {
            let [a, b] = [0, 1].map(|part: usize| &parts[part].classes[n]);
            let edge = f64::from(edge) / 1000.0;
            let average = a.held.average * edge + b.held.average * (1.0 - edge);
            prop_assert!((average - class.held.average).abs() < 1e-9);
            prop_assert_eq!(a.held.peak.max(b.held.peak), class.held.peak);
            prop_assert_eq!(a.ended + b.ended, class.ended);
            prop_assert_eq!(a.stranded_slots + b.stranded_slots, class.stranded_slots);
        }
    }
}
