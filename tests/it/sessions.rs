//! Settings of a partition's sessions, and what a service does to each connection before anyone gets it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use partitioned_pool::config::{
    BudgetConfig, FleetCheck, FleetConfig, Limit, PartitionConfig, PoolConfig,
};
use partitioned_pool::error::{AcquireError, Phase};
use partitioned_pool::session::Found;
use partitioned_pool::{BootError, Builder, Connection, PartitionedPool};

use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::patience::{LONG, eventually};
use crate::support::tenant::{Tenant, small, until_at_rest};

on_each_driver![
    settings_are_in_force_in_each_session_whatever_their_units_and_their_quotes,
    settings_that_the_server_refuses_stop_the_boot_each_by_its_name,
    a_setting_that_something_in_between_undoes_stops_the_boot,
    settings_are_put_right_by_a_reset_and_by_a_take_over,
    what_is_done_on_connect_is_done_before_anyone_gets_the_connection,
    it_is_done_again_after_a_reset_and_after_a_take_over,
    if_it_fails_the_caller_is_told_its_phase_and_the_error_and_the_connection_is_closed,
    if_it_hangs_it_ends_with_connect_timeout_and_its_query_is_cancelled,
    a_caller_whose_time_is_over_meanwhile_is_told_the_phase,
    if_it_panics_the_place_is_free_again,
    what_it_leaves_open_is_rolled_back,
    if_it_undoes_a_limit_the_boot_says_so,
];

const MS: Duration = Duration::from_millis(1);

/// Longer than anything takes on a loaded machine, and shorter than a query that should have been cancelled.
const SOON: Duration = Duration::from_secs(15);

