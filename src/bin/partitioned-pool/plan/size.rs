//! `plan size`: sizes for a description, or what is to be said of the sizes that it states.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use partitioned_pool::config::Limit;
use partitioned_pool::fleet::FleetReport;
use partitioned_pool::plan::planner::{
    Carried, Day, Finding, Largest, Loss, PartitionNeed, PartitionReasons, PartitionSizes,
    Proposal, Reason, Review, Service, Sizes, propose, review,
};
use partitioned_pool::plan::simulator::simulate;
use serde_json::{Value, json};

use super::describe::Description;
use super::picture::{self, Sweep};
use super::source::{Model, Source};
use super::{Input, Shown, compare, show};
use crate::output::{self, Answer, Stop};
use crate::table::Table;
use crate::words::grouped;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    input: Input,
    /// Writes the sizes as the service's own configuration, if they fit the server.
    #[arg(long, value_name = "FILE")]
    toml: Option<PathBuf>,
}

pub(super) fn run(options: &Options) -> Result<Answer, Stop> {
    let source = Source::read(&options.input.file)?;
    let Model::Flows(description) = source.model()? else {
        return Err(source.whole("a model is simulated, not sized; describe flows instead"));
    };
    if !description.has_server {
        return Err(source.whole("state [fleet] with max_replicas and surge, and [server] with max_connections: sizes must fit them"));
    }
    let (sizes, mut shown, good, fits) = match &description.stated {
        Some(sizes) => {
            let found = review(&description.service, sizes).map_err(|error| source.whole(error))?;
            let shown = reviewed(&description.service, sizes, &found);
            (sizes.clone(), shown, found.is_good(), found.report.fits())
        }
        None => {
            nothing_but_sizes(&source, &description)?;
            let found = propose(&description.service).map_err(|error| source.whole(error))?;
            let toml = toml(&source, &description.service, &found.sizes)?;
            let shown = proposed(&description.service, &found, &toml);
            (
                found.sizes.clone(),
                shown,
                found.is_good(),
                found.report.fits(),
            )
        }
    };
    if options.toml.is_some() {
        shown.json["toml_written"] = fits.into();
    }
    match &options.toml {
        Some(file) if fits => {
            output::write(file, &toml(&source, &description.service, &sizes)?)?;
        }
        Some(file) => {
            let file = file.display();
            shown.text += &format!("\n{file} is not written: these sizes do not fit.\n");
        }
        None => {}
    }
    if options.input.svg.is_some() {
        shown.svg = picture(&source, &description, &sizes)?;
    }
    options.input.answer(shown, good)
}

/// The service's configuration, if its pool would take it.
fn toml(source: &Source, service: &Service, sizes: &Sizes) -> Result<String, Stop> {
    let text = sizes.to_toml(service);
    text.map_err(|error| source.whole(format!("the pool would refuse these sizes: {error}")))
}

/// What is proposed is not stated: a partition without a size says its kind, no more.
fn nothing_but_sizes(source: &Source, description: &Description) -> Result<(), Stop> {
    for table in &description.partitions {
        let stated = [
            ("reserved", table.reserved.is_some()),
            ("max_waiters", table.max_waiters.is_some()),
            ("acquire_timeout", table.acquire_timeout.is_some()),
            ("statement_timeout", table.statement_timeout.is_some()),
        ];
        if let Some((key, _)) = stated.into_iter().find(|(_, stated)| *stated) {
            return Err(source.whole(format!(
                "partition {}: size proposes {key} itself; leave it out, or state max_connections of every partition to have them reviewed",
                table.name.0
            )));
        }
    }
    Ok(())
}

/// The incident with these sizes, and what other splits of as many slots would do.
fn picture(source: &Source, description: &Description, sizes: &Sizes) -> Result<String, Stop> {
    let mut day = description.incident_day(sizes);
    day.step = Some(description.step);
    let came = simulate(&day);
    let came = came.map_err(|error| source.whole(error))?;
    let panels = picture::of(&came, "", description.incident_span());
    let sweep: Sweep = compare::sweep(source, description, sizes.capacity())?.1;
    let title = format!(
        "{}: {} connections in a replica",
        description.service.name,
        sizes.capacity()
    );
    Ok(picture::draw(&title, &panels, Some(&sweep)))
}

