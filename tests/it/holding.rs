//! Holds: who has them, and how they end when their owner forgot them.

use std::time::Duration;

use partitioned_pool::config::{Limit, PartitionConfig};
use partitioned_pool::{NotAsked, PartitionedPool, RunError};
use tokio::time::{sleep, timeout};

use crate::memory::{self, Memory};
use crate::support::driver::{Speaks as _, Tested, Wrong, on_each_driver};
use crate::support::log::Log;
use crate::support::patience::{LONG, eventually};
use crate::support::proxy::Fault;
use crate::support::tenant::{Tenant, small, until_at_rest};

on_each_driver![
    holders_are_listed_oldest_first_with_place_age_and_backend,
    what_the_holders_run_is_asked_over_a_connection_of_another_partition,
    where_no_connection_is_free_the_holders_are_listed_and_it_is_said,
    a_server_that_does_not_answer_costs_the_question_no_more_than_its_time,
    a_hold_that_passes_max_hold_is_ended_and_its_slot_serves_others,
    many_holds_that_pass_max_hold_are_ended_one_after_the_other,
    a_guard_that_comes_back_while_it_is_taken_away_leaks_nothing,
    run_says_that_its_connection_was_taken_away,
];

const SECOND: Duration = Duration::from_secs(1);

async fn holders_are_listed_oldest_first_with_place_age_and_backend<D: Tested>(tenant: &Tenant) {
    let pool = tenant.pool::<D>(small(2)).await;
    let checkout = pool.transactional();
    assert!(checkout.holders().is_empty());
    let (mut first, line) = (checkout.acquire().await.unwrap(), line!());
    let mut second = checkout.acquire().await.unwrap();
    let holders = checkout.holders();
    assert_eq!(holders.len(), 2);
    assert!(holders[0].holder.age >= holders[1].holder.age);
    assert!(holders[0].holder.at.file().ends_with("holding.rs"));
    assert_eq!(holders[0].holder.at.line(), line);
    for (connection, held) in [&mut first, &mut second].into_iter().zip(&holders) {
        let pid = connection.ask("SELECT pg_backend_pid()").await;
        assert_eq!(held.backend_pid, pid.parse().ok());
    }

    // A rejection names the oldest first.
    let error = checkout.try_acquire().await.unwrap_err().to_string();
    let told = format!("holding.rs:{line} and ");
    assert!(error.contains(&told), "{error}");
    drop(first);
    eventually("it is listed no more", async || {
        checkout.holders().len() == 1
    })
    .await;
    drop(second);
}

const SLEEP: &str = "SELECT pg_sleep(60), 'of the report'";

async fn what_the_holders_run_is_asked_over_a_connection_of_another_partition<D: Tested>(
    tenant: &Tenant,
) {
    let pool = tenant.pool::<D>(small(2).statement_timeout(LONG)).await;
    let checkout = pool.transactional();
    let (mut running, mut idle) = (
        checkout.acquire().await.unwrap(),
        checkout.acquire().await.unwrap(),
    );
    idle.say("BEGIN").await.unwrap();
    let asks = D::say_prepared(&mut idle, "SELECT $1::float8", 4711.0);
    asks.await.unwrap();
    let asking = async {
        tenant.until_running("SELECT pg_sleep(60)").await;
        let holders = pool.holders_with_statements(LONG).await;
        assert_eq!(
            tenant.backends().await - D::BESIDE,
            3,
            "one of the analytical partition"
        );
        holders
    };
    let holders = tokio::select! {
        ended = running.say(SLEEP) => panic!("{ended:?}"),
        holders = asking => holders,
    };
    let [full, other] = holders.as_slice() else {
        panic!("{holders:?}");
    };
    assert_eq!(full.partition, "transactional");
    assert!(full.not_asked.is_none() && other.not_asked.is_none());
    assert!(other.held.is_empty(), "the one that asks is none of them");
    let told = |at: usize| full.held[at].statement.as_ref().unwrap();
    assert_eq!(
        (told(0).query.as_str(), told(0).state.as_str()),
        (SLEEP, "active")
    );
    assert_eq!(told(0).waits_for.as_deref(), Some("Timeout: PgSleep"));
    assert!(told(0).lasts <= full.held[0].holder.age + SECOND);
    assert_eq!(told(1).query, "SELECT $1::float8");
    assert_eq!(told(1).state, "idle in transaction");
    let text = full.to_string();
    assert!(text.starts_with("transactional: 2 in use\n  "), "{text}");
    assert!(
        text.contains("'of the report'") && !text.contains("4711"),
        "{text}"
    );
    eventually("nothing is held for it", async || {
        pool.analytical().status().in_use == 0
    })
    .await;
}

