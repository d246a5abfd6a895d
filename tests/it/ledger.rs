//! The admission ledger against a naive model of the rule, and its promises to those it refuses.
//!
//! "(n)" cites the invariants at the top of `src/admission/ledger.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use partitioned_pool::admission::{
    Admission, Cause, ClassId, ClassRules, Grant, HandOver, Hold, InvalidRules, Ledger, Patience,
    Refusal, Rules, Ticket, Totals,
};
use partitioned_pool::{CallSite, OldestHolds};
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);
const FOREVER: Patience = Patience::wait(Duration::MAX);

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// The rule of the design, in the words of the design: everything is counted anew at each question.
struct Reference {
    rules: Rules,
    /// When each held slot was granted, by class.
    held: Vec<Vec<Duration>>,
    /// Slots that were detached, by class.
    detached: Vec<u32>,
    /// Who waits: the number of the call, by class.
    waiting: Vec<VecDeque<u32>>,
    /// How long each hold lasted, in the order of their ends, by class.
    ended: Vec<Vec<Duration>>,
    last_end: Vec<Duration>,
    /// What happened, by class, in the words of the ledger.
    totals: Vec<Totals>,
}

impl Reference {
    fn new(rules: Rules) -> Self {
        let n = rules.classes.len();
        Self {
            rules,
            held: vec![Vec::new(); n],
            detached: vec![0; n],
            waiting: vec![VecDeque::new(); n],
            ended: vec![Vec::new(); n],
            last_end: vec![Duration::ZERO; n],
            totals: vec![Totals::default(); n],
        }
    }

    /// Time passes: whoever holds or waits does so for that much longer.
    fn pass(&mut self, time: Duration) {
        for class in self.classes() {
            let (holds, waits) = (self.holds(class), self.waits(class));
            let totals = &mut self.totals[class];
            totals.at += time;
            totals.held_time += time * holds;
            totals.waited_time += time * waits;
        }
    }

    fn grant(&mut self, class: usize, now: Duration) {
        self.held[class].push(now);
        let holds = self.holds(class);
        let totals = &mut self.totals[class];
        totals.granted += 1;
        totals.most_used = totals.most_used.max(holds);
    }

    fn enqueue(&mut self, class: usize, call: u32) {
        self.waiting[class].push_back(call);
        let waits = self.waits(class);
        let totals = &mut self.totals[class];
        totals.most_waiting = totals.most_waiting.max(waits);
    }

    /// A slot that was held since then is free.
    fn free_slot(&mut self, class: usize, since: Duration) {
        let held = &mut self.held[class];
        held.swap_remove(held.iter().position(|begin| *begin == since).unwrap());
    }

    /// A hold ends after so long.
    fn end(&mut self, class: usize, since: Duration, now: Duration) {
        self.free_slot(class, since);
        self.ended[class].push(now - since);
        self.last_end[class] = now;
    }

    fn restart_peaks(&mut self, class: usize) {
        let (holds, waits) = (self.holds(class), self.waits(class));
        let totals = &mut self.totals[class];
        (totals.most_used, totals.most_waiting) = (holds, waits);
    }

    fn classes(&self) -> std::ops::Range<usize> {
        0..self.rules.classes.len()
    }

    fn holds(&self, class: usize) -> u32 {
        u32::try_from(self.held[class].len()).unwrap()
    }

    fn used(&self, class: usize) -> u32 {
        self.holds(class) + self.detached[class]
    }

    fn waits(&self, class: usize) -> u32 {
        u32::try_from(self.waiting[class].len()).unwrap()
    }

    fn free(&self) -> u32 {
        self.rules.capacity - self.classes().map(|c| self.used(c)).sum::<u32>()
    }

    fn lack(&self, class: usize) -> u32 {
        self.rules.classes[class]
            .reserved
            .saturating_sub(self.used(class))
    }

    fn admissible(&self, class: usize) -> bool {
        let rules = self.rules.classes[class];
        let others = self.classes().filter(|j| *j != class);
        let kept = others.map(|j| self.lack(j)).sum::<u32>();
        self.used(class) < rules.max
            && self.free() > 0
            && (self.used(class) < rules.reserved || self.free() > kept)
    }

    /// Whom the hand-over order names, if a waiter can be let in.
    fn next(&self) -> Option<usize> {
        let ready = self
            .classes()
            .filter(|c| self.admissible(*c) && !self.waiting[*c].is_empty());
        let ready = ready.collect::<Vec<_>>();
        match self.rules.hand_over {
            HandOver::DeclaredOrder => ready.first().copied(),
            _ => ready.into_iter().min_by_key(|c| self.waiting[*c][0]),
        }
    }

    /// The moving average over the last 16 or so, once 8 have ended.
    fn average(&self, class: usize) -> Duration {
        let mut average = 0_i128;
        for (n, length) in (1_i128..).zip(&self.ended[class]) {
            let length = i128::try_from(length.as_nanos()).unwrap();
            average += (length - average) / n.min(16);
        }
        Duration::from_nanos(u64::try_from(average).unwrap())
    }

