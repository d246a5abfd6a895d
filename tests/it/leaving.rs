//! Callers that leave in the middle of their work: what the next caller gets, and what is left on the server.

use std::fmt::Debug;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use partitioned_pool::{Connection, PartitionedPool};

use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::patience::{LONG, within};
use crate::support::tenant::{Tenant, small, until_at_rest};

on_each_driver![
    whoever_leaves_costs_milliseconds_and_hands_on_a_clean_connection,
    twenty_who_leave_at_once_have_their_slots_back_together,
];

pub(crate) const SLEEP: &str = "SELECT pg_sleep(60)";
pub(crate) const INSERT: &str = "INSERT INTO told VALUES ('lost')";

/// Lets a request be sent. It may even be answered, if the machine is busy with others.
pub(crate) async fn poll_once(mut future: Pin<&mut impl Future>) {
    let answered = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
    if answered {
        eprintln!("a request was answered at its first poll");
    }
}

pub(crate) async fn pool<D: Tested>(tenant: &Tenant) -> PartitionedPool<D> {
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
pub(crate) async fn assert_clean<D: Tested>(
    tenant: &Tenant,
    work: impl Debug,
    next: &mut Connection<D>,
) {
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

pub(crate) fn figures(what: &str, mut times: Vec<Duration>) {
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
