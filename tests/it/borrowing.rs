//! Partitions that share a budget, on a real server: what moves between them, and what never does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use partitioned_pool::config::{
    BudgetConfig, FleetCheck, FleetConfig, HandOver, Kind, PartitionConfig, PoolConfig,
};
use partitioned_pool::error::{Phase, Reason};
use partitioned_pool::observe::{Event, Observer, PartitionObserver};
use partitioned_pool::{BootError, Connection, Partition, PartitionedPool};
use tokio::time::timeout;

use crate::memory::{self, Memory};
use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::patience::{LONG, eventually};
use crate::support::proxy::Fault;
use crate::support::sampler::Sampler;
use crate::support::tenant::{Tenant, small, until_at_rest};

on_each_driver![
    an_idle_connection_of_another_is_taken_over_and_dressed_in_one_round_trip,
    what_a_caller_left_in_its_session_never_reaches_another_partition,
    where_role_or_database_differ_one_is_closed_and_known_gone_before_the_other_is_opened,
    a_caller_that_leaves_while_a_connection_is_dressed_leaves_it_clean,
    the_idle_connections_of_a_partition_that_is_gone_are_closed,
    closing_a_shared_budget_lists_only_what_each_partition_holds,
    three_partitions_at_random_never_have_more_backends_than_their_budget,
    a_neighbour_whose_database_is_full_costs_a_reservation_nothing,
    while_the_server_is_full_what_is_idle_is_lent,
    a_partition_that_outlives_its_pool_has_the_budget_to_itself,
    a_partition_below_its_reservation_waits_for_nobodys_query,
    a_slot_and_its_connection_go_to_a_waiter_of_another_partition_in_either_order,
    a_budget_that_leads_to_two_servers_is_refused,
];

const MS: Duration = Duration::from_millis(1);

/// Longer than a round trip and an opening on a loaded machine, and far shorter than a neighbour's query.
const SOON: Duration = Duration::from_secs(3);

fn reports(max_connections: u32) -> PartitionConfig {
    PartitionConfig::analytical(max_connections)
        .min_idle(0)
        .max_waiters(16)
}

/// Checkout and reporting over one budget, unchecked.
fn shared(
    tenant: &Tenant,
    budget: BudgetConfig,
    checkout: (u32, u32),
    reporting: (u32, u32),
) -> PoolConfig {
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    PoolConfig::new(&tenant.name, tenant.url(), fleet)
        .budget(budget)
        .transactional(small(checkout.1).budget("main").reserved(checkout.0))
        .analytical(reports(reporting.1).budget("main").reserved(reporting.0))
}

async fn pool<D: Tested>(config: PoolConfig) -> PartitionedPool<D> {
    PartitionedPool::connect(config).await.unwrap()
}

async fn pid<D: Tested>(connection: &mut Connection<D>) -> i32 {
    connection
        .ask("SELECT pg_backend_pid()")
        .await
        .parse()
        .unwrap()
}

async fn shows<D: Tested>(connection: &mut Connection<D>, setting: &str) -> String {
    connection.ask(&format!("SHOW {setting}")).await
}

async fn take<D: Tested>(partition: &Partition<D>, slots: usize) -> Vec<Connection<D>> {
    let mut held = Vec::new();
    for _ in 0..slots {
        held.push(partition.acquire().await.unwrap());
    }
    held
}

/// Fills the budget with idle connections of checkout: as many as it may open.
async fn all_idle_in_checkout<D: Tested>(pool: &PartitionedPool<D>, slots: usize) -> Vec<i32> {
    let mut held = take(pool.transactional(), slots).await;
    let mut pids = Vec::new();
    for connection in &mut held {
        pids.push(pid(connection).await);
    }
    drop(held);
    until_at_rest(pool.transactional()).await;
    pids
}