    fn expected_hold(&self, class: usize, now: Duration) -> Option<Duration> {
        let average = self.average(class);
        let since = &self.held[class];
        let ages = since.iter().map(|since| now - *since);
        let mean_age = ages
            .sum::<Duration>()
            .checked_div(self.holds(class))
            .unwrap_or_default();
        let quiet = now - self.last_end[class] > average
            && since.iter().all(|since| now - *since > average);
        let seen = (self.ended[class].len() >= 8).then_some(average);
        let age = (quiet && !mean_age.is_zero()).then_some(mean_age);
        seen.max(age)
    }

    fn oldest_hold(&self, class: usize, now: Duration) -> Option<Duration> {
        self.held[class].iter().map(|since| now - *since).max()
    }

    fn oldest_holds(&self, class: usize, now: Duration) -> Vec<Duration> {
        let mut ages: Vec<_> = self.held[class].iter().map(|since| now - *since).collect();
        ages.sort_by(|a, b| b.cmp(a));
        ages.truncate(OldestHolds::MOST);
        ages
    }

    /// Held back by the budget, rather than by its own max.
    fn wants_any_slot(&self, class: usize) -> bool {
        self.used(class) < self.rules.classes[class].max && !self.admissible(class)
    }

    /// Whose slots a caller of this class waits for.
    fn awaited(&self, class: usize) -> Vec<usize> {
        if !self.wants_any_slot(class) {
            return vec![class];
        }
        let lends = |c: &usize| self.used(*c) > self.rules.classes[*c].reserved;
        let classes = self.classes();
        classes
            .filter(|c| lends(c) || (*c == class && self.used(class) > 0))
            .collect()
    }

    fn ahead(&self, class: usize) -> u32 {
        if self.used(class) >= self.rules.classes[class].max {
            return self.waits(class);
        }
        let is_at_its_max = |c: usize| self.used(c) >= self.rules.classes[c].max;
        let others = self.classes().filter(|c| *c != class && !is_at_its_max(*c));
        let before = others.filter(|c| self.rules.hand_over == HandOver::OldestFirst || *c < class);
        self.waits(class) + before.map(|c| self.waits(c)).sum::<u32>()
    }

    fn expected_wait(&self, class: usize, now: Duration) -> Option<Duration> {
        let turns = u128::from(self.ahead(class) + 1);
        let wait = match self.awaited(class)[..] {
            [] => return None,
            [only] => {
                let taken = self.rules.classes[only].reserved.max(self.used(only));
                let slots = (taken - self.detached[only]).max(1);
                turns * self.expected_hold(only, now)?.as_nanos() / u128::from(slots)
            }
            ref several => {
                let mut flow = 0;
                for c in several {
                    let hold = self.expected_hold(*c, now)?.as_nanos().max(1);
                    flow += (u128::from(self.holds(*c)) << 64) / hold;
                }
                (turns << 64) / flow.max(1)
            }
        };
        Some(Duration::from_nanos(
            u64::try_from(wait).unwrap_or(u64::MAX),
        ))
    }

    /// Until as many turns are over, and never before the first of the oldest holds can have ended.
    fn retry_after(&self, class: usize, now: Duration) -> Option<Duration> {
        let mut ends = Vec::new();
        for c in self.awaited(class) {
            if self.ended[c].len() < 8 {
                return None;
            }
            let oldest = self.oldest_hold(c, now).unwrap_or_default();
            ends.push(self.expected_hold(c, now)?.saturating_sub(oldest));
        }
        Some(self.expected_wait(class, now)?.max(ends.into_iter().min()?))
    }

    fn refusal(&self, class: usize, now: Duration, patience: Patience) -> Option<Refusal> {
        let wait = self.expected_wait(class, now);
        let cause = if self.waits(class) >= self.rules.classes[class].queue {
            Cause::QueueFull
        } else {
            let (expected_wait, expected_hold) = (wait?, self.expected_hold(class, now)?);
            let left = if expected_wait > patience.wait {
                patience.wait
            } else {
                let left = patience.work?;
                (expected_wait + expected_hold > left).then_some(left)?
            };
            Cause::DeadlineTooShort {
                expected_wait,
                expected_hold,
                left,
            }
        };
        Some(Refusal {
            cause,
            retry_after: self.retry_after(class, now),
        })
    }
}

#[derive(Clone, Debug)]
enum Op {
    Admit { class: usize, patience: Patience },
    TryAdmit { class: usize },
    Release { which: usize },
    PassOn { which: usize },
    Revoke { which: usize },
    Detach { which: usize },
    ReleaseDetached { which: usize },
    ReleaseRevoked { which: usize },
    RestartPeaks { class: usize },
    Leave { which: usize },
    LeaveAgain { which: usize },
    LeaveAll,
    Pass(Duration),
}

