//! A real Postgres for the examples and the tests, found where there is one.
//!
//! Shared by `#[path]`: an example or test binary that has this module needs nothing but the crate's
//! dev-dependencies. [`start`] looks in three places, in this order:
//!
//! 1. the server that `PARTITIONED_POOL_PG_URL` names. Who names a server means it: if it cannot be used,
//!    that is the error, and nothing else is tried;
//! 2. Testcontainers on a Docker engine. The image is `PARTITIONED_POOL_PG_IMAGE`, by default `postgres:17`; for a
//!    caller that wants major version N it is `PARTITIONED_POOL_PG_IMAGE_N`, by default `postgres:N`;
//! 3. the binaries of a local Postgres, started as a throw-away cluster, also when the user is root.
//!
//! `PARTITIONED_POOL_PG_SOURCE=url|docker|local` forces one of them, so that nothing falls back unseen.
//! [`Postgres::describe`] says in one line what was found, and why the places before it were passed over.
//!
//! The server goes when its [`Postgres`] is dropped: also in a panic, and also outside a runtime. After Ctrl-C
//! it goes as well; after SIGKILL a local cluster still goes, a container stays.

#![allow(
    dead_code,
    reason = "each example and each test binary uses its own part of this module"
)]

mod docker;
pub(crate) mod local;
mod named;
mod probe;
mod source;
pub(crate) mod standby;

use std::fmt;

pub(crate) use source::{Choice, Kind, Refusal, Source, Unavailable, Why};

use probe::Facts;

/// What the caller needs of the server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Want {
    /// The major version; `None` takes what is there.
    pub(crate) version: Option<u32>,
    /// Server settings, as `-c key=value` on the server's command line. A server that the user named
    /// cannot be set, so there they are compared, and what differs is told by [`Postgres::differences`].
    pub(crate) settings: Vec<(String, String)>,
}

impl Want {
    /// A server of this major version.
    pub(crate) fn version(major: u32) -> Self {
        Self {
            version: Some(major),
            ..Self::default()
        }
    }

    /// The same, with one more server setting.
    pub(crate) fn setting(mut self, key: &str, value: impl fmt::Display) -> Self {
        self.settings.push((key.to_owned(), value.to_string()));
        self
    }

    /// The command-line arguments for the settings. Nothing here outlives the run, so nothing is synced to
    /// disk, unless the caller says otherwise: of two arguments for one setting the later one holds.
    fn arguments(&self) -> Vec<String> {
        let settings = self
            .settings
            .iter()
            .map(|(key, value)| format!("{key}={value}"));
        std::iter::once("fsync=off".to_owned())
            .chain(settings)
            .flat_map(|setting| ["-c".to_owned(), setting])
            .collect()
    }

    fn accept(&self, found: u32) -> Result<(), Why> {
        match self.version {
            Some(wanted) if wanted != found => Err(Why::WrongVersion {
                wanted,
                found: vec![found],
            }),
            _ => Ok(()),
        }
    }
}

/// What keeps the server alive, and ends it when it is dropped.
enum Keeper {
    Named,
    Container(docker::Container),
    Cluster(local::Cluster),
}

/// A server before anybody has asked it what it is.
struct Found {
    keeper: Keeper,
    source: Source,
    config: tokio_postgres::Config,
    url: String,
}

/// A running Postgres. Dropping it removes the container, or stops the cluster and removes its folder.
pub(crate) struct Postgres {
    keeper: Keeper,
    source: Source,
    config: tokio_postgres::Config,
    url: String,
    facts: Facts,
    differences: Vec<String>,
    passed_over: Vec<Refusal>,
}

/// Finds or starts a server, in the order that the module describes, as the environment says.
///
/// # Errors
/// [`Unavailable`] says what was tried, why each failed, and what to do.
pub(crate) async fn start(want: Want) -> Result<Postgres, Unavailable> {
    start_as(&Choice::from_env()?, &want).await
}

/// The same with a choice of the caller's instead of the environment's.
///
/// # Errors
/// As [`start`].
pub(crate) async fn start_as(choice: &Choice, want: &Want) -> Result<Postgres, Unavailable> {
    let mut refusals = Vec::new();
    for kind in choice.order() {
        match start_one(kind, choice, want).await {
            Ok(server) => {
                return Ok(Postgres {
                    passed_over: refusals,
                    ..server
                });
            }
            Err(why) => refusals.push(Refusal { kind, why }),
        }
    }
    Err(Unavailable::NoServer {
        refusals,
        forced: choice.only,
    })
}

async fn start_one(kind: Kind, choice: &Choice, want: &Want) -> Result<Postgres, Why> {
    let found = match kind {
        Kind::Url => named::find(choice)?,
        Kind::Docker => docker::start(choice, want).await?,
        Kind::Local => local::start(choice, want).await?,
    };
    let server = found.answering().await?;
    want.accept(server.facts.major)?;
    let differences = match kind {
        Kind::Url => probe::differences(&server.config, &want.settings).await?,
        Kind::Docker | Kind::Local => Vec::new(),
    };
    Ok(Postgres {
        differences,
        ..server
    })
}