fn strange() -> PartitionConfig {
    small(2)
        .setting("work_mem", "65536kB")
        .setting("Search_Path", r#""it's a \ back", public"#)
        .setting("default_transaction_read_only", "1")
        .setting("max_parallel_workers_per_gather", "0")
        .setting("random_page_cost", "1.10")
        .setting("shop.tenant", r"o'neill \ sons")
}

async fn settings_are_in_force_in_each_session_whatever_their_units_and_their_quotes<D: Tested>(
    tenant: &Tenant,
) {
    let pool = tenant.pool::<D>(strange()).await;
    let mut first = pool.transactional().acquire().await.unwrap();
    let mut second = pool.transactional().acquire_by(LONG).await.unwrap();
    for held in [&mut first, &mut second] {
        for (name, value) in [
            ("work_mem", "64MB"),
            ("search_path", r#""it's a \ back", public"#),
            ("default_transaction_read_only", "on"),
            ("max_parallel_workers_per_gather", "0"),
            ("random_page_cost", "1.1"),
            ("shop.tenant", r"o'neill \ sons"),
            ("statement_timeout", "5s"),
        ] {
            assert_eq!(held.ask(&format!("SHOW {name}")).await, value, "{name}");
        }
    }
    let refused = second.say("CREATE TABLE t (i int)").await.unwrap_err();
    assert_eq!(refused.code(), Some("25006"), "it is read only");
}

async fn refused<D: Tested>(config: PoolConfig) -> BootError {
    let refused = PartitionedPool::<D>::connect(config).await;
    let error = refused.expect_err("it must not boot");
    println!("{error}\n");
    error
}

async fn settings_that_the_server_refuses_stop_the_boot_each_by_its_name<D: Tested>(
    tenant: &Tenant,
) {
    let wrong = small(1)
        .setting("work_mem", "lots")
        .setting("work_memory", "64MB")
        .setting("log_statement", "all")
        .setting("shared_buffers", "1GB")
        .setting("enable_seqscan", "off");
    let BootError::SettingsNotInForce {
        partition,
        settings,
        ..
    } = refused::<D>(tenant.config(wrong)).await
    else {
        panic!("another error");
    };
    assert_eq!(partition, "transactional");
    let told: Vec<_> = settings
        .iter()
        .map(|setting| {
            let Found::Refused { sqlstate, said } = &setting.found else {
                panic!("{setting:?}");
            };
            assert!(said.contains(&setting.name), "{said}");
            (
                setting.name.as_str(),
                setting.wanted.as_str(),
                sqlstate.as_str(),
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("log_statement", "all", "42501"),
            ("shared_buffers", "1GB", "55P02"),
            ("work_mem", "lots", "22023"),
            ("work_memory", "64MB", "42704"),
        ]
    );
    let text = refused::<D>(tenant.config(small(1).setting("work_mem", "lots"))).await;
    let text = text.to_string();
    for word in [
        "partition transactional",
        "work_mem: wanted 'lots', refused: ",
        "to do: state a value that the server takes",
    ] {
        assert!(text.contains(word), "{text}");
    }
    tenant.until_gone().await;
}

/// A hook that undoes settings is what is in between.
async fn a_setting_that_something_in_between_undoes_stops_the_boot<D: Tested>(tenant: &Tenant) {
    let config = tenant.config(strange().setting("lc_monetary", "C"));
    let undone = saying::<D>(config, "SET work_mem = '8MB'; RESET search_path");
    let Err(BootError::SettingsNotInForce { settings, .. }) = undone.connect().await else {
        panic!("another error, or none");
    };
    let told: Vec<_> = settings.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            r#"search_path: wanted '"it's a \ back", public', the server says '"$user", public'"#,
            "work_mem: wanted '64MB', the server says '8MB'",
        ]
    );
    assert!(settings[0].advice().contains("pooler"));
}

/// Checkout and reporting, one connection for both.
fn one_for_both(
    tenant: &Tenant,
    checkout: PartitionConfig,
    reports: PartitionConfig,
) -> PoolConfig {
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    PoolConfig::new(&tenant.name, tenant.url(), fleet)
        .budget(BudgetConfig::new("main", 1))
        .transactional(checkout.budget("main").reserved(0))
        .analytical(reports.min_idle(0).budget("main").reserved(0))
}

async fn settings_are_put_right_by_a_reset_and_by_a_take_over<D: Tested>(tenant: &Tenant) {
    let checkout = small(1).setting("work_mem", "2MB").reset_session(true);
    let reports = PartitionConfig::analytical(1)
        .setting("work_mem", "9MB")
        .setting("default_transaction_read_only", "on");
    let pool = PartitionedPool::<D>::connect(one_for_both(tenant, checkout, reports)).await;
    let pool = pool.unwrap();
    let mut pids = Vec::new();
    for _ in 0..2 {
        let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
        assert_eq!(held.ask("SHOW work_mem").await, "2MB");
        assert_eq!(held.ask("SHOW default_transaction_read_only").await, "off");
        held.say("SET work_mem = '3MB'; SET default_transaction_read_only = on")
            .await
            .unwrap();
        pids.push(held.ask("SELECT pg_backend_pid()").await);
        drop(held);
        until_at_rest(pool.transactional()).await;

        let mut held = pool.analytical().acquire_by(LONG).await.unwrap();
        assert_eq!(held.ask("SHOW work_mem").await, "9MB");
        assert_eq!(held.ask("SHOW default_transaction_read_only").await, "on");
        pids.push(held.ask("SELECT pg_backend_pid()").await);
    }
    pids.dedup();
    assert_eq!(pids.len(), 1, "one connection went to and fro: {pids:?}");
}

type Work<'a> =
    Pin<Box<dyn Future<Output = Result<(), Box<dyn std::error::Error + Send + Sync>>> + Send + 'a>>;

fn hooked<D: Tested>(
    config: PoolConfig,
    hook: impl for<'a> Fn(&'a mut D::Client) -> Work<'a> + Send + Sync + 'static,
) -> Builder<D> {
    PartitionedPool::<D>::builder(config).on_connect(move |client, _| hook(client))
}

async fn mark<D: Tested>(held: &mut Connection<D>) -> String {
    held.ask("SELECT current_setting('shop.mark', true)").await
}

fn marking<D: Tested>(config: PoolConfig, times: &Arc<AtomicU32>) -> Builder<D> {
    let times = Arc::clone(times);
    PartitionedPool::<D>::builder(config).on_connect(move |client, partition| {
        times.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let sql = format!("SET shop.mark = '{}'", partition.name);
            D::say_to(client, &sql).await?;
            Ok(())
        })
    })
}

