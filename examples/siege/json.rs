//! The figures, for programs.

use std::time::Duration;

use serde::Serialize;

use crate::figures::Figures;
use crate::plan::BUDGET;

#[derive(Serialize)]
struct Whole {
    sieges: Vec<Siege>,
}

#[derive(Serialize)]
struct Siege {
    siege: &'static str,
    steady: Steady,
    neighbour: Neighbour,
    peak_backends: u32,
    budget: u32,
    in_use_after: u32,
    orphans_after: u32,
    /// Only where the server is restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    outage: Option<Attempts>,
}

#[derive(Serialize)]
struct Attempts {
    attempts: u64,
    at_most: u64,
    lasted_ms: f64,
}

#[derive(Serialize)]
struct Steady {
    started: u32,
    ok: u32,
    p99_ms: f64,
    baseline_p99_ms: f64,
}

#[derive(Serialize)]
struct Neighbour {
    ok: u32,
    rejected: u32,
    failed: u32,
}

/// The sieges of the partitions as one JSON object.
pub(crate) fn json(sieges: &[Figures]) -> String {
    let whole = Whole {
        sieges: sieges.iter().map(siege).collect(),
    };
    serde_json::to_string_pretty(&whole).expect("bug: numbers and texts are JSON")
}

fn siege(figures: &Figures) -> Siege {
    let median = figures.median();
    Siege {
        siege: figures.siege.as_str(),
        steady: Steady {
            started: figures.started(),
            ok: figures.ok(),
            p99_ms: millis(median.steady.p99),
            baseline_p99_ms: millis(median.baseline.p99),
        },
        neighbour: Neighbour {
            ok: figures.sum(|round| round.neighbour.ok),
            rejected: figures.sum(|round| round.neighbour.rejected),
            failed: figures.sum(|round| round.neighbour.failed),
        },
        peak_backends: figures.most(|round| round.seen.most),
        budget: BUDGET,
        in_use_after: figures.most(|round| round.in_use_after),
        orphans_after: figures.most(|round| round.orphans_after),
        outage: figures.outage().map(|outage| Attempts {
            attempts: outage.failed,
            at_most: outage.most,
            lasted_ms: millis(outage.lasted),
        }),
    }
}

/// In hundredths, which is finer than the clock of a timer.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 1e2
}
