//! Callers that leave in the middle of something, and what the next caller finds.
//!
//! Shared by `#[path]` between the tests and the example `siege`. The work writes to a table `told (t text)` in the
//! role's schema.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use deadpool_postgres::ClientWrapper;
use futures_util::{SinkExt, Stream};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use tokio_postgres::{Error, SimpleQueryMessage};

/// Whatever was still running would have been a sleep of many seconds.
const BUSY: Duration = Duration::from_secs(5);
/// What one message of COPY carries.
const ROW: &[u8] = b"lost\n";
/// So many messages follow each other, and then a pause: who copies at full speed shows how fast the machine is.
const BURST: u32 = 16;
const PAUSE: Duration = Duration::from_millis(1);

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    Prepared,
    Unprepared,
    Slow,
    Transaction,
    RawBegin,
    CopyIn,
    CopyOut,
}

impl Work {
    /// The seven kinds.
    pub(crate) const ALL: [Self; 7] = [
        Self::Prepared,
        Self::Unprepared,
        Self::Slow,
        Self::Transaction,
        Self::RawBegin,
        Self::CopyIn,
        Self::CopyOut,
    ];

    /// One of them, by chance.
    pub(crate) fn at_random() -> Self {
        Self::ALL[fastrand::usize(0..Self::ALL.len())]
    }

    /// Its name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Prepared => "prepared",
            Self::Unprepared => "unprepared",
            Self::Slow => "slow",
            Self::Transaction => "transaction",
            Self::RawBegin => "raw BEGIN",
            Self::CopyIn => "COPY in",
            Self::CopyOut => "COPY out",
        }
    }
}

/// A connection over which callers work, and which they look at first.
pub(crate) trait Worker {
    type Error: fmt::Display;

    /// Does the work, to its end, which all but the unprepared one reach after about so many seconds.
    fn perform(
        &mut self,
        work: Work,
        seconds: f64,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Sleeps, by a prepared statement that the connection keeps.
    fn nap(&mut self, seconds: f64) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Says `sql`, which may be several statements.
    fn tell(&mut self, sql: &str) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Whether no transaction was open; takes two milliseconds, in which a late cancel would hit it.
    fn looks_clean(&mut self) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Whether the server has cancelled what was asked.
    fn is_cancelled(error: &Self::Error) -> bool;
}

const NAP: &str = "SELECT pg_sleep($1)";
/// In a transaction that was open before, its time is older than the statement's.
const LOOK: &str = "SELECT now() = statement_timestamp(), pg_sleep(0.002)";
const CANCELLED: &str = "57014";

impl Worker for ClientWrapper {
    type Error = Error;

    async fn perform(&mut self, work: Work, seconds: f64) -> Result<(), Error> {
        match work {
            Work::Prepared => {
                let statement = self.prepare(NAP).await?;
                self.query(&statement, &[&seconds]).await.map(drop)
            }
            Work::Unprepared => {
                let rows = self.query("SELECT generate_series(1, 500)", &[]);
                rows.await.map(drop)
            }
            Work::Slow => self.tell(&slow(seconds)).await,
            Work::Transaction => {
                let transaction = self.transaction().await?;
                transaction.batch_execute(INSERT).await?;
                transaction.query(&slow(seconds), &[]).await?;
                transaction.commit().await
            }
            Work::RawBegin => self.tell(&raw_begin(seconds)).await,
            Work::CopyIn => copy_in(self, seconds).await,
            Work::CopyOut => copy_out(self, seconds).await,
        }
    }

    async fn nap(&mut self, seconds: f64) -> Result<(), Error> {
        let statement = self.prepare_cached(NAP).await?;
        self.execute(&statement, &[&seconds]).await.map(drop)
    }

    async fn tell(&mut self, sql: &str) -> Result<(), Error> {
        self.batch_execute(sql).await
    }

    async fn looks_clean(&mut self) -> Result<bool, Error> {
        let messages = self.simple_query(LOOK).await?;
        Ok(messages.iter().any(is_clean))
    }

    fn is_cancelled(error: &Error) -> bool {
        error.code().is_some_and(|code| code.code() == CANCELLED)
    }
}

impl Worker for PgConnection {
    type Error = sqlx::Error;

    async fn perform(&mut self, work: Work, seconds: f64) -> Result<(), sqlx::Error> {
        match work {
            Work::Prepared => self.nap(seconds).await,
            Work::Unprepared => {
                let query = sqlx::query("SELECT generate_series(1, 500)").persistent(false);
                query.fetch_all(self).await.map(drop)
            }
            Work::Slow => slow_sqlx(self, seconds).await,
            Work::Transaction => {
                let mut transaction = self.begin().await?;
                sqlx::query(INSERT).execute(&mut *transaction).await?;
                slow_sqlx(&mut transaction, seconds).await?;
                transaction.commit().await
            }
            Work::RawBegin => self.tell(&raw_begin(seconds)).await,
            Work::CopyIn => copy_in_sqlx(self, seconds).await,
            Work::CopyOut => {
                let copy = copy_out_sql(seconds);
                let mut rows = self.copy_out_raw(&copy).await?;
                while next(rows.as_mut()).await.transpose()?.is_some() {}
                Ok(())
            }
        }
    }

