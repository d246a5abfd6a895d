//! The end of a pool: closed in order, or just dropped.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::support::patience::{LONG, eventually};
use crate::support::proxy::Fault;
use crate::support::server::on_each_version;
use crate::support::tenant::{Pool, small};

const MS: Duration = Duration::from_millis(1);

#[tokio::test(flavor = "multi_thread")]
async fn closing_waits_for_work_in_flight_and_leaves_no_backend() {
    on_each_version(async |tenant| {
        let pool = tenant.pool(small(2)).await;
        let checkout = pool.transactional().clone();
        let held = checkout.acquire().await.unwrap();
        let waiting = {
            let checkout = checkout.clone();
            let _full = checkout.acquire().await.unwrap();
            let waiting = tokio::spawn({
                let checkout = checkout.clone();
                async move { checkout.acquire_by(LONG).await.map(drop) }
            });
            eventually("one waits", async || checkout.status().waiting == 1).await;
            let work = tokio::spawn(async move {
                held.simple_query("SELECT pg_sleep(0.3)").await.unwrap();
            });
            let report = {
                let close = pool.close(LONG);
                let finish = async {
                    tokio::time::sleep(100 * MS).await;
                    drop(_full);
                };
                tokio::join!(close, finish).0
            };
            assert!(report.is_drained(), "{report}");
            assert_eq!(
                report.to_string(),
                "closed: every connection was given back"
            );
            work.await.unwrap();
            waiting
        };
        assert!(waiting.await.unwrap().unwrap_err().is_closed());
        let error = checkout.acquire().await.unwrap_err();
        assert!(error.is_closed() && error.is_rejection() && error.retry_after().is_none());
        assert!(checkout.try_acquire().await.unwrap_err().is_closed());
        assert_eq!(tenant.backends().await, 0, "drained means known gone");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_takes_away_what_is_held_to_the_end_and_says_so() {
    on_each_version(async |tenant| {
        let pool = tenant.pool(small(2)).await;
        let held = pool.transactional().acquire().await.unwrap();
        let query = held.simple_query("SELECT pg_sleep(60)");
        let (report, failed) = tokio::join!(pool.close(2_000 * MS), query);
        assert!(failed.unwrap_err().is_closed());
        assert_eq!(report.taken_away.len(), 1, "{report}");
        assert_eq!(report.taken_away[0].partition, "transactional");
        assert!(report.is_empty() && !report.is_drained(), "{report}");
        let text = report.to_string();
        assert!(
            text.contains("transactional: taken away, held for"),
            "{text}"
        );
        assert!(text.contains("closing.rs"), "{text}");
        assert_eq!(tenant.backends().await, 0, "empty means known gone");

        // The late owner has a typed error, and gives back nothing.
        assert!(held.taken_after().is_some());
        assert!(held.simple_query("SELECT 1").await.unwrap_err().is_closed());
        drop(held);
        let after = pool.transactional().status();
        assert_eq!((after.in_use, after.connections()), (0, 0), "{after}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_across_a_dead_network_ends_at_its_deadline_and_lists_the_rest() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let pool = tenant.pool_by(&proxy, small(2)).await;
        let held = pool.transactional().acquire().await.unwrap();
        proxy.set(Fault::Pause);
        let began = Instant::now();
        let report = pool.close(1_000 * MS).await;
        let took = began.elapsed();
        assert!((1_000 * MS..3_000 * MS).contains(&took), "{took:?}");
        assert_eq!(report.taken_away.len(), 1, "{report}");
        assert!(!report.is_empty() && !report.is_drained());
        let rest = report.still_held.iter();
        let rest: Vec<_> = rest
            .map(|p| (p.partition.as_str(), p.in_use, p.connections))
            .collect();
        assert_eq!(rest, [("transactional", 1, 1), ("analytical", 0, 1)]);
        assert!(report.still_held[0].oldest_hold.is_some());
        let text = report.to_string();
        assert!(
            text.contains("transactional: still held, 1 in use, 1 connections"),
            "{text}"
        );

        proxy.set(Fault::None);
        tenant.until_gone().await;
        assert!(held.taken_after().is_some());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_a_query_whose_caller_has_left() {
    on_each_version(async |tenant| {
        let pool = tenant.pool(small(1)).await;
        let held = pool.transactional().acquire().await.unwrap();
        let query = held.simple_query("SELECT pg_sleep(60)");
        assert!(tokio::time::timeout(50 * MS, query).await.is_err());
        drop(held);
        assert!(pool.close(LONG).await.is_drained());
        assert_eq!(tenant.backends().await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_is_dropped_leaves_no_backend_and_no_task() {
    on_each_version(async |tenant| {
        let config = tenant.config(small(3).min_idle(1));
        let run = move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build();
            runtime.unwrap().block_on(async move {
                let pool = Pool::connect(config).await.unwrap();
                let busy = pool.transactional().acquire().await.unwrap();
                let query = busy.simple_query("SELECT pg_sleep(60)");
                assert!(tokio::time::timeout(50 * MS, query).await.is_err());
                let outlives = pool.transactional().acquire().await.unwrap();
                drop(busy);
                drop(pool);
                outlives.simple_query("SELECT 1").await.unwrap();
                drop(outlives);
                let tasks = async || Handle::current().metrics().num_alive_tasks() == 0;
                eventually("no task is left", tasks).await;
            });
        };
        tokio::task::spawn_blocking(run).await.unwrap();
        tenant.until_gone().await;
    })
    .await;
}
