//! Connections that leave the pool, or are closed instead of given back.

use std::time::{Duration, Instant};

use partitioned_pool::PartitionedPool;
use partitioned_pool::config::PartitionConfig;
use partitioned_pool::error::Reason;

use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::patience::{LONG, eventually};
use crate::support::tenant::{Tenant, small, until_at_rest};

on_each_driver![
    a_detached_connection_keeps_its_slot_until_its_backend_is_gone,
    a_detached_connection_is_neither_warned_of_nor_taken_away_nor_among_the_holders,
    a_detached_connection_may_be_left_in_the_middle_of_a_query,
    the_end_of_a_pool_does_not_wait_for_a_detached_connection,
    a_discarded_connection_is_closed_and_its_slot_comes_back_when_it_is_gone,
];

const MS: Duration = Duration::from_millis(1);

/// Longer than anything takes on a loaded machine, and far shorter than what must not be waited for.
const SOON: Duration = Duration::from_secs(15);

async fn pool<D: Tested>(tenant: &Tenant, partition: PartitionConfig) -> PartitionedPool<D> {
    tenant
        .pool::<D>(partition.max_waiters(0).acquire_timeout(LONG))
        .await
}

async fn a_detached_connection_keeps_its_slot_until_its_backend_is_gone<D: Tested>(
    tenant: &Tenant,
) {
    let pool = pool::<D>(tenant, small(2)).await;
    let partition = pool.transactional();
    let mut held = partition.acquire().await.unwrap();
    let pid = held.ask("SELECT pg_backend_pid()").await;
    let mut detached = held.detach();
    D::say_to(&mut detached, "SET application_name = 'on its own'")
        .await
        .unwrap();
    assert_eq!(detached.partition(), "transactional");
    let status = partition.status();
    assert_eq!((status.in_use, status.used, status.detached), (0, 0, 1));
    assert_eq!(status.connections(), 1);
    assert!(status.to_string().contains("detached 1"), "{status}");

    let other = partition.acquire().await.unwrap();
    let refused = partition.acquire().await.expect_err("both slots are taken");
    let rejection = refused.rejection().unwrap();
    assert_eq!(rejection.reason, Reason::QueueFull);
    assert_eq!((rejection.in_use, rejection.detached), (1, 1));
    assert!(
        refused
            .to_string()
            .contains("in use 1, idle 0, waiting 0, detached 1"),
        "{refused}"
    );

    drop(detached);
    eventually("its slot is free again", async || {
        partition.try_acquire().await.is_ok()
    })
    .await;
    let mut next = partition.acquire().await.unwrap();
    assert_ne!(
        next.ask("SELECT pg_backend_pid()").await,
        pid,
        "it never came back"
    );
    assert_eq!(tenant.count("application_name = 'on its own'").await, 0);
    assert_eq!(tenant.transactional_backends().await, 2);
    drop((other, next));
    until_at_rest(partition).await;
}

async fn a_detached_connection_is_neither_warned_of_nor_taken_away_nor_among_the_holders<
    D: Tested,
>(
    tenant: &Tenant,
) {
    let pool = pool::<D>(tenant, small(2).max_hold(100 * MS)).await;
    let partition = pool.transactional();
    let mut detached = partition.acquire().await.unwrap().detach();
    let held = partition.acquire().await.unwrap();
    assert_eq!(partition.holders().len(), 1);
    eventually("the other one is taken away", async || {
        held.taken_after().is_some()
    })
    .await;
    tokio::time::sleep(1500 * MS).await;
    D::say_to(&mut detached, "SELECT 1").await.unwrap();
    assert_eq!(partition.status().detached, 1);
    let expected = partition.status().expected_hold;
    assert!(expected.is_none_or(|hold| hold < SOON), "{expected:?}");
}

async fn a_detached_connection_may_be_left_in_the_middle_of_a_query<D: Tested>(tenant: &Tenant) {
    let pool = pool::<D>(tenant, small(1)).await;
    let partition = pool.transactional();
    let mut detached = partition.acquire().await.unwrap().detach();
    let sleeps = D::say_to(&mut detached, "SELECT pg_sleep(60)");
    tokio::time::timeout(300 * MS, sleeps)
        .await
        .expect_err("it sleeps");
    let began = Instant::now();
    drop(detached);
    eventually("the slot is free", async || {
        partition.status().connections() == 0
    })
    .await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(tenant.count("query LIKE 'SELECT pg_sleep%'").await, 0);
    drop(partition.acquire_by(LONG).await.unwrap());
}

async fn the_end_of_a_pool_does_not_wait_for_a_detached_connection<D: Tested>(tenant: &Tenant) {
    let pool = pool::<D>(tenant, small(2)).await;
    let mut detached = pool.transactional().acquire().await.unwrap().detach();
    let began = Instant::now();
    let report = pool.close(2 * LONG).await;
    assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
    assert!(report.is_drained(), "{report}");
    assert_eq!(report.detached, 1);
    assert!(
        report.to_string().contains("detached and still open: 1"),
        "{report}"
    );
    D::say_to(&mut detached, "SELECT 1").await.unwrap();
    assert_eq!(tenant.transactional_backends().await, 1);
    drop(detached);
    tenant.until_gone().await;
}

async fn a_discarded_connection_is_closed_and_its_slot_comes_back_when_it_is_gone<D: Tested>(
    tenant: &Tenant,
) {
    let pool = pool::<D>(tenant, small(1)).await;
    let partition = pool.transactional();
    let mut pids = Vec::new();
    for end in ["SELECT 1", "BEGIN", "SELECT pg_sleep(60)"] {
        let mut held = partition.acquire_by(LONG).await.unwrap();
        pids.push(held.ask("SELECT pg_backend_pid()").await);
        tokio::time::timeout(300 * MS, held.say(end)).await.ok();
        held.discard();
        eventually("its slot is free", async || {
            partition.status().connections() == 0
        })
        .await;
        assert_eq!(tenant.transactional_backends().await, 0);
        eventually("and free for others", async || {
            partition.status().returning + partition.status().in_use == 0
        })
        .await;
    }
    pids.dedup();
    assert_eq!(pids.len(), 3, "each had one of its own");
}
