//! The driver on tokio-postgres, through deadpool-postgres's manager.

mod cancel;
mod connect;
mod session;
mod settle;
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
use crate::driver::{Driver, End, Endpoint, Leash, Readiness, Rows, Tag};
use crate::error::Failure;
use crate::session::{dress, version_num};

use connect::Failed;
pub use session::Session;

/// The crates whose types a service meets here, in the versions that this crate is built on.
pub use {::deadpool_postgres, ::tokio_postgres};

/// The driver for [`PartitionedPool`](crate::PartitionedPool) on tokio-postgres.
///
/// The guard of a connection derefs to deadpool-postgres's [`ClientWrapper`]: `query`, `execute`,
/// `transaction`, `prepare_cached` and all the rest. Connections are plain in this version: a `url`
/// that demands TLS (`sslmode=require`) is refused when the pool is built, one that prefers it goes
/// without.
pub struct TokioPostgres {
    config: Config,
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

/// Why a connection could not be opened or checked.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Error(#[from] Failed);

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
        let settings = self.tag.on(&self.settings);
        let mut config = self.config.clone();
        config.application_name(settings.application_name.as_str());
        let opened = connect::open(&config).await?;
        // The wrapper aborts the task it is given when it is dropped. It must not be ours.
        let landed = Cell::new(Some((opened.client, tokio::spawn(async {}))));
        let mut wrapper = LANDED.scope(landed, self.manager.create()).await?;
        // Its statement cache stays with it. The manager's list of them would outlive a connection that
        // another partition takes over, and nobody asks for it.
        self.manager.detach(&mut wrapper);
        let version = version_num(&opened.server_version);
        let mut session = Session::new(wrapper, opened.watch, opened.task, opened.route, version);
        let dress = dress(&settings, version);
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
    type Options = ();

    fn new(settings: &PartitionSettings, (): &(), _: &[Self]) -> Result<Self, String> {
        let config = url::parse(settings)?;
        let check = ManagerConfig {
            recycling_method: RecyclingMethod::Verified,
        };
        Ok(Self {
            endpoint: url::endpoint(&config),
            manager: deadpool_postgres::Manager::from_connect(config.clone(), Landed, check),
            settings: settings.clone(),
            tag: Tag::default(),
            config,
        })
    }

    fn tag(&self, tag: &str) {
        self.tag.set(tag);
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn can_dress(&self, other: &Self) -> bool {
        url::same_but_for_the_dress(&self.config, &other.config)
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
        let dress = dress(&self.tag.on(&self.settings), session.version());
        settle::reset(session, &dress).await
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
            Failed::Driver(error) => error.code().map(|code| code.code().to_owned()),
            Failed::Io(_) => None,
        };
        match error.0 {
            // It has no cause that could be recognised later.
            Failed::Driver(error) if error.is_closed() => Failure::lost(error),
            Failed::Driver(error) => Failure::new(sqlstate, error),
            Failed::Io(error) => Failure::new(sqlstate, error),
        }
    }
}
