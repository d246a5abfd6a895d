//! `plan simulate`: one day, through the ledger.

use std::time::Duration;

use partitioned_pool::plan::planner::Sizes;
use partitioned_pool::plan::simulator::{Measured, Scenario, blast_radius, simulate};
use serde_json::json;

use super::describe::Description;
use super::picture;
use super::source::{Model, Source};
use super::{Input, Shown, models, show};
use crate::output::{Answer, Stop};
use crate::table::Table;

pub(super) fn run(input: &Input) -> Result<Answer, Stop> {
    let source = Source::read(&input.file)?;
    let shown = match source.model()? {
        Model::Flows(description) => flows(&source, &description)?,
        Model::TenWorkers(model) => models::ten_workers(&source, &model)?,
        Model::TwoFlows(model) => models::two_flows(&source, &model)?,
    };
    input.answer(shown, true)
}

const NOTHING_HAPPENS: &str =
    "nothing happens in the incident: state hold_in_incident for a flow\n";

/// The parts of a day, by name.
fn parts(description: &Description, day: Scenario) -> (Scenario, Vec<&'static str>) {
    let Some([from, until]) = description.incident else {
        return (day, vec!["all day"]);
    };
    let parts = [
        ("before", Duration::ZERO, from),
        ("incident", from, until),
        ("after", until, description.length),
    ];
    let parts = parts.into_iter().filter(|(_, from, until)| from < until);
    let mut names = Vec::new();
    let day = parts.fold(day, |day, (name, from, until)| {
        names.push(name);
        day.span(from, until)
    });
    (day, names)
}

fn flows(source: &Source, description: &Description) -> Result<Shown, Stop> {
    let sizes = description.sizes(source, description.layout)?;
    let (day, names) = parts(description, description.scenario(&sizes));
    let day = day.step(description.step);
    let simulation = simulate(&day).map_err(|error| source.scenario(&error))?;
    let struck = blast_radius(&day).map_err(|error| source.scenario(&error))?;
    let mut text = String::new();
    let mut spans = Vec::new();
    let before = simulation.spans.first();
    for (n, (span, name)) in simulation.spans.iter().zip(names).enumerate() {
        let before = before.filter(|_| n > 0);
        text += &span_text(&sizes, name, span, before);
        spans.push(show::span_json(&sizes, name, span, before));
    }
    if description.nothing_happens() {
        text += NOTHING_HAPPENS;
    } else if description.incident.is_some() {
        text += &format!("{}\n", show::struck(&struck));
    }
    text += &format!("{}\n", show::FLOW_KEY);
    let json = json!({
        "model": "flows",
        "seed": description.seed,
        "spans": spans,
        "blast_radius": (!description.nothing_happens()).then(|| show::struck_json(&struck)),
    });
    let title = format!(
        "{} connections, seed {}",
        sizes.capacity(),
        description.seed
    );
    let svg = picture::draw(
        &title,
        &picture::of(&simulation, "", description.incident),
        None,
    );
    Ok(Shown { text, json, svg })
}

fn span_text(sizes: &Sizes, name: &str, span: &Measured, before: Option<&Measured>) -> String {
    let head = format!(
        "{name}: {:.0} s, {} of {} connections held on average",
        span.span.length().as_secs_f64(),
        show::share(span.utilisation()),
        span.capacity
    );
    let mut table = Table::new(1, ["flow"].into_iter().chain(show::FLOW_HEADS));
    for flow in &span.flows {
        table.row(
            [flow.name.clone()]
                .into_iter()
                .chain(show::flow_cells(flow)),
        );
    }
    format!(
        "{head}\n\n{table}\n{}\n",
        show::partitions(sizes, span, before)
    )
}
