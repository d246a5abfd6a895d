//! The control connection: what cancels the queries of callers that have left, and sees backends go.
//!
//! sqlx sends no cancel requests, and keeps the key that they need to itself. So a query is cancelled by
//! `pg_cancel_backend`, over one more connection for each server and role. Its rules:
//!
//! 1. A backend is its pid *and* its start. Pids come back.
//! 2. One question at a time: an answer takes a fraction of a millisecond, so the queue is short.
//! 3. Who leaves in the middle of a question takes the connection along: what is out of step is never used again.
//! 4. It comes back by itself when it has died.
//! 5. Its name has the tag of the sessions that it serves; with another tag it is another connection.
//! 6. A question that was not answered may yet be heard. So whoever asked for a cancel in vain must not use the
//!    backend again.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ::sqlx::postgres::{PgConnection, PgRow};
use ::sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Error, raw_sql};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::driver::Tag;

use super::options::Login;
use super::text;

/// How long one question may take, connecting and waiting for others included, once the pool has started.
const BOUND: Duration = Duration::from_secs(1);

/// How long its own end may take.
const LAST_WORD_BOUND: Duration = Duration::from_millis(250);

/// Between two looks at a backend that ends.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// How much older than its connection a backend must be to have been somebody else's: what clocks may differ by.
const OLDER: Duration = Duration::from_secs(1);

/// The server gives up on a client that vanished as it does for other sessions, and nobody's settings make it slow.
const DRESS: &str = "SELECT set_config('statement_timeout', '1000', false), \
    set_config('client_min_messages', 'error', false), set_config('tcp_keepalives_idle', '10', false), \
    set_config('tcp_keepalives_interval', '5', false), set_config('tcp_keepalives_count', '3', false)";

/// One backend, for as long as the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backend {
    pub(super) pid: i32,
    /// In microseconds since 1970, by the server's clock.
    pub(super) started: i64,
}

impl Backend {
    /// What a session answers with its own pid and start: the columns of one row.
    pub(super) const SELF: &'static str = "SELECT pid, (extract(epoch FROM backend_start) * 1000000)::bigint \
        FROM pg_stat_get_activity(pg_backend_pid())";

    /// The age of a session's backend, in microseconds.
    const AGE: &'static str = "SELECT greatest(0, extract(epoch FROM clock_timestamp() - backend_start) * \
        1000000)::bigint FROM pg_stat_get_activity(pg_backend_pid())";

    pub(super) fn read(row: &PgRow) -> Option<Self> {
        Some(Self {
            pid: text(row, 0)?.parse().ok()?,
            started: text(row, 1)?.parse().ok()?,
        })
    }

    /// Whether the backend of a connection is older than the connection, which was begun then.
    pub(super) async fn is_older(
        connection: &mut PgConnection,
        began: Instant,
    ) -> Result<bool, Error> {
        let row = raw_sql(Self::AGE).fetch_one(connection).await?;
        let age = text(&row, 0).and_then(|micros| micros.parse().ok());
        Ok(age.is_some_and(|micros| Duration::from_micros(micros) > began.elapsed() + OLDER))
    }

    /// Selects `what` for each backend that is this one: one row, or none if it is gone.
    fn select(self, what: &str) -> String {
        let Self { pid, started } = self;
        format!(
            "SELECT {what} FROM pg_stat_get_activity({pid}) \
             WHERE (extract(epoch FROM backend_start) * 1000000)::bigint = {started}"
        )
    }
}

/// What the partitions of one server and role share.
pub(super) struct Control {
    login: Login,
    /// A pooler is in between: a backend that is let go lives on, and serves somebody else.
    is_pooled: bool,
    /// How long it may take until it is there for the first time.
    patience: Duration,
    /// At most 63 bytes with a tag, of which the service's name and the slash are kept, because the fleet check knows
    /// its own sessions by them.
    name: String,
    tag: Tag,
    line: Mutex<Option<Line>>,
    /// How often a connection was found lost that nobody had ended.
    losses: AtomicU64,
    /// The fastest answer that the server has given, in microseconds.
    round_trip: AtomicU64,
    /// The pool is closed: what is opened from now on is not kept.
    retired: AtomicBool,
    /// Its backend is known to be its own: settings stay there.
    trusted: AtomicBool,
    /// Its backend was older than the connection when that was opened.
    second_hand: AtomicBool,
    lifeline: Lifeline,
}

/// It, while it is open.
struct Line {
    connection: PgConnection,
    /// What it is called.
    name: String,
}

