//! Secrets, marked: nothing that the public API lets one see has them, and nothing that is told to the log.

use std::error::Error;
use std::fmt::{Debug, Display};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use partitioned_pool::config::{
    BootConfig, FleetConfig, PartitionConfig, PoolConfig, WhenUnavailable,
};
use partitioned_pool::driver::{AskForPasswords, Endpoint, PasswordProvider};
use partitioned_pool::error::{Failure, Phase};
use partitioned_pool::{AcquireError, BootError, Builder, Connection, Driver, PartitionedPool};
use tokio::runtime;
use tokio::task::spawn_blocking;

use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::log::Log;
use crate::support::patience::{LONG, eventually};
use crate::support::server::on_each_version;
use crate::support::tenant::{Tenant, small};

on_each_driver![
    ; alone: no_password_of_a_url_is_printed,
    no_password_of_a_provider_is_printed,
    no_url_that_cannot_be_used_is_repeated,
    no_parameter_of_a_statement_is_printed,
    of_an_answer_of_the_server_its_message_and_code_are_told_and_no_more
];

const MS: Duration = Duration::from_millis(1);

/// What is a part of each secret.
const MARK: &str = "S3CRET";

/// The same in a URL, and as an error of a parser might show it.
const DISGUISED: [&str; 2] = ["%53%33%43%52%45%54", "83, 51, 67, 82, 69, 84"];

