//! Reports starve checkout, with one pool; and do not, with partitions. The whole scenario but its command line:
//! the integration tests run it as well.

mod backends;
#[path = "../../support/calls.rs"]
pub(crate) mod calls;
pub(crate) mod json;
pub(crate) mod layout;
pub(crate) mod measure;
pub(crate) mod picture;
#[path = "../../support/plain.rs"]
mod plain;
pub(crate) mod plan;
pub(crate) mod progress;
pub(crate) mod report;
mod shop;
#[path = "../../../src/bin/partitioned-pool/svg.rs"]
mod svg;
pub(crate) mod verdict;
#[path = "../../../src/bin/partitioned-pool/words.rs"]
mod words;
mod workload;

use std::sync::Arc;
use std::time::Duration;

use partitioned_pool::error::Failure;
use partitioned_pool::{BootError, CloseReport};
use tokio::time::Instant;

use crate::postgres::{Postgres, Want};

use backends::Sampler;
use calls::Said;
use layout::{Driven, Kind, Layout};
use measure::{LayoutFigures, Observed};
use plan::{MAX_CONNECTIONS, Plan};
use progress::Progress;
use shop::Shop;

/// The time until the clock runs.
const BREATH: Duration = Duration::from_millis(50);

/// The scenario could not be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScenarioError {
    #[error("cannot {what}: {failure}")]
    Postgres {
        what: &'static str,
        #[source]
        failure: Failure,
    },
    #[error(transparent)]
    Boot(#[from] BootError),
    #[error("the partitioned pool does not close: {0}")]
    Held(CloseReport),
    #[error("{0} server sessions of the run do not end when they are told to")]
    Left(i64),
}

impl ScenarioError {
    fn postgres<E: Said>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::Postgres {
            what,
            failure: error.failure(),
        }
    }
}

/// The server of a run, without secrets.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) version: String,
    pub(crate) source: String,
    pub(crate) max_connections: u32,
}

/// A run and its figures.
#[derive(Clone, Debug)]
pub(crate) struct Experiment {
    pub(crate) plan: Plan,
    pub(crate) server: Server,
    pub(crate) layouts: [LayoutFigures; 2],
}

impl Experiment {
    pub(crate) fn layout(&self, kind: Kind) -> &LayoutFigures {
        let found = self.layouts.iter().find(|figures| figures.layout == kind);
        found.expect("bug: both layouts were run")
    }
}

/// The server that the scenario wants.
pub(crate) fn want() -> Want {
    Want::default().setting("max_connections", MAX_CONNECTIONS)
}

/// Runs both layouts over this driver, one after the other. `tell` hears of it about once a second.
///
/// # Errors
/// [`ScenarioError`] if it cannot be run to its end. What the figures show is for [`verdict::judge`].
pub(crate) async fn run<D: Driven>(
    server: &Postgres,
    plan: &Plan,
    mut tell: impl FnMut(&Progress),
) -> Result<Experiment, ScenarioError> {
    let shop = Shop::open(server.url()).await;
    let shop = shop.map_err(ScenarioError::postgres("make the shop's schema"))?;
    let shared = run_layout::<D>(Kind::Shared, server, plan, &mut tell).await;
    let both = match shared {
        Ok(shared) => run_layout::<D>(Kind::Partitioned, server, plan, &mut tell)
            .await
            .map(|partitioned| [shared, partitioned]),
        Err(error) => Err(error),
    };
    let removed = shop.remove().await;
    let layouts = both?;
    removed.map_err(ScenarioError::postgres("remove the shop's schema"))?;
    Ok(Experiment {
        plan: plan.clone(),
        server: Server {
            version: server.version().to_owned(),
            source: server.source().to_string(),
            max_connections: server.max_connections(),
        },
        layouts,
    })
}

async fn run_layout<D: Driven>(
    kind: Kind,
    server: &Postgres,
    plan: &Plan,
    mut tell: impl FnMut(&Progress),
) -> Result<LayoutFigures, ScenarioError> {
    let service = format!("shop-{}", std::process::id());
    let sampler = Sampler::start(server.url(), format!("{service}/")).await;
    let sampler = sampler.map_err(ScenarioError::postgres("look at the server's connections"))?;
    let layout = Arc::new(Layout::<D>::start(kind, server.url(), &service).await?);
    workload::first_checkouts(&layout).await;
    let start = Instant::now() + BREATH + plan.warm_up;
    let reports = tokio::spawn(workload::reports(Arc::clone(&layout), plan.clone(), start));
    let checkouts = workload::checkouts(&layout, plan, start, |at, answered| {
        tell(&Progress::new(kind, plan, at, answered, sampler.latest()));
    })
    .await;
    let reports = reports.await.expect("bug: the reports panicked");
    let layout = Arc::into_inner(layout).expect("bug: every call has ended");
    layout.close().await?;
    let seen = sampler.stop().await?;
    let observed = Observed {
        start,
        checkouts,
        reports,
        seen,
    };
    Ok(LayoutFigures::new(kind, plan, observed))
}