/// Knows when the runtime has ended: no socket that was opened in it works any more.
struct Lifeline {
    cut: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Lifeline {
    fn new() -> Self {
        let cut = Arc::new(AtomicBool::new(false));
        let knife = Knife(Arc::clone(&cut));
        let task = tokio::spawn(async move {
            let _knife = knife;
            pending::<()>().await;
        });
        Self {
            cut,
            task: task.abort_handle(),
        }
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a task holds that ends with its runtime.
struct Knife(Arc<AtomicBool>);

impl Drop for Knife {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Control {
    /// Connects to nothing yet.
    pub(super) fn new(
        login: Login,
        service: &str,
        is_pooled: bool,
        connect_timeout: Duration,
    ) -> Self {
        Self {
            login: login.with(|options| options.disable_statement_logging()),
            is_pooled,
            patience: connect_timeout,
            name: format!("{service}/control"),
            tag: Tag::default(),
            line: Mutex::new(None),
            losses: AtomicU64::new(0),
            round_trip: AtomicU64::new(u64::MAX),
            retired: AtomicBool::new(false),
            trusted: AtomicBool::new(false),
            second_hand: AtomicBool::new(false),
            lifeline: Lifeline::new(),
        }
    }

    /// Opens it, if it is not open. Whoever needs it finds out whether that went well.
    pub(super) async fn open(&self) {
        let _ = self.ask_patiently("SELECT 1").await;
    }

    /// Has the backend cancel what it runs. When this returns, the signal was sent, and nothing that is sent to the
    /// backend later can be hit by it. `false` if the backend is gone. After an error nothing is known: the request
    /// may still be on its way.
    pub(super) async fn cancel(&self, backend: Backend) -> Result<bool, Error> {
        let rows = self.ask(&backend.select("pg_cancel_backend(pid)")).await?;
        Ok(!rows.is_empty())
    }

    /// Completes when the backend is gone, after having been told to go if it was not already.
    pub(super) async fn end(&self, backend: Backend, terminate: bool) {
        let what = match terminate {
            true => "pg_terminate_backend(pid)",
            false => "1",
        };
        let (sql, mut pause) = (backend.select(what), FIRST_PAUSE);
        while !matches!(self.ask(&sql).await, Ok(rows) if rows.is_empty()) {
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Whether it sees the backend, and is another one itself.
    pub(super) async fn sees(&self, backend: Backend) -> Result<bool, Error> {
        let question = backend.select("pg_backend_pid()");
        let rows = self.ask_patiently(&question).await?;
        let own = rows.first().and_then(|row| text(row, 0)?.parse().ok());
        Ok(own.is_some_and(|own: i32| own != backend.pid))
    }

    async fn ask(&self, sql: &str) -> Result<Vec<PgRow>, Error> {
        self.ask_within(BOUND, sql).await
    }

    /// Asks for whoever opens the first connection: connecting takes as long as a connection may take.
    async fn ask_patiently(&self, sql: &str) -> Result<Vec<PgRow>, Error> {
        self.ask_within(self.patience, sql).await
    }

    async fn ask_within(&self, limit: Duration, sql: &str) -> Result<Vec<PgRow>, Error> {
        let late = |_| Error::Io(std::io::ErrorKind::TimedOut.into());
        timeout(limit, self.ask_at_length(sql))
            .await
            .unwrap_or_else(|elapsed| Err(late(elapsed)))
    }

    async fn ask_at_length(&self, sql: &str) -> Result<Vec<PgRow>, Error> {
        let mut line = self.line.lock().await;
        let known = line.take().filter(|known| known.name == self.full_name());
        let mut open = match known {
            Some(known) => known,
            None => self.connect().await?,
        };
        let asked = Instant::now();
        let question = raw_sql(AssertSqlSafe(sql.to_owned()));
        let rows = question.fetch_all(&mut open.connection).await?;
        self.answered_in(asked.elapsed());
        if !self.retired.load(Ordering::Acquire) {
            *line = Some(open);
        }
        Ok(rows)
    }

    /// Its name with the tag behind it.
    fn full_name(&self) -> String {
        let mut name = self.tag.behind(&self.name);
        name.truncate(63);
        name
    }

    async fn connect(&self) -> Result<Line, Error> {
        let began = Instant::now();
        let name = self.full_name();
        let login = self.login.clone().with(|o| o.application_name(&name));
        let connected = login.connect().await;
        let mut connection = connected.map_err(|error| match error {
            super::Error::Sqlx(error) => error,
            other => Error::Configuration(Box::new(other)),
        })?;
        if self.trusted.load(Ordering::Acquire) {
            raw_sql(DRESS).execute(&mut connection).await?;
        } else if Backend::is_older(&mut connection, began).await? {
            self.second_hand.store(true, Ordering::Release);
        }
        Ok(Line { connection, name })
    }

    /// From now on it has another name. What is just being asked is answered by the old one, which then goes when
    /// the next is asked.
    pub(super) fn tag(&self, tag: &str) {
        if self.tag.behind("") == tag {
            return;
        }
        self.tag.set(tag);
        if let Ok(mut line) = self.line.try_lock() {
            drop(line.take());
        }
    }

    /// From here on its settings stay with its backend, and nobody else is served by it.
    pub(super) async fn trust(&self) -> Result<(), Error> {
        self.trusted.store(true, Ordering::Release);
        self.ask_patiently(DRESS).await.map(drop)
    }

    /// Whether its backend was older than the connection when that was opened: then it was somebody else's before.
    pub(super) fn is_second_hand(&self) -> bool {
        self.second_hand.load(Ordering::Acquire)
    }

    /// Closes the connection, and keeps none from now on.
    pub(super) async fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        let closing = async {
            let open = self.line.lock().await.take();
            if let Some(Line { connection, .. }) = open {
                let _ = connection.close().await;
            }
        };
        let _ = timeout(LAST_WORD_BOUND, closing).await;
    }

    pub(super) fn is_pooled(&self) -> bool {
        self.is_pooled
    }

    /// A connection was found lost that nobody had ended: others may be lost, too.
    pub(super) fn lost_one(&self) {
        self.losses.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the runtime has ended in which the connections were opened.
    #[inline]
    pub(super) fn has_lost_its_runtime(&self) -> bool {
        self.lifeline.cut.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Takes note of how long the server took to answer.
    pub(super) fn answered_in(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.round_trip.fetch_min(micros, Ordering::Relaxed);
    }

    /// The fastest answer that the server has given.
    pub(super) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip.load(Ordering::Relaxed)).min(BOUND)
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control")
            .field("losses", &self.losses())
            .field("round_trip", &self.round_trip())
            .finish_non_exhaustive()
    }
}
