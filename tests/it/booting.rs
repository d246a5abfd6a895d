//! Starting a pool on a real server: what is checked, what is refused, and how that reads.

use std::time::{Duration, Instant};

use deadpool::managed::{Manager, Metrics, RecycleResult};
use partitioned_pool::config::{
    BootConfig, BudgetConfig, FleetCheck, FleetConfig, Limit, PartitionConfig, PartitionSettings,
    PoolConfig, WhenUnavailable,
};
use partitioned_pool::driver::{Driver, End, Endpoint, Readiness, Rows};
use partitioned_pool::error::Failure;
use partitioned_pool::{BootError, PartitionedPool, TokioPostgres};

use crate::support::patience::{LONG, eventually};
use crate::support::proxy::Fault;
use crate::support::server::{on_each_version, on_own_servers};
use crate::support::tenant::{Pool, Tenant, small};

const MS: Duration = Duration::from_millis(1);

/// The server, the role or the database says no at once; a loaded machine may take longer to say so.
const QUICK: Duration = Duration::from_secs(8);

/// What a boot error says, which is one block without a secret.
async fn refused(tenant: &Tenant, config: PoolConfig) -> (BootError, String) {
    let began = Instant::now();
    let error = Pool::connect(config).await.expect_err("it must not boot");
    assert!(began.elapsed() < QUICK, "{:?}", began.elapsed());
    let text = error.to_string();
    println!("{text}\n");
    let secret = format!(":{}", tenant.name);
    assert!(
        !text.contains(&secret) && !text.contains("hunter2"),
        "a secret in {text}"
    );
    assert!(
        !text.contains("\n\n\n") && !text.contains("Error {"),
        "{text}"
    );
    (error, text)
}

fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
}

/// Twenty for each replica.
fn twenty(tenant: &Tenant, fleet: FleetConfig) -> PoolConfig {
    tenant.config_for(fleet, small(19))
}

