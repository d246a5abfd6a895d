//! A partition, as a service uses it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout_at;

use crate::config::PartitionSettings;
use crate::driver::{Driver, Endpoint};
use crate::error::{AcquireError, RunError};
use crate::status::{CallSite, Held, PartitionStatus};

use super::connection::Connection;
use super::core::Core;
use super::deadline::Deadline;
use super::diagnosing::PartitionDiagnosis;

/// A named class of work with connections of its own. Cloning it is cheap.
///
/// # One connection a task
///
/// A task that holds a connection and acquires another one can wait for itself: when every slot is held by a task that
/// wants one more, nobody goes on before a timeout. So a task should hold one, and pass it on (`&mut Connection`, a
/// transaction) to whatever it calls. Where each of `t` tasks that run at once needs `n` at the same time, a
/// partition needs at least `t * (n - 1) + 1` slots: then one of them can always go on. A stream of rows from a partition
/// as an executor holds its connection for as long as it is read.
///
/// In debug builds a refusal says so: [`Rejection::own_hold`](crate::Rejection::own_hold) is what the refused task holds
/// itself, by its place in the code, and a task that has waited in vain is told to the log. A free slot beside one's own is
/// nobody's concern, and nothing is said of it. A connection that was passed on to another task counts for the one that
/// acquired it. Release builds do not look, and it costs them nothing.
///
/// # Examples
/// ```
/// # use partitioned_pool::{Partition, TokioPostgres};
///
/// /// Reports get their own partition, and cannot reach that of checkout.
/// #[derive(Clone)]
/// struct Reports {
///     db: Partition<TokioPostgres>,
/// }
///
/// impl Reports {
///     async fn orders(&self) -> Result<i64, Box<dyn std::error::Error>> {
///         let connection = self.db.acquire().await?; // refused at once when all of its slots are taken
///         Ok(connection.query_one("SELECT count(*) FROM orders", &[]).await?.get(0))
///     }
/// }
/// ```
pub struct Partition<D: Driver> {
    pub(super) core: Arc<Core<D>>,
    user: Arc<User<D>>,
}

/// Somebody who may still call. With the last one the partition ends, whatever its own tasks still do.
struct User<D: Driver>(Arc<Core<D>>);

impl<D: Driver> Drop for User<D> {
    fn drop(&mut self) {
        self.0.retire();
    }
}

impl<D: Driver> Partition<D> {
    pub(super) fn new(core: Arc<Core<D>>) -> Self {
        Self {
            user: Arc::new(User(Arc::clone(&core))),
            core,
        }
    }

    /// Acquires a connection within the partition's `acquire_timeout`, which runs over waiting for a
    /// slot, opening a connection and checking it together.
    ///
    /// If a slot and a connection are free, it completes at its first poll, without a timer and
    /// without a round trip to the server.
    ///
    /// # Errors
    /// [`AcquireError::Rejected`] if the partition refuses: at once when the queue is full or the
    /// expected wait exceeds the timeout, or when no slot came free in time.
    /// [`AcquireError::TimedOut`] if opening or checking a connection outlasted the timeout;
    /// [`AcquireError::Failed`] if the server or the way to it said no.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue at once. A slot or connection that was granted in that
    /// moment goes to the next caller; a connection that is being opened goes to the pool.
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{AcquireError, Partition, TokioPostgres};
    /// async fn stock(checkout: &Partition<TokioPostgres>) -> Result<(), Box<dyn std::error::Error>> {
    ///     let connection = checkout.acquire().await?;
    ///     connection.query("SELECT id, left_over FROM stock", &[]).await?;
    ///     Ok(())
    /// }
    /// ```
    #[inline]
    #[track_caller]
    pub fn acquire(&self) -> impl Future<Output = Result<Connection<D>, AcquireError>> + Send {
        self.core.acquire(CallSite::here())
    }

