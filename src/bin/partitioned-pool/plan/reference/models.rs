//! The two models.

use partitioned_pool::plan::reference::{BurstyRun, Day, Layout, TenWorkers, TwoFlows};
use serde_json::Value;

use super::{Gathered, rows};
use crate::output::Stop;

/// The setting of each row, and what became of the calls that came in the incident.
pub(super) fn ten_workers(published: &Value, figures: &mut Gathered) -> Result<(), Stop> {
    let settings = TenWorkers::published();
    for row in rows(published, "served_percent") {
        let name = row["setting"].as_str().unwrap_or_default();
        let (_, model) = find(&settings, |(known, _)| *known == name, name)?;
        let run = format!("ten workers, {name}");
        for flow in &model.run().map_err(Stop::new)?.flows {
            figures.number(&run, row, &flow.name, flow.started_percent(), 1);
            let rejected = format!("{}_rejected", flow.name);
            figures.add(&run, row, &rejected, flow.refused.total());
        }
    }
    Ok(())
}

/// The rows of both tables, and what was derived from them.
pub(super) fn two_flows(published: &Value, figures: &mut Gathered) -> Result<(), Stop> {
    let model = TwoFlows::default();
    let layouts = model.layouts();
    for row in rows(published, "layouts") {
        let name = row["layout"].as_str().unwrap_or_default();
        let split = name.trim_start_matches("bulkhead ");
        let layout = find(&layouts, |layout| layout.to_string() == split, name)?;
        let (day, word) = match row["day"].as_str() {
            Some("healthy") => (Day::Healthy, "healthy"),
            _ => (Day::Slowdown, "slowdown"),
        };
        let run = model.run(layout, day).map_err(Stop::new)?;
        one_layout(&format!("two flows, {name}, {word}"), row, &run, figures);
    }
    for row in rows(published, "splits") {
        let name = row["split"].as_str().unwrap_or_default();
        let layout = find(&layouts, |layout| layout.to_string() == name, name)?;
        one_split(&model, layout, row, figures)?;
    }
    derived(&model, &published["derived"], figures)
}

fn one_layout(run: &str, row: &Value, came: &BurstyRun, figures: &mut Gathered) {
    for flow in &came.measured.flows {
        figures.add(run, row, &format!("{}_served", flow.name), flow.started());
        let dropped = format!("{}_dropped", flow.name);
        figures.add(run, row, &dropped, flow.refused.total());
    }
    figures.add(run, row, "idle_slots", came.measured.idle_when_refused());
    figures.number(run, row, "average_busy", came.average_busy, 2);
}

fn one_split(
    model: &TwoFlows,
    layout: &Layout,
    row: &Value,
    figures: &mut Gathered,
) -> Result<(), Stop> {
    for (day, word) in [(Day::Healthy, "healthy"), (Day::Slowdown, "slowdown")] {
        let run = model.run(layout, day).map_err(Stop::new)?;
        for flow in &run.measured.flows {
            let name = format!("{word}_{}_dropped", flow.name);
            let dropped = flow.refused.total();
            figures.add(&format!("two flows, {layout}"), row, &name, dropped);
        }
    }
    Ok(())
}

fn derived(model: &TwoFlows, row: &Value, figures: &mut Gathered) -> Result<(), Stop> {
    let run = "two flows, 24/8";
    let rescued = model.rescued(0, &[24, 8]).map_err(Stop::new)?;
    figures.number(run, row, "tracking_rescued_percent", rescued.percent, 1);
    let calls = rescued.in_ten_minutes;
    figures.number(run, row, "tracking_rescued_in_ten_minutes", calls, 0);
    Ok(())
}

/// Of the second flow's pool on an ordinary day; that is a formula, and no run.
pub(super) fn utilisations(row: &Value, figures: &mut Gathered) -> Result<(), Stop> {
    let model = TwoFlows::default();
    for slots in [8, 5] {
        let utilisation = model.utilisation(1, slots).map_err(Stop::new)?;
        let name = format!("event_pool_utilisation_at_{slots}");
        figures.number("two flows", row, &name, utilisation, 3);
    }
    Ok(())
}

fn find<'a, T>(all: &'a [T], is: impl Fn(&T) -> bool, name: &str) -> Result<&'a T, Stop> {
    let found = all.iter().find(|one| is(one));
    found.ok_or_else(|| Stop(format!("nothing is known of the published run {name}")))
}
