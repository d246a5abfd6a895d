//! What only the driver on sqlx has: executors, what they prove, the control connection, and errors on their way
//! through sqlx's.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use futures_util::future::BoxFuture;
use partitioned_pool::config::{ExternalPool, FleetConfig, PartitionConfig, PoolConfig};
use partitioned_pool::driver_sqlx::acquire_error;
use partitioned_pool::error::Reason;
use partitioned_pool::{BootError, Partition, PartitionedPool, Sqlx};
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::driver::Speaks as _;
use crate::support::patience::{LONG, eventually};
use crate::support::proxy::Proxy;
use crate::support::server::on_each_version;
use crate::support::tenant::{Tenant, small, until_at_rest};

const MS: Duration = Duration::from_millis(1);

/// Round trips of a call with its way back, after a first one. On a busy machine an answer may be so late that the way
/// back cancels something: the least of some calls counts.
async fn round_trips(
    proxy: &Proxy,
    checkout: &Partition<Sqlx>,
    call: impl AsyncFn(&Partition<Sqlx>),
) -> u64 {
    call(checkout).await;
    until_at_rest(checkout).await;
    let mut least = u64::MAX;
    for _ in 0..20 {
        let before = proxy.traffic();
        call(checkout).await;
        until_at_rest(checkout).await;
        least = least.min(proxy.traffic().since(before).round_trips);
    }
    least
}

/// A way to use a partition, what it says to the server, and what is said on the way back.
type Way = (
    &'static str,
    u64,
    u64,
    fn(&Partition<Sqlx>) -> BoxFuture<'_, ()>,
);

/// The table of the driver's docs.
const WAYS: [Way; 11] = [
    ("a partition as the executor", 1, 0, |partition| {
        Box::pin(async move {
            let one = sqlx::query("SELECT $1").bind(1);
            one.execute(partition).await.unwrap();
        })
    }),
    ("an error of the server", 1, 0, |partition| {
        Box::pin(async move {
            let failed = sqlx::query("SELECT 1 / $1")
                .bind(0)
                .execute(partition)
                .await;
            assert!(failed.unwrap_err().as_database_error().is_some());
        })
    }),
    ("a connection as the executor", 2, 0, |partition| {
        Box::pin(async move {
            let mut held = partition.acquire().await.unwrap();
            held.fetch_all(sqlx::query("SELECT 1")).await.unwrap();
            let rows = sqlx::query("SELECT 2").fetch_all(&mut held).await.unwrap();
            assert_eq!(rows.len(), 1);
        })
    }),
    ("begin, committed", 3, 0, |partition| {
        Box::pin(async move {
            let mut transaction = partition.begin().await.unwrap();
            sqlx::query("SELECT 4")
                .execute(&mut transaction)
                .await
                .unwrap();
            transaction.commit().await.unwrap();
        })
    }),
    ("begin, dropped", 2, 1, |partition| {
        Box::pin(async move {
            let mut transaction = partition.begin().await.unwrap();
            sqlx::query("SELECT 5")
                .execute(&mut transaction)
                .await
                .unwrap();
        })
    }),
    ("BEGIN as text, left open", 1, 1, |partition| {
        Box::pin(async move {
            sqlx::query("BEGIN").execute(partition).await.unwrap();
        })
    }),
    ("the PgConnection", 1, 1, |partition| {
        Box::pin(async move {
            let mut held = partition.acquire().await.unwrap();
            sqlx::query("SELECT 1").execute(&mut *held).await.unwrap();
        })
    }),
    (
        "begin, used as a PgConnection, committed",
        3,
        1,
        |partition| {
            Box::pin(async move {
                let mut transaction = partition.begin().await.unwrap();
                sqlx::query("SELECT 4")
                    .execute(&mut *transaction)
                    .await
                    .unwrap();
                transaction.commit().await.unwrap();
            })
        },
    ),
    (
        "sqlx's begin on a connection, committed",
        2,
        1,
        |partition| {
            Box::pin(async move {
                let mut held = partition.acquire().await.unwrap();
                held.begin().await.unwrap().commit().await.unwrap();
            })
        },
    ),
    ("sqlx's begin on a connection, dropped", 1, 2, |partition| {
        Box::pin(async move {
            let mut held = partition.acquire().await.unwrap();
            drop(held.begin().await.unwrap());
        })
    }),
    (
        "BEGIN as text to the PgConnection, left open",
        1,
        2,
        |partition| {
            Box::pin(async move {
                let mut held = partition.acquire().await.unwrap();
                sqlx::query("BEGIN").execute(&mut *held).await.unwrap();
            })
        },
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_way_back_makes_the_round_trips_that_the_docs_say() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let pool = tenant.pool_by::<Sqlx>(&proxy, small(1)).await;
        for (what, said, back, call) in WAYS {
            let checkout = pool.transactional();
            let trips = round_trips(&proxy, checkout, async |partition| call(partition).await);
            assert_eq!(trips.await, said + back, "{what}");
        }
        tenant.until_idle().await;
    })
    .await;
}

