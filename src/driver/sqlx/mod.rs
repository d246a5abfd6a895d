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
//! - What went through a partition, a connection or a [`Transaction`] *as an `Executor`*
//!   (`.fetch_all(pool.transactional())`, `.fetch_all(&mut connection)`) was seen to its end, also if it ended in an error
//!   of the server. It has opened no transaction unless its text has the word BEGIN or START.
//! - Of what had the `PgConnection` itself (`&mut *connection`, sqlx's own `begin` on it, `migrate!`) nothing is known: it
//!   is asked once on the way back.
//!
//! | what a caller did | round trips on the way back |
//! |---|---|
//! | a partition as the executor | 0 |
//! | an error of the server | 0 |
//! | a connection as the executor | 0 |
//! | `begin`, committed | 0 |
//! | `begin`, dropped | 1 |
//! | `BEGIN` as text, left open | 1 |
//! | the `PgConnection` | 1 |
//! | `begin`, used as a `PgConnection`, committed | 1 |
//! | sqlx's `begin` on a connection, committed | 1 |
//! | sqlx's `begin` on a connection, dropped | 2 |
//! | `BEGIN` as text to the `PgConnection`, left open | 2 |
//!
//! In the last two, a transaction is open of which only the question tells, so the ROLLBACK and the question cannot go
//! together: sqlx sends nothing before it has read the answer to the ROLLBACK that its `Transaction` queues when it is
//! dropped; and a ROLLBACK for everyone would have the server log a warning for each who has none open.
//!
//! # Cancelling
//!
//! sqlx cannot cancel, so we do, by `pg_cancel_backend` over a *control connection*: one more connection for each
//! server and role, shared by the partitions there, beside their budgets. It is opened with the first connection,
//! counted by the fleet check (`1 control`), and named `<service>/control`. A transaction pooler in between would have us
//! cancel a stranger's query, so that is found out and refused when the pool starts.
//!
//! # LISTEN, and notices
//!
//! sqlx hands out what a connection hears only through its `PgListener`, which wants a pool of sqlx's own. Declare one, so
//! that the fleet check counts it, and give it [`external_pool`](crate::PartitionedPool::external_pool):
//!
//! ```no_run
//! use partitioned_pool::config::{ExternalPool, FleetConfig};
//! use partitioned_pool::driver_sqlx::sqlx::postgres::PgListener;
//! # use partitioned_pool::{PartitionedPool, Sqlx};
//!
//! # fn fleet() -> FleetConfig {
//! FleetConfig::new(3, 1).external(ExternalPool::new("listener", 1))
//! # }
//!
//! async fn listen(pool: &PartitionedPool<Sqlx>) -> Result<(), Box<dyn std::error::Error>> {
//!     let own = pool.external_pool("listener", pool.transactional())?;
//!     let mut listener = PgListener::connect_with(&own).await?;
//!     listener.listen("orders").await?;
//!     loop {
//!         println!("{}", listener.recv().await?.payload());
//!     }
//! }
//! ```
//!
//! Notices go to the log, from sqlx, with the target `sqlx::postgres::notice`.
//! [`Connection::detach`](crate::Connection::detach) is for what keeps a connection otherwise, such as an advisory lock.
//!
//! # Secrets
//!
//! This crate prints no password, and no parameter of a statement. sqlx does: the `Debug` of its `PgConnectOptions` has
//! the password, and that of its error the server's DETAIL, in which values can stand.
//!
//! # What this driver cannot do, and the other can
//!
//! Because sqlx's `PgConnection` does not say or let it:
//!
//! - *A password provider that takes its time* delays the start of the pool, and nothing else, as long as the control
//!   connection lives. To come back it has a second for all of it: until it is there, what a caller left running is closed
//!   instead of cancelled.
//! - *Several hosts, `target_session_attrs`, `connect_timeout`, keepalive in the URL*: sqlx 0.9 has none of them. The
//!   partition's `connect_timeout` holds all the same. A host that vanishes is noticed by what waits for an answer only at
//!   the caller's deadline, and by an idle connection when it is used or validated.
//! - *An idle connection that the server has closed* is found when it is used: its user has the error. From then on
//!   all others are asked before they are handed out, once. So `min_idle` is refilled by use, and not by itself. An idle
//!   `PgConnection` reads nothing.
//! - *No round trip on the way back* after everything: see the table above. sqlx keeps the transaction status that every
//!   answer carries to itself.
//! - *A COPY that is left half way* costs the connection: sqlx does not count its answers, so it is closed, and its
//!   slot free when its backend is gone. A `COPY .. FROM STDIN` that was sent as text, without `copy_in_raw`, can only be
//!   closed after 2 s: the server takes no cancel while it waits for its rows.
//! - *Requests behind each other* (pipelining): sqlx sends a statement when the last is answered.
//! - *Who holds* a connection that a partition was given as an `Executor` for is told as a line of this crate: sqlx
//!   does not pass on who called.
//! - *`sqlx::Acquire`* for a partition: its `begin` returns sqlx's own `Transaction`, which holds a connection of sqlx's own
//!   pool or a borrowed one. [`Partition::begin`](crate::Partition::begin) returns ours.
//!
//! Because a query is cancelled, and a backend ended and seen to end, over a connection instead of a request of its own:
//!
//! - *A transaction pooler in between* is refused when the pool starts.
//! - *Without a connection to the server, nothing is cancelled.* If the control connection is lost while the
//!   server, the role or the database is full, whoever leaves costs its connection and its slot until there is room again,
//!   at most 30 s. A cancel request needs no room.
//! - *One connection more* counts against the server, the role's `CONNECTION LIMIT` and the database's.
//! - *A connection that is taken away* (`max_hold`, [`close`](crate::PartitionedPool::close)) is ended from the
//!   server's side. Where the server cannot be reached, its owner hears nothing before it gives up by itself.
//! - *A session that was not ended by us but lost its way to the server* can only be ended over the control connection;
//!   as long as that cannot connect either, it counts as a ghost for 30 s, and no longer.
//!
//! Each behaviour that is tested is tested over both drivers, but for these.

