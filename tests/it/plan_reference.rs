//! The published figures, one by one, through the ledger.

use std::time::Duration;

use partitioned_pool::admission::{Cause, ClassId, Patience, Rules};
use partitioned_pool::bulkhead::{Bulkhead, NoStock, Permit, Request};
use partitioned_pool::plan::formulas::{
    Rate, capacity, erlangs, full_after, last_wait, replicas_that_fit, slots, useful_queue,
};
use partitioned_pool::plan::reference::{
    BurstyFlow, BurstyRun, Day, InvalidModel, Layout, PUBLISHED, TenWorkers, TwoFlows, WorkerClass,
};
use serde_json::Value;

fn published() -> Value {
    serde_json::from_str(PUBLISHED).unwrap()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap()
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("{name}"))
}

fn whole(value: &Value, name: &str) -> u32 {
    u32::try_from(value[name].as_u64().unwrap()).unwrap()
}

fn seconds(value: &Value, name: &str) -> Duration {
    Duration::from_secs_f64(number(value, name))
}

/// As printed with so many decimals.
fn rounded(x: f64, decimals: usize) -> f64 {
    format!("{x:.decimals$}").parse().unwrap()
}

/// `left == right`, for figures that were rounded in the same way.
#[track_caller]
fn same(left: f64, right: f64, what: &str) {
    assert!(
        (left - right).abs() < f64::EPSILON,
        "{what}: {left}, published {right}"
    );
}

#[test]
fn ten_workers_serve_what_was_published() {
    let published = published();
    let rows = list(&published["ten_workers"], "served_percent");
    let settings = TenWorkers::published();
    assert_eq!(rows.len(), settings.len());
    let mut figures = 0;
    for (row, (name, model)) in rows.iter().zip(settings) {
        assert_eq!(text(row, "setting"), name);
        let incident = model.run().unwrap();
        assert_eq!([90, 120], [0, 1].map(|n| incident.flows[n].arrived));
        for flow in &incident.flows {
            if let Some(percent) = row[flow.name.as_str()].as_f64() {
                same(rounded(flow.started_percent(), 1), percent, name);
                figures += 1;
            }
            if let Some(rejected) = row[format!("{}_rejected", flow.name)].as_u64() {
                assert_eq!(flow.refused.total(), rejected);
                figures += 1;
            }
        }
    }
    assert_eq!(figures, 22);
}

fn run(model: &TwoFlows, layout: &Layout, day: &str) -> BurstyRun {
    let day = match day {
        "healthy" => Day::Healthy,
        _ => Day::Slowdown,
    };
    model.run(layout, day).unwrap()
}

#[test]
fn two_flows_are_served_and_dropped_as_was_published() {
    let (published, model) = (published(), TwoFlows::default());
    let rows = list(&published["bursty_two_flows"], "layouts");
    for row in rows {
        let name = text(row, "layout").replace("bulkhead ", "");
        let layouts = model.layouts();
        let layout = layouts.iter().find(|l| l.to_string() == name).unwrap();
        let run = run(&model, layout, text(row, "day"));
        for flow in &run.measured.flows {
            assert_eq!(row[format!("{}_served", flow.name)], flow.started());
            assert_eq!(
                row[format!("{}_dropped", flow.name)],
                flow.refused.queue_full
            );
        }
        assert_eq!(row["idle_slots"], run.measured.idle_when_refused());
        same(
            rounded(run.average_busy, 2),
            number(row, "average_busy"),
            &name,
        );
    }
    assert_eq!(rows.len(), 4);
}

#[test]
fn every_split_drops_what_was_published() {
    let (published, model) = (published(), TwoFlows::default());
    let rows = list(&published["bursty_two_flows"], "splits");
    let mut figures = 0;
    for (row, layout) in rows.iter().zip(model.layouts()) {
        assert_eq!(text(row, "split"), layout.to_string());
        for day in ["healthy", "slowdown"] {
            let run = run(&model, &layout, day);
            for flow in &run.measured.flows {
                let published = &row[format!("{day}_{}_dropped", flow.name)];
                if !published.is_null() {
                    assert_eq!(*published, flow.refused.total());
                    figures += 1;
                }
            }
        }
    }
    assert_eq!((rows.len(), figures), (6, 22));
}

#[test]
fn what_was_derived_from_the_two_flows_follows() {
    let (published, model) = (published(), TwoFlows::default());
    let derived = &published["bursty_two_flows"]["derived"];
    let rescued = model.rescued(0, &[24, 8]).unwrap();
    let percent = number(derived, "tracking_rescued_percent");
    same(rounded(rescued.percent, 1), percent, "percent");
    let calls = number(derived, "tracking_rescued_in_ten_minutes");
    same(rounded(rescued.in_ten_minutes, 0), calls, "in ten minutes");
    for slots in [8, 5] {
        let utilisation = rounded(model.utilisation(1, slots).unwrap(), 3);
        let name = format!("event_pool_utilisation_at_{slots}");
        same(utilisation, number(derived, &name), &name);
    }
}

