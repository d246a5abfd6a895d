//! Behind a real PgBouncer, in session and in transaction mode: what is found when the pool starts, what is refused
//! with what to do, and what holds where it starts.

use std::sync::Arc;
use std::time::Duration;

use partitioned_pool::config::{
    BudgetConfig, FleetCheck, FleetConfig, Limit, PartitionConfig, PoolConfig, PoolerConfig,
    PoolerMode,
};
use partitioned_pool::fleet::Scope;
use partitioned_pool::{BootError, PartitionedPool, TokioPostgres};
use tokio::task::JoinSet;
use tokio_postgres::NoTls;
use tokio_postgres::types::Type;

use crate::leavings::{Found, Work, Worker};
use crate::support::driver::Pool;
use crate::support::driver::{Speaks as _, Tested};
use crate::support::patience::LONG;
use crate::support::pgbouncer::PgBouncer;
use crate::support::server::on_each_version;
use crate::support::tenant::{Tenant, small, until_at_rest};

const MS: Duration = Duration::from_millis(1);

const TRANSACTION: &str = "transaction";
const SESSION: &str = "session";

/// Enough for every test but those of the limits.
const CLIENTS: u32 = 100;

fn unchecked() -> FleetConfig {
    FleetConfig::new(1, 0).mode(FleetCheck::Off)
}

/// The same limits, so that one role can start its sessions with those of every partition.
fn alike(partition: PartitionConfig) -> PartitionConfig {
    partition
        .statement_timeout(700 * MS)
        .lock_timeout(600 * MS)
        .idle_in_transaction_session_timeout(5_000 * MS)
        .transaction_timeout(Limit::Off)
}

/// Four connections for transactions and one for reports, with the same limits.
fn config(tenant: &Tenant, url: String, fleet: FleetConfig) -> PoolConfig {
    PoolConfig::new(&tenant.name, url, fleet)
        .transactional(alike(small(4)))
        .analytical(alike(PartitionConfig::analytical(1)))
}

/// The statements that start every session of the tenant with the limits.
async fn start_sessions_with_the_limits(tenant: &Tenant) {
    let idle = "idle_in_transaction_session_timeout = '5s'";
    let settings = [
        "statement_timeout = '700ms'",
        "lock_timeout = '600ms'",
        idle,
    ];
    start_sessions_with(tenant, &settings).await;
}

async fn start_sessions_with(tenant: &Tenant, settings: &[&str]) {
    for setting in settings {
        let sql = format!("ALTER ROLE {} SET {setting}", tenant.name);
        tenant.sql(&sql).await;
    }
}

