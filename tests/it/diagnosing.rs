//! What a live pool says is wrong with it: each finding over a driver of nothing and paused time, and a leak on a
//! real server.

use std::time::Duration;

use partitioned_pool::config::{BudgetConfig, Limit, PartitionConfig, PoolConfig};
use partitioned_pool::plan::diagnosis::{Evidence, Finding};
use partitioned_pool::{Partition, PartitionDiagnosis, PartitionedPool};
use tokio::runtime::Builder;
use tokio::time::{Instant, advance, pause, resume, sleep, timeout};

use crate::memory::{self, Memory};
use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::patience::LONG;
use crate::support::tenant::{Tenant, small};

on_each_driver![a_forgotten_connection_of_a_real_server_is_found_with_its_place];

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

async fn pool(config: PoolConfig) -> PartitionedPool<Memory> {
    PartitionedPool::connect(config).await.unwrap()
}

/// A transactional partition, and an analytical one of one connection.
async fn pool_of(transactional: PartitionConfig) -> PartitionedPool<Memory> {
    let config = memory::config(memory::STEADY).transactional(transactional);
    pool(config.analytical(PartitionConfig::analytical(1))).await
}

/// 20 slots, a queue of 40, nothing kept ready.
async fn twenty() -> PartitionedPool<Memory> {
    pool_of(small(20)).await
}

/// For `time`, a call every 50 ms, each of `hold`: 20 in a second.
async fn calls(partition: &Partition<Memory>, time: Duration, hold: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        let partition = partition.clone();
        tokio::spawn(async move {
            if let Ok(held) = partition.acquire().await {
                sleep(hold).await;
                drop(held);
            }
        });
        sleep(50 * MS).await;
    }
}

fn found(diagnosis: &PartitionDiagnosis, finding: Finding) {
    assert_eq!(diagnosis.finding(), finding, "{diagnosis}");
}