#[test]
fn the_models_run_with_other_settings_from_a_file() {
    // Their figures are checked where the command runs them; here, what stands in the file is what runs.
    let text = "workers = 12\n[[class]]\nname = \"a\"\nmax = 4\narrivals_per_second = 2";
    let mut expected = TenWorkers::shared();
    expected.workers = 12;
    expected.classes = vec![WorkerClass::new("a", 4, 2)];
    assert_eq!(toml::from_str::<TenWorkers>(text), Ok(expected));

    let text = "seed = 7\nslots = 10\nsplits = [[10]]\n[[flow]]\nname = \"a\"\narrivals_per_second = 50.0\nhold_rounds = 3";
    let mut expected = TwoFlows::default();
    (expected.seed, expected.slots, expected.splits) = (7, 10, vec![vec![10]]);
    expected.flows = vec![BurstyFlow::new("a", 50.0, 3)];
    assert_eq!(toml::from_str::<TwoFlows>(text), Ok(expected));

    assert!(toml::from_str::<TenWorkers>("worker = 3").is_err());
    assert!(toml::from_str::<TwoFlows>("slot = 3").is_err());
}

#[test]
fn settings_that_cannot_be_run_are_refused_for_their_reason() {
    let mut model = TenWorkers::fixed(4);
    model.classes[0].reserved = 5;
    assert!(matches!(
        model.run(),
        Err(InvalidModel::Class { position: 0, .. })
    ));
    let mut model = TenWorkers::shared();
    model.incident = [40, 70];
    assert!(matches!(model.run(), Err(InvalidModel::Incident { .. })));

    let flaw = |change: &dyn Fn(&mut TwoFlows)| {
        let mut model = TwoFlows::default();
        change(&mut model);
        model
            .run(&Layout::Split(vec![24, 8]), Day::Slowdown)
            .unwrap_err()
    };
    assert_eq!(flaw(&|m| m.seed = 0), InvalidModel::Seed(0));
    assert_eq!(
        flaw(&|m| m.slowdown_starts_at_round = 4000),
        InvalidModel::Slowdown
    );
    let rate = |m: &mut TwoFlows| m.rounds_per_second = 0;
    assert_eq!(flaw(&rate), InvalidModel::Rate("tracking".to_owned()));
    let third = |m: &mut TwoFlows| m.flows.push(m.flows[0].clone());
    assert!(matches!(flaw(&third), InvalidModel::Pools { flows: 3, .. }));
    let too_long = |m: &mut TwoFlows| m.rounds = u32::MAX;
    assert!(matches!(flaw(&too_long), InvalidModel::Scenario(_)));
}

fn worked() -> Value {
    published()["worked_figures"].clone()
}

#[test]
fn stalled_reports_fill_the_slots_as_worked_out() {
    let text = worked()["slots_full_after"].as_str().unwrap().to_owned();
    let after = |slots| full_after(slots, Rate::of(5)).unwrap().as_secs();
    let ours = format!(
        "100 shared slots, 5 stalled reports a second: full after {} s; a partition of 20: after {} s",
        after(100),
        after(20)
    );
    assert_eq!(text, ours);
}

#[test]
fn the_payments_pool_carries_what_was_worked_out() {
    let pool = &worked()["payments_pool"];
    let (rate, slots_) = (Rate::of(whole(pool, "rate_per_s")), whole(pool, "slots"));
    let (healthy, degraded) = (seconds(pool, "healthy_s"), seconds(pool, "degraded_s"));
    assert_eq!(slots(rate, healthy, 100), whole(pool, "in_flight"));
    assert_eq!(slots(rate, degraded, 100), whole(pool, "demand"));
    let sustained = capacity(slots_, degraded);
    let refused = rate.saturating_sub(sustained);
    same(
        rounded(sustained.as_per_second(), 1),
        number(pool, "sustained_per_s"),
        "sustained",
    );
    same(
        rounded(refused.as_per_second(), 1),
        number(pool, "refused_per_s"),
        "refused",
    );
    let small = &worked()["payments_small"];
    let rate = Rate::of(whole(small, "rate_per_s"));
    assert_eq!(
        slots(rate, seconds(small, "latency_s"), 100),
        whole(small, "in_flight")
    );
}