async fn where_no_connection_is_free_the_holders_are_listed_and_it_is_said<D: Tested>(
    tenant: &Tenant,
) {
    let pool = tenant.pool::<D>(small(1)).await;
    let mut held = pool.transactional().acquire().await.unwrap();
    let mut report = pool.analytical().acquire().await.unwrap();
    let holders = pool.holders_with_statements(LONG).await;
    for (partition, connection) in holders.iter().zip([&mut held, &mut report]) {
        let reason = partition.not_asked.as_ref().unwrap();
        let NotAsked::NoConnection(error) = reason else {
            panic!("{reason}");
        };
        assert!(error.is_rejection(), "{error}");
        let pid = connection.ask("SELECT pg_backend_pid()").await;
        assert_eq!(partition.held[0].backend_pid, pid.parse().ok());
        assert_eq!(partition.held[0].statement, None);
        assert!(
            partition
                .to_string()
                .contains("; statements unknown, no connection")
        );
    }
    assert_eq!(tenant.backends().await, 2 + D::BESIDE);

    // One that has given itself another name is not taken for ours.
    drop(report);
    until_at_rest(pool.analytical()).await;
    held.say("SET application_name = 'another'").await.unwrap();
    let holders = pool.holders_with_statements(LONG).await;
    assert!(holders[0].not_asked.is_none(), "{holders:?}");
    assert_eq!(holders[0].held[0].statement, None);
}

async fn a_server_that_does_not_answer_costs_the_question_no_more_than_its_time<D: Tested>(
    tenant: &Tenant,
) {
    let proxy = tenant.proxy().await;
    let pool = tenant.pool_by::<D>(&proxy, small(1)).await;
    let mut held = pool.transactional().acquire().await.unwrap();
    let ask = async || {
        let began = std::time::Instant::now();
        let mut holders = pool.holders_with_statements(SECOND / 5).await;
        assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
        assert_eq!(holders[0].held.len(), 1);
        holders.remove(0).not_asked.expect("nothing answers")
    };

    // There is one to ask over, and what was asked is not answered.
    drop(pool.analytical().acquire().await.unwrap());
    until_at_rest(pool.analytical()).await;
    proxy.set(Fault::Pause);
    let reason = ask().await;
    assert!(matches!(reason, NotAsked::Late { .. }), "{reason}");

    // There is none, and it cannot be had in time: told is what of an acquire took so long.
    proxy.set(Fault::None);
    pool.analytical().acquire_by(LONG).await.unwrap().discard();
    eventually("it is gone", async || {
        pool.analytical().status().connections() == 0
    })
    .await;
    proxy.set(Fault::Pause);
    let reason = ask().await;
    let NotAsked::NoConnection(error) = &reason else {
        panic!("{reason}");
    };
    assert!(error.is_timeout(), "{error}");

    proxy.set(Fault::None);
    held.say("SELECT 1").await.unwrap();
    drop(held);
    until_at_rest(pool.analytical()).await;
}

