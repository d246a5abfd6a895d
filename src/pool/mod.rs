//! The pool: partitions, their connections, and the guards that callers hold.

mod acquire;
mod assemble;
pub(crate) mod boottime;
mod budget;
mod closing;
mod connection;
mod core;
mod deadline;
mod detached;
mod diagnosing;
mod health;
mod history;
mod holders;
mod leaving;
mod nested;
mod on_connect;
mod opening;
mod pace;
mod partition;
pub(crate) mod seat;
mod store;
mod upkeep;

use std::fmt;
use std::sync::{Arc, OnceLock};

use tokio::time::timeout_at;

use crate::config::{ANALYTICAL, ConfigError, ExternalSettings, Settings, TRANSACTIONAL};
use crate::driver::Driver;
use crate::fleet::FleetReport;
use crate::observe::Observer;
use crate::status::{CallSite, PoolStatus};
use crate::warning::BootWarning;

use closing::begin_to_take;
use seat::{Gate, Tenancy, Tenants};

pub use closing::{CloseReport, StillHeld, TakenAway};
pub use connection::Connection;
pub use deadline::Deadline;
pub use detached::Detached;
pub use diagnosing::{PartitionDiagnosis, PoolDiagnosis};
pub use health::{Health, NotReady, PartitionHealth};
pub use holders::{Holders, NotAsked};
pub(crate) use on_connect::OnConnect;
pub use partition::Partition;

struct Inner<D: Driver> {
    partitions: Vec<Partition<D>>,
    transactional: usize,
    analytical: usize,
    fleet: OnceLock<FleetReport>,
    warnings: OnceLock<Vec<BootWarning>>,
    external: Vec<ExternalSettings>,
    gate: Option<Arc<Gate>>,
}

/// The connections of a service, divided into partitions (bulkheads). Cloning it is cheap.
///
/// A partition can exhaust only its own connections. Two always exist:
/// [`transactional`](Self::transactional) and [`analytical`](Self::analytical).
///
/// Dropping the last clone, and the last connection, closes every connection and ends every task;
/// [`close`](Self::close) also waits for what is in flight.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
/// use partitioned_pool::{BootError, PartitionedPool, TokioPostgres};
///
/// /// What the handlers of a service share; a clone for each costs nothing.
/// #[derive(Clone)]
/// struct Shop {
///     db: PartitionedPool<TokioPostgres>,
/// }
///
/// async fn start(url: String) -> Result<Shop, BootError> {
///     let config = PoolConfig::new("shop", url, FleetConfig::new(2, 1).reserve(5))
///         .transactional(PartitionConfig::transactional(20))
///         .analytical(PartitionConfig::analytical(10));
///     Ok(Shop { db: PartitionedPool::connect(config).await? })
/// }
///
/// async fn end(shop: Shop) {
///     println!("{}", shop.db.close(Duration::from_secs(20)).await);
/// }
/// ```
pub struct PartitionedPool<D: Driver> {
    inner: Arc<Inner<D>>,
}

impl<D: Driver> PartitionedPool<D> {
    /// Makes the partitions. Connects to nothing yet.
    pub(crate) fn assemble(
        settings: &Settings,
        options: &D::Options,
        observer: Option<&dyn Observer>,
        on_connect: Option<&OnConnect<D>>,
        gate: Option<Arc<Gate>>,
    ) -> Result<Self, ConfigError> {
        let tenancy = gate.clone().map(|gate| Arc::new(Tenancy::new(gate)));
        let tenancy = tenancy.as_ref();
        let partitions = assemble::partitions(settings, options, observer, on_connect, tenancy)?;
        let position = |name: &str| {
            let found = partitions.iter().position(|p| p.name() == name);
            found.expect("bug: the settings have both partitions")
        };
        let (transactional, analytical) = (position(TRANSACTIONAL), position(ANALYTICAL));
        Ok(Self {
            inner: Arc::new(Inner {
                partitions,
                transactional,
                analytical,
                fleet: OnceLock::new(),
                warnings: OnceLock::new(),
                external: settings.fleet.external.clone(),
                gate,
            }),
        })
    }

    /// Starts what keeps the partitions up: `min_idle`, `idle_timeout`, `max_lifetime`.
    pub(crate) fn start(&self) {
        for partition in self.partitions() {
            partition.core.start();
        }
    }

    /// Its partitions, for the keeper of their seat.
    pub(crate) fn tenants(&self) -> Tenants<D> {
        Tenants::new(self.partitions().map(|p| Arc::downgrade(&p.core)).collect())
    }

    /// Has the seat given back, if there is one.
    pub(crate) async fn leave_seat(&self, deadline: Deadline) {
        if let Some(gate) = &self.inner.gate {
            gate.leave(deadline).await;
        }
    }

    pub(crate) fn keep_report(&self, report: FleetReport) {
        // Set once, by the one boot of this pool.
        let _ = self.inner.fleet.set(report);
    }

