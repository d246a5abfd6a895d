//! What acquiring costs, ours beside deadpool, bb8 and sqlx: `cargo bench --bench acquire`.
//!
//! The first three groups need no database: their connections are made of nothing (sqlx's pool cannot
//! do that). The last one asks the Postgres of the tests. Ratios that were promised are measured by
//! `benches/ratios.rs`, which interleaves both sides.

mod peers;

use std::future::Future;
use std::time::{Duration, Instant};

use criterion::{
    BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, yield_now};

use peers::Full;

fn runtime(workers: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let built = builder.worker_threads(workers).enable_all().build();
    built.expect("a runtime")
}

fn group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(30);
    group
}

fn uncontended(criterion: &mut Criterion) {
    let runtime = runtime(1);
    let (ours, bb8) = runtime.block_on(async { (peers::ours(4, 0).await, peers::bb8(4).await) });
    let (partition, deadpool) = (ours.partition(), peers::deadpool(4));
    let mut group = group(criterion, "acquire and return");
    group.bench_function("ours", |b| {
        b.to_async(&runtime)
            .iter(|| async { drop(partition.acquire().await.expect("free")) });
    });
    group.bench_function("deadpool", |b| {
        b.to_async(&runtime)
            .iter(|| async { drop(deadpool.get().await.expect("free")) });
    });
    group.bench_function("bb8", |b| {
        b.to_async(&runtime)
            .iter(|| async { drop(bb8.get().await.expect("free")) });
    });
    group.finish();
}

/// 8 tasks share `turns` acquires; each keeps what it has over one turn of the others.
async fn crowd<P, F, G>(pool: P, turns: u64, get: G) -> Duration
where
    P: Clone + Send + 'static,
    F: Future<Output: Send> + Send,
    G: Fn(P) -> F + Copy + Send + 'static,
{
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let pool = pool.clone();
        tasks.spawn(async move {
            for _ in 0..(turns + task) / 8 {
                let held = get(pool.clone()).await;
                yield_now().await;
                drop(held);
            }
        });
    }
    tasks.join_all().await;
    started.elapsed()
}

fn crowded(criterion: &mut Criterion) {
    let runtime = runtime(2);
    let (ours, bb8) = runtime.block_on(async { (peers::ours(4, 8).await, peers::bb8(4).await) });
    let (partition, deadpool) = (ours.partition(), peers::deadpool(4));
    let mut group = group(criterion, "8 tasks on 4 slots");
    group.bench_function("ours", |b| {
        b.to_async(&runtime).iter_custom(|turns| {
            crowd(partition.clone(), turns, |p| async move {
                p.acquire().await.expect("waits")
            })
        });
    });
    group.bench_function("deadpool", |b| {
        b.to_async(&runtime).iter_custom(|turns| {
            crowd(deadpool.clone(), turns, |p| async move {
                p.get().await.expect("waits")
            })
        });
    });
    group.bench_function("bb8", |b| {
        b.to_async(&runtime).iter_custom(|turns| {
            crowd(bb8.clone(), turns, |p| async move {
                p.get_owned().await.expect("waits")
            })
        });
    });
    group.finish();
}

fn rejection(criterion: &mut Criterion) {
    let runtime = runtime(1);
    let mut group = group(criterion, "rejection");
    for waiters in [0, 10_000] {
        let full = runtime.block_on(Full::with_waiters(waiters));
        let partition = full.partition();
        group.bench_function(format!("ours, {waiters} waiters"), |b| {
            b.to_async(&runtime)
                .iter(|| async { partition.acquire().await.expect_err("full") });
        });
        let _entered = runtime.enter();
        drop(full);
    }
    let (deadpool, no_wait) = (peers::deadpool(1), peers::no_wait());
    let _taken = runtime.block_on(deadpool.get()).expect("free");
    group.bench_function("deadpool, wait 0", |b| {
        b.to_async(&runtime)
            .iter(|| async { deadpool.timeout_get(&no_wait).await.expect_err("full") });
    });
    group.finish();
}

/// On one thread: from `block_on` beside worker threads, where criterion measures, every figure holds
/// two wake-ups of another thread. `benches/ratios.rs` has the other ways to run it.
fn select_one(criterion: &mut Criterion) {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    let server = runtime.block_on(peers::server());
    let (ours, bb8, sqlx) = runtime.block_on(async {
        let url = server.url();
        let ours = peers::ours_on(url, 1).await;
        (
            ours,
            peers::bb8_on(url, 1).await,
            peers::sqlx_on(url, 1).await,
        )
    });
    let (partition, deadpool) = (ours.partition(), peers::deadpool_on(server.url(), 1));
    let prepared = runtime.block_on(peers::prepare_bb8(&bb8));
    let mut group = group(criterion, "acquire, prepared SELECT 1, return");
    group.bench_function("ours", |b| {
        b.to_async(&runtime)
            .iter(|| peers::select_one_ours(&partition));
    });
    group.bench_function("deadpool-postgres", |b| {
        b.to_async(&runtime)
            .iter(|| peers::select_one_deadpool(&deadpool));
    });
    group.bench_function("bb8-postgres", |b| {
        b.to_async(&runtime)
            .iter(|| peers::select_one_bb8(&bb8, &prepared));
    });
    group.bench_function("sqlx", |b| {
        b.to_async(&runtime).iter(|| peers::select_one_sqlx(&sqlx));
    });
    group.finish();
}

criterion_group!(benches, uncontended, crowded, rejection, select_one);
criterion_main!(benches);
