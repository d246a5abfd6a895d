//! Checkout latency over time, both layouts in one picture.

use std::fmt::Write;
use std::time::Duration;

use super::Experiment;
use super::calls::Outcome;
use super::layout::Kind;
use super::measure::LayoutFigures;
use super::plan::{ANALYTICAL, CALL, DEADLINE, Phase, REPORTS, SHARED, TRANSACTIONAL};
use super::scope;
use super::svg::{BLUE, Canvas, FAINT, GRID, INK, PLAIN, SHADE, Type, VERMILION, escape};
use super::variant::{Reports, Variant};
use super::words::{grouped, millis, percent};
use super::workload::Checkout;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 972.0;
/// The row of the calls that got no answer, above the scale.
const LOST_Y: f64 = 156.0;
const DEADLINE_Y: f64 = 174.0;
const BOTTOM: f64 = 478.0;
/// The latency at the bottom of the scale, which is logarithmic from there to the deadline.
const LEAST: f64 = 0.020;
const TICKS: [(f64, &str); 5] = [
    (0.020, "20 ms"),
    (0.040, "40 ms"),
    (0.100, "100 ms"),
    (0.200, "200 ms"),
    (0.500, "500 ms"),
];

/// How many points a line has over the whole run. Each is the median of the calls planned in its time.
const BINS: u32 = 200;
/// One mark for so many of them, so that marks can be told from each other.
const BINS_PER_MARK: u32 = 2;

struct Picture<'a> {
    experiment: &'a Experiment,
    canvas: Canvas,
}

/// The picture as an SVG document.
pub(crate) fn svg(experiment: &Experiment) -> String {
    let canvas = Canvas::default();
    let mut picture = Picture { experiment, canvas };
    picture.head();
    picture.incident();
    picture.scale();
    picture.time();
    for kind in Kind::ALL {
        picture.line(kind);
    }
    picture.labels();
    picture.label_both();
    picture.foot();
    picture.canvas.0 + "</svg>\n"
}