    async fn nap(&mut self, seconds: f64) -> Result<(), sqlx::Error> {
        sqlx::query(NAP).bind(seconds).execute(self).await.map(drop)
    }

    async fn tell(&mut self, sql: &str) -> Result<(), sqlx::Error> {
        let said = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
        said.execute(self).await.map(drop)
    }

    async fn looks_clean(&mut self) -> Result<bool, sqlx::Error> {
        let row = sqlx::raw_sql(LOOK).fetch_one(self).await?;
        let clean = row.try_get_raw(0)?;
        Ok(clean.as_str().is_ok_and(|clean| clean == "t"))
    }

    fn is_cancelled(error: &sqlx::Error) -> bool {
        let code = error.as_database_error().and_then(|error| error.code());
        code.is_some_and(|code| code == CANCELLED)
    }
}

async fn slow_sqlx(client: &mut PgConnection, seconds: f64) -> Result<(), sqlx::Error> {
    let query = sqlx::query("SELECT pg_sleep(0.001 + random() * $1)").bind(seconds);
    query.execute(client).await.map(drop)
}

async fn copy_in_sqlx(client: &mut PgConnection, seconds: f64) -> Result<(), sqlx::Error> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut copy = client.copy_in_raw("COPY told FROM STDIN").await?;
    while Instant::now() < end {
        for _ in 0..BURST {
            copy.send(ROW).await?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    copy.finish().await.map(drop)
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a transaction that is left must take back.
pub(crate) const INSERT: &str = "INSERT INTO told VALUES ('lost')";

fn slow(seconds: f64) -> String {
    format!("SELECT pg_sleep(0.001 + random() * {seconds})")
}

fn raw_begin(seconds: f64) -> String {
    format!("BEGIN; {INSERT}; SELECT pg_sleep({seconds}); COMMIT")
}

async fn copy_in(client: &ClientWrapper, seconds: f64) -> Result<(), Error> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut sink = pin!(
        client
            .copy_in::<_, Bytes>("COPY told FROM STDIN (FORMAT text)")
            .await?
    );
    while Instant::now() < end {
        for _ in 0..BURST {
            sink.send(Bytes::from_static(ROW)).await?;
        }
        tokio::time::sleep(PAUSE).await;
    }
    sink.as_mut().finish().await.map(drop)
}

async fn copy_out(client: &ClientWrapper, seconds: f64) -> Result<(), Error> {
    let copy = copy_out_sql(seconds);
    let mut rows = pin!(client.copy_out(&copy).await?);
    while next(rows.as_mut()).await.transpose()?.is_some() {}
    Ok(())
}

/// A row a millisecond.
fn copy_out_sql(seconds: f64) -> String {
    let rows = Duration::from_secs_f64(seconds).as_millis();
    format!("COPY (SELECT pg_sleep(0.001) FROM generate_series(1, {rows})) TO STDOUT")
}

/// The next item of a stream.
async fn next<S: Stream + ?Sized>(mut stream: Pin<&mut S>) -> Option<S::Item> {
    std::future::poll_fn(|cx| stream.as_mut().poll_next(cx)).await
}

/// What was found wrong by callers who looked at a connection before they used it.
#[derive(Default)]
pub(crate) struct Found {
    /// A transaction was open.
    pub(crate) dirty: AtomicU64,
    /// A query was still running.
    pub(crate) busy: AtomicU64,
    /// The healthy query was cancelled.
    pub(crate) killed: AtomicU64,
    /// It failed in another way.
    pub(crate) failed: Mutex<Vec<String>>,
    /// Whether so much is wrong that it is of no use to go on.
    pub(crate) stop: AtomicBool,
}

impl Found {
    /// Looks at a connection as its next caller would.
    pub(crate) async fn look_at<W: Worker>(&self, client: &mut W) {
        let began = Instant::now();
        match client.looks_clean().await {
            Ok(clean) => drop(self.dirty.fetch_add(u64::from(!clean), Ordering::Relaxed)),
            Err(error) if W::is_cancelled(&error) => {
                self.killed.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => self.failures().push(error.to_string()),
        }
        if began.elapsed() > BUSY {
            self.busy.fetch_add(1, Ordering::Relaxed);
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// What failed in a way that is neither of the others.
    pub(crate) fn failures(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Dirty, busy, killed.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        let read = |count: &AtomicU64| count.load(Ordering::SeqCst);
        (read(&self.dirty), read(&self.busy), read(&self.killed))
    }
}

fn is_clean(message: &SimpleQueryMessage) -> bool {
    matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("t"))
}