mod control;
mod error;
mod executor;
mod external;
mod failure;
mod options;
mod session;
mod settle;
mod transaction;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use ::sqlx::postgres::{PgConnection, PgRow};
use ::sqlx::{AssertSqlSafe, Connection as _, Row as _, ValueRef as _, raw_sql};
use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use tokio::sync::OnceCell;

use crate::config::{PartitionSettings, PoolerMode};
use crate::driver::{Driver, End, Endpoint, Leash, Readiness, Rows, Tag};
use crate::error::{Failure, NoPassword, UndeclaredPooler};
use crate::session::{SettingNotInForce, SettingsNotInForce, dress, one_by_one, redress};

use control::{Backend, Control};
pub use error::acquire_error;
pub use external::ExternalPoolError;
use options::Login;
pub use options::Options;
pub use session::Session;
pub use transaction::Transaction;

/// The crate whose types a service meets here, in the version that this crate is built on.
pub use ::sqlx;

/// The driver for [`PartitionedPool`](crate::PartitionedPool) on sqlx.
///
/// The guard of a connection derefs to sqlx's [`PgConnection`]. See the [module](self) for what a return costs, and
/// for what this driver cannot do. TLS, sockets and the statement cache are what the `url` says, in sqlx's words. The
/// feature `tls` switches sqlx's rustls on, with the platform's CAs; a service that wants another of sqlx's ways to do TLS
/// leaves it out, and switches on one of sqlx's `tls-..` features. Without any, a `url` that demands TLS is refused. For what a URL cannot say, there is
/// [`Builder::connect_options`](crate::Builder::connect_options).
///
/// # Examples
/// ```
/// use partitioned_pool::driver_sqlx::sqlx;
/// use partitioned_pool::{Partition, Sqlx};
///
/// async fn stock(checkout: &Partition<Sqlx>, id: i32) -> Result<i32, sqlx::Error> {
///     sqlx::query_scalar("SELECT left_over FROM stock WHERE id = $1").bind(id).fetch_one(checkout).await
/// }
/// ```
pub struct Sqlx {
    login: Login,
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
            .field("endpoint", self.login.endpoint())
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

/// Why a connection could not be opened or checked.
///
/// # Examples
/// ```
/// use partitioned_pool::driver::Driver;
/// use partitioned_pool::driver_sqlx::Error;
/// use partitioned_pool::Sqlx;
///
/// let failure = Sqlx::failure(Error::Strangers);
/// assert!(!failure.is_transient() && failure.to_string().contains("transaction pooler"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What sqlx reported.
    #[error(transparent)]
    Sqlx(#[from] ::sqlx::Error),
    /// The [`PasswordProvider`](crate::driver::PasswordProvider) gave no password.
    #[error(transparent)]
    NoPassword(#[from] NoPassword),
    /// Queries could not be cancelled: the backend of a connection is not one of its own, or not to be seen by another
    /// connection to the same address.
    #[error(
        "queries could not be cancelled: the backend of a connection changes, or another connection with the same \
        url does not see it. A transaction pooler is in between, or the host stands for several servers"
    )]
    Strangers,
    /// A pooler in session mode is in between, which the configuration does not state: the backend of the first
    /// connection is older than the connection.
    #[error(transparent)]
    Pooled(UndeclaredPooler),
    /// A connection that was idle is not usable any more.
    #[error("the connection is lost, or its answers are out of order")]
    Lost,
    /// The server refuses settings of the partition.
    #[error(transparent)]
    Settings(SettingsNotInForce),
    /// The server did not say which backend it is.
    #[error("the server did not tell the process id and the start of its backend")]
    Nameless,
}

