//! Random traffic over a store, with a ledger that grants the slots as the bulkhead does: after each step the
//! numbered invariants of `store.rs` hold, and nobody waits for what is there.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::admission::{ClassRules, HandOver, Ledger, Rules};

use super::*;

type Client = u32;
type Boxed = Box<Link<Client>>;

#[derive(Clone, Debug)]
struct Layout {
    capacity: u32,
    classes: Vec<(ClassRules, usize)>,
}

/// Budgets of one to three classes and one or two wardrobes, in which every class can have a slot.
fn layout() -> impl Strategy<Value = Layout> {
    let class = (0..4_u32, 1..8_u32, 0..2_usize);
    (vec(class, 1..4), 0..4_u32).prop_map(|(classes, more)| {
        let reserved: u32 = classes.iter().map(|(reserved, ..)| reserved).sum();
        let capacity = reserved + more + 1;
        let class = |(reserved, more, wardrobe): (u32, u32, usize)| {
            let max = (reserved + more).min(capacity);
            (
                ClassRules {
                    reserved,
                    max,
                    queue: 0,
                },
                wardrobe,
            )
        };
        Layout {
            capacity,
            classes: classes.into_iter().map(class).collect(),
        }
    })
}

/// What may happen next; the numbers choose among what is there.
#[derive(Clone, Copy, Debug)]
enum Move {
    Acquire(usize),
    GiveBack(usize),
    GiveBackBusy(usize),
    Settle(usize),
    Opened(usize),
    OpeningFailed(usize),
    Closed(usize),
    StopSeeking(usize),
    Poll(usize),
    Discard(usize),
    Fill(usize),
    LosePatience(usize),
    OpeningFailedForNow(usize),
    OpeningIsLate(usize),
    Probe(usize),
    BecomeGhost(usize),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = (0..20_u8, 0..16_usize).prop_map(|(kind, n)| match kind {
        0..4 => Move::Acquire(n),
        4 => Move::GiveBack(n),
        5 => Move::GiveBackBusy(n),
        6 => Move::Settle(n),
        7 => Move::Opened(n),
        8 => Move::OpeningFailed(n),
        9 => Move::Closed(n),
        10 => Move::StopSeeking(n),
        11 => Move::Poll(n),
        12 => Move::Discard(n),
        13 => Move::LosePatience(n),
        14 => Move::OpeningFailedForNow(n),
        15 => Move::OpeningIsLate(n),
        16..18 => Move::Probe(n),
        18 => Move::BecomeGhost(n),
        _ => Move::Fill(n),
    });
    vec(one, 1..200)
}

/// A pool without tasks: what would be under way in them stands in lists.
struct World {
    layout: Layout,
    ledger: Ledger<()>,
    store: Store<Client>,
    used: Vec<(Hold, Boxed)>,
    seeking: Vec<(Hold, usize)>,
    returning: Vec<(Hold, Boxed)>,
    opening: Vec<Place>,
    closing: Vec<Boxed>,
    /// Openings that are ghosts.
    late: Vec<Place>,
    clock: u64,
    opened: u32,
}

impl World {
    fn new(layout: Layout) -> Self {
        let rules = Rules {
            capacity: layout.capacity,
            classes: layout.classes.iter().map(|(rules, _)| *rules).collect(),
            hand_over: HandOver::OldestFirst,
        };
        let classes = layout.classes.iter();
        let classes = classes.map(|(rules, wardrobe)| ClassOfStore {
            reserved: rules.reserved,
            max: rules.max,
            wardrobe: *wardrobe,
        });
        let mut store = Store::new(layout.capacity, classes);
        store.retry();
        Self {
            ledger: Ledger::new(rules).unwrap(),
            store,
            layout,
            used: Vec::new(),
            seeking: Vec::new(),
            returning: Vec::new(),
            opening: Vec::new(),
            closing: Vec::new(),
            late: Vec::new(),
            clock: 0,
            opened: 0,
        }
    }

    fn now(&mut self) -> Duration {
        self.clock += 1;
        Duration::from_millis(self.clock)
    }

