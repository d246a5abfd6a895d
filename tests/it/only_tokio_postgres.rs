//! What only the driver on tokio-postgres has: COPY that lives through a leaving, pipelined requests, streams that
//! outlive their guard, cancel requests with a socket each, ends that are seen at once, URLs with several hosts, and
//! plain deadpool beside it.

use std::mem;
use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::SinkExt;
use partitioned_pool::{Connection, TokioPostgres};
use tokio::time::{sleep, timeout};
use tokio_postgres::{CopyInSink, Error};

use crate::leaving::{INSERT, SLEEP, assert_clean, figures, poll_once, pool};
use crate::support::driver::Pool;
use crate::support::patience::{LONG, within};
use crate::support::proxy::{Proxy, Traffic};
use crate::support::server::on_each_version;
use crate::support::tenant::{Tenant, small, until_at_rest};

const MS: Duration = Duration::from_millis(1);

type Held = Connection<TokioPostgres>;

/// What a caller was doing when it left.
#[derive(Clone, Copy, Debug)]
enum Work {
    SlowInTransaction,
    OpenTransaction,
    CopyIn,
    CopyInWithData,
    CopyOut,
    PrepareDropped,
    Pipelined,
    LeakedRows,
    LeakedSink,
    CopyByBatch,
}

impl Work {
    const SETTLING: [Self; 7] = [
        Self::SlowInTransaction,
        Self::OpenTransaction,
        Self::CopyIn,
        Self::CopyInWithData,
        Self::CopyOut,
        Self::PrepareDropped,
        Self::Pipelined,
    ];
    /// What never becomes quiet, so that the connection is closed at a bound.
    const STUCK: [Self; 3] = [Self::LeakedRows, Self::LeakedSink, Self::CopyByBatch];

    /// Begins, and leaves once the server is known to be in the middle of it.
    async fn leave_in_the_middle(self, tenant: &Tenant, mut held: Held) {
        match self {
            Self::Pipelined | Self::PrepareDropped => {
                self.leave_a_query(tenant, &held).await;
            }
            Self::SlowInTransaction => leave_a_slow_transaction(tenant, &mut held).await,
            Self::OpenTransaction => {
                let transaction = held.transaction().await.unwrap();
                transaction.batch_execute(INSERT).await.unwrap();
            }
            Self::CopyIn => drop(copy_in(&held).await.unwrap()),
            Self::CopyInWithData => {
                let mut sink = pin!(copy_in(&held).await.unwrap());
                sink.send(Bytes::from_static(b"lost\nlo")).await.unwrap();
            }
            Self::CopyOut => {
                let rows = held.copy_out(&format!("COPY ({MANY}) TO STDOUT")).await;
                drop(rows.unwrap());
            }
            Self::LeakedRows | Self::LeakedSink | Self::CopyByBatch => {
                self.leave_stuck(tenant, &held).await;
            }
        }
    }

    async fn leave_a_query(self, tenant: &Tenant, held: &Held) {
        if matches!(self, Self::PrepareDropped) {
            return poll_once(pin!(held.prepare("SELECT 'never used'"))).await;
        }
        let (mut first, mut second) = (
            pin!(held.simple_query(SLEEP)),
            pin!(held.simple_query(SLEEP)),
        );
        poll_once(first.as_mut()).await;
        poll_once(second.as_mut()).await;
        tenant.until_running(SLEEP).await;
    }

    async fn leave_stuck(self, tenant: &Tenant, held: &Held) {
        match self {
            Self::LeakedRows => {
                let rows = held.query_raw(MANY, &[] as &[i32]);
                mem::forget(Box::pin(rows.await.unwrap()));
            }
            Self::LeakedSink => {
                let mut sink = Box::pin(copy_in(held).await.unwrap());
                sink.send(Bytes::from_static(b"lost\nlo")).await.unwrap();
                mem::forget(sink);
            }
            _ => {
                let mut copy = pin!(held.batch_execute("COPY told FROM STDIN"));
                poll_once(copy.as_mut()).await;
                tenant.until_running("COPY told").await;
            }
        }
    }
}

async fn leave_a_slow_transaction(tenant: &Tenant, held: &mut Held) {
    let transaction = held.transaction().await.unwrap();
    transaction.batch_execute(INSERT).await.unwrap();
    let mut query = pin!(transaction.query_one(SLEEP, &[]));
    // The statement is prepared first, which takes a round trip.
    let left = tokio::select! {
        _ = query.as_mut() => false,
        () = tenant.until_running(SLEEP) => true,
    };
    assert!(left);
}

