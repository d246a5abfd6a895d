//! `plan compare`: the same calls in several layouts.

use partitioned_pool::plan::planner::Sizes;
use partitioned_pool::plan::simulator::{
    FlowOutcome, Measured, Simulation, Struck, blast_radius, simulate,
};
use serde_json::{Value, json};

use super::describe::Description;
use super::file::LayoutName;
use super::picture::{self, Panel, Sweep};
use super::source::{Model, Source};
use super::{Input, Shown, show};
use crate::output::{Answer, Stop};
use crate::table::Table;
use crate::words::grouped;

/// Splits of a sweep, at most.
const SPLITS: u32 = 15;

pub(super) fn run(input: &Input) -> Result<Answer, Stop> {
    let source = Source::read(&input.file)?;
    let Model::Flows(description) = source.model()? else {
        return Err(source.whole("the layouts of a model are simulated by `plan simulate`"));
    };
    let layouts = layouts(&source, &description)?;
    let capacity = description
        .capacity
        .unwrap_or_else(|| layouts[0].1.capacity());
    let mut table = Table::new(
        3,
        ["layout", "day", "flow"]
            .into_iter()
            .chain(show::FLOW_HEADS),
    );
    let mut whole = Table::new(
        2,
        [
            "layout",
            "day",
            "held",
            "refused",
            "stranded",
            "blast radius",
        ],
    );
    let mut json = Vec::new();
    let mut panels = Vec::new();
    for (name, sizes) in &layouts {
        let compared = Compared::new(&source, &description, sizes)?;
        compared.rows(name, &mut table, &mut whole);
        json.push(compared.json(name, sizes));
        panels.extend(compared.panel(name, &description));
    }
    let (splits, picture) = sweep(&source, &description, capacity)?;
    let text = format!(
        "{}\n\n{table}{}\n\n{whole}stranded: refusals while slots that others have reserved were free\n\n{}\n{}",
        head(&description, capacity),
        show::FLOW_KEY,
        picture.title(),
        picture.table()
    );
    let title = format!(
        "{}: layouts of {capacity} connections",
        description.service.name
    );
    let svg = picture::draw(&title, &panels, Some(&picture));
    let json = json!({ "capacity": capacity, "seed": description.seed, "incident": description.incident_words(), "layouts": json, "sweep": splits });
    input.answer(Shown { text, json, svg }, true)
}

fn head(description: &Description, capacity: u32) -> String {
    format!(
        "{capacity} connections in a replica, {:.0} s, seed {}; incident: {}",
        description.length.as_secs_f64(),
        description.seed,
        description.incident_words()
    )
}

/// What the file states, the usual ones, and the others that it names.
fn layouts(source: &Source, description: &Description) -> Result<Vec<(String, Sizes)>, Stop> {
    let stated = description
        .stated
        .clone()
        .map(|sizes| ("stated".to_owned(), sizes));
    let mut layouts = Vec::from_iter(stated);
    let usual = [
        ("fixed", LayoutName::Fixed),
        ("shared", LayoutName::Shared),
        ("borrowing", LayoutName::Borrowing),
    ];
    for (name, layout) in usual {
        layouts.push((name.to_owned(), description.sizes(source, layout)?));
    }
    layouts.extend(description.others.iter().cloned());
    Ok(layouts)
}

/// One layout on both days.
struct Compared {
    healthy: Simulation,
    incident: Simulation,
    radius: Vec<Struck>,
}

impl Compared {
    fn new(source: &Source, description: &Description, sizes: &Sizes) -> Result<Self, Stop> {
        let wrong = |error| source.scenario(&error);
        let day = description.incident_day(sizes);
        Ok(Self {
            healthy: simulate(&day.without_incidents()).map_err(wrong)?,
            radius: blast_radius(&day).map_err(wrong)?,
            incident: simulate(&day.step(description.step)).map_err(wrong)?,
        })
    }