#[test]
fn the_docs_have_each_way_with_its_round_trips() {
    let docs = include_str!("../../src/driver/sqlx/mod.rs").replace('`', "");
    for (what, _, back, _) in WAYS {
        let row = format!("//! | {what} | {back} |");
        assert!(docs.contains(&row), "no row {row}");
    }
}

struct Told {
    id: i64,
    description: String,
}

/// Compiled from what .sqlx says of these queries, and then held against the server.
#[tokio::test(flavor = "multi_thread")]
async fn the_macros_that_check_a_query_take_partitions_connections_and_transactions() {
    on_each_version(async |tenant| {
        let pool = tenant.pool::<Sqlx>(small(1).acquire_timeout(LONG)).await;
        let checkout = pool.transactional();
        let row = sqlx::query!(
            r#"SELECT $1::int8 AS "id!", $2::text AS "description!""#,
            1,
            "told"
        );
        let row = row.fetch_one(checkout).await.unwrap();
        assert_eq!((row.id, row.description.as_str()), (1, "told"));

        let mut held = checkout.acquire().await.unwrap();
        let told = sqlx::query_as!(
            Told,
            r#"SELECT $1::int8 AS "id!", $2::text AS "description!""#,
            2,
            "told"
        );
        let told = told.fetch_all(&mut held).await.unwrap();
        assert_eq!((told[0].id, told[0].description.as_str()), (2, "told"));
        drop(held);

        let mut transaction = checkout.begin().await.unwrap();
        let count = sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM generate_series(1, $1::int4)"#,
            3
        );
        assert_eq!(count.fetch_one(&mut transaction).await.unwrap(), 3);
        transaction.commit().await.unwrap();
    })
    .await;
}

/// Everything that sqlx is known to leave "idle in transaction", and more.
#[tokio::test(flavor = "multi_thread")]
async fn no_begin_that_is_dropped_half_way_hands_out_a_transaction() {
    on_each_version(async |tenant| {
        let pool = tenant.pool::<Sqlx>(small(1).acquire_timeout(LONG)).await;
        let checkout = pool.transactional();
        for round in 0..120_u32 {
            let moment = Duration::from_micros(u64::from(round % 40) * 20);
            let mut held = checkout.acquire().await.unwrap();
            match round % 4 {
                0 => drop(timeout(moment, checkout_begin(held)).await),
                1 => {
                    drop(timeout(moment, held.begin()).await);
                    drop(held);
                }
                2 => {
                    let mut outer = held.begin().await.unwrap();
                    drop(timeout(moment, outer.begin()).await);
                    drop(outer);
                    drop(held);
                }
                _ => {
                    drop(held);
                    drop(timeout(moment, checkout.begin()).await);
                }
            }
            let mut next = checkout.acquire().await.unwrap();
            let dirty = "application_name LIKE '%/transactional' AND state LIKE 'idle in%'";
            assert_eq!(tenant.count(dirty).await, 0, "round {round}");
            let clean = next.ask("SELECT now() = statement_timestamp()").await;
            assert_eq!(clean, "t", "round {round}");
            // It counts from zero again: this is no savepoint.
            next.begin().await.unwrap().rollback().await.unwrap();
        }
    })
    .await;
}

