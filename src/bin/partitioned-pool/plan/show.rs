//! What came of a run, as cells of a table and as JSON.

use std::time::Duration;

use partitioned_pool::admission::ClassId;
use partitioned_pool::plan::diagnosis::{Diagnosis, Window, diagnose};
use partitioned_pool::plan::planner::Sizes;
use partitioned_pool::plan::simulator::{ClassOutcome, FlowOutcome, Measured, Struck};
use serde_json::{Value, json};

use crate::table::Table;
use crate::words::{grouped, millis, percent};

/// The headings of [`flow_cells`], behind `words` of the caller.
pub(super) const FLOW_HEADS: [&str; 8] = [
    "came",
    "served",
    "of them",
    "full",
    "too short",
    "waited",
    "late",
    "wait p99",
];

/// What these headings mean, in a line.
pub(super) const FLOW_KEY: &str = "refused: full = queue full, too short = for its deadline, waited = too long; late = not done by its deadline;
\
     the rest of those who came still ran or waited at the end";

pub(super) fn flow_cells(flow: &FlowOutcome) -> [String; 8] {
    [
        grouped(flow.arrived),
        grouped(flow.served),
        percent(flow.served, flow.arrived),
        grouped(flow.refused.queue_full),
        grouped(flow.refused.deadline_too_short),
        grouped(flow.refused.wait_timeout),
        grouped(flow.late),
        time(flow.waits.percentile(99.0)),
    ]
}

/// `0`, `41.3 ms` or `1.2 s`.
pub(super) fn time(time: Duration) -> String {
    match time {
        Duration::ZERO => "0".to_owned(),
        time if time < Duration::from_secs(10) => millis(time),
        time => format!("{:.1} s", time.as_secs_f64()),
    }
}

/// A share as `72.9 %`.
pub(super) fn share(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

pub(super) fn flow_json(flow: &FlowOutcome) -> Value {
    json!({
        "flow": flow.name,
        "arrived": flow.arrived,
        "served": flow.served,
        "late": flow.late,
        "refused": {
            "queue_full": flow.refused.queue_full,
            "deadline_too_short": flow.refused.deadline_too_short,
            "wait_timeout": flow.refused.wait_timeout,
        },
        "running": flow.running,
        "waiting": flow.waiting,
        "wait_p99_seconds": flow.waits.percentile(99.0).as_secs_f64(),
        "wait_longest_seconds": flow.waits.longest().as_secs_f64(),
        "held_average": flow.held.average,
        "held_peak": flow.held.peak,
    })
}

/// The partitions of a span: limits, use, and what is wrong.
pub(super) fn partitions(sizes: &Sizes, span: &Measured, before: Option<&Measured>) -> Table {
    let heads = [
        "partition",
        "diagnosis",
        "reserved",
        "max",
        "queue",
        "held",
        "peak",
        "of its max",
        "strands",
    ];
    let mut table = Table::new(2, heads);
    for (class, partition) in sizes.partitions.iter().enumerate() {
        let outcome = &span.classes[class];
        table.row([
            partition.name.clone(),
            found(span, class, before).finding.to_string(),
            partition.reserved.to_string(),
            partition.max_connections.to_string(),
            partition.max_waiters.to_string(),
            format!("{:.1}", outcome.held.average),
            outcome.held.peak.to_string(),
            share(outcome.utilisation()),
            grouped(outcome.stranded_refusals),
        ]);
    }
    table
}

fn found(span: &Measured, class: usize, before: Option<&Measured>) -> Diagnosis {
    diagnose(&Window::of(span, ClassId::new(class), before))
}

pub(super) fn span_json(
    sizes: &Sizes,
    name: &str,
    span: &Measured,
    before: Option<&Measured>,
) -> Value {
    let flows: Vec<_> = span.flows.iter().map(flow_json).collect();
    let partitions = sizes.partitions.iter().zip(&span.classes).enumerate();
    let partitions: Vec<_> = partitions
        .map(|(n, (partition, outcome))| {
            partition_json(&partition.name, outcome, &found(span, n, before))
        })
        .collect();
    json!({
        "span": name,
        "from_seconds": span.span.from.as_secs_f64(),
        "until_seconds": span.span.until.as_secs_f64(),
        "capacity": span.capacity,
        "utilisation": span.utilisation(),
        "flows": flows,
        "partitions": partitions,
    })
}

fn partition_json(name: &str, outcome: &ClassOutcome, diagnosis: &Diagnosis) -> Value {
    json!({
        "partition": name,
        "reserved": outcome.rules.reserved,
        "max_connections": outcome.rules.max,
        "max_waiters": outcome.rules.queue,
        "held_average": outcome.held.average,
        "held_peak": outcome.held.peak,
        "stranded_refusals": outcome.stranded_refusals,
        "finding": diagnosis.finding.to_string(),
        "diagnosis": diagnosis.to_string(),
    })
}

/// Which healthy flows suffered, in a sentence.
pub(super) fn struck(struck: &[Struck]) -> String {
    if struck.is_empty() {
        return "blast radius: none; no flow loses calls by the incident of another".to_owned();
    }
    let each = struck.iter().map(|one| {
        let (lost, else_lost) = (grouped(one.lost), grouped(one.lost_without_incident));
        format!(
            "{} loses {lost} calls ({else_lost} without the incident)",
            one.flow
        )
    });
    format!("blast radius: {}", each.collect::<Vec<_>>().join("; "))
}

pub(super) fn struck_json(struck: &[Struck]) -> Value {
    let one = |s: &Struck| json!({ "flow": s.flow, "lost": s.lost, "lost_without_incident": s.lost_without_incident });
    struck.iter().map(one).collect()
}
