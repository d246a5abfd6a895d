//! The servers: one of each version for the whole binary, or one that a test has for itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::postgres::{self, Kind, Postgres, Unavailable, Want};

use super::tenant::Tenant;

/// The versions that every test of the pool runs on.
const VERSIONS: [u32; 2] = [15, 17];

/// As on the servers of the scenario.
const MAX_CONNECTIONS: u32 = 100;

const CHILD: &str = "PARTITIONED_POOL_TEST_KEEPS_POSTGRES";

/// A server that the tests share. A process of its own keeps it, and ends it when its input ends: at the end of
/// this process, however that comes.
struct Shared {
    url: String,
    _keeper: Child,
    /// Where the test runner in the keeper may say that it has been running for long.
    _said: BufReader<ChildStdout>,
}

/// Why there is no server of a version.
#[derive(Clone)]
struct Missing {
    reason: String,
    may_skip: bool,
}

impl From<Unavailable> for Missing {
    fn from(error: Unavailable) -> Self {
        Self {
            reason: error.to_string(),
            may_skip: error.may_skip(),
        }
    }
}

/// Runs `test` on each version that can be had, each time with a tenant of its own.
///
/// # Panics
/// If no version can be had, or one cannot although its source was forced.
pub(crate) async fn on_each_version(test: impl AsyncFn(&Tenant)) {
    let on = async |version| {
        let shared = tokio::task::spawn_blocking(move || shared(version))
            .await
            .unwrap();
        let Some(shared) = had(version, shared.as_ref()) else {
            return false;
        };
        let tenant = Tenant::new(&shared.url).await;
        test(&tenant).await;
        tenant.leave().await;
        true
    };
    both(on).await;
}

/// Runs `test` on each version that can be had, each time with a server that nobody else uses.
///
/// # Panics
/// As [`on_each_version`].
pub(crate) async fn on_own_servers(
    settings: &[(&str, &str)],
    test: impl AsyncFn(&Postgres, &Tenant),
) {
    let on = async |version| {
        let want = settings
            .iter()
            .fold(Want::version(version), |want, (key, value)| {
                want.setting(key, value)
            });
        let started = postgres::start(want).await.map_err(Missing::from);
        let Some(server) = had(version, started.as_ref()) else {
            return false;
        };
        if server.source().kind() == Kind::Url {
            eprintln!("SKIPPED: it stops or fills its server, and that is somebody's");
            return false;
        }
        let tenant = Tenant::new(server.url()).await;
        test(server, &tenant).await;
        // Not the tenant: a server that is thrown away takes it along.
        true
    };
    both(on).await;
}

async fn both(on: impl AsyncFn(u32) -> bool) {
    let named = async |version| {
        let _named = Named(version);
        Box::pin(on(version)).await
    };
    let [first, second] = VERSIONS;
    let (first, second) = tokio::join!(named(first), named(second));
    assert!(
        first || second,
        "none of the versions {VERSIONS:?} can be had here"
    );
}

/// Says on which version a test has failed.
struct Named(u32);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "this was on Postgres {}, or while it ran beside the other",
                self.0
            );
        }
    }
}

/// The server; or none, said aloud and past the capture of the test's output, where that is allowed.
fn had<T>(version: u32, server: Result<T, &Missing>) -> Option<T> {
    match server {
        Ok(server) => Some(server),
        Err(missing) => {
            assert!(missing.may_skip, "Postgres {version}: {}", missing.reason);
            static SAID: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
            let at = VERSIONS.iter().position(|known| *known == version).unwrap();
            if !SAID[at].swap(true, Ordering::SeqCst) {
                let said = format!("SKIPPED on Postgres {version}: {}\n", missing.reason);
                std::io::stderr().write_all(said.as_bytes()).unwrap();
            }
            None
        }
    }
}

/// Starts the server of this version, the first time.
fn shared(version: u32) -> &'static Result<Shared, Missing> {
    static SHARED: [OnceLock<Result<Shared, Missing>>; 2] = [const { OnceLock::new() }; 2];
    let at = VERSIONS.iter().position(|known| *known == version).unwrap();
    SHARED[at].get_or_init(|| keep(version))
}

fn keep(version: u32) -> Result<Shared, Missing> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "support::server::keeps_a_server_for_the_tests",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env(CHILD, version.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    // Ctrl-C is for us; the keeper sees our end, and then ends the server in order.
    command.process_group(0);
    let mut keeper = command.spawn().unwrap();
    let mut said = BufReader::new(keeper.stdout.take().unwrap());
    let found = said
        .by_ref()
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("kept: ").map(str::to_owned))
        .expect("the keeper of a server ended early");
    let found: Value = serde_json::from_str(&found).unwrap();
    match found["url"].as_str() {
        Some(url) => {
            println!("{}", found["described"].as_str().unwrap());
            Ok(Shared {
                url: url.to_owned(),
                _keeper: keeper,
                _said: said,
            })
        }
        None => Err(Missing {
            reason: found["reason"].as_str().unwrap().to_owned(),
            may_skip: found["may_skip"].as_bool().unwrap(),
        }),
    }
}

#[tokio::test]
#[ignore = "the keeper of a server, which the tests start"]
async fn keeps_a_server_for_the_tests() {
    let version = std::env::var(CHILD).expect("this is started by other tests");
    let want = Want::version(version.parse().unwrap()).setting("max_connections", MAX_CONNECTIONS);
    let started = postgres::start(want).await;
    let found = match &started {
        Ok(server) => json!({ "url": server.url(), "described": server.describe() }),
        Err(error) => json!({ "reason": error.to_string(), "may_skip": error.may_skip() }),
    };
    println!("\nkept: {found}");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop(started);
    // Nobody reads what the test runner would say.
    std::process::exit(0);
}