    pub(crate) fn keep_warnings(&self, warnings: Vec<BootWarning>) {
        // Set once, by the one boot of this pool.
        let _ = self.inner.warnings.set(warnings);
    }

    /// What its owner should know, but for what was [silenced](crate::config::BootConfig::silence): each was told to
    /// the log when the pool was started.
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{PartitionedPool, TokioPostgres};
    ///
    /// fn tell(pool: &PartitionedPool<TokioPostgres>) {
    ///     for warning in pool.warnings() {
    ///         println!("{}: {warning}", warning.code());
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn warnings(&self) -> &[BootWarning] {
        self.inner.warnings.get().map_or(&[], Vec::as_slice)
    }

    /// The pools of each replica that are declared, and are not managed here.
    #[must_use]
    pub fn external(&self) -> &[ExternalSettings] {
        &self.inner.external
    }

    /// What the fleet check found when the pool was started; `None` if it is off.
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{PartitionedPool, TokioPostgres};
    ///
    /// /// How many connections the fleet could still grow by.
    /// fn to_spare(pool: &PartitionedPool<TokioPostgres>) -> Option<i64> {
    ///     pool.fleet_report()?.binding().map(|limit| limit.headroom)
    /// }
    /// ```
    #[must_use]
    pub fn fleet_report(&self) -> Option<&FleetReport> {
        self.inner.fleet.get()
    }

    /// The partition for short work that a user waits for.
    #[must_use]
    pub fn transactional(&self) -> &Partition<D> {
        &self.inner.partitions[self.inner.transactional]
    }

    /// The partition for long work: reports, exports, batches.
    #[must_use]
    pub fn analytical(&self) -> &Partition<D> {
        &self.inner.partitions[self.inner.analytical]
    }

    /// The partition of this name, if there is one.
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{PartitionedPool, TokioPostgres};
    ///
    /// /// The partition of an importer, where the configuration has one.
    /// async fn import(pool: &PartitionedPool<TokioPostgres>) -> Result<(), Box<dyn std::error::Error>> {
    ///     let partition = pool.partition("importer").unwrap_or(pool.analytical());
    ///     partition.acquire().await?.batch_execute("COPY stock FROM '/var/stock.csv'").await?;
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn partition(&self, name: &str) -> Option<&Partition<D>> {
        self.partitions().find(|p| p.name() == name)
    }

    /// All partitions, in the order in which they were configured.
    pub fn partitions(&self) -> impl Iterator<Item = &Partition<D>> {
        self.inner.partitions.iter()
    }

    /// What all partitions look like now.
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{PartitionedPool, TokioPostgres};
    ///
    /// /// A line for each partition, for an endpoint that only operators can reach.
    /// fn figures(pool: &PartitionedPool<TokioPostgres>) -> String {
    ///     pool.status().to_string()
    /// }
    /// ```
    #[must_use]
    pub fn status(&self) -> PoolStatus {
        let all = || self.partitions().map(|partition| &partition.core);
        // One of each budget: its first partition.
        let budgets = all().filter(|core| core.class.index() == 0);
        PoolStatus {
            partitions: all().map(|core| core.status()).collect(),
            shared_budgets: budgets.filter_map(|core| core.budget.status()).collect(),
            seat: self.inner.gate.as_ref().map(|gate| gate.status()),
        }
    }

    /// What is wrong with each partition, as [`Partition::diagnose`] says it.
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{PartitionedPool, TokioPostgres};
    /// /// For an endpoint that only operators can reach: one line a partition, such as
    /// ///
    /// /// `transactional (last 60.5 s): too small: 35 of 1000 calls refused (35 queue full); ...`
    /// async fn what_is_wrong(pool: &PartitionedPool<TokioPostgres>) -> String {
    ///     pool.diagnose().to_string()
    /// }
    /// ```
    #[must_use]
    pub fn diagnose(&self) -> PoolDiagnosis {
        PoolDiagnosis {
            partitions: self.partitions().map(Partition::diagnose).collect(),
        }
    }

