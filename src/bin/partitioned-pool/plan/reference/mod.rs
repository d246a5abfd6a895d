//! `plan reference`: the published runs, figure by figure: through the ledger, and some by formula.

mod dependencies;
mod models;
mod worked;

use clap::Args;
use partitioned_pool::plan::reference::PUBLISHED;
use serde_json::{Value, json};

use crate::output::{Answer, Stop};
use crate::table::Table;

#[derive(Args)]
pub(crate) struct Options {
    /// Prints one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &Options) -> Result<Answer, Stop> {
    let published = serde_json::from_str(PUBLISHED).map_err(Stop::new)?;
    let figures = replay(&published)?;
    let differ = figures.iter().filter(|figure| !figure.same()).count();
    let text = if options.json {
        json(&figures, differ).to_string()
    } else {
        text(&figures, differ)
    };
    Ok(Answer::of(text, differ == 0))
}

/// How ours came about.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum By {
    /// A run through the ledger of the pool.
    #[default]
    Ledger,
    /// A formula of [`partitioned_pool::plan::formulas`].
    Formula,
}

/// A published figure, and ours.
struct Figure {
    /// Of which run.
    run: String,
    what: String,
    by: By,
    published: Value,
    ours: Value,
}

impl Figure {
    fn same(&self) -> bool {
        match (self.published.as_f64(), self.ours.as_f64()) {
            (Some(published), Some(ours)) => (published - ours).abs() < 1e-9,
            _ => self.published == self.ours,
        }
    }
}

/// Figures as they are gathered.
#[derive(Default)]
struct Gathered {
    figures: Vec<Figure>,
    /// How those come about that are added now.
    by: By,
}

impl Gathered {
    /// What `row` calls `what`, if it was published; ours as printed with so many decimals.
    fn number(&mut self, run: &str, row: &Value, what: &str, ours: f64, decimals: usize) {
        // Written as JSON has its numbers: a whole one without a point.
        let rounded = format!("{ours:.decimals$}");
        let ours = serde_json::from_str(&rounded).unwrap_or(Value::Null);
        self.add(run, row, what, ours);
    }

    /// What `row` calls `what`, if it was published.
    fn add(&mut self, run: &str, row: &Value, what: &str, ours: impl Into<Value>) {
        let published = row[what].clone();
        if !published.is_null() {
            self.figures.push(Figure {
                run: run.to_owned(),
                what: what.replace('_', " "),
                by: self.by,
                published,
                ours: ours.into(),
            });
        }
    }
}

fn replay(published: &Value) -> Result<Vec<Figure>, Stop> {
    let mut figures = Gathered::default();
    models::ten_workers(&published["ten_workers"], &mut figures)?;
    models::two_flows(&published["bursty_two_flows"], &mut figures)?;
    dependencies::replay(&published["two_dependencies"], &mut figures)?;
    figures.by = By::Formula;
    models::utilisations(&published["bursty_two_flows"]["derived"], &mut figures)?;
    worked::compute(&published["worked_figures"], &mut figures);
    Ok(figures.figures)
}

/// The rows of a list of the published file.
fn rows<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

fn text(figures: &[Figure], differ: usize) -> String {
    let mut table = Table::new(2, ["run", "figure", "published", "ours", ""]);
    let mut sentences = String::new();
    for figure in figures {
        let mark = if figure.same() { "same" } else { "DIFFERS" };
        let [published, ours] = [&figure.published, &figure.ours].map(cell);
        if figure.published.is_string() {
            sentences += &format!("{}, {}: {mark}\n", figure.run, figure.what);
            sentences += &format!("  published: {published}\n  ours:      {ours}\n");
        } else {
            table.row([&figure.run, &figure.what, &published, &ours, mark]);
        }
    }
    let verdict = match differ {
        0 => format!(
            "{} published figures, all reproduced: {} through the ledger, {} by formula",
            figures.len(),
            count(figures, By::Ledger),
            count(figures, By::Formula)
        ),
        n => format!("{n} of {} published figures differ", figures.len()),
    };
    format!("{table}\n{sentences}\n{verdict}\n")
}

fn count(figures: &[Figure], by: By) -> usize {
    figures.iter().filter(|figure| figure.by == by).count()
}

fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        number => number.to_string(),
    }
}

fn json(figures: &[Figure], differ: usize) -> Value {
    let figure = |figure: &Figure| {
        json!({
            "run": figure.run,
            "figure": figure.what,
            "by": if figure.by == By::Ledger { "ledger" } else { "formula" },
            "published": figure.published,
            "ours": figure.ours,
            "same": figure.same(),
        })
    };
    let list: Vec<_> = figures.iter().map(figure).collect();
    json!({ "figures": list, "differ": differ })
}