fn patience() -> impl Strategy<Value = Patience> {
    let limit = || (0_u32..40).prop_map(|ms| MS * ms);
    prop_oneof![
        2 => Just(FOREVER),
        1 => limit().prop_map(Patience::wait),
        1 => (limit(), limit()).prop_map(|(wait, work)| Patience { wait, work: Some(work) }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => (any::<usize>(), patience()).prop_map(|(class, patience)| Op::Admit { class, patience }),
        4 => any::<usize>().prop_map(|class| Op::TryAdmit { class }),
        16 => any::<usize>().prop_map(|which| Op::Release { which }),
        2 => any::<usize>().prop_map(|which| Op::PassOn { which }),
        2 => any::<usize>().prop_map(|which| Op::Revoke { which }),
        2 => any::<usize>().prop_map(|which| Op::ReleaseRevoked { which }),
        2 => any::<usize>().prop_map(|which| Op::Detach { which }),
        2 => any::<usize>().prop_map(|which| Op::ReleaseDetached { which }),
        2 => any::<usize>().prop_map(|class| Op::RestartPeaks { class }),
        4 => any::<usize>().prop_map(|which| Op::Leave { which }),
        4 => any::<usize>().prop_map(|which| Op::LeaveAgain { which }),
        1 => Just(Op::LeaveAll),
        8 => (0_u64..20_000_000).prop_map(|ns| Op::Pass(Duration::from_nanos(ns))),
    ]
}

fn hand_over() -> impl Strategy<Value = HandOver> {
    prop_oneof![Just(HandOver::OldestFirst), Just(HandOver::DeclaredOrder)]
}

/// Fixed bulkheads, one shared pool, or anything between.
fn rules() -> impl Strategy<Value = Rules> {
    let class = (0_u32..4, 0_u32..8, 0_u32..6);
    let classes = prop::collection::vec(class, 1..=4);
    (0..3, classes, 0_u32..4, hand_over()).prop_map(|(kind, classes, spare, hand_over)| {
        let sum = classes.iter().map(|(reserved, ..)| reserved).sum::<u32>();
        let n = u32::try_from(classes.len()).unwrap();
        // Whoever reserves nothing needs a slot that nobody reserves.
        let spare = match kind {
            0 => n + spare,
            _ if classes.iter().any(|(reserved, ..)| *reserved == 0) => spare.max(1),
            _ => spare,
        };
        let capacity = sum + spare;
        let class = |(reserved, extra, queue): &(u32, u32, u32)| match kind {
            0 => ClassRules::fixed(reserved + 1, *queue),
            1 => ClassRules {
                reserved: 0,
                max: capacity,
                queue: *queue,
            },
            _ => ClassRules {
                reserved: *reserved,
                max: (reserved + extra).clamp(1, capacity),
                queue: *queue,
            },
        };
        Rules {
            capacity,
            classes: classes.iter().map(class).collect(),
            hand_over,
        }
    })
}

/// The ledger and the reference side by side, and what the callers hold in their hands.
struct Pair {
    ledger: Ledger<u32>,
    reference: Reference,
    now: Duration,
    calls: u32,
    holds: Vec<(Hold, Duration)>,
    /// Holds whose slots were taken away, in the hands of owners who do not know.
    revoked: Vec<Hold>,
    /// Slots that are taken, and no holds any more.
    detached: Vec<Hold>,
    tickets: Vec<(usize, u32, Ticket)>,
    /// Tickets whose waiter is no longer in the queue; its place there may be somebody else's.
    spent: Vec<Ticket>,
    granted: u32,
    released: u32,
}

impl Pair {
    fn new(rules: Rules) -> Self {
        Self {
            ledger: Ledger::new(rules.clone()).unwrap(),
            reference: Reference::new(rules),
            now: Duration::ZERO,
            calls: 0,
            holds: Vec::new(),
            revoked: Vec::new(),
            detached: Vec::new(),
            tickets: Vec::new(),
            spent: Vec::new(),
            granted: 0,
            released: 0,
        }
    }

    fn step(&mut self, op: Op) {
        let classes = self.reference.rules.classes.len();
        match op {
            Op::Admit { class, patience } => self.admit(class % classes, patience),
            Op::TryAdmit { class } => self.try_admit(class % classes),
            Op::Release { which } if !self.holds.is_empty() => {
                self.release(which % self.holds.len());
            }
            Op::Leave { which } if !self.tickets.is_empty() => {
                self.leave(which % self.tickets.len());
            }
            Op::LeaveAgain { which } if !self.spent.is_empty() => {
                let ticket = self.spent.swap_remove(which % self.spent.len());
                assert_eq!(self.ledger.leave(ticket, self.now), None, "(8) once");
            }
            Op::PassOn { which } if !self.holds.is_empty() => {
                self.pass_on(which % self.holds.len());
            }
            Op::Revoke { which } if !self.holds.is_empty() => {
                self.revoke(which % self.holds.len());
            }
            Op::ReleaseRevoked { which } if !self.revoked.is_empty() => {
                let hold = self.revoked.swap_remove(which % self.revoked.len());
                assert_eq!(self.ledger.release(hold, self.now), None, "(8) once");
            }
            Op::Detach { which } if !self.holds.is_empty() => {
                self.detach(which % self.holds.len());
            }
            Op::ReleaseDetached { which } if !self.detached.is_empty() => {
                self.release_detached(which % self.detached.len());
            }
            Op::Release { .. }
            | Op::Detach { .. }
            | Op::ReleaseDetached { .. }
            | Op::Leave { .. }
            | Op::LeaveAgain { .. }
            | Op::PassOn { .. }
            | Op::Revoke { .. }
            | Op::ReleaseRevoked { .. } => {}
            Op::RestartPeaks { class } => self.restart_peaks(class % classes),
            Op::LeaveAll => self.leave_all(),
            Op::Pass(time) => {
                self.now += time;
                self.reference.pass(time);
            }
        }
        self.check();
    }

    fn admit(&mut self, class: usize, patience: Patience) {
        self.calls += 1;
        let (call, now) = (self.calls, self.now);
        let mut asked = 0;
        let answer = self.ledger.admit(ClassId::new(class), now, patience, || {
            asked += 1;
            call
        });
        let below = self.reference.lack(class) > 0;
        let at_once = self.reference.admissible(class) && self.reference.waits(class) == 0;
        match answer {
            Admission::Granted(hold) => {
                assert!(at_once, "(7) nobody overtakes");
                assert_eq!(asked, 0);
                self.reference.totals[class].arrived += 1;
                self.begin(class, hold);
            }
            Admission::Queued(ticket) => {
                assert!(
                    !at_once && !below,
                    "(4) below its reservation it need not wait"
                );
                assert_eq!(self.reference.refusal(class, now, patience), None);
                assert_eq!(asked, 1);
                self.reference.totals[class].arrived += 1;
                self.reference.enqueue(class, call);
                self.tickets.push((class, call, ticket));
            }
            Admission::Refused(refusal) => {
                assert!(
                    !at_once && !below,
                    "(4) below its reservation it is not refused"
                );
                let expected = self.reference.refusal(class, now, patience);
                assert_eq!(Some(refusal), expected);
                assert_eq!(asked, 0, "a refusal makes nothing");
                let totals = &mut self.reference.totals[class];
                totals.arrived += 1;
                match refusal.cause {
                    Cause::QueueFull => totals.queue_full += 1,
                    _ => totals.deadline_too_short += 1,
                }
            }
        }
    }

    fn try_admit(&mut self, class: usize) {
        let expected = self.reference.admissible(class) && self.reference.waits(class) == 0;
        let hold = self.ledger.try_admit(ClassId::new(class), self.now);
        assert_eq!(hold.is_some(), expected, "(4) (7)");
        self.reference.totals[class].arrived += 1;
        if let Some(hold) = hold {
            self.begin(class, hold);
        } else {
            self.ledger.turn_away(ClassId::new(class));
            self.reference.totals[class].turned_away += 1;
        }
    }

    fn begin(&mut self, class: usize, hold: Hold) {
        assert_eq!(hold.class(), ClassId::new(class));
        self.reference.grant(class, self.now);
        self.holds.push((hold, self.now));
        self.granted += 1;
    }

    fn release(&mut self, which: usize) {
        let (hold, since) = self.holds.swap_remove(which);
        let class = hold.class().index();
        self.reference.end(class, since, self.now);
        let totals = &mut self.reference.totals[class];
        totals.ended += 1;
        totals.ended_time += self.now - since;
        self.handed_over(|ledger, now| ledger.release(hold, now));
    }

    /// Its waiter had left. Nothing is learnt of how long a hold lasts, but that one began.
    fn pass_on(&mut self, which: usize) {
        let (hold, since) = self.holds.swap_remove(which);
        let class = hold.class().index();
        self.reference.free_slot(class, since);
        let last = &mut self.reference.last_end[class];
        *last = since.max(*last);
        self.reference.totals[class].left += 1;
        self.handed_over(|ledger, now| ledger.pass_on(hold, now));
    }

    fn revoke(&mut self, which: usize) {
        let (hold, since) = self.holds.swap_remove(which);
        self.reference.end(hold.class().index(), since, self.now);
        let id = hold.id();
        self.revoked.push(hold);
        self.handed_over(|ledger, now| ledger.revoke(id, now));
    }

    /// Its slot stays taken. Nothing is learnt of how long a hold lasts, but that one began.
    fn detach(&mut self, which: usize) {
        let (hold, since) = self.holds.swap_remove(which);
        let class = hold.class().index();
        self.reference.free_slot(class, since);
        self.reference.detached[class] += 1;
        let last = &mut self.reference.last_end[class];
        *last = since.max(*last);
        let (id, now) = (hold.id(), self.now);
        assert!(
            self.ledger.detach(id, now) && !self.ledger.detach(id, now),
            "once"
        );
        assert_eq!(self.ledger.revoke(id, now), None, "it is no hold any more");
        self.detached.push(hold);
    }

    fn release_detached(&mut self, which: usize) {
        let hold = self.detached.swap_remove(which);
        self.reference.detached[hold.class().index()] -= 1;
        self.handed_over(|ledger, now| ledger.release(hold, now));
    }

    /// A slot has come free in the reference; the ledger learns of it, and hands it over.
    fn handed_over(&mut self, end: impl FnOnce(&mut Ledger<u32>, Duration) -> Option<Grant<u32>>) {
        self.released += 1;
        let next = self.reference.next();
        let named = next.map(|class| (class, self.reference.waiting[class].pop_front().unwrap()));
        let grant = end(&mut self.ledger, self.now);
        let got = grant.as_ref().map(|g| (g.hold.class().index(), g.waiter));
        assert_eq!(got, named, "(5) (7) the hand-over order names the waiter");
        if let Some(Grant { waiter, hold }) = grant {
            self.begin(hold.class().index(), hold);
            let named = self.tickets.iter().position(|(_, call, _)| *call == waiter);
            let (.., ticket) = self.tickets.swap_remove(named.unwrap());
            self.spent.push(ticket);
        }
    }

    fn restart_peaks(&mut self, class: usize) {
        self.ledger.restart_peaks(ClassId::new(class));
        self.reference.restart_peaks(class);
    }

    fn leave(&mut self, which: usize) {
        let (class, call, ticket) = self.tickets.swap_remove(which);
        self.reference.waiting[class].retain(|waiter| *waiter != call);
        self.reference.totals[class].left += 1;
        assert_eq!(self.ledger.leave(ticket, self.now), Some(call), "(8)");
    }

    fn leave_all(&mut self) {
        for class in self.reference.classes() {
            self.reference.totals[class].left += u64::from(self.reference.waits(class));
        }
        let expected = self.reference.waiting.iter_mut().flat_map(|q| q.drain(..));
        let expected = expected.collect::<Vec<_>>();
        assert_eq!(self.ledger.leave_all(self.now), expected, "(8)");
        let tickets = self.tickets.drain(..);
        self.spent.extend(tickets.map(|(.., ticket)| ticket));
    }

    fn check(&self) {
        let (reference, rules) = (&self.reference, &self.reference.rules);
        let used = reference.classes().map(|c| reference.used(c)).sum::<u32>();
        assert_eq!(self.ledger.used(), used);
        let detached = reference.detached.iter().sum::<u32>();
        assert_eq!(self.ledger.detached(), detached);
        assert!(used <= rules.capacity, "(1)");
        let lack = reference.classes().map(|c| reference.lack(c)).sum::<u32>();
        assert!(reference.free() >= lack, "(3)");
        for c in reference.classes() {
            let figures = self.ledger.figures(ClassId::new(c), self.now);
            assert_eq!(figures.used, reference.used(c));
            assert_eq!(figures.detached, reference.detached[c]);
            assert_eq!(figures.waiting, reference.waits(c));
            let oldest = figures.oldest_holds.iter().map(|holder| holder.age);
            assert_eq!(
                oldest.collect::<Vec<_>>(),
                reference.oldest_holds(c, self.now)
            );
            assert_eq!(figures.expected_hold, reference.expected_hold(c, self.now));
            assert_eq!(figures.expected_wait, reference.expected_wait(c, self.now));
            let totals = self.ledger.totals(ClassId::new(c), self.now);
            assert_eq!(totals, reference.totals[c]);
            let admissible = self.ledger.admissible(ClassId::new(c));
            assert_eq!(admissible, reference.admissible(c));
            assert!(figures.used <= rules.classes[c].max, "(2)");
            assert!(reference.lack(c) == 0 || admissible, "(4)");
            assert!(figures.waiting == 0 || !admissible, "(5)");
            assert!(figures.waiting <= rules.classes[c].queue, "(6)");
        }
        let held = u32::try_from(self.holds.len() + self.detached.len()).unwrap();
        assert_eq!(self.granted - self.released, held, "(8)");
    }

    fn empty(&mut self) {
        while !self.holds.is_empty() {
            self.step(Op::Release { which: 0 });
        }
        while !self.detached.is_empty() {
            self.step(Op::ReleaseDetached { which: 0 });
        }
        // The last of those may have let somebody in.
        while !self.holds.is_empty() {
            self.step(Op::Release { which: 0 });
        }
        assert_eq!(self.ledger.used(), 0, "(8)");
        assert!(
            self.tickets.is_empty(),
            "(8) everyone who stayed was served"
        );
    }
}

proptest! {
    #![proptest_config(config(1500))]

    #[test]
    fn every_step_is_what_the_rule_says(
        rules in rules(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut pair = Pair::new(rules);
        for op in ops {
            pair.step(op);
        }
        pair.empty();
    }

    #[test]
    fn a_class_below_its_reservation_is_granted_at_once_whatever_the_others_do(
        rules in rules(),
        ops in prop::collection::vec(op(), 0..60),
    ) {
        let mut pair = Pair::new(rules);
        for op in ops {
            pair.step(op);
        }
        for class in pair.reference.classes() {
            while pair.reference.lack(class) > 0 {
                pair.step(Op::Admit { class, patience: Patience::wait(Duration::ZERO) });
                let taken = pair.holds.len() + pair.detached.len();
                prop_assert_eq!(pair.ledger.used(), u32::try_from(taken).unwrap());
            }
        }
    }
}

/// Calls come and go as they are told to; then the `ended` holds are released, in this order or in the
/// opposite one. Whose calls were granted by that.
fn granted_by_ends(rules: &Rules, steps: &[(usize, bool)], ended: usize, turned: bool) -> Vec<u32> {
    let mut ledger = Ledger::new(rules.clone()).unwrap();
    let mut holds = VecDeque::new();
    for (call, (which, ends)) in (0..).zip(steps) {
        let class = ClassId::new(which % rules.classes.len());
        if *ends {
            let hold = holds.remove(which % (holds.len() + 1));
            let grant = hold.and_then(|hold| ledger.release(hold, Duration::ZERO));
            holds.extend(grant.map(|grant| grant.hold));
        } else if let Admission::Granted(hold) =
            ledger.admit(class, Duration::ZERO, FOREVER, || call)
        {
            holds.push_back(hold);
        }
    }
    let mut ended = holds.drain(..ended.min(holds.len())).collect::<Vec<_>>();
    if turned {
        ended.reverse();
    }
    let grants = ended
        .into_iter()
        .filter_map(|hold| ledger.release(hold, Duration::ZERO));
    let mut granted = grants.map(|grant| grant.waiter).collect::<Vec<_>>();
    granted.sort_unstable();
    granted
}

proptest! {
    #![proptest_config(config(1000))]

    #[test]
    fn who_gets_the_slots_of_holds_that_end_together_is_the_same_in_whatever_order_they_end(
        rules in rules(),
        steps in prop::collection::vec((any::<usize>(), prop::bool::weighted(0.2)), 1..60),
        ended in 2_usize..8,
    ) {
        let turned = granted_by_ends(&rules, &steps, ended, true);
        prop_assert_eq!(granted_by_ends(&rules, &steps, ended, false), turned);
    }

    #[test]
    fn rules_are_refused_for_a_reason_that_holds_and_only_then(
        capacity in prop_oneof![0_u32..6, Just(u32::MAX)],
        classes in prop::collection::vec((0_u32..5, 0_u32..6, 0_u32..3), 0..4),
        huge in prop::bool::weighted(0.1),
    ) {
        let size = |n: u32| if huge && n == 4 { u32::MAX } else { n };
        let class = |(reserved, max, queue)| ClassRules { reserved: size(reserved), max: size(max), queue };
        let rules = Rules {
            capacity,
            classes: classes.into_iter().map(class).collect(),
            hand_over: HandOver::OldestFirst,
        };
        let all = rules.classes.clone();
        let total = all.iter().map(|c| u64::from(c.reserved)).sum::<u64>();
        match Ledger::<()>::new(rules) {
            Ok(_) => {
                prop_assert!(!all.is_empty() && total <= u64::from(capacity));
                prop_assert!(all.iter().all(|c| c.max > 0 && c.reserved <= c.max && c.max <= capacity));
                let spare = u64::from(capacity) - total;
                prop_assert!(spare > 0 || all.iter().all(|c| c.reserved > 0));
            }
            Err(InvalidRules::NoClass) => prop_assert!(all.is_empty()),
            Err(InvalidRules::NoSlots { class }) => prop_assert_eq!(all[class].max, 0),
            Err(InvalidRules::ReservedAboveMax { class, reserved, max }) => {
                prop_assert!(reserved > max);
                prop_assert_eq!((all[class].reserved, all[class].max), (reserved, max));
            }
            Err(InvalidRules::MaxAboveCapacity { class, max, capacity: c }) => {
                prop_assert!(max > c);
                prop_assert_eq!((all[class].max, capacity), (max, c));
            }
            Err(InvalidRules::NothingLeft { class, capacity: c }) => {
                prop_assert_eq!((all[class].reserved, total), (0, u64::from(c)));
                prop_assert_eq!(capacity, c);
            }
            Err(InvalidRules::Overcommitted { reserved, capacity: c }) => {
                prop_assert!(reserved > u64::from(c));
                prop_assert_eq!((total, capacity), (reserved, c));
            }
            Err(other) => prop_assert!(false, "unknown: {other}"),
        }
    }
}

const CLASS: ClassId = ClassId::new(0);

#[derive(Debug, PartialEq)]
enum Answer {
    Granted,
    Queued,
    Refused(Refusal),
}

/// One class over virtual time, in which every hold lasts exactly `hold`.
struct Replay {
    ledger: Ledger<u32>,
    hold: Duration,
    now: Duration,
    /// Running holds and their ends.
    running: Vec<(Duration, Hold)>,
    /// When each waiter was granted its slot.
    granted: Vec<(u32, Duration)>,
}

impl Replay {
    /// All slots free, and evidence of how long a hold lasts.
    fn new(slots: u32, queue: u32, hold: Duration) -> Self {
        let mut replay = Self {
            ledger: Ledger::new(Rules::fixed(slots, queue)).unwrap(),
            hold,
            now: Duration::ZERO,
            running: Vec::new(),
            granted: Vec::new(),
        };
        for _ in 0..8 {
            assert_eq!(replay.call(0, FOREVER), Answer::Granted);
            replay.pass(hold);
        }
        replay
    }

    /// All slots held, each granted so long after the one before it; `ahead` callers wait.
    fn busy(queue: u32, hold: Duration, gaps: &[Duration], ahead: u32) -> Self {
        let mut replay = Self::new(u32::try_from(gaps.len()).unwrap(), queue, hold);
        for gap in gaps {
            replay.pass(*gap);
            assert_eq!(replay.call(0, FOREVER), Answer::Granted);
        }
        for _ in 0..ahead {
            assert_eq!(replay.call(0, FOREVER), Answer::Queued);
        }
        replay
    }

    fn call(&mut self, caller: u32, patience: Patience) -> Answer {
        match self.ledger.admit(CLASS, self.now, patience, || caller) {
            Admission::Granted(hold) => {
                self.running.push((self.now + self.hold, hold));
                Answer::Granted
            }
            Admission::Queued(_) => Answer::Queued,
            Admission::Refused(refusal) => Answer::Refused(refusal),
        }
    }

    /// Lets `time` pass: what ends in it ends in its order.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while let Some(next) = self.next_end().filter(|i| self.running[*i].0 <= until) {
            let (end, hold) = self.running.swap_remove(next);
            if let Some(Grant { waiter, hold }) = self.ledger.release(hold, end) {
                self.granted.push((waiter, end));
                self.running.push((end + self.hold, hold));
            }
        }
        self.now = until;
    }

    fn next_end(&self) -> Option<usize> {
        (0..self.running.len()).min_by_key(|i| self.running[*i].0)
    }

    /// How long a caller waits that comes now and has all the time in the world.
    fn actual_wait(mut self) -> Duration {
        let called = self.now;
        assert_eq!(self.call(1, FOREVER), Answer::Queued);
        while self.granted.iter().all(|(caller, _)| *caller != 1) {
            self.pass(self.hold);
        }
        let (_, at) = self
            .granted
            .iter()
            .find(|(caller, _)| *caller == 1)
            .unwrap();
        *at - called
    }
}