fn proposed(service: &Service, found: &Proposal, toml: &str) -> Shown {
    let verdict = match (found.report.fits(), found.is_good()) {
        (true, true) if is_open(&found.days) => {
            "these sizes fit, and break no promise in simulation; not all are shown (marked ?)"
        }
        (true, true) => "these sizes fit, and keep their promises in simulation",
        (true, false) => "these sizes fit, but break a promise in simulation (marked !)",
        (false, _) => "what the flows need does not fit the server",
    };
    let mut text = format!("{}: {verdict}\n\n", service.name);
    text += &reasons(found);
    text += &format!("\n{}", days(service, &found.days));
    for finding in &found.advice {
        text += &format!("advice: {finding}\n");
    }
    text += &format!("\n{}", found.report);
    text += &largest_text(service, found.largest.as_ref(), &found.report);
    if found.report.fits() {
        text += &format!("\nAs the service's configuration:\n\n{toml}");
    }
    let json = json!({
        "fits": found.report.fits(),
        "good": found.is_good(),
        "capacity": found.sizes.shared,
        "capacity_reason": found.capacity.to_string(),
        "partitions": partitions_json(found),
        "findings": found.advice.iter().map(finding_json).collect::<Vec<_>>(),
        "days": days_json(service, &found.days),
        "fleet": found.report,
        "largest": found.largest.as_ref().map(|largest| largest_json(service, largest)),
        "toml": toml,
    });
    Shown {
        text,
        json,
        svg: String::new(),
    }
}

/// Every figure with its formula.
fn reasons(found: &Proposal) -> String {
    let mut text = format!("budget {}\n  = {}\n", found.sizes.shared, found.capacity);
    for (sizes, why) in found.sizes.partitions.iter().zip(&found.partitions) {
        text += &format!("{} ({})\n", sizes.name, sizes.kind.as_str());
        let statement = sizes
            .statement_timeout
            .map_or("default".to_owned(), duration);
        let rows = [
            ("reserved", sizes.reserved.to_string(), &why.reserved),
            (
                "max_connections",
                sizes.max_connections.to_string(),
                &why.max_connections,
            ),
            (
                "max_waiters",
                sizes.max_waiters.to_string(),
                &why.max_waiters,
            ),
            (
                "acquire_timeout",
                duration(sizes.acquire_timeout),
                &why.acquire_timeout,
            ),
            ("statement_timeout", statement, &why.statement_timeout),
        ];
        for (name, figure, why) in rows {
            text += &format!("  {name:<17} {figure:>7} = {why}\n");
        }
    }
    text
}

fn duration(time: Duration) -> String {
    Limit::After(time).to_string()
}

/// So many flows have a column each; more would not fit a terminal.
const COLUMNS: usize = 3;

/// A day has too few calls of a flow to show that its promise is kept.
fn is_open(days: &[Day]) -> bool {
    days.iter().flat_map(|day| &day.flows).any(Loss::is_open)
}

/// What each flow loses on each day. A `!` marks a promise that is broken, a `?` one that is not shown.
fn days(service: &Service, days: &[Day]) -> String {
    let mut text = match service.flows.len() > COLUMNS {
        true => days_by_flow(service, days),
        false => days_by_day(service, days),
    };
    for (n, flow) in service.flows.iter().enumerate() {
        let open = days.iter().map(|day| day.flows[n]).filter(Loss::is_open);
        if let Some(fewest) = open.map(|loss| loss.arrived).min() {
            let (name, fewest) = (&flow.name, grouped(fewest));
            text += &format!("? {name} is not shown: only {fewest} calls in a simulated day\n");
        }
    }
    text
}

fn days_by_day(service: &Service, days: &[Day]) -> String {
    let flows = service.flows.iter();
    let flows = flows.map(|flow| format!("{} loses", flow.name));
    let heads = ["simulated".to_owned()].into_iter().chain(flows);
    let mut table = Table::new(1, heads.chain(["held".to_owned()]));
    for day in days {
        let losses = day.flows.iter().map(lost);
        let held = show::share(day.measured.utilisation());
        table.row([day.name(service)].into_iter().chain(losses).chain([held]));
    }
    table.to_string()
}

fn days_by_flow(service: &Service, days: &[Day]) -> String {
    let mut table = Table::new(2, ["simulated", "flow", "loses", "held"]);
    for day in days {
        let held = show::share(day.measured.utilisation());
        for (flow, loss) in service.flows.iter().zip(&day.flows) {
            let name = day.name(service);
            table.row([name, flow.name.clone(), lost(loss), held.clone()]);
        }
    }
    table.to_string()
}

fn lost(loss: &Loss) -> String {
    let mark = match (loss.breaks_a_promise(), loss.is_open()) {
        (true, _) => " !",
        (false, true) => " ?",
        (false, false) => "",
    };
    let (lost, arrived) = (grouped(loss.lost()), grouped(loss.arrived));
    format!("{lost} of {arrived} ({:.2} %){mark}", 100.0 * loss.share())
}

fn largest_text(service: &Service, largest: Option<&Largest>, report: &FleetReport) -> String {
    match largest {
        Some(largest) => {
            let table = days(service, &largest.days);
            format!("\nWith the largest partitions that fit, the flows would lose:\n\n{table}")
        }
        None if report.fits() => String::new(),
        None => "\nNothing fits, however small: fewer replicas, or a server that grants more.\n"
            .to_owned(),
    }
}

