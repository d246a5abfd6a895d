//! `plan simulate`: one day, through the ledger.

use std::time::Duration;

use partitioned_pool::plan::planner::Sizes;
use partitioned_pool::plan::reference::{Day, TenWorkers, TwoFlows};
use partitioned_pool::plan::simulator::{Measured, Scenario, blast_radius, simulate};
use serde_json::json;

use super::describe::Description;
use super::picture::{self, Sweep};
use super::show;
use super::source::{Model, Source};
use super::{Input, Shown};
use crate::output::{Answer, Stop};
use crate::table::Table;
use crate::words::grouped;

pub(super) fn run(input: &Input) -> Result<Answer, Stop> {
    let source = Source::read(&input.file)?;
    let shown = match source.model()? {
        Model::Flows(description) => flows(&source, &description)?,
        Model::TenWorkers(model) => ten_workers(&source, &model)?,
        Model::TwoFlows(model) => two_flows(&source, &model)?,
    };
    input.answer(shown, true)
}

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
    let sizes = description.sizes(description.layout)?;
    let (day, names) = parts(description, description.scenario(&sizes));
    let day = day.step(description.step);
    let simulation = simulate(&day).map_err(|error| source.whole(error))?;
    let struck = blast_radius(&day).map_err(|error| source.whole(error))?;
    let mut text = String::new();
    let mut spans = Vec::new();
    let before = simulation.spans.first();
    for (n, (span, name)) in simulation.spans.iter().zip(names).enumerate() {
        let before = before.filter(|_| n > 0);
        text += &span_text(&sizes, name, span, before);
        spans.push(show::span_json(&sizes, name, span, before));
    }
    if description.incident.is_some() {
        text += &format!("{}\n", show::struck(&struck));
    }
    text += &format!("{}\n", show::FLOW_KEY);
    let json = json!({
        "model": "flows",
        "seed": description.seed,
        "spans": spans,
        "blast_radius": show::struck_json(&struck),
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

fn ten_workers(source: &Source, model: &TenWorkers) -> Result<Shown, Stop> {
    let scenario = model.scenario();
    let simulation = simulate(&scenario).map_err(|error| source.whole(error))?;
    let incident = &simulation.spans[0];
    let [from, until] = model.incident;
    let mut table = Table::new(
        1,
        [
            "class",
            "reserved",
            "max",
            "queue",
            "came",
            "started",
            "of them",
            "rejected",
            "longest wait",
        ],
    );
    for (class, flow) in model.classes.iter().zip(&incident.flows) {
        table.row([
            class.name.clone(),
            class.reserved.to_string(),
            class.max.to_string(),
            class.queue.to_string(),
            grouped(flow.arrived),
            grouped(flow.started()),
            format!("{:.1} %", flow.started_percent()),
            grouped(flow.refused.total()),
            show::time(flow.waits.longest()),
        ]);
    }
    let utilisation = show::share(incident.utilisation());
    let text = format!(
        "calls that come in the incident, from second {from} until {until}; {utilisation} of {} workers are held\n\n{table}",
        model.workers
    );
    let flows: Vec<_> = incident.flows.iter().map(started_json).collect();
    let json = json!({ "model": "ten_workers", "workers": model.workers, "incident": model.incident, "classes": flows, "utilisation": incident.utilisation() });
    let span = [from, until].map(|second| Duration::from_secs(second.into()));
    let title = format!("{} workers", model.workers);
    let svg = picture::draw(&title, &picture::of(&simulation, "", Some(span)), None);
    Ok(Shown { text, json, svg })
}

fn started_json(flow: &partitioned_pool::plan::simulator::FlowOutcome) -> serde_json::Value {
    let mut value = show::flow_json(flow);
    value["started"] = flow.started().into();
    value["started_percent"] = flow.started_percent().into();
    value
}

/// The first table and the second: one row for each layout and day.
fn two_flows(source: &Source, model: &TwoFlows) -> Result<Shown, Stop> {
    let wrong = |error| source.whole(error);
    let names: Vec<_> = model.flows.iter().map(|flow| flow.name.clone()).collect();
    let each = |what: &str| {
        names
            .iter()
            .map(|name| format!("{name} {what}"))
            .collect::<Vec<_>>()
    };
    let heads = ["layout".to_owned(), "day".to_owned()].into_iter();
    let heads = heads.chain(each("served")).chain(each("dropped"));
    let mut table = Table::new(
        2,
        heads.chain(["idle slots".to_owned(), "average busy".to_owned()]),
    );
    let mut json = Vec::new();
    let mut sweep = Sweep::new("dropped calls, by layout", "dropped");
    for layout in model.layouts() {
        let mut dropped = Vec::new();
        for (day, word) in [(Day::Healthy, "healthy"), (Day::Slowdown, "slowdown")] {
            let run = model.run(&layout, day).map_err(wrong)?;
            let flows = &run.measured.flows;
            let figures = flows
                .iter()
                .map(|flow| flow.started())
                .chain(flows.iter().map(|flow| flow.refused.total()));
            let mut row = vec![layout.to_string(), word.to_owned()];
            row.extend(figures.map(grouped));
            row.extend([
                grouped(run.measured.idle_when_refused()),
                format!("{:.2}", run.average_busy),
            ]);
            table.row(row);
            dropped.extend(
                flows
                    .iter()
                    .map(|flow| (format!("{}, {word}", flow.name), flow.refused.total())),
            );
            let flows: Vec<_> = flows.iter().map(|flow| json!({ "flow": flow.name, "served": flow.started(), "dropped": flow.refused.total() })).collect();
            json.push(json!({ "layout": layout.to_string(), "day": word, "flows": flows, "idle_slots": run.measured.idle_when_refused(), "average_busy": run.average_busy }));
        }
        sweep.point(layout.to_string(), dropped);
    }
    let single = model
        .simulate(&model.layouts()[0], Day::Slowdown)
        .map_err(wrong)?;
    let from = Duration::from_millis(model.slowdown_starts_at_round.into());
    let until = Duration::from_millis(model.rounds.into());
    let panels = picture::of(&single, ", in one pool", Some([from, until]));
    let title = format!(
        "{} slots, {} rounds, seed {}",
        model.slots, model.rounds, model.seed
    );
    let svg = picture::draw(&title, &panels, Some(&sweep));
    let json = json!({ "model": "two_flows", "seed": model.seed, "slots": model.slots, "rounds": model.rounds, "runs": json });
    Ok(Shown {
        text: table.to_string(),
        json,
        svg,
    })
}
