//! What the fleet check says a server grants, against what it grants: by opening connections until it refuses.

use std::time::Duration;

use partitioned_pool::BootError;
use partitioned_pool::config::{
    BootConfig, ExternalPool, FleetConfig, PartitionConfig, PoolConfig,
};
use partitioned_pool::fleet::{FleetReport, Scope, Warning};
use tokio_postgres::{Client, NoTls};
use tracing::instrument::WithSubscriber as _;

use crate::postgres::{Postgres, Want};
use crate::support::driver::Pool;
use crate::support::log::Log;
use crate::support::patience::{LONG, eventually};
use crate::support::proxy::{Fault, Proxy};
use crate::support::server::{on_each_version, on_own_servers};
use crate::support::tenant::small;

/// The roles that a case may open connections as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Of `pg_use_reserved_connections`, where there is such a thing (16+).
    Member,
    Superuser,
}

impl Kind {
    fn role(self) -> &'static str {
        match self {
            Self::Plain => "cap_plain",
            Self::Member => "cap_member",
            Self::Superuser => "cap_super",
        }
    }
}

/// A role, its limit, that of the database, and who is connected: superusers elsewhere, and others here.
type Case = (Kind, i32, i32, usize, usize);

const NONE: i32 = -1;

const CASES: [Case; 21] = [
    (Kind::Plain, NONE, NONE, 0, 0),
    (Kind::Plain, 4, NONE, 0, 0),
    (Kind::Plain, NONE, 5, 0, 0),
    (Kind::Plain, 3, 5, 0, 0),
    (Kind::Plain, 5, 3, 0, 0),
    (Kind::Plain, 40, 50, 0, 0),
    (Kind::Plain, NONE, NONE, 1, 0),
    (Kind::Plain, NONE, NONE, 3, 0),
    (Kind::Plain, NONE, NONE, 0, 3),
    (Kind::Plain, NONE, NONE, 2, 2),
    (Kind::Plain, NONE, 5, 0, 2),
    (Kind::Plain, 4, NONE, 2, 2),
    (Kind::Member, NONE, NONE, 0, 0),
    (Kind::Member, 3, NONE, 0, 0),
    (Kind::Member, NONE, 3, 0, 0),
    (Kind::Member, NONE, NONE, 3, 0),
    (Kind::Member, NONE, NONE, 2, 2),
    (Kind::Superuser, NONE, NONE, 0, 0),
    (Kind::Superuser, 1, NONE, 0, 0),
    (Kind::Superuser, NONE, 1, 0, 0),
    (Kind::Superuser, NONE, NONE, 2, 2),
];

/// A server, with a superuser who watches it and counts, and the one on which roles and databases are changed.
struct Site<'a> {
    server: &'a Postgres,
    watcher: &'a Client,
    writer: &'a Client,
}

const CONNECTED: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE usename IS NOT NULL AND datname IS NOT NULL AND pid <> pg_backend_pid()";

impl Site<'_> {
    async fn open(&self, role: &str, database: &str) -> Result<Client, tokio_postgres::Error> {
        connect(&url(self.server, role, database)).await
    }

    /// Waits until so many are connected besides the watcher.
    async fn until_connected(&self, wanted: usize) {
        eventually("as many are connected as are meant to be", async || {
            let count: i64 = self.watcher.query_one(CONNECTED, &[]).await.unwrap().get(0);
            usize::try_from(count).unwrap() == wanted
        })
        .await;
    }

    /// Sets the limits, and waits until they have come to the server.
    async fn limit(&self, (kind, role, database, ..): Case) {
        let sql = format!(
            "ALTER ROLE {} CONNECTION LIMIT {role}; ALTER DATABASE cap CONNECTION LIMIT {database}",
            kind.role()
        );
        self.writer.batch_execute(&sql).await.unwrap();
        replayed(self.writer, self.watcher).await;
    }

    async fn check(&self, role: &str) -> FleetReport {
        let url = url(self.server, role, "cap");
        let config = PoolConfig::new("cap", url, FleetConfig::new(1, 0))
            .transactional(small(1))
            .analytical(PartitionConfig::analytical(1));
        Pool::check(config).await.unwrap()
    }

    /// What is granted, as the check predicts it, and as it turns out.
    async fn predicted_and_granted(&self, case: Case) -> [u64; 2] {
        let (kind, _, _, superusers, foreign) = case;
        self.until_connected(0).await;
        self.limit(case).await;
        let mut there = Vec::new();
        for _ in 0..superusers {
            there.push(self.open("cap_boss", "postgres").await.unwrap());
        }
        for _ in 0..foreign {
            there.push(self.open("cap_foreign", "cap").await.unwrap());
        }
        let report = self.check(kind.role()).await;
        self.until_connected(there.len()).await;
        let mut granted = Vec::new();
        let refused = loop {
            match self.open(kind.role(), "cap").await {
                Ok(client) => granted.push(client),
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused.code().map(|c| c.code()), Some("53300"), "{refused}");
        [predicted(&report), u64::try_from(granted.len()).unwrap()]
    }

    /// Every case, of which `name` says on what.
    async fn holds_what_is_predicted(&self, name: &str) {
        let mut told = Vec::new();
        for case in CASES {
            let [predicted, granted] = self.predicted_and_granted(case).await;
            let wrong = if predicted == granted { "" } else { " WRONG" };
            told.push(format!(
                "{name}, {case:?}: {predicted} predicted, {granted} granted{wrong}"
            ));
        }
        println!("{}", told.join("\n"));
        let wrong: Vec<_> = told.iter().filter(|line| line.ends_with("WRONG")).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        self.until_connected(0).await;
    }
}

