//! The virtual clock, and the ledger that it drives.
//!
//! In one instant things happen in this order, over and over until nothing is left: holds end, and their
//! slots are handed over; waiters leave whose time is up; the recorder looks; one call comes. So a slot
//! that comes free in a waiter's last instant is still its own. Which of several holds ends first makes no
//! difference to who gets a slot (tested in `tests/it/ledger.rs`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use slab::Slab;

use crate::admission::{Admission, Cause, ClassId, Hold, InvalidRules, Ledger, Patience, Ticket};
use crate::plan::number::nanos;

use super::holds::Sampler;
use super::outcome::Simulation;
use super::random::Random;
use super::record::{Fate, Recorder};
use super::scenario::{AtDeadline, Flow, MOST_CALLS, Scenario};
use super::{Event, InvalidScenario, What};

/// A call, as it came.
#[derive(Clone, Copy)]
pub(super) struct Call {
    number: u64,
    pub(super) flow: usize,
    pub(super) at: u64,
    /// The span that counts it.
    pub(super) span: Option<usize>,
    /// What decides how long it holds its slot, whenever it gets it: so that all layouts see the same calls.
    luck: u64,
}

/// A call that holds a slot.
struct Running {
    call: Call,
    hold: Hold,
    late: bool,
}

/// A [`Flow`] with what does not change worked out.
struct Kind {
    class: ClassId,
    patience: Patience,
    /// The longest wait, in nanoseconds.
    gives_up: u64,
    deadline: u64,
    frees: bool,
    hold: Sampler,
    incident: Option<(u64, u64, Sampler)>,
    luck: Random,
}

impl Kind {
    fn new(flow: &Flow, luck: Random) -> Self {
        let kept = flow
            .deadline
            .filter(|_| flow.at_deadline != AtDeadline::Stay);
        let wait = flow.acquire_timeout.unwrap_or(Duration::MAX);
        let wait = kept.map_or(wait, |deadline| wait.min(deadline));
        let incident = flow.incident.as_ref().map(|incident| {
            let span = incident.span;
            (nanos(span.from), nanos(span.until), incident.hold.sampler())
        });
        Self {
            class: flow.class,
            patience: Patience { wait, work: kept },
            gives_up: nanos(wait),
            deadline: flow.deadline.map_or(u64::MAX, nanos),
            frees: flow.at_deadline == AtDeadline::Free,
            hold: flow.hold.sampler(),
            incident,
            luck,
        }
    }

    fn hold(&self, luck: u64, start: u64) -> u64 {
        match &self.incident {
            Some((from, until, hold)) if *from <= start && start < *until => hold.hold(luck),
            _ => self.hold.hold(luck),
        }
    }
}

/// Time, order of insertion, and where the rest of it is.
type Due = Reverse<(u64, u64, usize)>;

pub(super) struct Run<F> {
    kinds: Vec<Kind>,
    ledger: Ledger<Call>,
    running: Slab<Running>,
    ends: BinaryHeap<Due>,
    waiting: Slab<(Ticket, Call)>,
    leaves: BinaryHeap<Due>,
    order: u64,
    calls: u64,
    length: u64,
    record: Recorder,
    watch: F,
}

impl<F: FnMut(Event)> Run<F> {
    /// An empty run of a scenario that was checked.
    pub(super) fn new(scenario: &Scenario, watch: F) -> Result<Self, InvalidRules> {
        let kinds = scenario.flows.iter().zip(0..);
        let kinds =
            kinds.map(|(flow, n)| Kind::new(flow, Random::stream(scenario.seed, 2 * n + 1)));
        Ok(Self {
            kinds: kinds.collect(),
            ledger: Ledger::new(scenario.rules.clone())?,
            running: Slab::new(),
            ends: BinaryHeap::new(),
            waiting: Slab::new(),
            leaves: BinaryHeap::new(),
            order: 0,
            calls: 0,
            length: nanos(scenario.length),
            record: Recorder::new(scenario),
            watch,
        })
    }

    /// Lets the calls come, each a time and a flow, in order of time.
    pub(super) fn go(
        mut self,
        calls: impl Iterator<Item = (u64, usize)>,
    ) -> Result<Simulation, InvalidScenario> {
        let (mut last, length) = (0, self.length);
        for (at, flow) in calls.take_while(|(at, _)| *at < length) {
            if at < last || flow >= self.kinds.len() {
                let position = self.calls;
                return Err(InvalidScenario::Call { position });
            }
            last = at;
            self.pass(at);
            self.arrive(flow, at);
            if self.calls > MOST_CALLS {
                return Err(InvalidScenario::TooManyCalls(self.calls));
            }
        }
        self.pass(length - 1);
        Ok(self.finish())
    }