    fn make(&mut self, next: Move) {
        match next {
            Move::Acquire(n) => self.acquire(ClassId::new(n % self.layout.classes.len())),
            Move::GiveBack(n) => self.give_back(n),
            Move::GiveBackBusy(n) => self.give_back_busy(n),
            Move::Settle(n) => self.settle(n),
            Move::Opened(n) => self.opened(n),
            Move::OpeningFailed(n) => self.opening_failed(n, "28P01"),
            Move::Closed(n) => self.closed(n),
            Move::StopSeeking(n) => self.stop_seeking(n),
            Move::Poll(n) => self.poll(n),
            Move::Discard(n) => self.discard(n),
            Move::LosePatience(n) => self.lose_patience(n),
            Move::OpeningFailedForNow(n) => self.opening_failed(n, "53300"),
            Move::OpeningIsLate(n) => self.opening_is_late(n),
            Move::Probe(n) => self.store.probe(self.class(n)),
            Move::BecomeGhost(n) => self.become_ghost(n),
            Move::Fill(n) => self.pump(ClassId::new(n % self.layout.classes.len()), 2),
        }
        // As the pool does: giving back must be enough for whoever it wakes.
        if matches!(
            next,
            Move::GiveBack(_) | Move::GiveBackBusy(_) | Move::Settle(_)
        ) {
            (0..self.seeking.len()).for_each(|_| self.poll(0));
        } else {
            self.pump(ClassId::new(0), 0);
        }
    }

    fn class(&self, n: usize) -> ClassId {
        ClassId::new(n % self.layout.classes.len())
    }

    fn pump(&mut self, class: ClassId, min_idle: u32) {
        for _ in 0..=self.layout.capacity {
            match self.store.next_step(class, min_idle) {
                Some(Step::Open(place)) => self.opening.push(place),
                Some(Step::Served(_)) => {}
                Some(Step::Close(link)) => self.closing.push(link),
                None => return,
            }
        }
        panic!("there is always something to do");
    }

    fn acquire(&mut self, class: ClassId) {
        let now = self.now();
        let Some(hold) = self.ledger.try_admit(class, now) else {
            return;
        };
        match self.store.take(&hold) {
            Some(link) => self.take(hold, link),
            None => match self.store.seek(hold.id()) {
                Seek::Idle(link) => self.take(hold, link),
                Seek::Seeking { key, .. } => self.seeking.push((hold, key)),
                Seek::Closed => panic!("it is open"),
            },
        }
    }

    /// What a caller does with a connection: it dresses it if need be.
    fn take(&mut self, hold: Hold, mut link: Boxed) {
        assert_eq!(link.place.class, hold.class());
        let worn = link.dress.expect("nobody hands out what is being dressed");
        assert_eq!(
            self.wardrobe(worn),
            self.wardrobe(hold.class()),
            "it cannot be dressed"
        );
        let is_taken_over = link.dress.replace(hold.class()) != Some(hold.class());
        self.used.push((hold, link));
        if is_taken_over {
            self.pump(ClassId::new(0), 0);
        }
    }

    fn wardrobe(&self, class: ClassId) -> usize {
        self.layout.classes[class.index()].1
    }

    fn give_back(&mut self, n: usize) {
        let Some((hold, link)) = pick(&mut self.used, n) else {
            return;
        };
        self.put(hold, link);
    }

    fn put(&mut self, hold: Hold, link: Boxed) {
        let now = self.now();
        let class = hold.class();
        let returning = link.place.stage == Stage::Returning;
        if let Err(mut link) = self.store.put(class, link, now) {
            if returning {
                self.store.slot_returned(class);
            }
            self.store.shift(&mut link.place, Stage::Closing);
            self.closing.push(link);
        }
        assert_eq!(
            self.ledger.release(hold, now),
            None,
            "nobody waits in this ledger"
        );
    }

    fn give_back_busy(&mut self, n: usize) {
        let Some((hold, mut link)) = pick(&mut self.used, n) else {
            return;
        };
        self.store.shift(&mut link.place, Stage::Returning);
        self.store.slot_returns(hold.class());
        self.returning.push((hold, link));
    }

    fn settle(&mut self, n: usize) {
        let Some((hold, link)) = pick(&mut self.returning, n) else {
            return;
        };
        self.put(hold, link);
    }

    fn opened(&mut self, n: usize) {
        let Some(place) = pick(&mut self.opening, n) else {
            return;
        };
        self.store.opened(&place, None);
        self.opened += 1;
        let link = Link {
            tenure: 0,
            client: self.opened,
            dress: Some(place.class),
            place,
            expires: None,
            idle_since: Duration::ZERO,
        };
        self.offer(Box::new(link));
    }

