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
mod scope;
mod shop;
#[path = "../../../src/bin/partitioned-pool/svg.rs"]
mod svg;
pub(crate) mod variant;
pub(crate) mod verdict;
#[path = "../../../src/bin/partitioned-pool/words.rs"]
mod words;
mod workload;

use std::sync::Arc;
use std::time::Duration;

use partitioned_pool::error::Failure;
use partitioned_pool::{BootError, CloseReport};
use tokio::time::Instant;

use crate::postgres::standby::NoStandby;
use crate::postgres::{Postgres, Source, Want};

use backends::Sampler;
use calls::Said;
use layout::{Driven, Kind, Layout};
use measure::{LayoutFigures, Observed};
use plan::{MAX_CONNECTIONS, Plan};
use progress::Progress;
use shop::Shop;
use variant::{Reports, Variant};

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
    Standby(#[from] NoStandby),
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

/// A server of a run, without secrets.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) version: String,
    pub(crate) source: String,
    pub(crate) max_connections: u32,
}

impl From<&Postgres> for Server {
    fn from(server: &Postgres) -> Self {
        Self {
            version: server.version().to_owned(),
            source: server.source().to_string(),
            max_connections: server.max_connections(),
        }
    }
}

/// A run and its figures.
#[derive(Clone, Debug)]
pub(crate) struct Experiment {
    pub(crate) variant: Variant,
    pub(crate) plan: Plan,
    pub(crate) server: Server,
    /// The server of the analytical partition, if it has one of its own.
    pub(crate) standby: Option<Server>,
    /// The processors of this machine, if the callers, the server and the standby share them.
    pub(crate) processors: Option<usize>,
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

/// Where a layout runs.
#[derive(Clone, Copy)]
struct Site<'a> {
    primary: &'a Postgres,
    standby: Option<&'a Postgres>,
}

/// Runs both layouts over this driver, one after the other. `tell` hears of it about once a second.
///
/// # Errors
/// [`ScenarioError`] if it cannot be run to its end. What the figures show is for [`verdict::judge`].
pub(crate) async fn run<D: Driven>(
    server: &Postgres,
    variant: Variant,
    plan: &Plan,
    mut tell: impl FnMut(&Progress),
) -> Result<Experiment, ScenarioError> {
    let shop = Shop::open(server.url(), variant.reports).await;
    let shop = shop.map_err(ScenarioError::postgres("make the shop's schema"))?;
    let ran = run_both::<D>(server, variant, plan, &mut tell).await;
    let removed = shop.remove().await;
    let experiment = ran?;
    removed.map_err(ScenarioError::postgres("remove the shop's schema"))?;
    Ok(experiment)
}

async fn run_both<D: Driven>(
    primary: &Postgres,
    variant: Variant,
    plan: &Plan,
    mut tell: impl FnMut(&Progress),
) -> Result<Experiment, ScenarioError> {
    // Made now, it has the shop from the start.
    let standby = match variant.standby {
        true => Some(primary.standby(Want::default()).await?),
        false => None,
    };
    let standby = standby.as_ref();
    // One pool leads to one server.
    let one = Site {
        primary,
        standby: None,
    };
    let two = Site { primary, standby };
    Ok(Experiment {
        variant,
        plan: plan.clone(),
        server: primary.into(),
        standby: standby.map(Server::from),
        processors: processors(primary),
        layouts: [
            run_layout::<D>(Kind::Shared, one, variant.reports, plan, &mut tell).await?,
            run_layout::<D>(Kind::Partitioned, two, variant.reports, plan, &mut tell).await?,
        ],
    })
}

/// How many this machine has, if the server runs on it as well.
fn processors(server: &Postgres) -> Option<usize> {
    let named = matches!(server.source(), Source::Url { .. });
    let here = !named && server.host() == "127.0.0.1";
    let processors = std::thread::available_parallelism().ok().map(usize::from);
    processors.filter(|_| here)
}

async fn run_layout<D: Driven>(
    kind: Kind,
    site: Site<'_>,
    work: Reports,
    plan: &Plan,
    mut tell: impl FnMut(&Progress),
) -> Result<LayoutFigures, ScenarioError> {
    let service = format!("shop-{}", std::process::id());
    let primary = sampler(site.primary, &service).await?;
    let standby = match site.standby {
        Some(standby) => Some(sampler(standby, &service).await?),
        None => None,
    };
    let standby_url = site.standby.map(Postgres::url);
    let layout = Layout::<D>::start(kind, site.primary.url(), standby_url, &service).await?;
    let layout = Arc::new(layout);
    workload::first_checkouts(&layout).await;
    let start = Instant::now() + BREATH + plan.warm_up;
    let reports = workload::reports(Arc::clone(&layout), work, plan.clone(), start);
    let reports = tokio::spawn(reports);
    let checkouts = workload::checkouts(&layout, plan, start, |at, answered| {
        let backends = primary.latest() + standby.as_ref().map_or(0, Sampler::latest);
        tell(&Progress::new(kind, plan, at, answered, backends));
    })
    .await;
    let reports = reports.await.expect("bug: the reports panicked");
    let layout = Arc::into_inner(layout).expect("bug: every call has ended");
    layout.close().await?;
    let seen = primary.stop().await?;
    let seen_at_standby = match standby {
        Some(standby) => Some(standby.stop().await?),
        None => None,
    };
    let observed = Observed {
        start,
        checkouts,
        reports,
        seen,
        seen_at_standby,
    };
    Ok(LayoutFigures::new(kind, plan, observed))
}

async fn sampler(server: &Postgres, service: &str) -> Result<Sampler, ScenarioError> {
    let sampler = Sampler::start(server.url(), format!("{service}/")).await;
    sampler.map_err(ScenarioError::postgres("look at the server's connections"))
}