#[tokio::test(start_paused = true)]
async fn a_rejection_names_the_oldest_holds_by_place_however_many_there_are() {
    let config = memory::config(memory::STEADY)
        .transactional(PartitionConfig::transactional(40).max_waiters(0))
        .analytical(PartitionConfig::analytical(1));
    let pool = PartitionedPool::<Memory>::connect(config).await.unwrap();
    let checkout = pool.transactional();
    let (forgotten, here) = (checkout.acquire().await.unwrap(), line!());
    let mut held = Vec::new();
    for _ in 0..39 {
        sleep(SECOND).await;
        held.push(checkout.acquire().await.unwrap());
    }
    let there = line!() - 2;
    sleep(SECOND).await;

    let error = checkout.acquire().await.unwrap_err();
    let rejection = error.rejection().unwrap();
    let ages: Vec<_> = rejection
        .oldest_holds
        .iter()
        .map(|h| h.age.as_secs())
        .collect();
    assert_eq!(ages, [40, 39, 38]);
    assert_eq!(rejection.oldest_hold(), rejection.oldest_holds.first());
    let text = error.to_string();
    let file = file!();
    let told = format!("oldest holds 40.0 s by {file}:{here} and 39.0 s, 38.0 s by {file}:{there}");
    assert!(text.contains(&told), "{text}");

    // All of them are listed for whoever asks.
    let holders = checkout.holders();
    assert_eq!(holders.len(), 40);
    assert!(holders.is_sorted_by(|a, b| a.holder.age >= b.holder.age));

    // A hold that ends is named no more.
    drop(forgotten);
    let _again = checkout.acquire().await.unwrap();
    let error = checkout.acquire().await.unwrap_err().to_string();
    let told = format!("oldest holds 39.0 s, 38.0 s, 37.0 s by {file}:{there}");
    assert!(error.contains(&told), "{error}");
}

async fn a_hold_that_passes_max_hold_is_ended_and_its_slot_serves_others<D: Tested>(
    tenant: &Tenant,
) {
    let patient = small(1).max_hold(SECOND).acquire_timeout(LONG);
    let pool = tenant.pool::<D>(patient).await;
    let checkout = pool.transactional();
    let mut forgotten = checkout.acquire().await.unwrap();
    let query = forgotten.say("SELECT pg_sleep(60)");
    let error = timeout(LONG, query)
        .await
        .expect("it is ended")
        .unwrap_err();
    assert!(error.is_closed(), "{error}");
    assert!(forgotten.taken_after().is_some_and(|age| age > SECOND));

    // The owner still has its guard, and the slot serves others.
    let mut other = checkout.acquire_by(LONG).await.unwrap();
    other.say("SELECT 1").await.unwrap();
    assert_eq!(tenant.transactional_backends().await, 1);
    assert_eq!(checkout.status().in_use, 1);

    // Giving back what was taken away changes nothing.
    drop(forgotten);
    assert_eq!(checkout.status().in_use, 1);
    assert_eq!(checkout.status().connections(), 1);
    drop(other);
    eventually("all is at rest", async || {
        let status = checkout.status();
        (status.in_use, status.connections(), status.idle) == (0, 1, 1)
    })
    .await;
}

async fn many_holds_that_pass_max_hold_are_ended_one_after_the_other<D: Tested>(tenant: &Tenant) {
    let patient = small(8).max_hold(SECOND).acquire_timeout(LONG);
    let pool = tenant.pool::<D>(patient).await;
    let checkout = pool.transactional();
    let take_all = async || {
        let mut all = Vec::new();
        for _ in 0..8 {
            all.push(checkout.acquire().await.unwrap());
        }
        all
    };
    // Opened before, so that all holds begin at once.
    drop(take_all().await);
    until_at_rest(checkout).await;
    let forgotten = take_all().await;
    eventually("all are taken away", async || checkout.status().in_use == 0).await;
    let after: Vec<_> = forgotten
        .iter()
        .map(|held| held.taken_after().unwrap())
        .collect();
    assert!(after.iter().all(|held| *held > SECOND), "{after:?}");
    // Whoever came first has held longest, and goes first; the last is not far behind.
    let spread = *after.iter().max().unwrap() - *after.iter().min().unwrap();
    println!("eight holds were ended within {spread:?}");
    assert!((SECOND / 5..5 * SECOND).contains(&spread), "{after:?}");
    assert_eq!(tenant.transactional_backends().await, 0);
}

