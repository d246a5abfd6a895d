//! One connection of this driver, from its opening to its end.

use std::fmt;
use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::sqlx::postgres::{PgConnection, PgDatabaseError, PgRow, PgSeverity};
use ::sqlx::{AssertSqlSafe, Connection as _, Error, raw_sql};
use tokio::time::timeout;

use crate::driver::{End, Leash, Readiness};

use super::control::{Backend, Control};
use super::settle::BOUND;

/// What is known of a session without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// Every answer was read and no transaction is open; so many connections had been found lost by then.
    Quiet(u64),
    /// Every answer was read, and a transaction of ours may be open.
    Open,
    /// Every answer was read, and a text has begun a transaction.
    Begun,
    /// It was in the hands of somebody who may have done anything.
    Nothing,
    /// The server has closed its side.
    Gone,
}

/// A connection of [`Sqlx`](super::Sqlx).
///
/// # Examples
/// ```
/// use partitioned_pool::driver::Driver;
/// use partitioned_pool::driver_sqlx::{Session, sqlx::PgConnection};
/// use partitioned_pool::Sqlx;
///
/// /// What a connection of the pool derefs to.
/// fn connection(session: &Session) -> &PgConnection {
///     Sqlx::client(session)
/// }
/// ```
pub struct Session {
    connection: PgConnection,
    backend: Backend,
    control: Arc<Control>,
    /// Whether it was taken away.
    taken: Arc<AtomicBool>,
    known: Known,
    /// How many fences were sent.
    fences: u64,
    /// `server_version_num`.
    version: u32,
}

impl Session {
    pub(super) fn new(
        connection: PgConnection,
        backend: Backend,
        control: Arc<Control>,
        version: u32,
    ) -> Self {
        Self {
            known: Known::Quiet(control.losses()),
            connection,
            backend,
            control,
            taken: Arc::default(),
            fences: 0,
            version,
        }
    }

    /// Asks for rows by the simple protocol. The question is ours: it opens no transaction.
    pub(super) async fn ask(&mut self, sql: &str) -> Result<Vec<PgRow>, Error> {
        let known = self.known;
        let asked = raw_sql(AssertSqlSafe(sql.to_owned()));
        let rows = asked.fetch_all(self.connection_mut()).await?;
        self.known = known;
        Ok(rows)
    }

    pub(super) fn version(&self) -> u32 {
        self.version
    }

    pub(super) fn backend(&self) -> Backend {
        self.backend
    }

    pub(super) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    #[inline]
    pub(super) fn connection(&self) -> &PgConnection {
        &self.connection
    }

    /// The connection, for somebody who may do what he likes: nothing is known of it from here on.
    #[inline]
    pub(super) fn connection_mut(&mut self) -> &mut PgConnection {
        self.known = Known::Nothing;
        &mut self.connection
    }

    /// Takes note of an error that is not the server's word on a statement. Others may have gone with it, if we have
    /// not ended it.
    pub(super) fn fails(&mut self, error: &Error) {
        if is_an_end(error) {
            if self.readiness() != Readiness::Lost {
                self.control.lost_one();
            }
            self.known = Known::Gone;
        }
    }

    pub(super) fn known(&self) -> Known {
        self.known
    }

    /// Takes note of what is known of it, until somebody has the connection.
    pub(super) fn know(&mut self, known: Known) {
        self.known = known;
    }

    /// Takes note that every answer was read and no transaction is open.
    pub(super) fn know_quiet(&mut self) {
        self.known = Known::Quiet(self.control.losses());
    }

    /// The number of a fence that was never sent before.
    pub(super) fn next_fence(&mut self) -> u64 {
        self.fences += 1;
        self.fences
    }

    /// What was quiet before another connection was found lost is doubtful.
    #[inline]
    pub(super) fn readiness(&self) -> Readiness {
        if self.taken.load(Ordering::Acquire) || self.control.has_lost_its_runtime() {
            return Readiness::Lost;
        }
        match self.known {
            Known::Quiet(losses) if losses == self.control.losses() => Readiness::Quiet,
            Known::Gone => Readiness::Lost,
            _ => Readiness::Unsettled,
        }
    }

    pub(super) fn leash(&self) -> SessionLeash {
        SessionLeash {
            backend: self.backend,
            control: Arc::clone(&self.control),
            taken: Arc::clone(&self.taken),
        }
    }

    /// Says good-bye if it is quiet, has the backend ended if it is not, and waits until the server knows it no
    /// more.
    pub(super) async fn close(self) -> End {
        if self.known == Known::Gone {
            return End::Seen;
        }
        let quiet = self.readiness() == Readiness::Quiet;
        if self.control.is_pooled() {
            return self.let_go(quiet).await;
        }
        match quiet {
            true => drop(timeout(BOUND, self.connection.close()).await),
            false => drop(self.connection),
        }
        self.control.end(self.backend, !quiet).await;
        End::Seen
    }
}

impl Session {
    /// As [`close`](Self::close), where a pooler is in between. Once it has the backend back, that may be anybody's: so
    /// it is ended before it is let go, or not at all.
    async fn let_go(self, quiet: bool) -> End {
        if !quiet {
            self.control.end(self.backend, true).await;
        }
        drop(timeout(BOUND, self.connection.close()).await);
        End::Seen
    }
}

/// Whether the server has closed its side, or has had its last word. A connection that was reset counts as closed:
/// servers reset what they close with data unread.
pub(super) fn is_an_end(error: &Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error {
        Error::Io(io) => matches!(
            io.kind(),
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
        ),
        Error::Database(said) => {
            let said = said.try_downcast_ref::<PgDatabaseError>();
            said.is_some_and(|said| {
                matches!(said.severity(), PgSeverity::Fatal | PgSeverity::Panic)
            })
        }
        _ => false,
    }
}

/// Enough of a session to take it away from whoever has it.
pub(super) struct SessionLeash {
    backend: Backend,
    control: Arc<Control>,
    taken: Arc<AtomicBool>,
}

impl Leash for SessionLeash {
    fn backend_pid(&self) -> Option<i32> {
        Some(self.backend.pid)
    }

    fn take_away(&self) -> Pin<Box<dyn Future<Output = End> + Send + '_>> {
        self.taken.store(true, Ordering::Release);
        Box::pin(async {
            self.control.end(self.backend, true).await;
            End::Seen
        })
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("backend", &self.backend)
            .field("readiness", &self.readiness())
            .finish_non_exhaustive()
    }
}
