//! Whether a pool is ready, on a real server.

use std::time::{Duration, Instant};

use partitioned_pool::config::{BootConfig, WhenUnavailable};
use partitioned_pool::error::Phase;
use partitioned_pool::{NotReady, PartitionHealth, PartitionedPool};

use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::patience::{LONG, eventually};
use crate::support::proxy::Fault;
use crate::support::tenant::{Tenant, small, until_at_rest};

on_each_driver![
    a_pool_that_serves_is_ready_without_asking,
    an_idle_pool_is_asked_over_a_connection_that_nobody_needs_and_takes_no_slot,
    a_partition_with_nothing_open_opens_a_connection_to_know,
    a_full_partition_is_ready_and_no_queue_is_joined,
    a_server_that_is_silent_is_told_at_the_deadline_for_each_partition_at_once,
    a_server_that_is_away_is_told_with_the_failure_and_for_how_long_and_comes_back,
    a_wrong_password_is_told_as_what_it_is,
    who_stops_asking_leaves_nothing_behind,
    a_pool_that_was_started_without_its_database_is_ready_once_that_is_there,
    a_closed_pool_is_not_ready,
];

const MS: Duration = Duration::from_millis(1);

/// How late an answer may be on a loaded machine.
const LATE: Duration = Duration::from_secs(5);

/// Longer than an answer is fresh.
const STALE: Duration = Duration::from_millis(1100);

async fn checkout<D: Tested>(pool: &PartitionedPool<D>, within: Duration) -> PartitionHealth {
    let health = pool.ready(within).await;
    println!("{health}\n");
    assert_eq!(health.partitions.len(), 2);
    health.of("transactional").unwrap().clone()
}

async fn a_pool_that_serves_is_ready_without_asking<D: Tested>(tenant: &Tenant) {
    let proxy = tenant.proxy().await;
    let pool = tenant.pool_by::<D>(&proxy, small(2)).await;
    drop(pool.transactional().acquire_by(LONG).await.unwrap());
    drop(pool.analytical().acquire_by(LONG).await.unwrap());
    until_at_rest(pool.transactional()).await;
    until_at_rest(pool.analytical()).await;
    let before = proxy.traffic();
    let health = pool.ready(LONG).await;
    assert!(health.is_ready(), "{health}");
    assert_eq!(proxy.traffic().since(before).round_trips, 0);
    assert!(health.of("analytical").unwrap().answered.unwrap() < LATE);
    assert!(health.of("nobody").is_none());
}

async fn an_idle_pool_is_asked_over_a_connection_that_nobody_needs_and_takes_no_slot<D: Tested>(
    tenant: &Tenant,
) {
    let proxy = tenant.proxy().await;
    let pool = tenant.pool_by::<D>(&proxy, small(2)).await;
    let held = pool.transactional().acquire_by(LONG).await.unwrap();
    drop(pool.transactional().acquire_by(LONG).await.unwrap());
    drop(held);
    until_at_rest(pool.transactional()).await;
    tokio::time::sleep(STALE).await;
    let before = proxy.traffic();
    let asking = pool.ready(LONG);
    let health = asking.await;
    assert!(health.is_ready(), "{health}");
    let round_trips = proxy.traffic().since(before).round_trips;
    assert_eq!(round_trips, 2, "one for each partition");
    let status = pool.transactional().status();
    assert_eq!(
        (status.in_use, status.idle, status.connections()),
        (0, 2, 2)
    );

    proxy.set(Fault::Pause);
    tokio::time::sleep(STALE).await;
    let asking = pool.ready(LONG);
    let looking = async {
        tokio::time::sleep(300 * MS).await;
        let status = pool.transactional().status();
        assert_eq!(
            (status.in_use, status.waiting, status.idle),
            (0, 0, 2),
            "{status}"
        );
        drop(
            pool.transactional()
                .acquire_by(LONG)
                .await
                .expect("both slots are free"),
        );
        proxy.set(Fault::None);
    };
    let (health, ()) = tokio::join!(asking, looking);
    assert!(health.is_ready(), "{health}");
}

async fn a_partition_with_nothing_open_opens_a_connection_to_know<D: Tested>(tenant: &Tenant) {
    let pool = tenant.pool::<D>(small(2)).await;
    until_at_rest(pool.transactional()).await;
    tenant.terminate_all().await;
    tenant.until_gone().await;
    tokio::time::sleep(STALE).await;
    eventually("they are noticed, and others opened", async || {
        pool.ready(LONG).await.is_ready()
    })
    .await;
    assert_eq!(tenant.transactional_backends().await, 1);
    let status = pool.transactional().status();
    assert_eq!(
        (status.in_use, status.idle, status.connections()),
        (0, 1, 1)
    );
    assert!(checkout(&pool, LONG).await.is_ready());
    assert_eq!(
        tenant.transactional_backends().await,
        1,
        "that one stays, and is enough"
    );
}

async fn a_full_partition_is_ready_and_no_queue_is_joined<D: Tested>(tenant: &Tenant) {
    let pool = tenant.pool::<D>(small(1).acquire_timeout(LONG)).await;
    let held = pool.transactional().acquire().await.unwrap();
    let waiting = pool.clone();
    let waiter = tokio::spawn(async move { waiting.transactional().acquire().await.unwrap() });
    eventually("somebody waits", async || {
        pool.transactional().status().waiting == 1
    })
    .await;
    tokio::time::sleep(STALE).await;
    let began = Instant::now();
    let health = checkout(&pool, LONG).await;
    assert!(health.is_ready() && began.elapsed() < LATE, "{health}");
    assert_eq!(pool.transactional().status().waiting, 1);
    drop(held);
    drop(waiter.await.unwrap());
}

