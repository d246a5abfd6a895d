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
//!
//! # Secrets in statements
//!
//! This crate prints no parameter of a statement. tokio-postgres does: its error prints, by `Debug` and as a
//! [`source`](std::error::Error::source), the server's DETAIL, in which values can stand; and it tells the `log`, at level
//! debug, each statement and its parameters. Whoever has secrets in either keeps the target `tokio_postgres` above debug.

mod cancel;
mod connect;
mod failure;
mod line;
mod messages;
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
use std::error::Error as StdError;
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
    Tag,
};
use crate::error::{Failure, NoPassword, UndeclaredPooler};
use crate::session::{
    SettingNotInForce, SettingsNotInForce, dress, dress_if, one_by_one, redress, version_num,
};
use crate::tls::Tls;

use connect::{Failed, Security};
pub use messages::{Heard, MESSAGES_KEPT, Messages};
pub use session::Session;
use ssl::Ssl;
use url::Parsed;

/// The crates whose types a service meets here, in the versions that this crate is built on.
pub use {::deadpool_postgres, ::tokio_postgres};

/// The driver for [`PartitionedPool`](crate::PartitionedPool) on tokio-postgres.
///
/// The guard of a connection derefs to deadpool-postgres's [`ClientWrapper`]: `query`, `execute`,
/// `transaction`, `prepare_cached` and all the rest. See the [module](self) for what a `url` may say.
///
/// # Examples
/// ```
/// use partitioned_pool::driver_tokio_postgres::tokio_postgres;
/// use partitioned_pool::{Connection, TokioPostgres};
///
/// async fn stock(connection: &Connection<TokioPostgres>, id: i32) -> Result<i32, tokio_postgres::Error> {
///     let statement = connection.prepare_cached("SELECT left_over FROM stock WHERE id = $1").await?;
///     Ok(connection.query_one(&statement, &[&id]).await?.get(0))
/// }
/// ```
pub struct TokioPostgres {
    config: Config,
    ssl: Ssl,
    security: Security,
    passwords: Passwords,
    endpoint: Endpoint,
    settings: PartitionSettings,
    tag: Tag,
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
///
/// # Examples
/// ```
/// use partitioned_pool::config::PoolConfig;
/// use partitioned_pool::driver_tokio_postgres::Options;
/// use partitioned_pool::{Builder, PartitionedPool, TokioPostgres};
///
/// fn with(config: PoolConfig, options: Options) -> Builder<TokioPostgres> {
///     PartitionedPool::builder(config).options(options)
/// }
/// ```
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
///
/// # Examples
/// ```
/// use partitioned_pool::driver::Driver;
/// use partitioned_pool::driver_tokio_postgres::Error;
/// use partitioned_pool::{TokioPostgres, error::Failure};
///
/// /// As the pool tells it.
/// fn told(error: Error) -> Failure {
///     TokioPostgres::failure(error)
/// }
/// ```
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

impl TokioPostgres {
    /// Puts the limits in force, in one round trip; unless a pooler is in between that is not stated, whose backends
    /// may serve strangers next.
    async fn dress(&self, session: &mut Session) -> Result<(), Error> {
        let (version, settings) = (session.version(), self.tag.on(&self.settings));
        let dress = match (&settings.pooler, session.watch().key_pid()) {
            (None, Some(pid)) => dress_if(&settings, version, pid),
            _ => dress(&settings, version),
        };
        let messages = match session.client().simple_query(&dress).await {
            Ok(messages) => messages,
            Err(error) => return Err(self.told_apart(session, error).await),
        };
        match session.know_backend(&messages) {
            true => Ok(()),
            false => Err(Failed::Pooled(UndeclaredPooler::of_unknown_mode()).into()),
        }
    }

    /// Why a session could not be dressed: which settings the server refuses, if it is that.
    async fn told_apart(&self, session: &Session, error: DriverError) -> Error {
        if error.code().is_none() {
            return error.into();
        }
        let mut refused = Vec::new();
        for (name, wanted, sql) in one_by_one(&self.settings) {
            if let Err(error) = session.client().batch_execute(&sql).await {
                let failure = Self::failure(error.into());
                refused.extend(SettingNotInForce::refused(name, wanted, &failure));
            }
        }
        match SettingsNotInForce::of(refused) {
            Some(refused) => Error(Failed::Settings(refused)),
            None => error.into(),
        }
    }
}

impl Manager for TokioPostgres {
    type Type = Session;
    type Error = Error;

    async fn create(&self) -> Result<Session, Error> {
        let mut config = self.config.clone();
        config.application_name(self.tag.behind(&self.settings.application_name));
        if let Some(password) = self.passwords.ask(&self.endpoint).await? {
            config.password(password.expose());
        }
        let opened = connect::open(&config, &self.security).await?;
        // The wrapper aborts the task it is given when it is dropped. It must not be ours.
        let landed = Cell::new(Some((opened.client, tokio::spawn(async {}))));
        let mut wrapper = LANDED.scope(landed, self.manager.create()).await?;
        // Its statement cache stays with it. The manager's list of them would outlive a connection that
        // another partition takes over, and nobody asks for it.
        self.manager.detach(&mut wrapper);
        let version = version_num(&opened.server_version);
        let mut session = Session::new(
            wrapper,
            opened.watch,
            opened.task,
            opened.route,
            opened.hearing,
            version,
        );
        match self.dress(&mut session).await {
            Ok(()) => Ok(session),
            Err(error) => {
                // It counts until its backend is gone.
                session.close().await;
                Err(error)
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
            tag: Tag::default(),
            config,
            ssl,
        })
    }

    fn tag(&self, tag: &str) {
        self.tag.set(tag);
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn can_dress(&self, other: &Self) -> bool {
        self.ssl == other.ssl
            && self.settings.pooler == other.settings.pooler
            && url::same_but_for_the_dress(&self.config, &other.config)
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
        let settings = self.tag.on(&self.settings);
        settle::reset(session, &redress(&settings, session.version())).await
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

    fn failure_of(error: Box<dyn StdError + Send + Sync>) -> Failure {
        failure::failure_of(error)
    }

    fn failure(error: Error) -> Failure {
        failure::failure(error.0)
    }
}