    fn days(&self) -> [(&'static str, &Measured); 2] {
        [
            ("healthy", &self.healthy.spans[0]),
            ("incident", &self.incident.spans[0]),
        ]
    }

    fn rows(&self, name: &str, flows: &mut Table, whole: &mut Table) {
        for (day, measured) in self.days() {
            for flow in &measured.flows {
                let words = [name.to_owned(), day.to_owned(), flow.name.clone()];
                flows.row(words.into_iter().chain(show::flow_cells(flow)));
            }
            let refused = measured
                .flows
                .iter()
                .map(|flow| flow.refused.total())
                .sum::<u64>();
            let radius = match day {
                "incident" => self.radius_words(),
                _ => String::new(),
            };
            whole.row([
                name.to_owned(),
                day.to_owned(),
                show::share(measured.utilisation()),
                grouped(refused),
                grouped(measured.stranded_refusals),
                radius,
            ]);
        }
    }

    fn radius_words(&self) -> String {
        if self.radius.is_empty() {
            return "none".to_owned();
        }
        let each = self.radius.iter().map(|one| {
            format!(
                "{} -{}",
                one.flow,
                grouped(one.lost - one.lost_without_incident)
            )
        });
        each.collect::<Vec<_>>().join(", ")
    }

    fn json(&self, name: &str, sizes: &Sizes) -> Value {
        let [healthy, incident] = self.days();
        json!({
            "layout": name,
            "healthy": show::span_json(sizes, healthy.0, healthy.1, None),
            "incident": show::span_json(sizes, incident.0, incident.1, Some(healthy.1)),
            "stranded": { "healthy": healthy.1.stranded_refusals, "incident": incident.1.stranded_refusals },
            "blast_radius": show::struck_json(&self.radius),
        })
    }

    fn panel(&self, name: &str, description: &Description) -> Vec<Panel> {
        picture::of(
            &self.incident,
            &format!(", {name}"),
            description.incident_span(),
        )
    }
}

/// Fixed splits: the first partition gets so many, the others the rest in proportion to their peaks. As JSON, and
/// for the picture.
pub(super) fn sweep(
    source: &Source,
    description: &Description,
    capacity: u32,
) -> Result<(Value, Sweep), Stop> {
    let names: Vec<_> = description
        .needs
        .iter()
        .map(|need| need.name.as_str())
        .collect();
    let title = format!(
        "calls lost with fixed partitions, by split: {}",
        names.join("/")
    );
    let mut sweep = Sweep::new(title, "lost");
    let mut json = Vec::new();
    for split in splits(description, capacity) {
        let sizes = description.with_stated_waits(Sizes::split(&description.needs, &split));
        let day = description.incident_day(&sizes);
        let words = split
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join("/");
        let mut lost = Vec::new();
        for (name, day) in [("healthy", day.without_incidents()), ("incident", day)] {
            let came = simulate(&day).map_err(|error| source.whole(error))?;
            let flows = came.spans[0].flows.iter();
            lost.extend(
                flows.map(|flow| (format!("{}, {name}", flow.name), FlowOutcome::lost(flow))),
            );
        }
        let object: serde_json::Map<_, _> = lost
            .iter()
            .map(|(name, lost)| (name.clone(), Value::from(*lost)))
            .collect();
        json.push(json!({ "split": split, "lost": object }));
        sweep.point(words, lost);
    }
    Ok((Value::Array(json), sweep))
}

/// The sizes of the first partition, evenly from one end to the other.
fn splits(description: &Description, capacity: u32) -> Vec<Vec<u32>> {
    let others = &description.needs[1..];
    let count = u32::try_from(others.len()).unwrap_or(u32::MAX);
    let Some(most) = capacity
        .checked_sub(count)
        .filter(|most| *most > 0 && count > 0)
    else {
        return Vec::new();
    };
    let points = SPLITS.min(most);
    let first = (1..=points).map(|n| {
        let share = u64::from(most) * u64::from(n) / u64::from(points);
        u32::try_from(share).unwrap_or(most)
    });
    let split = first.filter_map(|first| {
        let rest = Sizes::fixed(others, capacity - first)?;
        let rest = rest.partitions.iter().map(|p| p.max_connections);
        Some(std::iter::once(first).chain(rest).collect())
    });
    split.collect()
}