impl Found {
    /// The server, once it answers.
    async fn answering(self) -> Result<Postgres, Why> {
        let facts = self.facts().await?;
        let Self {
            keeper,
            source,
            config,
            url,
        } = self;
        Ok(Postgres {
            keeper,
            source,
            config,
            url,
            facts,
            differences: Vec::new(),
            passed_over: Vec::new(),
        })
    }

    async fn facts(&self) -> Result<Facts, Why> {
        self.keeper.facts(&self.config).await
    }
}

impl Keeper {
    /// Waits until the server answers, or is known to have ended.
    async fn facts(&self, config: &tokio_postgres::Config) -> Result<Facts, Why> {
        let facts = match self {
            Self::Named => probe::once(config)
                .await
                .map_err(|error| source::causes(&error)),
            Self::Container(container) => probe::until_ready(config, || container.ended()).await,
            Self::Cluster(cluster) => probe::until_ready(config, || cluster.ended()).await,
        };
        facts.map_err(Why::Failed)
    }
}

/// Why a server could not be stopped or started again.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {server}: {reason}")]
pub(crate) struct ControlError {
    action: &'static str,
    server: String,
    reason: String,
}

impl Postgres {
    /// The owner's URL of the database, over TCP. It holds the password: never print it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The version as the server tells it, such as `17.12`.
    pub(crate) fn version(&self) -> &str {
        &self.facts.version
    }

    /// The major version.
    pub(crate) fn major(&self) -> u32 {
        self.facts.major
    }

    /// The server's `max_connections`.
    pub(crate) fn max_connections(&self) -> u32 {
        self.facts.max_connections
    }

    /// Where the server came from.
    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// The host to connect to.
    pub(crate) fn host(&self) -> &str {
        self.source.host()
    }

    /// The port to connect to; it stays the same over [`stop`](Self::stop) and [`start`](Self::start).
    pub(crate) fn port(&self) -> u16 {
        self.source.port()
    }

    /// The wanted settings that are not in force. Only a server that the user named can have any.
    pub(crate) fn differences(&self) -> &[String] {
        &self.differences
    }

    /// One line for people: version, source, address, what was passed over and why, what differs. No secrets.
    pub(crate) fn describe(&self) -> String {
        let mut line = format!("postgres {} from {}", self.version(), self.source);
        for difference in &self.differences {
            line += &format!("; {difference}");
        }
        for refusal in &self.passed_over {
            line += &format!("; passed over {refusal}");
        }
        line.replace('\n', " ")
    }

    /// Stops the server at once, ending every session (a fast shutdown), and waits for its end.
    ///
    /// # Errors
    /// A server that the user named is not ours to stop; an engine or a cluster that does not obey.
    pub(crate) async fn stop(&self) -> Result<(), ControlError> {
        let stopped = match &self.keeper {
            Keeper::Named => {
                Err("it is not ours; this needs the source docker or local".to_owned())
            }
            Keeper::Container(container) => container.stop().await,
            Keeper::Cluster(cluster) => cluster.stop().await,
        };
        stopped.map_err(|reason| self.refused("stop", reason))
    }

    /// Starts the stopped server on the same port, with what it held, and waits until it answers.
    ///
    /// # Errors
    /// As [`stop`](Self::stop), and when the server does not come up.
    pub(crate) async fn start(&self) -> Result<(), ControlError> {
        let started = match &self.keeper {
            Keeper::Named => {
                Err("it is not ours; this needs the source docker or local".to_owned())
            }
            Keeper::Container(container) => container.start().await,
            Keeper::Cluster(cluster) => cluster.start_again().await,
        };
        started.map_err(|reason| self.refused("start", reason))?;
        let ready = self.keeper.facts(&self.config).await;
        ready
            .map(drop)
            .map_err(|why| self.refused("start", why.to_string()))
    }

    /// [`stop`](Self::stop), then [`start`](Self::start).
    ///
    /// # Errors
    /// As those two.
    pub(crate) async fn restart(&self) -> Result<(), ControlError> {
        self.stop().await?;
        self.start().await
    }

    fn refused(&self, action: &'static str, reason: String) -> ControlError {
        ControlError {
            action,
            server: self.source.to_string(),
            reason,
        }
    }
}

/// Without the URL, which holds the password.
impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres")
            .field("facts", &self.facts)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// A word that nobody else has: for names and passwords of what is thrown away after the run.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// A port of 127.0.0.1 that nobody listens on. It is taken from below the range from which systems pick ports
/// for outgoing connections, so that it is still free when a stopped server comes back to it.
pub(crate) fn free_port() -> u16 {
    let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let candidates = std::iter::repeat_with(|| {
        20_000 + u16::try_from(random() % 12_000).expect("bug: below 12,000")
    });
    candidates.take(1_000).find(free).unwrap_or(0)
}

/// The owner's URL of a server that was started here.
fn owner_url(host: &str, port: u16, password: &str) -> String {
    format!("postgres://postgres:{password}@{host}:{port}/postgres")
}
