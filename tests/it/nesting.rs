//! A task that wants another connection while it holds one.

#![cfg(debug_assertions)]

use std::time::Duration;

use partitioned_pool::config::{
    BudgetConfig, FleetCheck, FleetConfig, PartitionConfig, PoolConfig,
};
use partitioned_pool::error::Reason;
use partitioned_pool::{AcquireError, CallSite, PartitionedPool, Rejection};
use tokio::time::sleep;

use crate::support::driver::{Tested, on_each_driver};
use crate::support::patience::LONG;
use crate::support::tenant::{Tenant, small};

on_each_driver![
    a_task_that_waits_for_itself_is_named_with_the_place_that_holds,
    a_task_that_finds_a_free_slot_beside_its_own_is_told_nothing,
    what_another_task_holds_is_not_this_tasks_own,
    branches_of_one_task_that_wait_for_each_other_in_time_are_told_nothing,
    a_partition_that_shares_the_budget_is_looked_at_too,
];

const MS: Duration = Duration::from_millis(1);

fn own_hold(refused: &AcquireError) -> Option<CallSite> {
    let rejection: &Rejection = refused.rejection().unwrap();
    rejection.own_hold.map(|holder| holder.at)
}

async fn a_task_that_waits_for_itself_is_named_with_the_place_that_holds<D: Tested>(
    tenant: &Tenant,
) {
    let pool = tenant.pool::<D>(small(1).acquire_timeout(200 * MS)).await;
    let in_a_task = {
        let pool = pool.clone();
        tokio::spawn(async move {
            let line = line!() + 1;
            let held = pool.transactional().acquire().await.unwrap();
            let refused = pool
                .transactional()
                .acquire()
                .await
                .expect_err("it waits for itself");
            drop(held);
            (line, refused)
        })
    };
    let (line, refused) = in_a_task.await.unwrap();
    let own = own_hold(&refused).expect("it holds one");
    assert_eq!((own.line(), own.file()), (line, file!()));
    assert_eq!(refused.rejection().unwrap().reason, Reason::WaitTimeout);
    let text = refused.to_string();
    assert!(text.contains("; this task itself holds one: "), "{text}");

    // A test is no task, and neither is a `main`.
    let held = pool.transactional().acquire_by(LONG).await.unwrap();
    let refused = pool
        .transactional()
        .acquire()
        .await
        .expect_err("it waits for itself");
    assert!(own_hold(&refused).is_some(), "{refused}");
    drop(held);
    drop(pool.transactional().acquire_by(LONG).await.unwrap());
}

async fn a_task_that_finds_a_free_slot_beside_its_own_is_told_nothing<D: Tested>(tenant: &Tenant) {
    let pool = tenant.pool::<D>(small(2).acquire_timeout(LONG)).await;
    let first = pool.transactional().acquire().await.unwrap();
    let second = pool.transactional().acquire().await.unwrap();
    drop((first, second));
    let detached = pool.transactional().acquire().await.unwrap().detach();
    let other = pool.clone();
    let held = tokio::spawn(async move { other.transactional().acquire().await.unwrap() });
    let held = held.await.unwrap();
    let refused = pool
        .transactional()
        .try_acquire()
        .await
        .expect_err("it is full");
    assert_eq!(
        own_hold(&refused),
        None,
        "a detached one is no hold, and the other another task's"
    );
    drop((detached, held));
}

async fn what_another_task_holds_is_not_this_tasks_own<D: Tested>(tenant: &Tenant) {
    let pool = tenant.pool::<D>(small(1).acquire_timeout(200 * MS)).await;
    let other = pool.clone();
    let held = tokio::spawn(async move { other.transactional().acquire().await.unwrap() });
    let held = held.await.unwrap();
    let refused = tokio::spawn(async move { pool.transactional().acquire().await.unwrap_err() });
    assert_eq!(own_hold(&refused.await.unwrap()), None);
    drop(held);
}

async fn branches_of_one_task_that_wait_for_each_other_in_time_are_told_nothing<D: Tested>(
    tenant: &Tenant,
) {
    let pool = tenant.pool::<D>(small(1).acquire_timeout(LONG)).await;
    let branch = async || {
        let held = pool.transactional().acquire().await?;
        sleep(50 * MS).await;
        drop(held);
        Ok::<_, AcquireError>(())
    };
    let (one, two, three) = tokio::join!(branch(), branch(), branch());
    one.and(two).and(three).unwrap();
}

async fn a_partition_that_shares_the_budget_is_looked_at_too<D: Tested>(tenant: &Tenant) {
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    let reports = PartitionConfig::analytical(1).budget("main").reserved(0);
    let config = PoolConfig::new(&tenant.name, tenant.url(), fleet)
        .budget(BudgetConfig::new("main", 1))
        .transactional(small(1).budget("main").reserved(0))
        .analytical(reports);
    let pool = PartitionedPool::<D>::connect(config).await.unwrap();
    let held = pool.transactional().acquire_by(LONG).await.unwrap();
    let refused = pool
        .analytical()
        .acquire()
        .await
        .expect_err("the budget is exhausted");
    assert!(own_hold(&refused).is_some(), "{refused}");
    drop(held);
}