fn partitions_json(found: &Proposal) -> Value {
    let partitions = found.sizes.partitions.iter().zip(&found.partitions);
    let one = |(sizes, why): (&PartitionSizes, &PartitionReasons)| {
        let figure =
            |value: Value, why: &Reason| json!({ "value": value, "reason": why.to_string() });
        json!({
            "name": sizes.name,
            "kind": sizes.kind.as_str(),
            "reserved": figure(sizes.reserved.into(), &why.reserved),
            "max_connections": figure(sizes.max_connections.into(), &why.max_connections),
            "max_waiters": figure(sizes.max_waiters.into(), &why.max_waiters),
            "acquire_timeout": figure(duration(sizes.acquire_timeout).into(), &why.acquire_timeout),
            "statement_timeout": figure(sizes.statement_timeout.map(duration).into(), &why.statement_timeout),
        })
    };
    partitions.map(one).collect()
}

fn days_json(service: &Service, days: &[Day]) -> Value {
    let day = |day: &Day| {
        let flows = service.flows.iter().zip(&day.flows);
        let flows: Vec<_> = flows
            .map(|(flow, loss)| {
                json!({
                    "flow": flow.name,
                    "arrived": loss.arrived,
                    "lost": loss.lost(),
                    "late": loss.late,
                    "late_by_own_work": loss.late_anyway,
                    "allowed": loss.allowed,
                    "promised": loss.promised,
                    "shown": loss.is_shown(),
                    "broken": loss.breaks_a_promise(),
                })
            })
            .collect();
        json!({ "day": day.name(service), "flows": flows, "utilisation": day.measured.utilisation() })
    };
    days.iter().map(day).collect()
}

fn largest_json(service: &Service, largest: &Largest) -> Value {
    let toml = largest.sizes.to_toml(service).ok();
    json!({ "toml": toml, "days": days_json(service, &largest.days) })
}

fn reviewed(service: &Service, sizes: &Sizes, found: &Review) -> Shown {
    let verdict = match found.is_good() {
        true if is_open(&found.days) => {
            "nothing wrong was seen with these sizes, but not every promise is shown (marked ?)"
        }
        true => "these sizes are healthy",
        false => "something is wrong with these sizes",
    };
    let mut text = format!(
        "{}: {verdict}\n\n{}\n",
        service.name,
        carried(service, found)
    );
    for finding in &found.findings {
        let word = if finding.is_wrong() {
            "wrong"
        } else {
            "advice"
        };
        text += &format!("{word}: {finding}\n");
    }
    text += if found.findings.is_empty() { "" } else { "\n" };
    text += &format!("{}\n{}", days(service, &found.days), found.report);
    text += &largest_text(service, found.largest.as_ref(), &found.report);
    let findings: Vec<_> = found.findings.iter().map(finding_json).collect();
    let json = json!({
        "fits": found.report.fits(),
        "good": found.is_good(),
        "capacity": sizes.capacity(),
        "findings": findings,
        "partitions": carried_json(service, found),
        "days": days_json(service, &found.days),
        "fleet": found.report,
        "largest": found.largest.as_ref().map(|largest| largest_json(service, largest)),
    });
    Shown {
        text,
        json,
        svg: String::new(),
    }
}

fn finding_json(finding: &Finding) -> Value {
    json!({ "wrong": finding.is_wrong(), "says": finding.to_string() })
}

/// What each partition carries, by the formulas.
fn carried(service: &Service, found: &Review) -> String {
    let heads = [
        "partition",
        "comes",
        "carries",
        "in flight",
        "at peak",
        "refused on its own",
        "refused at peak",
    ];
    let mut table = Table::new(1, heads);
    for (need, carried) in service.partitions().iter().zip(&found.partitions) {
        table.row(
            [need.name.clone()]
                .into_iter()
                .chain(carried_cells(carried)),
        );
    }
    format!(
        "{table}refused: by M/M/c/K; on its own = at the mean, with only what is reserved; at peak = with all it may hold\n"
    )
}

fn carried_cells(carried: &Carried) -> [String; 6] {
    [
        format!("{:.1}/s", carried.rate.as_per_second()),
        format!("{:.1}/s", carried.most.as_per_second()),
        format!("{:.1}", carried.mean),
        format!("{:.1}", carried.peak),
        format!("{:.3} %", 100.0 * carried.refused_on_its_own),
        format!("{:.3} %", 100.0 * carried.refused_at_peak),
    ]
}

fn carried_json(service: &Service, found: &Review) -> Value {
    let partitions = service.partitions();
    let partitions = partitions.iter().zip(&found.partitions);
    let one = |(need, carried): (&PartitionNeed, &Carried)| {
        json!({
            "name": need.name,
            "calls_per_second": carried.rate.as_per_second(),
            "carries_per_second": carried.most.as_per_second(),
            "erlangs": carried.mean,
            "erlangs_at_peak": carried.peak,
            "refused_on_its_own": carried.refused_on_its_own,
            "refused_at_peak": carried.refused_at_peak,
        })
    };
    partitions.map(one).collect()
}
