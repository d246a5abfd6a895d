//! The two layouts: one pool for all, or a partition for each kind of work.

use std::fmt;
use std::time::Duration;

use deadpool_postgres::Pool;
use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
use partitioned_pool::{PartitionedPool, TokioPostgres};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::NoTls;

use super::ScenarioError;
use super::calls::{Outcome, failed, of_acquire, of_call, of_pool, of_run};
use super::plan::{ANALYTICAL, SHARED, TRANSACTIONAL};
use super::shop;

/// How long a pool may take to close once its last call has ended.
const CLOSE: Duration = Duration::from_secs(5);

/// Which layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Shared,
    Partitioned,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Shared, Self::Partitioned];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Partitioned => "partitioned",
        }
    }

    /// The most server connections that it may have.
    pub(crate) const fn budget(self) -> u32 {
        match self {
            Self::Shared => SHARED,
            Self::Partitioned => TRANSACTIONAL + ANALYTICAL,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A layout that is up.
pub(super) enum Layout {
    Shared(Pool),
    Partitioned(PartitionedPool<TokioPostgres>),
}

impl Layout {
    /// Starts it. Its sessions have an `application_name` that begins with `service` and a slash.
    pub(super) async fn start(kind: Kind, url: &str, service: &str) -> Result<Self, ScenarioError> {
        match kind {
            Kind::Shared => one_pool(url, service).map(Self::Shared),
            Kind::Partitioned => Ok(Self::Partitioned(partitions(url, service).await?)),
        }
    }

    /// One checkout of a caller that waits until `deadline` and no longer.
    pub(super) async fn checkout(&self, number: u32, deadline: Instant) -> Outcome {
        match self {
            Self::Shared(pool) => {
                let call = async {
                    let mut client = pool.get().await.map_err(of_pool)?;
                    shop::checkout(&mut client, number).await.map_err(failed)
                };
                let answer = timeout_at(deadline, call).await;
                answer.map_or(Outcome::Late, of_call)
            }
            Self::Partitioned(pool) => {
                let checkout = pool.transactional();
                let call = checkout.run(deadline, async |client| {
                    shop::checkout(client, number).await
                });
                of_call(call.await.map_err(of_run))
            }
        }
    }

    /// One report of a caller that has patience: it waits for as long as the pool lets it.
    pub(super) async fn report(&self, lasts: Duration) -> Outcome {
        let answer = match self {
            Self::Shared(pool) => match pool.get().await {
                Ok(client) => shop::report(&client, lasts).await,
                Err(error) => return of_pool(error),
            },
            Self::Partitioned(pool) => match pool.analytical().acquire().await {
                Ok(client) => shop::report(&client, lasts).await,
                Err(error) => return of_acquire(error),
            },
        };
        of_call(answer.map_err(failed))
    }

    /// Closes it. What a plain pool has left running on the server is for the caller to end.
    pub(super) async fn close(self) -> Result<(), ScenarioError> {
        match self {
            Self::Shared(pool) => {
                pool.close();
                Ok(())
            }
            Self::Partitioned(pool) => {
                let report = pool.close(CLOSE).await;
                let drained = report.is_drained();
                drained.then_some(()).ok_or(ScenarioError::Held(report))
            }
        }
    }
}

/// One plain pool, with the settings that it has when nobody sets any.
fn one_pool(url: &str, service: &str) -> Result<Pool, ScenarioError> {
    let mut config: tokio_postgres::Config = url
        .parse()
        .map_err(ScenarioError::postgres("read the url"))?;
    config.application_name(format!("{service}/shared"));
    let manager = deadpool_postgres::Manager::new(config, NoTls);
    let size = usize::try_from(SHARED).expect("bug: a pool of 50 fits every machine");
    let pool = Pool::builder(manager).max_size(size).build();
    Ok(pool.expect("bug: only timeouts need a runtime, and none is set"))
}

/// Two replicas, one more during a deploy, and five connections for people: 95 of the 97 that there are.
async fn partitions(
    url: &str,
    service: &str,
) -> Result<PartitionedPool<TokioPostgres>, ScenarioError> {
    let fleet = FleetConfig::new(2, 1).reserve(5);
    let config = PoolConfig::new(service, url, fleet)
        .transactional(PartitionConfig::transactional(TRANSACTIONAL))
        .analytical(PartitionConfig::analytical(ANALYTICAL));
    Ok(PartitionedPool::connect(config).await?)
}
