//! Servers that go away and networks that fail: what callers are told, and how a pool comes back.

use std::time::{Duration, Instant};

use partitioned_pool::PartitionedPool;
use partitioned_pool::error::{AcquireError, Phase};

use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::patience::{LONG, eventually};
use crate::support::proxy::Fault;
use crate::support::server::on_own_servers;
use crate::support::tenant::{Tenant, small, until_at_rest};

on_each_driver![
    sessions_that_the_server_ended_are_never_handed_out_and_leave_no_ghost,
    a_network_that_drops_or_resets_leaves_no_ghost_and_the_pool_heals,
    a_slow_network_slows_and_breaks_nothing,
    callers_have_their_answer_at_the_deadline_across_a_network_that_swallows_everything,
    ; alone: a_restart_of_the_server_costs_failures_and_no_dead_connection
];

const MS: Duration = Duration::from_millis(1);

/// Far below the time for which a connection lingers whose end was not seen.
const SOON: Duration = Duration::from_secs(10);

async fn works<D: Tested>(pool: &PartitionedPool<D>) {
    let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
    held.say("SELECT 1").await.unwrap();
}

/// Acquires until there is no way to the server: what was idle when it ended may be handed out, and fails.
async fn refused<D: Tested>(pool: &PartitionedPool<D>) -> AcquireError {
    let began = Instant::now();
    loop {
        match pool.transactional().acquire_by(500 * MS).await {
            Ok(mut dead) => drop(dead.say("SELECT 1").await.unwrap_err()),
            Err(error) => return error,
        }
        assert!(began.elapsed() < LONG);
    }
}

/// Opens so many connections, and leaves them idle.
async fn fill<D: Tested>(pool: &PartitionedPool<D>, connections: u32) {
    let mut held = Vec::new();
    for _ in 0..connections {
        held.push(pool.transactional().acquire_by(LONG).await.unwrap());
    }
    drop(held);
    eventually("they are idle", async || {
        pool.transactional().status().idle == connections
    })
    .await;
}

async fn a_restart_of_the_server_costs_failures_and_no_dead_connection<D: Tested>() {
    on_own_servers(&[], async |server, tenant| {
        let pool = tenant.pool::<D>(small(4).acquire_timeout(LONG)).await;
        fill(&pool, 4).await;
        let mut held = pool.transactional().acquire().await.unwrap();
        server.stop().await.unwrap();
        let error = held.say("SELECT 1").await.unwrap_err();
        assert!(error.is_closed() || error.code().is_some(), "{error}");
        drop(held);
        let began = Instant::now();
        let error = refused(&pool).await;
        assert!(
            !error.is_rejection() && error.phase() == Phase::Connect,
            "{error}"
        );
        assert!(error.to_string().contains(D::NO_WAY), "{error}");

        server.start().await.unwrap();
        let ready = Instant::now();
        works(&pool).await;
        println!(
            "works {:.0} ms after the server was ready",
            ready.elapsed().as_secs_f64() * 1e3
        );
        assert!(ready.elapsed() < SOON, "{:?}", ready.elapsed());
        for _ in 0..8 {
            works(&pool).await;
        }
        until_at_rest(pool.transactional()).await;
        assert!(
            began.elapsed() < LONG,
            "no ghost lingers after an ordinary end"
        );
    })
    .await;
}

async fn sessions_that_the_server_ended_are_never_handed_out_and_leave_no_ghost<D: Tested>(
    tenant: &Tenant,
) {
    let pool = tenant.pool::<D>(small(3)).await;
    for _ in 0..5 {
        fill(&pool, 3).await;
        tenant.terminate_all().await;
        tenant.until_gone().await;
        // The word of it may still be on its way to us; whoever is handed a connection then finds out.
        let began = Instant::now();
        let dead = async || {
            let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
            held.say("SELECT 1").await.is_ok()
        };
        eventually("a living one is handed out", dead).await;
        until_at_rest(pool.transactional()).await;
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    }
}

async fn a_network_that_drops_or_resets_leaves_no_ghost_and_the_pool_heals<D: Tested>(
    tenant: &Tenant,
) {
    let proxy = tenant.proxy().await;
    let pool = tenant
        .pool_by::<D>(&proxy, small(3).statement_timeout(LONG))
        .await;
    for fault in [Fault::Drop, Fault::Reset] {
        fill(&pool, 3).await;
        let mut held = pool.transactional().acquire().await.unwrap();
        let query = held.say("SELECT pg_sleep(15)");
        let cut = async {
            tenant.until_running("SELECT pg_sleep(15)").await;
            proxy.set(fault);
        };
        let (failed, ()) = tokio::join!(query, cut);
        assert!(failed.unwrap_err().code().is_none(), "{fault:?}");
        drop(held);
        let began = Instant::now();
        // The end of the others may still be on its way to us.
        let told = async || match pool.transactional().acquire_by(LONG).await {
            Ok(_) => false,
            Err(error) => !error.is_rejection(),
        };
        eventually("callers are told that there is no way", told).await;
        proxy.set(Fault::None);
        works(&pool).await;
        until_at_rest(pool.transactional()).await;
        assert!(began.elapsed() < SOON, "{fault:?}: {:?}", began.elapsed());
    }
}

async fn a_slow_network_slows_and_breaks_nothing<D: Tested>(tenant: &Tenant) {
    let proxy = tenant.proxy().await;
    let pool = tenant.pool_by::<D>(&proxy, small(2)).await;
    proxy.set(Fault::Delay(20 * MS));
    for _ in 0..3 {
        let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
        let query = held.say("SELECT pg_sleep(60)");
        assert!(tokio::time::timeout(100 * MS, query).await.is_err());
        drop(held);
        works(&pool).await;
    }
    until_at_rest(pool.transactional()).await;
    tenant.until_idle().await;
}

async fn callers_have_their_answer_at_the_deadline_across_a_network_that_swallows_everything<
    D: Tested,
>(
    tenant: &Tenant,
) {
    let proxy = tenant.proxy().await;
    let pool = tenant.pool_by::<D>(&proxy, small(4)).await;
    fill(&pool, 4).await;
    proxy.set(Fault::Pause);
    let began = Instant::now();
    let calls = (0..4).map(|_| async {
        let work = pool
            .transactional()
            .run(300 * MS, async |held| held.say("SELECT 1").await);
        let late = work.await.unwrap_err();
        assert!(!late.never_began(), "{late}");
    });
    for call in calls {
        let own = Instant::now();
        call.await;
        println!(
            "answered {:.0} ms after its start",
            own.elapsed().as_secs_f64() * 1e3
        );
    }
    assert!((1200 * MS..1200 * MS + SOON).contains(&began.elapsed()));
    let error = pool.transactional().acquire().await.unwrap_err();
    assert!(error.is_rejection(), "every slot is still counted: {error}");
    proxy.set(Fault::None);
}
