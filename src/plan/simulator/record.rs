//! What is written down while a run goes on.

use std::time::Duration;

use crate::admission::{Cause, ClassId, Ledger};
use crate::plan::figures::{Ages, Level, Refused};
use crate::plan::number::nanos;

use super::gauge::Gauge;
use super::outcome::{ClassOutcome, Curve, FlowCurve, FlowOutcome, Measured, Simulation};
use super::run::Call;
use super::scenario::{Scenario, Span};

/// Slots held and callers waiting, now.
#[derive(Default)]
struct Live {
    held: Gauge,
    waiting: Gauge,
}

/// What a class has been through since the span began.
#[derive(Default)]
struct Tally {
    ended: u64,
    hold_time: u128,
    stranded_refusals: u64,
    stranded_slots: u64,
}

/// How a call fared in the end.
#[derive(Clone, Copy)]
pub(super) enum Fate {
    Served,
    Late,
    Running,
    Waiting,
}

/// Writes down the spans and the curve of one run.
pub(super) struct Recorder {
    capacity: u32,
    /// The class of each flow.
    class_of: Vec<usize>,
    flows: Vec<Live>,
    classes: Vec<Live>,
    tallies: Vec<Tally>,
    /// Refusals, since the span began, while others kept slots free.
    stranded_refusals: u64,
    spans: Vec<Measured>,
    /// The span that goes on, or that comes next.
    position: usize,
    inside: bool,
    curve: Option<Curve>,
    next_point: u64,
}

impl Recorder {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let (flows, classes) = (scenario.flows.len(), scenario.rules.classes.len());
        let spans = scenario.reported().into_iter();
        Self {
            capacity: scenario.rules.capacity,
            class_of: scenario.flows.iter().map(|f| f.class.index()).collect(),
            flows: (0..flows).map(|_| Live::default()).collect(),
            classes: (0..classes).map(|_| Live::default()).collect(),
            tallies: (0..classes).map(|_| Tally::default()).collect(),
            stranded_refusals: 0,
            spans: spans.map(|span| blank(scenario, span)).collect(),
            position: 0,
            inside: false,
            curve: scenario.step.map(|step| flat(scenario, step)),
            next_point: if scenario.step.is_some() { 0 } else { u64::MAX },
        }
    }

    /// When [`tick`](Self::tick) is due next: a point of the curve, or the edge of a span.
    pub(super) fn next_tick(&self) -> u64 {
        self.next_point.min(self.next_edge())
    }

    fn next_edge(&self) -> u64 {
        let edge = self.spans.get(self.position).map(|measured| {
            let span = measured.span;
            if self.inside { span.until } else { span.from }
        });
        edge.map_or(u64::MAX, nanos)
    }

    pub(super) fn tick<W>(&mut self, now: u64, ledger: &Ledger<W>) {
        if now == self.next_edge() {
            self.edge(now, ledger);
        } else {
            self.point();
        }
    }

    /// The run ends at `now`, and with it a span that lasts as long.
    pub(super) fn stop<W>(&mut self, now: u64, ledger: &Ledger<W>) {
        if now == self.next_edge() {
            self.edge(now, ledger);
        }
    }

    fn edge<W>(&mut self, now: u64, ledger: &Ledger<W>) {
        if self.inside {
            self.close(now, ledger);
            self.position += 1;
        } else {
            self.levels(now);
            self.tallies.fill_with(Tally::default);
            self.stranded_refusals = 0;
        }
        self.inside = !self.inside;
    }

    fn point(&mut self) {
        let Some(curve) = &mut self.curve else { return };
        self.next_point = self.next_point.saturating_add(nanos(curve.step));
        for (curve, live) in curve.flows.iter_mut().zip(&self.flows) {
            curve.held.push(live.held.value());
            curve.waiting.push(live.waiting.value());
            curve.refused.push(0);
        }
    }

    /// The span whose calls come now, if it is to be reported.
    pub(super) const fn span(&self) -> Option<usize> {
        if self.inside {
            Some(self.position)
        } else {
            None
        }
    }

    pub(super) fn arrived(&mut self, call: Call) {
        if let Some(outcome) = self.outcome(call) {
            outcome.arrived += 1;
        }
    }

    #[inline]
    pub(super) fn started(&mut self, call: Call, now: u64) {
        self.flows[call.flow].held.up(now);
        self.classes[self.class_of[call.flow]].held.up(now);
        if let Some(outcome) = self.outcome(call) {
            outcome.waits.record(now - call.at);
        }
    }

    pub(super) fn queued(&mut self, call: Call, now: u64) {
        self.flows[call.flow].waiting.up(now);
        self.classes[self.class_of[call.flow]].waiting.up(now);
    }

    pub(super) fn unqueued(&mut self, call: Call, now: u64) {
        self.flows[call.flow].waiting.down(now);
        self.classes[self.class_of[call.flow]].waiting.down(now);
    }

    #[inline]
    pub(super) fn ended(&mut self, call: Call, hold: u64, fate: Fate, now: u64) {
        let class = self.class_of[call.flow];
        self.flows[call.flow].held.down(now);
        self.classes[class].held.down(now);
        self.tallies[class].ended += 1;
        self.tallies[class].hold_time += u128::from(hold);
        self.fate(call, fate);
    }

    pub(super) fn fate(&mut self, call: Call, fate: Fate) {
        let Some(outcome) = self.outcome(call) else {
            return;
        };
        match fate {
            Fate::Served => outcome.served += 1,
            Fate::Late => outcome.late += 1,
            Fate::Running => outcome.running += 1,
            Fate::Waiting => outcome.waiting += 1,
        }
    }

    /// Refused at once, for `cause`, or for having waited too long.
    pub(super) fn refused(&mut self, call: Call, cause: Option<Cause>) {
        self.strand(self.class_of[call.flow]);
        if let Some(curve) = &mut self.curve
            && let Some(last) = curve.flows[call.flow].refused.last_mut()
        {
            *last += 1;
        }
        let idle = self.capacity - self.classes.iter().map(|c| c.held.value()).sum::<u32>();
        if let Some(outcome) = self.outcome(call) {
            outcome.idle_when_refused += u64::from(idle);
            *counter(&mut outcome.refused, cause) += 1;
        }
    }

    /// What others kept free in the moment in which `refused` was turned away.
    fn strand(&mut self, refused: usize) {
        let Some(measured) = self.spans.get(self.position) else {
            return;
        };
        let mut stranded = false;
        let tallies = self.tallies.iter_mut().zip(&self.classes);
        for (class, (tally, live)) in tallies.enumerate().filter(|(class, _)| *class != refused) {
            let reserved = measured.classes[class].rules.reserved;
            let kept = reserved.saturating_sub(live.held.value());
            tally.stranded_refusals += u64::from(kept > 0);
            tally.stranded_slots += u64::from(kept);
            stranded |= kept > 0;
        }
        self.stranded_refusals += u64::from(stranded);
    }

    #[inline]
    fn outcome(&mut self, call: Call) -> Option<&mut FlowOutcome> {
        Some(&mut self.spans[call.span?].flows[call.flow])
    }

    fn levels(&mut self, now: u64) -> (Vec<Level>, Vec<(Level, Level)>) {
        let flows = self.flows.iter_mut().map(|live| live.held.take(now));
        let flows = flows.collect();
        let classes = self.classes.iter_mut();
        let both = |live: &mut Live| (live.held.take(now), live.waiting.take(now));
        (flows, classes.map(both).collect())
    }

    fn close<W>(&mut self, now: u64, ledger: &Ledger<W>) {
        let (flows, classes) = self.levels(now);
        let measured = &mut self.spans[self.position];
        measured.stranded_refusals = self.stranded_refusals;
        for (outcome, held) in measured.flows.iter_mut().zip(flows) {
            outcome.held = held;
        }
        let length = measured.span.length();
        let classes = classes.into_iter().zip(&mut self.tallies);
        for (class, ((held, waiting), tally)) in classes.enumerate() {
            let outcome = &mut measured.classes[class];
            (outcome.held, outcome.waiting) = (held, waiting);
            std::mem::take(tally).into_outcome(outcome);
            let holders = ledger.holders(ClassId::new(class), Duration::from_nanos(now));
            outcome.ages = Ages::of(holders.map(|(_, holder)| holder.age), length);
        }
    }

    /// The end of the run.
    pub(super) fn finish(mut self) -> Simulation {
        for measured in &mut self.spans {
            measured.flows.iter_mut().for_each(|flow| flow.waits.sort());
            for (flow, class) in measured.flows.iter().zip(&self.class_of) {
                measured.classes[*class].arrived += flow.arrived;
                measured.classes[*class].refused += flow.refused;
            }
            let all = measured.flows.iter().map(|flow| flow.arrived).sum::<u64>();
            for class in &mut measured.classes {
                class.neighbours_arrived = all - class.arrived;
            }
        }
        Simulation {
            spans: self.spans,
            curve: self.curve,
        }
    }
}

