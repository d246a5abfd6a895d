//! What the pool asks of a driver.
//!
//! Connections are created and checked through deadpool's [`Manager`]; [`Driver`] adds what a manager
//! cannot say: whether a backend is quiet, how to make it so, and how to see its end.

mod password;

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};

use deadpool::managed::Manager;

use crate::config::PartitionSettings;
use crate::error::Failure;

pub use password::{AskForPasswords, Password, PasswordProvider, Passwords};

/// What is known of a connection's backend, without asking it.
///
/// # Examples
/// ```
/// use partitioned_pool::driver::{Driver, Readiness};
///
/// /// Whether it could go to the next caller as it is.
/// fn is_quiet<D: Driver>(connection: &D::Type) -> bool {
///     D::readiness(connection) == Readiness::Quiet
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Readiness {
    /// Every request is answered and no transaction is open.
    Quiet,
    /// Something is unanswered, open or uncertain.
    Unsettled,
    /// As unsettled, but its task is being polled at this very moment: it may be quiet in the next.
    Settling,
    /// The connection has ended.
    Lost,
}

/// How the end of a connection was seen.
///
/// # Examples
/// ```
/// use partitioned_pool::driver::{Driver, End};
///
/// /// Whether the backend is known gone.
/// async fn is_gone<D: Driver>(driver: &D, connection: D::Type) -> bool {
///     driver.close(connection).await == End::Seen
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// The server closed its side: the backend is gone.
    Seen,
    /// The connection broke: the backend may go on for a while.
    Unseen,
}

/// Where connections of a partition go to, without any secret. Exhaustive: drivers make it.
///
/// # Examples
/// ```
/// use partitioned_pool::driver::Endpoint;
///
/// let to = Endpoint { hosts: "db:5432".to_owned(), user: "shop".to_owned(), database: "orders".to_owned() };
/// assert_eq!(to.to_string(), "orders on db:5432 as shop");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Hosts and ports, as stated: `db1:5432,db2:5432`, or the directory of a socket.
    pub hosts: String,
    /// The role.
    pub user: String,
    /// The database.
    pub database: String,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            hosts,
            user,
            database,
        } = self;
        write!(f, "{database} on {hosts} as {user}")
    }
}

/// What is kept of a connection while a caller has it: enough to take it away.
///
/// # Examples
/// ```
/// use std::future::{Future, ready};
/// use std::pin::Pin;
/// use partitioned_pool::driver::{End, Leash};
///
/// /// Of a connection that there is no way to cut.
/// struct Loose;
///
/// impl Leash for Loose {
///     fn backend_pid(&self) -> Option<i32> {
///         None
///     }
///
///     fn take_away(&self) -> Pin<Box<dyn Future<Output = End> + Send + '_>> {
///         Box::pin(ready(End::Unseen))
///     }
/// }
/// ```
pub trait Leash: Send + Sync {
    /// The process id of its backend, if the server told it.
    fn backend_pid(&self) -> Option<i32>;

    /// Cancels what the backend runs, cuts the connection, and completes when the backend's end was
    /// seen; perhaps never. Whoever has the connection is told that it is closed. Dropping the future
    /// leaves the connection cut.
    fn take_away(&self) -> Pin<Box<dyn Future<Output = End> + Send + '_>>;
}

/// Rows of a query by the simple protocol: text, or `None` for NULL.
pub type Rows = Vec<Vec<Option<String>>>;

/// What a driver adds to the names of its sessions, for [`Driver::tag`]. It can be changed at any time.
///
/// # Examples
/// ```
/// use partitioned_pool::driver::Tag;
///
/// let tag = Tag::default();
/// assert_eq!(tag.behind("shop/transactional"), "shop/transactional");
/// tag.set("#3.17");
/// assert_eq!(tag.behind("shop/transactional"), "shop/transactional#3.17");
/// ```
#[derive(Debug, Default)]
pub struct Tag(RwLock<String>);

impl Tag {
    /// From now on this is added; nothing, if it is empty.
    pub fn set(&self, tag: &str) {
        tag.clone_into(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// A name with the tag behind it.
    #[must_use]
    pub fn behind(&self, name: &str) -> String {
        format!(
            "{name}{}",
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        )
    }

    /// The settings of a partition, with the tag behind its `application_name`.
    #[must_use]
    pub fn on<'s>(&self, settings: &'s PartitionSettings) -> Cow<'s, PartitionSettings> {
        let name = self.behind(&settings.application_name);
        if name == settings.application_name {
            return Cow::Borrowed(settings);
        }
        let mut tagged = settings.clone();
        tagged.application_name = name;
        Cow::Owned(tagged)
    }
}

