//! Callers that leave in the middle of their work: what the next caller gets, and what is left on the server.

use std::fmt::Debug;
use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::SinkExt;
use partitioned_pool::{Connection, PartitionedPool, TokioPostgres};
use tokio::time::timeout;
use tokio_postgres::{CopyInSink, Error};

use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::patience::{LONG, within};
use crate::support::server::on_each_version;
use crate::support::tenant::{Tenant, small, until_at_rest};

on_each_driver![
    whoever_leaves_costs_milliseconds_and_hands_on_a_clean_connection,
    twenty_who_leave_at_once_have_their_slots_back_together,
];

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

const SLEEP: &str = "SELECT pg_sleep(60)";
const INSERT: &str = "INSERT INTO told VALUES ('lost')";
const MANY: &str = "SELECT generate_series(1, 10000000)";

async fn copy_in(held: &Held) -> Result<CopyInSink<Bytes>, Error> {
    held.copy_in("COPY told FROM STDIN").await
}

/// Lets a request be sent. It may even be answered, if the machine is busy with others.
async fn poll_once(mut future: Pin<&mut impl Future>) {
    let answered = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
    if answered {
        eprintln!("a request was answered at its first poll");
    }
}

async fn pool<D: Tested>(tenant: &Tenant) -> PartitionedPool<D> {
    tenant
        .sql(&format!(
            "CREATE TABLE {0}.told (t text); ALTER TABLE {0}.told OWNER TO {0}",
            tenant.name
        ))
        .await;
    tenant
        .pool::<D>(
            small(1)
                .statement_timeout(LONG * 10)
                .acquire_timeout(LONG * 3),
        )
        .await
}

/// What the server says of the one session there is, before the next caller has sent anything, and what that
/// caller sees.
async fn assert_clean<D: Tested>(tenant: &Tenant, work: impl Debug, next: &mut Connection<D>) {
    let ours = "application_name LIKE '%/transactional' AND state";
    assert_eq!(
        tenant.count(&format!("{ours} <> 'idle'")).await,
        0,
        "{work:?}: handed out busy or dirty"
    );
    assert_eq!(
        tenant.count(&format!("{ours} = 'idle'")).await,
        1,
        "{work:?}: one session"
    );
    let probe = "SELECT now() = statement_timestamp(), (SELECT count(*) FROM told)";
    let clean = [Some("t".to_owned()), Some("0".to_owned())];
    assert_eq!(
        next.row(probe).await,
        clean,
        "{work:?}: in a transaction, or something was kept"
    );
}

fn figures(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| {
        times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64() * 1e3
    };
    println!(
        "{what}: p50 {:.1} ms, p99 {:.1} ms, of {}",
        at(50),
        at(99),
        times.len()
    );
}

/// What a caller of any driver was doing when it left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Slow,
    SlowPrepared,
    SlowInTransaction,
    RawBegin,
    FailedTransaction,
}

impl Left {
    const ALL: [Self; 5] = [
        Self::Slow,
        Self::SlowPrepared,
        Self::SlowInTransaction,
        Self::RawBegin,
        Self::FailedTransaction,
    ];

    /// Begins, and leaves once the server is known to be in the middle of it.
    async fn leave<D: Tested>(self, tenant: &Tenant, mut held: Connection<D>) {
        let begin = format!("BEGIN; {INSERT}");
        match self {
            Self::Slow => leave_running(tenant, held.say(SLEEP)).await,
            Self::SlowPrepared => {
                let sleep = D::say_prepared(&mut held, "SELECT pg_sleep($1)", 60.0);
                leave_running(tenant, sleep).await;
            }
            Self::SlowInTransaction => {
                held.say(&begin).await.unwrap();
                leave_running(tenant, held.say(SLEEP)).await;
            }
            Self::RawBegin => drop(held.say(&begin).await.unwrap()),
            Self::FailedTransaction => drop(held.say("BEGIN; SELECT 1/0").await.unwrap_err()),
        }
    }
}

async fn leave_running(tenant: &Tenant, query: impl Future) {
    let left = tokio::select! {
        _ = query => false,
        () = tenant.until_running("SELECT pg_sleep(") => true,
    };
    assert!(left);
}

async fn whoever_leaves_costs_milliseconds_and_hands_on_a_clean_connection<D: Tested>(
    tenant: &Tenant,
) {
    let pool = pool::<D>(tenant).await;
    for work in Left::ALL {
        let mut times = Vec::new();
        for _ in 0..if work == Left::Slow { 60 } else { 6 } {
            let held = pool.transactional().acquire().await.unwrap();
            work.leave(tenant, held).await;
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
            tokio::time::sleep(Duration::from_millis(20)).await;
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

async fn twenty_who_leave_at_once_have_their_slots_back_together<D: Tested>(tenant: &Tenant) {
    let pool = tenant
        .pool::<D>(small(20).statement_timeout(LONG * 10).acquire_timeout(LONG))
        .await;
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(pool.transactional().acquire().await.unwrap());
    }
    let mut queries: Vec<_> = held
        .iter_mut()
        .map(|held| Box::pin(held.say(SLEEP)))
        .collect();
    for query in &mut queries {
        poll_once(query.as_mut()).await;
    }
    let running = format!("state = 'active' AND query = '{SLEEP}'");
    within(LONG, "all run", async || tenant.count(&running).await == 20).await;
    drop(queries);
    drop(held);
    let at_rest = async || pool.transactional().status().idle == 20;
    let back = within(LONG, "every slot is back", at_rest).await;
    println!(
        "20 who leave at once: all slots back after {:.0} ms",
        back.as_secs_f64() * 1e3
    );
    assert_eq!(tenant.count(&running).await, 0, "the queries are gone");
    until_at_rest(pool.transactional()).await;
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
