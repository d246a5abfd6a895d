//! Each finding on simulated figures, the thresholds to the very value, and windows that make no sense.

use proptest::prelude::*;

use crate::admission::{ClassId, ClassRules, HandOver, Rules};
use crate::plan::simulator::{Arrivals, Flow, HoldTime, Measured, Scenario, simulate};
use crate::plan::{Ages, Level, Refused};

use super::*;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const ONLY: ClassId = ClassId::new(0);

fn calls(rate: f64, hold: Duration) -> Flow {
    let arrivals = Arrivals::Poisson(Rate::per_second(rate).unwrap());
    Flow::new("calls", ONLY, arrivals, HoldTime::Exponential(hold))
}

/// A healthy minute, and a later one.
fn minutes(rules: Rules, flows: impl IntoIterator<Item = Flow>) -> [Measured; 2] {
    let day = Scenario::new(600 * SECOND, rules)
        .span(SECOND, 61 * SECOND)
        .span(540 * SECOND, 600 * SECOND);
    let day = flows.into_iter().fold(day, Scenario::flow);
    simulate(&day).unwrap().spans.try_into().unwrap()
}

fn later(rules: Rules, flows: impl IntoIterator<Item = Flow>) -> Diagnosis {
    let [before, now] = minutes(rules, flows);
    diagnose(&Window::of(&now, ONLY, Some(&before)))
}

#[test]
fn a_partition_with_headroom_is_healthy() {
    let diagnosis = later(Rules::fixed(20, 40), [calls(200.0, 40 * MS)]);
    assert_eq!(diagnosis.finding, Finding::Healthy, "{diagnosis}");
    let size = diagnosis.size.unwrap();
    assert!((8..=9).contains(&size.little), "{size:?}");
    assert!(size.for_bursts.unwrap() < 20);
}

#[test]
fn a_partition_too_small_for_its_bursts_or_for_its_load_is_too_small() {
    for (slots, queue) in [(10, 0), (6, 0), (6, 12)] {
        let diagnosis = later(Rules::fixed(slots, queue), [calls(200.0, 40 * MS)]);
        assert_eq!(diagnosis.finding, Finding::TooSmall, "{diagnosis}");
        let size = diagnosis.size.unwrap();
        assert!((8..=9).contains(&size.little), "{size:?}");
        assert!(size.for_bursts.unwrap() > slots);
    }
}

#[test]
fn the_size_for_bursts_makes_a_partition_that_is_too_small_healthy() {
    let small = later(Rules::fixed(6, 12), [calls(200.0, 40 * MS)]);
    let size = small.size.and_then(|size| size.for_bursts).unwrap();
    let diagnosis = later(Rules::fixed(size, 12), [calls(200.0, 40 * MS)]);
    assert_eq!(diagnosis.finding, Finding::Healthy, "{diagnosis}");
}

fn slow(hold: Duration) -> Flow {
    calls(200.0, 40 * MS).incident(500 * SECOND, 600 * SECOND, HoldTime::Exponential(hold))
}

#[test]
fn a_database_that_answers_ten_times_slower_is_slow() {
    for slots in [20, 200] {
        let diagnosis = later(Rules::fixed(slots, 40), [slow(400 * MS)]);
        assert_eq!(diagnosis.finding, Finding::DatabaseSlow, "{diagnosis}");
        assert!(matches!(diagnosis.evidence[0], Evidence::HoldGrew { .. }));
        assert!(
            diagnosis.size.unwrap().little <= 9,
            "the healthy hold counts"
        );
    }
}

#[test]
fn a_database_that_does_not_answer_at_all_is_slow_and_not_leaking() {
    let long_ago = slow(10_000 * SECOND);
    let just_now = calls(200.0, 40 * MS);
    let just_now = just_now.incident(595 * SECOND, 600 * SECOND, HoldTime::Fixed(100 * SECOND));
    for flow in [long_ago, just_now] {
        let diagnosis = later(Rules::fixed(20, 40), [flow]);
        assert_eq!(diagnosis.finding, Finding::DatabaseSlow, "{diagnosis}");
        assert!(matches!(
            diagnosis.evidence[0],
            Evidence::NothingEnds { .. }
        ));
    }
}

