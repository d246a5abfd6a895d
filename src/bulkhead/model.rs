//! Every interleaving of the waiting floor, by a model checker.
//!
//! ```text
//! RUSTFLAGS='--cfg partitioned_pool_model' cargo test --release --lib model
//! ```
//!
//! Places in the queue are taken before the threads start, so that who is first is known; what the
//! threads then do (take, leave, release, close) meets in every order. A lost wake-up is a deadlock,
//! which the checker reports (and then aborts, as its own destructors panic). After each interleaving
//! [`at_rest`] looks for leaks.

use std::task::Wake;

use loom::future::block_on;
use loom::sync::Condvar;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use super::*;
use crate::admission::{ClassRules, HandOver};

const A: ClassId = ClassId::new(0);
const B: ClassId = ClassId::new(1);

/// Switches away from a thread that could have gone on, on one path; other switches are free. 3 take
/// 3 s in all, 4 half a minute, 5 two minutes and find no more in critical sections this short.
const PREEMPTIONS: usize = 4;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// Where a caller gives up its wait.
#[derive(Clone, Copy)]
enum Leave {
    BeforePoll,
    AfterPoll,
    AfterWake,
}

/// A waker that a thread can wait for.
struct Signal {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    fn new() -> (std::sync::Arc<Self>, Waker) {
        let signal = std::sync::Arc::new(Self {
            woken: Mutex::new(false),
            changed: Condvar::new(),
        });
        (std::sync::Arc::clone(&signal), Waker::from(signal))
    }

    fn wait(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.changed.wait(woken).unwrap();
        }
    }
}