/// A Postgres driver, for one partition.
///
/// `create` makes a connection whose session limits are in force; `recycle` asks the server whether a
/// connection still lives.
///
/// # Examples
/// ```
/// use partitioned_pool::{AcquireError, Driver, Partition};
///
/// /// What needs nothing of a driver is written for all of them.
/// async fn holds_one<D: Driver>(partition: &Partition<D>) -> Result<u32, AcquireError> {
///     let _connection = partition.acquire().await?;
///     Ok(partition.status().in_use)
/// }
/// ```
pub trait Driver: Manager<Type: Send, Error: Send> + Sized + 'static {
    /// What the guard of a connection derefs to.
    type Client;

    /// What a service may tell the driver beyond the configuration, by
    /// [`Builder::options`](crate::Builder::options); `()` if there is nothing.
    type Options: Default + Send + Sync + 'static;

    /// A driver for a partition. It connects to nothing yet. `siblings` are those that were made before it for
    /// the same pool: with them it may share what it needs only one of.
    ///
    /// # Errors
    /// What is wrong with the partition's `url`, without repeating it.
    fn new(
        settings: &PartitionSettings,
        options: &Self::Options,
        siblings: &[Self],
    ) -> Result<Self, String>;

    /// A driver for connections over which the pool itself asks, and that nobody cancels: it keeps nothing open beside
    /// them. Default: an ordinary one, without siblings.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    fn alone(settings: &PartitionSettings, options: &Self::Options) -> Result<Self, String> {
        Self::new(settings, options, &[])
    }

    /// From now on, every session that it opens, for itself too, or dresses has `tag` behind its `application_name`,
    /// from its very start. The fleet ends the sessions of a replica whose [seat](crate::config::SeatsConfig) was taken by it: what
    /// does not carry it, outlives its replica's right to connect. [`Tag`] keeps it.
    fn tag(&self, tag: &str);

    /// Where it connects to.
    fn endpoint(&self) -> &Endpoint;

    /// The name of the [`PasswordProvider`] while a connection that is being opened waits for it.
    fn waits_for_password_of(&self) -> Option<&str> {
        None
    }

    /// How many connections it keeps open beside those of its partition, to the same server, for its own needs;
    /// what it shares with a sibling is counted by the one that was made first. The fleet check counts them.
    fn control_connections(&self) -> u32 {
        0
    }

    /// Closes what it keeps open beside the connections of its partition: the pool is closed, and they are gone,
    /// or given up. What is still held may need it later; then it opens it for the moment.
    fn retire(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Whether [`reset`](Self::reset) makes a connection that `other` has opened one that this driver could
    /// have opened: the same server, role and database, and nothing else that is settled when connecting.
    /// Always so for a driver and itself; and whoever can dress for another can be dressed by it, too.
    fn can_dress(&self, other: &Self) -> bool;

    /// What the guard derefs to.
    fn client(connection: &Self::Type) -> &Self::Client;

    /// What the guard derefs to, mutably.
    fn client_mut(connection: &mut Self::Type) -> &mut Self::Client;

    /// What the pool keeps of a connection while a caller has it. Without one, `max_hold` and closing
    /// cannot take it away.
    fn leash(connection: &Self::Type) -> Option<Arc<dyn Leash>> {
        let _ = connection;
        None
    }

    /// What is known of the backend, at no cost.
    fn readiness(connection: &Self::Type) -> Readiness;

    /// The return path of a connection that is not quiet: makes it so within a bound of its own, or
    /// tells that it cannot.
    fn settle(&self, connection: &mut Self::Type) -> impl Future<Output = Readiness> + Send;

    /// Frees a quiet connection of session state, for `reset_session`, or because it was taken over from
    /// another partition ([`can_dress`](Self::can_dress)): prepared statements stay, and the limits of the
    /// partition are in force afterwards. Makes it so within a bound of its own, or tells that it cannot:
    /// anything but [`Readiness::Quiet`] is closed.
    fn reset(&self, connection: &mut Self::Type) -> impl Future<Output = Readiness> + Send;

    /// Ends a connection and its backend, and completes when it knows how that went: for a backend
    /// that does not answer, perhaps never. The pool bounds the wait, and counts the connection as a
    /// ghost after the first moments. Dropping the future cuts the connection.
    fn close(&self, connection: Self::Type) -> impl Future<Output = End> + Send;

    /// Runs `sql` by the simple protocol.
    fn query(
        &self,
        connection: &mut Self::Type,
        sql: &str,
    ) -> impl Future<Output = Result<Rows, Failure>> + Send;

    /// The driver's error, as ours.
    fn failure(error: Self::Error) -> Failure;

    /// What a service's own work on a connection has returned, as ours: an error of the driver's client is told as
    /// [`failure`](Self::failure) tells it. Default: without a SQLSTATE.
    fn failure_of(error: Box<dyn Error + Send + Sync>) -> Failure {
        Failure::new(None, error)
    }
}