#[tokio::test(start_paused = true)]
async fn a_partition_with_room_is_healthy_and_the_window_is_the_last_minute() {
    let pool = twenty().await;
    let checkout = pool.transactional();
    calls(checkout, 3 * MINUTE, 400 * MS).await;
    let diagnosis = checkout.diagnose();
    found(&diagnosis, Finding::Healthy);
    let window = diagnosis.window;
    assert!((MINUTE..MINUTE + SECOND).contains(&window.length));
    assert!((1190..=1225).contains(&window.arrivals), "{window:?}");
    assert!(window.arrivals.abs_diff(window.ended) <= 8, "{window:?}");
    assert_eq!((window.refused.total(), window.in_use.peak), (0, 8));
    assert!((window.in_use.average - 8.0).abs() < 0.1, "{window:?}");
    let near = |hold: Option<Duration>| hold.unwrap().abs_diff(400 * MS) <= 2 * MS;
    assert!(near(window.hold) && near(window.hold_before), "{window:?}");
    let size = diagnosis.diagnosis.size.unwrap();
    assert!((8..=9).contains(&size.little), "{size:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_has_just_started_is_judged_by_what_there_is() {
    let pool = twenty().await;
    let checkout = pool.transactional();
    let nothing = checkout.diagnose();
    found(&nothing, Finding::Healthy);
    assert!(nothing.window.length < SECOND && nothing.diagnosis.size.is_none());
    calls(checkout, 3 * SECOND, 400 * MS).await;
    let young = checkout.diagnose();
    found(&young, Finding::Healthy);
    assert_eq!(
        (young.window.arrivals, young.window.hold_before),
        (60, None)
    );
    assert!((3 * SECOND..4 * SECOND).contains(&young.window.length));
}

#[tokio::test(start_paused = true)]
async fn too_few_slots_for_the_load_are_too_small_and_the_size_is_said() {
    let pool = pool_of(small(6).max_waiters(0)).await;
    calls(pool.transactional(), 2 * MINUTE, 400 * MS).await;
    let diagnosis = pool.transactional().diagnose();
    found(&diagnosis, Finding::TooSmall);
    let (refused, size) = (diagnosis.window.refused, diagnosis.diagnosis.size.unwrap());
    assert!(refused.queue_full > 100 && refused.total() == refused.queue_full);
    assert!((8..=9).contains(&size.little), "{size:?}");
    assert!((size.rate.as_per_second() - 20.0).abs() < 0.5, "{size:?}");
}

#[tokio::test(start_paused = true)]
async fn callers_that_would_not_wait_and_find_nothing_are_refused_calls() {
    let pool = pool_of(small(1)).await;
    let checkout = pool.transactional();
    let held = checkout.acquire().await.unwrap();
    for _ in 0..5 {
        checkout.try_acquire().await.unwrap_err();
    }
    let diagnosis = checkout.diagnose();
    found(&diagnosis, Finding::TooSmall);
    assert_eq!(
        (
            diagnosis.window.arrivals,
            diagnosis.window.refused.no_free_slot
        ),
        (6, 5)
    );
    let text = diagnosis.to_string();
    assert!(
        text.contains("5 of 6 calls refused (5 no free slot)"),
        "{text}"
    );
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn holds_that_last_ten_times_as_long_as_before_are_the_databases() {
    let pool = twenty().await;
    let checkout = pool.transactional();
    calls(checkout, 5 * MINUTE, 400 * MS).await;
    found(&checkout.diagnose(), Finding::Healthy);
    calls(checkout, MINUTE, 4 * SECOND).await;
    let diagnosis = checkout.diagnose();
    found(&diagnosis, Finding::DatabaseSlow);
    assert!(matches!(
        diagnosis.diagnosis.evidence[0],
        Evidence::HoldGrew { .. }
    ));
    // More slots would not help: the size is that for the healthy hold.
    assert!(diagnosis.diagnosis.size.unwrap().little <= 9);
    // It is over, and what was normal before the incident still is.
    calls(checkout, 2 * MINUTE, 400 * MS).await;
    found(&checkout.diagnose(), Finding::Healthy);
}

#[tokio::test(start_paused = true)]
async fn when_nothing_ends_any_more_it_is_the_database_and_no_leak() {
    let pool = twenty().await;
    let checkout = pool.transactional();
    calls(checkout, 3 * MINUTE, 400 * MS).await;
    for stall in [20, 100] {
        calls(checkout, stall * SECOND, 10_000 * SECOND).await;
        let diagnosis = checkout.diagnose();
        found(&diagnosis, Finding::DatabaseSlow);
        assert!(matches!(
            diagnosis.diagnosis.evidence[0],
            Evidence::NothingEnds { .. }
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn connections_that_never_come_back_are_a_leak_with_its_place() {
    let pool = twenty().await;
    let checkout = pool.transactional();
    calls(checkout, 3 * MINUTE, 400 * MS).await;
    let (first, line) = (checkout.acquire().await.unwrap(), line!());
    calls(checkout, 30 * SECOND, 400 * MS).await;
    let second = checkout.acquire().await.unwrap();
    calls(checkout, 40 * SECOND, 400 * MS).await;
    let diagnosis = checkout.diagnose();
    found(&diagnosis, Finding::Leaking);
    let Evidence::HeldThrough { slots, oldest, .. } = diagnosis.diagnosis.evidence[0] else {
        panic!("{diagnosis}");
    };
    assert_eq!(
        (slots, oldest.as_secs()),
        (1, 70),
        "the second is younger than the window"
    );
    let text = diagnosis.to_string();
    let place = format!("oldest holds 70.0 s by {}:{line}", file!());
    assert!(text.contains(&place), "{text}");
    drop((first, second));
    calls(checkout, 2 * SECOND, 400 * MS).await;
    assert_eq!(checkout.diagnose().window.ages.stuck, 0);
}

#[tokio::test(start_paused = true)]
async fn a_long_queue_that_takes_everyone_in_hides_the_overload() {
    let partition = small(6)
        .max_waiters(100_000)
        .acquire_timeout(10_000 * SECOND);
    let pool = pool_of(partition).await;
    calls(pool.transactional(), 3 * MINUTE, 400 * MS).await;
    let diagnosis = pool.transactional().diagnose();
    found(&diagnosis, Finding::QueueHidesOverload);
    let window = diagnosis.window;
    assert!(window.waiting.average > 500.0, "{window:?}");
    assert_eq!(window.waiting.peak, pool.transactional().status().waiting);
}

#[tokio::test(start_paused = true)]
async fn callers_that_leave_the_queue_waited_too_long_whoever_limits_the_wait() {
    let pool = pool_of(small(1).max_waiters(9).acquire_timeout(2 * SECOND)).await;
    let checkout = pool.transactional();
    let held = checkout.acquire().await.unwrap();
    checkout.acquire().await.unwrap_err();
    timeout(SECOND, checkout.acquire()).await.unwrap_err();
    let window = checkout.diagnose().window;
    assert_eq!((window.arrivals, window.refused.wait_timeout), (3, 2));
    assert_eq!((window.ended, window.waiting.peak), (0, 1));
    drop(held);
}

/// Reports are refused all the time, beside a checkout that hardly does anything.
async fn reports_in_need(config: PoolConfig) -> PartitionedPool<Memory> {
    let pool = pool(config).await;
    let (checkout, reports) = (pool.transactional(), pool.analytical());
    tokio::join!(
        calls(checkout, 2 * MINUTE, 40 * MS),
        calls(reports, 2 * MINUTE, 400 * MS)
    );
    let both = pool.diagnose();
    let [kept, in_need] = both.partitions.as_slice() else {
        panic!("{both}");
    };
    found(kept, Finding::Stranded);
    found(in_need, Finding::TooSmall);
    let neighbours = kept.window.neighbours;
    assert_eq!(neighbours.arrivals, in_need.window.arrivals);
    assert_eq!(
        neighbours.refused_while_free,
        in_need.window.refused.total()
    );
    assert_eq!(in_need.window.neighbours.refused_while_free, 0);
    let lines: Vec<_> = both.to_string().lines().map(str::to_owned).collect();
    assert!(lines[0].starts_with("transactional (last 60."), "{both}");
    assert!(lines[0].contains("): stranded capacity: "), "{both}");
    assert!(lines[1].starts_with("analytical (last 60."), "{both}");
    pool
}

#[tokio::test(start_paused = true)]
async fn slots_that_a_neighbour_would_need_are_stranded_in_a_budget_of_their_own() {
    let config = memory::config(memory::STEADY)
        .transactional(PartitionConfig::transactional(20))
        .analytical(PartitionConfig::analytical(2));
    reports_in_need(config).await;
}

#[tokio::test(start_paused = true)]
async fn slots_that_a_neighbour_would_need_are_stranded_in_a_shared_budget() {
    let config = memory::config(memory::STEADY)
        .budget(BudgetConfig::new("main", 22))
        .transactional(
            PartitionConfig::transactional(20)
                .budget("main")
                .reserved(20),
        )
        .analytical(PartitionConfig::analytical(2).budget("main").reserved(2));
    reports_in_need(config).await;
}

#[tokio::test(start_paused = true)]
async fn a_partition_on_another_server_is_no_neighbour() {
    for (url, seen) in [(memory::STEADY, (11, 10)), (memory::ELSEWHERE, (0, 0))] {
        let reports = PartitionConfig::analytical(1).max_waiters(0);
        let config = memory::config(memory::STEADY)
            .transactional(PartitionConfig::transactional(20))
            .analytical(reports.url(url));
        let pool = pool(config).await;
        let _report = pool.analytical().acquire().await.unwrap();
        for _ in 0..10 {
            pool.analytical().acquire().await.unwrap_err();
        }
        let neighbours = pool.transactional().diagnose().window.neighbours;
        assert_eq!((neighbours.arrivals, neighbours.refused_while_free), seen);
    }
}

/// Lets time pass for everything in this runtime, second by second, though nothing else happens.
async fn let_pass(seconds: u32) {
    pause();
    for _ in 0..seconds {
        advance(SECOND).await;
    }
    resume();
}

/// A connection is forgotten on a real server, while others come and go.
async fn forgotten<D: Tested>(config: PoolConfig) {
    let pool = PartitionedPool::<D>::connect(config).await.unwrap();
    let checkout = pool.transactional();
    let work = async || {
        for _ in 0..20 {
            let mut connection = checkout.acquire().await.unwrap();
            connection.say("SELECT 1").await.unwrap();
        }
    };
    work().await;
    found(&checkout.diagnose(), Finding::Healthy);
    let (leaked, line) = (checkout.acquire().await.unwrap(), line!());
    let_pass(90).await;
    work().await;
    let diagnosis = pool.diagnose();
    let [leaking, idle] = diagnosis.partitions.as_slice() else {
        panic!("{diagnosis}");
    };
    found(leaking, Finding::Leaking);
    found(idle, Finding::Healthy);
    assert_eq!(leaking.oldest_holds.first().unwrap().at.line(), line);
    let place = format!("{}:{line}", file!());
    assert!(leaking.to_string().contains(&place), "{diagnosis}");
    drop(leaked);
    let report = pool.close(LONG).await;
    assert!(report.still_held.is_empty(), "{report:?}");
}

async fn a_forgotten_connection_of_a_real_server_is_found_with_its_place<D: Tested>(
    tenant: &Tenant,
) {
    let config = tenant.config(small(4).hold_warning(Limit::Off));
    // A runtime of its own: its time is passed on by hand.
    let alone = move || {
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(forgotten::<D>(config));
    };
    tokio::task::spawn_blocking(alone).await.unwrap();
}