/// So often it is seen whether the backends stay those that they were: a pooler that deals them out in turn, or
/// again to the last to ask, shows itself in two.
const LOOKS: u32 = 3;

impl Sqlx {
    /// Whether the backend is this connection's own, and the control connection sees it. Asked of the first connection.
    /// Nothing is set before: it could stay with a backend that serves a stranger next.
    async fn vouch(&self, connection: &mut PgConnection, began: Instant) -> Result<(), Error> {
        let first = raw_sql(Backend::SELF).fetch_one(&mut *connection).await?;
        let backend = Backend::read(&first).ok_or(Error::Nameless)?;
        for _ in 0..LOOKS {
            let now = raw_sql(Backend::SELF).fetch_one(&mut *connection).await?;
            if Backend::read(&now) != Some(backend) || !self.control.sees(backend).await? {
                return Err(Error::Strangers);
            }
        }
        let second_hand =
            Backend::is_older(connection, began).await? || self.control.is_second_hand();
        if self.settings.pooler.is_none() && second_hand {
            let found = UndeclaredPooler::of_mode(PoolerMode::Session);
            return Err(Error::Pooled(found));
        }
        Ok(self.control.trust().await?)
    }

    /// Puts the limits in force and asks who it is: one round trip.
    async fn introduce(
        &self,
        connection: &mut PgConnection,
        version: u32,
        began: Instant,
    ) -> Result<Backend, Error> {
        let vouch = async || self.vouch(connection, began).await;
        self.vouched.get_or_try_init(vouch).await?;
        let dress = dress(&self.tag.on(&self.settings), version);
        let sql = format!("{dress}; {}", Backend::SELF);
        let asked = Instant::now();
        let rows = raw_sql(AssertSqlSafe(sql))
            .fetch_all(&mut *connection)
            .await?;
        self.control.answered_in(asked.elapsed());
        rows.last().and_then(Backend::read).ok_or(Error::Nameless)
    }
}