impl Wake for Signal {
    fn wake(self: std::sync::Arc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

/// Counts who is inside, and fails above `limit`.
struct Room {
    inside: AtomicU32,
    limit: u32,
}

impl Room {
    fn new(limit: u32) -> Arc<Self> {
        let inside = AtomicU32::new(0);
        Arc::new(Self { inside, limit })
    }

    /// Uses a slot and gives it back.
    fn visit<S: Stock>(&self, permit: Permit<S>) {
        self.enter();
        self.exit();
        drop(permit);
    }

    fn enter(&self) {
        let others = self.inside.fetch_add(1, Ordering::SeqCst);
        assert!(others < self.limit, "more slots than the capacity");
    }

    fn exit(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Idle items, last in, first out.
#[derive(Default)]
struct Shelf(Vec<u32>);

impl Stock for Shelf {
    type Item = u32;

    fn take(&mut self, _: ClassId) -> Option<u32> {
        self.0.pop()
    }

    fn put(&mut self, _: ClassId, item: u32, _: Duration) -> Result<Option<Waker>, u32> {
        self.0.push(item);
        Ok(None)
    }
}

fn ask<S: Stock>(bulkhead: &Bulkhead<S>, class: ClassId) -> Request<S> {
    bulkhead.request(class, Patience::wait(Duration::from_secs(1)))
}

fn granted<S: Stock>(bulkhead: &Bulkhead<S>, class: ClassId) -> Permit<S> {
    match ask(bulkhead, class) {
        Request::Granted(permit, _) => permit,
        other => panic!("expected a slot, got {other:?}"),
    }
}

fn queued<S: Stock>(bulkhead: &Bulkhead<S>, class: ClassId) -> Waiting<S> {
    match ask(bulkhead, class) {
        Request::Waiting(waiting) => waiting,
        other => panic!("expected to wait, got {other:?}"),
    }
}

/// A slot of `class`, now or after a wait.
fn acquire<S: Stock>(bulkhead: &Bulkhead<S>, class: ClassId) -> Permit<S> {
    match ask(bulkhead, class) {
        Request::Granted(permit, _) => permit,
        Request::Waiting(waiting) => block_on(waiting).unwrap().0,
        other => panic!("expected a slot, got {other:?}"),
    }
}

fn poll<S: Stock>(waiting: &mut Waiting<S>, waker: &Waker) -> Poll<Result<Granted<S>, Closed>> {
    Pin::new(waiting).poll(&mut Context::from_waker(waker))
}

/// Gives up at the point that `when` names; what came before that point is given back.
fn leave<S: Stock>(mut waiting: Waiting<S>, when: Leave) {
    if matches!(when, Leave::BeforePoll) {
        return;
    }
    let (signal, waker) = Signal::new();
    match poll(&mut waiting, &waker) {
        Poll::Ready(Ok((permit, Some(item)))) => assert!(permit.give_back(item).is_none()),
        Poll::Ready(_) => {}
        Poll::Pending if matches!(when, Leave::AfterWake) => signal.wait(),
        Poll::Pending => {}
    }
}

fn at_rest<S: Stock>(bulkhead: &Bulkhead<S>, classes: &[ClassId]) {
    for class in classes {
        let figures = bulkhead.figures(*class);
        assert_eq!((figures.used, figures.waiting), (0, 0));
    }
    let state = bulkhead.shared.lock();
    assert_eq!(state.ledger.used(), 0);
    assert!(state.cells.is_empty(), "an answer that nobody took");
}

fn one_class(capacity: u32) -> Bulkhead<NoStock> {
    Bulkhead::new(Rules::fixed(capacity, 4), NoStock).unwrap()
}

/// Capacity 2: one slot is A's for ever, either class may have the other.
fn two_classes(hand_over: HandOver) -> Bulkhead<NoStock> {
    let class = |reserved| ClassRules {
        reserved,
        max: 2,
        queue: 4,
    };
    let rules = Rules {
        capacity: 2,
        classes: vec![class(1), class(0)],
        hand_over,
    };
    Bulkhead::new(rules, NoStock).unwrap()
}

#[test]
fn callers_that_meet_all_get_a_slot_and_never_more_than_there_are() {
    for capacity in [1, 2] {
        check(move || {
            let bulkhead = one_class(capacity);
            let room = Room::new(capacity);
            let callers = [(); 2].map(|()| {
                let (bulkhead, room) = (bulkhead.clone(), Arc::clone(&room));
                thread::spawn(move || room.visit(acquire(&bulkhead, A)))
            });
            room.visit(acquire(&bulkhead, A));
            for caller in callers {
                caller.join().unwrap();
            }
            at_rest(&bulkhead, &[A]);
        });
    }
}

#[test]
fn a_release_wakes_the_waiter() {
    check(|| {
        let bulkhead = one_class(1);
        let permit = granted(&bulkhead, A);
        let waiting = queued(&bulkhead, A);
        let waiter = thread::spawn(move || drop(block_on(waiting).unwrap()));
        drop(permit);
        waiter.join().unwrap();
        at_rest(&bulkhead, &[A]);
    });
}

#[test]
fn the_waker_of_the_last_poll_is_the_one_that_is_woken() {
    check(|| {
        let bulkhead = one_class(1);
        let permit = granted(&bulkhead, A);
        let mut waiting = queued(&bulkhead, A);
        let waiter = thread::spawn(move || {
            let (_, stale) = Signal::new();
            if let Poll::Ready(answer) = poll(&mut waiting, &stale) {
                return drop(answer.unwrap());
            }
            drop(block_on(waiting).unwrap());
        });
        drop(permit);
        waiter.join().unwrap();
        at_rest(&bulkhead, &[A]);
    });
}

fn the_next_waiter_is_served(when: Leave) {
    check(move || {
        let bulkhead = one_class(1);
        let permit = granted(&bulkhead, A);
        let (first, second) = (queued(&bulkhead, A), queued(&bulkhead, A));
        let leaver = thread::spawn(move || leave(first, when));
        let waiter = thread::spawn(move || drop(block_on(second).unwrap()));
        drop(permit);
        leaver.join().unwrap();
        waiter.join().unwrap();
        at_rest(&bulkhead, &[A]);
    });
}

#[test]
fn a_wait_dropped_before_its_first_poll_passes_its_grant_on() {
    the_next_waiter_is_served(Leave::BeforePoll);
}

#[test]
fn a_wait_dropped_after_its_first_poll_passes_its_grant_on() {
    the_next_waiter_is_served(Leave::AfterPoll);
}

#[test]
fn a_wait_dropped_after_its_wake_passes_its_grant_on() {
    the_next_waiter_is_served(Leave::AfterWake);
}

#[test]
fn a_grant_is_passed_on_through_several_that_leave() {
    check(|| {
        let bulkhead = one_class(1);
        let permit = granted(&bulkhead, A);
        let places = [(); 3].map(|()| queued(&bulkhead, A));
        let [first, second, third] = places;
        let leaver = thread::spawn(move || leave(first, Leave::AfterPoll));
        let other = thread::spawn(move || leave(second, Leave::AfterPoll));
        drop(permit);
        drop(block_on(third).unwrap());
        leaver.join().unwrap();
        other.join().unwrap();
        at_rest(&bulkhead, &[A]);
    });
}

#[test]
fn two_releases_serve_two_waiters_while_a_third_leaves() {
    for when in [Leave::BeforePoll, Leave::AfterPoll] {
        check(move || {
            let bulkhead = one_class(2);
            let (one, two) = (granted(&bulkhead, A), granted(&bulkhead, A));
            let (first, second) = (queued(&bulkhead, A), queued(&bulkhead, A));
            let releaser = thread::spawn(move || drop(one));
            let leaver = thread::spawn(move || leave(first, when));
            drop(two);
            drop(block_on(second).unwrap());
            releaser.join().unwrap();
            leaver.join().unwrap();
            at_rest(&bulkhead, &[A]);
        });
    }
}

#[test]
fn a_close_that_meets_a_release_answers_the_waiter_either_way() {
    check(|| {
        let bulkhead = one_class(1);
        let permit = granted(&bulkhead, A);
        let waiting = queued(&bulkhead, A);
        let waiter = thread::spawn(move || drop(block_on(waiting)));
        let closer = {
            let bulkhead = bulkhead.clone();
            thread::spawn(move || bulkhead.close())
        };
        drop(permit);
        waiter.join().unwrap();
        closer.join().unwrap();
        assert!(matches!(ask(&bulkhead, A), Request::Closed));
        assert!(bulkhead.try_acquire(A).is_none());
        at_rest(&bulkhead, &[A]);
    });
}

#[test]
fn a_close_tells_a_waiter_whose_slot_never_comes() {
    check(|| {
        let bulkhead = one_class(1);
        let permit = granted(&bulkhead, A);
        let waiter = {
            let bulkhead = bulkhead.clone();
            thread::spawn(move || match ask(&bulkhead, A) {
                Request::Waiting(waiting) => assert_eq!(block_on(waiting).err(), Some(Closed)),
                Request::Closed => {}
                other => panic!("expected to wait, got {other:?}"),
            })
        };
        bulkhead.close();
        waiter.join().unwrap();
        drop(permit);
        at_rest(&bulkhead, &[A]);
    });
}

#[test]
fn a_close_may_meet_a_leaving_and_a_release() {
    for when in [Leave::BeforePoll, Leave::AfterPoll, Leave::AfterWake] {
        check(move || {
            let bulkhead = one_class(1);
            let permit = granted(&bulkhead, A);
            let waiting = queued(&bulkhead, A);
            let leaver = thread::spawn(move || leave(waiting, when));
            let releaser = thread::spawn(move || drop(permit));
            bulkhead.close();
            block_on(bulkhead.drained());
            leaver.join().unwrap();
            releaser.join().unwrap();
            at_rest(&bulkhead, &[A]);
        });
    }
}

#[test]
fn drained_ends_with_the_last_slot_also_one_that_was_granted_on_the_way() {
    check(|| {
        let bulkhead = one_class(1);
        let permit = granted(&bulkhead, A);
        let waiting = queued(&bulkhead, A);
        let waiter = thread::spawn(move || drop(block_on(waiting)));
        let releaser = thread::spawn(move || drop(permit));
        block_on(bulkhead.drained());
        waiter.join().unwrap();
        releaser.join().unwrap();
        at_rest(&bulkhead, &[A]);
    });
}

#[test]
fn every_caller_in_drained_is_woken() {
    check(|| {
        let bulkhead = one_class(1);
        let permit = granted(&bulkhead, A);
        let other = {
            let bulkhead = bulkhead.clone();
            thread::spawn(move || block_on(bulkhead.drained()))
        };
        let releaser = thread::spawn(move || drop(permit));
        block_on(bulkhead.drained());
        other.join().unwrap();
        releaser.join().unwrap();
        at_rest(&bulkhead, &[A]);
    });
}

#[test]
fn borrowers_wake_each_other_and_the_reserved_slot_is_never_lent() {
    for hand_over in [HandOver::OldestFirst, HandOver::DeclaredOrder] {
        check(move || {
            let bulkhead = two_classes(hand_over.clone());
            let (room, lent) = (Room::new(2), Room::new(1));
            let borrowed = granted(&bulkhead, B);
            let borrower = queued(&bulkhead, B);
            let releaser = thread::spawn(move || drop(borrowed));
            let waiter = {
                let (room, lent) = (Arc::clone(&room), Arc::clone(&lent));
                thread::spawn(move || {
                    let (permit, _) = block_on(borrower).unwrap();
                    lent.enter();
                    room.enter();
                    room.exit();
                    lent.exit();
                    drop(permit);
                })
            };
            room.visit(granted(&bulkhead, A));
            releaser.join().unwrap();
            waiter.join().unwrap();
            at_rest(&bulkhead, &[A, B]);
        });
    }
}

#[test]
fn a_borrower_that_leaves_passes_its_slot_to_the_other_class() {
    for when in [Leave::BeforePoll, Leave::AfterPoll] {
        check(move || {
            let bulkhead = two_classes(HandOver::OldestFirst);
            let (own, borrowed) = (granted(&bulkhead, A), granted(&bulkhead, B));
            let (first, second) = (queued(&bulkhead, B), queued(&bulkhead, A));
            let leaver = thread::spawn(move || leave(first, when));
            let waiter = thread::spawn(move || drop(block_on(second).unwrap()));
            drop(borrowed);
            leaver.join().unwrap();
            waiter.join().unwrap();
            drop(own);
            at_rest(&bulkhead, &[A, B]);
        });
    }
}

#[test]
fn the_item_goes_to_the_waiter_together_with_the_slot() {
    check(|| {
        let bulkhead = Bulkhead::new(Rules::fixed(1, 4), Shelf::default()).unwrap();
        let permit = granted(&bulkhead, A);
        let waiting = queued(&bulkhead, A);
        let thief = {
            let bulkhead = bulkhead.clone();
            thread::spawn(move || drop(bulkhead.try_acquire(A)))
        };
        let waiter = thread::spawn(move || {
            let (permit, item) = block_on(waiting).unwrap();
            assert!(
                permit
                    .give_back(item.expect("the slot came without its item"))
                    .is_none()
            );
        });
        assert!(permit.give_back(7).is_none());
        waiter.join().unwrap();
        thief.join().unwrap();
        at_rest(&bulkhead, &[A]);
    });
}

#[test]
fn an_item_whose_taker_leaves_is_passed_on_and_never_lost_or_doubled() {
    for when in [Leave::BeforePoll, Leave::AfterWake] {
        check(move || {
            let bulkhead = Bulkhead::new(Rules::fixed(1, 4), Shelf::default()).unwrap();
            let permit = granted(&bulkhead, A);
            let (first, second) = (queued(&bulkhead, A), queued(&bulkhead, A));
            let leaver = thread::spawn(move || leave(first, when));
            let waiter = thread::spawn(move || {
                let (permit, item) = block_on(second).unwrap();
                assert!(
                    permit
                        .give_back(item.expect("the slot came without its item"))
                        .is_none()
                );
            });
            assert!(permit.give_back(7).is_none());
            leaver.join().unwrap();
            waiter.join().unwrap();
            bulkhead.with_stock(|shelf| assert_eq!(shelf.0, [7]));
            at_rest(&bulkhead, &[A]);
        });
    }
}