async fn what_is_done_on_connect_is_done_before_anyone_gets_the_connection<D: Tested>(
    tenant: &Tenant,
) {
    let times = Arc::default();
    let config = tenant.config(small(3).acquire_timeout(LONG));
    let pool = marking::<D>(config, &times).connect().await;
    let pool = pool.unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut one = pool.transactional().acquire_by(LONG).await.unwrap();
        assert_eq!(mark(&mut one).await, "transactional");
        held.push(one);
    }
    drop(held);
    let mut one = pool.analytical().acquire_by(LONG).await.unwrap();
    assert_eq!(mark(&mut one).await, "analytical");
    drop(pool.transactional().acquire_by(LONG).await.unwrap());
    assert_eq!(times.load(Ordering::SeqCst), 4, "once for each connection");
}

async fn it_is_done_again_after_a_reset_and_after_a_take_over<D: Tested>(tenant: &Tenant) {
    let times = Arc::default();
    let checkout = small(1).reset_session(true);
    let config = one_for_both(tenant, checkout, PartitionConfig::analytical(1));
    let pool = marking::<D>(config, &times).connect().await.unwrap();
    for _ in 0..2 {
        let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
        assert_eq!(mark(&mut held).await, "transactional");
        held.say("SET shop.mark = 'dirty'").await.unwrap();
    }
    until_at_rest(pool.transactional()).await;
    let before = times.load(Ordering::SeqCst);
    let mut held = pool.analytical().acquire_by(LONG).await.unwrap();
    assert_eq!(mark(&mut held).await, "analytical");
    assert_eq!(times.load(Ordering::SeqCst), before + 1);
}

/// A pool whose hook says this once `from_now` is set.
async fn later<D: Tested>(
    tenant: &Tenant,
    partition: PartitionConfig,
    sql: &'static str,
) -> (PartitionedPool<D>, Arc<AtomicBool>) {
    let from_now = Arc::new(AtomicBool::new(false));
    let is_on = Arc::clone(&from_now);
    let builder = hooked::<D>(tenant.config(partition), move |client| {
        let sql = if is_on.load(Ordering::SeqCst) {
            sql
        } else {
            "SELECT 1"
        };
        Box::pin(async move {
            D::say_to(client, sql).await?;
            Ok(())
        })
    });
    (builder.connect().await.unwrap(), from_now)
}

async fn failed<D: Tested>(pool: &PartitionedPool<D>) -> AcquireError {
    let outcome = pool.transactional().acquire().await;
    let error = outcome.expect_err("on_connect must not succeed");
    println!("{error}");
    assert!(!error.is_rejection());
    error
}

async fn if_it_fails_the_caller_is_told_its_phase_and_the_error_and_the_connection_is_closed<
    D: Tested,
>(
    tenant: &Tenant,
) {
    let partition = small(2).acquire_timeout(LONG).connect_timeout(LONG);
    let (pool, from_now) = later::<D>(tenant, partition, "SELECT 1/0").await;
    let first = pool.transactional().acquire().await.unwrap();
    from_now.store(true, Ordering::SeqCst);
    let error = failed(&pool).await;
    assert!(matches!(error, AcquireError::Failed { .. }), "{error}");
    assert_eq!(
        (error.phase(), error.sqlstate()),
        (Phase::OnConnect, Some("22012"))
    );
    assert!(
        error
            .to_string()
            .starts_with("transactional: on_connect failed: ")
    );
    drop(first);
    eventually("only the good one is left", async || {
        tenant.transactional_backends().await == 1
    })
    .await;
    let first = pool.transactional().acquire().await.unwrap();
    from_now.store(false, Ordering::SeqCst);
    drop(pool.transactional().acquire().await.unwrap());
    drop(first);

    let booting = hooked::<D>(tenant.config(small(1)), |_| {
        Box::pin(async { Err("no".into()) })
    });
    let error = booting.connect().await.expect_err("it must not boot");
    let text = error.to_string();
    assert!(matches!(error, BootError::Unavailable { .. }), "{text}");
    assert!(
        text.contains("on_connect failed: no") && text.contains("to do: mend"),
        "{text}"
    );
}

