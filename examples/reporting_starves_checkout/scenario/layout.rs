//! The two layouts: one pool for all, or a partition for each kind of work.

use std::fmt;
use std::time::Duration;

use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
use partitioned_pool::{Connection, Driver, PartitionedPool};
use tokio::time::{Instant, timeout_at};

use super::ScenarioError;
use super::calls::{Outcome, failed, of_acquire, of_call, of_run};
use super::plain::Plain;
use super::plan::{ANALYTICAL, SHARED, TRANSACTIONAL};
use super::shop::Customer;
use super::variant::Reports;

/// How long a pool may take to close once its last call has ended.
const CLOSE: Duration = Duration::from_secs(30);

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

    /// The most server connections that it may have, beside control connections, wherever they lead.
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

/// A driver over which the shop is open.
pub(crate) trait Driven: Driver<Client: Customer + Send> {}

impl<D: Driver<Client: Customer + Send>> Driven for D {}

/// A layout that is up.
pub(super) enum Layout<D: Driven> {
    Shared(<D::Client as Customer>::Pool),
    Partitioned(PartitionedPool<D>),
}

impl<D: Driven> Layout<D> {
    /// Starts it, the analytical partition on the standby if there is one. Its sessions have an `application_name`
    /// that begins with `service` and a slash.
    pub(super) async fn start(
        kind: Kind,
        url: &str,
        standby: Option<&str>,
        service: &str,
    ) -> Result<Self, ScenarioError> {
        match kind {
            Kind::Shared => one_pool(url, service).map(Self::Shared),
            Kind::Partitioned => {
                let partitions = partitions(url, standby, service).await?;
                Ok(Self::Partitioned(partitions))
            }
        }
    }

    /// One checkout of a caller that waits until `deadline` and no longer.
    pub(super) async fn checkout(&self, number: u32, deadline: Instant) -> Outcome {
        match self {
            Self::Shared(pool) => {
                let call = async {
                    let mut client = pool.get().await?;
                    client.checkout(number).await.map_err(failed)
                };
                let answer = timeout_at(deadline, call).await;
                answer.map_or(Outcome::Late, of_call)
            }
            Self::Partitioned(pool) => {
                let work = async |client: &mut Connection<D>| client.checkout(number).await;
                let call = pool.transactional().run(deadline, work);
                of_call(call.await.map_err(of_run))
            }
        }
    }

    /// One report of a caller that has patience: it waits for as long as the pool lets it. Returns how many rows it
    /// has read.
    pub(super) async fn report(&self, kind: Reports, lasts: Duration) -> Result<u64, Outcome> {
        let answer = match self {
            Self::Shared(pool) => pool.get().await?.report(kind, lasts).await,
            Self::Partitioned(pool) => {
                let client = pool.analytical().acquire().await;
                client.map_err(of_acquire)?.report(kind, lasts).await
            }
        };
        answer.map_err(failed)
    }

    /// Closes it. What a plain pool has left running on the server is for the caller to end.
    pub(super) async fn close(self) -> Result<(), ScenarioError> {
        match self {
            Self::Shared(pool) => {
                pool.close(Duration::ZERO).await;
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
fn one_pool<P: Plain>(url: &str, service: &str) -> Result<P, ScenarioError> {
    let pool = P::open(url, &format!("{service}/shared"), SHARED, None);
    pool.map_err(|failure| ScenarioError::Postgres {
        what: "read the url",
        failure,
    })
}

/// Two replicas, one more during a deploy, and four connections for people: 94 of the 97 that there are, or all of
/// them where each replica has a control connection as well.
async fn partitions<D: Driver>(
    url: &str,
    standby: Option<&str>,
    service: &str,
) -> Result<PartitionedPool<D>, ScenarioError> {
    let fleet = FleetConfig::new(2, 1).reserve(4);
    let mut reports = PartitionConfig::analytical(ANALYTICAL);
    if let Some(standby) = standby {
        reports = reports.url(standby);
    }
    let config = PoolConfig::new(service, url, fleet)
        .transactional(PartitionConfig::transactional(TRANSACTIONAL))
        .analytical(reports);
    Ok(PartitionedPool::connect(config).await?)
}
