//! One side of the wall: a partition, or a plain pool of the same size.

use std::fmt;
use std::time::Duration;

use deadpool_postgres::{ClientWrapper, Runtime};
use partitioned_pool::{Partition, TokioPostgres};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::time::timeout;
use tokio_postgres::NoTls;

use crate::calls::{Outcome, failed, of_acquire, of_call, of_pool, of_run};
use crate::leavings_of_callers::{Work, Worker as _};
use crate::plan::{ACQUIRE, SIZE};

const SLEEP: &str = "SELECT pg_sleep($1)";

/// Whose pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    Partitions,
    Deadpool,
    Sqlx,
}

impl Maker {
    /// Those that are only shown.
    pub(crate) const PEERS: [Self; 2] = [Self::Deadpool, Self::Sqlx];
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Partitions => "partitions",
            Self::Deadpool => "deadpool",
            Self::Sqlx => "sqlx",
        })
    }
}

/// Where calls go to. Cloning it is cheap.
#[derive(Clone)]
pub(crate) enum Side {
    Partition(Partition<TokioPostgres>),
    Deadpool(deadpool_postgres::Pool),
    Sqlx(PgPool),
}

impl Side {
    /// A plain deadpool of the size of a partition, with the same patience.
    pub(crate) fn deadpool(url: &str, name: &str) -> Result<Self, tokio_postgres::Error> {
        let mut config: tokio_postgres::Config = url.parse()?;
        config.application_name(name);
        let size = usize::try_from(SIZE).expect("bug: a pool of 8 fits every machine");
        let pool = deadpool_postgres::Pool::builder(deadpool_postgres::Manager::new(config, NoTls))
            .max_size(size)
            .wait_timeout(Some(ACQUIRE))
            .runtime(Runtime::Tokio1)
            .build();
        Ok(Self::Deadpool(pool.expect("bug: it has its runtime")))
    }

    /// The same of sqlx's.
    pub(crate) fn sqlx(url: &str, name: &str) -> Result<Self, sqlx::Error> {
        let options: PgConnectOptions = url.parse()?;
        let pool = PgPoolOptions::new()
            .max_connections(SIZE)
            .acquire_timeout(ACQUIRE)
            .connect_lazy_with(options.application_name(name));
        Ok(Self::Sqlx(pool))
    }

    /// A prepared statement that sleeps, for a caller that leaves after `deadline`.
    pub(crate) async fn sleep(&self, lasts: Duration, deadline: Duration) -> Outcome {
        let seconds = lasts.as_secs_f64();
        match self {
            Self::Partition(partition) => {
                let work = async |client: &mut partitioned_pool::Connection<_>| {
                    sleep(client, seconds).await
                };
                of_call(partition.run(deadline, work).await.map_err(of_run))
            }
            Self::Deadpool(pool) => {
                let call = async {
                    let client = pool.get().await.map_err(of_pool)?;
                    sleep(&client, seconds).await.map_err(failed)
                };
                timeout(deadline, call).await.map_or(Outcome::Late, of_call)
            }
            Self::Sqlx(pool) => {
                let call = async {
                    let mut client = pool.acquire().await.map_err(of_sqlx)?;
                    let query = sqlx::query(SLEEP).bind(seconds);
                    let slept = query.execute(&mut *client).await;
                    slept.map(drop).map_err(of_sqlx)
                };
                timeout(deadline, call).await.map_or(Outcome::Late, of_call)
            }
        }
    }

    /// Work of a caller that leaves after `patience`, if it is not done by then.
    pub(crate) async fn work(&self, work: Work, seconds: f64, patience: Duration) -> Outcome {
        match self {
            Self::Partition(partition) => match partition.acquire().await {
                Ok(mut client) => until(patience, client.perform(work, seconds)).await,
                Err(error) => of_acquire(error),
            },
            Self::Deadpool(pool) => match pool.get().await {
                Ok(mut client) => until(patience, client.perform(work, seconds)).await,
                Err(error) => of_pool(error),
            },
            Self::Sqlx(pool) => match pool.acquire().await {
                Ok(mut client) => {
                    let done = timeout(patience, client.perform(work, seconds)).await;
                    done.map_or(Outcome::Late, |done| of_call(done.map_err(of_sqlx)))
                }
                Err(error) => of_sqlx(error),
            },
        }
    }

    /// The slots that nobody else can have now: in use, or taken up by a connection that is not quiet yet.
    pub(crate) fn taken(&self) -> u32 {
        match self {
            Self::Partition(partition) => {
                let status = partition.status();
                status.in_use + status.returning + status.closing + status.ghosts
            }
            Self::Deadpool(pool) => {
                let status = pool.status();
                small(status.size.saturating_sub(status.available))
            }
            Self::Sqlx(pool) => pool.size().saturating_sub(small(pool.num_idle())),
        }
    }

    /// Closes a plain pool; a partition is closed with its pool.
    pub(crate) async fn close(&self, patience: Duration) {
        match self {
            Self::Partition(_) => {}
            Self::Deadpool(pool) => pool.close(),
            // What does not come back in time is for the server's owner to end.
            Self::Sqlx(pool) => drop(timeout(patience, pool.close()).await),
        }
    }
}

fn small(count: usize) -> u32 {
    u32::try_from(count).expect("bug: a pool of 8")
}

async fn until(
    patience: Duration,
    work: impl Future<Output = Result<(), tokio_postgres::Error>>,
) -> Outcome {
    let done = timeout(patience, work).await;
    done.map_or(Outcome::Late, |done| of_call(done.map_err(failed)))
}

/// A prepared statement that sleeps.
pub(crate) async fn sleep(
    client: &ClientWrapper,
    seconds: f64,
) -> Result<(), tokio_postgres::Error> {
    let statement = client.prepare_cached(SLEEP).await?;
    client.execute(&statement, &[&seconds]).await.map(drop)
}

fn of_sqlx(error: sqlx::Error) -> Outcome {
    match error {
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => Outcome::Rejected(error.to_string()),
        other => Outcome::Failed(other.to_string()),
    }
}
