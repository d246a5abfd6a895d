//! The figures, for programs.

use std::time::Duration;

use serde::Serialize;

use super::Experiment;
use super::measure::{LayoutFigures, PhaseFigures, Watched};
use super::variant::Variant;

/// What is of a variant only is left out of the usual one.
#[derive(Serialize)]
struct Whole<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<Asked<'a>>,
    postgres: Server<'a>,
    layouts: Vec<Layout>,
}

/// The processors are `null` where the server is on another machine, or may be.
#[derive(Serialize)]
struct Asked<'a> {
    reports: &'static str,
    standby: Option<Server<'a>>,
    processors: Option<usize>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    variant: Option<More>,
}

#[derive(Serialize)]
struct More {
    rows_read: u64,
    peak_reports: u32,
    looks: u32,
    standby: Option<Standby>,
}

#[derive(Serialize)]
struct Standby {
    peak_backends: u32,
    peak_reports: u32,
    looks: u32,
    behind_ms: Option<f64>,
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
    let variant = experiment.variant;
    let asked = || Asked {
        reports: variant.reports.as_str(),
        standby: experiment.standby.as_ref().map(server),
        processors: experiment.processors,
    };
    let layouts = experiment.layouts.iter();
    let whole = Whole {
        variant: (!variant.is_usual()).then(asked),
        postgres: server(&experiment.server),
        layouts: layouts.map(|figures| layout(figures, variant)).collect(),
    };
    serde_json::to_string_pretty(&whole).expect("bug: numbers and texts are JSON")
}

fn server(server: &super::Server) -> Server<'_> {
    Server {
        version: &server.version,
        source: &server.source,
        max_connections: server.max_connections,
    }
}

fn layout(figures: &LayoutFigures, variant: Variant) -> Layout {
    let phases = figures.phases.iter();
    Layout {
        layout: figures.layout.as_str(),
        phases: phases.map(|figures| phase(figures, variant)).collect(),
    }
}

fn phase(figures: &PhaseFigures, variant: Variant) -> Phase {
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
        peak_backends: figures.primary.peak,
        variant: (!variant.is_usual()).then(|| more(figures)),
    }
}

fn more(figures: &PhaseFigures) -> More {
    let standby = |watched: &Watched| Standby {
        peak_backends: watched.peak,
        peak_reports: watched.peak_reports,
        looks: watched.looks,
        behind_ms: watched.behind.map(millis),
    };
    More {
        rows_read: figures.rows,
        peak_reports: figures.primary.peak_reports,
        looks: figures.primary.looks,
        standby: figures.standby.as_ref().map(standby),
    }
}

/// In hundredths, which is finer than the clock of a timer.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 1e2
}