#[test]
fn slots_that_are_lost_one_by_one_are_a_leak_before_and_after_the_last() {
    let leak = |rate| {
        calls(rate, 40 * MS).incident(70 * SECOND, 600 * SECOND, HoldTime::Fixed(9000 * SECOND))
    };
    for (rate, lost) in [(0.02, false), (0.1, true)] {
        let flows = [calls(100.0, 40 * MS), leak(rate)];
        let diagnosis = later(Rules::fixed(20, 40), flows);
        assert_eq!(diagnosis.finding, Finding::Leaking, "{diagnosis}");
        let Evidence::HeldThrough { slots, oldest, .. } = diagnosis.evidence[0] else {
            panic!("{diagnosis}");
        };
        assert_eq!(slots == 20, lost, "{diagnosis}");
        assert!(oldest > 200 * SECOND);
    }
}

#[test]
fn one_slot_that_does_not_come_back_is_a_leak_however_quiet_the_partition_is() {
    let lost = Arrivals::trace([100 * SECOND]);
    let lost = Flow::new("lost", ONLY, lost, HoldTime::Fixed(9000 * SECOND));
    let diagnosis = later(Rules::fixed(20, 0), [calls(1.0, 40 * MS), lost]);
    assert_eq!(diagnosis.finding, Finding::Leaking, "{diagnosis}");
    assert!(matches!(
        diagnosis.evidence[0],
        Evidence::HeldThrough { slots: 1, .. }
    ));
}

#[test]
fn a_borrower_whose_work_stalls_is_slow_and_not_leaking() {
    let rules = Rules {
        capacity: 20,
        classes: vec![
            ClassRules {
                reserved: 4,
                max: 20,
                queue: 0,
            },
            ClassRules {
                reserved: 10,
                max: 20,
                queue: 0,
            },
        ],
        hand_over: HandOver::default(),
    };
    let diagnosis = later(rules, [slow(10_000 * SECOND)]);
    assert_eq!(diagnosis.finding, Finding::DatabaseSlow, "{diagnosis}");
}

#[test]
fn a_queue_that_takes_everyone_in_hides_the_overload() {
    let mut diagnosis = later(Rules::fixed(20, 1_000_000), [calls(600.0, 40 * MS)]);
    assert_eq!(
        diagnosis.finding,
        Finding::QueueHidesOverload,
        "{diagnosis}"
    );
    assert!((23..=26).contains(&diagnosis.size.take().unwrap().little));
    // The same calls, told at the door.
    let told = later(Rules::fixed(20, 40), [calls(600.0, 40 * MS)]);
    assert_eq!(told.finding, Finding::TooSmall, "{told}");
}

#[test]
fn a_queue_that_nobody_has_time_for_is_named() {
    let [before, now] = minutes(Rules::fixed(10, 10_000), [calls(300.0, 40 * MS)]);
    let mut window = Window::of(&now, ONLY, Some(&before));
    window.deadline = Some(400 * MS);
    let diagnosis = diagnose(&window);
    assert_eq!(
        diagnosis.finding,
        Finding::QueueHidesOverload,
        "{diagnosis}"
    );
    let named = |e: &Evidence| matches!(e, Evidence::UselessQueue { useful, .. } if (70..=90).contains(useful));
    assert!(diagnosis.evidence.iter().any(named), "{diagnosis}");
}

#[test]
fn slots_that_are_kept_from_a_neighbour_in_need_are_stranded() {
    let rules = Rules {
        capacity: 24,
        classes: vec![ClassRules::fixed(20, 0), ClassRules::fixed(4, 0)],
        hand_over: HandOver::default(),
    };
    let mut neighbour = calls(100.0, 60 * MS);
    neighbour.class = ClassId::new(1);
    let [before, now] = minutes(rules, [calls(50.0, 40 * MS), neighbour]);
    let of = |class| diagnose(&Window::of(&now, ClassId::new(class), Some(&before)));
    let (kept, in_need) = (of(0), of(1));
    assert_eq!(kept.finding, Finding::Stranded, "{kept}");
    assert_eq!(in_need.finding, Finding::TooSmall, "{in_need}");
    let Evidence::NeighboursRefused { spare, .. } = kept.evidence[0] else {
        panic!("{kept}");
    };
    assert!((5..=14).contains(&spare), "{spare}");
}

