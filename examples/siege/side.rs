//! One side of the wall: a partition, or a plain pool of the same size.

use std::fmt;
use std::time::Duration;

use partitioned_pool::error::Failure;
use partitioned_pool::{Connection, Driver, Partition};
use sqlx::PgPool;
use tokio::time::timeout;

use crate::calls::{Outcome, Said, failed, of_acquire, of_call, of_run};
use crate::leavings_of_callers::{Work, Worker};
use crate::plain::Plain;
use crate::plan::{ACQUIRE, SIZE};

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

/// A driver whose clients work as callers do.
pub(crate) trait Driven: Driver<Client: Worker<Error: Said + Send> + Send> {}

impl<D: Driver<Client: Worker<Error: Said + Send> + Send>> Driven for D {}

/// Where calls go to. Cloning it is cheap.
pub(crate) enum Side<D: Driven> {
    Partition(Partition<D>),
    Deadpool(deadpool_postgres::Pool),
    Sqlx(PgPool),
}

impl<D: Driven> Clone for Side<D> {
    fn clone(&self) -> Self {
        match self {
            Self::Partition(partition) => Self::Partition(partition.clone()),
            Self::Deadpool(pool) => Self::Deadpool(pool.clone()),
            Self::Sqlx(pool) => Self::Sqlx(pool.clone()),
        }
    }
}

/// A plain pool of the size of a partition, with the same patience.
fn plain<P: Plain>(url: &str, name: &str) -> Result<P, Failure> {
    P::open(url, name, SIZE, Some(ACQUIRE))
}

impl<D: Driven> Side<D> {
    /// A plain pool of this maker.
    pub(crate) fn plain(maker: Maker, url: &str, name: &str) -> Result<Self, Failure> {
        match maker {
            Maker::Deadpool => plain(url, name).map(Self::Deadpool),
            Maker::Sqlx => plain(url, name).map(Self::Sqlx),
            Maker::Partitions => unreachable!("bug: partitions are not plain pools"),
        }
    }

    /// A prepared statement that sleeps, for a caller that leaves after `deadline`.
    pub(crate) async fn sleep(&self, lasts: Duration, deadline: Duration) -> Outcome {
        let seconds = lasts.as_secs_f64();
        match self {
            Self::Partition(partition) => {
                let work = async |client: &mut Connection<D>| client.nap(seconds).await;
                of_call(partition.run(deadline, work).await.map_err(of_run))
            }
            Self::Deadpool(pool) => nap(pool, seconds, deadline).await,
            Self::Sqlx(pool) => nap(pool, seconds, deadline).await,
        }
    }

    /// Work of a caller that leaves after `patience`, if it is not done by then.
    pub(crate) async fn work(&self, work: Work, seconds: f64, patience: Duration) -> Outcome {
        match self {
            Self::Partition(partition) => match partition.acquire().await {
                Ok(mut client) => until(patience, client.perform(work, seconds)).await,
                Err(error) => of_acquire(error),
            },
            Self::Deadpool(pool) => perform(pool, work, seconds, patience).await,
            Self::Sqlx(pool) => perform(pool, work, seconds, patience).await,
        }
    }

    /// The slots that nobody else can have now: in use, or taken up by a connection that is not quiet yet.
    pub(crate) fn taken(&self) -> u32 {
        match self {
            Self::Partition(partition) => {
                let status = partition.status();
                status.in_use + status.returning + status.closing + status.ghosts
            }
            Self::Deadpool(pool) => pool.taken(),
            Self::Sqlx(pool) => pool.taken(),
        }
    }

    /// Closes a plain pool; a partition is closed with its pool.
    pub(crate) async fn close(&self, patience: Duration) {
        match self {
            Self::Partition(_) => {}
            Self::Deadpool(pool) => Plain::close(pool, patience).await,
            Self::Sqlx(pool) => Plain::close(pool, patience).await,
        }
    }
}

async fn nap<P>(pool: &P, seconds: f64, deadline: Duration) -> Outcome
where
    P: Plain<Client: Worker<Error: Said> + Send>,
{
    let call = async {
        let mut client = Plain::get(pool).await?;
        client.nap(seconds).await.map_err(failed)
    };
    timeout(deadline, call).await.map_or(Outcome::Late, of_call)
}

async fn perform<P>(pool: &P, work: Work, seconds: f64, patience: Duration) -> Outcome
where
    P: Plain<Client: Worker<Error: Said> + Send>,
{
    match Plain::get(pool).await {
        Ok(mut client) => until(patience, client.perform(work, seconds)).await,
        Err(outcome) => outcome,
    }
}

async fn until<E: Said>(patience: Duration, work: impl Future<Output = Result<(), E>>) -> Outcome {
    let done = timeout(patience, work).await;
    done.map_or(Outcome::Late, |done| of_call(done.map_err(failed)))
}
