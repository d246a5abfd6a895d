//! The figures, for programs.

use std::time::Duration;

use serde::Serialize;

use super::Experiment;
use super::measure::{LayoutFigures, PhaseFigures};

#[derive(Serialize)]
struct Whole<'a> {
    postgres: Server<'a>,
    layouts: Vec<Layout>,
}

#[derive(Serialize)]
struct Server<'a> {
    version: &'a str,
    source: &'a str,
    max_connections: u32,
}

#[derive(Serialize)]
struct Layout {
    layout: &'static str,
    phases: Vec<Phase>,
}

#[derive(Serialize)]
struct Phase {
    phase: &'static str,
    checkout: Checkout,
    reports: Reports,
    peak_backends: u32,
}

/// The latencies are `null` if nothing was answered and nobody left late.
#[derive(Serialize)]
struct Checkout {
    started: u32,
    ok: u32,
    rejected: u32,
    failed: u32,
    late: u32,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    max_ms: Option<f64>,
}

#[derive(Serialize)]
struct Reports {
    started: u32,
    ok: u32,
    rejected: u32,
    failed: u32,
}

/// The experiment as one JSON object.
pub(crate) fn json(experiment: &Experiment) -> String {
    let whole = Whole {
        postgres: Server {
            version: &experiment.server.version,
            source: &experiment.server.source,
            max_connections: experiment.server.max_connections,
        },
        layouts: experiment.layouts.iter().map(layout).collect(),
    };
    serde_json::to_string_pretty(&whole).expect("bug: numbers and texts are JSON")
}

fn layout(figures: &LayoutFigures) -> Layout {
    Layout {
        layout: figures.layout.as_str(),
        phases: figures.phases.iter().map(phase).collect(),
    }
}

fn phase(figures: &PhaseFigures) -> Phase {
    let (checkout, reports) = (&figures.checkout, &figures.reports);
    let latency = figures.latency;
    Phase {
        phase: figures.phase.as_str(),
        checkout: Checkout {
            started: checkout.started,
            ok: checkout.ok,
            rejected: checkout.rejected,
            failed: checkout.failed,
            late: checkout.late,
            p50_ms: latency.map(|l| millis(l.p50)),
            p99_ms: latency.map(|l| millis(l.p99)),
            max_ms: latency.map(|l| millis(l.max)),
        },
        reports: Reports {
            started: reports.started,
            ok: reports.ok,
            rejected: reports.rejected,
            failed: reports.failed,
        },
        peak_backends: figures.peak_backends,
    }
}

/// In hundredths, which is finer than the clock of a timer.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 1e2
}