async fn an_idle_connection_of_another_is_taken_over_and_dressed_in_one_round_trip<D: Tested>(
    tenant: &Tenant,
) {
    let proxy = tenant.proxy().await;
    let config =
        shared(tenant, BudgetConfig::new("main", 4), (1, 4), (0, 3)).url(tenant.url_by(&proxy));
    let pool = pool::<D>(config).await;
    let pids = all_idle_in_checkout(&pool, 4).await;
    assert_eq!(pool.status().shared_budgets[0].connections, 4);

    let before = proxy.traffic();
    let mut held = take(pool.analytical(), 2).await;
    let cost = proxy.traffic().since(before);
    assert_eq!((cost.connections, cost.round_trips), (0, 2));

    for connection in &mut held {
        assert!(pids.contains(&pid(connection).await));
        assert_eq!(shows(connection, "statement_timeout").await, "5min");
        assert_eq!(
            shows(connection, "application_name").await,
            format!("{}/analytical", tenant.name)
        );
    }
    let status = pool.analytical().status();
    assert_eq!(
        (
            status.in_use,
            status.used,
            status.reserved,
            status.borrowed()
        ),
        (2, 2, 0, 2)
    );
    assert_eq!(tenant.backends().await, 4 + D::BESIDE);
    drop(held);

    // It keeps its dress, and is the first to go when its new owner asks again.
    until_at_rest(pool.analytical()).await;
    let before = proxy.traffic();
    drop(take(pool.analytical(), 2).await);
    assert_eq!(proxy.traffic().since(before).round_trips, 0);
}

async fn what_a_caller_left_in_its_session_never_reaches_another_partition<D: Tested>(
    tenant: &Tenant,
) {
    let pool = pool::<D>(shared(tenant, BudgetConfig::new("main", 2), (1, 2), (0, 1))).await;
    drop(all_idle_in_checkout(&pool, 2).await);
    let mut held = take(pool.transactional(), 2).await;
    for connection in &mut held {
        D::say_prepared(connection, "SELECT $1::float8", 1.0)
            .await
            .unwrap();
        let own = pid(connection).await;
        let dirt = format!(
            "SET work_mem = '3MB'; CREATE TEMP TABLE t (n int); SELECT pg_advisory_lock({own}); LISTEN news"
        );
        connection.say(&dirt).await.unwrap();
    }
    drop(held);
    until_at_rest(pool.transactional()).await;

    let mut other = pool.analytical().acquire().await.unwrap();
    assert_eq!(shows(&mut other, "work_mem").await, "4MB");
    let left = other.row(
        "SELECT to_regclass('pg_temp.t') IS NULL, (SELECT count(*) FROM pg_locks \
             WHERE locktype = 'advisory' AND pid = pg_backend_pid()), \
             (SELECT count(*) FROM pg_listening_channels())",
    );
    let left: Vec<_> = left.await.into_iter().map(Option::unwrap).collect();
    assert_eq!(left, ["t", "0", "0"]);
    D::say_prepared(&mut other, "SELECT $1::float8", 1.0)
        .await
        .unwrap();
}

async fn where_role_or_database_differ_one_is_closed_and_known_gone_before_the_other_is_opened<
    D: Tested,
>(
    tenant: &Tenant,
) {
    let own = tenant.own_database().await;
    let config = shared(tenant, BudgetConfig::new("main", 3), (1, 3), (0, 2));
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    drop(config);
    let config = PoolConfig::new(&tenant.name, tenant.url(), fleet)
        .budget(BudgetConfig::new("main", 3))
        .transactional(small(3).budget("main").reserved(1))
        .analytical(reports(2).budget("main").reserved(0).url(own));
    let pool = pool::<D>(config).await;
    let sampler = Sampler::start(tenant).await;
    for _ in 0..20 {
        let pids = all_idle_in_checkout(&pool, 3).await;
        let mut other = timeout(SOON, take(pool.analytical(), 2)).await.unwrap();
        for connection in &mut other {
            assert!(!pids.contains(&pid(connection).await));
            let database = connection.ask("SELECT current_database()").await;
            assert_eq!(database, tenant.name);
        }
    }
    sampler.assert_never_above(3 + D::BESIDE);
}

/// P3: every slot that is reserved is there at once, whatever the neighbour does.
async fn a_partition_below_its_reservation_waits_for_nobodys_query<D: Tested>(tenant: &Tenant) {
    for hand_over in [HandOver::OldestFirst, HandOver::DeclaredOrder] {
        let budget = BudgetConfig::new("main", 8).hand_over(hand_over);
        let pool = pool::<D>(shared(tenant, budget, (5, 8), (0, 8))).await;
        let mut borrowers = Vec::new();
        let mut refused = 0;
        for _ in 0..8 {
            let reporting = pool.analytical().clone();
            match reporting.try_acquire().await {
                Ok(mut connection) => borrowers.push(tokio::spawn(async move {
                    drop(connection.say("SELECT pg_sleep(60)").await);
                })),
                Err(error) => {
                    let rejection = error.rejection().unwrap();
                    assert_eq!(rejection.reason, Reason::NoFreeSlot);
                    let budget = rejection.shared_budget.as_ref().unwrap();
                    assert_eq!(
                        (budget.name.as_str(), budget.held, budget.capacity),
                        ("main", 3, 8)
                    );
                    refused += 1;
                }
            }
        }
        assert_eq!(
            (borrowers.len(), refused),
            (3, 5),
            "what is reserved is never lent"
        );
        tenant.until_running("SELECT pg_sleep").await;

        let began = Instant::now();
        let held = take(pool.transactional(), 5).await;
        assert!(began.elapsed() < SOON);
        for mut connection in held {
            assert_eq!(connection.ask("SELECT 1").await, "1");
        }
        assert_eq!(
            tenant
                .count("query LIKE 'SELECT pg_sleep%' AND state = 'active'")
                .await,
            3
        );
        borrowers.iter().for_each(tokio::task::JoinHandle::abort);
        drop(pool);
        tenant.until_gone().await;
    }
}