fn says(text: &str, words: &[&str]) {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for word in words {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
}

/// Why it does not start, which is one block without a secret.
async fn refused<D: Tested>(tenant: &Tenant, config: PoolConfig) -> (BootError, String) {
    let error = PartitionedPool::<D>::connect(config).await;
    let error = error.expect_err("it must not start");
    let text = error.to_string();
    println!("{text}\n");
    assert!(!text.contains(&format!(":{}", tenant.name)), "{text}");
    (error, text)
}

/// What a stranger finds who comes over the same pooler: the settings of whatever backend serves it.
async fn a_stranger_finds(pooler: &PgBouncer, tenant: &Tenant, setting: &str) -> String {
    let connected = tokio_postgres::connect(&pooler.url(tenant), NoTls).await;
    let (client, connection) = connected.unwrap();
    tokio::spawn(connection);
    let sql = format!("SELECT current_setting('{setting}')");
    match client.simple_query(&sql).await.unwrap().swap_remove(1) {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).unwrap().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_pooler_that_drops_the_options_is_told_with_the_limits_and_the_ways_out() {
    on_each_version(async |tenant| {
        let drops = [("ignore_startup_parameters", "options")];
        let Some(pooler) = PgBouncer::start(tenant, TRANSACTION, &drops).await else {
            return;
        };
        let url = pooler.url(tenant) + "?options=-c%20statement_timeout%3D700";
        let stated = |config: PoolConfig| config.pooler(PoolerConfig::transaction(CLIENTS));
        let config = config(tenant, url, FleetConfig::new(1, 0));

        let (error, text) = refused::<TokioPostgres>(tenant, config.clone()).await;
        let BootError::Pooler { found, limits, .. } = error else {
            panic!("{text}")
        };
        assert_eq!(found, Some(PoolerMode::Transaction));
        let names: Vec<_> = limits.iter().map(|limit| limit.name.as_str()).collect();
        assert!(names.contains(&"statement_timeout"), "{names:?}");
        says(
            &text,
            &[
                "a pooler in transaction mode that the configuration does not state",
                "statement_timeout: must be 700 ms, the server says 0 ms",
                "connect to Postgres directly",
                "mode = \"session\"",
                "mode = \"transaction\"",
            ],
        );
        assert_eq!(
            a_stranger_finds(&pooler, tenant, "statement_timeout").await,
            "0"
        );

        let (error, told) = refused::<TokioPostgres>(tenant, stated(config.clone())).await;
        assert!(
            matches!(error, BootError::LimitsNotInForce { .. }),
            "{told}"
        );
        says(
            &told,
            &[
                "statement_timeout: must be 700 ms, the server says 0 ms",
                "RECONNECT",
            ],
        );
        let statements = |text: &str| -> Vec<String> {
            let lines = text.lines().map(str::trim);
            lines
                .filter(|line| line.starts_with("ALTER ROLE"))
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(statements(&text), statements(&told));

        for statement in statements(&told) {
            tenant.sql(&statement).await;
        }
        pooler.command("RECONNECT").await;
        let pool = Pool::connect(stated(config)).await.unwrap();
        for partition in [pool.transactional(), pool.analytical()] {
            let mut held = partition.acquire_by(LONG).await.unwrap();
            let late = held.say("SELECT pg_sleep(60)").await.unwrap_err();
            assert_eq!(late.code(), Some("57014"));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_session_pooler_that_is_stated_the_limits_are_set_and_fire() {
    session_mode::<TokioPostgres>().await;
    #[cfg(feature = "sqlx")]
    session_mode::<partitioned_pool::Sqlx>().await;
}

async fn session_mode<D: Tested>() {
    on_each_version(async |tenant| {
        let Some(pooler) = PgBouncer::start(tenant, SESSION, &[]).await else {
            return;
        };
        let config = config(tenant, pooler.url(tenant), FleetConfig::new(1, 0));
        let config = config.pooler(PoolerConfig::session(CLIENTS, 20));
        let pool = PartitionedPool::<D>::connect(config).await.unwrap();
        let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
        let late = held.say("SELECT pg_sleep(60)").await.unwrap_err();
        assert_eq!(late.code(), Some("57014"));
        let name = held.ask("SHOW application_name").await;
        assert_eq!(name, format!("{}/transactional", tenant.name));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_pooler_that_is_not_stated_is_refused_with_what_to_state() {
    on_each_version(async |tenant| {
        let Some(pooler) = PgBouncer::start(tenant, SESSION, &[]).await else {
            return;
        };
        let config = config(tenant, pooler.url(tenant), unchecked());
        let (error, text) = refused::<TokioPostgres>(tenant, config).await;
        assert!(
            matches!(
                error,
                BootError::Pooler {
                    stated: None,
                    found: Some(PoolerMode::Session),
                    ..
                }
            ),
            "{text}"
        );
        says(
            &text,
            &[
                "a pooler in session mode",
                "mode = \"session\", max_client_conn and default_pool_size",
            ],
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_pooler_that_is_stated_as_one_of_sessions_is_found_out() {
    for settings in [
        &[][..],
        &[("default_pool_size", "1")],
        &[("server_round_robin", "1")],
    ] {
        on_each_version(async |tenant| {
            let Some(pooler) = PgBouncer::start(tenant, TRANSACTION, settings).await else {
                return;
            };
            let config = config(tenant, pooler.url(tenant), unchecked());
            let config = config.pooler(PoolerConfig::session(CLIENTS, 20));
            let (error, text) = refused::<TokioPostgres>(tenant, config).await;
            let is_found = matches!(
                error,
                BootError::Pooler {
                    stated: Some(PoolerMode::Session),
                    found: Some(PoolerMode::Transaction),
                    ..
                }
            );
            assert!(is_found, "{settings:?}: {text}");
            says(
                &text,
                &["a pooler in transaction mode that is stated to be in session mode"],
            );
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_pooler_without_a_connection_for_a_second_look_starts() {
    on_each_version(async |tenant| {
        let one = [("default_pool_size", "1")];
        let Some(pooler) = PgBouncer::start(tenant, SESSION, &one).await else {
            return;
        };
        let config = PoolConfig::new(&tenant.name, pooler.url(tenant), unchecked())
            .pooler(PoolerConfig::session(CLIENTS, 1))
            .transactional(alike(small(2)))
            .analytical(PartitionConfig::analytical(1).url(tenant.url()));
        let pool = Pool::connect(config).await.unwrap();
        let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
        assert_eq!(held.ask("SHOW statement_timeout").await, "700ms");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_partition_stays_with_the_backends_of_a_transaction_pooler() {
    on_each_version(async |tenant| {
        start_sessions_with_the_limits(tenant).await;
        let Some(pooler) = PgBouncer::start(tenant, TRANSACTION, &[]).await else {
            return;
        };
        let url = pooler.url(tenant);
        let config = PoolConfig::new(&tenant.name, url, FleetConfig::new(1, 0))
            .pooler(PoolerConfig::transaction(CLIENTS))
            .budget(BudgetConfig::new("main", 2))
            .transactional(alike(small(2)).budget("main").reserved(0))
            .analytical(
                alike(PartitionConfig::analytical(2))
                    .budget("main")
                    .reserved(1),
            );
        let pool = Pool::connect(config).await.unwrap();
        // A connection of the reports is taken over, and back.
        for _ in 0..3 {
            for partition in [pool.transactional(), pool.analytical()] {
                let mut held = partition.acquire_by(LONG).await.unwrap();
                let name = held.ask("SHOW application_name").await;
                assert_eq!(name, format!("{}/{}", tenant.name, partition.name()));
                assert_eq!(held.ask("SHOW statement_timeout").await, "700ms");
            }
        }
        for setting in ["tcp_keepalives_idle", "client_connection_check_interval"] {
            let sql = format!("SELECT current_setting('{setting}')");
            let untouched: String = tenant.admin.query_one(&sql, &[]).await.unwrap().get(0);
            assert_eq!(a_stranger_finds(&pooler, tenant, setting).await, untouched);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_a_pooler_are_the_limits_of_the_fleet() {
    on_each_version(async |tenant| {
        start_sessions_with_the_limits(tenant).await;
        let Some(transaction) = PgBouncer::start(tenant, TRANSACTION, &[]).await else {
            return;
        };
        let Some(session) = PgBouncer::start(tenant, SESSION, &[]).await else {
            return;
        };
        // Five of each replica: a hundred, which the server with its 97 does not grant.
        let through = |pooler: &PgBouncer, replicas| {
            config(tenant, pooler.url(tenant), FleetConfig::new(replicas, 0))
        };
        let fits = through(&transaction, 20).pooler(PoolerConfig::transaction(100));
        let report = Pool::check(fits).await.unwrap();
        assert_eq!((report.needed(), report.granted()), (Some(100), Some(100)));
        assert!(report.fits(), "{report}");

        let few = through(&transaction, 20).pooler(PoolerConfig::transaction(99));
        let (error, text) = refused::<TokioPostgres>(tenant, few).await;
        let BootError::DoesNotFit(report) = error else {
            panic!("{text}")
        };
        assert_eq!(report.binding().unwrap().scope, Scope::Pooler);
        assert_eq!(report.largest_fleet(), Some(19));
        says(&text, &["pooler", "max_client_conn 99", "100"]);

        let binding = async |pooler: PoolerConfig, replicas| {
            let report = Pool::check(through(&session, replicas).pooler(pooler))
                .await
                .unwrap();
            println!("{report}");
            (report.fits(), report.binding().unwrap().scope.clone())
        };
        let (role, database) = (tenant.name.clone(), "postgres".to_owned());
        let pool = Scope::Pool {
            role,
            database: database.clone(),
        };
        assert_eq!(
            binding(PoolerConfig::session(1_000, 9), 2).await,
            (false, pool.clone())
        );
        assert_eq!(
            binding(PoolerConfig::session(1_000, 10), 2).await,
            (true, pool)
        );
        let of_database = PoolerConfig::session(1_000, 500).max_db_connections(9);
        let scope = Scope::PoolerDatabase { name: database };
        assert_eq!(binding(of_database, 2).await, (false, scope));
        // There each client needs a connection of the server as well.
        assert_eq!(
            binding(PoolerConfig::session(1_000, 500), 20).await,
            (false, Scope::Server)
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_startup_parameter_that_the_pooler_refuses_is_told_with_what_to_do() {
    on_each_version(async |tenant| {
        let Some(pooler) = PgBouncer::start(tenant, SESSION, &[]).await else {
            return;
        };
        let url = pooler.url(tenant) + "?options=-c%20work_mem%3D9MB";
        let config = config(tenant, url, unchecked()).pooler(PoolerConfig::session(CLIENTS, 20));
        let (_, text) = refused::<TokioPostgres>(tenant, config).await;
        says(
            &text,
            &[
                "unsupported startup parameter: options",
                "08P01",
                "ignore_startup_parameters",
            ],
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_who_leave_behind_a_session_pooler_hand_on_clean_connections_and_kill_nobody() {
    on_each_version(async |tenant| {
        let stated = PoolerConfig::session(CLIENTS, 20);
        leave_at_random::<TokioPostgres>(tenant, SESSION, stated, &Work::ALL).await;
    })
    .await;
}

/// Text alone, since nothing else is what it was behind a pooler that deals backends out.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a PgBouncer before 1.21 may end itself in a storm of cancels"]
async fn callers_who_leave_behind_a_transaction_pooler_hand_on_clean_connections_and_kill_nobody() {
    on_each_version(async |tenant| {
        let limits = ["statement_timeout = '200s'", "lock_timeout = '600ms'"];
        start_sessions_with(tenant, &limits).await;
        let stated = PoolerConfig::transaction(CLIENTS);
        let text = [Work::Slow, Work::RawBegin];
        leave_at_random::<TokioPostgres>(tenant, TRANSACTION, stated, &text).await;
    })
    .await;
}

/// One after the other: in a storm of cancels, a PgBouncer before 1.21 may end itself ("server in bad state: 11").
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_who_leaves_behind_a_transaction_pooler_is_cancelled_and_the_next_is_not() {
    on_each_version(async |tenant| {
        start_sessions_with(
            tenant,
            &["statement_timeout = '200s'", "lock_timeout = '600ms'"],
        )
        .await;
        let Some(pooler) = PgBouncer::start(tenant, TRANSACTION, &[]).await else {
            return;
        };
        let config = PoolConfig::new(&tenant.name, pooler.url(tenant), unchecked())
            .pooler(PoolerConfig::transaction(CLIENTS))
            .transactional(patient(small(1)))
            .analytical(patient(PartitionConfig::analytical(1)));
        let pool = Pool::connect(config).await.unwrap();
        let found = Found::default();
        for begin in ["", "BEGIN; "].repeat(5) {
            let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
            let slow = format!("{begin}SELECT pg_sleep(60)");
            tokio::select! {
                said = held.say(&slow) => panic!("it ended: {said:?}"),
                () = tenant.until_running(&slow) => {}
            }
            drop(held);
            let mut next = pool.transactional().acquire_by(LONG).await.unwrap();
            found.look_at(&mut *next).await;
        }
        assert_eq!(found.counts(), (0, 0, 0), "dirty, busy, killed");
        assert_eq!(*found.failures(), Vec::<String>::new());
        tenant.until_idle().await;
    })
    .await;
}

const LEAVINGS: u32 = 200;
const CALLERS: u32 = 8;

/// Long enough that nothing but a cancel ends a statement.
fn patient(partition: PartitionConfig) -> PartitionConfig {
    alike(partition)
        .statement_timeout(LONG * 10)
        .idle_in_transaction_session_timeout(Limit::Off)
}

async fn leave_at_random<D: Tested<Client: Worker + Send>>(
    tenant: &Tenant,
    mode: &str,
    stated: PoolerConfig,
    works: &[Work],
) {
    let table = "CREATE TABLE {0}.told (t text); ALTER TABLE {0}.told OWNER TO {0}";
    tenant.sql(&table.replace("{0}", &tenant.name)).await;
    let Some(pooler) = PgBouncer::start(tenant, mode, &[]).await else {
        return;
    };
    let transactional = patient(small(4)).max_waiters(64);
    let config = PoolConfig::new(&tenant.name, pooler.url(tenant), unchecked())
        .pooler(stated)
        .transactional(transactional.acquire_timeout(LONG * 3))
        .analytical(patient(PartitionConfig::analytical(1)));
    let pool = PartitionedPool::<D>::connect(config).await.unwrap();
    let found = Arc::new(Found::default());
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (checkout, found) = (pool.transactional().clone(), Arc::clone(&found));
        let works = works.to_vec();
        callers.spawn(async move {
            for _ in 0..LEAVINGS / CALLERS {
                let mut held = checkout.acquire().await.unwrap();
                found.look_at(&mut *held).await;
                let until = Duration::from_micros(fastrand::u64(0..4_000));
                let work = held.perform(works[fastrand::usize(0..works.len())], 20.0);
                drop(tokio::time::timeout(until, work).await);
            }
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    until_at_rest(pool.transactional()).await;
    assert_eq!(found.counts(), (0, 0, 0), "dirty, busy, killed");
    assert_eq!(*found.failures(), Vec::<String>::new());
    tenant.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_transaction_pooler_typed_queries_work_and_named_statements_do_not() {
    on_each_version(async |tenant| {
        start_sessions_with_the_limits(tenant).await;
        let Some(pooler) = PgBouncer::start(tenant, TRANSACTION, &[]).await else {
            return;
        };
        let config = config(tenant, pooler.url(tenant), unchecked());
        let config = config.pooler(PoolerConfig::transaction(CLIENTS));
        let pool = Pool::connect(config).await.unwrap();
        let [one, mut other] = [
            pool.transactional().acquire_by(LONG).await.unwrap(),
            pool.transactional().acquire_by(LONG).await.unwrap(),
        ];
        let named = one.prepare("SELECT $1::int4 + 1").await.unwrap();
        // The pooler hands out the backend that came back last: the one that knows the statement.
        other.say("BEGIN").await.unwrap();
        let error = one.query(&named, &[&1]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "26000");
        let rows = one
            .query_typed("SELECT $1 + 1", &[(&1, Type::INT4)])
            .await
            .unwrap();
        assert_eq!(rows[0].get::<_, i32>(0), 2);
        other.say("ROLLBACK").await.unwrap();
    })
    .await;
}

#[cfg(feature = "sqlx")]
mod on_sqlx {
    use partitioned_pool::Sqlx;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn callers_who_leave_behind_a_session_pooler_hand_on_clean_connections_and_kill_nobody() {
        on_each_version(async |tenant| {
            let stated = PoolerConfig::session(CLIENTS, 20);
            leave_at_random::<Sqlx>(tenant, SESSION, stated, &Work::ALL).await;
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_transaction_pooler_is_refused_with_a_clear_word() {
        on_each_version(async |tenant| {
            let ignored = [("ignore_startup_parameters", "extra_float_digits")];
            let Some(pooler) = PgBouncer::start(tenant, TRANSACTION, &ignored).await else {
                return;
            };
            let config = config(tenant, pooler.url(tenant), unchecked());
            let stated = config.clone().pooler(PoolerConfig::transaction(CLIENTS));
            let (error, text) = refused::<Sqlx>(tenant, stated).await;
            assert!(matches!(error, BootError::Config(_)), "{text}");
            says(
                &text,
                &[
                    "leads to a transaction pooler",
                    "could not be cancelled",
                    "Connect to Postgres directly",
                ],
            );

            let (_, text) = refused::<Sqlx>(tenant, config.clone()).await;
            says(
                &text,
                &[
                    "could not be cancelled",
                    "to do: connect to Postgres directly; or use the pooler's session mode",
                ],
            );
            assert_eq!(
                a_stranger_finds(&pooler, tenant, "statement_timeout").await,
                "0"
            );

            let (_, text) =
                refused::<Sqlx>(tenant, config.pooler(PoolerConfig::session(CLIENTS, 20))).await;
            says(
                &text,
                &[
                    "could not be cancelled",
                    "A transaction pooler is in between",
                ],
            );
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_session_pooler_that_is_not_stated_shows_itself_by_a_backend_older_than_its_connection()
     {
        on_each_version(async |tenant| {
            let ignored = [("ignore_startup_parameters", "extra_float_digits")];
            let Some(pooler) = PgBouncer::start(tenant, SESSION, &ignored).await else {
                return;
            };
            a_stranger_finds(&pooler, tenant, "statement_timeout").await;
            tokio::time::sleep(1_500 * MS).await;
            let (error, text) =
                refused::<Sqlx>(tenant, config(tenant, pooler.url(tenant), unchecked())).await;
            let is_found = matches!(
                error,
                BootError::Pooler {
                    stated: None,
                    found: Some(PoolerMode::Session),
                    ..
                }
            );
            assert!(is_found, "{text}");
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_sqlx_sends_and_a_pooler_refuses_is_told_and_not_sent_where_the_pooler_is_stated()
    {
        on_each_version(async |tenant| {
            let Some(pooler) = PgBouncer::start(tenant, SESSION, &[]).await else {
                return;
            };
            let config = config(tenant, pooler.url(tenant), unchecked());
            let (_, text) = refused::<Sqlx>(tenant, config.clone()).await;
            says(
                &text,
                &["unsupported startup parameter: extra_float_digits", "08P01"],
            );
            let stated = config.pooler(PoolerConfig::session(CLIENTS, 20));
            let pool = PartitionedPool::<Sqlx>::connect(stated).await.unwrap();
            let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
            assert_eq!(
                held.ask("SELECT (0.1::float8 + 0.2::float8)::text").await,
                "0.30000000000000004"
            );
        })
        .await;
    }
}
