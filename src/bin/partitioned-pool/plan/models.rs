//! `plan simulate` of the published models.

use std::time::Duration;

use partitioned_pool::plan::reference::{
    BurstyRun, Day, InvalidModel, Layout, TenWorkers, TwoFlows,
};
use partitioned_pool::plan::simulator::{FlowOutcome, simulate};
use serde_json::{Value, json};

use super::picture::{self, Sweep};
use super::source::Source;
use super::{Shown, show};
use crate::output::Stop;
use crate::table::Table;
use crate::words::grouped;

/// What cannot be run, with the line of the setting; `each` is what the model has several of.
fn wrong(source: &Source, each: &str, error: &InvalidModel) -> Stop {
    let (key, position) = match error {
        InvalidModel::Name { position, .. }
        | InvalidModel::NameTwice { position, .. }
        | InvalidModel::Class { position, .. } => (each, Some(*position)),
        InvalidModel::Nothing => (each, None),
        InvalidModel::NoWorkers | InvalidModel::Reserved { .. } => ("workers", None),
        InvalidModel::NoSlots => ("slots", None),
        InvalidModel::Incident { .. } => ("incident", None),
        InvalidModel::Pools { .. } | InvalidModel::Sum { .. } => ("splits", None),
        InvalidModel::Seed(_) => ("seed", None),
        InvalidModel::Slowdown => ("slowdown_starts_at_round", None),
        _ => return source.whole(error),
    };
    match error {
        InvalidModel::Nothing => source.at_key(key, None, format!("[[{each}]]: {error}")),
        _ => source.at_key(key, position, error),
    }
}

/// What became of the calls that came in the incident.
pub(super) fn ten_workers(source: &Source, model: &TenWorkers) -> Result<Shown, Stop> {
    model
        .check()
        .map_err(|error| wrong(source, "class", &error))?;
    let simulation = simulate(&model.scenario()).map_err(|error| source.whole(error))?;
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
        "calls that come in the incident, from second {from} until {until}; {utilisation} of {} workers are held\n\n\
         {table}",
        model.workers
    );
    let flows: Vec<_> = incident.flows.iter().map(started_json).collect();
    let json = json!({
        "model": "ten_workers",
        "workers": model.workers,
        "incident": model.incident,
        "classes": flows,
        "utilisation": incident.utilisation(),
    });
    let span = [from, until].map(|second| Duration::from_secs(second.into()));
    let title = format!("{} workers", model.workers);
    let svg = picture::draw(&title, &picture::of(&simulation, "", Some(span)), None);
    Ok(Shown { text, json, svg })
}

fn started_json(flow: &FlowOutcome) -> Value {
    let mut value = show::flow_json(flow);
    value["started"] = flow.started().into();
    value["started_percent"] = flow.started_percent().into();
    value
}

/// The first table and the second: one row for each layout and day.
pub(super) fn two_flows(source: &Source, model: &TwoFlows) -> Result<Shown, Stop> {
    let wrong = |error| wrong(source, "flow", &error);
    model.check().map_err(wrong)?;
    let mut table = Table::new(2, bursty_heads(model));
    let mut runs = Vec::new();
    let mut sweep = Sweep::new("dropped calls, by layout", "dropped");
    for layout in model.layouts() {
        let mut dropped = Vec::new();
        for (day, word) in [(Day::Healthy, "healthy"), (Day::Slowdown, "slowdown")] {
            let run = model.run(&layout, day).map_err(wrong)?;
            table.row(bursty_row(&layout, word, &run));
            runs.push(bursty_json(&layout, word, &run));
            let flows = run.measured.flows.iter();
            dropped.extend(flows.map(|f| (format!("{}, {word}", f.name), f.refused.total())));
        }
        sweep.point(layout.to_string(), dropped);
    }
    let single = Layout::Single(model.slots);
    let single = model.simulate(&single, Day::Slowdown).map_err(wrong)?;
    // A round is a millisecond of the virtual clock.
    let slowdown = [model.slowdown_starts_at_round, model.rounds];
    let slowdown = slowdown.map(|round| Duration::from_millis(round.into()));
    let panels = picture::of(&single, ", in one pool", Some(slowdown));
    let (slots, rounds, seed) = (model.slots, model.rounds, model.seed);
    let title = format!("{slots} slots, {rounds} rounds, seed {seed}");
    let svg = picture::draw(&title, &panels, Some(&sweep));
    let json = json!({
        "model": "two_flows",
        "seed": seed,
        "slots": slots,
        "rounds": rounds,
        "runs": runs,
    });
    let text = table.to_string();
    Ok(Shown { text, json, svg })
}

fn bursty_heads(model: &TwoFlows) -> Vec<String> {
    let mut heads = vec!["layout".to_owned(), "day".to_owned()];
    for what in ["served", "dropped"] {
        heads.extend(
            model
                .flows
                .iter()
                .map(|flow| format!("{} {what}", flow.name)),
        );
    }
    heads.extend(["idle slots".to_owned(), "average busy".to_owned()]);
    heads
}

fn bursty_row(layout: &Layout, day: &str, run: &BurstyRun) -> Vec<String> {
    let flows = &run.measured.flows;
    let mut row = vec![layout.to_string(), day.to_owned()];
    row.extend(flows.iter().map(|flow| grouped(flow.started())));
    row.extend(flows.iter().map(|flow| grouped(flow.refused.total())));
    row.push(grouped(run.measured.idle_when_refused()));
    row.push(format!("{:.2}", run.average_busy));
    row
}

fn bursty_json(layout: &Layout, day: &str, run: &BurstyRun) -> Value {
    let flow = |flow: &FlowOutcome| json!({ "flow": flow.name, "served": flow.started(), "dropped": flow.refused.total() });
    let flows: Vec<_> = run.measured.flows.iter().map(flow).collect();
    json!({
        "layout": layout.to_string(),
        "day": day,
        "flows": flows,
        "idle_slots": run.measured.idle_when_refused(),
        "average_busy": run.average_busy,
    })
}
