//! The figures that were worked out by hand, by the formulas.

use std::time::Duration;

use partitioned_pool::plan::formulas::{
    Rate, capacity, full_after, last_wait, replicas_that_fit, slots, useful_queue,
};
use serde_json::Value;

use super::{Gathered, rows};

/// The headroom, in percent, that makes a partition of 20 out of 8 calls in flight: a quarter above twice.
const PARTITION_HEADROOM: u32 = 250;

pub(super) fn compute(published: &Value, figures: &mut Gathered) {
    let after = |slots| {
        let full = full_after(slots, Rate::of(5));
        full.unwrap_or_default().as_secs()
    };
    let sentence = format!(
        "100 shared slots, 5 stalled reports a second: full after {} s; a partition of 20: after {} s",
        after(100),
        after(20)
    );
    figures.add("worked", published, "slots_full_after", sentence);
    payments(&published["payments_pool"], figures);
    queue(&published["queue"], figures);
    checkout(&published["checkout"], figures);
    for row in rows(published, "fleet") {
        let replicas = whole(row, "replicas");
        let partitions = rows(row, "partitions").iter().map(number).sum::<u32>();
        let connections = replicas * partitions;
        figures.add("worked, fleet", row, "connections", connections);
        let calls = replicas * whole(row, "per_replica");
        figures.add("worked, fleet", row, "calls", calls);
    }
    let small = &published["payments_small"];
    let rate = Rate::of(whole(small, "rate_per_s"));
    let in_flight = slots(rate, seconds(small, "latency_s"), 100);
    figures.add("worked, payments small", small, "in_flight", in_flight);
}

fn payments(row: &Value, figures: &mut Gathered) {
    let run = "worked, payments pool";
    let rate = Rate::of(whole(row, "rate_per_s"));
    let (healthy, degraded) = (seconds(row, "healthy_s"), seconds(row, "degraded_s"));
    figures.add(run, row, "in_flight", slots(rate, healthy, 100));
    figures.add(run, row, "demand", slots(rate, degraded, 100));
    let sustained = capacity(whole(row, "slots"), degraded);
    let per_second = sustained.as_per_second();
    figures.number(run, row, "sustained_per_s", per_second, 1);
    let refused = rate.saturating_sub(sustained).as_per_second();
    figures.number(run, row, "refused_per_s", refused, 1);
}

fn queue(row: &Value, figures: &mut Gathered) {
    let run = "worked, queue";
    let (slots, hold) = (whole(row, "slots"), seconds(row, "hold_s"));
    let last = last_wait(slots, whole(row, "queue"), hold);
    figures.add(run, row, "last_waits_s", last.as_secs());
    figures.add(run, row, "last_ends_s", (last + hold).as_secs());
    let useful = useful_queue(slots, seconds(row, "deadline_s"), hold);
    figures.add(run, row, "useful_queue", useful);
}

fn checkout(row: &Value, figures: &mut Gathered) {
    let run = "worked, checkout";
    let (rate, hold) = (
        Rate::of(whole(row, "rate_per_s")),
        seconds(row, "db_call_s"),
    );
    figures.add(run, row, "in_flight", slots(rate, hold, 100));
    figures.add(run, row, "at_double_peak", slots(rate, hold, 200));
    let partition = slots(rate, hold, PARTITION_HEADROOM);
    figures.add(run, row, "partition", partition);
    let per_replica = partition + whole(row, "reporting_partition");
    figures.add(run, row, "per_replica", per_replica);
    let fleet = per_replica * whole(row, "replicas");
    figures.add(run, row, "fleet", fleet);
    let fits = replicas_that_fit(whole(row, "database_limit"), per_replica);
    figures.add(run, row, "fits_replicas_without_reserve", fits);
}

fn number(value: &Value) -> u32 {
    let number = value.as_u64().and_then(|n| u32::try_from(n).ok());
    number.unwrap_or_default()
}

fn whole(row: &Value, name: &str) -> u32 {
    number(&row[name])
}

fn seconds(row: &Value, name: &str) -> Duration {
    Duration::from_secs_f64(row[name].as_f64().unwrap_or_default())
}