impl Picture<'_> {
    fn incident_of(&self, kind: Kind) -> (u32, u32) {
        let incident = self.experiment.layout(kind).phase(Phase::Incident);
        (incident.checkout.lost(), incident.checkout.started)
    }

    fn x(&self, at: Duration) -> f64 {
        let share = at.as_secs_f64() / self.experiment.plan.total().as_secs_f64();
        LEFT + share * (RIGHT - LEFT)
    }

    fn head(&mut self) {
        let shared = share(self.incident_of(Kind::Shared));
        let partitioned = share(self.incident_of(Kind::Partitioned));
        let variant = self.experiment.variant;
        let kind = match variant.reports {
            Reports::Sleep => "slow",
            Reports::Scan => "scanning",
        };
        let title = format!(
            "{REPORTS} {kind} reports: one shared pool loses {shared} of checkouts, partitions {partitioned}"
        );
        let told = escape(&title);
        self.canvas.put(&format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="title what" font-family="system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif">
<title id="title">{told}</title>
<desc id="what">Checkout latency over time, on a logarithmic scale, of one shared pool and of two partitions, before, during and after {REPORTS} {kind} reports.</desc>
<rect width="{WIDTH}" height="{HEIGHT}" fill="{}"/>"#,
            "#ffffff"
        ));
        self.canvas
            .text((24.0, 40.0), &title, PLAIN.size(21.0).bold());
        let on = match (variant.standby, self.experiment.processors) {
            (true, Some(count)) => format!("a primary and a standby that share {count} CPUs"),
            (true, None) => "a primary and a standby".to_owned(),
            (false, _) => "a real Postgres".to_owned(),
        };
        let below = format!(
            "Latency of checkout over time: 200 calls a second, each 40 ms in the database, on {on}"
        );
        self.canvas
            .text((24.0, 64.0), &below, PLAIN.size(14.0).colour(FAINT));
    }

    fn incident(&mut self) {
        let plan = &self.experiment.plan;
        let (begin, end) = (plan.before, plan.before + plan.incident);
        let (left, right) = (self.x(begin), self.x(end));
        let lasts = plan.incident.as_secs_f64();
        let (top, width, height) = (88.0, right - left, BOTTOM - 88.0);
        self.canvas.put(&format!(
            r#"<rect x="{left:.1}" y="{top}" width="{width:.1}" height="{height}" fill="{SHADE}"/>"#
        ));
        let centred = PLAIN.anchor("middle");
        let middle = f64::midpoint(left, right);
        self.canvas
            .text((middle, 108.0), "incident", centred.bold());
        let what = match self.experiment.variant.reports {
            Reports::Sleep => format!("{REPORTS} reports of {lasts:.0} s start at once"),
            Reports::Scan => format!("{REPORTS} reports that scan for {lasts:.0} s start at once"),
        };
        self.canvas.text((middle, 126.0), &what, centred);
        let faint = centred.colour(FAINT);
        self.canvas
            .text((f64::midpoint(LEFT, left), 108.0), "before", faint);
        self.canvas
            .text((f64::midpoint(right, RIGHT), 108.0), "after", faint);
    }

    fn scale(&mut self) {
        let axis = PLAIN.size(12.0).colour(FAINT).anchor("end");
        for (seconds, label) in TICKS {
            let y = y(seconds);
            self.canvas
                .rule((LEFT, y), (RIGHT, y), GRID, r#"stroke-width="1""#);
            self.canvas.text((LEFT - 8.0, y + 4.0), label, axis);
        }
        let dashed = r#"stroke-width="1.5" stroke-dasharray="6 4""#;
        self.canvas
            .rule((LEFT, DEADLINE_Y), (RIGHT, DEADLINE_Y), INK, dashed);
        self.canvas
            .text((LEFT - 8.0, DEADLINE_Y + 4.0), "1 s", axis.colour(INK));
        let deadline = PLAIN.size(12.0).halo();
        self.canvas.text(
            (LEFT + 6.0, DEADLINE_Y + 16.0),
            "the caller's deadline",
            deadline,
        );
        self.canvas.text(
            (LEFT - 8.0, LOST_Y + 4.0),
            "no answer",
            axis.colour(VERMILION),
        );
    }

    fn time(&mut self) {
        let total = self.experiment.plan.total();
        let step = if total > Duration::from_secs(15) {
            10
        } else {
            1
        };
        let axis = PLAIN.size(12.0).colour(FAINT).anchor("middle");
        let ticks = (0..).map(|n| Duration::from_secs(n * step));
        for at in ticks.take_while(|at| *at <= total) {
            let x = self.x(at);
            self.canvas
                .rule((x, BOTTOM), (x, BOTTOM + 5.0), FAINT, r#"stroke-width="1""#);
            let label = match at.as_secs() {
                0 => "0 s".to_owned(),
                seconds => seconds.to_string(),
            };
            self.canvas.text((x, BOTTOM + 20.0), &label, axis);
        }
        self.canvas.rule(
            (LEFT, BOTTOM),
            (RIGHT, BOTTOM),
            FAINT,
            r#"stroke-width="1""#,
        );
    }

    /// The band from the fastest to the slowest, the line of medians, and the marks of what was lost.
    fn line(&mut self, kind: Kind) {
        let figures = self.experiment.layout(kind);
        let (colour, width) = match kind {
            Kind::Shared => (VERMILION, 5.0),
            Kind::Partitioned => (BLUE, 2.4),
        };
        let bins = bins(figures, self.experiment.plan.total());
        for band in self.bands(&bins) {
            self.canvas.put(&format!(
                r#"<path d="{band}" fill="{colour}" fill-opacity="0.22"/>"#
            ));
        }
        let line = self.medians(&bins);
        self.canvas.put(&format!(
            r#"<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>"#
        ));
        let marks = self.marks(&bins);
        if !marks.is_empty() {
            self.canvas.put(&format!(
                r##"<path d="{marks}" fill="none" stroke="#ffffff" stroke-width="5.5"/><path d="{marks}" fill="none" stroke="{colour}" stroke-width="2.2"/>"##
            ));
        }
    }

    fn medians(&self, bins: &[Bin]) -> String {
        let mut points = String::new();
        for bin in bins {
            let _ = write!(points, "{:.1},{:.1} ", self.x(bin.middle), bin.median_y);
        }
        points.trim_end().to_owned()
    }

    /// One closed shape for each stretch of time in which calls were answered.
    fn bands(&self, bins: &[Bin]) -> Vec<String> {
        let stretches = bins.split(|bin| bin.answered.is_none());
        let shape = |stretch: &[Bin]| {
            let corner = |bin: &Bin, pick: fn((f64, f64)) -> f64| {
                bin.answered
                    .map(|range| format!("{:.1} {:.1}", self.x(bin.middle), pick(range)))
            };
            let there = stretch
                .iter()
                .filter_map(|bin| corner(bin, |range| range.1));
            let back = stretch
                .iter()
                .rev()
                .filter_map(|bin| corner(bin, |range| range.0));
            let corners: Vec<_> = there.chain(back).collect();
            format!("M{}Z", corners.join("L"))
        };
        stretches.filter(|s| s.len() > 1).map(shape).collect()
    }

    /// A cross for each moment in which calls were lost, larger the more of them were.
    fn marks(&self, bins: &[Bin]) -> String {
        let mut path = String::new();
        for pair in bins.chunks(BINS_PER_MARK as usize) {
            let (lost, calls) = pair
                .iter()
                .fold((0, 0), |(l, c), b| (l + b.lost, c + b.calls));
            if lost == 0 {
                continue;
            }
            let x = f64::midpoint(self.x(pair[0].middle), self.x(pair[pair.len() - 1].middle));
            let arm = 1.6 + 1.9 * (f64::from(lost) / f64::from(calls));
            let (left, right, top, bottom) = (x - arm, x + arm, LOST_Y - arm, LOST_Y + arm);
            let _ = write!(
                path,
                "M{left:.1} {top:.1}L{right:.1} {bottom:.1}M{left:.1} {bottom:.1}L{right:.1} {top:.1}"
            );
        }
        path
    }

    fn labels(&mut self) {
        let plan = &self.experiment.plan;
        let middle = self.x(plan.before + plan.incident / 2);
        let head = PLAIN.size(15.0).bold().anchor("middle");
        let more = PLAIN.size(14.0).anchor("middle");
        let (lost, started) = self.incident_of(Kind::Shared);
        let text = format!("one shared pool of {SHARED}");
        self.canvas
            .text((middle, 208.0), &text, head.colour(VERMILION));
        let text = format!("{} of {} checkouts", grouped(lost), grouped(started));
        self.canvas
            .text((middle, 228.0), &text, more.colour(VERMILION));
        let text = "got no answer before their deadline";
        self.canvas
            .text((middle, 246.0), text, more.colour(VERMILION));

        self.label_partitions(middle, head.colour(BLUE), more.colour(BLUE));
    }

    fn label_partitions(&mut self, middle: f64, head: Type, more: Type) {
        let Variant { reports, standby } = self.experiment.variant;
        let (head, more) = match reports {
            Reports::Sleep => (head, more),
            // The band may be anywhere.
            Reports::Scan => (head.halo(), more.halo()),
        };
        let mut lines = vec![format!("partitions of {TRANSACTIONAL} and {ANALYTICAL}")];
        if standby {
            lines.push("reports on a standby".to_owned());
        }
        let (lost, started) = self.incident_of(Kind::Partitioned);
        lines.push(match lost {
            0 => format!("all {} checkouts answered", grouped(started)),
            lost => format!("{} of {} checkouts lost", grouped(lost), grouped(started)),
        });
        lines.extend(self.p99s());
        if reports == Reports::Scan {
            lines.push(scope::SHARED.to_owned());
        }
        let top = self.free_for_lines(reports);
        for (line, (text, below)) in lines.iter().zip([0.0, 20.0, 38.0, 56.0, 74.0]).enumerate() {
            let look = if line == 0 { head } else { more };
            self.canvas.text((middle, top + below), text, look);
        }
    }

    /// Where the lines of text do not lie upon that of medians.
    fn free_for_lines(&self, reports: Reports) -> f64 {
        let incident = self
            .experiment
            .layout(Kind::Partitioned)
            .phase(Phase::Incident);
        let median = incident.latency.map(|latency| y(latency.p50.as_secs_f64()));
        match (reports, median) {
            (_, Some(median)) if median < 370.0 => 392.0,
            (Reports::Scan, _) => 276.0,
            (Reports::Sleep, _) => 332.0,
        }
    }

    /// Where the two lines lie upon each other: that there are two.
    fn label_both(&mut self) {
        let medians = Kind::ALL.map(|kind| {
            let before = self.experiment.layout(kind).phase(Phase::Before);
            before.latency.map(|latency| latency.p50)
        });
        let slower = medians.into_iter().flatten().max();
        let Some(slower) = slower.filter(|slower| *slower < CALL * 5 / 4) else {
            return;
        };
        let at = (
            self.x(self.experiment.plan.before / 2),
            y(slower.as_secs_f64()) + 22.0,
        );
        let text = format!("both answer in {} (median)", millis(slower));
        self.canvas.text(at, &text, PLAIN.anchor("middle"));
    }

    fn p99s(&self) -> Option<String> {
        let figures = self.experiment.layout(Kind::Partitioned);
        let p99 = |phase| Some(millis(figures.phase(phase).latency?.p99));
        let (before, incident) = (p99(Phase::Before)?, p99(Phase::Incident)?);
        Some(format!("p99 {incident}, and {before} before"))
    }

    fn foot(&mut self) {
        let small = PLAIN.size(12.0).colour(FAINT);
        let total = self.experiment.plan.total();
        let bin = millis(total / BINS);
        let text = format!(
            "Line: median of the calls planned in each {bin}. Band: fastest to slowest. Cross: calls without an answer in time. Logarithmic scale."
        );
        self.canvas.text((24.0, BOTTOM + 48.0), &text, small);
        let server = &self.experiment.server;
        let variant = self.experiment.variant;
        let arguments = if variant.is_usual() { "" } else { " -- " };
        let text = format!(
            "Postgres {}, max_connections {}. Measured by: cargo run --release --example reporting_starves_checkout{arguments}{variant}",
            server.version, server.max_connections
        );
        self.canvas.text((24.0, BOTTOM + 66.0), &text, small);
    }
}

/// The calls that were planned in one short stretch of time.
struct Bin {
    middle: Duration,
    calls: u32,
    lost: u32,
    /// Where the median is; in the row of the lost if most were lost.
    median_y: f64,
    /// The slowest and the fastest that were answered.
    answered: Option<(f64, f64)>,
}

fn bins(figures: &LayoutFigures, total: Duration) -> Vec<Bin> {
    let width = total / BINS;
    let edges = (0..BINS).map(|n| (width * n, width * (n + 1)));
    let calls = |(from, to): (Duration, Duration)| {
        let calls = &figures.checkouts;
        let first = calls.partition_point(|c| c.planned < from);
        let end = calls.partition_point(|c| c.planned < to);
        bin(from + width / 2, &calls[first..end])
    };
    edges.filter_map(calls).collect()
}

fn bin(middle: Duration, calls: &[Checkout]) -> Option<Bin> {
    let height = |c: &Checkout| match c.outcome {
        Outcome::Ok => y(c.latency.as_secs_f64()),
        _ => LOST_Y,
    };
    let mut heights: Vec<f64> = calls.iter().map(height).collect();
    heights.sort_unstable_by(f64::total_cmp);
    let lost = calls.iter().filter(|c| c.outcome != Outcome::Ok).count();
    let slowest = heights.get(lost).copied();
    Some(Bin {
        middle,
        calls: u32::try_from(calls.len()).expect("bug: 200 a second"),
        lost: u32::try_from(lost).expect("bug: 200 a second"),
        median_y: *heights.get(heights.len() / 2)?,
        answered: slowest.zip(heights.last().copied().filter(|_| slowest.is_some())),
    })
}

fn y(seconds: f64) -> f64 {
    let deadline = DEADLINE.as_secs_f64();
    let share = (seconds.clamp(LEAST, deadline) / LEAST).ln() / (deadline / LEAST).ln();
    BOTTOM - share * (BOTTOM - DEADLINE_Y)
}

fn share((lost, started): (u32, u32)) -> String {
    match lost {
        0 => "none".to_owned(),
        lost => percent(lost, started),
    }
}