    fn offer(&mut self, link: Boxed) {
        let now = self.now();
        if let Err(mut link) = self.store.offer(link, now) {
            self.store.shift(&mut link.place, Stage::Closing);
            self.closing.push(link);
        }
    }

    fn opening_failed(&mut self, n: usize, code: &str) {
        let Some(place) = pick(&mut self.opening, n) else {
            return;
        };
        let class = place.class;
        drop(self.store.gone(place));
        drop(self.store.opening_failed(class, failure(code)));
    }

    /// It has outlasted its time, and counts until its end is known.
    fn opening_is_late(&mut self, n: usize) {
        let Some(mut place) = pick(&mut self.opening, n) else {
            return;
        };
        let class = place.class;
        self.store.shift(&mut place, Stage::Ghost);
        drop(self.store.opening_failed(class, failure("28P01")));
        self.late.push(place);
    }

    fn become_ghost(&mut self, n: usize) {
        if !self.closing.is_empty() {
            let at = n % self.closing.len();
            self.store.shift(&mut self.closing[at].place, Stage::Ghost);
        }
    }

    fn closed(&mut self, n: usize) {
        if let Some(place) = pick(&mut self.late, n) {
            drop(self.store.gone(place));
        } else if let Some(link) = pick(&mut self.closing, n) {
            drop(self.store.gone(link.place));
        }
    }

    fn stop_seeking(&mut self, n: usize) {
        let Some((hold, key)) = pick(&mut self.seeking, n) else {
            return;
        };
        if let Seeker::Answered(Ok(link)) = self.store.stop_seeking(key) {
            self.offer(link);
        }
        let now = self.now();
        assert_eq!(self.ledger.release(hold, now), None);
    }

    fn poll(&mut self, n: usize) {
        let Some((hold, key)) = pick(&mut self.seeking, n) else {
            return;
        };
        let mut cx = Context::from_waker(Waker::noop());
        match self.store.poll_seeker(key, &mut cx, &mut None) {
            Poll::Pending => self.seeking.push((hold, key)),
            Poll::Ready(Ok(link)) => self.take(hold, link),
            Poll::Ready(Err(_)) => {
                let now = self.now();
                assert_eq!(self.ledger.release(hold, now), None);
            }
        }
    }

    fn lose_patience(&mut self, n: usize) {
        if !self.seeking.is_empty() {
            let (_, key) = self.seeking[n % self.seeking.len()];
            self.store
                .lose_patience(self.seeking[n % self.seeking.len()].0.class(), key);
        }
    }

    /// An idle connection has been idle for too long.
    fn discard(&mut self, n: usize) {
        let class = ClassId::new(n % self.layout.classes.len());
        let now = self.now();
        let stale = self
            .store
            .take_stale(class, now, Some(Duration::ZERO), 0, |_| false);
        self.closing.extend(stale);
    }

    fn check(&self) {
        let total = self.store.total();
        assert!(
            total <= self.layout.capacity,
            "1: {total} of {}",
            self.layout.capacity
        );
        let free = self.layout.capacity - total;
        assert!(free >= self.store.lack(), "2: {free} free");
        for (shelf, (rules, _)) in self.store.shelves.iter().zip(&self.layout.classes) {
            assert!(shelf.counts.total() <= rules.max, "1: a class");
            assert_eq!(shelf.idle.len(), shelf.counts.of(Stage::Idle) as usize);
        }
        for (index, shelf) in self.store.shelves.iter().enumerate() {
            let class = ClassId::new(index);
            for link in &shelf.idle {
                assert_eq!((link.dress, link.place.class), (Some(class), class), "6");
            }
            if shelf.unserved() > 0 {
                self.nothing_is_there_for(class);
            }
        }
    }

    /// 3 and 5: a seeker without prospect waits for a place that is about to come free.
    fn nothing_is_there_for(&self, class: ClassId) {
        let own = &self.store.shelves[class.index()];
        assert!(own.idle.is_empty(), "4");
        if !own.has_room() {
            return;
        }
        assert!(!self.store.may_open(class), "3");
        let suits = |worn| self.store.can_dress(class, worn);
        assert_eq!(
            self.store.least_needed(class, suits),
            None,
            "5: it could be taken over"
        );
        let stands_in_the_way = |worn| !self.store.can_dress(class, worn);
        let other = self.store.least_needed(class, stands_in_the_way);
        let helps = self.store.would_help_to_close(class);
        assert!(other.is_none() || !helps, "5: it stands in the way");
    }