const MANY: &str = "SELECT generate_series(1, 10000000)";

async fn copy_in(held: &Held) -> Result<CopyInSink<Bytes>, Error> {
    held.copy_in("COPY told FROM STDIN").await
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_leaves_in_the_middle_of_what_only_this_driver_does_hands_on_a_clean_connection() {
    on_each_version(async |tenant| {
        let pool = pool::<TokioPostgres>(tenant).await;
        for work in Work::SETTLING {
            let mut times = Vec::new();
            for _ in 0..6 {
                let held = pool.transactional().acquire().await.unwrap();
                work.leave_in_the_middle(tenant, held).await;
                let left = Instant::now();
                let mut next = pool.transactional().acquire().await.unwrap();
                times.push(left.elapsed());
                assert_clean(tenant, work, &mut next).await;
            }
            // The worst of them is bounded by far more than a loaded machine needs; medians are printed.
            assert!(times.iter().max().unwrap() < &LONG, "{work:?}: {times:?}");
            figures(&format!("{work:?} on the way back"), times);
        }
        until_at_rest(pool.transactional()).await;
        tenant.until_idle().await;
        assert_eq!(tenant.transactional_backends().await, 1);
    })
    .await;
}

/// How many of twenty leavings have made a connection of their own, which only a cancel does.
async fn cancels(tenant: &Tenant, leave: impl AsyncFn(Held)) -> u64 {
    let proxy = tenant.proxy().await;
    let partition = small(1).statement_timeout(LONG * 10).acquire_timeout(LONG);
    let pool = tenant.pool_by::<TokioPostgres>(&proxy, partition).await;
    drop(pool.transactional().acquire().await.unwrap());
    let before = proxy.traffic();
    for _ in 0..20 {
        leave(pool.transactional().acquire().await.unwrap()).await;
        until_at_rest(pool.transactional()).await;
    }
    proxy.traffic().since(before).connections
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_server_owes_for_long_is_cancelled_without_a_grace() {
    on_each_version(async |tenant| {
        tenant
            .sql(&format!(
                "CREATE TABLE {0}.told (t text); ALTER TABLE {0}.told OWNER TO {0}",
                tenant.name
            ))
            .await;
        let transaction = cancels(tenant, async |mut held| {
            let transaction = held.transaction().await.unwrap();
            transaction.batch_execute("SELECT pg_sleep(0.02)").await.unwrap();
        });
        let copy = cancels(tenant, async |held| {
            let mut sink = pin!(copy_in(&held).await.unwrap());
            sink.send(Bytes::from_static(b"lost\nlo")).await.unwrap();
            sleep(20 * MS).await;
        });
        let query = cancels(tenant, async |held| {
            let query = held.simple_query(SLEEP);
            assert!(timeout(Duration::from_millis(20), query).await.is_err());
        });
        let (transaction, copy, query) = (transaction.await, copy.await, query.await);
        println!("cancels of 20 leavings: {transaction} in a transaction, {copy} in a COPY IN, {query} in a query");
        assert!(query >= 20);
        // Without a grace there would be one for each. On a busy machine, some answers take longer than it lasts.
        assert!(transaction < 20 && copy < 20, "{transaction} and {copy}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_never_becomes_quiet_is_closed_and_its_slot_comes_back_in_seconds() {
    on_each_version(async |tenant| {
        let pool = pool::<TokioPostgres>(tenant).await;
        for work in Work::STUCK {
            let held = pool.transactional().acquire().await.unwrap();
            work.leave_in_the_middle(tenant, held).await;
            let left = Instant::now();
            let mut next = pool.transactional().acquire().await.unwrap();
            println!(
                "{work:?}: the slot is back after {:.1} s",
                left.elapsed().as_secs_f64()
            );
            assert!(left.elapsed() < LONG, "{work:?}: {:?}", left.elapsed());
            assert_clean(tenant, work, &mut next).await;
        }
    })
    .await;
}

/// A COPY that fails before the server has read anything is answered at once, though its sink lives on and
/// will send a Sync of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_fails_at_its_start_never_shifts_the_answers_of_others() {
    on_each_version(async |tenant| {
        let name = &tenant.name;
        tenant
            .sql(&format!(
                "CREATE TABLE {name}.closed (n int); \
                 CREATE FUNCTION {name}.refuse() RETURNS trigger LANGUAGE plpgsql \
                 AS 'BEGIN RAISE EXCEPTION ''closed''; END'; \
                 CREATE TRIGGER refuse BEFORE INSERT ON {name}.closed \
                 FOR EACH STATEMENT EXECUTE FUNCTION {name}.refuse(); \
                 ALTER TABLE {name}.closed OWNER TO {name}"
            ))
            .await;
        let pool = tenant
            .pool::<TokioPostgres>(small(1).acquire_timeout(LONG))
            .await;
        let checkout = pool.transactional();
        let held = checkout.acquire().await.unwrap();
        let copy = format!("COPY {name}.closed FROM STDIN");
        let sink: CopyInSink<Bytes> = held.copy_in(&copy).await.unwrap();
        tenant.until_idle().await;
        drop(held);

        let ask = async |n: i32| {
            let held = checkout.acquire_by(LONG).await.unwrap();
            let row = held.query_one("SELECT $1::INT", &[&n]).await.unwrap();
            assert_eq!(row.get::<_, i32>(0), n);
        };
        ask(1).await;
        drop(sink);
        for n in 2..10 {
            ask(n).await;
        }
    })
    .await;
}

async fn acquire_all(pool: &Pool, connections: u32) -> Vec<Held> {
    let mut held = Vec::new();
    for _ in 0..connections {
        held.push(pool.transactional().acquire_by(LONG).await.unwrap());
    }
    held
}

/// Far below the 30 s for which a connection lingers whose end was not seen.
const SOON: Duration = Duration::from_secs(10);

/// A connection of sqlx reads nothing while it is idle.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_dead_is_never_handed_out_and_min_idle_comes_back_by_itself() {
    on_each_version(async |tenant| {
        let pool: Pool = tenant
            .pool(small(6).min_idle(4).acquire_timeout(LONG))
            .await;
        for round in 0..8 {
            // Those that were ended count as idle until the pool looks at them.
            let full = async || {
                tenant.transactional_backends().await >= 4
                    && pool.transactional().status().idle >= 4
            };
            let back = within(SOON, "min_idle is back", full).await;
            println!("min_idle is back after {back:?}");
            drop(acquire_all(&pool, 6).await);
            tenant.terminate_all().await;
            tenant.until_gone().await;
            // By then the end of each connection has come to us.
            sleep(300 * MS).await;
            if round % 2 == 1 {
                for held in acquire_all(&pool, 6).await {
                    held.simple_query("SELECT 1").await.unwrap();
                }
            }
        }
        until_at_rest(pool.transactional()).await;
    })
    .await;
}

/// sqlx knows of one host for each URL.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_not_resolve_only_costs_time_beside_one_that_does() {
    on_each_version(async |tenant| {
        let (name, host, port) = (&tenant.name, tenant.host(), tenant.port());
        let both =
            format!("postgres://{name}:{name}@db.nowhere.invalid:{port},{host}:{port}/postgres");
        let config = tenant.config(small(1).acquire_timeout(LONG).connect_timeout(LONG));
        let pool = Pool::connect(config.url(both)).await.unwrap();
        let held = pool.transactional().acquire_by(LONG).await.unwrap();
        held.simple_query("SELECT 1").await.unwrap();
    })
    .await;
}

const CALLS: usize = 50;

async fn ours(pool: &Pool) {
    let connection = pool.transactional().acquire().await.unwrap();
    let statement = connection.prepare_cached("SELECT 1").await.unwrap();
    connection.query_one(&statement, &[]).await.unwrap();
}

async fn plain(pool: &deadpool_postgres::Pool) {
    let connection = pool.get().await.unwrap();
    let statement = connection.prepare_cached("SELECT 1").await.unwrap();
    connection.query_one(&statement, &[]).await.unwrap();
}

/// What calls cost after a first one, which connects and prepares.
async fn cost(proxy: &Proxy, call: impl AsyncFn()) -> Traffic {
    call().await;
    let before = proxy.traffic();
    for _ in 0..CALLS {
        call().await;
    }
    proxy.traffic().since(before)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ordinary_path_sends_not_one_message_more_than_plain_deadpool_does() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let pool: Pool = tenant.pool_by(&proxy, small(1)).await;
        let ours = cost(&proxy, async || ours(&pool).await).await;

        let proxy = tenant.proxy().await;
        let config: tokio_postgres::Config = tenant.url_by(&proxy).parse().unwrap();
        let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
        let pool = deadpool_postgres::Pool::builder(manager)
            .max_size(1)
            .build()
            .unwrap();
        let plain = cost(&proxy, async || plain(&pool).await).await;

        assert_eq!(ours, plain);
        assert_eq!(ours.round_trips, CALLS as u64);
    })
    .await;
}
