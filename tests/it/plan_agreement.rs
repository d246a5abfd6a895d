//! Model and pool agree: the same calls through the real bulkhead and through the simulator.
//!
//! The bulkhead runs on one thread with paused time, and a hold is a sleep. What happens at distinct times
//! in the simulator must happen in the bulkhead at the same times, in the same order, with the same
//! figures in every refusal. (Two things at one instant have an order in the simulator and none in a
//! runtime; such configurations are passed over.)

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use partitioned_pool::admission::{ClassId, ClassRules, HandOver, Patience, Rules};
use partitioned_pool::bulkhead::{Bulkhead, NoStock, Request};
use partitioned_pool::plan::simulator::{
    Arrivals, AtDeadline, Flow, HoldTime, Scenario, What, simulate_watched,
};
use proptest::prelude::*;
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

const MS: Duration = Duration::from_millis(1);
const NO_TIMEOUT: Duration = Duration::from_secs(1_000_000);

/// One call: everything that both sides need to know of it.
#[derive(Clone, Debug)]
struct Call {
    at: Duration,
    class: usize,
    hold: Duration,
    acquire_timeout: Option<Duration>,
    deadline: Option<Duration>,
}

/// When, which call, and what.
type Log = Vec<(Duration, usize, What)>;

/// Each call is a flow of its own, so that each has its own hold and its own patience.
fn scenario(rules: &Rules, calls: &[Call]) -> Scenario {
    let mut scenario = Scenario::new(NO_TIMEOUT, rules.clone());
    for call in calls {
        let class = ClassId::new(call.class);
        let mut flow = Flow::new(
            "call",
            class,
            Arrivals::trace([call.at]),
            HoldTime::Fixed(call.hold),
        );
        flow.acquire_timeout = call.acquire_timeout;
        if let Some(deadline) = call.deadline {
            flow = flow.deadline(deadline, AtDeadline::Free);
        }
        scenario = scenario.flow(flow);
    }
    scenario
}

fn simulated(rules: &Rules, calls: &[Call]) -> Log {
    let mut log = Log::new();
    let scenario = scenario(rules, calls);
    let watch = |event: partitioned_pool::plan::simulator::Event| {
        log.push((event.at, event.flow, event.what));
    };
    simulate_watched(&scenario, watch).unwrap();
    log
}

/// A call on the real bulkhead, as a service would make it.
async fn call(bulkhead: Rc<Bulkhead<NoStock>>, call: Call, n: usize, log: Rc<RefCell<Log>>) {
    let note = |what| log.borrow_mut().push((bulkhead.now(), n, what));
    let wait = call.acquire_timeout.unwrap_or(Duration::MAX);
    let patience = Patience {
        wait: call.deadline.map_or(wait, |deadline| wait.min(deadline)),
        work: call.deadline,
    };
    let permit = match bulkhead.request(ClassId::new(call.class), patience) {
        Request::Granted(permit, _) => permit,
        Request::Refused(refusal, _) => return note(What::Refused(refusal)),
        Request::Closed => unreachable!("nobody closes it"),
        Request::Waiting(waiting) => {
            note(What::Queued);
            match timeout(patience.wait.min(NO_TIMEOUT), waiting).await {
                Ok(granted) => granted.unwrap().0,
                Err(_) => return note(What::GaveUp),
            }
        }
    };
    note(What::Granted);
    let left = call
        .deadline
        .map(|deadline| call.at + deadline - bulkhead.now());
    let work = call.hold.min(left.unwrap_or(Duration::MAX));
    sleep(work).await;
    note(What::Ended {
        late: work < call.hold,
    });
    drop(permit);
}

