//! Many callers that do everything at random: nothing leaks, nothing overshoots, nothing is handed on dirty.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use partitioned_pool::{Connection, Partition};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::leavings::{Found, Work, Worker};
use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::patience::LONG;
use crate::support::sampler::Sampler;
use crate::support::tenant::{Tenant, small, until_at_rest};

on_each_driver![
    a_hundred_thousand_random_calls_leak_nothing_and_never_exceed_the_budget,
    two_thousand_random_leavings_hand_on_nothing_busy_or_dirty_and_kill_no_healthy_query,
];

const SIZE: u32 = 8;
/// The analytical partition of the pool has one.
const fn budget<D: Tested>() -> i64 {
    SIZE as i64 + 1 + D::BESIDE
}

/// Runs `call` `calls` times, in `tasks` tasks.
async fn storm<F>(tasks: u32, calls: u32, call: impl Fn(u32) -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + Send,
{
    let mut storm = JoinSet::new();
    for task in 0..tasks {
        let call = call.clone();
        storm.spawn(async move {
            for at in (task..calls).step_by(tasks as usize) {
                call(at).await;
                tokio::task::yield_now().await;
            }
        });
    }
    while let Some(ended) = storm.join_next().await {
        ended.unwrap();
    }
}

/// Polls a future a few times at most, then drops it.
async fn leave_after(polls: u32, future: impl Future) {
    let mut future = pin!(future);
    for _ in 0..polls {
        let done =
            std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_ready()))
                .await;
        if done {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// One call, of a kind chosen at random.
async fn call_at_random<D: Tested>(checkout: &Partition<D>, granted: &AtomicU64) {
    let micros = Duration::from_micros(fastrand::u64(0..2_000));
    let held = match fastrand::u32(0..1_000) {
        0..400 => checkout.acquire().await,
        400..600 => checkout.try_acquire().await,
        600..700 => checkout.acquire_by(micros).await,
        700..800 => return drop(timeout(micros, checkout.acquire()).await),
        800..900 => return leave_after(fastrand::u32(0..4), checkout.acquire()).await,
        _ => return run_at_random(checkout, micros).await,
    };
    let Ok(mut held) = held else { return };
    granted.fetch_add(1, Ordering::Relaxed);
    match fastrand::u32(0..1_000) {
        0..500 => drop(held),
        500..700 => tokio::task::yield_now().await,
        700..900 => panic_with(held),
        900..980 => drop(held.say("SELECT 1").await),
        980..990 => leave_after(2, held.say("SELECT pg_sleep(60)")).await,
        990..995 => drop(std::thread::spawn(move || drop(held)).join()),
        995..998 => drop(held.say("BEGIN").await),
        // It ends its own session.
        _ => drop(
            held.say("SELECT pg_terminate_backend(pg_backend_pid())")
                .await,
        ),
    }
}

async fn run_at_random<D: Tested>(checkout: &Partition<D>, limit: Duration) {
    let slow = fastrand::u32(0..50) == 0;
    let work = async |held: &mut Connection<D>| match slow {
        true => held.say("SELECT pg_sleep(60)").await,
        false => Ok(Vec::new()),
    };
    drop(checkout.run(limit, work).await);
}

fn panic_with<D: Tested>(held: Connection<D>) {
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _held = held;
        resume_unwind(Box::new("on purpose"))
    }));
    assert!(panicked.is_err());
}

async fn a_hundred_thousand_random_calls_leak_nothing_and_never_exceed_the_budget<D: Tested>(
    tenant: &Tenant,
) {
    let pool = tenant
        .pool::<D>(
            small(SIZE)
                .min_idle(2)
                .max_waiters(16)
                .acquire_timeout(LONG),
        )
        .await;
    let sampler = Sampler::start(tenant).await;
    let granted = Arc::new(AtomicU64::new(0));
    let call = {
        let (checkout, granted) = (pool.transactional().clone(), Arc::clone(&granted));
        move |_| {
            let (checkout, granted) = (checkout.clone(), Arc::clone(&granted));
            async move { call_at_random(&checkout, &granted).await }
        }
    };
    // Most calls are refused, and the faster the machine refuses, the more: on until enough are not.
    let (mut calls, mut so_far) = (0, 0);
    while calls < 100_000 || (so_far < 10_000 && calls < 1_000_000) {
        storm(48, 50_000, call.clone()).await;
        calls += 50_000;
        so_far = granted.load(Ordering::SeqCst);
    }
    until_at_rest(pool.transactional()).await;
    println!(
        "granted {so_far} of {calls} calls; {}",
        pool.transactional().status()
    );
    assert!(so_far >= 10_000, "too few were granted to prove anything");
    sampler.assert_never_above(budget::<D>());
    tenant.until_idle().await;
    assert!(pool.close(LONG).await.is_drained());
    // Nobody sees the end of what sees the others' ends.
    assert!(tenant.backends().await <= D::BESIDE);
    tenant.until_gone().await;
}

/// Looks at a connection as its next caller would, and then leaves it in the middle of something.
async fn inspect_and_leave<D: Tested<Client: Worker + Send>>(
    checkout: &Partition<D>,
    found: &Found,
    left: &AtomicU64,
) {
    if found.stop.load(Ordering::Relaxed) {
        return;
    }
    let mut held = checkout.acquire_by(LONG * 3).await.unwrap();
    found.look_at(&mut *held).await;
    let moment = Duration::from_micros(fastrand::u64(0..4_000));
    let work = held.perform(Work::at_random(), 30.0);
    left.fetch_add(
        u64::from(timeout(moment, work).await.is_err()),
        Ordering::Relaxed,
    );
}

async fn two_thousand_random_leavings_hand_on_nothing_busy_or_dirty_and_kill_no_healthy_query<
    D: Tested<Client: Worker + Send>,
>(
    tenant: &Tenant,
) {
    tenant
        .sql(&format!(
            "CREATE TABLE {0}.told (t text); ALTER TABLE {0}.told OWNER TO {0}",
            tenant.name
        ))
        .await;
    let partition = small(SIZE)
        .max_waiters(64)
        .acquire_timeout(LONG * 3)
        .statement_timeout(LONG * 10);
    let pool = tenant.pool::<D>(partition).await;
    let sampler = Sampler::start(tenant).await;
    let (found, left) = (Arc::new(Found::default()), Arc::new(AtomicU64::new(0)));
    let call = {
        let checkout = pool.transactional().clone();
        let (found, left) = (Arc::clone(&found), Arc::clone(&left));
        move |_| {
            let (checkout, found, left) = (checkout.clone(), Arc::clone(&found), Arc::clone(&left));
            async move { inspect_and_leave(&checkout, &found, &left).await }
        }
    };
    storm(2 * SIZE, 2_000, call).await;
    until_at_rest(pool.transactional()).await;
    let left = left.load(Ordering::SeqCst);
    println!("left {left} of 2,000; {}", pool.transactional().status());
    assert_eq!(found.counts(), (0, 0, 0));
    assert_eq!(*found.failures(), Vec::<String>::new());
    assert!(left > 1_000, "too few left to prove anything");
    sampler.assert_never_above(budget::<D>());
    tenant.until_idle().await;
    let kept = tenant
        .admin
        .query_one(&format!("SELECT count(*) FROM {}.told", tenant.name), &[])
        .await;
    println!(
        "rows of COPY that were whole before the caller left: {}",
        kept.unwrap().get::<_, i64>(0)
    );
}
