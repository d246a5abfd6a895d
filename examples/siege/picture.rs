//! The steady p99 of every siege, beside its baseline and what is allowed.

use std::time::Duration;

use crate::figures::Figures;
use crate::plan::{BUDGET, allowed};
use crate::report::name;
use crate::svg::{BLUE, Canvas, FAINT, GRID, INK, PLAIN, SHADE, VERMILION, escape};
use crate::words::millis;

const WIDTH: f64 = 1000.0;
const TOP: f64 = 112.0;
const ROW: f64 = 30.0;
/// The scale, which is logarithmic.
const LEFT: f64 = 170.0;
const RIGHT: f64 = 600.0;
const LEAST: f64 = 0.004;
const MOST: f64 = 1.0;
const TICKS: [(f64, &str); 5] = [
    (0.005, "5 ms"),
    (0.010, "10 ms"),
    (0.030, "30 ms"),
    (0.100, "100 ms"),
    (1.000, "1 s"),
];
/// Where the columns of figures end.
const LOST: f64 = 690.0;
const PEAK: f64 = 775.0;
const ORPHANS: f64 = 870.0;
const USABLE: f64 = 972.0;

/// The picture as an SVG document.
pub(crate) fn svg(sieges: &[Figures], beside: &[Figures], version: &str) -> String {
    let rows = sieges.len() + beside.len() + usize::from(!beside.is_empty());
    let rows = f64::from(u32::try_from(rows).expect("bug: a dozen rows"));
    let bottom = TOP + rows * ROW;
    let mut canvas = Canvas::default();
    head(&mut canvas, sieges, bottom);
    let mut y = TOP + ROW / 2.0;
    for figures in sieges {
        row(&mut canvas, figures, y, BLUE);
        y += ROW;
    }
    if !beside.is_empty() {
        let text = "beside it: two plain pools of the same sizes";
        canvas.text((24.0, y + 4.0), text, PLAIN.colour(FAINT));
        y += ROW;
    }
    for figures in beside {
        row(&mut canvas, figures, y, VERMILION);
        y += ROW;
    }
    foot(&mut canvas, bottom, version);
    canvas.0 + "</svg>\n"
}

fn head(canvas: &mut Canvas, sieges: &[Figures], bottom: f64) {
    let lost: u32 = sieges.iter().map(Figures::lost).sum();
    let started: u32 = sieges.iter().map(Figures::started).sum();
    let title = format!(
        "{} sieges of one partition: its neighbour loses {lost} of {started} calls",
        sieges.len()
    );
    let height = bottom + 76.0;
    canvas.put(&format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-labelledby="title what" font-family="system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif">
<title id="title">{}</title>
<desc id="what">For each siege the 99th percentile of the steady calls, on a logarithmic scale, with its baseline and what is allowed.</desc>
<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>"##,
        escape(&title)
    ));
    canvas.text((24.0, 36.0), &title, PLAIN.size(20.0).bold());
    let text =
        "p99 of the steady calls: ring, before the siege; dot, during it; shaded, what is allowed";
    canvas.text((24.0, 60.0), text, PLAIN.colour(FAINT));
    for (seconds, text) in TICKS {
        let x = x(Duration::from_secs_f64(seconds));
        canvas.rule((x, TOP), (x, bottom), GRID, "");
        let label = PLAIN.size(12.0).colour(FAINT).anchor("middle");
        canvas.text((x, TOP - 8.0), text, label);
    }
    let columns = [
        (LOST, "calls lost"),
        (PEAK, "connections"),
        (ORPHANS, "orphans"),
        (USABLE, "usable again"),
    ];
    for (x, text) in columns {
        let label = PLAIN.size(12.0).colour(FAINT).anchor("end");
        canvas.text((x, TOP - 8.0), text, label);
    }
}

fn row(canvas: &mut Canvas, figures: &Figures, y: f64, colour: &'static str) {
    let median = figures.median();
    let baseline = median.baseline.p99;
    canvas.text((24.0, y + 4.0), &name(figures), PLAIN);
    let (left, right) = (x(baseline), x(allowed(baseline)));
    canvas.put(&format!(
        r#"<rect x="{left:.1}" y="{:.1}" width="{:.1}" height="14" fill="{SHADE}"/>"#,
        y - 7.0,
        right - left
    ));
    let dot = |x: f64, fill: &str| {
        format!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="4.5" fill="{fill}" stroke="{colour}" stroke-width="1.5"/>"#
        )
    };
    canvas.put(&dot(x(median.steady.p99), colour));
    canvas.put(&dot(left, "none"));
    let lost = figures.lost();
    let peak = figures.most(|round| round.seen.most);
    let orphans = figures.most(|round| round.orphans_after);
    let usable = figures.usable();
    let cells = [
        (LOST, lost.to_string(), lost > 0),
        (PEAK, format!("{peak} of {BUDGET}"), peak > BUDGET),
        (ORPHANS, orphans.to_string(), orphans > 0),
        (
            USABLE,
            usable.map_or("not in 5 s".to_owned(), millis),
            usable.is_none(),
        ),
    ];
    for (x, text, bad) in cells {
        let colour = if bad { VERMILION } else { INK };
        canvas.text((x, y + 4.0), &text, PLAIN.anchor("end").colour(colour));
    }
}

fn foot(canvas: &mut Canvas, bottom: f64, version: &str) {
    let small = PLAIN.size(12.0).colour(FAINT);
    let text = "Orphans: queries that run on the server for nobody, 1 s after the end. Usable again: from then on, until every slot of the besieged has answered.";
    canvas.text((24.0, bottom + 34.0), text, small);
    let text = format!("Postgres {version}. Measured by: cargo run --release --example siege");
    canvas.text((24.0, bottom + 54.0), &text, small);
}

fn x(at: Duration) -> f64 {
    let share = (at.as_secs_f64().clamp(LEAST, MOST) / LEAST).ln() / (MOST / LEAST).ln();
    LEFT + share * (RIGHT - LEFT)
}
