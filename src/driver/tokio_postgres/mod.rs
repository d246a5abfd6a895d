//! The driver on tokio-postgres, through deadpool-postgres's manager.
//!
//! A partition's `url` is read as libpq's users know it: `postgres://..` or `key=value ..`, several hosts, sockets in the
//! file system, and TLS. `docs/connection-parameters.md` has every parameter and what becomes of it.
//!
//! # TLS
//!
//! It is spoken by rustls (feature `tls`, on by default). `sslmode` is libpq's: `disable`, `allow`, `prefer` (default),
//! `require`, `verify-ca`, `verify-full`. What demands TLS never goes without, cancel requests included; use
//! `verify-full`, since the weaker ones do not know whom they talk to. `sslrootcert` names a file of CAs; without it, those
//! of the platform are known. Files for TLS may be renewed on disk.
//!
//! # Passwords that change
//!
//! [`Builder::password_provider`](crate::Builder::password_provider): asked at each connect, for each host, role and
//! database.

mod cancel;
mod connect;
mod line;
mod parameters;
mod session;
mod settle;
#[allow(
    dead_code,
    reason = "without the feature tls nobody asks for all of it"
)]
pub(crate) mod ssl;
mod url;
mod watch;
mod wire;

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use ::tokio_postgres::{Client, Config, Error as DriverError, SimpleQueryMessage};
use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use deadpool_postgres::{ClientWrapper, Connect, ManagerConfig, RecyclingMethod};
use tokio::task::JoinHandle;

use crate::config::PartitionSettings;
use crate::driver::{
    AskForPasswords, Driver, End, Endpoint, Leash, PasswordProvider, Passwords, Readiness, Rows,
};
use crate::error::{Failure, NoPassword};
use crate::session::{dress, version_num};
use crate::tls::Tls;

use connect::{Failed, Security};
pub use session::Session;
use ssl::Ssl;
use url::Parsed;

/// The crates whose types a service meets here, in the versions that this crate is built on.
pub use {::deadpool_postgres, ::tokio_postgres};

/// The driver for [`PartitionedPool`](crate::PartitionedPool) on tokio-postgres.
///
/// The guard of a connection derefs to deadpool-postgres's [`ClientWrapper`]: `query`, `execute`,
/// `transaction`, `prepare_cached` and all the rest. See the [module](self) for what a `url` may say.
pub struct TokioPostgres {
    config: Config,
    ssl: Ssl,
    security: Security,
    passwords: Passwords,
    endpoint: Endpoint,
    settings: PartitionSettings,
    manager: deadpool_postgres::Manager,
}

impl fmt::Debug for TokioPostgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioPostgres")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

/// What this driver may be told beyond the configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    passwords: Option<PasswordProvider>,
}

impl AskForPasswords for Options {
    fn ask_for_passwords(&mut self, provider: PasswordProvider) {
        self.passwords = Some(provider);
    }
}

/// Why a connection could not be opened or checked.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(#[from] Failed);

impl From<NoPassword> for Error {
    fn from(error: NoPassword) -> Self {
        Self(error.into())
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Self(error.into())
    }
}

tokio::task_local! {
    /// What [`Landed`] gives to deadpool's manager, in the one task that creates a connection.
    static LANDED: Cell<Option<(Client, JoinHandle<()>)>>;
}

/// Gives deadpool's manager a connection that is already open. We own the stream and the task: they
/// know when the backend is quiet, and when it is gone.
struct Landed;

type Connecting<'a> =
    Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), DriverError>> + Send + 'a>>;

impl Connect for Landed {
    fn connect(&self, _: &Config) -> Connecting<'_> {
        let landed = LANDED.with(Cell::take);
        Box::pin(async move { Ok(landed.expect("bug: created without a connection")) })
    }
}

impl Manager for TokioPostgres {
    type Type = Session;
    type Error = Error;