/// Counts what each partition had to dress and to open.
#[derive(Clone, Default)]
struct Wardrobe {
    dressed: Arc<AtomicU64>,
    opened: Arc<AtomicU64>,
}

impl Observer for Wardrobe {
    fn partition(&self, _: &str) -> Box<dyn PartitionObserver> {
        Box::new(self.clone())
    }
}

impl PartitionObserver for Wardrobe {
    fn on(&self, event: &Event<'_>) {
        match event {
            Event::Dressed { .. } => self.dressed.fetch_add(1, Ordering::Relaxed),
            Event::Opened { .. } => self.opened.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}

/// Over a driver whose connections are always quiet: on a real server it depends on the load how often one is
/// still on its way back when its partition asks again, and for longer than a caller is patient.
/// (`examples/lending` counts the changes there.)
#[tokio::test]
async fn in_a_steady_mix_no_connection_changes_its_dress_at_every_checkout() {
    const ROUNDS: u64 = 500;
    let wardrobe = Wardrobe::default();
    let config = memory::config(memory::STEADY)
        .budget(BudgetConfig::new("main", 6))
        .transactional(small(6).budget("main").reserved(2))
        .analytical(reports(6).budget("main").reserved(1));
    let builder = PartitionedPool::<Memory>::builder(config);
    let pool = builder.observer(wardrobe.clone()).connect().await.unwrap();
    let mut workers = Vec::new();
    // Three callers each: together they have all six.
    for worker in 0..6 {
        let pool = pool.clone();
        workers.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(worker);
            let partition = if worker % 2 == 0 {
                pool.transactional()
            } else {
                pool.analytical()
            };
            for _ in 0..ROUNDS {
                let connection = partition.acquire().await.unwrap();
                for _ in 0..random.u32(1..4) {
                    tokio::task::yield_now().await;
                }
                drop(connection);
                for _ in 0..random.u32(1..4) {
                    tokio::task::yield_now().await;
                }
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    let (dressed, opened) = (
        wardrobe.dressed.load(Ordering::Relaxed),
        wardrobe.opened.load(Ordering::Relaxed),
    );
    // What each side took before the other had its share, it has to give back once.
    assert!(
        dressed <= 6 && opened == 6,
        "{dressed} dressed and {opened} opened in {} checkouts",
        6 * ROUNDS
    );
}

/// Who of two that wait in different partitions has the slot, by the order of handing over.
async fn a_slot_and_its_connection_go_to_a_waiter_of_another_partition_in_either_order<
    D: Tested,
>(
    tenant: &Tenant,
) {
    for (hand_over, first) in [
        (HandOver::OldestFirst, "analytical"),
        (HandOver::DeclaredOrder, "transactional"),
    ] {
        let budget = BudgetConfig::new("main", 1).hand_over(hand_over);
        let pool = pool::<D>(shared(tenant, budget, (0, 1), (0, 1))).await;
        let mut held = pool.transactional().acquire().await.unwrap();
        let pid_before = pid(&mut held).await;
        let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
        for name in ["analytical", "transactional"] {
            let (pool, served) = (pool.clone(), served.clone());
            let partition = pool.partition(name).unwrap().clone();
            tokio::spawn(async move {
                let mut connection = partition.acquire().await.unwrap();
                served.send((name, pid(&mut connection).await)).unwrap();
            });
            let partition = pool.partition(name).unwrap();
            eventually("it waits", async || partition.status().waiting == 1).await;
        }
        drop(held);
        let one = timeout(SOON, order.recv()).await.unwrap().unwrap();
        let two = timeout(SOON, order.recv()).await.unwrap().unwrap();
        assert_eq!(one, (first, pid_before));
        assert_eq!(two.1, pid_before);
        assert_eq!(tenant.backends().await, 1 + D::BESIDE);
        drop(pool);
        tenant.until_gone().await;
    }
}

async fn a_caller_that_leaves_while_a_connection_is_dressed_leaves_it_clean<D: Tested>(
    tenant: &Tenant,
) {
    let proxy = tenant.proxy().await;
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    let config = PoolConfig::new(&tenant.name, tenant.url_by(&proxy), fleet)
        .budget(BudgetConfig::new("main", 1))
        .transactional(small(1).budget("main").reserved(0))
        .analytical(
            reports(1)
                .budget("main")
                .reserved(0)
                .acquire_timeout(300 * MS),
        );
    let pool = pool::<D>(config).await;
    drop(all_idle_in_checkout(&pool, 1).await);
    proxy.set(Fault::Pause);
    let error = pool.analytical().acquire().await.unwrap_err();
    assert!(error.is_timeout() && !error.is_rejection(), "{error}");
    assert_eq!(error.phase(), Phase::Connect);
    proxy.set(Fault::None);
    for _ in 0..3 {
        for (partition, limit) in [(pool.transactional(), "5s"), (pool.analytical(), "5min")] {
            let connection = timeout(LONG, async {
                loop {
                    match partition.acquire().await {
                        Ok(connection) => break connection,
                        Err(_) => tokio::time::sleep(20 * MS).await,
                    }
                }
            });
            let mut connection = connection.await.unwrap();
            assert_eq!(shows(&mut connection, "statement_timeout").await, limit);
        }
    }
    eventually("one backend is left", async || {
        tenant.backends().await == 1 + D::BESIDE
    })
    .await;
    until_at_rest(pool.transactional()).await;
    until_at_rest(pool.analytical()).await;
    let status = &pool.status().shared_budgets[0];
    assert_eq!((status.held, status.connections), (0, 1));
}

async fn a_budget_that_leads_to_two_servers_is_refused<D: Tested>(tenant: &Tenant) {
    let other = tenant.proxy().await;
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    let config = PoolConfig::new(&tenant.name, tenant.url(), fleet)
        .budget(BudgetConfig::new("main", 2))
        .transactional(small(2).budget("main").reserved(1))
        .analytical(
            reports(1)
                .budget("main")
                .reserved(0)
                .url(tenant.url_by(&other)),
        );
    let error = PartitionedPool::<D>::connect(config).await.unwrap_err();
    assert!(matches!(error, BootError::Config(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("partition.analytical.url: leads to another server"),
        "{text}"
    );
    assert!(!text.contains(&format!("{0}:{0}", tenant.name)), "{text}");
}

async fn a_partition_that_outlives_its_pool_has_the_budget_to_itself<D: Tested>(tenant: &Tenant) {
    let proxy = tenant.proxy().await;
    let config = shared(tenant, BudgetConfig::new("main", 4), (1, 4), (0, 3));
    let pool = pool::<D>(config.url(tenant.url_by(&proxy))).await;
    drop(take(pool.analytical(), 3).await);
    // The one whose connecting fails, and who is to try again, is about to go.
    tenant.terminate_all().await;
    proxy.set(Fault::Drop);
    // One that was idle may be handed out dead, and is found so when it is used.
    let connects = async || match timeout(300 * MS, pool.analytical().acquire()).await {
        Ok(Ok(mut held)) => {
            let _ = held.say("SELECT 1").await;
            true
        }
        _ => false,
    };
    eventually("connecting fails", async || !connects().await).await;
    let checkout = pool.transactional().clone();
    drop(pool);
    proxy.set(Fault::None);
    let held = timeout(LONG, take(&checkout, 4)).await.unwrap();
    assert_eq!(tenant.transactional_backends().await, 4);
    drop(held);
    drop(checkout);
    tenant.until_gone().await;
}

async fn the_idle_connections_of_a_partition_that_is_gone_are_closed<D: Tested>(tenant: &Tenant) {
    let pool = pool::<D>(shared(tenant, BudgetConfig::new("main", 4), (1, 4), (0, 3))).await;
    drop(take(pool.analytical(), 3).await);
    until_at_rest(pool.analytical()).await;
    let checkout = pool.transactional().clone();
    drop(pool);
    let gone =
        async || tenant.backends().await == tenant.transactional_backends().await + D::BESIDE;
    eventually("its backends are gone", gone).await;
    until_at_rest(&checkout).await;
}

async fn closing_a_shared_budget_lists_only_what_each_partition_holds<D: Tested>(tenant: &Tenant) {
    let pool = pool::<D>(shared(tenant, BudgetConfig::new("main", 4), (1, 4), (0, 3))).await;
    let held = pool.analytical().acquire().await.unwrap();
    let report = pool.close(Duration::from_millis(500)).await;
    assert_eq!(report.taken_away.len(), 1);
    assert_eq!(report.taken_away[0].partition, "analytical");
    assert!(
        report
            .still_held
            .iter()
            .all(|held| held.partition == "analytical"),
        "{report}"
    );
    drop(held);
    tenant.until_gone().await;
}

async fn three_partitions_at_random_never_have_more_backends_than_their_budget<D: Tested>(
    tenant: &Tenant,
) {
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    let batch = PartitionConfig::named("batch", Kind::Analytical, 4).max_waiters(8);
    let config = PoolConfig::new(&tenant.name, tenant.url(), fleet)
        .budget(BudgetConfig::new("main", 6))
        .transactional(small(6).budget("main").reserved(2))
        .analytical(reports(4).budget("main").reserved(1).max_lifetime(400 * MS))
        .partition(
            batch
                .min_idle(0)
                .budget("main")
                .reserved(0)
                .idle_timeout(300 * MS),
        );
    let pool = pool::<D>(config).await;
    let sampler = Sampler::start(tenant).await;
    let mut callers = Vec::new();
    for caller in 0..18_u64 {
        let pool = pool.clone();
        callers.push(tokio::spawn(async move {
            let mut random = fastrand::Rng::with_seed(caller);
            for _ in 0..60 {
                let partitions: Vec<_> = pool.partitions().collect();
                let partition = partitions[random.usize(..3)];
                let work = random.u32(..4);
                let patience = Duration::from_millis(random.u64(1..60));
                let call = async {
                    let Ok(mut connection) = partition.acquire().await else {
                        return;
                    };
                    let sql = [
                        "SELECT 1",
                        "SELECT pg_sleep(0.01)",
                        "BEGIN; SELECT 1",
                        "SELECT pg_sleep(5)",
                    ];
                    drop(connection.say(sql[work as usize]).await);
                };
                drop(timeout(patience, call).await);
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
    for partition in pool.partitions() {
        until_at_rest(partition).await;
    }
    sampler.assert_never_above(6 + D::BESIDE);
    let status = &pool.status().shared_budgets[0];
    assert_eq!(status.held, 0);
    assert!(pool.close(LONG).await.is_drained());
    tenant.until_gone().await;
}

/// What keeps one partition from connecting is its own: a limit of its role or database, its own timeout.
async fn a_neighbour_whose_database_is_full_costs_a_reservation_nothing<D: Tested>(
    tenant: &Tenant,
) {
    let own = tenant.own_database().await;
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    let patient = reports(3).acquire_timeout(4 * SOON).url(own);
    let config = PoolConfig::new(&tenant.name, tenant.url(), fleet)
        .budget(BudgetConfig::new("main", 6))
        .transactional(
            small(6)
                .budget("main")
                .reserved(3)
                .acquire_timeout(8 * SOON),
        )
        .analytical(patient.budget("main").reserved(0));
    let pool = pool::<D>(config).await;
    let limit = |n: i32| format!("ALTER DATABASE {} CONNECTION LIMIT {n}", tenant.name);
    tenant.sql(&limit(0)).await;
    let _one = pool.analytical().acquire().await.unwrap();
    let reporting = pool.analytical().clone();
    let stuck = tokio::spawn(async move { reporting.acquire().await.map(drop) });
    tokio::time::sleep(300 * MS).await;

    let began = Instant::now();
    drop(take(pool.transactional(), 3).await);
    assert!(began.elapsed() < SOON && !stuck.is_finished());
    tenant.sql(&limit(-1)).await;
    timeout(LONG, stuck).await.unwrap().unwrap().unwrap();
}

async fn while_the_server_is_full_what_is_idle_is_lent<D: Tested>(tenant: &Tenant) {
    let pool = pool::<D>(shared(tenant, BudgetConfig::new("main", 6), (3, 6), (0, 3))).await;
    drop(take(pool.analytical(), 3).await);
    until_at_rest(pool.analytical()).await;
    tenant
        .sql(&format!("ALTER ROLE {} CONNECTION LIMIT 4", tenant.name))
        .await;
    let mut held = timeout(SOON, take(pool.transactional(), 3)).await.unwrap();
    for connection in &mut held {
        assert_eq!(shows(connection, "statement_timeout").await, "5s");
    }
}
