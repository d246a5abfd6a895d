//! The waiting floor as callers see it: order, leaving, closing, panics, and a storm.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use partitioned_pool::admission::{Cause, ClassId, ClassRules, HandOver, Patience, Rules};
use partitioned_pool::bulkhead::{Bulkhead, Closed, NoStock, Permit, Request, Stock, Waiting};
use tokio::time::timeout;

const A: ClassId = ClassId::new(0);
const B: ClassId = ClassId::new(1);
const SECOND: Patience = Patience::wait(Duration::from_secs(1));

fn slots(size: u32, queue: u32) -> Bulkhead<NoStock> {
    Bulkhead::new(Rules::fixed(size, queue), NoStock).unwrap()
}

fn granted<S: Stock>(bulkhead: &Bulkhead<S>) -> (Permit<S>, Option<S::Item>) {
    match bulkhead.request(A, SECOND) {
        Request::Granted(permit, item) => (permit, item),
        other => panic!("expected a slot, got {other:?}"),
    }
}

fn queued<S: Stock>(bulkhead: &Bulkhead<S>) -> Waiting<S> {
    match bulkhead.request(A, SECOND) {
        Request::Waiting(waiting) => waiting,
        other => panic!("expected to wait, got {other:?}"),
    }
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll(future, Waker::noop())
}

fn counts<S: Stock>(bulkhead: &Bulkhead<S>) -> (u32, u32) {
    let figures = bulkhead.figures(A);
    (figures.used, figures.waiting)
}

#[tokio::test]
async fn waiters_are_served_in_the_order_in_which_they_came() {
    let bulkhead = slots(1, 10);
    let (permit, _) = granted(&bulkhead);
    let served = Arc::new(Mutex::new(Vec::new()));
    let tasks = (0..10).map(|n| {
        let (waiting, served) = (queued(&bulkhead), Arc::clone(&served));
        tokio::spawn(async move {
            let (_permit, _) = waiting.await.unwrap();
            served.lock().unwrap().push(n);
        })
    });
    let tasks = tasks.collect::<Vec<_>>();
    drop(permit);
    for task in tasks.into_iter().rev() {
        task.await.unwrap();
    }
    assert_eq!(*served.lock().unwrap(), (0..10).collect::<Vec<_>>());
    assert_eq!(counts(&bulkhead), (0, 0));
}

#[test]
fn nobody_overtakes_a_waiter_that_was_granted_but_has_not_looked() {
    let bulkhead = slots(1, 2);
    let (permit, _) = granted(&bulkhead);
    let mut first = queued(&bulkhead);
    drop(permit);
    assert!(bulkhead.try_acquire(A).is_none());
    let mut second = queued(&bulkhead);
    assert!(poll_once(&mut second).is_pending());
    assert!(poll_once(&mut first).is_ready());
    assert!(poll_once(&mut second).is_ready());
}

#[test]
fn with_no_queue_a_caller_is_refused_when_full_and_admitted_when_not() {
    let bulkhead = slots(1, 0);
    let (permit, _) = granted(&bulkhead);
    let Request::Refused(refusal, figures) = bulkhead.request(A, SECOND) else {
        panic!("there is no slot and no queue");
    };
    assert_eq!(refusal.cause, Cause::QueueFull);
    assert_eq!((figures.used, figures.waiting), (1, 0));
    drop(permit);
    drop(granted(&bulkhead));
}

#[test]
fn a_dropped_wait_leaves_the_queue_at_once() {
    let bulkhead = slots(1, 2);
    let (permit, _) = granted(&bulkhead);
    let (mut polled, unpolled) = (queued(&bulkhead), queued(&bulkhead));
    assert!(poll_once(&mut polled).is_pending());
    assert!(matches!(bulkhead.request(A, SECOND), Request::Refused(..)));
    drop(unpolled);
    assert_eq!(counts(&bulkhead), (1, 1));
    drop(polled);
    assert_eq!(counts(&bulkhead), (1, 0));
    drop(permit);
    assert_eq!(counts(&bulkhead), (0, 0));
}