impl Tally {
    fn into_outcome(self, outcome: &mut ClassOutcome) {
        let mean = self.hold_time.checked_div(self.ended.into());
        let mean = mean.map(|nanos| u64::try_from(nanos).unwrap_or(u64::MAX));
        outcome.ended = self.ended;
        outcome.mean_hold = mean.map(Duration::from_nanos);
        outcome.stranded_refusals = self.stranded_refusals;
        outcome.stranded_slots = self.stranded_slots;
    }
}

fn counter(refused: &mut Refused, cause: Option<Cause>) -> &mut u64 {
    match cause {
        Some(Cause::QueueFull) => &mut refused.queue_full,
        Some(Cause::DeadlineTooShort { .. }) => &mut refused.deadline_too_short,
        None => &mut refused.wait_timeout,
    }
}

fn blank(scenario: &Scenario, span: Span) -> Measured {
    let flow = |name: &str| FlowOutcome {
        name: name.to_owned(),
        ..FlowOutcome::default()
    };
    let class = |rules: &_| ClassOutcome {
        rules: *rules,
        arrived: 0,
        refused: Refused::default(),
        held: Level::default(),
        waiting: Level::default(),
        ended: 0,
        mean_hold: None,
        ages: Ages::default(),
        stranded_refusals: 0,
        stranded_slots: 0,
        neighbours_arrived: 0,
    };
    Measured {
        span,
        capacity: scenario.rules.capacity,
        flows: scenario.flows.iter().map(|f| flow(&f.name)).collect(),
        classes: scenario.rules.classes.iter().map(class).collect(),
        stranded_refusals: 0,
    }
}

fn flat(scenario: &Scenario, step: Duration) -> Curve {
    let flow = |name: &str| FlowCurve {
        name: name.to_owned(),
        ..FlowCurve::default()
    };
    Curve {
        step,
        flows: scenario.flows.iter().map(|f| flow(&f.name)).collect(),
    }
}