    /// Who holds a slot of each partition, as [`Partition::holders`] lists them, and what their backends
    /// run: asked of each server's `pg_stat_activity`, by `deadline`.
    ///
    /// A partition whose holders one wants to know is mostly full. So the question goes over a connection
    /// of whichever partition has one to spare, with the same server, role and database: for the
    /// moment it takes up a slot there, if one is free and nobody waits for it, and it never exceeds the
    /// budget. If none can be had, or the server does not answer, the holders are listed all the same, and
    /// [`Holders::not_asked`] says why their statements are not known.
    ///
    /// It needs no right beyond LOGIN: a role may read the statements of its own sessions. A session that
    /// has given itself another `application_name` is not recognised. See [`Statement`](crate::Statement) for
    /// what is, and is not, in a statement's text.
    ///
    /// # Cancel safety
    /// Dropping the future gives the connection back, as any other.
    ///
    /// # Examples
    /// ```standalone_crate
    /// # use std::time::Duration;
    /// # use partitioned_pool::{PartitionedPool, TokioPostgres};
    /// /// For an endpoint that only operators can reach.
    /// async fn who_holds(pool: &PartitionedPool<TokioPostgres>) -> String {
    ///     let holders = pool.holders_with_statements(Duration::from_secs(1)).await;
    ///     holders.iter().map(|partition| format!("{partition}\n")).collect()
    /// }
    /// ```
    #[track_caller]
    pub fn holders_with_statements<T: Into<Deadline>>(
        &self,
        deadline: T,
    ) -> impl Future<Output = Vec<Holders>> + Send + use<'_, D, T> {
        let (by, deadline) = (CallSite::here(), deadline.into());
        async move {
            let cores: Vec<_> = self.partitions().map(|p| &p.core).collect();
            holders::holders_with_statements(&cores, by, deadline).await
        }
    }

    /// Whether each partition can serve, for a readiness probe; known by `deadline`, which all share.
    ///
    /// A partition is ready if its server has answered lately: a connection was opened, or came back quiet, in the last
    /// second. Else one connection that is idle is asked; if there is none, one is opened as the prober would, which then
    /// stays. It is not ready if that fails or has no answer in time, while no connection can be opened, while the replica
    /// holds no [seat](crate::config::SeatsConfig) of a fleet that has them, and when the pool is closed. A partition of which every connection is in use is ready, as long as nothing says otherwise: being
    /// full is no reason to be taken out of service.
    ///
    /// It takes no slot, joins no queue and never makes a connection more than the budget has. Under load it asks nothing,
    /// and else one round trip for each partition. A connection that does not answer is closed.
    ///
    /// **Readiness, not liveness.** A service that is taken out because its reports have no standby serves nobody: look
    /// at the partitions that it cannot do without. A liveness probe asks nothing of the database, not even this:
    /// to start the process anew mends no database, and brings it a storm of connections.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connections that are being asked.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # use partitioned_pool::{PartitionedPool, TokioPostgres};
    /// /// Status and text of `/ready`, for a probe with a timeout of a second.
    /// async fn readiness(pool: &PartitionedPool<TokioPostgres>) -> (u16, String) {
    ///     let health = pool.ready(Duration::from_millis(800)).await;
    ///     let checkout = health.of("transactional").is_some_and(|one| one.is_ready());
    ///     (if checkout { 200 } else { 503 }, health.to_string())
    /// }
    /// ```
    pub async fn ready(&self, deadline: impl Into<Deadline>) -> Health {
        let cores: Vec<_> = self.partitions().map(|p| &p.core).collect();
        health::ready(&cores, deadline.into()).await
    }

    /// Tells the observer what every partition looks like now, as happens once a second anyway, and at
    /// the end of [`close`](Self::close): for whoever wants gauges that are true at this moment.
    pub fn sample(&self) {
        for partition in self.partitions() {
            partition.core.sample();
        }
    }

    /// Closes the pool: refuses new calls and those that wait, closes idle connections, and waits for
    /// what is in use to come back. What has not by the last fifth of the time (at most the last
    /// second) is cancelled and taken away from its owner, whose next use of it fails with the
    /// driver's "closed".
    ///
    /// At the end, the [seat](crate::config::SeatsConfig) is given back, if there is one.
    ///
    /// The report names what was taken away, and what was still not known gone at `deadline`.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting; the pool stays closed.
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{PartitionedPool, TokioPostgres};
    ///
    /// use std::time::Duration;
    ///
    /// async fn end(pool: PartitionedPool<TokioPostgres>) {
    ///     let report = pool.close(Duration::from_secs(20)).await;
    ///     if !report.is_drained() {
    ///         eprintln!("{report}"); // who was cut off, by the place in the code
    ///     }
    /// }
    /// ```
    pub async fn close(&self, deadline: impl Into<Deadline>) -> CloseReport {
        let deadline = deadline.into();
        for partition in self.partitions() {
            partition.core.shut();
        }
        let mut report = CloseReport::default();
        if !self.drain(begin_to_take(deadline)).await.is_empty() {
            for partition in self.partitions() {
                report.taken_away.extend(partition.core.take_all_away());
            }
            report.still_held = self.drain(deadline).await;
        }
        for partition in self.partitions() {
            let retire = partition.core.driver.retire();
            let _ = timeout_at(deadline.instant(), retire).await;
        }
        self.leave_seat(deadline).await;
        self.sample();
        report.detached = self.partitions().map(|p| p.status().detached).sum();
        report
    }

    async fn drain(&self, deadline: Deadline) -> Vec<StillHeld> {
        let mut still_held = Vec::new();
        for partition in self.partitions() {
            still_held.extend(partition.core.drain(deadline).await);
        }
        still_held
    }
}

impl<D: Driver> Clone for PartitionedPool<D> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<D: Driver> fmt::Debug for PartitionedPool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionedPool")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