    /// Acquires for a caller whose wait *and work* must end by `deadline`.
    ///
    /// It is refused at once if the expected wait and the expected hold exceed what is left
    /// ([`DeadlineTooShort`](crate::error::Reason::DeadlineTooShort)), so that nobody waits for a
    /// slot that it could no longer use. The partition's `acquire_timeout` bounds the wait as well.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{AcquireError, Partition, TokioPostgres};
    /// # use std::time::{Duration, Instant};
    /// async fn within_the_request(
    ///     checkout: &Partition<TokioPostgres>,
    ///     arrived: Instant,
    /// ) -> Result<(), AcquireError> {
    ///     let connection = checkout.acquire_by(arrived + Duration::from_secs(1)).await?;
    /// #   drop(connection);
    ///     Ok(())
    /// }
    /// ```
    #[track_caller]
    pub fn acquire_by<T: Into<Deadline>>(
        &self,
        deadline: T,
    ) -> impl Future<Output = Result<Connection<D>, AcquireError>> + Send + use<'_, D, T> {
        self.core.acquire_by(CallSite::here(), deadline.into())
    }

    /// Acquires without waiting for a slot. If a slot is free but no connection is open, one is
    /// opened, within `acquire_timeout`.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire); no free slot is the rejection
    /// [`NoFreeSlot`](crate::error::Reason::NoFreeSlot).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{AcquireError, Partition, TokioPostgres};
    /// /// Refreshes a cache if there is room for it now, and else later.
    /// async fn refresh(reports: &Partition<TokioPostgres>) -> Result<bool, AcquireError> {
    ///     match reports.try_acquire().await {
    ///         Ok(connection) => { /* refresh with it */ drop(connection); Ok(true) }
    ///         Err(error) if error.is_rejection() => Ok(false),
    ///         Err(error) => Err(error),
    ///     }
    /// }
    /// ```
    #[track_caller]
    pub fn try_acquire(&self) -> impl Future<Output = Result<Connection<D>, AcquireError>> + Send {
        self.core.try_acquire(CallSite::here())
    }

    /// Acquires a connection, runs `work` with it, and gives it back, all by `deadline`.
    ///
    /// When the deadline passes while `work` runs, the caller has its answer at once; the query is
    /// cancelled on the server and the connection made clean in the background.
    ///
    /// # Errors
    /// [`RunError::Acquire`]: `work` never began. [`RunError::DeadlineExceeded`]: it may have taken
    /// effect. [`RunError::Work`]: its own error.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work` and gives the connection back as above.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use partitioned_pool::{Partition, RunError, TokioPostgres};
    /// async fn pay(
    ///     checkout: &Partition<TokioPostgres>,
    ///     order: i32,
    /// ) -> Result<u64, RunError<deadpool_postgres::tokio_postgres::Error>> {
    ///     checkout.run(Duration::from_secs(1), async |connection| {
    ///         let transaction = connection.transaction().await?;
    ///         let paid = transaction
    ///             .execute("UPDATE orders SET paid = true WHERE id = $1", &[&order])
    ///             .await?;
    ///         transaction.commit().await?;
    ///         Ok(paid)
    ///     }).await
    /// }
    /// ```
    #[track_caller]
    pub fn run<T, E, F>(
        &self,
        deadline: impl Into<Deadline>,
        work: F,
    ) -> impl Future<Output = Result<T, RunError<E>>>
    where
        F: AsyncFnOnce(&mut Connection<D>) -> Result<T, E>,
    {
        let by = CallSite::here();
        let deadline = deadline.into();
        async move {
            let limit = deadline.left();
            let mut connection = self.core.acquire_by(by, deadline).await?;
            match timeout_at(deadline.instant(), work(&mut connection)).await {
                Ok(Ok(done)) => Ok(done),
                Ok(Err(error)) => Err(match connection.taken_after() {
                    Some(held) => RunError::TakenAway {
                        partition: self.name().to_owned(),
                        held,
                        error,
                    },
                    None => RunError::Work(error),
                }),
                Err(_elapsed) => Err(RunError::DeadlineExceeded {
                    partition: self.name().to_owned(),
                    limit,
                }),
            }
        }
    }

    /// The connection over which the boot check looks; no observer hears of it.
    pub(crate) async fn first(&self, limit: Duration) -> Result<Connection<D>, AcquireError> {
        self.core.acquire_unobserved(limit).await
    }

    /// Who holds a slot, oldest first: the place in the code, the age, and the backend. Asks nobody; what the
    /// backends run is told by
    /// [`PartitionedPool::holders_with_statements`](crate::PartitionedPool::holders_with_statements).
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{Partition, TokioPostgres};
    ///
    /// fn who_holds(checkout: &Partition<TokioPostgres>) {
    ///     for held in checkout.holders() {
    ///         println!("{held}"); // 12.3 s by src/report.rs:40, backend 4711
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn holders(&self) -> Vec<Held> {
        self.core.holders()
    }

    /// What is wrong with it, from its figures of the last minute; the rules are those of
    /// [`plan::diagnosis`](crate::plan::diagnosis). Asks nobody, waits for nothing, and may be called at any time.
    ///
    /// - The window is the last minute: to the second of the regular look at the partition, so that it is up to
    ///   a second longer. A pool that is younger is judged by all there is, which in its first seconds is little:
    ///   the window says how long it is. A slot is not called leaking before it was held for a whole window.
    /// - What a hold lasted before is the median over the minutes of the last hour: of each, the mean of the holds
    ///   that ended, if at least [`FEWEST`](crate::plan::diagnosis::FEWEST) did. Minutes in which more than a few calls
    ///   were refused do not count. So an incident that refuses nobody becomes what is normal when
    ///   it has lasted for half of the time that is known; until two minutes after the start nothing is known,
    ///   and nothing is called slow.
    /// - A caller that left the queue, for its timeout or its own reasons, counts as one that waited
    ///   too long; one to whom [`try_acquire`](Self::try_acquire) gave nothing as refused. A call that came with
    ///   its deadline passed does not count: no size would have helped it.
    /// - Neighbours are the other partitions with the same hosts in their URLs, in whatever budget. Their refusals
    ///   count for a second in which this one had reserved slots to spare all the time.
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{Partition, TokioPostgres};
    /// use partitioned_pool::plan::diagnosis::Finding;
    ///
    /// fn warn(checkout: &Partition<TokioPostgres>) {
    ///     let diagnosis = checkout.diagnose();
    ///     if diagnosis.finding() != Finding::Healthy {
    ///         eprintln!("{diagnosis}");
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn diagnose(&self) -> PartitionDiagnosis {
        self.core.diagnose()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.settings.name
    }

    /// Its settings, with every default filled in.
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{Partition, TokioPostgres};
    ///
    /// fn is_bounded(checkout: &Partition<TokioPostgres>) -> bool {
    ///     checkout.settings().statement_timeout.is_some()
    /// }
    /// ```
    #[must_use]
    pub fn settings(&self) -> &PartitionSettings {
        &self.core.settings
    }

    /// Where its connections go to, without any secret.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        self.core.driver.endpoint()
    }

    pub(crate) fn driver(&self) -> &D {
        &self.core.driver
    }

    /// The connections that its driver keeps beside it; those that it shares are counted once.
    pub(crate) fn control_connections(&self) -> u32 {
        self.driver().control_connections()
    }

    /// What it looks like now.
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{Partition, TokioPostgres};
    ///
    /// /// Whether another call would have to wait.
    /// fn is_full(checkout: &Partition<TokioPostgres>) -> bool {
    ///     let status = checkout.status();
    ///     status.in_use >= status.max_connections
    /// }
    /// ```
    #[must_use]
    pub fn status(&self) -> PartitionStatus {
        self.core.status()
    }
}

impl<D: Driver> Clone for Partition<D> {
    fn clone(&self) -> Self {
        Self {
            core: Arc::clone(&self.core),
            user: Arc::clone(&self.user),
        }
    }
}

impl<D: Driver> fmt::Debug for Partition<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partition")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