    async fn create(&self) -> Result<Session, Error> {
        let opened = match self.passwords.ask(&self.endpoint).await? {
            None => connect::open(&self.config, &self.security).await?,
            Some(password) => {
                let mut config = self.config.clone();
                config.password(password.expose());
                connect::open(&config, &self.security).await?
            }
        };
        // The wrapper aborts the task it is given when it is dropped. It must not be ours.
        let landed = Cell::new(Some((opened.client, tokio::spawn(async {}))));
        let mut wrapper = LANDED.scope(landed, self.manager.create()).await?;
        // Its statement cache stays with it. The manager's list of them would outlive a connection that
        // another partition takes over, and nobody asks for it.
        self.manager.detach(&mut wrapper);
        let version = version_num(&opened.server_version);
        let mut session = Session::new(wrapper, opened.watch, opened.task, opened.route, version);
        let dress = dress(&self.settings, version);
        match session.client().simple_query(&dress).await {
            Ok(messages) => {
                session.know_backend(&messages);
                Ok(session)
            }
            Err(error) => {
                // It counts until its backend is gone.
                session.close().await;
                Err(error.into())
            }
        }
    }

    async fn recycle(&self, session: &mut Session, metrics: &Metrics) -> RecycleResult<Error> {
        let checked = self.manager.recycle(session.client_mut(), metrics).await;
        checked.map_err(|error| match error {
            RecycleError::Message(message) => RecycleError::Message(message),
            RecycleError::Backend(error) => RecycleError::Backend(error.into()),
        })
    }
}

impl Driver for TokioPostgres {
    type Client = ClientWrapper;
    type Options = Options;

    fn new(settings: &PartitionSettings, options: &Options, _: &[Self]) -> Result<Self, String> {
        let Parsed { config, ssl } = url::parse(settings)?;
        let check = ManagerConfig {
            recycling_method: RecyclingMethod::Verified,
        };
        Ok(Self {
            endpoint: url::endpoint(&config),
            manager: deadpool_postgres::Manager::from_connect(config.clone(), Landed, check),
            security: Security::new(ssl.mode, Tls::new(&ssl)?),
            passwords: Passwords::new(options.passwords.clone(), settings.connect_timeout),
            settings: settings.clone(),
            config,
            ssl,
        })
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn can_dress(&self, other: &Self) -> bool {
        self.ssl == other.ssl && url::same_but_for_the_dress(&self.config, &other.config)
    }

    fn waits_for_password_of(&self) -> Option<&str> {
        self.passwords.waited_for()
    }

    #[inline]
    fn client(session: &Session) -> &ClientWrapper {
        session.client()
    }

    #[inline]
    fn client_mut(session: &mut Session) -> &mut ClientWrapper {
        session.client_mut()
    }

    fn leash(session: &Session) -> Option<Arc<dyn Leash>> {
        Some(Arc::new(session.leash()))
    }

    #[inline]
    fn readiness(session: &Session) -> Readiness {
        session.readiness()
    }

    async fn settle(&self, session: &mut Session) -> Readiness {
        settle::settle(session).await
    }

    async fn reset(&self, session: &mut Session) -> Readiness {
        settle::reset(session, &dress(&self.settings, session.version())).await
    }

    async fn close(&self, session: Session) -> End {
        session.close().await
    }

    async fn query(&self, session: &mut Session, sql: &str) -> Result<Rows, Failure> {
        let answered = session.client().simple_query(sql).await;
        let messages = answered.map_err(|error| Self::failure(error.into()))?;
        let row = |message| match message {
            SimpleQueryMessage::Row(row) => {
                let column = |at| row.get(at).map(str::to_owned);
                Some((0..row.len()).map(column).collect())
            }
            _ => None,
        };
        Ok(messages.into_iter().filter_map(row).collect())
    }

    fn failure(error: Error) -> Failure {
        let sqlstate = match &error.0 {
            Failed::Driver(error) | Failed::BothWays { second: error, .. } => {
                error.code().map(|code| code.code().to_owned())
            }
            Failed::Io(_) | Failed::NoPassword(_) => None,
        };
        match error.0 {
            // It has no cause that could be recognised later.
            Failed::Driver(error) if error.is_closed() => Failure::lost(error),
            Failed::Driver(error) => Failure::new(sqlstate, error),
            Failed::Io(error) => Failure::new(sqlstate, error),
            Failed::NoPassword(error) => Failure::new(sqlstate, error),
            Failed::BothWays { ref second, .. } if second.is_closed() => Failure::lost(error.0),
            both @ Failed::BothWays { .. } => Failure::new(sqlstate, both),
        }
    }
}