/// The least that is left under a limit, with those who are there.
fn predicted(report: &FleetReport) -> u64 {
    let constraints = report.servers()[0].constraints.iter();
    let left = constraints.map(|c| c.granted.saturating_sub(c.others));
    left.min().unwrap()
}

fn url(server: &Postgres, role: &str, database: &str) -> String {
    let (host, port) = (server.host(), server.port());
    format!("postgres://{role}:cap@{host}:{port}/{database}")
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// Waits until what `writer` has written can be read by `reader`, also if that is on a standby.
async fn replayed(writer: &Client, reader: &Client) {
    let there = "SELECT pg_current_wal_insert_lsn()::text";
    let written: String = writer.query_one(there, &[]).await.unwrap().get(0);
    let sql = format!(
        "SELECT NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() >= '{written}'::pg_lsn"
    );
    eventually("it is replayed", async || {
        reader.query_one(&sql, &[]).await.unwrap().get(0)
    })
    .await;
}

/// The roles of all cases, the database, and who else is there.
async fn set_up(admin: &Client, major: u32) {
    let roles = "CREATE ROLE cap_plain LOGIN PASSWORD 'cap'; \
        CREATE ROLE cap_member LOGIN PASSWORD 'cap'; \
        CREATE ROLE cap_foreign LOGIN PASSWORD 'cap'; \
        CREATE ROLE cap_super LOGIN SUPERUSER PASSWORD 'cap'; \
        CREATE ROLE cap_boss LOGIN SUPERUSER PASSWORD 'cap'";
    admin.batch_execute(roles).await.unwrap();
    admin.batch_execute("CREATE DATABASE cap").await.unwrap();
    if major >= 16 {
        let member = "GRANT pg_use_reserved_connections TO cap_member";
        admin.batch_execute(member).await.unwrap();
    }
}

const SMALL: [(&str, &str); 2] = [
    ("max_connections", "14"),
    ("superuser_reserved_connections", "3"),
];

/// Keeps some slots for those who may use them, where the version can; else more for superusers.
async fn keep_some_back(server: &Postgres, admin: &Client) {
    let setting = match server.major() {
        16.. => "reserved_connections = 4",
        _ => "superuser_reserved_connections = 5",
    };
    let sql = format!("ALTER SYSTEM SET {setting}");
    admin.batch_execute(&sql).await.unwrap();
    server.restart().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_check_predicts_is_what_the_server_grants() {
    on_own_servers(&SMALL, async |server, tenant| {
        set_up(&tenant.admin, server.major()).await;
        let major = server.major();
        let site = Site {
            server,
            watcher: &tenant.admin,
            writer: &tenant.admin,
        };
        site.holds_what_is_predicted(&format!("{major}")).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_check_predicts_is_what_a_server_that_keeps_some_back_and_its_standby_grant() {
    // The settings of a command line cannot be changed, so they are the server's own.
    on_own_servers(&SMALL[..1], async |server, tenant| {
        set_up(&tenant.admin, server.major()).await;
        keep_some_back(server, &tenant.admin).await;
        let major = server.major();
        let admin = connect(server.url()).await.unwrap();
        let site = Site {
            server,
            watcher: &admin,
            writer: &admin,
        };
        site.holds_what_is_predicted(&format!("{major}, some kept back"))
            .await;

        let more = Want::default().setting("max_connections", 17);
        let standby = server.standby(more).await.unwrap();
        let watcher = connect(standby.url()).await.unwrap();
        let site = Site {
            server: &standby,
            watcher: &watcher,
            writer: &admin,
        };
        site.holds_what_is_predicted(&format!("{major}, a standby"))
            .await;
    })
    .await;
}

/// What a connection costs that asks nothing.
async fn traffic_of_one(proxy: &Proxy, url: &str) -> u64 {
    let before = proxy.traffic();
    drop(connect(url).await.unwrap());
    // Its last word is a message of its own.
    eventually("it has said its last word", async || {
        proxy.traffic().since(before).from_clients > 3
    })
    .await;
    proxy.traffic().since(before).round_trips
}

#[tokio::test(flavor = "multi_thread")]
async fn the_check_takes_one_connection_and_three_round_trips() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let url = tenant.url_by(&proxy);
        let bare = traffic_of_one(&proxy, &url).await;
        let config = || {
            let batch =
                PartitionConfig::named("batch", partitioned_pool::config::Kind::Analytical, 2);
            tenant
                .config_for(FleetConfig::new(1, 0), small(3))
                .url(url.as_str())
                .partition(batch)
        };
        let before = proxy.traffic();
        let report = Pool::check(config()).await.unwrap();
        tenant.until_gone().await;
        let cost = proxy.traffic().since(before);
        assert_eq!(report.needed(), Some(3 + 1 + 2));
        assert_eq!(cost.connections, 1);
        assert!(cost.round_trips <= bare + 3, "{cost:?} and {bare}");

        // To start, each partition connects and reads its limits back; the server is asked once.
        let before = proxy.traffic();
        let pool = Pool::connect(config()).await.unwrap();
        let cost = proxy.traffic().since(before);
        assert_eq!(pool.fleet_report().unwrap().needed(), report.needed());
        assert_eq!(cost.connections, 3);
        assert!(
            cost.round_trips <= 3 * bare + 3 + 2 * 2,
            "{cost:?} and {bare}"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_behind_two_urls_and_two_roles_is_one_whatever_their_time_zones() {
    on_each_version(async |tenant| {
        let name = &tenant.name;
        let sql = format!(
            "CREATE ROLE {name}_far LOGIN PASSWORD '{name}'; ALTER ROLE {name}_far CONNECTION LIMIT 7; \
             ALTER ROLE {name}_far SET timezone = 'Asia/Tokyo'; ALTER ROLE {name}_far SET datestyle = 'German'"
        );
        tenant.sql(&sql).await;
        let proxy = tenant.proxy().await;
        let far = tenant.url_by(&proxy).replacen(name, &format!("{name}_far"), 1);
        let config = PoolConfig::new(name, tenant.url(), FleetConfig::new(2, 0))
            .transactional(small(3))
            .analytical(PartitionConfig::analytical(2).url(far));
        let report = Pool::check(config).await.unwrap();
        eventually("it has left", async || {
            let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{name}_far'");
            let count: i64 = tenant.admin.query_one(&sql, &[]).await.unwrap().get(0);
            count == 0
        })
        .await;
        tenant.sql(&format!("DROP ROLE {name}_far")).await;
        let [server] = report.servers() else {
            panic!("{report}")
        };
        assert_eq!(server.constraints[0].needed, 2 * (3 + 2));
        let limit = (&server.constraints[1].scope, server.constraints[1].granted);
        let role = format!("{name}_far");
        assert_eq!(limit, (&Scope::Role { name: role }, 7));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_a_role_and_a_database_that_only_an_external_pool_uses_are_read() {
    on_each_version(async |tenant| {
        let name = &tenant.name;
        let far = tenant.own_database().await;
        let sql = format!(
            "ALTER DATABASE {name} CONNECTION LIMIT 5; CREATE ROLE {name}_jobs CONNECTION LIMIT 6"
        );
        tenant.sql(&sql).await;
        let jobs = ExternalPool::new("jobs", 7)
            .role(format!("{name}_jobs"))
            .database(name.as_str());
        let fleet = FleetConfig::new(1, 0).external(jobs);
        let report = Pool::check(tenant.config_for(fleet, small(1)))
            .await
            .unwrap();
        tenant.sql(&format!("DROP ROLE {name}_jobs")).await;
        let limits = report.smallest_limits().iter();
        let limits: Vec<_> = limits.map(|l| (l.setting, l.from, l.to)).collect();
        let expected = [("rolconnlimit", 6, Some(7)), ("datconnlimit", 5, Some(7))];
        assert_eq!(limits, expected, "{far}: {report}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_and_its_standby_are_two_servers_each_with_its_own_limits() {
    on_own_servers(&[("max_connections", "20")], async |server, tenant| {
        let more = Want::default().setting("max_connections", 30);
        let standby = server.standby(more).await.unwrap();
        let watcher = connect(standby.url()).await.unwrap();
        replayed(&tenant.admin, &watcher).await;
        let [first, second] = [server, &standby].map(|s| (s.host(), s.port()));
        let at = |(host, port): (&str, u16)| tenant.url_at(host, port);
        let fleet = || FleetConfig::new(2, 0);
        let apart = PoolConfig::new(&tenant.name, at(first), fleet())
            .transactional(small(4))
            .analytical(PartitionConfig::analytical(3).url(at(second)));
        let report = Pool::check(apart).await.unwrap();
        assert_eq!(totals(&report), [(8, 17), (6, 27)], "{report}");

        // The hosts of these urls can bring each partition to either.
        let list = |attributes: &str| {
            let (name, [(a, x), (b, y)]) = (&tenant.name, [first, second]);
            format!("postgres://{name}:{name}@{a}:{x},{b}:{y}/postgres?target_session_attrs={attributes}")
        };
        let both = PoolConfig::new(&tenant.name, list("read-write"), fleet())
            .transactional(small(4))
            .analytical(PartitionConfig::analytical(3).url(list("read-only")));
        let report = Pool::check(both).await.unwrap();
        assert_eq!(totals(&report), [(14, 17), (14, 27)], "{report}");
        let told = |w: &&Warning| matches!(w, Warning::CountedOnEach { .. });
        assert_eq!(report.warnings().iter().filter(told).count(), 2);
        assert!(report.to_string().contains("a standby"));
    })
    .await;
}

/// Needed and granted in all, of each server.
fn totals(report: &FleetReport) -> Vec<(u64, u64)> {
    let servers = report.servers().iter();
    let totals = servers.map(|s| (s.constraints[0].needed, s.constraints[0].granted));
    totals.collect()
}

/// What the check alone says of a way in that does not work.
async fn refused(config: PoolConfig) -> (BootError, String) {
    let refused = tokio::time::timeout(LONG, Pool::check(config)).await;
    let error = refused.expect("it has a bound").unwrap_err();
    let text = error.to_string();
    let to_do = text.lines().filter(|line| line.contains("to do: "));
    assert_eq!(to_do.count(), 1, "{text}");
    assert!(!text.contains("hunter2"), "{text}");
    (error, text)
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_keeps_the_check_from_the_server_is_typed_and_says_what_to_do() {
    on_each_version(async |tenant| {
        let (name, host, port) = (&tenant.name, tenant.host(), tenant.port());
        let with = |url: String| tenant.config_for(FleetConfig::new(1, 0), small(1)).url(url);

        let wrong = format!("postgres://{name}:hunter2@{host}:{port}/postgres");
        let (error, text) = refused(with(wrong)).await;
        assert!(matches!(error, BootError::Unavailable { .. }), "{text}");
        assert!(text.contains("28P01"), "{text}");

        let locked = tenant.own_database().await;
        let lock = format!(
            "ALTER DATABASE {name} OWNER TO postgres; REVOKE CONNECT ON DATABASE {name} FROM PUBLIC"
        );
        tenant.sql(&lock).await;
        let (_, text) = refused(with(locked)).await;
        assert!(
            text.contains("grant the role CONNECT on the database"),
            "{text}"
        );

        let proxy = tenant.proxy().await;
        proxy.set(Fault::Pause);
        let short = BootConfig::new().check_timeout(Duration::from_millis(500));
        let (error, text) = refused(with(tenant.url_by(&proxy)).boot(short)).await;
        assert!(matches!(error, BootError::Unavailable { .. }), "{text}");
        assert!(text.contains("500 ms"), "{text}");

        tenant
            .sql(&format!("ALTER ROLE {name} CONNECTION LIMIT 0"))
            .await;
        let report = Pool::check(with(tenant.url())).await.unwrap();
        assert!(!report.fits());
        let text = report.to_string();
        assert!(text.contains("SQLSTATE 53300"), "{text}");
    })
    .await;
}

#[tokio::test]
async fn a_fleet_that_fits_is_told_to_the_log_with_its_figures() {
    on_each_version(async |tenant| {
        let log = Log::default();
        let fleet = FleetConfig::new(3, 1).reserve(10);
        let config = tenant.config_for(fleet, small(4));
        // Each version runs in the same thread, and has a log of its own.
        let connecting = Pool::connect(config).with_subscriber(log.clone());
        let pool = connecting.await.unwrap();
        let told = log.take("the fleet fits");
        let [line] = &told[..] else {
            panic!("{told:?}")
        };
        let figures = [
            "INFO",
            "needed=30",
            "granted=97",
            "headroom=67",
            "largest_fleet=16",
        ];
        for part in figures {
            assert!(line.contains(part), "no {part} in {line}");
        }
        drop(pool);
    })
    .await;
}
