//! The figures, for programs.

use std::time::Duration;

use serde::Serialize;

use crate::calls::percentile;
use crate::figures::{Figures, Hour, Work};
use crate::plan::{CAPACITY, Flow};

#[derive(Serialize)]
struct Whole {
    capacity: u32,
    layouts: Vec<Layout>,
}

#[derive(Serialize)]
struct Layout {
    layout: &'static str,
    day: &'static str,
    hours: Vec<OneHour>,
}

#[derive(Serialize)]
struct OneHour {
    seed: u64,
    measured: Side,
    simulated: Side,
    reservation_covers_checkout: bool,
    peak_backends: u32,
    looks_a_second: f64,
    opened: usize,
    dressed: usize,
    below_reservation: Below,
}

/// On the server, or in the simulator.
#[derive(Serialize)]
struct Side {
    utilisation: f64,
    checkout: Calls,
    reporting: Calls,
}

#[derive(Serialize)]
struct Calls {
    arrived: u64,
    served: u64,
    refused: u64,
    late: u64,
    failed: u64,
    unfinished: u64,
    wait_p99_ms: Option<f64>,
}

#[derive(Serialize)]
struct Below {
    calls: u64,
    not_at_once: usize,
    queued: u64,
    refused: u64,
    wait_p99_ms: Option<f64>,
    not_at_once_wait_p99_ms: Option<f64>,
    longest_wait_ms: Option<f64>,
    opening_p99_ms: Option<f64>,
    dressing_p99_ms: Option<f64>,
    moment_p99_ms: Option<f64>,
}

/// All of it as one JSON object.
pub(crate) fn json(figures: &[Figures]) -> String {
    let layout = |figures: &Figures| Layout {
        layout: figures.layout.as_str(),
        day: figures.day.as_str(),
        hours: figures.hours.iter().map(hour).collect(),
    };
    let whole = Whole {
        capacity: CAPACITY,
        layouts: figures.iter().map(layout).collect(),
    };
    serde_json::to_string_pretty(&whole).expect("bug: numbers and texts are JSON")
}

fn hour(hour: &Hour) -> OneHour {
    OneHour {
        seed: hour.seed,
        measured: side(&hour.works, hour.utilisation),
        simulated: side(&hour.predicted.works, hour.predicted.utilisation),
        reservation_covers_checkout: hour.covers,
        peak_backends: hour.seen.most,
        looks_a_second: hour.looks_a_second.round(),
        opened: hour.costs.openings.len(),
        dressed: hour.costs.dressings.len(),
        below_reservation: below(hour),
    }
}

fn side(works: &[Work; 2], utilisation: f64) -> Side {
    let [checkout, reporting] = Flow::ALL.map(|flow| calls(&works[flow.index()]));
    Side {
        utilisation: (utilisation * 1e4).round() / 1e4,
        checkout,
        reporting,
    }
}

fn calls(work: &Work) -> Calls {
    Calls {
        arrived: work.arrived(),
        served: work.served,
        refused: work.refused,
        late: work.late,
        failed: work.failed,
        unfinished: work.unfinished,
        wait_p99_ms: work.p99().map(millis),
    }
}

fn below(hour: &Hour) -> Below {
    let (below, costs) = (&hour.below, &hour.costs);
    let p99 = |sorted: &[Duration]| percentile(sorted, 99).map(millis);
    Below {
        calls: below.calls,
        not_at_once: below.not_at_once.len(),
        queued: below.queued,
        refused: below.refused,
        wait_p99_ms: p99(&below.waits),
        not_at_once_wait_p99_ms: p99(&below.not_at_once),
        longest_wait_ms: below.waits.last().copied().map(millis),
        opening_p99_ms: p99(&costs.openings),
        dressing_p99_ms: p99(&costs.dressings),
        moment_p99_ms: p99(&costs.moments),
    }
}

/// In hundredths, which is finer than the clock of a timer.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 1e2
}
