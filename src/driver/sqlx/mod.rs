//! The driver on sqlx's `PgConnection`.
//!
//! What is written for a `PgPool` mostly works as it is: a partition is an `Executor`, and a connection derefs to
//! `PgConnection`.
//!
//! ```no_run
//! use partitioned_pool::driver_sqlx::sqlx;
//! use partitioned_pool::{PartitionedPool, Sqlx};
//!
//! async fn stock(pool: &PartitionedPool<Sqlx>) -> Result<(), sqlx::Error> {
//!     let left: Option<i32> = sqlx::query_scalar("SELECT left_over FROM stock WHERE id = $1")
//!         .bind(42)
//!         .fetch_optional(pool.transactional())
//!         .await?;
//!     let mut order = pool.transactional().begin().await?;
//!     sqlx::query("UPDATE stock SET left_over = left_over - 1").execute(&mut *order).await?;
//!     order.commit().await
//! }
//! ```
//!
//! # The way back
//!
//! sqlx tells neither whether a query is still running nor whether a transaction is open. What is known:
//!
//! - What went through a partition or a connection *as an `Executor`* (`.fetch_all(pool.transactional())`,
//!   `.fetch_all(&mut connection)`) was seen to its end: the connection comes back **without a round trip**, also after
//!   an error of the server. Not so if it was left in the middle, or if its text has the word BEGIN or START. A
//!   [`Transaction`] that was committed or rolled back comes back so, too.
//! - Of what had the `PgConnection` itself (`&mut *connection`, sqlx's own `begin` on it, `migrate!`) nothing is known: it is
//!   asked once on the way back, **one round trip**; two if a transaction has to be rolled back.
//!
//! # Cancelling
//!
//! sqlx cannot cancel, so we do, by `pg_cancel_backend` over a *control connection*: one more connection for each
//! server and role, shared by the partitions there, beside their budgets. It is opened with the first connection,
//! counted by the fleet check (`1 control`), and named `<service>/control`. A transaction pooler in between would have us
//! cancel a stranger's query, so that is found out and refused when the pool starts.
//!
//! # What this driver cannot do, and the other can
//!
//! - *Several hosts, `target_session_attrs`, `connect_timeout`, keepalive in the URL*: sqlx 0.9 has none of them. The
//!   partition's `connect_timeout` holds all the same. A host that vanishes is noticed by what waits for an answer only at
//!   the caller's deadline, and by an idle connection when it is used or validated.
//! - *An idle connection that the server has closed* is found when it is used: its user has the error. From then on
//!   all others are asked before they are handed out, once.
//! - *A COPY that is left half way* costs the connection: sqlx does not count its answers, so it is closed, and its
//!   slot free when its backend is gone. A `COPY .. FROM STDIN` that was sent as text, without `copy_in_raw`, can only be
//!   closed after 2 s: the server takes no cancel while it waits for its rows.
//! - *A connection that is taken away* (`max_hold`, [`close`](crate::PartitionedPool::close)) is ended from the
//!   server's side. Where the server cannot be reached, its owner hears nothing before it gives up by itself.
//! - *Who holds* a connection that a partition was given as an `Executor` for is told as a line of this crate: sqlx
//!   does not pass on who called.
//! - *A session that was not ended by us but lost its way to the server* can only be ended over the control connection;
//!   as long as that cannot connect either, it counts as a ghost for 30 s, and no longer.

mod control;
mod error;
mod executor;
mod external;
mod options;
mod session;
mod settle;
mod transaction;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use ::sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use ::sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _, ValueRef as _, raw_sql,
};
use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use tokio::sync::OnceCell;

use crate::config::PartitionSettings;
use crate::driver::{Driver, End, Endpoint, Leash, Readiness, Rows, Tag};
use crate::error::Failure;
use crate::session::dress;

use control::{Backend, Control};
pub use error::acquire_error;
pub use external::ExternalPoolError;
pub use options::Options;
pub use session::Session;
pub use transaction::Transaction;

/// The crate whose types a service meets here, in the version that this crate is built on.
pub use ::sqlx;

/// The driver for [`PartitionedPool`](crate::PartitionedPool) on sqlx.
///
/// The guard of a connection derefs to sqlx's [`PgConnection`]. See the [module](self) for what a return costs, and
/// for what this driver cannot do. TLS, sockets and the statement cache are what the `url` says, in sqlx's words; for TLS
/// a service switches on one of sqlx's `tls-..` features. For what a URL cannot say, there is
/// [`Builder::connect_options`](crate::Builder::connect_options).
pub struct Sqlx {
    options: PgConnectOptions,
    endpoint: Endpoint,
    settings: PartitionSettings,
    tag: Tag,
    control: Arc<Control>,
    /// Whether it was the first of those that share the control connection.
    owns_control: bool,
    vouched: OnceCell<()>,
}

impl fmt::Debug for Sqlx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlx")
            .field("endpoint", &self.endpoint)
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

/// Why a connection could not be opened or checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What sqlx reported.
    #[error(transparent)]
    Sqlx(#[from] ::sqlx::Error),
    /// Queries could not be cancelled: the backend of a connection is not one of its own, or not to be seen by another
    /// connection to the same address.
    #[error(
        "queries could not be cancelled: the backend of a connection changes, or another connection with the same \
        url does not see it. A transaction pooler is in between, or the host stands for several servers: connect to Postgres \
        directly, or use the pooler's session mode"
    )]
    Strangers,
    /// A connection that was idle is not usable any more.
    #[error("the connection is lost, or its answers are out of order")]
    Lost,
    /// The server did not say which backend it is.
    #[error("the server did not tell the process id and the start of its backend")]
    Nameless,
}