#[test]
fn a_grant_that_crosses_a_leaving_goes_to_the_next_waiter() {
    let bulkhead = slots(1, 3);
    let (permit, _) = granted(&bulkhead);
    let [mut first, mut second, mut third] = [(); 3].map(|()| queued(&bulkhead));
    let flag = Arc::new(Flag::default());
    assert!(poll_once(&mut first).is_pending());
    assert!(poll(&mut second, &Arc::clone(&flag).into()).is_pending());
    assert!(poll_once(&mut third).is_pending());
    drop(permit);
    assert!(!flag.0.load(Ordering::SeqCst), "the slot is first's");
    drop(first);
    assert!(flag.0.load(Ordering::SeqCst), "the next one is woken");
    assert!(poll_once(&mut third).is_pending());
    let Poll::Ready(Ok((permit, _))) = poll_once(&mut second) else {
        panic!("the slot was passed on");
    };
    assert_eq!(counts(&bulkhead), (1, 1));
    drop((permit, third));
    assert_eq!(counts(&bulkhead), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_is_gone_and_the_slot_is_not_lost() {
    let bulkhead = slots(1, 2);
    let (permit, _) = granted(&bulkhead);
    let waiting = timeout(Duration::from_millis(100), queued(&bulkhead));
    waiting.await.unwrap_err();
    assert_eq!(counts(&bulkhead), (1, 0));
    drop(permit);
    drop(granted(&bulkhead));
}

#[test]
fn the_waker_of_the_last_poll_is_the_one_that_counts() {
    let bulkhead = slots(1, 1);
    let (permit, _) = granted(&bulkhead);
    let mut waiting = queued(&bulkhead);
    let [old, new] = [(); 2].map(|()| Arc::new(Flag::default()));
    assert!(poll(&mut waiting, &Arc::clone(&old).into()).is_pending());
    assert!(poll(&mut waiting, &Arc::clone(&new).into()).is_pending());
    drop(permit);
    assert!(!old.0.load(Ordering::SeqCst));
    assert!(new.0.load(Ordering::SeqCst));
}

#[tokio::test]
async fn close_tells_every_waiter_and_grants_nothing_later() {
    let bulkhead = slots(1, 5);
    let (permit, _) = granted(&bulkhead);
    let (waiters, unpolled) = ([(); 3].map(|()| queued(&bulkhead)), queued(&bulkhead));
    let tasks = waiters.map(|waiting| tokio::spawn(async { waiting.await.err() }));
    tokio::task::yield_now().await;
    bulkhead.close();
    assert!(bulkhead.is_closed());
    assert_eq!(counts(&bulkhead), (1, 0));
    for task in tasks {
        let told = timeout(Duration::from_secs(5), task).await;
        assert_eq!(told.expect("it is woken").unwrap(), Some(Closed));
    }
    drop(permit);
    assert!(bulkhead.try_acquire(A).is_none());
    assert!(matches!(bulkhead.request(A, SECOND), Request::Closed));
    assert_eq!(unpolled.await.err(), Some(Closed));
    bulkhead.close();
    assert_eq!(counts(&bulkhead), (0, 0));
}

#[test]
fn a_slot_that_was_granted_before_the_close_is_still_delivered() {
    let bulkhead = slots(1, 2);
    let (permit, _) = granted(&bulkhead);
    let (mut first, mut second) = (queued(&bulkhead), queued(&bulkhead));
    drop(permit);
    bulkhead.close();
    assert!(matches!(poll_once(&mut second), Poll::Ready(Err(Closed))));
    assert!(matches!(poll_once(&mut first), Poll::Ready(Ok(_))));
    assert_eq!(counts(&bulkhead), (0, 0));
}

#[tokio::test]
async fn drained_completes_with_the_last_slot_for_everyone_who_waits_for_it() {
    let bulkhead = slots(2, 0);
    let ((one, _), (two, _)) = (granted(&bulkhead), granted(&bulkhead));
    bulkhead.close();
    let drained = [(); 3].map(|()| {
        let bulkhead = bulkhead.clone();
        tokio::spawn(async move { bulkhead.drained().await })
    });
    let mut here = pin!(bulkhead.drained());
    assert!(poll_once(&mut here).is_pending());
    drop(one);
    tokio::task::yield_now().await;
    assert!(drained.iter().all(|task| !task.is_finished()));
    assert!(poll_once(&mut here).is_pending());
    drop(two);
    for task in drained {
        timeout(Duration::from_secs(5), task)
            .await
            .unwrap()
            .unwrap();
    }
    here.await;
    bulkhead.drained().await;
}

#[tokio::test]
async fn a_panic_in_a_task_that_holds_a_slot_gives_it_back() {
    let bulkhead = slots(1, 1);
    let (permit, _) = granted(&bulkhead);
    let waiting = queued(&bulkhead);
    let task = tokio::spawn(async move {
        let _permit = permit;
        tokio::task::yield_now().await;
        // Without the hook, so that no backtrace is printed.
        resume_unwind(Box::new("the work failed"));
    });
    assert!(task.await.unwrap_err().is_panic());
    drop(waiting.await.unwrap());
    assert_eq!(counts(&bulkhead), (0, 0));
}

#[test]
fn a_panic_while_the_lock_is_held_does_not_lock_the_others_out() {
    let bulkhead = slots(1, 1);
    let (permit, _) = granted(&bulkhead);
    let crash = || bulkhead.with_stock(|_| resume_unwind(Box::new("in the lock")));
    assert!(catch_unwind(AssertUnwindSafe(crash)).is_err());
    assert_eq!(counts(&bulkhead), (1, 0));
    drop(permit);
    assert_eq!(counts(&bulkhead), (0, 0));
}

#[test]
fn a_reserved_slot_is_there_although_the_other_class_is_full_and_waits() {
    let class = |reserved| ClassRules {
        reserved,
        max: 3,
        queue: 2,
    };
    let rules = Rules {
        capacity: 3,
        classes: vec![class(1), class(0)],
        hand_over: HandOver::OldestFirst,
    };
    let bulkhead = Bulkhead::new(rules, NoStock).unwrap();
    let borrowed = [(); 2].map(|()| bulkhead.try_acquire(B).unwrap());
    let Request::Waiting(mut borrower) = bulkhead.request(B, SECOND) else {
        panic!("the third slot is reserved");
    };
    let (own, _) = granted(&bulkhead);
    drop(own);
    assert!(poll_once(&mut borrower).is_pending(), "never lent out");
    drop(borrowed);
    assert!(poll_once(&mut borrower).is_ready());
}

/// Idle items, last in, first out; one may be awaited by somebody who holds a slot already.
#[derive(Default)]
struct Shelf {
    items: Vec<Item>,
    expecting: Option<Waker>,
}

#[derive(Debug)]
struct Item(u32, Arc<AtomicU32>);

impl Drop for Item {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

impl Stock for Shelf {
    type Item = Item;

    fn take(&mut self, _: ClassId) -> Option<Item> {
        self.items.pop()
    }

    fn put(&mut self, _: ClassId, item: Item, _: Duration) -> Result<Option<Waker>, Item> {
        self.items.push(item);
        Ok(self.expecting.take())
    }
}

#[test]
fn an_item_goes_out_with_the_slot_in_one_step() {
    let bulkhead = Bulkhead::new(Rules::fixed(1, 2), Shelf::default()).unwrap();
    let dropped = Arc::new(AtomicU32::new(0));
    let (permit, item) = granted(&bulkhead);
    assert!(item.is_none(), "nothing is in stock yet");
    let (first, mut second) = (queued(&bulkhead), queued(&bulkhead));
    assert!(permit.give_back(Item(7, Arc::clone(&dropped))).is_none());
    assert_eq!(bulkhead.with_stock(|shelf| shelf.items.len()), 0);
    assert!(bulkhead.try_acquire(A).is_none());
    drop(first);
    assert_eq!(bulkhead.with_stock(|shelf| shelf.items.len()), 0);
    let Poll::Ready(Ok((permit, Some(item)))) = poll_once(&mut second) else {
        panic!("slot and item were passed on");
    };
    assert_eq!(item.0, 7);
    assert!(permit.give_back(item).is_none());
    let (permit, item) = granted(&bulkhead);
    assert_eq!(item.expect("back in stock").0, 7);
    drop(permit);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert_eq!(counts(&bulkhead), (0, 0));
}

#[test]
fn whoever_the_stock_names_is_woken() {
    let bulkhead = Bulkhead::new(Rules::fixed(2, 0), Shelf::default()).unwrap();
    let ((one, _), _two) = (granted(&bulkhead), granted(&bulkhead));
    let flag = Arc::new(Flag::default());
    bulkhead.with_stock(|shelf| shelf.expecting = Some(Arc::clone(&flag).into()));
    one.give_back(Item(1, Arc::default()));
    assert!(flag.0.load(Ordering::SeqCst));
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A waker that asks the bulkhead something when it is woken, and when it is dropped.
struct Nosy(Bulkhead<NoStock>);

impl Wake for Nosy {
    fn wake(self: Arc<Self>) {
        assert_eq!(counts(&self.0).1, 0);
    }
}

impl Drop for Nosy {
    fn drop(&mut self) {
        let _ = self.0.is_closed();
    }
}

/// Fails, rather than hangs, if `work` locks itself out.
fn without_deadlock(work: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    let outcome = wait.recv_timeout(Duration::from_secs(10));
    outcome.expect("a panic, or a waker that was used under the lock");
}

#[test]
fn no_waker_is_woken_under_the_lock() {
    without_deadlock(|| {
        let bulkhead = slots(1, 1);
        let nosy = Waker::from(Arc::new(Nosy(bulkhead.clone())));
        let (permit, _) = granted(&bulkhead);
        let mut waiting = queued(&bulkhead);
        assert!(poll(&mut waiting, &nosy).is_pending());
        drop(permit);
        let mut drained = pin!(bulkhead.drained());
        assert!(poll(&mut drained, &nosy).is_pending());
        let mut told = queued(&bulkhead);
        assert!(poll(&mut told, &nosy).is_pending());
        bulkhead.close();
        drop(waiting);
    });
}

#[test]
fn no_waker_is_dropped_under_the_lock() {
    without_deadlock(|| {
        let bulkhead = slots(1, 1);
        let nosy = || Waker::from(Arc::new(Nosy(bulkhead.clone())));
        let _permit = granted(&bulkhead);
        let mut waiting = queued(&bulkhead);
        assert!(poll(&mut waiting, &nosy()).is_pending());
        assert!(poll(&mut waiting, &nosy()).is_pending());
        drop(waiting);
    });
}

/// One call of the storm; the dice decide how it ends.
async fn visit(bulkhead: &Bulkhead<Shelf>, dropped: &Arc<AtomicU32>, made: &AtomicU32) {
    let dice = fastrand::u32(..100);
    let (permit, item) = match bulkhead.request(A, SECOND) {
        Request::Granted(permit, item) => (permit, item),
        Request::Waiting(waiting) if dice < 10 => return drop(waiting),
        Request::Waiting(mut waiting) if dice < 25 => {
            let _ = poll_once(&mut waiting);
            tokio::task::yield_now().await;
            return;
        }
        Request::Waiting(waiting) if dice < 35 => {
            match timeout(Duration::from_micros(u64::from(dice)), waiting).await {
                Ok(granted) => granted.unwrap(),
                Err(_) => return,
            }
        }
        Request::Waiting(waiting) => waiting.await.unwrap(),
        Request::Refused(..) => return tokio::task::yield_now().await,
        Request::Closed => panic!("nobody has closed it"),
    };
    let item = item.unwrap_or_else(|| {
        made.fetch_add(1, Ordering::SeqCst);
        Item(0, Arc::clone(dropped))
    });
    if dice.is_multiple_of(2) {
        tokio::task::yield_now().await;
    }
    match dice {
        35..45 => resume_unwind(Box::new("the work failed")),
        45..60 => drop(permit),
        _ => assert!(permit.give_back(item).is_none()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_storm_of_callers_that_leave_panic_and_time_out_leaks_nothing() {
    const CALLERS: u32 = 16;
    const CALLS: u32 = 100_000 / CALLERS;
    let bulkhead = Bulkhead::new(Rules::fixed(4, 8), Shelf::default()).unwrap();
    let (dropped, made) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let panics = Arc::new(AtomicU32::new(0));
    let callers = (0..CALLERS).map(|_| {
        let (bulkhead, panics) = (bulkhead.clone(), Arc::clone(&panics));
        let (dropped, made) = (Arc::clone(&dropped), Arc::clone(&made));
        tokio::spawn(async move {
            for _ in 0..CALLS {
                let call = pin!(visit(&bulkhead, &dropped, &made));
                if !survives(call).await {
                    panics.fetch_add(1, Ordering::SeqCst);
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        let bound = timeout(Duration::from_secs(120), caller).await;
        bound.expect("a lost wake-up").unwrap();
    }
    assert_eq!(counts(&bulkhead), (0, 0));
    assert!(panics.load(Ordering::SeqCst) > 100, "there was a storm");
    let kept = bulkhead.with_stock(|shelf| shelf.items.len());
    assert!(kept <= 4, "never more items than slots: {kept}");
    let lost = made.load(Ordering::SeqCst) - dropped.load(Ordering::SeqCst);
    assert_eq!(
        usize::try_from(lost).unwrap(),
        kept,
        "every item is in stock or dropped"
    );
}

/// Whether `call` ends without a panic; a panic unwinds through it and is caught here.
async fn survives(mut call: Pin<&mut impl Future<Output = ()>>) -> bool {
    std::future::poll_fn(|cx| {
        let step = catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx)));
        step.map_or(Poll::Ready(false), |poll| poll.map(|()| true))
    })
    .await
}