async fn if_it_hangs_it_ends_with_connect_timeout_and_its_query_is_cancelled<D: Tested>(
    tenant: &Tenant,
) {
    let partition = small(2)
        .acquire_timeout(1500 * MS)
        .connect_timeout(1000 * MS)
        .statement_timeout(Limit::Off);
    let (pool, from_now) = later::<D>(tenant, partition, "SELECT pg_sleep(60)").await;
    let _first = pool.transactional().acquire().await.unwrap();
    from_now.store(true, Ordering::SeqCst);
    let began = Instant::now();
    let error = failed(&pool).await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(error.phase(), Phase::OnConnect);
    let failure = error.failure().expect("the first try has failed");
    assert_eq!(failure.phase(), Some(Phase::OnConnect));
    assert!(
        failure
            .to_string()
            .contains("not done within 1.0 s (connect_timeout)"),
        "{failure}"
    );
    from_now.store(false, Ordering::SeqCst);
    eventually("nothing sleeps any more", async || {
        tenant.count("query LIKE 'SELECT pg_sleep%'").await == 0
    })
    .await;
    assert!(
        tenant.transactional_backends().await <= 2,
        "they all counted"
    );
}

async fn a_caller_whose_time_is_over_meanwhile_is_told_the_phase<D: Tested>(tenant: &Tenant) {
    let partition = small(2).acquire_timeout(1000 * MS).connect_timeout(LONG);
    let (pool, from_now) = later::<D>(tenant, partition, "SELECT pg_sleep(4)").await;
    let _first = pool.transactional().acquire().await.unwrap();
    from_now.store(true, Ordering::SeqCst);
    let error = failed(&pool).await;
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    assert_eq!(
        (error.phase(), error.failure().is_none()),
        (Phase::OnConnect, true)
    );
    eventually("it comes all the same, for the next", async || {
        pool.transactional().status().idle == 1
    })
    .await;
}

async fn if_it_panics_the_place_is_free_again<D: Tested>(tenant: &Tenant) {
    let panics = Arc::new(AtomicBool::new(false));
    let is_on = Arc::clone(&panics);
    let builder = hooked::<D>(tenant.config(small(2).acquire_timeout(LONG)), move |_| {
        let panics = is_on.load(Ordering::SeqCst);
        Box::pin(async move {
            assert!(!panics, "a bug of the service");
            Ok(())
        })
    });
    let pool = builder.connect().await.unwrap();
    let first = pool.transactional().acquire().await.unwrap();
    panics.store(true, Ordering::SeqCst);
    let error = failed(&pool).await;
    assert!(error.to_string().contains("aborted"), "{error}");
    panics.store(false, Ordering::SeqCst);
    eventually("its backend is gone", async || {
        tenant.transactional_backends().await == 1
    })
    .await;
    drop(pool.transactional().acquire().await.unwrap());
    drop(first);
    until_at_rest(pool.transactional()).await;
}

/// A pool whose hook always says this.
fn saying<D: Tested>(config: PoolConfig, sql: &'static str) -> Builder<D> {
    hooked(config, move |client| {
        Box::pin(async move {
            D::say_to(client, sql).await?;
            Ok(())
        })
    })
}

async fn what_it_leaves_open_is_rolled_back<D: Tested>(tenant: &Tenant) {
    let begins = "BEGIN; SELECT txid_current()";
    let pool = saying::<D>(tenant.config(small(1)), begins).connect().await;
    let pool = pool.unwrap();
    let mut held = pool.transactional().acquire().await.unwrap();
    held.say("SELECT 1").await.unwrap();
    assert_eq!(tenant.count("state LIKE 'idle in transaction%'").await, 0);
}

async fn if_it_undoes_a_limit_the_boot_says_so<D: Tested>(tenant: &Tenant) {
    let undoes = "SET statement_timeout = 0";
    let error = saying::<D>(tenant.config(small(1)), undoes).connect().await;
    let error = error.expect_err("it must not boot");
    assert!(
        matches!(error, BootError::LimitsNotInForce { .. }),
        "{error}"
    );
}