/// What was printed, and of what.
#[derive(Default)]
struct Printed(Vec<(&'static str, String)>);

impl Printed {
    fn text(&mut self, what: &'static str, text: impl Into<String>) {
        self.0.push((what, text.into()));
    }

    fn debug(&mut self, what: &'static str, it: &(impl Debug + ?Sized)) {
        self.text(what, format!("{it:?}\n{it:#?}"));
    }

    fn both(&mut self, what: &'static str, it: &(impl Debug + Display + ?Sized)) {
        self.debug(what, it);
        self.text(what, format!("{it}\n{it:#}"));
    }

    /// An error with all that it says it comes from.
    fn error(&mut self, what: &'static str, error: &(dyn Error + 'static)) {
        let mut next = Some(error);
        while let Some(error) = next {
            self.both(what, error);
            next = error.source();
        }
    }

    /// Nothing has a secret; and something has this, so that it is not nothing that was printed.
    #[track_caller]
    fn has_no_secret_but(&self, expected: &str) {
        for (what, text) in &self.0 {
            let mut marks = std::iter::once(MARK).chain(DISGUISED);
            let found = marks.find(|mark| text.contains(mark));
            assert!(found.is_none(), "{what} has {found:?}: {text}");
        }
        let shown = self.0.iter().any(|(_, text)| text.contains(expected));
        assert!(shown, "nothing has {expected}: {:?}", self.0);
    }
}

#[test]
#[should_panic(expected = "a word has")]
fn a_secret_that_is_printed_is_found() {
    let mut printed = Printed::default();
    printed.error("a word", &io::Error::other(format!("of {MARK}")));
    printed.has_no_secret_but("of");
}

/// Drivers of which all can be printed that they show.
trait Shown:
    Tested + Debug + Driver<Options: AskForPasswords + Debug, Type: Debug, Error: Error>
{
}

impl<D> Shown for D where
    D: Tested + Debug + Driver<Options: AskForPasswords + Debug, Type: Debug, Error: Error>
{
}

/// Runs `test` in one thread, so that all that is told to the log is kept, by whatever task; then nothing of that may have
/// a secret either.
async fn logged<F>(test: F)
where
    F: AsyncFn(&Tenant, &Log) + Send + 'static,
{
    let in_this_thread = move || {
        let log = Log::default();
        let _here = tracing::subscriber::set_default(log.clone());
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let on_each = on_each_version(async |tenant: &Tenant| test(tenant, &log).await);
        runtime.unwrap().block_on(on_each);
        let mut told = Printed::default();
        for line in log.take("") {
            told.text("the log", line);
        }
        told.has_no_secret_but("");
    };
    spawn_blocking(in_this_thread).await.unwrap();
}

/// In a URL, each byte of it.
fn encoded(secret: &str) -> String {
    secret.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The tenant's URLs with this password, in each form that the driver reads.
fn urls<D: Tested>(tenant: &Tenant, password: &str) -> Vec<String> {
    let (name, host, port) = (&tenant.name, tenant.host(), tenant.port());
    let encoded = encoded(password);
    let mut urls = vec![
        format!("postgres://{name}:{password}@{host}:{port}/postgres"),
        format!("postgres://{name}:{encoded}@{host}:{port}/postgres"),
        format!("postgres://{name}@{host}:{port}/postgres?password={password}"),
        format!("postgres://{name}@{host}:{port}/postgres?password={encoded}&application_name=x"),
    ];
    if D::READS_PAIRS {
        let pairs = format!("host={host} port={port} user={name} dbname=postgres");
        urls.push(format!("{pairs} password={password}"));
        urls.push(format!("password='{password}' {pairs}"));
    }
    urls
}

fn config(tenant: &Tenant, url: &str) -> PoolConfig {
    let partition = small(2).acquire_timeout(LONG).connect_timeout(LONG);
    let fleet = FleetConfig::new(1, 0);
    tenant.config_for(fleet, partition).url(url)
}

async fn refused<D: Driver>(builder: Builder<D>) -> BootError {
    builder.connect().await.expect_err("it must not start")
}

async fn no_password_of_a_url_is_printed<D: Shown>() {
    logged(async |tenant: &Tenant, _: &Log| {
        let mut printed = Printed::default();
        let (name, password) = (&tenant.name, format!("{MARK}-of-a-url"));
        for url in urls::<D>(tenant, &password) {
            // Not the role's yet.
            tenant
                .sql(&format!("ALTER ROLE {name} PASSWORD 'other'"))
                .await;
            let config = config(tenant, &url);
            let wrong = refused(PartitionedPool::<D>::builder(config.clone())).await;
            assert!(wrong.to_string().contains("SQLSTATE 28P01"), "{wrong}");
            printed.error("a wrong password", &wrong);

            let sql = format!("ALTER ROLE {name} PASSWORD '{password}'");
            tenant.sql(&sql).await;
            see_configuration::<D>(&mut printed, &config).await;
            let builder = PartitionedPool::<D>::builder(config);
            see_pool(&mut printed, tenant, builder).await;
        }
        see_absent::<D>(&mut printed, tenant).await;
        tenant
            .sql(&format!("ALTER ROLE {name} PASSWORD '{name}'"))
            .await;
        printed.has_no_secret_but(name);
    })
    .await;
}

async fn see_configuration<D: Shown>(printed: &mut Printed, config: &PoolConfig) {
    printed.debug("the configuration", config);
    let settings = config.clone().resolve().unwrap();
    printed.debug("the settings", &settings);
    let builder = || PartitionedPool::<D>::builder(config.clone());
    printed.debug("the builder", &builder());
    printed.debug("the logins", &builder().logins().unwrap());
    printed.debug("the options", builder().options_mut());
    let report = builder().check().await.unwrap();
    printed.both("the report", &report);
    printed.text(
        "the report as JSON",
        serde_json::to_string(&report).unwrap(),
    );

    let options = D::Options::default();
    let driver = D::new(&settings.partitions[0], &options, &[]).unwrap();
    printed.debug("the driver", &driver);
    let session = driver.create().await.unwrap();
    printed.debug("a session", &session);
    driver.close(session).await;
    driver.retire().await;
}

/// All that a pool shows of itself, while it works and when it refuses.
async fn see_pool<D: Shown>(printed: &mut Printed, tenant: &Tenant, builder: Builder<D>) {
    let pool = builder.connect().await.unwrap();
    let partition = pool.transactional();
    printed.debug("the pool", &pool);
    printed.debug("a partition", partition);
    printed.debug("its settings", partition.settings());
    printed.both("its endpoint", partition.endpoint());
    printed.both("the report at boot", pool.fleet_report().unwrap());
    assert!(!pool.warnings().is_empty());
    for warning in pool.warnings() {
        printed.both("a warning", warning);
    }
    let mut held = partition.acquire().await.unwrap();
    let other = partition.acquire().await.unwrap();
    printed.debug("a connection", &held);
    for one in partition.holders() {
        printed.both("a holder", &one);
    }
    let rejected = partition.try_acquire().await.unwrap_err();
    assert!(rejected.is_rejection(), "{rejected}");
    printed.error("a rejection", &rejected);
    let late = partition.acquire_by(MS).await.unwrap_err();
    printed.error("no slot in time", &late);
    for holders in pool.holders_with_statements(LONG).await {
        printed.both("the holders", &holders);
    }
    printed.debug("the health", &pool.ready(LONG).await);
    printed.debug("the status", &pool.status());
    printed.both("a partition's status", &partition.status());
    printed.both("a diagnosis", &pool.diagnose());
    let wrong = held.say("SELECT nothing").await.unwrap_err();
    printed.both("a wrong statement", &wrong);
    tenant.terminate_all().await;
    let ended = held.say("SELECT 1").await.unwrap_err();
    printed.both("a connection that has ended", &ended);
    drop(held);
    printed.debug("a detached connection", &other.detach());
    printed.debug("how it was closed", &pool.close(LONG).await);
    let closed = partition.acquire().await.unwrap_err();
    printed.error("a closed pool", &closed);
}

/// A pool that starts without its database.
async fn see_absent<D: Shown>(printed: &mut Printed, tenant: &Tenant) {
    let url = format!("postgres://{}:{MARK}@127.0.0.1:1/shop", tenant.name);
    let absent = BootConfig::new().when_unavailable(WhenUnavailable::Start);
    let builder = PartitionedPool::<D>::builder(config(tenant, &url).boot(absent));
    let pool = builder.connect().await.unwrap();
    let partition = pool.transactional();
    let failed = partition.acquire_by(300 * MS).await.unwrap_err();
    assert_eq!(failed.phase(), Phase::Connect, "{failed}");
    printed.error("a connect that failed", &failed);
    let health = pool.ready(LONG).await;
    printed.debug("an ill health", &health);
    for partition in health.partitions {
        printed.error("why it is not ready", &partition.not_ready.unwrap());
    }
    printed.both("a diagnosis without a server", &pool.diagnose());
    pool.close(LONG).await;
}

async fn no_password_of_a_provider_is_printed<D: Shown>() {
    logged(async |tenant: &Tenant, _: &Log| {
        let mut printed = Printed::default();
        let (name, password) = (&tenant.name, format!("{MARK}-of-a-vault"));
        let secret = password.clone();
        let provider = PasswordProvider::new("vault", move |_: Endpoint| {
            let secret = secret.clone();
            async move { Ok::<_, io::Error>(secret) }
        });
        printed.debug("the provider", &provider);
        let url = format!(
            "postgres://{name}:{MARK}-not-used@{}:{}/postgres",
            tenant.host(),
            tenant.port()
        );
        let builder = || {
            let builder = PartitionedPool::<D>::builder(config(tenant, &url));
            builder.password_provider(provider.clone())
        };
        printed.error("a wrong password", &refused(builder()).await);
        let sql = format!("ALTER ROLE {name} PASSWORD '{password}'");
        tenant.sql(&sql).await;
        printed.debug("the builder", &builder());
        printed.debug("the options", builder().options_mut());
        printed.both("the report", &builder().check().await.unwrap());
        see_pool(&mut printed, tenant, builder()).await;
        printed.has_no_secret_but("vault");
    })
    .await;
}

/// Connection texts that hold a secret and cannot be used.
fn useless() -> Vec<String> {
    let secret = encoded(MARK);
    vec![
        format!("postgres://app:{MARK}@x@db/shop"),
        format!("postgres://app:{MARK}/x@db/shop"),
        format!("postgres://app:{MARK}?x@db/shop"),
        format!("postgres://app:{MARK}#x@db/shop"),
        format!("postgres://app:x@{MARK}@db/shop"),
        format!("postgres://app:{MARK}"),
        format!("postgres://app:{MARK}@db:many/shop"),
        format!("postgres://app:{secret}%@db:many/shop"),
        format!("postgres://app:%ff{secret}@db/shop?sslmode=never"),
        format!("postgres://app@db/shop?password={MARK}&x&y"),
        format!("postgres://app@db/shop?password=x&{MARK}=y"),
        format!("postgres://app@db/shop?sslpassword={MARK}&sslkey=/k&sslcert=/c"),
        format!("postgres://app@db/shop?sslmode={MARK}"),
        format!("postgres://app@db/shop?channel_binding={MARK}"),
        format!("postgres://app@db/shop?oauth_client_secret={MARK}"),
        format!("postgres://app@db/shop?scram_client_key={MARK}"),
        format!("host=db user=app password={MARK} x sslmode=never"),
        format!("host=db user=app password='{MARK}"),
        format!("host=db user=app password={MARK} passwort=x"),
        format!("user=app password={MARK}"),
        format!("mysql://app:{MARK}@db/shop"),
        format!("{MARK}"),
        format!("{MARK}://{MARK}"),
    ]
}

async fn no_url_that_cannot_be_used_is_repeated<D: Shown>() {
    let mut printed = Printed::default();
    for url in useless() {
        let config = PoolConfig::new("shop", url, FleetConfig::new(1, 0))
            .transactional(small(1))
            .analytical(PartitionConfig::analytical(1));
        printed.debug("the configuration", &config);
        let builder = || PartitionedPool::<D>::builder(config.clone());
        printed.debug("the builder", &builder());
        // What a driver can read after all leads nowhere.
        printed.error("a refusal", &refused(builder()).await);
        match builder().logins() {
            Ok(logins) => printed.debug("the logins", &logins),
            Err(error) => printed.error("no logins", &error),
        }
    }
    printed.has_no_secret_but("partition.transactional.url");
}

#[test]
fn toml_that_cannot_be_read_is_not_repeated() {
    let mut printed = Printed::default();
    let url = format!("postgres://app:{MARK}@db/shop");
    let broken = [
        format!("url = {url}"),
        format!("url = \"{url}"),
        format!("url = '{url}\nservice = 'shop'"),
        format!("url = '{url}' service = 'shop'"),
        format!("url = '{url}'\nurl = '{url}'"),
        format!("url = ['{url}']"),
        format!("url = {{ text = '{url}' }}"),
        format!("'{url}' = 'url'"),
        format!("'{MARK} {MARK}' = 1"),
        url.clone(),
        format!("[{url}]"),
        format!("[['{url}']]"),
        format!("url = '{url}'\n[[partition]]\nname = '{url}'\nmax_connections = '{url}'"),
        format!("[fleet]\nmax_replicas = '{url}'\nmode = '{url}'\nsurge = {MARK}"),
        format!("[fleet.seats]\nurl = {url}\nlease = '{url}'\ntable = 1"),
        format!("[boot]\nsilence = ['{url}']\ncheck_timeout = '{url}'"),
        format!("url = \"\\q{url}\""),
        format!("url = \"\"\"{url}"),
    ];
    for text in broken {
        let read = PoolConfig::from_toml(&text);
        let refused = read.and_then(|config| config.resolve());
        printed.error("a refusal", &refused.expect_err(&text));
    }
    printed.has_no_secret_but("url (line 1)");
}

const KEEP: &str = "INSERT INTO kept VALUES ($1)";
const SLEEP: &str = "SELECT pg_sleep(60), $1::text";

/// Makes a table that has the secret, so that it cannot be kept again.
async fn keep(tenant: &Tenant) {
    let name = &tenant.name;
    let sql = format!(
        "CREATE TABLE {name}.kept (secret text PRIMARY KEY); ALTER TABLE {name}.kept OWNER TO {name}; \
         INSERT INTO {name}.kept VALUES ('{MARK}')"
    );
    tenant.sql(&sql).await;
}

/// How the hook fails of a pool that is made by [`failing`].
#[derive(Clone, Copy)]
enum Wraps {
    Not,
    /// In an error that has the text of what is inside.
    Inside,
}

/// A pool whose hook tries to keep the secret once more, from when it is told to.
fn failing<D: Shown>(config: PoolConfig, wraps: Wraps) -> (Builder<D>, Arc<AtomicBool>) {
    let is_on = Arc::new(AtomicBool::new(false));
    let on = Arc::clone(&is_on);
    let builder = PartitionedPool::<D>::builder(config).on_connect(move |client, _| {
        let on = on.load(Ordering::SeqCst);
        Box::pin(async move {
            if !on {
                return Ok(());
            }
            let kept = D::bind(client, KEEP, MARK).await;
            match wraps {
                Wraps::Not => kept,
                Wraps::Inside => kept.map_err(|error| io::Error::other(error).into()),
            }
        })
    });
    (builder, is_on)
}

async fn no_parameter_of_a_statement_is_printed<D: Shown>() {
    logged(async |tenant: &Tenant, log: &Log| {
        let mut printed = Printed::default();
        keep(tenant).await;
        for wraps in [Wraps::Not, Wraps::Inside] {
            see_failing_hook::<D>(&mut printed, tenant, log, wraps).await;
        }
        let pool = PartitionedPool::<D>::connect(config(tenant, &tenant.url()));
        see_work(&mut printed, tenant, &pool.await.unwrap()).await;
        printed.has_no_secret_but("SQLSTATE 23505");
    })
    .await;
}

async fn see_failing_hook<D: Shown>(
    printed: &mut Printed,
    tenant: &Tenant,
    log: &Log,
    wraps: Wraps,
) {
    let resetting = small(2).reset_session(true).acquire_timeout(LONG);
    let config = || tenant.config_for(FleetConfig::new(1, 0), resetting.clone());
    let (builder, is_on) = failing::<D>(config(), wraps);
    let pool = builder.connect().await.unwrap();
    let held = pool.transactional().acquire().await.unwrap();
    is_on.store(true, Ordering::SeqCst);
    let failed = pool.transactional().acquire().await.unwrap_err();
    assert_eq!(failed.phase(), Phase::OnConnect, "{failed}");
    assert_eq!(failed.sqlstate(), Some("23505"), "{failed}");
    printed.error("a failure of the hook", &failed);
    // The secret was there to be printed.
    let whole = format!("{:?}", failed.failure().unwrap().driver_error());
    assert!(whole.contains(MARK), "{whole}");
    printed.debug("the health", &pool.ready(LONG).await);
    for holders in pool.holders_with_statements(LONG).await {
        printed.both("the holders", &holders);
    }
    drop(held);
    eventually("it fails on the way back", async || {
        let status = pool.transactional().status();
        status.in_use + status.connections() == 0
    })
    .await;
    assert!(log.has("on_connect has failed on a connection that came back"));
    pool.close(LONG).await;

    let (builder, is_on) = failing::<D>(config(), wraps);
    is_on.store(true, Ordering::SeqCst);
    printed.error("a boot that failed", &refused(builder).await);
}

async fn see_work<D: Shown>(printed: &mut Printed, tenant: &Tenant, pool: &PartitionedPool<D>) {
    let partition = pool.transactional();
    let work = async |held: &mut Connection<D>| {
        let kept = D::bind(held, KEEP, MARK).await;
        kept.map_err(|_| "it is there already".to_owned())
    };
    let failed = partition.run(LONG, work).await.unwrap_err();
    printed.both("work that failed", &failed);

    let mut held = partition.acquire().await.unwrap();
    let sleeping = D::bind(&mut held, SLEEP, MARK);
    let seen = async {
        tenant.until_running(SLEEP).await;
        pool.holders_with_statements(LONG).await
    };
    let holders = tokio::select! {
        slept = sleeping => panic!("{slept:?}"),
        holders = seen => holders,
    };
    let statement = holders[0].held[0].statement.as_ref().unwrap();
    assert_eq!(statement.query, SLEEP);
    for holders in &holders {
        printed.both("the holders", holders);
    }
    let late = partition.run(300 * MS, async |held: &mut Connection<D>| {
        D::bind(held, SLEEP, MARK)
            .await
            .map_err(|_| "cut off".to_owned())
    });
    printed.both("work that was late", &late.await.unwrap_err());
}

async fn of_an_answer_of_the_server_its_message_and_code_are_told_and_no_more<D: Shown>() {
    on_each_version(async |tenant: &Tenant| {
        keep(tenant).await;
        let told = "duplicate key value violates unique constraint \"kept_pkey\" (SQLSTATE 23505)";
        let (builder, is_on) = failing::<D>(config(tenant, &tenant.url()), Wraps::Not);
        let pool = builder.connect().await.unwrap();
        let _held = pool.transactional().acquire().await.unwrap();
        is_on.store(true, Ordering::SeqCst);
        let failed = pool.transactional().acquire().await.unwrap_err();
        let failure: &Failure = failed.failure().unwrap();
        assert_eq!(failure.to_string(), told);
        assert!(failure.source().is_none());
        let expected = format!("transactional: on_connect failed: {told}");
        assert_eq!(failed.to_string(), expected);

        let wrong = config(tenant, &tenant.url_at(&tenant.host(), tenant.port())).url(
            tenant
                .url()
                .replace(&format!(":{}@", tenant.name), ":wrong@"),
        );
        let wrong = refused(PartitionedPool::<D>::builder(wrong)).await;
        let BootError::Unavailable { error, .. } = wrong else {
            panic!("{wrong}")
        };
        let AcquireError::Failed { failure, .. } = *error else {
            panic!("{error}")
        };
        let told = format!(
            "password authentication failed for user \"{}\" (SQLSTATE 28P01)",
            tenant.name
        );
        assert_eq!(failure.to_string(), told);
    })
    .await;
}

#[cfg(feature = "metrics")]
mod in_labels {
    use metrics_util::debugging::DebuggingRecorder;
    use partitioned_pool::metrics::PoolMetrics;

    use super::*;

    on_each_driver![; alone: no_secret_becomes_a_label];

    async fn no_secret_becomes_a_label<D: Shown>() {
        on_each_version(async |tenant: &Tenant| {
            keep(tenant).await;
            let mut printed = Printed::default();
            let recorder = DebuggingRecorder::new();
            let snapshotter = recorder.snapshotter();
            let (builder, is_on) = failing::<D>(config(tenant, &tenant.url()), Wraps::Not);
            let metrics = PoolMetrics::to(recorder);
            printed.debug("the metrics", &metrics);
            let pool = builder.observer(metrics).connect().await.unwrap();
            let _held = pool.transactional().acquire().await.unwrap();
            is_on.store(true, Ordering::SeqCst);
            pool.transactional().acquire().await.unwrap_err();
            pool.sample();
            for recorded in snapshotter.snapshot().into_vec() {
                printed.debug("a metric", &recorded);
            }
            printed.has_no_secret_but("create_failures");
        })
        .await;
    }
}

#[cfg(feature = "cli")]
mod at_the_command_line {
    use std::process::{Command, Stdio};

    use crate::cli::BINARY;

    use super::*;

    /// The fleet's command with these arguments and variables; all that it prints.
    fn fleet(command: &str, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let mut run = Command::new(BINARY);
        run.args(["fleet", command]).args(arguments);
        run.env_remove("DATABASE_URL").env_remove("PGPASSWORD");
        run.envs(variables.iter().copied()).stdin(Stdio::null());
        run.env("RUST_LOG", "trace").env("RUST_BACKTRACE", "1");
        let output = run.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!("{}\n{}", text(&output.stdout), text(&output.stderr))
    }

    const FLEET: [&str; 8] = [
        "--partition",
        "transactional=2",
        "--partition",
        "analytical=1",
        "--max-replicas",
        "1",
        "--surge",
        "0",
    ];

    /// All commands, with the secret in the argument, in a variable, and in a file.
    fn see(printed: &mut Printed, url: &str) {
        for command in ["check", "sql"] {
            for more in [&[][..], &["--offline", "--max-connections", "9"]] {
                let flags = [&FLEET, more].concat();
                let argument = [&["--url", url], &flags[..]].concat();
                printed.text("an argument", fleet(command, &argument, &[]));
                let variable = [("DATABASE_URL", url)];
                printed.text("a variable", fleet(command, &flags, &variable));
                let settings = [("APP_SERVICE", "shop"), ("APP_URL", url)];
                let sizes = [
                    ("APP_FLEET_MAX_REPLICAS", "1"),
                    ("APP_FLEET_SURGE", "0"),
                    ("APP_TRANSACTIONAL_MAX_CONNECTIONS", "2"),
                    ("APP_ANALYTICAL_MAX_CONNECTIONS", "1"),
                ];
                let variables = [&settings[..], &sizes].concat();
                let from_them = [&["--env-prefix", "APP"], more].concat();
                printed.text("the variables", fleet(command, &from_them, &variables));
            }
        }
        let json = [&["--json", "--url", url], &FLEET[..]].concat();
        printed.text("JSON", fleet("check", &json, &[]));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_password_is_printed_by_the_command() {
        on_each_version(async |tenant: &Tenant| {
            let mut printed = Printed::default();
            let (name, password) = (&tenant.name, format!("{MARK}-of-a-url"));
            for url in urls::<partitioned_pool::TokioPostgres>(tenant, &password) {
                see(&mut printed, &url);
                let sql = format!("ALTER ROLE {name} PASSWORD '{password}'");
                tenant.sql(&sql).await;
                see(&mut printed, &url);
                tenant
                    .sql(&format!("ALTER ROLE {name} PASSWORD 'other'"))
                    .await;
            }
            let bare = tenant.url().replace(&format!(":{name}@"), "@");
            let flags = [&["--url", &bare], &FLEET[..]].concat();
            let variables = [("PGPASSWORD", password.as_str())];
            printed.text("PGPASSWORD", fleet("check", &flags, &variables));
            printed.has_no_secret_but("fleet check: fits");
            printed.has_no_secret_but("password authentication failed");
            printed.has_no_secret_but("CONNECTION LIMIT");
        })
        .await;
    }

    #[test]
    fn what_cannot_be_used_is_not_repeated_by_the_command() {
        let mut printed = Printed::default();
        for url in useless() {
            see(&mut printed, &url);
        }
        for place in ["--reserve", "--control", "--timeout", "--external", MARK] {
            let flags = [&FLEET[..], &[place, MARK]].concat();
            printed.text("a wrong argument", fleet("check", &flags, &[]));
        }
        printed.has_no_secret_but("partition.transactional.url");
    }
}
