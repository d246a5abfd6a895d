//! Starting a pool on a real server: what is checked, what is refused, and how that reads.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use deadpool::managed::{Manager, Metrics, RecycleResult};
use partitioned_pool::config::{
    BootConfig, BudgetConfig, FleetCheck, FleetConfig, Limit, PartitionConfig, PartitionSettings,
    PoolConfig, WarningCode, WhenUnavailable,
};
use partitioned_pool::driver::{Driver, End, Endpoint, Readiness, Rows};
use partitioned_pool::error::Failure;
use partitioned_pool::{BootError, BootWarning, PartitionedPool};

use crate::postgres::Postgres;
use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::patience::{LONG, eventually};
use crate::support::proxy::Fault;
use crate::support::server::on_own_servers;
use crate::support::tenant::{Tenant, small};

on_each_driver![
    five_replicas_of_twenty_are_refused_by_a_server_of_a_hundred_with_the_arithmetic,
    partitions_that_share_a_budget_are_counted_once_with_its_capacity,
    what_fits_only_without_the_surge_is_refused,
    the_limits_of_the_role_and_of_the_database_count_too,
    a_fleet_that_does_not_fit_boots_if_the_owner_only_wants_to_be_told,
    two_urls_of_one_server_are_counted_as_one,
    the_limits_of_a_partition_hold_whatever_the_role_has,
    a_limit_that_is_not_in_force_is_a_boot_error_that_names_it,
    whatever_is_wrong_with_the_way_in_reads_as_one_block_that_says_what_to_do,
    a_server_that_never_answers_ends_the_boot_at_its_bound,
    a_role_without_a_free_connection_is_the_finding_itself,
    min_idle_is_filled_and_what_is_idle_for_long_or_old_is_closed,
    what_the_owner_should_know_is_kept_unless_it_is_silenced,
    ; alone: a_server_without_a_free_connection_is_the_finding_itself,
    a_database_that_is_not_there_yet_is_failed_awaited_or_done_without
];

const MS: Duration = Duration::from_millis(1);

/// The server, the role or the database says no at once; a loaded machine may take longer to say so.
const QUICK: Duration = Duration::from_secs(8);

