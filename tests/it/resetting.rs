//! Session state that a caller leaves behind, with `reset_session` and without.

use std::time::{Duration, Instant};

use partitioned_pool::config::PartitionConfig;
use partitioned_pool::{Connection, PartitionedPool};
use tokio::time::timeout;

use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::patience::{LONG, eventually};
use crate::support::proxy::Fault;
use crate::support::tenant::{Tenant, small, until_at_rest};

on_each_driver![
    what_a_caller_leaves_in_its_session_is_gone_and_prepared_statements_stay,
    without_a_reset_session_state_is_the_next_callers,
    who_leaves_in_the_middle_leaves_no_session_state_either,
    a_reset_costs_one_round_trip_for_each_hold,
    a_reset_that_has_no_answer_closes_the_connection,
];

/// Beyond the two seconds that a reset may take, on a loaded machine.
const SOON: Duration = Duration::from_secs(10);

/// Everything that a session can keep.
const LEAVE_BEHIND: &str = "SET work_mem = '9MB'; SET statement_timeout = '9s'; SET lock_timeout = 0; \
    SET application_name = 'somebody else'; SET default_transaction_read_only = on; \
    SET client_connection_check_interval = 0; SET ROLE pg_monitor; \
    SELECT pg_advisory_lock(hashtext(session_user::text)); LISTEN news; \
    CREATE TEMP TABLE scratch (t text); CREATE TEMP SEQUENCE numbers; SELECT nextval('numbers'); \
    DECLARE kept CURSOR WITH HOLD FOR SELECT 1";

/// What a session has, in the order of the columns of [`seen`].
const LOOK: &str = "SELECT current_setting('work_mem'), current_setting('statement_timeout'), \
    current_setting('lock_timeout'), current_setting('application_name'), \
    current_setting('default_transaction_read_only'), current_setting('client_connection_check_interval'), \
    current_user::text, to_regclass('scratch')::text, to_regclass('numbers')::text, \
    (SELECT count(*)::text FROM pg_listening_channels()), \
    (SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), \
    (SELECT count(*)::text FROM pg_cursors WHERE name = 'kept'), pg_backend_pid()::text";

const PREPARED: &str = "SELECT 'prepared once', pg_sleep($1)";

async fn seen<D: Tested>(held: &mut Connection<D>) -> Vec<Option<String>> {
    held.row(LOOK).await
}

async fn prepared<D: Tested>(held: &mut Connection<D>) {
    D::say_prepared(held, PREPARED, 0.0).await.unwrap();
}

async fn times_prepared<D: Tested>(held: &mut Connection<D>) -> String {
    let like =
        "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'SELECT ''prepared%'";
    held.ask(like).await
}

async fn pool<D: Tested>(tenant: &Tenant, partition: PartitionConfig) -> PartitionedPool<D> {
    tenant
        .sql(&format!("GRANT pg_monitor TO {}", tenant.name))
        .await;
    tenant.pool::<D>(partition.acquire_timeout(LONG)).await
}

fn resetting() -> PartitionConfig {
    small(1).reset_session(true)
}

async fn what_a_caller_leaves_in_its_session_is_gone_and_prepared_statements_stay<D: Tested>(
    tenant: &Tenant,
) {
    let pool = pool::<D>(tenant, resetting()).await;
    let mut held = pool.transactional().acquire().await.unwrap();
    let fresh = seen(&mut held).await;
    prepared(&mut held).await;
    held.say(LEAVE_BEHIND).await.unwrap();
    let dirty = seen(&mut held).await;
    let kept = fresh.iter().zip(&dirty).filter(|(a, b)| a == b).count();
    assert_eq!(kept, 1, "only the backend is the same: {fresh:?} {dirty:?}");
    drop(held);

    let mut next = pool.transactional().acquire().await.unwrap();
    assert_eq!(
        seen(&mut next).await,
        fresh,
        "limits in force, nothing left"
    );
    let last = next.say("SELECT lastval()").await.unwrap_err();
    assert_eq!(last.code(), Some("55000"));
    assert_eq!(times_prepared(&mut next).await, "1");
    prepared(&mut next).await;
    assert_eq!(
        times_prepared(&mut next).await,
        "1",
        "it was not prepared again"
    );
    let free = format!("SELECT pg_try_advisory_lock(hashtext('{}'))", tenant.name);
    let row = tenant
        .another_admin()
        .await
        .unwrap()
        .query_one(&free, &[])
        .await;
    assert!(row.unwrap().get::<_, bool>(0), "the lock is free");
}

async fn without_a_reset_session_state_is_the_next_callers<D: Tested>(tenant: &Tenant) {
    let pool = pool::<D>(tenant, small(1)).await;
    let mut held = pool.transactional().acquire().await.unwrap();
    prepared(&mut held).await;
    held.say(LEAVE_BEHIND).await.unwrap();
    let left = seen(&mut held).await;
    drop(held);
    let mut next = pool.transactional().acquire().await.unwrap();
    assert_eq!(seen(&mut next).await, left);
    assert_eq!(times_prepared(&mut next).await, "1");
}

async fn who_leaves_in_the_middle_leaves_no_session_state_either<D: Tested>(tenant: &Tenant) {
    let pool = pool::<D>(tenant, resetting()).await;
    let mut held = pool.transactional().acquire().await.unwrap();
    let fresh = seen(&mut held).await;
    drop(held);
    for end in ["BEGIN", "BEGIN; SELECT 1/0", "SELECT pg_sleep(60)"] {
        let mut held = pool.transactional().acquire().await.unwrap();
        let parts = async {
            held.say(LEAVE_BEHIND).await.unwrap();
            held.say(end).await.ok();
        };
        timeout(Duration::from_millis(300), parts).await.ok();
        drop(held);
        let mut next = pool.transactional().acquire().await.unwrap();
        assert_eq!(seen(&mut next).await, fresh, "{end}");
    }
}

async fn a_reset_costs_one_round_trip_for_each_hold<D: Tested>(tenant: &Tenant) {
    let proxy = tenant.proxy().await;
    let pool = tenant.pool_by::<D>(&proxy, resetting()).await;
    let call = async || {
        let mut held = pool.transactional().acquire().await.unwrap();
        prepared(&mut held).await;
    };
    call().await;
    until_at_rest(pool.transactional()).await;
    let before = proxy.traffic();
    for _ in 0..10 {
        call().await;
    }
    until_at_rest(pool.transactional()).await;
    assert_eq!(proxy.traffic().since(before).round_trips, 20);
}

async fn a_reset_that_has_no_answer_closes_the_connection<D: Tested>(tenant: &Tenant) {
    let proxy = tenant.proxy().await;
    let pool = tenant
        .pool_by::<D>(&proxy, resetting().acquire_timeout(LONG))
        .await;
    let mut held = pool.transactional().acquire().await.unwrap();
    let pid = seen(&mut held).await.pop();
    proxy.set(Fault::Pause);
    let began = Instant::now();
    drop(held);
    eventually("the reset is given up", async || {
        pool.transactional().status().returning == 0
    })
    .await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(pool.transactional().status().connections(), 1, "it counts");
    proxy.set(Fault::None);
    let mut next = pool.transactional().acquire().await.unwrap();
    let next_pid = seen(&mut next).await.pop();
    assert_ne!(next_pid, pid, "another backend");
}