    /// Everybody goes, and everything that is under way comes to its end.
    fn end(&mut self) {
        while !self.seeking.is_empty() {
            self.stop_seeking(0);
        }
        while !self.returning.is_empty() {
            self.settle(0);
        }
        while !self.used.is_empty() {
            self.give_back(0);
        }
        while !self.opening.is_empty() {
            self.opened(0);
        }
        while !self.closing.is_empty() || !self.late.is_empty() {
            self.closed(0);
        }
        self.check();
        let idle = |shelf: &Shelf<Client>| shelf.idle.len();
        let idle: usize = self.store.shelves.iter().map(idle).sum();
        assert_eq!(self.store.total() as usize, idle);
        assert_eq!(
            (self.store.seekers.len(), self.store.known.len()),
            (0, idle)
        );
        assert_eq!(self.ledger.used(), 0);
    }
}

fn failure(code: &str) -> Failure {
    Failure::new(Some(code.to_owned()), "no")
}

fn pick<T>(from: &mut Vec<T>, n: usize) -> Option<T> {
    if from.is_empty() {
        return None;
    }
    let at = n % from.len();
    Some(from.remove(at))
}

/// Two classes that can dress each other's, on two connections: one is idle in class 0, one is on its way back
/// to class 1.
fn one_on_its_way_back() -> World {
    let rules = ClassRules {
        reserved: 0,
        max: 2,
        queue: 0,
    };
    let mut world = World::new(Layout {
        capacity: 2,
        classes: vec![(rules, 0), (rules, 0)],
    });
    for next in [
        Move::Acquire(0),
        Move::Acquire(1),
        Move::Opened(0),
        Move::Opened(0),
    ] {
        world.make(next);
    }
    for next in [
        Move::Poll(0),
        Move::Poll(0),
        Move::GiveBack(0),
        Move::GiveBackBusy(0),
    ] {
        world.make(next);
    }
    world
}

#[test]
fn whoever_has_one_of_its_own_on_the_way_back_waits_for_it() {
    let mut world = one_on_its_way_back();
    world.make(Move::Acquire(1));
    world.make(Move::Poll(0));
    assert_eq!(
        (world.seeking.len(), world.store.shelves[0].idle.len()),
        (1, 1)
    );
    world.make(Move::Settle(0));
    world.make(Move::Poll(0));
    assert_eq!((world.seeking.len(), world.used.len()), (0, 1));
    assert_eq!(
        world.store.shelves[0].idle.len(),
        1,
        "nothing was taken over"
    );
}

#[test]
fn a_seeker_that_loses_its_patience_takes_one_over() {
    let mut world = one_on_its_way_back();
    world.make(Move::Acquire(1));
    world.make(Move::LosePatience(0));
    world.make(Move::Poll(0));
    assert_eq!((world.seeking.len(), world.used.len()), (0, 1));
    assert_eq!(world.store.shelves[0].idle.len(), 0);
}

fn of(reserved: u32, max: u32) -> ClassRules {
    ClassRules {
        reserved,
        max,
        queue: 0,
    }
}

fn world(capacity: u32, classes: Vec<(ClassRules, usize)>) -> World {
    World::new(Layout { capacity, classes })
}

fn make(world: &mut World, moves: impl IntoIterator<Item = Move>) {
    for next in moves {
        world.make(next);
        world.check();
    }
}

#[test]
fn a_role_that_is_full_does_not_keep_another_from_opening() {
    let mut world = world(4, vec![(of(2, 4), 0), (of(2, 4), 1)]);
    make(
        &mut world,
        [
            Move::Acquire(1),
            Move::OpeningFailedForNow(0),
            Move::Acquire(0),
        ],
    );
    let opening: Vec<_> = world
        .opening
        .iter()
        .map(|place| place.class.index())
        .collect();
    assert_eq!(opening, [0], "class 1 has to wait for its prober");
    assert!(world.store.trouble(ClassId::new(0)).is_none());
    assert!(world.store.trouble(ClassId::new(1)).is_some());
}

#[test]
fn while_nothing_can_be_opened_what_is_idle_is_taken_over() {
    let mut world = world(4, vec![(of(2, 4), 0), (of(0, 4), 0)]);
    make(
        &mut world,
        [
            Move::Acquire(1),
            Move::Opened(0),
            Move::Poll(0),
            Move::GiveBack(0),
        ],
    );
    make(
        &mut world,
        [
            Move::Acquire(0),
            Move::OpeningFailedForNow(0),
            Move::Poll(0),
        ],
    );
    assert_eq!((world.seeking.len(), world.used.len()), (0, 1));
}