async fn checkout_begin(mut held: partitioned_pool::Connection<Sqlx>) {
    held.execute("BEGIN").await.unwrap();
    sqlx::query("SELECT 1").execute(&mut *held).await.unwrap();
}

/// A COPY, left in the middle.
#[derive(Clone, Copy, Debug)]
enum Copy {
    In,
    InAtItsStart,
    InAsText,
    Out,
    OutSlowly,
    OutAtItsEnd,
}

impl Copy {
    const ALL: [Self; 6] = [
        Self::In,
        Self::InAtItsStart,
        Self::InAsText,
        Self::Out,
        Self::OutSlowly,
        Self::OutAtItsEnd,
    ];

    async fn leave(self, held: &mut PgConnection) {
        let copy_in = "COPY told FROM STDIN";
        match self {
            Self::In => {
                let mut sink = held.copy_in_raw(copy_in).await.unwrap();
                sink.send(b"lost\nlo".as_slice()).await.unwrap();
            }
            Self::InAtItsStart => {
                let begin = pin!(held.copy_in_raw(copy_in));
                drop(timeout(Duration::ZERO, begin).await);
            }
            Self::InAsText => drop(sqlx::raw_sql(copy_in).execute(held).await.unwrap_err()),
            Self::Out => {
                let many = "COPY (SELECT generate_series(1, 10000000)) TO STDOUT";
                let mut rows = held.copy_out_raw(many).await.unwrap();
                rows.try_next().await.unwrap();
            }
            Self::OutSlowly => {
                let slow = held.copy_out_raw("COPY (SELECT pg_sleep(60)) TO STDOUT");
                assert!(timeout(20 * MS, slow).await.is_err());
            }
            // Its rows are read, but not what follows them: the answers are off by one.
            Self::OutAtItsEnd => {
                let mut rows = held
                    .copy_out_raw("COPY (SELECT 1) TO STDOUT")
                    .await
                    .unwrap();
                rows.try_next().await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_left_costs_its_connection_and_shifts_no_answer() {
    on_each_version(async |tenant| {
        let table = format!(
            "CREATE TABLE {0}.told (t text); ALTER TABLE {0}.told OWNER TO {0}",
            tenant.name
        );
        tenant.sql(&table).await;
        let patient = small(1).acquire_timeout(LONG).statement_timeout(LONG * 10);
        let pool = tenant.pool::<Sqlx>(patient).await;
        for copy in Copy::ALL {
            let mut worst = Duration::ZERO;
            for _ in 0..5 {
                let mut held = pool.transactional().acquire().await.unwrap();
                copy.leave(&mut held).await;
                drop(held);
                let left = Instant::now();
                let mut next = pool.transactional().acquire().await.unwrap();
                worst = worst.max(left.elapsed());
                assert_eq!(next.ask("SELECT 'mine'").await, "mine", "{copy:?}");
                assert_eq!(next.ask("SELECT count(*) FROM told").await, "0", "{copy:?}");
                let other = "application_name LIKE '%/transactional' AND state <> 'idle'";
                assert_eq!(tenant.count(other).await, 0, "{copy:?}");
            }
            println!(
                "{copy:?}: the slot is back after {:.1} ms at most",
                worst.as_secs_f64() * 1e3
            );
            assert!(worst < LONG, "{copy:?}");
        }
        assert_eq!(tenant.transactional_backends().await, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_typed_rows_savepoints_and_migrations_work_as_with_a_pg_pool() {
    on_each_version(async |tenant| {
        let pool = tenant.pool::<Sqlx>(small(1).acquire_timeout(LONG)).await;
        let checkout = pool.transactional();
        let mut numbers =
            sqlx::query_scalar::<_, i32>("SELECT generate_series(1, 3)").fetch(checkout);
        let mut sum = 0;
        while let Some(number) = numbers.try_next().await.unwrap() {
            sum += number;
        }
        drop(numbers);
        assert_eq!(sum, 6);
        let pair: (i32, String) = sqlx::query_as("SELECT 7, 'x'")
            .fetch_one(checkout)
            .await
            .unwrap();
        assert_eq!(pair, (7, "x".to_owned()));
        checkout
            .prepare(sqlx::SqlSafeStr::into_sql_str("SELECT 1"))
            .await
            .unwrap();

        // A stream that is left half way is cancelled.
        {
            let mut many = sqlx::query("SELECT generate_series(1, 10000000)").fetch(checkout);
            many.try_next().await.unwrap();
        }
        let mut held = checkout.acquire().await.unwrap();
        let migrations = sqlx::migrate::Migrator::new(std::path::Path::new("tests/it/migrations"));
        migrations.await.unwrap().run(&mut *held).await.unwrap();
        let mut outer = held.begin().await.unwrap();
        let mut inner = outer.begin().await.unwrap();
        sqlx::query("INSERT INTO migrated VALUES (1)")
            .execute(&mut *inner)
            .await
            .unwrap();
        inner.rollback().await.unwrap();
        sqlx::query("INSERT INTO migrated VALUES (2)")
            .execute(&mut *outer)
            .await
            .unwrap();
        outer.commit().await.unwrap();
        drop(held);
        let kept: Vec<i32> = sqlx::query_scalar("SELECT n FROM migrated")
            .fetch_all(checkout)
            .await
            .unwrap();
        assert_eq!(kept, [2]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_found_in_the_error_that_sqlx_returns() {
    on_each_version(async |tenant| {
        let pool = tenant.pool::<Sqlx>(small(1).max_waiters(0)).await;
        let _held = pool.transactional().acquire().await.unwrap();
        let refused = sqlx::query("SELECT 1")
            .execute(pool.transactional())
            .await
            .unwrap_err();
        let refused = acquire_error(&refused).unwrap();
        assert_eq!(refused.rejection().unwrap().reason, Reason::QueueFull);
        let refused = pool.transactional().begin().await.unwrap_err();
        assert!(acquire_error(&refused).unwrap().is_rejection());
        let failed = sqlx::query("SELECT 1/0")
            .execute(pool.analytical())
            .await
            .unwrap_err();
        assert!(acquire_error(&failed).is_none());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_control_connection_is_one_for_all_counted_and_comes_back_when_it_died() {
    on_each_version(async |tenant| {
        let fleet = FleetConfig::new(1, 0);
        let config = tenant.config_for(fleet, small(1).acquire_timeout(LONG));
        let pool = PartitionedPool::<Sqlx>::connect(config).await.unwrap();
        let report = pool.fleet_report().unwrap().to_string();
        assert!(report.contains("1 transactional + 1 control + 1 analytical"), "{report}");
        let control = "application_name LIKE '%/control'";
        assert_eq!(tenant.count(control).await, 1);
        for _ in 0..3 {
            let sql = format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{}' AND {control}",
                tenant.name
            );
            tenant.sql(&sql).await;
            eventually("it is gone", async || tenant.count(control).await == 0).await;
            for _ in 0..2 {
                let sleep = sqlx::query("SELECT pg_sleep(60)").execute(pool.transactional());
                assert!(timeout(50 * MS, sleep).await.is_err());
                drop(pool.transactional().acquire().await.unwrap());
                until_at_rest(pool.transactional()).await;
            }
            assert_eq!(tenant.count(control).await, 1);
            tenant.until_idle().await;
        }
        assert!(pool.close(LONG).await.is_drained());
        tenant.until_gone().await;
    })
    .await;
}

/// A port that leads to each of the servers in turn.
async fn in_turn(servers: [(String, u16); 2]) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        for server in servers.iter().cycle() {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(server).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    port
}

/// As behind a transaction pooler, or a name that stands for two servers: another connection does not see the backend.
#[tokio::test(flavor = "multi_thread")]
async fn where_the_control_connection_does_not_see_the_backend_the_pool_does_not_start() {
    on_each_version(async |tenant| {
        let other = crate::postgres::start(crate::postgres::Want::version(15)).await;
        let Ok(other) = other else { return };
        let elsewhere = Tenant::try_new(other.url()).await.unwrap();
        let role = format!(
            "CREATE ROLE {0} LOGIN PASSWORD '{0}'; CREATE SCHEMA {0} AUTHORIZATION {0}",
            tenant.name
        );
        elsewhere.sql(&role).await;
        let port = in_turn([
            (tenant.host(), tenant.port()),
            (elsewhere.host(), elsewhere.port()),
        ]);
        let config = tenant
            .config(small(1))
            .url(tenant.url_at("127.0.0.1", port.await));
        let error = PartitionedPool::<Sqlx>::connect(config).await.unwrap_err();
        assert!(matches!(error, BootError::Unavailable { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("queries could not be cancelled"), "{text}");
        assert!(text.contains("session mode"), "{text}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_sqlx_has_the_size_that_was_declared_and_the_limits_of_a_partition() {
    on_each_version(async |tenant| {
        let fleet = FleetConfig::new(1, 0)
            .external(ExternalPool::new("jobs", 2))
            .external(ExternalPool::new("mail", 1).role("somebody"));
        let config = tenant.config_for(fleet, small(1).statement_timeout(1234 * MS));
        let pool = PartitionedPool::<Sqlx>::connect(config).await.unwrap();
        let jobs = pool.external_pool("jobs", pool.transactional()).unwrap();
        let limit: String = sqlx::query_scalar("SHOW statement_timeout")
            .fetch_one(&jobs)
            .await
            .unwrap();
        assert_eq!(limit, "1234ms");
        let held = (jobs.acquire().await.unwrap(), jobs.acquire().await.unwrap());
        assert!(
            jobs.try_acquire().is_none() && jobs.size() == 2,
            "no more than was declared"
        );
        assert_eq!(tenant.count("application_name LIKE '%/jobs'").await, 2);
        drop(held);
        let undeclared = pool
            .external_pool("other", pool.transactional())
            .unwrap_err();
        assert!(
            undeclared.to_string().contains("fleet.external"),
            "{undeclared}"
        );
        let elsewhere = pool
            .external_pool("mail", pool.transactional())
            .unwrap_err();
        assert!(elsewhere.to_string().contains("somebody"), "{elsewhere}");
        jobs.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_of_sqlx_listens_over_a_declared_pool() {
    on_each_version(async |tenant| {
        let fleet = FleetConfig::new(1, 0).external(ExternalPool::new("listener", 1));
        let config = tenant.config_for(fleet, small(1));
        let pool = PartitionedPool::<Sqlx>::connect(config).await.unwrap();
        let own = pool
            .external_pool("listener", pool.transactional())
            .unwrap();
        let mut listener = sqlx::postgres::PgListener::connect_with(&own)
            .await
            .unwrap();
        listener.listen(&tenant.name).await.unwrap();
        let news = format!("SELECT pg_notify('{}', 'paid')", tenant.name);
        let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
        held.say(&news).await.unwrap();
        let heard = timeout(LONG, listener.recv()).await.unwrap().unwrap();
        assert_eq!(heard.payload(), "paid");
        assert_eq!(tenant.count("application_name LIKE '%/listener'").await, 1);
        drop(listener);
        own.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlx_options_are_taken_as_they_are() {
    on_each_version(async |tenant| {
        let options: sqlx::postgres::PgConnectOptions = tenant.url().parse().unwrap();
        let options = options
            .options([("work_mem", "9MB")])
            .statement_cache_capacity(3);
        let nowhere = PoolConfig::new(
            "shop",
            "postgres://nobody@nowhere/nothing",
            FleetConfig::new(1, 0),
        )
        .transactional(small(1))
        .analytical(PartitionConfig::analytical(1));
        let pool =
            PartitionedPool::<Sqlx>::builder(nowhere).connect_options(move |_| options.clone());
        let pool = pool.connect().await.unwrap();
        let mut held = pool.transactional().acquire().await.unwrap();
        assert_eq!(held.ask("SHOW work_mem").await, "9MB");
        assert_eq!(
            held.ask("SHOW application_name").await,
            "shop/transactional"
        );
        assert_eq!(pool.transactional().endpoint().user, tenant.name);
    })
    .await;
}