async fn a_guard_that_comes_back_while_it_is_taken_away_leaks_nothing<D: Tested>(tenant: &Tenant) {
    let patient = small(3).max_hold(SECOND).acquire_timeout(LONG);
    let pool = tenant.pool::<D>(patient).await;
    let checkout = pool.transactional();
    let held = async || {
        let mut connection = checkout.acquire_by(LONG).await.unwrap();
        let work = connection.say("SELECT pg_sleep(60)");
        assert!(work.await.unwrap_err().is_closed());
        // Dropped at once: the pool is still about to see the end of the backend.
    };
    tokio::join!(held(), held(), held());
    eventually("all is at rest", async || {
        let status = checkout.status();
        (status.in_use, status.connections()) == (0, 0)
    })
    .await;
    assert_eq!(tenant.transactional_backends().await, 0);
    for _ in 0..3 {
        let mut connection = checkout.acquire_by(LONG).await.unwrap();
        connection.say("SELECT 1").await.unwrap();
    }
}

async fn run_says_that_its_connection_was_taken_away<D: Tested>(tenant: &Tenant) {
    let pool = tenant.pool::<D>(small(1).max_hold(SECOND)).await;
    let ran = pool.transactional().run(LONG, async |connection| {
        connection.say("SELECT pg_sleep(60)").await
    });
    let error = ran.await.unwrap_err();
    let RunError::TakenAway { held, .. } = &error else {
        panic!("{error}");
    };
    assert!(*held > SECOND && !error.never_began());
    assert!(error.work().is_some_and(Wrong::is_closed));
    assert!(error.to_string().contains("may have taken effect"));
}

/// What was told of long holds, which is then forgotten.
fn take_long_holds(log: &Log) -> Vec<String> {
    log.take("a connection is held for long")
}

async fn warned(limit: impl Into<Limit>) -> PartitionedPool<Memory> {
    let config = memory::config(memory::STEADY)
        .transactional(PartitionConfig::transactional(4).hold_warning(limit))
        .analytical(PartitionConfig::analytical(1));
    PartitionedPool::connect(config).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_passes_hold_warning_is_told_to_the_log_once_with_its_place() {
    let log = Log::default();
    let _here = tracing::subscriber::set_default(log.clone());
    let pool = warned(5 * SECOND).await;
    let (first, line) = (pool.transactional().acquire().await.unwrap(), line!());
    sleep(4 * SECOND).await;
    drop(pool.transactional().acquire().await.unwrap());
    assert!(take_long_holds(&log).is_empty(), "not yet");

    sleep(60 * SECOND).await;
    let told = take_long_holds(&log);
    assert_eq!(told.len(), 1, "{told:?}");
    let place = format!("holding.rs:{line}");
    for part in [
        "WARN",
        "partition=transactional",
        &place,
        "hold_warning=5.0 s",
    ] {
        assert!(told[0].contains(part), "{part}: {told:?}");
    }

    // A later one is told though the first still lasts, and each of several.
    let others = [
        pool.transactional().acquire().await.unwrap(),
        pool.transactional().acquire().await.unwrap(),
    ];
    sleep(60 * SECOND).await;
    assert_eq!(take_long_holds(&log).len(), 2);
    drop((first, others));
    sleep(60 * SECOND).await;
    assert!(take_long_holds(&log).is_empty());
}

#[tokio::test(start_paused = true)]
async fn no_hold_is_told_where_hold_warning_is_off() {
    let log = Log::default();
    let _here = tracing::subscriber::set_default(log.clone());
    let pool = warned(Limit::Off).await;
    let held = pool.transactional().acquire().await.unwrap();
    sleep(3600 * SECOND).await;
    assert!(take_long_holds(&log).is_empty());
    drop(held);
}
