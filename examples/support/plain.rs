//! The plain pools of the two drivers, which partitions are shown beside.

#![allow(dead_code, reason = "each example uses its own part of this module")]

use std::ops::DerefMut;
use std::time::Duration;

use deadpool_postgres::{ClientWrapper, PoolError, Runtime};
use partitioned_pool::error::Failure;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgConnection, PgPool, Postgres};
use tokio::time::timeout;
use tokio_postgres::NoTls;

use super::calls::{Outcome, Said as _, failed};

/// A plain pool. Cloning it is cheap.
pub(crate) trait Plain: Clone + Send + Sync + 'static {
    /// What its connections deref to.
    type Client;
    /// One of its connections.
    type Held: DerefMut<Target = Self::Client> + Send;

    /// One of `size` connections that are called `name`, whose callers wait so long for one, or for as long as is
    /// usual with it.
    ///
    /// # Errors
    /// What is wrong with the URL.
    fn open(url: &str, name: &str, size: u32, patience: Option<Duration>) -> Result<Self, Failure>;

    /// A connection; or what becomes of the call.
    fn get(&self) -> impl Future<Output = Result<Self::Held, Outcome>> + Send;

    /// The slots that nobody else can have now.
    fn taken(&self) -> u32;

    /// Closes it. What does not come back in time is for the server's owner to end.
    fn close(&self, patience: Duration) -> impl Future<Output = ()> + Send;
}

impl Plain for deadpool_postgres::Pool {
    type Client = ClientWrapper;
    type Held = deadpool_postgres::Object;

    fn open(url: &str, name: &str, size: u32, patience: Option<Duration>) -> Result<Self, Failure> {
        let config = url.parse::<tokio_postgres::Config>();
        let mut config = config.map_err(tokio_postgres::Error::failure)?;
        config.application_name(name);
        let size = usize::try_from(size).expect("bug: a small pool fits every machine");
        let pool = Self::builder(deadpool_postgres::Manager::new(config, NoTls))
            .max_size(size)
            .wait_timeout(patience)
            .runtime(Runtime::Tokio1)
            .build();
        Ok(pool.expect("bug: it has its runtime"))
    }

    async fn get(&self) -> Result<Self::Held, Outcome> {
        Self::get(self).await.map_err(|error| match error {
            PoolError::Backend(error) => failed(error),
            PoolError::Timeout(_) | PoolError::Closed => Outcome::Rejected(error.to_string()),
            other => Outcome::Failed(other.to_string()),
        })
    }

    fn taken(&self) -> u32 {
        let status = self.status();
        small(status.size.saturating_sub(status.available))
    }

    async fn close(&self, _: Duration) {
        Self::close(self);
    }
}

impl Plain for PgPool {
    type Client = PgConnection;
    type Held = PoolConnection<Postgres>;

    fn open(url: &str, name: &str, size: u32, patience: Option<Duration>) -> Result<Self, Failure> {
        let options = url.parse::<PgConnectOptions>();
        let options = options.map_err(sqlx::Error::failure)?;
        let mut pool = PgPoolOptions::new().max_connections(size);
        if let Some(patience) = patience {
            pool = pool.acquire_timeout(patience);
        }
        Ok(pool.connect_lazy_with(options.application_name(name)))
    }

    async fn get(&self) -> Result<Self::Held, Outcome> {
        self.acquire().await.map_err(|error| match error {
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => {
                Outcome::Rejected(error.to_string())
            }
            other => failed(other),
        })
    }

    fn taken(&self) -> u32 {
        self.size().saturating_sub(small(self.num_idle()))
    }

    async fn close(&self, patience: Duration) {
        drop(timeout(patience, Self::close(self)).await);
    }
}

fn small(count: usize) -> u32 {
    u32::try_from(count).expect("bug: a small pool")
}