/// 1 to 6 slots, and when each was granted after the one before it: all of them within one hold.
fn busy_slots() -> impl Strategy<Value = (Duration, Vec<Duration>)> {
    let gaps = prop::collection::vec(prop_oneof![Just(0_u32), 0_u32..1000], 1..=6);
    (10_000_u32..200_000, gaps).prop_map(|(hold, mut gaps)| {
        gaps[0] = 0;
        let us = Duration::from_micros(1);
        (us * hold, gaps.into_iter().map(|gap| us * gap).collect())
    })
}

proptest! {
    #![proptest_config(config(600))]

    #[test]
    fn a_refused_caller_that_comes_back_when_told_gets_in(
        (hold, gaps) in busy_slots(),
        queue in 0_u32..10,
        later in 0_u32..1000,
    ) {
        let mut replay = Replay::busy(queue, hold, &gaps, queue);
        replay.pass(Duration::from_micros(u64::from(later)));
        let Answer::Refused(refusal) = replay.call(1, FOREVER) else {
            panic!("every slot is held and the queue is full");
        };
        prop_assert_eq!(refusal.cause, Cause::QueueFull);
        replay.pass(refusal.retry_after.expect("eight holds have ended"));
        prop_assert!(!matches!(replay.call(1, FOREVER), Answer::Refused(_)));
    }

    #[test]
    fn in_a_steady_flow_a_refused_caller_finds_a_free_slot_when_it_was_told(
        slots in 1_usize..6,
        step in 1_u32..50,
        queue in 0_u32..10,
    ) {
        let hold = MS * step * u32::try_from(slots).unwrap();
        let mut replay = Replay::busy(queue, hold, &vec![MS * step; slots], queue);
        let Answer::Refused(refusal) = replay.call(1, FOREVER) else {
            panic!("every slot is held and the queue is full");
        };
        let retry_after = refusal.retry_after.unwrap();
        prop_assert_eq!(retry_after, MS * step * (queue + 1));
        replay.pass(retry_after);
        prop_assert_eq!(replay.call(1, FOREVER), Answer::Granted);
    }

    #[test]
    fn in_a_steady_flow_shed_callers_would_have_been_late_and_the_others_make_it(
        slots in 1_usize..6,
        step in 1_u32..50,
        ahead in 0_u32..10,
        into_turn in prop_oneof![Just(0_u32), 0_u32..100],
        wait in 0_u32..800,
        work in prop::option::of(0_u32..1000),
    ) {
        let step = MS * step;
        let hold = step * u32::try_from(slots).unwrap();
        let into_turn = step * into_turn / 100;
        let busy = || {
            let mut replay = Replay::busy(ahead + 1, hold, &vec![step; slots], ahead);
            replay.pass(into_turn);
            replay
        };
        let actual = busy().actual_wait();
        prop_assert_eq!(actual, step * (ahead + 1) - into_turn);
        let (wait, work) = (MS * wait, work.map(|ms| MS * ms));
        let late = |slack| {
            actual + slack > wait || work.is_some_and(|work| actual + hold + slack > work)
        };
        match busy().call(1, Patience { wait, work }) {
            Answer::Queued => prop_assert!(!late(Duration::ZERO)),
            // The ledger counts whole turns: it may be wrong by what has passed of the current one.
            Answer::Refused(Refusal { cause: Cause::DeadlineTooShort { .. }, .. }) => {
                prop_assert!(late(into_turn));
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn an_expected_wait_is_never_wrong_by_more_than_one_hold(
        (hold, gaps) in busy_slots(),
        ahead in 0_u32..10,
        later in 0_u32..1000,
    ) {
        let busy = || {
            let mut replay = Replay::busy(ahead + 1, hold, &gaps, ahead);
            replay.pass(Duration::from_micros(u64::from(later)));
            replay
        };
        let replay = busy();
        let expected = replay.ledger.figures(CLASS, replay.now).expected_wait.unwrap();
        let actual = busy().actual_wait();
        prop_assert!(actual.abs_diff(expected) <= hold, "{actual:?}, expected {expected:?}");
    }
}

#[test]
fn a_batch_that_started_together_is_not_called_back_before_its_end() {
    let mut replay = Replay::busy(0, 20_000 * MS, &[Duration::ZERO; 10], 0);
    replay.pass(5_000 * MS);
    let refusal = Refusal {
        cause: Cause::QueueFull,
        retry_after: Some(15_000 * MS),
    };
    assert_eq!(replay.call(1, FOREVER), Answer::Refused(refusal));
}

#[test]
fn a_burst_after_a_quiet_moment_is_not_judged_by_one_slot_that_is_stuck() {
    let mut replay = Replay::new(2, 4, 40 * MS);
    let stuck = replay.ledger.try_admit(CLASS, replay.now).unwrap();
    replay.pass(3_600_000 * MS);
    assert_eq!(replay.call(1, FOREVER), Answer::Granted);
    assert_eq!(replay.call(2, Patience::wait(1_000 * MS)), Answer::Queued);
    replay.pass(40 * MS);
    assert_eq!(replay.granted, [(2, replay.now)]);
    assert_eq!(replay.ledger.release(stuck, replay.now), None);
}

#[test]
fn a_class_whose_slots_are_all_stuck_sheds_by_their_age() {
    let mut replay = Replay::busy(4, 40 * MS, &[Duration::ZERO; 2], 0);
    replay.now += 10_000 * MS;
    let Answer::Refused(refusal) = replay.call(1, Patience::wait(1_000 * MS)) else {
        panic!("nothing has ended for ten seconds");
    };
    assert!(
        matches!(refusal.cause, Cause::DeadlineTooShort { expected_hold, .. } if expected_hold == 10_000 * MS)
    );
}

#[test]
fn without_evidence_nobody_is_shed_and_no_time_is_named() {
    let mut ledger = Ledger::new(Rules::fixed(1, 1)).unwrap();
    let none = Patience::wait(Duration::ZERO);
    let hold = ledger.try_admit(CLASS, Duration::ZERO).unwrap();
    let queued = ledger.admit(CLASS, Duration::ZERO, none, || ());
    assert!(matches!(queued, Admission::Queued(_)));
    let refusal = Refusal {
        cause: Cause::QueueFull,
        retry_after: None,
    };
    let refused = ledger.admit(CLASS, Duration::ZERO, none, || ());
    assert_eq!(refused, Admission::Refused(refusal));
    let grant = ledger.release(hold, Duration::ZERO).unwrap();
    assert_eq!(ledger.release(grant.hold, Duration::ZERO), None);
}

#[test]
fn a_class_that_no_slot_could_ever_reach_is_refused() {
    let class = |reserved| ClassRules {
        reserved,
        max: 2,
        queue: 1,
    };
    let rules = |reserved: [u32; 2]| Rules {
        capacity: 2,
        classes: reserved.map(class).to_vec(),
        hand_over: HandOver::OldestFirst,
    };
    let error = Ledger::<()>::new(rules([2, 0])).unwrap_err();
    let (class, capacity) = (1, 2);
    assert_eq!(error, InvalidRules::NothingLeft { class, capacity });
    assert!(Ledger::<()>::new(rules([1, 0])).is_ok());
    assert!(Ledger::<()>::new(rules([1, 1])).is_ok());
}

/// Two classes on two slots: checkout holds both for 5 ms each, reports take 10 s.
fn lent_for_moments() -> (Ledger<u32>, Hold, Duration) {
    let class = |reserved, max| ClassRules {
        reserved,
        max,
        queue: 9,
    };
    let rules = Rules {
        capacity: 2,
        classes: vec![class(1, 2), class(0, 1)],
        hand_over: HandOver::OldestFirst,
    };
    let mut ledger = Ledger::new(rules).unwrap();
    let mut now = Duration::ZERO;
    for (class, hold) in [(1, 10_000 * MS), (0, 5 * MS)] {
        for _ in 0..20 {
            let held = ledger.try_admit(ClassId::new(class), now).unwrap();
            now += hold;
            assert_eq!(ledger.release(held, now), None);
        }
    }
    let first = ledger.try_admit(ClassId::new(0), now).unwrap();
    let _second = ledger.try_admit(ClassId::new(0), now).unwrap();
    (ledger, first, now)
}

#[test]
fn a_borrower_waits_as_long_as_those_who_borrow_hold_not_as_long_as_its_own_work_takes() {
    let (mut ledger, first, now) = lent_for_moments();
    let reports = ClassId::new(1);
    let figures = ledger.figures(reports, now);
    assert_eq!(figures.expected_hold, Some(10_000 * MS));
    assert_eq!(figures.expected_wait, Some(5 * MS / 2));
    assert_eq!(
        figures.retry_after,
        Some(5 * MS),
        "not before the first of them can end"
    );
    let asked = ledger.admit(reports, now, Patience::wait(5_000 * MS), || 1);
    assert!(matches!(asked, Admission::Queued(_)), "{asked:?}");
    let grant = ledger.release(first, now + 5 * MS).unwrap();
    assert_eq!(grant.hold.class(), reports);
}

#[test]
fn a_borrowed_slot_on_its_way_back_is_promised_to_nobody() {
    let class = |reserved, queue| ClassRules {
        reserved,
        max: 2,
        queue,
    };
    let rules = Rules {
        capacity: 2,
        classes: vec![class(1, 9), class(0, 0)],
        hand_over: HandOver::OldestFirst,
    };
    let mut ledger = Ledger::new(rules).unwrap();
    let (checkout, reports) = (ClassId::new(0), ClassId::new(1));
    let (now, patience) = (Duration::ZERO, Patience::wait(60_000 * MS));
    let _leaving = ledger.try_admit(reports, now).unwrap();
    let _held = ledger.try_admit(checkout, now).unwrap();
    let mut ask = |class, returning| {
        ledger.admit_for(CallSite::here(), class, now, patience, returning, || 1)
    };
    assert!(
        matches!(ask(reports, 1), Admission::Refused(_)),
        "checkout may have it"
    );
    assert!(matches!(ask(checkout, 0), Admission::Queued(_)));
}
