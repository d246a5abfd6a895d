//! Callers that leave in the middle of their work: what the next caller gets, and what is left on the server.

use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::SinkExt;
use partitioned_pool::{Connection, TokioPostgres};
use tokio::time::timeout;
use tokio_postgres::{CopyInSink, Error};

use crate::support::patience::{LONG, within};
use crate::support::server::on_each_version;
use crate::support::tenant::{Pool, Tenant, small, until_at_rest};

type Held = Connection<TokioPostgres>;

/// What a caller was doing when it left.
#[derive(Clone, Copy, Debug)]
enum Work {
    Slow,
    SlowPrepared,
    SlowInTransaction,
    OpenTransaction,
    RawBegin,
    FailedTransaction,
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
    const SETTLING: [Self; 11] = [
        Self::Slow,
        Self::SlowPrepared,
        Self::SlowInTransaction,
        Self::OpenTransaction,
        Self::RawBegin,
        Self::FailedTransaction,
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
            Self::Slow | Self::SlowPrepared | Self::Pipelined | Self::PrepareDropped => {
                self.leave_a_query(tenant, &held).await;
            }
            Self::SlowInTransaction => leave_a_slow_transaction(tenant, &mut held).await,
            Self::OpenTransaction => {
                let transaction = held.transaction().await.unwrap();
                transaction.batch_execute(INSERT).await.unwrap();
            }
            Self::RawBegin => held
                .batch_execute(&format!("BEGIN; {INSERT}"))
                .await
                .unwrap(),
            Self::FailedTransaction => {
                held.batch_execute("BEGIN; SELECT 1/0").await.unwrap_err();
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
        let statement = held.prepare_cached(SLEEP).await.unwrap();
        let mut prepared = pin!(held.query(&statement, &[]));
        let (mut first, mut second) = (
            pin!(held.simple_query(SLEEP)),
            pin!(held.simple_query(SLEEP)),
        );
        match self {
            Self::SlowPrepared => poll_once(prepared.as_mut()).await,
            _ => poll_once(first.as_mut()).await,
        }
        if matches!(self, Self::Pipelined) {
            poll_once(second.as_mut()).await;
        }
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

async fn pool(tenant: &Tenant) -> Pool {
    tenant
        .sql(&format!(
            "CREATE TABLE {0}.told (t text); ALTER TABLE {0}.told OWNER TO {0}",
            tenant.name
        ))
        .await;
    tenant
        .pool(
            small(1)
                .statement_timeout(LONG * 10)
                .acquire_timeout(LONG * 3),
        )
        .await
}

/// What the server says of the one session there is, before the next caller has sent anything, and what that
/// caller sees.
async fn assert_clean(tenant: &Tenant, work: Work, next: &Held) {
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
    let messages = next.simple_query(probe).await.unwrap();
    let row = messages.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => Some((row.get(0), row.get(1))),
        _ => None,
    });
    assert_eq!(
        row,
        Some((Some("t"), Some("0"))),
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

#[tokio::test(flavor = "multi_thread")]
async fn whoever_leaves_in_the_middle_costs_milliseconds_and_hands_on_a_clean_connection() {
    on_each_version(async |tenant| {
        let pool = pool(tenant).await;
        for work in Work::SETTLING {
            let mut times = Vec::new();
            for _ in 0..if matches!(work, Work::Slow) { 30 } else { 6 } {
                let held = pool.transactional().acquire().await.unwrap();
                work.leave_in_the_middle(tenant, held).await;
                let left = Instant::now();
                let next = pool.transactional().acquire().await.unwrap();
                times.push(left.elapsed());
                assert_clean(tenant, work, &next).await;
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
    let pool = tenant.pool_by(&proxy, partition).await;
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
        let pool = pool(tenant).await;
        for work in Work::STUCK {
            let held = pool.transactional().acquire().await.unwrap();
            work.leave_in_the_middle(tenant, held).await;
            let left = Instant::now();
            let next = pool.transactional().acquire().await.unwrap();
            println!(
                "{work:?}: the slot is back after {:.1} s",
                left.elapsed().as_secs_f64()
            );
            assert!(left.elapsed() < LONG, "{work:?}: {:?}", left.elapsed());
            assert_clean(tenant, work, &next).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_who_leave_at_once_have_their_slots_back_together() {
    on_each_version(async |tenant| {
        let pool = tenant
            .pool(small(20).statement_timeout(LONG * 10).acquire_timeout(LONG))
            .await;
        let mut held = Vec::new();
        for _ in 0..20 {
            held.push(pool.transactional().acquire().await.unwrap());
        }
        let mut queries: Vec<_> = held
            .iter()
            .map(|held| Box::pin(held.simple_query(SLEEP)))
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
        let pool = tenant.pool(small(1).acquire_timeout(LONG)).await;
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
