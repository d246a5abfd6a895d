//! Acquiring a connection on a real server: who gets one, who waits, and what the others are told.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use partitioned_pool::config::{Kind, PartitionConfig};
use partitioned_pool::error::{AcquireError, Phase, Reason, RunError};
use partitioned_pool::{Connection, PartitionedPool, TokioPostgres};
use tokio_postgres::Error;

use crate::support::patience::{LONG, eventually};
use crate::support::proxy::Fault;
use crate::support::server::on_each_version;
use crate::support::tenant::{Pool, small, until_at_rest};

const MS: Duration = Duration::from_millis(1);

/// How late an answer may be on a loaded machine.
const LATE: Duration = Duration::from_secs(3);

async fn one(connection: &Connection<TokioPostgres>) -> i32 {
    connection.query_one("SELECT 1", &[]).await.unwrap().get(0)
}

fn refused(outcome: Result<Connection<TokioPostgres>, AcquireError>) -> AcquireError {
    outcome.expect_err("it must be refused")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_partition_says_so_at_the_deadline_in_phase_wait() {
    on_each_version(async |tenant| {
        let pool = tenant.pool(small(1).acquire_timeout(200 * MS)).await;
        let held = pool.transactional().acquire().await.unwrap();
        let began = Instant::now();
        let error = refused(pool.transactional().acquire().await);
        assert!((200 * MS..200 * MS + LATE).contains(&began.elapsed()));
        assert!(error.is_rejection() && error.is_timeout() && !error.is_closed());
        assert_eq!((error.phase(), error.sqlstate()), (Phase::Wait, None));
        assert!(error.retry_after().is_some());
        let rejection = error.rejection().unwrap();
        assert_eq!(rejection.reason, Reason::WaitTimeout);
        assert!(rejection.waited >= 200 * MS);
        assert_eq!((rejection.in_use, rejection.waiting), (1, 0));
        drop(held);
        assert_eq!(one(&pool.transactional().acquire().await.unwrap()).await, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_connect_says_so_at_the_deadline_in_phase_connect() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let pool = tenant
            .pool_by(&proxy, small(2).acquire_timeout(300 * MS))
            .await;
        let _held = pool.transactional().acquire().await.unwrap();
        proxy.set(Fault::Pause);
        let began = Instant::now();
        let error = refused(pool.transactional().acquire().await);
        assert!((300 * MS..300 * MS + LATE).contains(&began.elapsed()));
        assert!(error.is_timeout() && !error.is_rejection() && error.retry_after().is_none());
        assert_eq!(
            (error.phase(), error.partition()),
            (Phase::Connect, "transactional")
        );
        let text = error.to_string();
        assert!(
            text.contains("no connection within 300 ms, stuck in phase connect"),
            "{text}"
        );

        // The connect went on without its caller; what comes of it is the pool's.
        assert_eq!(pool.transactional().status().opening, 1);
        proxy.set(Fault::None);
        eventually("the connection has arrived", async || {
            pool.transactional().status().idle == 1
        })
        .await;
        assert_eq!(one(&pool.transactional().acquire().await.unwrap()).await, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_idle_connection_that_stays_silent_says_so_in_phase_validate() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let partition = small(1).validate_after_idle(MS).acquire_timeout(300 * MS);
        let pool = tenant.pool_by(&proxy, partition).await;
        tokio::time::sleep(5 * MS).await;
        proxy.set(Fault::Pause);
        let began = Instant::now();
        let error = refused(pool.transactional().acquire().await);
        assert!((300 * MS..300 * MS + LATE).contains(&began.elapsed()));
        assert_eq!((error.phase(), error.is_timeout()), (Phase::Validate, true));

        proxy.set(Fault::None);
        until_at_rest(pool.transactional()).await;
        assert_eq!(one(&pool.transactional().acquire().await.unwrap()).await, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_and_connecting_share_one_deadline() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let pool = tenant
            .pool_by(&proxy, small(1).acquire_timeout(1000 * MS))
            .await;
        let held = pool.transactional().acquire().await.unwrap();
        tenant.terminate_all().await;
        eventually("the end is noticed", async || held.is_closed()).await;
        proxy.set(Fault::Pause);

        let began = Instant::now();
        let give_back = async {
            tokio::time::sleep(400 * MS).await;
            drop(held);
        };
        let (outcome, ()) = tokio::join!(pool.transactional().acquire(), give_back);
        assert!((1000 * MS..1000 * MS + LATE).contains(&began.elapsed()));
        match refused(outcome) {
            AcquireError::TimedOut {
                phase,
                limit,
                waited,
                ..
            } => {
                assert_eq!((phase, limit), (Phase::Connect, 1000 * MS));
                assert!((400 * MS..1000 * MS).contains(&waited), "{waited:?}");
            }
            other => panic!("{other}"),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_tells_what_is_held_and_when_to_come_back() {
    on_each_version(async |tenant| {
        let pool = tenant
            .pool(small(2).max_waiters(1).acquire_timeout(700 * MS))
            .await;
        let checkout = pool.transactional();
        let _held = (
            checkout.acquire().await.unwrap(),
            checkout.acquire().await.unwrap(),
        );
        let error = refused(checkout.try_acquire().await);
        assert_eq!(error.rejection().unwrap().reason, Reason::NoFreeSlot);

        let waiter = tokio::spawn({
            let checkout = checkout.clone();
            async move { checkout.acquire_by(LONG).await.map(drop) }
        });
        eventually("one waits", async || checkout.status().waiting == 1).await;
        let error = refused(checkout.acquire().await);
        let rejection = error.rejection().unwrap();
        assert_eq!(
            (rejection.partition.as_str(), rejection.reason),
            ("transactional", Reason::QueueFull)
        );
        assert_eq!(
            (rejection.max_connections, rejection.in_use, rejection.idle),
            (2, 2, 0)
        );
        assert_eq!(
            (rejection.waiting, rejection.max_waiters, rejection.waited),
            (1, 1, Duration::ZERO)
        );
        assert!(
            rejection
                .oldest_hold()
                .unwrap()
                .at
                .file()
                .ends_with("acquiring.rs")
        );
        assert!(rejection.retry_after.is_some());
        let text = error.to_string();
        let begins =
            "transactional: rejected, queue full (max 2, in use 2, idle 0, waiting 1; oldest holds ";
        assert!(
            text.starts_with(begins) && text.contains("; retry after "),
            "{text}"
        );
        waiter.abort();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_cannot_be_met_is_refused_at_once() {
    on_each_version(async |tenant| {
        let pool = tenant.pool(small(1)).await;
        for _ in 0..10 {
            let _held = pool.transactional().acquire().await.unwrap();
            tokio::time::sleep(20 * MS).await;
        }
        let _held = pool.transactional().acquire().await.unwrap();
        let error = refused(pool.transactional().acquire_by(5 * MS).await);
        match error.rejection().unwrap().reason {
            Reason::DeadlineTooShort {
                expected_hold,
                left,
                ..
            } => {
                // The average counts the hold of the boot check, too.
                assert!(expected_hold >= 10 * MS && left <= 5 * MS);
            }
            other => panic!("{other}"),
        }
        assert!(error.rejection().unwrap().waited.is_zero() && !error.is_timeout());
        assert!(
            error.to_string().contains("deadline too short: "),
            "{error}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_keep_their_order_and_do_not_feel_each_other() {
    on_each_version(async |tenant| {
        let named = PartitionConfig::named("batch", Kind::Analytical, 1);
        let config = tenant.config(small(1).max_waiters(0)).partition(named);
        let pool = Pool::connect(config).await.unwrap();
        let names: Vec<&str> = pool.partitions().map(|p| p.name()).collect();
        assert_eq!(names, ["transactional", "analytical", "batch"]);
        let status: Vec<String> = pool
            .status()
            .partitions
            .into_iter()
            .map(|p| p.name)
            .collect();
        assert_eq!(status, names);

        let _full = pool.transactional().acquire().await.unwrap();
        assert!(refused(pool.transactional().acquire().await).is_rejection());
        let batch = pool.partition("batch").unwrap().acquire().await.unwrap();
        assert_eq!((one(&batch).await, batch.partition()), (1, "batch"));
        let row = batch.query_one("SHOW application_name", &[]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), format!("{}/batch", tenant.name));
        assert!(pool.partition("nobody").is_none());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_stuck_in_a_connect_takes_a_connection_that_comes_free() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let pool = tenant.pool_by(&proxy, small(2).acquire_timeout(LONG)).await;
        let held = pool.transactional().acquire().await.unwrap();
        proxy.set(Fault::Pause);
        let seek = tokio::spawn({
            let checkout = pool.transactional().clone();
            async move { checkout.acquire().await.map(drop) }
        });
        eventually("it connects", async || {
            pool.transactional().status().opening == 1
        })
        .await;
        drop(held);
        tokio::time::timeout(LATE, seek)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_gives_the_result_or_says_whether_the_work_began() {
    on_each_version(async |tenant| {
        let pool = tenant.pool(small(1).max_waiters(1)).await;
        let checkout = pool.transactional();
        let sum = checkout
            .run(LONG, async |conn| {
                Ok::<i32, Error>(conn.query_one("SELECT 40 + 2", &[]).await?.get(0))
            })
            .await;
        assert_eq!(sum.unwrap(), 42);

        let failed = checkout
            .run(LONG, async |conn| conn.execute("SELECT 1/0", &[]).await)
            .await;
        match failed.unwrap_err() {
            RunError::Work(error) => assert_eq!(error.code().unwrap().code(), "22012"),
            other => panic!("{other}"),
        }

        until_at_rest(checkout).await;
        let began = Instant::now();
        let late = checkout
            .run(200 * MS, async |conn| {
                conn.execute("SELECT pg_sleep(60)", &[]).await
            })
            .await
            .unwrap_err();
        assert!((200 * MS..200 * MS + LATE).contains(&began.elapsed()));
        assert!(
            matches!(late, RunError::DeadlineExceeded { .. }) && !late.never_began(),
            "{late}"
        );

        let _held = checkout.acquire_by(LONG).await.unwrap();
        let refused = checkout
            .run(50 * MS, async |conn| conn.execute("SELECT 1", &[]).await)
            .await
            .unwrap_err();
        assert!(refused.never_began() && refused.is_rejection() && refused.retry_after().is_some());
        tenant.until_idle().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_comes_back_from_a_panic_and_from_a_plain_thread() {
    on_each_version(async |tenant| {
        let pool = tenant.pool(small(1)).await;
        let held = pool.transactional().acquire().await.unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _held = held;
            resume_unwind(Box::new("on purpose"))
        }));
        assert!(panicked.is_err());
        let held = pool.transactional().try_acquire().await.unwrap();
        std::thread::spawn(move || drop(held)).join().unwrap();

        // In the middle of a query, from a thread that is none of the runtime's.
        let held = pool.transactional().try_acquire().await.unwrap();
        let mut query = Box::pin(held.simple_query("SELECT pg_sleep(60)"));
        assert!(tokio::time::timeout(20 * MS, &mut query).await.is_err());
        tenant.until_running("SELECT pg_sleep(60)").await;
        drop(query);
        std::thread::spawn(move || drop(held)).join().unwrap();
        until_at_rest(pool.transactional()).await;
        tenant.until_idle().await;
        assert_eq!(
            one(&pool.transactional().try_acquire().await.unwrap()).await,
            1
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_may_outlive_its_runtime() {
    on_each_version(async |tenant| {
        let config = tenant.config(small(2));
        let (pool, quiet, busy) = in_a_runtime_that_ends(async move {
            let pool: Pool = PartitionedPool::connect(config).await.unwrap();
            let quiet = pool.transactional().acquire().await.unwrap();
            let busy = pool.transactional().acquire().await.unwrap();
            let query = busy.simple_query("SELECT pg_sleep(60)");
            assert!(tokio::time::timeout(50 * MS, query).await.is_err());
            (pool, quiet, busy)
        })
        .await;
        drop((quiet, busy));
        let status = pool.transactional().status();
        assert_eq!((status.in_use, status.connections()), (0, 0), "{status}");
        tenant.until_gone().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connect_that_was_given_up_is_forgotten_with_its_runtime() {
    on_each_version(async |tenant| {
        let proxy = Arc::new(tenant.proxy().await);
        let partition = small(2).connect_timeout(300 * MS).acquire_timeout(400 * MS);
        let config = tenant.config(partition).url(tenant.url_by(&proxy));
        let network = Arc::clone(&proxy);
        let (pool, held) = in_a_runtime_that_ends(async move {
            let pool = Pool::connect(config).await.unwrap();
            let held = pool.transactional().acquire().await.unwrap();
            network.set(Fault::Pause);
            while pool.transactional().status().ghosts == 0 {
                refused(pool.transactional().acquire().await);
            }
            (pool, held)
        })
        .await;
        drop(held);
        let status = pool.transactional().status();
        assert_eq!((status.in_use, status.connections()), (0, 0), "{status}");
    })
    .await;
}

async fn in_a_runtime_that_ends<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    let run = || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        runtime.unwrap().block_on(work)
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_again_after_an_answered_query_is_not_refused_by_its_own_connection() {
    on_each_version(async |tenant| {
        let pool = tenant.pool(small(1).max_waiters(0)).await;
        let once = async || {
            let held = pool.transactional().acquire().await?;
            let statement = held.prepare_cached("SELECT 1").await.unwrap();
            held.query_one(&statement, &[]).await.unwrap();
            Ok::<_, AcquireError>(())
        };
        let mut refused = 0;
        for _ in 0..1000 {
            refused += i32::from(once().await.is_err());
        }
        assert_eq!(refused, 0, "of 1,000");
    })
    .await;
}