/// 1,000 calls in 10 seconds, 40 ms each, on 10 slots.
fn window() -> Window {
    let mut window = Window::new(10 * SECOND, 10);
    (window.arrivals, window.ended) = (1000, 1000);
    (window.hold, window.hold_before) = (Some(40 * MS), Some(40 * MS));
    window.in_use = Level {
        average: 4.0,
        peak: 10,
    };
    window
}

fn finding(change: impl FnOnce(&mut Window)) -> Finding {
    let mut window = window();
    change(&mut window);
    diagnose(&window).finding
}

#[test]
fn thresholds_are_where_they_are_said_to_be() {
    assert_eq!(finding(|_| {}), Finding::Healthy);
    let hold = |hold| finding(|w| w.hold = Some(hold));
    assert_eq!(hold(119 * MS), Finding::Healthy);
    assert_eq!(hold(120 * MS), Finding::DatabaseSlow);
    let refused = |count| finding(|w| w.refused.queue_full = count);
    assert_eq!(
        (refused(9), refused(10)),
        (Finding::Healthy, Finding::TooSmall)
    );
    let few = |count| finding(|w| (w.arrivals, w.refused.queue_full) = (20, count));
    assert_eq!((few(2), few(3)), (Finding::Healthy, Finding::TooSmall));
    let load = |arrivals| finding(|w| w.arrivals = arrivals);
    assert_eq!(
        (load(2500), load(2501)),
        (Finding::Healthy, Finding::TooSmall)
    );
    let held = |age| finding(|w| w.ages = Ages::of([age, MS], 10 * SECOND));
    assert_eq!(
        (held(9999 * MS), held(10 * SECOND)),
        (Finding::Healthy, Finding::Leaking)
    );
    let old = |age| finding(|w| w.ages = Ages::of([age; 10], 10 * SECOND));
    assert_eq!(
        (old(119 * MS), old(120 * MS)),
        (Finding::Healthy, Finding::DatabaseSlow)
    );
    let queue =
        |average, waiting| finding(|w| (w.in_use.average, w.waiting.average) = (average, waiting));
    assert_eq!(
        (queue(8.9, 50.0), queue(9.0, 9.9)),
        (Finding::Healthy, Finding::Healthy)
    );
    assert_eq!(queue(9.0, 10.0), Finding::QueueHidesOverload);
    let told = |waiting, gave_up| {
        finding(|w| {
            (w.in_use.average, w.waiting.average) = (9.0, waiting);
            (w.refused.queue_full, w.refused.wait_timeout) = (30, gave_up);
            w.deadline = Some(400 * MS);
        })
    };
    assert_eq!(
        (told(90.0, 30), told(90.1, 0)),
        (Finding::TooSmall, Finding::QueueHidesOverload)
    );
    assert_eq!(told(0.0, 31), Finding::QueueHidesOverload);
    let long = |waiting| {
        finding(|w| {
            (w.in_use.average, w.waiting.average, w.refused.queue_full) = (9.0, waiting, 30);
        })
    };
    assert_eq!(
        (long(99.9), long(100.0)),
        (Finding::TooSmall, Finding::QueueHidesOverload)
    );
    let stranded = |peak, refused| {
        finding(|w| {
            (w.in_use.average, w.in_use.peak) = (2.0, peak);
            w.arrivals = 500;
            (w.neighbours.arrivals, w.neighbours.refused_while_free) = (1000, refused);
        })
    };
    assert_eq!(
        (stranded(9, 9), stranded(9, 10)),
        (Finding::Healthy, Finding::Stranded)
    );
    assert_eq!(
        stranded(10, 1000),
        Finding::Healthy,
        "all of them were used"
    );
}