async fn a_server_that_is_silent_is_told_at_the_deadline_for_each_partition_at_once<D: Tested>(
    tenant: &Tenant,
) {
    let proxy = tenant.proxy().await;
    let pool = tenant.pool_by::<D>(&proxy, small(2)).await;
    until_at_rest(pool.transactional()).await;
    proxy.set(Fault::Pause);
    tokio::time::sleep(STALE).await;
    let began = Instant::now();
    let health = pool.ready(500 * MS).await;
    assert!(
        (500 * MS..500 * MS + LATE).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
    for partition in &health.partitions {
        let silent = matches!(
            partition.not_ready,
            Some(NotReady::Silent { phase: Phase::Validate, limit }) if limit <= 500 * MS
        );
        assert!(silent, "{partition}");
    }
    eventually("what did not answer counts until it is gone", async || {
        pool.transactional().status().idle == 0
    })
    .await;
    assert!(!checkout(&pool, 200 * MS).await.is_ready());
    proxy.set(Fault::None);
    eventually("it is ready again", async || {
        pool.ready(LONG).await.is_ready()
    })
    .await;
}

async fn a_server_that_is_away_is_told_with_the_failure_and_for_how_long_and_comes_back<
    D: Tested,
>(
    tenant: &Tenant,
) {
    let proxy = tenant.proxy().await;
    let pool = tenant.pool_by::<D>(&proxy, small(2)).await;
    proxy.set(Fault::Drop);
    tenant.until_gone().await;
    tokio::time::sleep(STALE).await;
    let health = checkout(&pool, LONG).await;
    let Some(NotReady::Failing { failure, .. }) = &health.not_ready else {
        panic!("{health}");
    };
    assert!(failure.sqlstate().is_none(), "{failure}");
    tokio::time::sleep(300 * MS).await;
    let health = checkout(&pool, LONG).await;
    let Some(NotReady::Failing { lasts, .. }) = health.not_ready else {
        panic!("{health}");
    };
    assert!((300 * MS..LATE + LATE).contains(&lasts), "{lasts:?}");
    assert!(health.answered.unwrap() > lasts, "{health}");
    proxy.set(Fault::None);
    eventually("it is ready again", async || {
        pool.ready(LONG).await.is_ready()
    })
    .await;
}

async fn a_wrong_password_is_told_as_what_it_is<D: Tested>(tenant: &Tenant) {
    let pool = tenant.pool::<D>(small(2)).await;
    let name = &tenant.name;
    tenant
        .sql(&format!("ALTER ROLE {name} PASSWORD 'another'"))
        .await;
    tenant.terminate_all().await;
    eventually("the failure is told", async || {
        let health = checkout(&pool, LONG).await;
        let Some(NotReady::Failing { failure, .. }) = &health.not_ready else {
            return false;
        };
        failure.sqlstate() == Some("28P01") && health.to_string().contains("28P01")
    })
    .await;
    tenant
        .sql(&format!("ALTER ROLE {name} PASSWORD '{name}'"))
        .await;
    eventually("it is ready again", async || {
        pool.ready(LONG).await.is_ready()
    })
    .await;
}

async fn who_stops_asking_leaves_nothing_behind<D: Tested>(tenant: &Tenant) {
    let proxy = tenant.proxy().await;
    let pool = tenant
        .pool_by::<D>(&proxy, small(1).acquire_timeout(LONG))
        .await;
    until_at_rest(pool.transactional()).await;
    tokio::time::sleep(STALE).await;
    proxy.set(Fault::Pause);
    let asking = tokio::time::timeout(200 * MS, pool.ready(LONG));
    asking.await.expect_err("nobody answers");
    proxy.set(Fault::None);
    let mut held = pool.transactional().acquire().await.unwrap();
    assert_eq!(held.ask("SELECT 1").await, "1");
    assert!(tenant.transactional_backends().await <= 1);
}

async fn a_closed_pool_is_not_ready<D: Tested>(tenant: &Tenant) {
    let pool = tenant.pool::<D>(small(1)).await;
    pool.close(LONG).await;
    let health = checkout(&pool, LONG).await;
    assert!(
        matches!(health.not_ready, Some(NotReady::Closed)),
        "{health}"
    );
}

async fn a_pool_that_was_started_without_its_database_is_ready_once_that_is_there<D: Tested>(
    tenant: &Tenant,
) {
    let proxy = tenant.proxy().await;
    proxy.set(Fault::Reset);
    let boot = BootConfig::new().when_unavailable(WhenUnavailable::Start);
    let config = tenant
        .config(small(2))
        .url(tenant.url_by(&proxy))
        .boot(boot);
    let pool = PartitionedPool::<D>::connect(config).await.unwrap();
    let health = checkout(&pool, LONG).await;
    assert!(
        matches!(health.not_ready, Some(NotReady::Failing { .. })),
        "{health}"
    );
    assert!(health.answered.is_none(), "{health}");
    assert!(health.to_string().contains("(never answered)"), "{health}");
    proxy.set(Fault::None);
    eventually("it is ready", async || pool.ready(LONG).await.is_ready()).await;
}
