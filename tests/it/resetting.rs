//! Session state that a caller leaves behind, with `reset_session` and without.

use std::time::{Duration, Instant};

use partitioned_pool::config::PartitionConfig;
use partitioned_pool::{Connection, TokioPostgres};
use tokio::time::timeout;

use crate::support::patience::{LONG, eventually};
use crate::support::proxy::Fault;
use crate::support::server::on_each_version;
use crate::support::tenant::{Pool, Tenant, small, until_at_rest};

type Held = Connection<TokioPostgres>;

/// Beyond the two seconds that a reset may take, on a loaded machine.
const SOON: Duration = Duration::from_secs(10);

/// Everything that a session can keep.
const LEAVE_BEHIND: &str = "SET work_mem = '9MB'; SET statement_timeout = '9s'; SET lock_timeout = 0; \
    SET application_name = 'somebody else'; SET default_transaction_read_only = on; \
    SET client_connection_check_interval = 0; SET ROLE pg_monitor; \
    SELECT pg_advisory_lock(4711); LISTEN news; \
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

const PREPARED: &str = "SELECT 'prepared once'";

async fn seen(held: &Held) -> Vec<Option<String>> {
    let messages = held.simple_query(LOOK).await.unwrap();
    let row = messages.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let row = row.unwrap();
    (0..row.len())
        .map(|at| row.get(at).map(str::to_owned))
        .collect()
}

async fn prepared(held: &Held) -> String {
    let statement = held.prepare_cached(PREPARED).await.unwrap();
    held.query_one(&statement, &[]).await.unwrap().get(0)
}

async fn times_prepared(held: &Held) -> i64 {
    let sql = "SELECT count(*) FROM pg_prepared_statements WHERE statement = $1";
    held.query_one(sql, &[&PREPARED]).await.unwrap().get(0)
}

async fn pool(tenant: &Tenant, partition: PartitionConfig) -> Pool {
    tenant
        .sql(&format!("GRANT pg_monitor TO {}", tenant.name))
        .await;
    tenant.pool(partition.acquire_timeout(LONG)).await
}

fn resetting() -> PartitionConfig {
    small(1).reset_session(true)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_caller_leaves_in_its_session_is_gone_and_prepared_statements_stay() {
    on_each_version(async |tenant| {
        let pool = pool(tenant, resetting()).await;
        let held = pool.transactional().acquire().await.unwrap();
        let fresh = seen(&held).await;
        prepared(&held).await;
        held.batch_execute(LEAVE_BEHIND).await.unwrap();
        let dirty = seen(&held).await;
        let kept = fresh.iter().zip(&dirty).filter(|(a, b)| a == b).count();
        assert_eq!(kept, 1, "only the backend is the same: {fresh:?} {dirty:?}");
        drop(held);

        let next = pool.transactional().acquire().await.unwrap();
        assert_eq!(seen(&next).await, fresh, "limits in force, nothing left");
        let last = next.batch_execute("SELECT lastval()").await.unwrap_err();
        assert_eq!(last.code().unwrap().code(), "55000");
        assert_eq!(times_prepared(&next).await, 1);
        assert_eq!(prepared(&next).await, "prepared once");
        assert_eq!(times_prepared(&next).await, 1, "it was not prepared again");
        let free = format!(
            "SELECT pg_try_advisory_lock(4711) FROM pg_roles WHERE rolname = '{}'",
            tenant.name
        );
        let row = tenant
            .another_admin()
            .await
            .unwrap()
            .query_one(&free, &[])
            .await;
        assert!(row.unwrap().get::<_, bool>(0), "the lock is free");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_reset_session_state_is_the_next_callers() {
    on_each_version(async |tenant| {
        let pool = pool(tenant, small(1)).await;
        let held = pool.transactional().acquire().await.unwrap();
        prepared(&held).await;
        held.batch_execute(LEAVE_BEHIND).await.unwrap();
        let left = seen(&held).await;
        drop(held);
        let next = pool.transactional().acquire().await.unwrap();
        assert_eq!(seen(&next).await, left);
        assert_eq!(times_prepared(&next).await, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_in_the_middle_leaves_no_session_state_either() {
    on_each_version(async |tenant| {
        let pool = pool(tenant, resetting()).await;
        let held = pool.transactional().acquire().await.unwrap();
        let fresh = seen(&held).await;
        drop(held);
        for end in ["BEGIN", "BEGIN; SELECT 1/0", "SELECT pg_sleep(60)"] {
            let held = pool.transactional().acquire().await.unwrap();
            let parts = async {
                held.batch_execute(LEAVE_BEHIND).await.unwrap();
                held.batch_execute(end).await.ok();
            };
            timeout(Duration::from_millis(300), parts).await.ok();
            drop(held);
            let next = pool.transactional().acquire().await.unwrap();
            assert_eq!(seen(&next).await, fresh, "{end}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_costs_one_round_trip_for_each_hold() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let pool = tenant.pool_by(&proxy, resetting()).await;
        let call = async || {
            let held = pool.transactional().acquire().await.unwrap();
            prepared(&held).await;
        };
        call().await;
        until_at_rest(pool.transactional()).await;
        let before = proxy.traffic();
        for _ in 0..10 {
            call().await;
        }
        until_at_rest(pool.transactional()).await;
        assert_eq!(proxy.traffic().since(before).round_trips, 20);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_that_has_no_answer_closes_the_connection() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let pool = tenant
            .pool_by(&proxy, resetting().acquire_timeout(LONG))
            .await;
        let held = pool.transactional().acquire().await.unwrap();
        let pid = seen(&held).await.pop();
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
        let next = pool.transactional().acquire().await.unwrap();
        let next_pid = seen(&next).await.pop();
        assert_ne!(next_pid, pid, "another backend");
    })
    .await;
}