#[tokio::test(flavor = "multi_thread")]
async fn five_replicas_of_twenty_are_refused_by_a_server_of_a_hundred_with_the_arithmetic() {
    on_each_version(async |tenant| {
        let (error, text) = refused(tenant, twenty(tenant, FleetConfig::new(5, 0))).await;
        assert!(matches!(error, BootError::DoesNotFit(_)));
        says(
            &text,
            &[
                "does not fit",
                "max_connections",
                "100",
                "97",
                "superuser_reserved_connections",
                "3",
                "4 replicas",
            ],
        );
        tenant.until_gone().await;

        let pool = Pool::connect(twenty(tenant, FleetConfig::new(4, 0)))
            .await
            .unwrap();
        let report = pool.fleet_report().unwrap();
        assert_eq!(
            (report.needed(), report.granted(), report.fits()),
            (Some(80), Some(97), true)
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_share_a_budget_are_counted_once_with_its_capacity() {
    on_each_version(async |tenant| {
        let config = |replicas| {
            let fleet = FleetConfig::new(replicas, 0);
            PoolConfig::new(&tenant.name, tenant.url(), fleet)
                .budget(BudgetConfig::new("main", 30))
                .transactional(small(25).budget("main").reserved(12))
                .analytical(PartitionConfig::analytical(10).budget("main").reserved(0))
        };
        let report = Pool::check(config(3)).await.unwrap();
        assert_eq!(
            (report.needed(), report.granted(), report.fits()),
            (Some(90), Some(97), true)
        );
        tenant.until_gone().await;

        let (error, text) = refused(tenant, config(4)).await;
        let BootError::DoesNotFit(report) = error else {
            panic!("{text}")
        };
        let part = &report.binding().unwrap().per_replica[0];
        assert_eq!((part.name.as_str(), part.size), ("main", 30));
        let proposed = &report.largest_partitions().unwrap()[0];
        assert_eq!((proposed.name.as_str(), proposed.size), ("main", 24));
        let reserved: Vec<_> = proposed.partitions.iter().map(|p| p.reserved).collect();
        assert_eq!(reserved, [12, 0]);
        says(&text, &["30 main (transactional up to 25"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fits_only_without_the_surge_is_refused() {
    on_each_version(async |tenant| {
        let (error, text) = refused(tenant, twenty(tenant, FleetConfig::new(4, 1))).await;
        let BootError::DoesNotFit(report) = error else {
            panic!("{text}")
        };
        assert!(report.fits_without_surge() && !report.fits());
        says(&text, &["surge"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_the_role_and_of_the_database_count_too() {
    on_each_version(async |tenant| {
        let name = &tenant.name;
        tenant
            .sql(&format!("ALTER ROLE {name} CONNECTION LIMIT 30"))
            .await;
        let (_, text) = refused(tenant, twenty(tenant, FleetConfig::new(2, 0))).await;
        says(&text, &[&format!("role {name}"), "30", "40"]);

        tenant
            .sql(&format!("ALTER ROLE {name} CONNECTION LIMIT -1"))
            .await;
        let url = tenant.own_database().await;
        tenant
            .sql(&format!("ALTER DATABASE {name} CONNECTION LIMIT 25"))
            .await;
        let (_, text) = refused(
            tenant,
            twenty(tenant, FleetConfig::new(2, 0)).url(url.as_str()),
        )
        .await;
        says(&text, &[&format!("database {name}"), "25", "40"]);
        Pool::connect(twenty(tenant, FleetConfig::new(1, 0)).url(url))
            .await
            .unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_does_not_fit_boots_if_the_owner_only_wants_to_be_told() {
    on_each_version(async |tenant| {
        let fleet = FleetConfig::new(50, 10);
        let pool = Pool::connect(twenty(tenant, fleet.clone().mode(FleetCheck::Warn)))
            .await
            .unwrap();
        assert!(!pool.fleet_report().unwrap().fits());
        drop(pool);
        let pool = Pool::connect(twenty(tenant, fleet.clone().mode(FleetCheck::Off)))
            .await
            .unwrap();
        assert!(pool.fleet_report().is_none());
        let report = Pool::check(twenty(tenant, fleet)).await.unwrap();
        assert!(!report.fits());
        drop(pool);
        tenant.until_gone().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_urls_of_one_server_are_counted_as_one() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let reports = PartitionConfig::analytical(49).url(tenant.url_by(&proxy));
        let config = PoolConfig::new(&tenant.name, tenant.url(), FleetConfig::new(1, 0))
            .transactional(small(49))
            .analytical(reports);
        let (_, text) = refused(tenant, config).await;
        says(&text, &["98", "97", "transactional", "analytical"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_a_partition_hold_whatever_the_role_has() {
    on_each_version(async |tenant| {
        let name = &tenant.name;
        for setting in [
            "statement_timeout = '7s'",
            "lock_timeout = '7s'",
            "idle_in_transaction_session_timeout = 0",
        ] {
            tenant
                .sql(&format!("ALTER ROLE {name} SET {setting}"))
                .await;
        }
        let pool = tenant
            .pool::<TokioPostgres>(
                small(1)
                    .statement_timeout(1500 * MS)
                    .lock_timeout(Limit::Off),
            )
            .await;
        let held = pool.transactional().acquire_by(LONG).await.unwrap();
        let shown = async |setting: &str| -> String {
            let row = held
                .query_one(&format!("SHOW {setting}"), &[])
                .await
                .unwrap();
            row.get(0)
        };
        assert_eq!(shown("statement_timeout").await, "1500ms");
        assert_eq!(shown("lock_timeout").await, "0");
        assert_eq!(shown("idle_in_transaction_session_timeout").await, "5s");
        if shown("server_version_num").await.as_str() >= "170000" {
            assert_eq!(shown("transaction_timeout").await, "30s");
        }
        let late = held.simple_query("SELECT pg_sleep(60)").await.unwrap_err();
        assert_eq!(late.code().unwrap().code(), "57014");
    })
    .await;
}

/// A driver behind something that drops session settings.
struct Undressed(TokioPostgres);

impl Manager for Undressed {
    type Type = <TokioPostgres as Manager>::Type;
    type Error = <TokioPostgres as Manager>::Error;

    async fn create(&self) -> Result<Self::Type, Self::Error> {
        let mut session = self.0.create().await?;
        let reset = self
            .0
            .query(&mut session, "RESET statement_timeout; RESET lock_timeout")
            .await;
        reset.unwrap();
        Ok(session)
    }

    async fn recycle(
        &self,
        session: &mut Self::Type,
        metrics: &Metrics,
    ) -> RecycleResult<Self::Error> {
        self.0.recycle(session, metrics).await
    }
}

impl Driver for Undressed {
    type Client = <TokioPostgres as Driver>::Client;
    type Options = ();

    fn new(settings: &PartitionSettings, (): &(), _: &[Self]) -> Result<Self, String> {
        TokioPostgres::new(
            settings,
            &<TokioPostgres as Driver>::Options::default(),
            &[],
        )
        .map(Self)
    }

    fn endpoint(&self) -> &Endpoint {
        self.0.endpoint()
    }

    fn can_dress(&self, other: &Self) -> bool {
        self.0.can_dress(&other.0)
    }

    fn client(session: &Self::Type) -> &Self::Client {
        TokioPostgres::client(session)
    }

    fn client_mut(session: &mut Self::Type) -> &mut Self::Client {
        TokioPostgres::client_mut(session)
    }

    fn readiness(session: &Self::Type) -> Readiness {
        TokioPostgres::readiness(session)
    }

    async fn settle(&self, session: &mut Self::Type) -> Readiness {
        self.0.settle(session).await
    }

    async fn reset(&self, session: &mut Self::Type) -> Readiness {
        self.0.reset(session).await
    }

    async fn close(&self, session: Self::Type) -> End {
        self.0.close(session).await
    }

    async fn query(&self, session: &mut Self::Type, sql: &str) -> Result<Rows, Failure> {
        self.0.query(session, sql).await
    }

    fn failure(error: Self::Error) -> Failure {
        TokioPostgres::failure(error)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_not_in_force_is_a_boot_error_that_names_it() {
    on_each_version(async |tenant| {
        let config = tenant.config(small(1).statement_timeout(2000 * MS));
        let error = PartitionedPool::<Undressed>::connect(config)
            .await
            .unwrap_err();
        assert!(
            matches!(error, BootError::LimitsNotInForce { .. }),
            "{error}"
        );
        let text = error.to_string();
        says(
            &text,
            &[
                "partition transactional",
                "statement_timeout: set to 2000 ms, the server says 0 ms",
            ],
        );
        says(&text, &["lock_timeout", "to do: ", "pooler", "ALTER ROLE"]);
        tenant.until_gone().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_wrong_with_the_way_in_reads_as_one_block_that_says_what_to_do() {
    on_each_version(async |tenant| {
        let (name, host, port) = (&tenant.name, tenant.host(), tenant.port());
        let with = |url: String| tenant.config(small(1)).url(url);

        let wrong = format!("postgres://{name}:hunter2@{host}:{port}/postgres");
        let (error, text) = refused(tenant, with(wrong)).await;
        assert!(matches!(error, BootError::Unavailable { .. }));
        says(&text, &["partition transactional", "28P01", "to do: check the user and the password in the url"]);

        let wrong = format!("postgres://{name}:{name}@{host}:{port}/nowhere");
        says(&refused(tenant, with(wrong)).await.1, &["3D000", "nowhere", "to do: check the database name in the url"]);

        let locked = tenant.own_database().await;
        tenant.sql(&format!("ALTER DATABASE {name} OWNER TO postgres; REVOKE CONNECT ON DATABASE {name} FROM PUBLIC")).await;
        says(&refused(tenant, with(locked)).await.1, &["42501", "to do: grant the role CONNECT on the database"]);

        let nobody = format!("postgres://{name}:hunter2@127.0.0.1:1/postgres");
        says(&refused(tenant, with(nobody)).await.1, &["127.0.0.1:1", "refused", "to do: check the url, and that the server is up"]);

        let (error, text) = refused(tenant, with("postgres:/hunter2@".to_owned())).await;
        assert!(matches!(error, BootError::Config(_)), "{text}");
        says(&text, &["partition.transactional.url"]);
        let (error, _) = refused(tenant, with(format!("postgres://{name}:hunter2@{host}/x?sslmode=verify-ca"))).await;
        assert!(matches!(error, BootError::Config(_)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_answers_ends_the_boot_at_its_bound() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        proxy.set(Fault::Pause);
        let boot = BootConfig::new().check_timeout(500 * MS);
        let config = tenant
            .config(small(1))
            .url(tenant.url_by(&proxy))
            .boot(boot);
        let (error, text) = refused(tenant, config).await;
        assert!(matches!(error, BootError::Unavailable { .. }));
        says(&text, &["connect", "500 ms", "to do: "]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_a_free_connection_is_the_finding_itself() {
    on_each_version(async |tenant| {
        tenant
            .sql(&format!("ALTER ROLE {} CONNECTION LIMIT 1", tenant.name))
            .await;
        let (taken, connection) = tokio_postgres::connect(&tenant.url(), tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(async move { drop(connection.await) });
        let (error, text) = refused(tenant, twenty(tenant, FleetConfig::new(1, 0))).await;
        assert!(matches!(error, BootError::DoesNotFit(_)), "{text}");
        let said = format!("too many connections for role \"{}\"", tenant.name);
        says(
            &text.replace('\n', " "),
            &["full", "20", "It said: ", &said],
        );
        drop(taken);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_free_connection_is_the_finding_itself() {
    on_own_servers(&[("max_connections", "6")], async |_, tenant| {
        let mut taken = Vec::new();
        while let Ok((client, connection)) =
            tokio_postgres::connect(&tenant.url(), tokio_postgres::NoTls).await
        {
            tokio::spawn(async move { drop(connection.await) });
            taken.push(client);
        }
        let config = tenant.config_for(FleetConfig::new(1, 0), small(1));
        let (error, text) = refused(tenant, config).await;
        assert!(matches!(error, BootError::DoesNotFit(_)), "{text}");
        // Which of its limits it was, the versions say in different words.
        says(&text, &["full", "It said: ", "FATAL: ", "SQLSTATE 53300"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_not_there_yet_is_failed_awaited_or_done_without() {
    on_own_servers(&[], async |server, tenant| {
        server.stop().await.unwrap();
        let boots = |when| {
            tenant
                .config(small(2))
                .boot(BootConfig::new().when_unavailable(when))
        };
        says(
            &refused(tenant, boots(WhenUnavailable::Fail)).await.1,
            &["no connection to", "to do: "],
        );
        let bounded = boots(WhenUnavailable::Wait(300 * MS));
        says(
            &refused(tenant, bounded).await.1,
            &["no connection to", "within"],
        );

        let without = Pool::connect(boots(WhenUnavailable::Start)).await.unwrap();
        let error = without.transactional().acquire().await.unwrap_err();
        assert!(!error.is_rejection(), "{error}");
        let waits = tokio::spawn(Pool::connect(boots(WhenUnavailable::Wait(LONG * 3))));
        server.start().await.unwrap();
        let waited = waits.await.unwrap().unwrap();
        for pool in [waited, without] {
            let held = pool.transactional().acquire_by(LONG).await.unwrap();
            held.simple_query("SELECT 1").await.unwrap();
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn min_idle_is_filled_and_what_is_idle_for_long_or_old_is_closed() {
    on_each_version(async |tenant| {
        let ready = async |pool: &Pool, idle| {
            let filled = async || pool.transactional().status().idle == idle;
            eventually("the idle ones are as many as wanted", filled).await;
        };
        let pool = tenant
            .pool::<TokioPostgres>(small(5).min_idle(3).idle_timeout(10 * MS))
            .await;
        ready(&pool, 3).await;
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(pool.transactional().acquire_by(LONG).await.unwrap());
        }
        drop(held);
        ready(&pool, 3).await;
        eventually("the others are gone", async || {
            tenant.transactional_backends().await == 3
        })
        .await;
        drop(pool);
        tenant.until_gone().await;

        let pool = tenant
            .pool::<TokioPostgres>(small(1).max_lifetime(100 * MS))
            .await;
        let pid = async || -> i32 {
            let held = pool.transactional().acquire_by(LONG).await.unwrap();
            held.query_one("SELECT pg_backend_pid()", &[])
                .await
                .unwrap()
                .get(0)
        };
        let first = pid().await;
        eventually("the connection is replaced", async || pid().await != first).await;
        eventually("it is closed when it is old", async || {
            pool.transactional().status().connections() == 0
        })
        .await;
    })
    .await;
}
