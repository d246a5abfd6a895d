//! Curves as an SVG document.

use std::time::Duration;

use partitioned_pool::plan::simulator::{Curve, Simulation};

use crate::svg::{BLUE, Canvas, FAINT, GRID, INK, PLAIN, SHADE, VERMILION, escape};
use crate::table::Table;
use crate::words::grouped;

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 760.0;
/// Where the names of the lines stand.
const LEGEND: f64 = 776.0;
const HEIGHT: f64 = 180.0;
/// From the bottom of a panel to the top of the next.
const GAP: f64 = 72.0;
const TOP: f64 = 96.0;

/// Okabe and Ito's, the two of `svg` first.
const COLOURS: [&str; 7] = [
    BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#1f2328",
];

/// Most points of a line: more cannot be seen.
const POINTS: usize = 360;

/// Lines over time.
#[derive(Clone)]
pub(super) struct Panel {
    title: String,
    lines: Vec<(String, Vec<f64>)>,
    /// The length of the run in seconds.
    seconds: f64,
    shade: Option<[f64; 2]>,
}

/// Lines over layouts.
pub(super) struct Sweep {
    title: String,
    unit: &'static str,
    points: Vec<String>,
    lines: Vec<(String, Vec<f64>)>,
}

impl Sweep {
    pub(super) fn new(title: impl Into<String>, unit: &'static str) -> Self {
        Self {
            title: title.into(),
            unit,
            points: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// One layout, with a figure for each line. The lines are those of the first.
    pub(super) fn point(&mut self, name: String, figures: Vec<(String, u64)>) {
        let first = self.points.is_empty();
        self.points.push(name);
        for (n, (line, figure)) in figures.into_iter().enumerate() {
            if first {
                self.lines.push((line, Vec::new()));
            }
            self.lines[n].1.push(float(figure));
        }
    }
}

impl Sweep {
    pub(super) fn title(&self) -> &str {
        &self.title
    }

    /// The same as a table.
    pub(super) fn table(&self) -> Table {
        let lines = self.lines.iter().map(|(name, _)| name.as_str());
        let mut table = Table::new(1, ["split"].into_iter().chain(lines));
        for (n, point) in self.points.iter().enumerate() {
            let figures = self.lines.iter().map(|(_, values)| figure(values[n]));
            table.row([point.clone()].into_iter().chain(figures));
        }
        table
    }
}

#[allow(clippy::cast_precision_loss, reason = "points of a picture")]
const fn float(n: u64) -> f64 {
    n as f64
}

fn count(n: usize) -> f64 {
    float(u64::try_from(n).unwrap_or(u64::MAX))
}

/// Slots and refusals of a run over time, if it has a curve.
pub(super) fn of(simulation: &Simulation, what: &str, shade: Option<[Duration; 2]>) -> Vec<Panel> {
    let curve = simulation.curve.as_ref();
    curve.map_or_else(Vec::new, |curve| panels(curve, what, shade).to_vec())
}

/// Slots held, and calls refused, by flow.
fn panels(curve: &Curve, what: &str, shade: Option<[Duration; 2]>) -> [Panel; 2] {
    let points = curve.flows.first().map_or(0, |flow| flow.held.len());
    let chunk = points.div_ceil(POINTS).max(1);
    let seconds = curve.step.as_secs_f64() * count(points);
    let shade = shade.map(|span| span.map(|at| at.as_secs_f64()));
    let step = curve.step.as_secs_f64() * count(chunk);
    let sum = |values: &[u32]| values.iter().map(|v| f64::from(*v)).sum::<f64>();
    let held = curve.flows.iter().map(|flow| {
        let line = flow
            .held
            .chunks(chunk)
            .map(|part| sum(part) / count(part.len()));
        (flow.name.clone(), line.collect())
    });
    let refused = curve.flows.iter().map(|flow| {
        let line = flow.refused.chunks(chunk).map(|part| sum(part) / step);
        (flow.name.clone(), line.collect())
    });
    let panel = |title: String, lines| Panel {
        title,
        lines,
        seconds,
        shade,
    };
    [
        panel(format!("slots held{what}"), held.collect()),
        panel(format!("calls refused per second{what}"), refused.collect()),
    ]
}

/// The whole picture.
pub(super) fn draw(title: &str, panels: &[Panel], sweep: Option<&Sweep>) -> String {
    let parts = panels.len() + usize::from(sweep.is_some());
    let height = TOP + count(parts) * (HEIGHT + GAP);
    let mut canvas = Canvas::default();
    canvas.put(&format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-labelledby="title" font-family="system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif">
<title id="title">{}</title>
<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>"##,
        escape(title)
    ));
    canvas.text((24.0, 40.0), title, PLAIN.size(20.0).bold());
    let mut top = TOP;
    for panel in panels {
        over_time(&mut canvas, panel, top);
        top += HEIGHT + GAP;
    }
    if let Some(sweep) = sweep {
        over_layouts(&mut canvas, sweep, top);
    }
    canvas.0 + "</svg>\n"
}

fn over_time(canvas: &mut Canvas, panel: &Panel, top: f64) {
    let x = |seconds: f64| LEFT + (RIGHT - LEFT) * seconds / panel.seconds.max(1e-9);
    if let Some([from, until]) = panel.shade {
        let (from, until) = (x(from), x(until.min(panel.seconds)));
        canvas.put(&format!(
            r#"<rect x="{from:.1}" y="{top:.1}" width="{:.1}" height="{HEIGHT}" fill="{SHADE}"/>"#,
            (until - from).max(0.0)
        ));
    }
    let most = frame(canvas, &panel.title, &panel.lines, top);
    for quarter in 0..=4 {
        let at = panel.seconds * f64::from(quarter) / 4.0;
        let label = PLAIN.size(12.0).colour(FAINT).anchor("middle");
        let places = usize::from(panel.seconds < 40.0);
        canvas.text(
            (x(at), top + HEIGHT + 18.0),
            &format!("{at:.places$} s"),
            label,
        );
    }
    for (n, (name, values)) in panel.lines.iter().enumerate() {
        let step = panel.seconds / count(values.len().max(1));
        let at = |n: usize| x(count(n) * step);
        line(canvas, n, name, values, (most, top), at);
    }
}

fn over_layouts(canvas: &mut Canvas, sweep: &Sweep, top: f64) {
    let title = format!("{} ({})", sweep.title, sweep.unit);
    let most = frame(canvas, &title, &sweep.lines, top);
    let gap = (RIGHT - LEFT) / count(sweep.points.len().max(1));
    let x = |n: usize| LEFT + gap * (count(n) + 0.5);
    for (n, point) in sweep.points.iter().enumerate() {
        let label = PLAIN.size(11.0).colour(INK).anchor("middle");
        canvas.text((x(n), top + HEIGHT + 18.0), point, label);
    }
    for (n, (name, values)) in sweep.lines.iter().enumerate() {
        line(canvas, n, name, values, (most, top), x);
        for (n_point, value) in values.iter().enumerate() {
            let (x, y) = (x(n_point), y(*value, most, top));
            let colour = COLOURS[n % COLOURS.len()];
            canvas.put(&format!(
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#
            ));
        }
    }
}

/// Title, grid and scale; what the top of the scale is.
fn frame(canvas: &mut Canvas, title: &str, lines: &[(String, Vec<f64>)], top: f64) -> f64 {
    let values = lines.iter().flat_map(|(_, values)| values);
    let most = nice(values.copied().fold(0.0, f64::max));
    canvas.text((LEFT, top - 12.0), title, PLAIN.bold());
    for part in 0..=4 {
        let value = most * f64::from(part) / 4.0;
        let y = y(value, most, top);
        canvas.rule((LEFT, y), (RIGHT, y), GRID, "");
        let label = PLAIN.size(12.0).colour(FAINT).anchor("end");
        canvas.text((LEFT - 8.0, y + 4.0), &figure(value), label);
    }
    most
}

fn line(
    canvas: &mut Canvas,
    n: usize,
    name: &str,
    values: &[f64],
    (most, top): (f64, f64),
    x: impl Fn(usize) -> f64,
) {
    let colour = COLOURS[n % COLOURS.len()];
    let points = values.iter().enumerate();
    let points = points.map(|(n, value)| format!("{:.1},{:.1}", x(n), y(*value, most, top)));
    let points = points.collect::<Vec<_>>().join(" ");
    canvas.put(&format!(
        r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-linejoin="round"/>"#
    ));
    let y = top + 12.0 + 20.0 * count(n);
    canvas.rule(
        (LEGEND, y - 4.0),
        (LEGEND + 18.0, y - 4.0),
        colour,
        r#"stroke-width="3""#,
    );
    canvas.text((LEGEND + 26.0, y), name, PLAIN.size(12.0));
}

fn y(value: f64, most: f64, top: f64) -> f64 {
    top + HEIGHT * (1.0 - value / most)
}

/// The next number of the kind 1, 2, 4, 8 or 10 times a power of ten: a quarter of it is short to write.
fn nice(most: f64) -> f64 {
    if most <= 0.0 {
        return 4.0;
    }
    let power = 10_f64.powf(most.log10().floor());
    let steps = [1.0, 2.0, 4.0, 8.0, 10.0].map(|step| step * power);
    steps.into_iter().find(|step| *step >= most).unwrap_or(most)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "labels of a scale, not below 0"
)]
fn figure(value: f64) -> String {
    match value {
        value if value >= 1.0 && value.fract() == 0.0 => grouped(value as u64),
        value => format!("{}", (value * 1000.0).round() / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_ends_above_its_largest_value_at_a_short_number() {
        let tops = [0.0, 0.03, 1.0, 3.0, 7.0, 31.0, 99.0].map(nice);
        let short = [4.0, 0.04, 1.0, 4.0, 8.0, 40.0, 100.0];
        assert!(
            tops.iter().zip(short).all(|(a, b)| (a - b).abs() < 1e-12),
            "{tops:?}"
        );
        assert_eq!([0.01, 2.5, 1000.0].map(figure), ["0.01", "2.5", "1,000"]);
    }
}