/// So often it is seen whether the backends stay those that they were: a pooler that deals them out in turn, or
/// again to the last to ask, shows itself in two.
const LOOKS: u32 = 3;

impl Sqlx {
    /// Whether the backend is this connection's own, and the control connection sees it. Asked of the first connection.
    async fn vouch(&self, connection: &mut PgConnection, backend: Backend) -> Result<(), Error> {
        for _ in 0..LOOKS {
            let now = raw_sql(Backend::SELF).fetch_one(&mut *connection).await?;
            if Backend::read(&now) != Some(backend) || !self.control.sees(backend).await? {
                return Err(Error::Strangers);
            }
        }
        Ok(())
    }

    /// Puts the limits in force and asks who it is: one round trip.
    async fn introduce(
        &self,
        connection: &mut PgConnection,
        version: u32,
    ) -> Result<Backend, Error> {
        let dress = dress(&self.tag.on(&self.settings), version);
        let sql = format!("{dress}; {}", Backend::SELF);
        let asked = Instant::now();
        let rows = raw_sql(AssertSqlSafe(sql))
            .fetch_all(&mut *connection)
            .await?;
        self.control.answered_in(asked.elapsed());
        let backend = rows.last().and_then(Backend::read).ok_or(Error::Nameless)?;
        let vouch = async || self.vouch(connection, backend).await;
        self.vouched.get_or_try_init(vouch).await?;
        Ok(backend)
    }
}

impl Manager for Sqlx {
    type Type = Session;
    type Error = Error;

    async fn create(&self) -> Result<Session, Error> {
        // The first to come opens the control connection beside its own.
        let name = self.tag.behind(&self.settings.application_name);
        let options = self.options.clone().application_name(&name);
        let (opened, ()) = tokio::join!(options.connect(), async {
            if !self.vouched.initialized() {
                self.control.open().await;
            }
        });
        let mut connection = opened?;
        let version = connection.server_version_num().unwrap_or(0);
        match self.introduce(&mut connection, version).await {
            Ok(backend) => {
                let control = Arc::clone(&self.control);
                Ok(Session::new(connection, backend, control, version))
            }
            Err(error) => {
                let _ = connection.close().await;
                Err(error)
            }
        }
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<Error> {
        match settle::prove(session).await {
            Readiness::Quiet => Ok(()),
            _ => Err(RecycleError::Backend(Error::Lost)),
        }
    }
}

impl Driver for Sqlx {
    type Client = PgConnection;
    type Options = Options;

    fn new(
        settings: &PartitionSettings,
        options: &Options,
        siblings: &[Self],
    ) -> Result<Self, String> {
        let options = options::parse(settings, options)?;
        let endpoint = options::endpoint(&options);
        let shares = |one: &&Self| {
            (&one.endpoint.hosts, &one.endpoint.user) == (&endpoint.hosts, &endpoint.user)
        };
        let shared = siblings.iter().find(shares);
        let control = match shared {
            Some(sibling) => Arc::clone(&sibling.control),
            None => Arc::new(Control::new(options.clone(), service(settings))),
        };
        Ok(Self {
            owns_control: shared.is_none(),
            options,
            endpoint,
            settings: settings.clone(),
            tag: Tag::default(),
            control,
            vouched: OnceCell::new(),
        })
    }

    /// One whose backends need not be looked at before they are cancelled, since nobody does.
    fn alone(settings: &PartitionSettings, options: &Options) -> Result<Self, String> {
        Ok(Self {
            owns_control: false,
            vouched: OnceCell::new_with(Some(())),
            ..Self::new(settings, options, &[])?
        })
    }

    fn tag(&self, tag: &str) {
        self.tag.set(tag);
        self.control.tag(tag);
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn control_connections(&self) -> u32 {
        self.owns_control.into()
    }

    async fn retire(&self) {
        if self.owns_control {
            self.control.retire().await;
        }
    }

    fn can_dress(&self, other: &Self) -> bool {
        self.settings.url == other.settings.url
    }

    #[inline]
    fn client(session: &Session) -> &PgConnection {
        session.connection()
    }

    #[inline]
    fn client_mut(session: &mut Session) -> &mut PgConnection {
        session.connection_mut()
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
        let asked = session.ask(sql).await;
        let rows = asked.map_err(|error| Self::failure(error.into()))?;
        let columns = |row: &PgRow| {
            let column = |at| text(row, at).map(str::to_owned);
            (0..row.len()).map(column).collect()
        };
        Ok(rows.iter().map(columns).collect())
    }

    fn failure(error: Error) -> Failure {
        match error {
            Error::Sqlx(::sqlx::Error::Database(error)) => {
                let code = error.code().map(|code| code.into_owned());
                Failure::new(code, error.into_error())
            }
            Error::Sqlx(::sqlx::Error::Io(error)) => Failure::new(None, error),
            Error::Sqlx(error) => Failure::new(None, error),
            other => Failure::new(None, other),
        }
    }
}

/// The name of the service, which is the first part of that of each of its sessions.
fn service(settings: &PartitionSettings) -> &str {
    let name = &settings.application_name;
    name.rsplit_once('/').map_or(name, |(service, _)| service)
}

/// A column of a row of the simple protocol.
fn text(row: &PgRow, at: usize) -> Option<&str> {
    let value = row.try_get_raw(at).ok()?;
    match value.is_null() {
        true => None,
        false => value.as_str().ok(),
    }
}

fn sqlstate(error: &::sqlx::Error) -> Option<std::borrow::Cow<'_, str>> {
    error.as_database_error()?.code()
}