#[test]
fn the_queue_keeps_callers_as_long_as_worked_out() {
    let queue = &worked()["queue"];
    let (slots, bound, hold) = (
        whole(queue, "slots"),
        whole(queue, "queue"),
        seconds(queue, "hold_s"),
    );
    let last = last_wait(slots, bound, hold);
    assert_eq!(last, seconds(queue, "last_waits_s"));
    assert_eq!(last + hold, seconds(queue, "last_ends_s"));
    let useful = useful_queue(slots, seconds(queue, "deadline_s"), hold);
    assert_eq!(useful, whole(queue, "useful_queue"));
}

#[test]
fn checkout_needs_what_was_worked_out() {
    let checkout = &worked()["checkout"];
    let (rate, hold) = (
        Rate::of(whole(checkout, "rate_per_s")),
        seconds(checkout, "db_call_s"),
    );
    assert_eq!(slots(rate, hold, 100), whole(checkout, "in_flight"));
    assert_eq!(slots(rate, hold, 200), whole(checkout, "at_double_peak"));
    // A quarter above the double peak.
    assert_eq!(slots(rate, hold, 250), whole(checkout, "partition"));
    let per_replica = whole(checkout, "partition") + whole(checkout, "reporting_partition");
    assert_eq!(per_replica, whole(checkout, "per_replica"));
    assert_eq!(
        per_replica * whole(checkout, "replicas"),
        whole(checkout, "fleet")
    );
    let fits = replicas_that_fit(whole(checkout, "database_limit"), per_replica);
    assert_eq!(fits, whole(checkout, "fits_replicas_without_reserve"));
    assert!((erlangs(rate, hold) - 8.0).abs() < 1e-12);
}

#[test]
fn a_fleet_multiplies_as_worked_out() {
    let worked = worked();
    let [fleet, calls] = list(&worked, "fleet") else {
        panic!("two fleets were published");
    };
    let per_replica = list(fleet, "partitions")
        .iter()
        .map(|n| n.as_u64().unwrap())
        .sum::<u64>();
    assert_eq!(
        fleet["replicas"].as_u64().unwrap() * per_replica,
        fleet["connections"]
    );
    assert_eq!(
        whole(calls, "replicas") * whole(calls, "per_replica"),
        whole(calls, "calls")
    );
    let connections = whole(fleet, "connections");
    assert_eq!(
        replicas_that_fit(connections, u32::try_from(per_replica).unwrap()),
        whole(fleet, "replicas")
    );
}

const ONLY: ClassId = ClassId::new(0);

fn partition(slots: u32, queue: u32) -> Bulkhead<NoStock> {
    Bulkhead::new(Rules::fixed(slots, queue), NoStock).unwrap()
}

fn ask(partition: &Bulkhead<NoStock>) -> Request<NoStock> {
    partition.request(ONLY, Patience::wait(Duration::from_secs(60)))
}

fn runs(partition: &Bulkhead<NoStock>) -> Permit<NoStock> {
    match ask(partition) {
        Request::Granted(permit, _) => permit,
        other => panic!("{other:?}"),
    }
}

/// Rejected: how many run and wait.
fn rejected(partition: &Bulkhead<NoStock>) -> (u32, u32) {
    match ask(partition) {
        Request::Refused(refusal, figures) => {
            assert_eq!(refusal.cause, Cause::QueueFull);
            (figures.used, figures.waiting)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_dependencies_in_one_partition_fall_together_and_in_two_apart() {
    let shared = partition(2, 0);
    let stalled = [runs(&shared), runs(&shared)];
    assert_eq!(rejected(&shared), (2, 0), "payment_3");
    assert_eq!(rejected(&shared), (2, 0), "catalog");
    drop(stalled);
    drop(runs(&shared));

    let (payments, catalog) = (partition(2, 0), partition(2, 0));
    let stalled = [runs(&payments), runs(&payments)];
    assert_eq!(rejected(&payments), (2, 0), "payment_3");
    drop(runs(&catalog));
    drop(stalled);
    drop(runs(&payments));
}

#[tokio::test]
async fn two_dependencies_with_a_queue_run_in_the_published_order() {
    let (payments, catalog) = (partition(2, 1), partition(2, 0));
    let (pay_1, pay_2) = (runs(&payments), runs(&payments));
    let Request::Waiting(pay_3) = ask(&payments) else {
        panic!("there is room to wait");
    };
    assert_eq!(rejected(&payments), (2, 1), "pay_4");
    drop(runs(&catalog));
    drop(pay_2);
    let (pay_3, _) = pay_3.await.unwrap();
    assert_eq!(payments.figures(ONLY).used, 2);
    drop((pay_3, pay_1));
    let left = payments.figures(ONLY);
    assert_eq!((left.used, left.waiting), (0, 0));
    drop(runs(&payments));
}