/// What a boot error says, which is one block without a secret.
async fn refused<D: Tested>(tenant: &Tenant, config: PoolConfig) -> (BootError, String) {
    let began = Instant::now();
    let error = PartitionedPool::<D>::connect(config)
        .await
        .expect_err("it must not boot");
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

/// What each replica has beside its budgets.
fn beside<D: Tested, N: TryFrom<i64, Error: Debug>>() -> N {
    D::BESIDE.try_into().unwrap()
}

/// Twenty for each replica.
fn twenty(tenant: &Tenant, fleet: FleetConfig) -> PoolConfig {
    tenant.config_for(fleet, small(19))
}

async fn five_replicas_of_twenty_are_refused_by_a_server_of_a_hundred_with_the_arithmetic<
    D: Tested,
>(
    tenant: &Tenant,
) {
    let (error, text) = refused::<D>(tenant, twenty(tenant, FleetConfig::new(5, 0))).await;
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

    let pool = PartitionedPool::<D>::connect(twenty(tenant, FleetConfig::new(4, 0)))
        .await
        .unwrap();
    let report = pool.fleet_report().unwrap();
    assert_eq!(
        (report.needed(), report.granted(), report.fits()),
        (Some(80 + 4 * beside::<D, u64>()), Some(97), true)
    );
}

async fn partitions_that_share_a_budget_are_counted_once_with_its_capacity<D: Tested>(
    tenant: &Tenant,
) {
    let config = |replicas| {
        let fleet = FleetConfig::new(replicas, 0);
        PoolConfig::new(&tenant.name, tenant.url(), fleet)
            .budget(BudgetConfig::new("main", 30))
            .transactional(small(25).budget("main").reserved(12))
            .analytical(PartitionConfig::analytical(10).budget("main").reserved(0))
    };
    let report = PartitionedPool::<D>::check(config(3)).await.unwrap();
    assert_eq!(
        (report.needed(), report.granted(), report.fits()),
        (Some(90 + 3 * beside::<D, u64>()), Some(97), true)
    );
    tenant.until_gone().await;

    let (error, text) = refused::<D>(tenant, config(4)).await;
    let BootError::DoesNotFit(report) = error else {
        panic!("{text}")
    };
    let part = &report.binding().unwrap().per_replica[0];
    assert_eq!((part.name.as_str(), part.size), ("main", 30));
    let proposed = &report.largest_partitions().unwrap()[0];
    assert_eq!(
        (proposed.name.as_str(), proposed.size),
        ("main", 24 - beside::<D, u32>())
    );
    let reserved: Vec<_> = proposed.partitions.iter().map(|p| p.reserved).collect();
    assert_eq!(reserved, [12, 0]);
    says(&text, &["30 main (transactional up to 25"]);
}

async fn what_fits_only_without_the_surge_is_refused<D: Tested>(tenant: &Tenant) {
    let (error, text) = refused::<D>(tenant, twenty(tenant, FleetConfig::new(4, 1))).await;
    let BootError::DoesNotFit(report) = error else {
        panic!("{text}")
    };
    assert!(report.fits_without_surge() && !report.fits());
    says(&text, &["surge"]);
}

async fn the_limits_of_the_role_and_of_the_database_count_too<D: Tested>(tenant: &Tenant) {
    let name = &tenant.name;
    let two_replicas = (2 * (20 + D::BESIDE)).to_string();
    tenant
        .sql(&format!("ALTER ROLE {name} CONNECTION LIMIT 30"))
        .await;
    let (_, text) = refused::<D>(tenant, twenty(tenant, FleetConfig::new(2, 0))).await;
    says(&text, &[&format!("role {name}"), "30", &two_replicas]);

    tenant
        .sql(&format!("ALTER ROLE {name} CONNECTION LIMIT -1"))
        .await;
    let url = tenant.own_database().await;
    tenant
        .sql(&format!("ALTER DATABASE {name} CONNECTION LIMIT 25"))
        .await;
    let (_, text) = refused::<D>(
        tenant,
        twenty(tenant, FleetConfig::new(2, 0)).url(url.as_str()),
    )
    .await;
    says(&text, &[&format!("database {name}"), "25", &two_replicas]);
    PartitionedPool::<D>::connect(twenty(tenant, FleetConfig::new(1, 0)).url(url))
        .await
        .unwrap();
}

async fn a_fleet_that_does_not_fit_boots_if_the_owner_only_wants_to_be_told<D: Tested>(
    tenant: &Tenant,
) {
    let fleet = FleetConfig::new(50, 10);
    let pool = PartitionedPool::<D>::connect(twenty(tenant, fleet.clone().mode(FleetCheck::Warn)))
        .await
        .unwrap();
    assert!(!pool.fleet_report().unwrap().fits());
    drop(pool);
    let pool = PartitionedPool::<D>::connect(twenty(tenant, fleet.clone().mode(FleetCheck::Off)))
        .await
        .unwrap();
    assert!(pool.fleet_report().is_none());
    let report = PartitionedPool::<D>::check(twenty(tenant, fleet))
        .await
        .unwrap();
    assert!(!report.fits());
    drop(pool);
    tenant.until_gone().await;
}

async fn two_urls_of_one_server_are_counted_as_one<D: Tested>(tenant: &Tenant) {
    let proxy = tenant.proxy().await;
    let reports = PartitionConfig::analytical(49).url(tenant.url_by(&proxy));
    let config = PoolConfig::new(&tenant.name, tenant.url(), FleetConfig::new(1, 0))
        .transactional(small(49))
        .analytical(reports);
    let (_, text) = refused::<D>(tenant, config).await;
    // A control connection goes where its url leads, and there are two.
    let needed = (98 + 2 * D::BESIDE).to_string();
    says(&text, &[&needed, "97", "transactional", "analytical"]);
}

async fn the_limits_of_a_partition_hold_whatever_the_role_has<D: Tested>(tenant: &Tenant) {
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
        .pool::<D>(
            small(1)
                .statement_timeout(1500 * MS)
                .lock_timeout(Limit::Off),
        )
        .await;
    let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
    let mut shown = async |setting: &str| held.ask(&format!("SHOW {setting}")).await;
    assert_eq!(shown("statement_timeout").await, "1500ms");
    assert_eq!(shown("lock_timeout").await, "0");
    assert_eq!(shown("idle_in_transaction_session_timeout").await, "5s");
    if shown("server_version_num").await.as_str() >= "170000" {
        assert_eq!(shown("transaction_timeout").await, "30s");
    }
    let late = held.say("SELECT pg_sleep(60)").await.unwrap_err();
    assert_eq!(late.code(), Some("57014"));
}

/// A driver behind something that drops session settings.
struct Undressed<D>(D);

impl<D: Driver> Manager for Undressed<D> {
    type Type = <D as Manager>::Type;
    type Error = <D as Manager>::Error;

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

impl<D: Driver> Driver for Undressed<D> {
    type Client = <D as Driver>::Client;
    type Options = D::Options;

    fn new(settings: &PartitionSettings, options: &D::Options, _: &[Self]) -> Result<Self, String> {
        D::new(settings, options, &[]).map(Self)
    }

    fn tag(&self, tag: &str) {
        self.0.tag(tag);
    }

    fn endpoint(&self) -> &Endpoint {
        self.0.endpoint()
    }

    fn can_dress(&self, other: &Self) -> bool {
        self.0.can_dress(&other.0)
    }

    fn client(session: &Self::Type) -> &Self::Client {
        D::client(session)
    }

    fn client_mut(session: &mut Self::Type) -> &mut Self::Client {
        D::client_mut(session)
    }

    fn readiness(session: &Self::Type) -> Readiness {
        D::readiness(session)
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
        D::failure(error)
    }
}

async fn a_limit_that_is_not_in_force_is_a_boot_error_that_names_it<D: Tested>(tenant: &Tenant) {
    let config = tenant.config(small(1).statement_timeout(2000 * MS));
    let error = PartitionedPool::<Undressed<D>>::connect(config)
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
}

async fn whatever_is_wrong_with_the_way_in_reads_as_one_block_that_says_what_to_do<D: Tested>(
    tenant: &Tenant,
) {
    let (name, host, port) = (&tenant.name, tenant.host(), tenant.port());
    let with = |url: String| tenant.config(small(1)).url(url);

    let wrong = format!("postgres://{name}:hunter2@{host}:{port}/postgres");
    let (error, text) = refused::<D>(tenant, with(wrong)).await;
    assert!(matches!(error, BootError::Unavailable { .. }));
    says(
        &text,
        &[
            "partition transactional",
            "28P01",
            "to do: check the user and the password in the url",
        ],
    );

    let wrong = format!("postgres://{name}:{name}@{host}:{port}/nowhere");
    says(
        &refused::<D>(tenant, with(wrong)).await.1,
        &[
            "3D000",
            "nowhere",
            "to do: check the database name in the url",
        ],
    );

    let locked = tenant.own_database().await;
    tenant
        .sql(&format!(
            "ALTER DATABASE {name} OWNER TO postgres; REVOKE CONNECT ON DATABASE {name} FROM PUBLIC"
        ))
        .await;
    says(
        &refused::<D>(tenant, with(locked)).await.1,
        &["42501", "to do: grant the role CONNECT on the database"],
    );

    let nobody = format!("postgres://{name}:hunter2@127.0.0.1:1/postgres");
    says(
        &refused::<D>(tenant, with(nobody)).await.1,
        &[
            "127.0.0.1:1",
            "refused",
            "to do: check the url, and that the server is up",
        ],
    );

    let (error, text) = refused::<D>(tenant, with("postgres:/hunter2@".to_owned())).await;
    assert!(matches!(error, BootError::Config(_)), "{text}");
    says(&text, &["partition.transactional.url"]);
}

async fn a_server_that_never_answers_ends_the_boot_at_its_bound<D: Tested>(tenant: &Tenant) {
    let proxy = tenant.proxy().await;
    proxy.set(Fault::Pause);
    let boot = BootConfig::new().check_timeout(500 * MS);
    let config = tenant
        .config(small(1))
        .url(tenant.url_by(&proxy))
        .boot(boot);
    let (error, text) = refused::<D>(tenant, config).await;
    assert!(matches!(error, BootError::Unavailable { .. }));
    says(&text, &["connect", "500 ms", "to do: "]);
}

async fn a_role_without_a_free_connection_is_the_finding_itself<D: Tested>(tenant: &Tenant) {
    tenant
        .sql(&format!("ALTER ROLE {} CONNECTION LIMIT 1", tenant.name))
        .await;
    let (taken, connection) = tokio_postgres::connect(&tenant.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let (error, text) = refused::<D>(tenant, twenty(tenant, FleetConfig::new(1, 0))).await;
    assert!(matches!(error, BootError::DoesNotFit(_)), "{text}");
    let needed = format!("needs {}", 20 + D::BESIDE);
    let said = format!("too many connections for role \"{}\"", tenant.name);
    says(
        &text.replace('\n', " "),
        &["full", &needed, "It said: ", &said],
    );
    drop(taken);
}

async fn a_server_without_a_free_connection_is_the_finding_itself<D: Tested>() {
    on_own_servers(&[("max_connections", "6")], async |_, tenant| {
        let mut taken = Vec::new();
        while let Ok((client, connection)) =
            tokio_postgres::connect(&tenant.url(), tokio_postgres::NoTls).await
        {
            tokio::spawn(async move { drop(connection.await) });
            taken.push(client);
        }
        let config = tenant.config_for(FleetConfig::new(1, 0), small(1));
        let (error, text) = refused::<D>(tenant, config).await;
        assert!(matches!(error, BootError::DoesNotFit(_)), "{text}");
        // Which of its limits it was, the versions say in different words.
        says(&text, &["full", "It said: ", "SQLSTATE 53300"]);
    })
    .await;
}

/// Stops the server, and has it come up late; and never, at first.
async fn without_a_database<D: Tested>(server: &Postgres, tenant: &Tenant) {
    server.stop().await.unwrap();
    let boots = |when| {
        let boot = BootConfig::new().when_unavailable(when);
        tenant.config(small(2)).boot(boot)
    };
    let never = async |when| {
        let began = Instant::now();
        let error = PartitionedPool::<D>::connect(boots(when)).await;
        let error = error.expect_err("it must not boot");
        assert!(began.elapsed() < QUICK, "{:?}", began.elapsed());
        assert!(matches!(error, BootError::Unavailable { .. }), "{error}");
        says(
            &error.to_string(),
            &["no connection to", "within", "to do: "],
        );
        began.elapsed()
    };
    never(WhenUnavailable::Fail).await;
    assert!(never(WhenUnavailable::Wait(300 * MS)).await >= 300 * MS);

    let start = boots(WhenUnavailable::Start);
    let without = PartitionedPool::<D>::connect(start).await.unwrap();
    let error = without.transactional().acquire().await.unwrap_err();
    assert!(!error.is_rejection(), "{error}");
    let health = without.ready(LONG).await;
    assert!(
        health.partitions.iter().all(|one| !one.is_ready()),
        "{health}"
    );

    let wait = boots(WhenUnavailable::Wait(LONG * 3));
    let waits = tokio::spawn(PartitionedPool::<D>::connect(wait));
    tokio::time::sleep(300 * MS).await;
    assert!(!waits.is_finished(), "it waits");
    server.start().await.unwrap();
    let waited = waits.await.unwrap().unwrap();
    for pool in [waited, without] {
        eventually("it is ready", async || pool.ready(LONG).await.is_ready()).await;
        let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
        assert_eq!(held.ask("SELECT 1").await, "1");
    }
}

async fn a_database_that_is_not_there_yet_is_failed_awaited_or_done_without<D: Tested>() {
    on_own_servers(&[], async |server, tenant| {
        without_a_database::<D>(server, tenant).await;
    })
    .await;
}

async fn what_the_owner_should_know_is_kept_unless_it_is_silenced<D: Tested>(tenant: &Tenant) {
    let name = &tenant.name;
    tenant
        .sql(&format!(
            "ALTER ROLE {name} SET idle_session_timeout = '5min'"
        ))
        .await;
    let stated = small(2)
        .acquire_timeout(1000 * MS)
        .caller_deadline(500 * MS)
        .max_lifetime(Duration::from_secs(300))
        .statement_timeout(Limit::Off);
    let codes = async |fleet: FleetConfig, silence: &[WarningCode]| {
        let boot = BootConfig::new().silence(silence.iter().copied());
        let config = tenant.config_for(fleet, stated.clone()).boot(boot);
        let pool = PartitionedPool::<D>::connect(config).await.unwrap();
        let codes: Vec<_> = pool.warnings().iter().map(BootWarning::code).collect();
        pool.warnings()
            .iter()
            .for_each(|warning| println!("{warning}"));
        codes
    };
    let all = [
        WarningCode::SharedServer,
        WarningCode::AcquireTimeout,
        WarningCode::IdleTimeout,
        WarningCode::MaxLifetime,
    ];
    let (on, off) = (
        FleetConfig::new(1, 0),
        FleetConfig::new(1, 0).mode(FleetCheck::Off),
    );
    assert_eq!(
        codes(on.clone(), &[]).await,
        all,
        "by what the server says that it is"
    );
    assert_eq!(codes(off, &[]).await, all, "by its hosts");
    assert_eq!(codes(on.clone(), &all[1..]).await, all[..1]);
    assert!(codes(on, &all).await.is_empty());

    let undone = stated.setting("idle_session_timeout", "0");
    let pool = PartitionedPool::<D>::connect(tenant.config(undone))
        .await
        .unwrap();
    let idle = pool
        .warnings()
        .iter()
        .any(|warning| warning.code() == WarningCode::IdleTimeout);
    assert!(
        !idle,
        "a setting of the partition counts: {:?}",
        pool.warnings()
    );
}

async fn min_idle_is_filled_and_what_is_idle_for_long_or_old_is_closed<D: Tested>(tenant: &Tenant) {
    let ready = async |pool: &PartitionedPool<D>, idle| {
        let filled = async || pool.transactional().status().idle == idle;
        eventually("the idle ones are as many as wanted", filled).await;
    };
    let pool = tenant
        .pool::<D>(small(5).min_idle(3).idle_timeout(10 * MS))
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

    let pool = tenant.pool::<D>(small(1).max_lifetime(100 * MS)).await;
    let pid = async || {
        let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
        held.ask("SELECT pg_backend_pid()").await
    };
    let first = pid().await;
    eventually("the connection is replaced", async || pid().await != first).await;
    eventually("it is closed when it is old", async || {
        pool.transactional().status().connections() == 0
    })
    .await;
}