#[test]
fn without_a_healthy_time_to_compare_with_slowness_is_not_claimed() {
    let slow = |w: &mut Window| (w.hold, w.hold_before) = (Some(4 * SECOND), None);
    assert_eq!(finding(slow), Finding::TooSmall);
    let nothing = diagnose(&Window::new(10 * SECOND, 10));
    assert_eq!((nothing.finding, nothing.size), (Finding::Healthy, None));
    assert_eq!(
        nothing.to_string(),
        "healthy: 0.0 of 10 slots in use on average, 0 at most"
    );
}

#[test]
fn evidence_reads_as_a_sentence() {
    let mut window = window();
    window.refused.queue_full = 30;
    window.refused.wait_timeout = 5;
    assert_eq!(
        diagnose(&window).to_string(),
        "too small: 35 of 1000 calls refused (30 queue full, 5 waited too long); \
         100.0 calls/s of 40 ms need 4 slots on average, 10 for their bursts; there are 10; \
         4.0 of 10 slots in use on average, 10 at most"
    );
}

#[test]
fn every_kind_of_evidence_reads_as_a_sentence() {
    let level = Level {
        average: 12.34,
        peak: 20,
    };
    let read = |evidence: Evidence, text: &str| assert_eq!(evidence.to_string(), text);
    let (before, age) = (40 * MS, 9 * SECOND);
    read(
        Evidence::NothingEnds { before, age },
        "half of the slots in use are held for 9.0 s or more, and a hold lasts 40 ms",
    );
    let held = |slots| Evidence::HeldThrough {
        slots,
        oldest: 600 * SECOND,
        hold: 40 * MS,
    };
    read(
        held(1),
        "1 slot was held all the time, the oldest for 600 s, and a hold lasts 40 ms",
    );
    read(
        held(2),
        "2 slots were held all the time, the oldest for 600 s, and a hold lasts 40 ms",
    );
    let waiting = Evidence::Waiting {
        waiting: level,
        slots: 10,
        max_waiters: 20,
    };
    read(
        waiting,
        "12.3 callers wait for 10 slots on average, 20 at most, of 20 that may",
    );
    let useless = Evidence::UselessQueue {
        max_waiters: 20,
        useful: 0,
        deadline: 45 * SECOND,
    };
    read(
        useless,
        "20 may wait, but only 0 of them would be done within 45.0 s",
    );
    let neighbours = Evidence::NeighboursRefused {
        refused: 10,
        arrivals: 100,
        spare: 5,
        reserved: 20,
    };
    read(
        neighbours,
        "10 of 100 calls of its neighbours were refused while slots were free here; \
         5 of 20 reserved ones were not needed",
    );
}

fn any_time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::MAX),
        any::<u64>().prop_map(Duration::from_nanos)
    ]
}

fn any_window() -> impl Strategy<Value = Window> {
    let count = || prop_oneof![Just(0), 0_u64..1000, Just(u64::MAX / 4)];
    let slots = || prop_oneof![0_u32..50, Just(u32::MAX)];
    let times = (
        any_time(),
        prop::option::of(any_time()),
        prop::option::of(any_time()),
    );
    let ages = prop::collection::vec(any_time(), 0..5);
    let calls = (count(), count(), count(), count());
    let sizes = (slots(), slots(), slots(), slots());
    (times, ages, calls, sizes).prop_map(|((length, hold, before), mut ages, calls, sizes)| {
        ages.sort_unstable_by(|a, b| b.cmp(a));
        let mut window = Window::new(length, sizes.0);
        (window.hold, window.hold_before, window.deadline) = (hold, before, before);
        window.ages = Ages::of(ages, length);
        (window.arrivals, window.ended) = (calls.0, calls.1);
        window.refused = Refused::default();
        (window.refused.queue_full, window.refused.wait_timeout) = (calls.2, calls.3);
        (window.reserved, window.max_waiters, window.in_use.peak) = (sizes.1, sizes.2, sizes.3);
        window.neighbours.refused_while_free = calls.3;
        window
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_figures_there_is_a_diagnosis_with_evidence(window in any_window()) {
        let diagnosis = diagnose(&window);
        prop_assert!(!diagnosis.evidence.is_empty());
        prop_assert!(diagnosis.to_string().starts_with(&diagnosis.finding.to_string()));
    }
}