impl Sqlx {
    /// Why a session could not be dressed: which settings the server refuses, if it is that.
    async fn told_apart(&self, connection: &mut PgConnection, error: Error) -> Error {
        if !matches!(&error, Error::Sqlx(error) if sqlstate(error).is_some()) {
            return error;
        }
        let mut refused = Vec::new();
        for (name, wanted, sql) in one_by_one(&self.settings) {
            if let Err(error) = raw_sql(AssertSqlSafe(sql)).execute(&mut *connection).await {
                let failure = Self::failure(error.into());
                refused.extend(SettingNotInForce::refused(name, wanted, &failure));
            }
        }
        SettingsNotInForce::of(refused).map_or(error, Error::Settings)
    }
}

impl Manager for Sqlx {
    type Type = Session;
    type Error = Error;

    async fn create(&self) -> Result<Session, Error> {
        let began = Instant::now();
        // The first to come opens the control connection beside its own.
        let name = self.tag.behind(&self.settings.application_name);
        let login = self.login.clone().with(|o| o.application_name(&name));
        let (opened, ()) = tokio::join!(login.connect(), async {
            if !self.vouched.initialized() {
                self.control.open().await;
            }
        });
        let mut connection = opened?;
        let version = connection.server_version_num().unwrap_or(0);
        match self.introduce(&mut connection, version, began).await {
            Ok(backend) => {
                let control = Arc::clone(&self.control);
                Ok(Session::new(connection, backend, control, version))
            }
            Err(error) => {
                let error = self.told_apart(&mut connection, error).await;
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
        if !settings.has_sessions() {
            return Err(format!(
                "leads to a transaction pooler: {TRANSACTION_POOLER}"
            ));
        }
        let login = Login::new(settings, options)?;
        let server = |login: &Login| {
            let Endpoint { hosts, user, .. } = login.endpoint();
            (hosts.clone(), user.clone())
        };
        let shares = |one: &&Self| server(&one.login) == server(&login);
        let shared = siblings.iter().find(shares);
        let control = match shared {
            Some(sibling) => Arc::clone(&sibling.control),
            None => {
                let is_pooled = settings.pooler.is_some();
                let (service, limit) = (service(settings), settings.connect_timeout);
                Arc::new(Control::new(login.clone(), service, is_pooled, limit))
            }
        };
        Ok(Self {
            owns_control: shared.is_none(),
            login,
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
        self.login.endpoint()
    }

    fn waits_for_password_of(&self) -> Option<&str> {
        self.login.passwords.waited_for()
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
        let (own, others) = (&self.settings, &other.settings);
        own.url == others.url && own.pooler == others.pooler
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
        let settings = self.tag.on(&self.settings);
        settle::reset(session, redress(&settings, session.version())).await
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

    fn failure_of(error: Box<dyn StdError + Send + Sync>) -> Failure {
        failure::failure_of(error)
    }

    fn failure(error: Error) -> Failure {
        match error {
            Error::Sqlx(error) => failure::failure(error),
            Error::NoPassword(error) => Failure::new(None, error),
            Error::Settings(error) => Failure::new(None, error),
            Error::Pooled(found) => found.into(),
            Error::Strangers => Failure::new(None, Error::Strangers).advising(NO_STRANGERS),
            other => Failure::new(None, other),
        }
    }
}

const NO_STRANGERS: &str = "connect to Postgres directly; or use the pooler's session mode, and state it beside the \
    url: [pooler] in TOML, with mode = \"session\". The driver on tokio-postgres goes with transaction mode, too";

const TRANSACTION_POOLER: &str = "with sqlx, queries could not be cancelled there, because the pid of a backend may \
    be a stranger's in the next moment. Connect to Postgres directly, use the pooler's session mode, or use the driver on \
    tokio-postgres, whose cancel requests go with a key that a pooler understands";

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