#[test]
fn while_nothing_can_be_opened_what_comes_back_is_taken_over() {
    let mut world = world(4, vec![(of(2, 4), 0), (of(0, 4), 0)]);
    make(
        &mut world,
        [Move::Acquire(1), Move::Opened(0), Move::Poll(0)],
    );
    make(&mut world, [Move::Acquire(0), Move::OpeningFailedForNow(0)]);
    assert_eq!(world.seeking.len(), 1);
    make(&mut world, [Move::GiveBack(0), Move::Poll(0)]);
    assert_eq!((world.seeking.len(), world.used.len()), (0, 1));
}

#[test]
fn what_is_reserved_is_not_taken_by_the_ghosts_of_another() {
    let mut world = world(4, vec![(of(2, 4), 0), (of(0, 4), 1)]);
    for _ in 0..4 {
        make(
            &mut world,
            [Move::Acquire(1), Move::OpeningIsLate(0), Move::Poll(0)],
        );
    }
    assert_eq!(
        world.late.len(),
        2,
        "the others have no place for an opening"
    );
    make(&mut world, [Move::Acquire(0), Move::Acquire(0)]);
    assert_eq!(world.opening.len(), 2);
}

#[test]
fn for_one_seeker_one_connection_is_closed() {
    let mut world = world(5, vec![(of(0, 2), 0), (of(0, 5), 1), (of(0, 5), 2)]);
    let acquire = [0, 0, 2, 2, 2].map(Move::Acquire);
    make(&mut world, acquire);
    for next in [Move::Opened(0), Move::Poll(0), Move::GiveBack(0)] {
        make(&mut world, [next; 5]);
    }
    // Class 0 is at its cap, with two ghosts and two seekers that no place can help.
    make(
        &mut world,
        [
            Move::Discard(0),
            Move::BecomeGhost(0),
            Move::Discard(0),
            Move::BecomeGhost(1),
        ],
    );
    make(&mut world, [Move::Acquire(0), Move::Acquire(0)]);
    assert_eq!(world.closing.len(), 2);
    make(&mut world, [Move::Acquire(1)]);
    assert_eq!(world.closing.len(), 3);
}

#[test]
fn a_seeker_of_a_class_at_its_cap_hears_of_the_room() {
    let mut world = world(3, vec![(of(0, 2), 0), (of(0, 2), 0)]);
    let one = |class| [Move::Acquire(class), Move::Opened(0), Move::Poll(0)];
    make(&mut world, one(0));
    // Closing, without a slot, it counts for class 0.
    make(&mut world, [Move::GiveBack(0), Move::Discard(0)]);
    make(&mut world, one(1));
    make(&mut world, one(1));
    // The first seeker of class 0 is answered with a connection of class 1, of which it does not hear; the
    // second finds the cap.
    make(&mut world, [Move::Acquire(0)]);
    world.give_back(0);
    make(&mut world, [Move::Acquire(0)]);
    assert_eq!(world.seeking.len(), 2);
    make(&mut world, [Move::StopSeeking(0), Move::Poll(0)]);
    assert_eq!(world.seeking.len(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_budget_is_never_overshot_and_nobody_waits_for_what_is_there(
        layout in layout(),
        moves in moves(),
    ) {
        let mut world = World::new(layout);
        for next in moves {
            world.make(next);
            world.check();
        }
        world.end();
    }

    /// P3: a place is about to come free, or is there, for everyone who has a slot.
    #[test]
    fn whoever_has_a_slot_is_served_by_openings_and_closings_alone(
        layout in layout(),
        moves in moves(),
    ) {
        let mut world = World::new(layout);
        for next in moves {
            world.make(next);
        }
        // From here on nobody gives anything back, and nothing fails.
        let rounds = 4 * world.layout.capacity as usize + 4;
        for _ in 0..rounds {
            for class in 0..world.layout.classes.len() {
                world.make(Move::Probe(class));
            }
            for next in [Move::Opened(0), Move::Closed(0), Move::Settle(0)] {
                world.make(next);
                world.check();
            }
            for n in 0..world.seeking.len() {
                world.make(Move::LosePatience(n));
            }
            for _ in 0..world.seeking.len() {
                world.poll(0);
            }
        }
        prop_assert!(world.seeking.is_empty(), "somebody waits for a caller");
    }
}