fn lived(rules: &Rules, calls: &[Call]) -> Log {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let log = Rc::new(RefCell::new(Log::new()));
    let everyone = async {
        let bulkhead = Rc::new(Bulkhead::new(rules.clone(), NoStock).unwrap());
        let begin = Instant::now();
        let tasks = calls.iter().cloned().enumerate().map(|(n, one)| {
            let (bulkhead, log) = (Rc::clone(&bulkhead), Rc::clone(&log));
            tokio::task::spawn_local(async move {
                sleep_until(begin + one.at).await;
                call(bulkhead, one, n, log).await;
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    };
    runtime.block_on(LocalSet::new().run_until(everyone));
    log.take()
}

/// Whether what happens by itself (a call comes, a hold ends, a wait is given up) does so at distinct times.
fn apart(log: &Log) -> bool {
    let mut times = HashSet::new();
    let mut queued = HashSet::new();
    log.iter().all(|(at, call, what)| match what {
        // Handed over in the instant in which another hold ended: a consequence, not an event.
        What::Granted if queued.contains(call) => true,
        What::Queued => queued.insert(*call) && times.insert(*at),
        _ => times.insert(*at),
    })
}

fn calls(classes: usize) -> impl Strategy<Value = Vec<Call>> {
    let gap = prop_oneof![1_u32..400, 1_u32..4_000, 1_u32..40_000];
    let hold = prop_oneof![1_u32..2_000, 1_u32..30_000, 50_000_u32..150_000];
    let limit = || prop::option::weighted(0.5, 1_u32..60_000);
    let call = (gap, 0..classes, hold, limit(), limit());
    prop::collection::vec(call, 1..70).prop_map(|calls| {
        let mut at = Duration::ZERO;
        let call = |(gap, class, hold, timeout, deadline): (_, _, _, Option<u32>, Option<u32>)| {
            at += MS * gap;
            Call {
                at,
                class,
                hold: MS * hold,
                acquire_timeout: timeout.map(|ms| MS * ms),
                deadline: deadline.map(|ms| MS * ms),
            }
        };
        calls.into_iter().map(call).collect()
    })
}

/// Fixed, shared, and anything between, of one to three classes.
fn rules() -> impl Strategy<Value = Rules> {
    let class = (0_u32..3, 0_u32..4, prop_oneof![0_u32..4, Just(100)]);
    let order = prop_oneof![Just(HandOver::OldestFirst), Just(HandOver::DeclaredOrder)];
    let classes = prop::collection::vec(class, 1..=3);
    (classes, 1_u32..3, order).prop_map(|(classes, spare, hand_over)| {
        let capacity = classes.iter().map(|class| class.0).sum::<u32>() + spare;
        let class = |(reserved, more, queue): (u32, u32, u32)| ClassRules {
            reserved,
            max: (reserved + more).clamp(1, capacity),
            queue,
        };
        Rules {
            capacity,
            classes: classes.into_iter().map(class).collect(),
            hand_over,
        }
    })
}

/// What the configurations that were looked at had in them.
#[derive(Default)]
struct Seen {
    handed_over: usize,
    gave_up: usize,
    refused: usize,
    late: usize,
}

impl Seen {
    fn note(&mut self, log: &Log) {
        let count = |is: fn(&What) -> bool| log.iter().filter(|(.., what)| is(what)).count();
        let queued = count(|what| matches!(what, What::Queued));
        let gave_up = count(|what| matches!(what, What::GaveUp));
        self.gave_up += gave_up;
        self.handed_over += queued - gave_up;
        self.refused += count(|what| matches!(what, What::Refused(_)));
        self.late += count(|what| matches!(what, What::Ended { late: true }));
    }
}

#[test]
fn the_same_calls_are_granted_and_refused_alike_in_the_model_and_in_the_bulkhead() {
    let config = ProptestConfig {
        cases: 600,
        max_global_rejects: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let day = rules().prop_flat_map(|rules| {
        let classes = rules.classes.len();
        (Just(rules), calls(classes))
    });
    let seen = RefCell::new(Seen::default());
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let ran = runner.run(&day, |(rules, calls)| {
        let model = simulated(&rules, &calls);
        prop_assume!(apart(&model));
        seen.borrow_mut().note(&model);
        prop_assert_eq!(lived(&rules, &calls), model);
        Ok(())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
    let seen = seen.into_inner();
    let least = [seen.handed_over, seen.gave_up, seen.refused, seen.late];
    assert!(
        least.iter().all(|count| *count > 300),
        "too little happened: {least:?}"
    );
}
