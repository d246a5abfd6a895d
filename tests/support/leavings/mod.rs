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
use tokio_postgres::{Error, SimpleQueryMessage};

/// Whatever was still running would have been a sleep of many seconds.
const BUSY: Duration = Duration::from_secs(5);
/// What one message of COPY carries.
pub(crate) const ROW: &[u8] = b"lost\n";
/// So many messages follow each other, and then a pause: who copies at full speed shows how fast the machine is.
pub(crate) const BURST: u32 = 16;
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

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

    /// Does it, to its end, which all but the unprepared one reach after about so many seconds.
    pub(crate) async fn perform(
        self,
        client: &mut ClientWrapper,
        seconds: f64,
    ) -> Result<(), Error> {
        match self {
            Self::Prepared => {
                let statement = client.prepare("SELECT pg_sleep($1)").await?;
                client.query(&statement, &[&seconds]).await.map(drop)
            }
            Self::Unprepared => {
                let rows = client.query("SELECT generate_series(1, 500)", &[]);
                rows.await.map(drop)
            }
            Self::Slow => client.batch_execute(&slow(seconds)).await,
            Self::Transaction => {
                let transaction = client.transaction().await?;
                transaction.batch_execute(INSERT).await?;
                transaction.query(&slow(seconds), &[]).await?;
                transaction.commit().await
            }
            Self::RawBegin => {
                let work = format!("BEGIN; {INSERT}; SELECT pg_sleep({seconds}); COMMIT");
                client.batch_execute(&work).await
            }
            Self::CopyIn => copy_in(client, seconds).await,
            Self::CopyOut => copy_out(client, seconds).await,
        }
    }
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
pub(crate) fn copy_out_sql(seconds: f64) -> String {
    let rows = Duration::from_secs_f64(seconds).as_millis();
    format!("COPY (SELECT pg_sleep(0.001) FROM generate_series(1, {rows})) TO STDOUT")
}

/// The next item of a stream.
pub(crate) async fn next<S: Stream + ?Sized>(mut stream: Pin<&mut S>) -> Option<S::Item> {
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
    pub(crate) async fn look_at(&self, client: &ClientWrapper) {
        let began = Instant::now();
        match client
            .simple_query("SELECT now() = statement_timestamp(), pg_sleep(0.002)")
            .await
        {
            Ok(messages) => {
                let clean = messages.iter().any(is_clean);
                self.dirty.fetch_add(u64::from(!clean), Ordering::Relaxed);
            }
            Err(error) if error.code().is_some_and(|code| code.code() == "57014") => {
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

/// In a transaction that was open before, its time is older than the statement's.
fn is_clean(message: &SimpleQueryMessage) -> bool {
    matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("t"))
}