    /// Lets everything happen that is due until `until`, that instant included.
    fn pass(&mut self, until: u64) {
        loop {
            let (end, leave) = (due(&self.ends), due(&self.leaves));
            let tick = self.record.next_tick();
            if end.min(leave).min(tick) > until {
                return;
            }
            if end <= leave && end <= tick {
                self.end();
            } else if leave <= tick {
                self.leave();
            } else {
                self.record.tick(tick, &self.ledger);
            }
        }
    }

    fn arrive(&mut self, flow: usize, now: u64) {
        let call = Call {
            number: self.calls,
            flow,
            at: now,
            span: self.record.span(),
            luck: self.kinds[flow].luck.draw(),
        };
        self.calls += 1;
        self.record.arrived(call);
        let kind = &self.kinds[flow];
        let at = Duration::from_nanos(now);
        match self.ledger.admit(kind.class, at, kind.patience, || call) {
            Admission::Granted(hold) => self.start(call, hold, now),
            Admission::Queued(ticket) => self.queue(call, ticket, now),
            Admission::Refused(refusal) => {
                self.refuse(call, Some(refusal.cause), What::Refused(refusal), now);
            }
        }
    }

    fn start(&mut self, call: Call, hold: Hold, now: u64) {
        let kind = &self.kinds[call.flow];
        let end = now.saturating_add(kind.hold(call.luck, now));
        let due = call.at.saturating_add(kind.deadline);
        let late = end > due;
        let free = if late && kind.frees { due } else { end };
        let key = self.running.insert(Running { call, hold, late });
        self.order += 1;
        self.ends.push(Reverse((free, self.order, key)));
        self.record.started(call, now);
        self.tell(call, What::Granted, now);
    }

    fn queue(&mut self, call: Call, ticket: Ticket, now: u64) {
        let gives_up = now.saturating_add(self.kinds[call.flow].gives_up);
        // Later than the run lasts is never: then the ticket need not be kept.
        if gives_up < self.length {
            let key = self.waiting.insert((ticket, call));
            self.order += 1;
            self.leaves.push(Reverse((gives_up, self.order, key)));
        }
        self.record.queued(call, now);
        self.tell(call, What::Queued, now);
    }

    fn end(&mut self) {
        let Reverse((now, _, key)) = self.ends.pop().expect("bug: it was looked at");
        let Running { call, hold, late } = self.running.remove(key);
        let fate = if late { Fate::Late } else { Fate::Served };
        let length = now - nanos(hold.since());
        self.record.ended(call, length, fate, now);
        self.tell(call, What::Ended { late }, now);
        if let Some(grant) = self.ledger.release(hold, Duration::from_nanos(now)) {
            self.record.unqueued(grant.waiter, now);
            self.start(grant.waiter, grant.hold, now);
        }
    }

    fn leave(&mut self) {
        let Reverse((now, _, key)) = self.leaves.pop().expect("bug: it was looked at");
        let (ticket, call) = self.waiting.remove(key);
        if self
            .ledger
            .leave(ticket, Duration::from_nanos(now))
            .is_some()
        {
            self.record.unqueued(call, now);
            self.refuse(call, None, What::GaveUp, now);
        }
    }

    fn refuse(&mut self, call: Call, cause: Option<Cause>, what: What, now: u64) {
        self.record.refused(call, cause);
        self.tell(call, what, now);
    }

    #[inline]
    fn tell(&mut self, call: Call, what: What, now: u64) {
        (self.watch)(Event {
            at: Duration::from_nanos(now),
            call: call.number,
            flow: call.flow,
            what,
        });
    }

    fn finish(mut self) -> Simulation {
        self.record.stop(self.length, &self.ledger);
        for call in self.ledger.leave_all(Duration::from_nanos(self.length)) {
            self.record.fate(call, Fate::Waiting);
        }
        for (_, running) in self.running {
            let due = running
                .call
                .at
                .saturating_add(self.kinds[running.call.flow].deadline);
            let fate = if running.late && due <= self.length {
                Fate::Late
            } else {
                Fate::Running
            };
            self.record.fate(running.call, fate);
        }
        self.record.finish()
    }
}

fn due(heap: &BinaryHeap<Due>) -> u64 {
    heap.peek().map_or(u64::MAX, |Reverse((at, ..))| *at)
}
