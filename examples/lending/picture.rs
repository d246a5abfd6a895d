//! Who had the connections over the hour, in every layout and on both days.

use std::fmt::Write;

use crate::figures::{Figures, Hour};
use crate::plan::{CAPACITY, Day, Flow, Layout, Plan};
use crate::svg::{BLUE, Canvas, FAINT, GRID, PLAIN, SHADE, VERMILION, escape};

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 612.0;
const TOP: f64 = 116.0;
/// A plot, and from one to the next.
const PLOT: (f64, f64) = (430.0, 110.0);
const NEXT: (f64, f64) = (476.0, 156.0);
const LEFT: f64 = 64.0;

/// The picture of the first hour as an SVG document.
pub(crate) fn svg(figures: &[Figures], plan: Plan, version: &str) -> String {
    let mut canvas = Canvas::default();
    head(&mut canvas, figures);
    for figures in figures {
        plot(&mut canvas, figures, plan);
    }
    let small = PLAIN.size(12.0).colour(FAINT);
    let seed = figures.first().map_or(0, |figures| figures.hours[0].seed);
    let text = format!(
        "The same calls in all six, seed {seed}; shaded: reports take twenty times as long. Postgres {version}. \
        Measured by: cargo run --release --example lending"
    );
    canvas.text((24.0, HEIGHT - 18.0), &text, small);
    canvas.0 + "</svg>\n"
}

fn lost(figures: &[Figures], layout: Layout) -> u64 {
    let of = |figures: &&Figures| figures.layout == layout && figures.day == Day::Incident;
    let figures = figures.iter().find(of);
    figures.map_or(0, |figures| figures.hours[0].work(Flow::Checkout).lost())
}

fn head(canvas: &mut Canvas, figures: &[Figures]) {
    let [_, shared, borrowing] = Layout::ALL.map(|layout| lost(figures, layout));
    let title = format!(
        "Slow reports: one shared pool loses {shared} checkouts, reserve and borrow {borrowing}"
    );
    canvas.put(&format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="title what" font-family="system-ui, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif">
<title id="title">{}</title>
<desc id="what">Connections in the hands of checkout and of reporting over an hour that passes in a minute, for three layouts of {CAPACITY} connections, on an ordinary day and with an incident.</desc>
<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>"##,
        escape(&title)
    ));
    canvas.text((24.0, 36.0), &title, PLAIN.size(20.0).bold());
    let text = format!("Connections in use over the hour, of {CAPACITY}:");
    canvas.text((24.0, 62.0), &text, PLAIN.colour(FAINT));
    for (x, flow, colour) in [
        (360.0, Flow::Checkout, BLUE),
        (470.0, Flow::Reporting, VERMILION),
    ] {
        canvas.put(&format!(
            r#"<rect x="{x}" y="52" width="11" height="11" fill="{colour}"/>"#
        ));
        canvas.text((x + 17.0, 62.0), flow.as_str(), PLAIN);
    }
    for (column, day) in [(0.0, "ordinary day"), (1.0, "incident")] {
        canvas.text((LEFT + column * NEXT.0, TOP - 26.0), day, PLAIN.bold());
    }
}

fn plot(canvas: &mut Canvas, figures: &Figures, plan: Plan) {
    let hour = &figures.hours[0];
    let column = if figures.day == Day::Ordinary {
        0.0
    } else {
        1.0
    };
    let row = match figures.layout {
        Layout::Fixed => 0.0,
        Layout::Shared => 1.0,
        Layout::Borrowing => 2.0,
    };
    let (left, top) = (LEFT + column * NEXT.0, TOP + row * NEXT.1);
    let bottom = top + PLOT.1;
    if figures.day == Day::Incident {
        let share = |at: std::time::Duration| at.as_secs_f64() / plan.length.as_secs_f64();
        let span = plan.incident();
        let (from, until) = (share(span.from), share(span.until));
        canvas.put(&format!(
            r#"<rect x="{:.1}" y="{top:.1}" width="{:.1}" height="{}" fill="{SHADE}"/>"#,
            left + from * PLOT.0,
            (until - from) * PLOT.0,
            PLOT.1
        ));
    }
    areas(canvas, hour, (left, bottom));
    let label = PLAIN.size(11.0).colour(FAINT).anchor("end");
    for slots in [0.0, f64::from(CAPACITY)] {
        let y = bottom - slots / f64::from(CAPACITY) * PLOT.1;
        canvas.rule((left, y), (left + PLOT.0, y), GRID, r#"stroke-width="1""#);
        canvas.text((left - 6.0, y + 4.0), &format!("{slots}"), label);
    }
    let text = PLAIN.size(12.0);
    canvas.text((left, top - 8.0), figures.layout.as_str(), text.bold());
    let small = PLAIN.size(11.0).colour(FAINT);
    canvas.text((left + 84.0, top - 8.0), &told(hour), small);
}

fn told(hour: &Hour) -> String {
    let [checkout, reporting] = &hour.works;
    format!(
        "lost: {} of {} checkouts, {} of {} reports",
        checkout.lost(),
        checkout.arrived(),
        reporting.lost(),
        reporting.arrived(),
    )
}

/// Checkout at the bottom, reporting on top of it.
fn areas(canvas: &mut Canvas, hour: &Hour, (left, bottom): (f64, f64)) {
    let [checkout, reporting] = &hour.curves;
    let both: Vec<_> = checkout.iter().zip(reporting).map(|(a, b)| a + b).collect();
    for (curve, colour) in [(&both, VERMILION), (checkout, BLUE)] {
        let mut path = format!("M{left:.1} {bottom:.1}");
        let step = PLOT.0 / f64::from(u32::try_from(curve.len()).expect("bug: 200 points"));
        let mut x = left;
        for slots in curve {
            let y = bottom - slots / f64::from(CAPACITY) * PLOT.1;
            write!(path, "L{x:.1} {y:.1}L{:.1} {y:.1}", x + step).expect("bug: a String takes it");
            x += step;
        }
        write!(path, "L{x:.1} {bottom:.1}Z").expect("bug: a String takes it");
        canvas.put(&format!(r#"<path d="{path}" fill="{colour}"/>"#));
    }
}
