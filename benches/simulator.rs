//! How long a million simulated calls take, on one core: `cargo bench --bench simulator`, or with
//! `-- --check` to fail when it is more than a second.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use partitioned_pool::admission::{ClassId, ClassRules, HandOver, Rules};
use partitioned_pool::plan::formulas::Rate;
use partitioned_pool::plan::simulator::{
    Arrivals, AtDeadline, Flow, HoldTime, Scenario, Simulation, simulate,
};

/// Runs of each scenario; the median counts.
const RUNS: usize = 5;

/// The promise.
const LIMIT: Duration = Duration::from_secs(1);

const MS: Duration = Duration::from_millis(1);

/// 1,000 calls a second for 1,000 seconds, two flows that borrow from each other, deadlines and a curve.
fn busy_service() -> Scenario {
    let class = |reserved, queue| ClassRules {
        reserved,
        max: 50,
        queue,
    };
    let rules = Rules {
        capacity: 50,
        classes: vec![class(30, 60), class(10, 20)],
        hand_over: HandOver::DeclaredOrder,
    };
    let checkout = Flow::new(
        "checkout",
        ClassId::new(0),
        Arrivals::Poisson(Rate::of(800)),
        HoldTime::LogNormal {
            mean: 30 * MS,
            spread: 1.0,
        },
    )
    .acquire_timeout(200 * MS);
    let reports = Flow::new(
        "reports",
        ClassId::new(1),
        Arrivals::Poisson(Rate::of(200)),
        HoldTime::Exponential(60 * MS),
    )
    .deadline(500 * MS, AtDeadline::Free)
    .incident(300_000 * MS, 600_000 * MS, HoldTime::Exponential(600 * MS));
    Scenario::new(1_000_000 * MS, rules)
        .flow(checkout)
        .flow(reports)
        .step(1000 * MS)
}

/// The same calls, evenly spaced, on slots that are always free.
fn idle_service() -> Scenario {
    let calls = Arrivals::regular(Rate::of(1000));
    let flow = Flow::new("calls", ClassId::new(0), calls, HoldTime::Fixed(10 * MS));
    Scenario::new(1_000_000 * MS, Rules::fixed(50, 0)).flow(flow)
}

fn arrived(simulation: &Simulation) -> u64 {
    simulation.spans[0]
        .flows
        .iter()
        .map(|flow| flow.arrived)
        .sum()
}

fn measure(what: &str, scenario: &Scenario) -> bool {
    let run = |_| {
        let begin = Instant::now();
        let simulation = simulate(scenario).expect("it can be run");
        (begin.elapsed(), arrived(&simulation))
    };
    let mut runs: Vec<_> = (0..RUNS).map(run).collect();
    runs.sort_unstable();
    let (time, calls) = runs[RUNS / 2];
    let million = time.mul_f64(1e6 / f64::from(u32::try_from(calls).expect("about a million")));
    println!("{what:<16} {calls:>9} calls in {time:>10.3?}, a million in {million:>10.3?}");
    million <= LIMIT
}

fn main() -> ExitCode {
    let check = std::env::args().any(|argument| argument == "--check");
    let kept = [
        measure("a busy service", &busy_service()),
        measure("an idle service", &idle_service()),
    ];
    if check && kept.contains(&false) {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
