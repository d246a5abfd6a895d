//! Starting a pool: connect, see that the session limits are in force, and that the fleet fits.

mod error;
mod limits;
mod pooler;
mod sessions;
mod survey;
mod table;
mod warnings;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{FleetCheck, PartitionSettings, PoolConfig, Settings};
use crate::driver::{AskForPasswords, Driver, PasswordProvider};
use crate::fleet::check::{Question, Sight};
use crate::fleet::lease::Term;
use crate::fleet::seats::{Keeper, NotTaken, to_table};
use crate::fleet::{FleetReport, Login, Warning};
use crate::observe::Observer;
use crate::pool::seat::Gate;
use crate::pool::{OnConnect, PartitionedPool};

use survey::{Purpose, Surveyed};
use table::TableSeen;
use warnings::{Seen, warnings};

pub use error::{BootError, NotInForce};

/// A pool to be started: its configuration, and who watches it.
///
/// # Examples
/// ```
/// use partitioned_pool::config::PoolConfig;
/// use partitioned_pool::driver::PasswordProvider;
/// use partitioned_pool::{BootError, PartitionedPool, TokioPostgres};
///
/// async fn start(config: PoolConfig, vault: PasswordProvider) -> Result<PartitionedPool<TokioPostgres>, BootError> {
///     PartitionedPool::<TokioPostgres>::builder(config).password_provider(vault).connect().await
/// }
/// ```
#[must_use = "a builder starts nothing until `connect`"]
pub struct Builder<D: Driver> {
    config: PoolConfig,
    options: D::Options,
    observer: Option<Box<dyn Observer>>,
    on_connect: Option<OnConnect<D>>,
}

impl<D: Driver> PartitionedPool<D> {
    /// Starts a pool: connects every partition once, reads its session limits back, and checks that
    /// the fleet fits. Short for [`builder`](Self::builder) and [`connect`](Builder::connect).
    ///
    /// # Errors
    /// As [`Builder::connect`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::config::PoolConfig;
    /// use partitioned_pool::{PartitionedPool, TokioPostgres};
    ///
    /// /// An error of `main` is told by `Debug`, which for a `BootError` is a block that says what to do.
    /// async fn start() -> Result<PartitionedPool<TokioPostgres>, Box<dyn std::error::Error>> {
    ///     let config = PoolConfig::from_env("SHOP_DB")?;
    ///     Ok(PartitionedPool::connect(config).await?)
    /// }
    /// ```
    pub async fn connect(config: PoolConfig) -> Result<Self, BootError> {
        Self::builder(config).connect().await
    }

    /// A pool to be started.
    pub fn builder(config: PoolConfig) -> Builder<D> {
        Builder {
            config,
            options: D::Options::default(),
            observer: None,
            on_connect: None,
        }
    }

    /// The fleet check alone. Short for [`builder`](Self::builder) and [`check`](Builder::check).
    ///
    /// # Errors
    /// As [`Builder::check`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::config::PoolConfig;
    /// use partitioned_pool::{BootError, PartitionedPool, TokioPostgres};
    ///
    /// /// For an init container: whether the fleet fits, with the sum on standard output.
    /// async fn fits(config: PoolConfig) -> Result<bool, BootError> {
    ///     let report = PartitionedPool::<TokioPostgres>::check(config).await?;
    ///     println!("{report}");
    ///     Ok(report.fits())
    /// }
    /// ```
    pub async fn check(config: PoolConfig) -> Result<FleetReport, BootError> {
        Self::builder(config).check().await
    }
}

impl<D: Driver> Builder<D> {
    /// Has the pool watched, for example by [metrics](crate::observe).
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::config::PoolConfig;
    /// use partitioned_pool::observe::Observer;
    /// use partitioned_pool::{Builder, PartitionedPool, TokioPostgres};
    ///
    /// fn watched(config: PoolConfig, by: impl Observer) -> Builder<TokioPostgres> {
    ///     PartitionedPool::builder(config).observer(by)
    /// }
    /// ```
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// What the driver is told beyond the configuration: see its type. Default: nothing.
    pub fn options(mut self, options: D::Options) -> Self {
        self.options = options;
        self
    }

    /// What the driver has been told so far, to be changed.
    pub fn options_mut(&mut self) -> &mut D::Options {
        &mut self.options
    }

    /// Has the driver ask for its passwords at each connect, instead of taking that of the `url`.
    pub fn password_provider(mut self, provider: PasswordProvider) -> Self
    where
        D::Options: AskForPasswords,
    {
        self.options.ask_for_passwords(provider);
        self
    }

    /// What the service does to each connection before anyone gets it, after its session limits and
    /// [settings](crate::config::PartitionConfig::setting) are in force: for what no setting can say. `hook` is given
    /// the driver's client, and the settings of the partition.
    ///
    /// It is the last part of putting a session in order, so it runs again whenever that is done: when a connection is
    /// opened, when it is taken over from another partition of its budget (for the partition that takes it), and after each
    /// hold where `reset_session` is on, while the slot is held. What it does must be fit to be done again: prepared
    /// statements, for one, outlive a reset. A transaction that it leaves open is rolled back.
    ///
    /// Its time is a part of `connect_timeout`; what takes longer is cancelled on the server. If it fails, or is late, the
    /// connection is closed, and a caller that waits for it is told so in [`Phase::OnConnect`](crate::error::Phase::OnConnect),
    /// as of a connect that has failed. The connections that the boot check opens are prepared by it, too.
    ///
    /// **It is not run** for what is not one of the pool's connections: those of a `PgPool` that
    /// `PartitionedPool::external_pool` makes (feature `sqlx`), which get the session limits and settings of their partition and
    /// nothing else; and those that the pool keeps for itself, over which queries are cancelled (sqlx) and the
    /// [seat](crate::config::SeatsConfig) is renewed.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::config::PoolConfig;
    /// use partitioned_pool::{BootError, PartitionedPool, TokioPostgres};
    ///
    /// async fn start(config: PoolConfig) -> Result<PartitionedPool<TokioPostgres>, BootError> {
    ///     let pool = PartitionedPool::<TokioPostgres>::builder(config);
    ///     let pool = pool.on_connect(|client, partition| Box::pin(async move {
    ///         let sql = "SELECT set_config('shop.partition', $1, false)";
    ///         client.execute(sql, &[&partition.name]).await?;
    ///         Ok(())
    ///     }));
    ///     pool.connect().await
    /// }
    /// ```
    pub fn on_connect<F>(mut self, hook: F) -> Self
    where
        F: for<'a> Fn(
                &'a mut D::Client,
                &'a PartitionSettings,
            ) -> Pin<
                Box<dyn Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send + 'a>,
            > + Send
            + Sync
            + 'static,
    {
        self.on_connect = Some(OnConnect::new(hook));
        self
    }

    /// The fleet check alone: what [`connect`](Self::connect) would find, as a report, whether it
    /// fits or not. Nothing stays connected. For a pipeline, or an init container.
    ///
    /// It takes one connection for each different way in (server, role and database), on which the session limits
    /// of the first partition there are read back, and asks each server once: with its own setting of the session,
    /// three round trips. One connection more, for the seats, if the server of their table is none of a partition's.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), but a fleet that does not fit is a report and no error.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn check(self) -> Result<FleetReport, BootError> {
        let settings = self.config.resolve()?;
        let on_connect = self.on_connect.as_ref();
        let pool =
            PartitionedPool::<D>::assemble(&settings, &self.options, None, on_connect, None)?;
        let surveyed = async {
            let table = pool.see_table(&settings, &self.options).await?;
            let purpose = Purpose::Check;
            pool.survey(&settings, &self.options, purpose, table).await
        };
        let surveyed = Box::pin(surveyed).await;
        // Whoever is told of a server that hangs does not wait for it a second time.
        let patience = surveyed
            .as_ref()
            .map_or(Duration::ZERO, |_| settings.boot.check_timeout);
        pool.close(patience).await;
        Ok(surveyed?.report)
    }

    /// How each partition would log in, in the order of the settings: for a check [without a
    /// server](crate::fleet::assess_stated), or a [wall](crate::fleet::Wall) in the database. Where the fleet has seats,
    /// and their `url` leads elsewhere, or as another role, than any partition's, its login is the last. Nothing is
    /// connected.
    ///
    /// # Errors
    /// [`BootError::Config`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::config::PoolConfig;
    /// use partitioned_pool::fleet::Wall;
    /// use partitioned_pool::{PartitionedPool, TokioPostgres};
    ///
    /// /// The plan as SQL for its roles.
    /// async fn wall(config: PoolConfig) -> Result<String, Box<dyn std::error::Error>> {
    ///     let settings = config.resolve()?;
    ///     let logins = PartitionedPool::<TokioPostgres>::builder(config).logins()?;
    ///     Ok(Wall::of(&settings, &logins)?.to_string())
    /// }
    /// ```
    pub fn logins(self) -> Result<Vec<Login>, BootError> {
        let settings = self.config.resolve()?;
        let pool = PartitionedPool::<D>::assemble(&settings, &self.options, None, None, None)?;
        let table = match settings.fleet.seats {
            Some(_) => Some(to_table::<D>(&settings, &self.options)?),
            None => None,
        };
        Ok(pool.logins(table.as_ref().map(Driver::endpoint)))
    }

    /// Starts the pool.
    ///
    /// Where the fleet has [seats](crate::config::SeatsConfig), one is taken before anything else. Each partition
    /// opens one connection, over which its session limits are read back; each
    /// server is asked once for its limits, and the fleet is then held against them. `min_idle` is filled in
    /// the background. What happens when a database is not there, or the fleet does not fit, is set
    /// by [`BootConfig`](crate::config::BootConfig) and
    /// [`FleetConfig`](crate::config::FleetConfig).
    ///
    /// # Errors
    /// [`BootError`]: each prints as one block that says what to do.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn connect(self) -> Result<PartitionedPool<D>, BootError> {
        let settings = self.config.resolve()?;
        let observer = self.observer.as_deref();
        let on_connect = self.on_connect.as_ref();
        let seats = settings.fleet.seats.as_ref();
        let gate = seats.map(|seats| Arc::new(Gate::new(Term(seats.lease).renewal())));
        let of_seat = gate.clone();
        let pool =
            PartitionedPool::assemble(&settings, &self.options, observer, on_connect, of_seat)?;
        let mut table = None;
        if let Some(gate) = gate {
            let keeper = Keeper::new(&settings, &self.options, gate, pool.tenants())?;
            let endpoint = keeper.table_at().clone();
            let asked = settings.fleet.mode != FleetCheck::Off && pool.is_to_be_seen(&endpoint);
            let question = asked.then(|| pool.question(&settings, Some(&endpoint)));
            let sight = Box::pin(take_a_seat(keeper, question, &settings)).await?;
            let sight = sight.map(Ok);
            table = Some(TableSeen { endpoint, sight });
        }
        match Box::pin(pool.survey_and_judge(&settings, &self.options, table)).await {
            Ok(()) => Ok(pool),
            Err(error) => {
                // Whoever tries again at once finds it free.
                pool.leave_seat(LAST_WORD_BOUND.into()).await;
                Err(error)
            }
        }
    }
}

/// How long giving a seat back may take that is not needed.
const LAST_WORD_BOUND: Duration = Duration::from_secs(1);

async fn take_a_seat<D: Driver>(
    keeper: Keeper<D>,
    question: Option<Question>,
    settings: &Settings,
) -> Result<Option<Sight>, BootError> {
    let seats = settings.fleet.seats.as_ref();
    let seats = seats.expect("bug: a keeper of no seats");
    let endpoint = Box::new(keeper.table_at().clone());
    let (fleet, table) = (settings.service.clone(), seats.table.clone());
    keeper.start(question).await.map_err(|not| match not {
        NotTaken::NoneFree { holders, waited } => BootError::NoSeat {
            fleet,
            seats: seats.count.get(),
            waited,
            holders,
        },
        NotTaken::Failed(failure) => BootError::SeatsFailed {
            table,
            endpoint,
            failure,
        },
        NotTaken::Gone => unreachable!("bug: the pool is here, and nobody has closed it"),
    })
}

impl<D: Driver> PartitionedPool<D> {
    async fn survey_and_judge(
        &self,
        settings: &Settings,
        options: &D::Options,
        table: Option<TableSeen>,
    ) -> Result<(), BootError> {
        let checked = settings.fleet.mode != FleetCheck::Off;
        let purpose = match checked {
            true => Purpose::Boot,
            false => Purpose::BootUnchecked,
        };
        let surveyed = self.survey(settings, options, purpose, table).await?;
        if checked {
            judge(&surveyed.report, settings.fleet.mode)?;
        }
        self.warn(settings, &surveyed, checked);
        if checked {
            self.keep_report(surveyed.report);
        }
        self.start();
        Ok(())
    }
}

impl<D: Driver> fmt::Debug for Builder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Refuses, or tells the log.
fn judge(report: &FleetReport, mode: FleetCheck) -> Result<(), BootError> {
    if !report.fits() && mode == FleetCheck::Enforce {
        return Err(BootError::DoesNotFit(Box::new(report.clone())));
    }
    // That of a shared server is a warning of the boot, with or without a fleet check.
    let is_ours = |warning: &&Warning| !matches!(warning, Warning::SharedServer { .. });
    for warning in report.warnings().iter().filter(is_ours) {
        tracing::warn!(%warning, "fleet check");
    }
    if !report.fits() {
        tracing::warn!("the fleet does not fit:\n{report}");
    } else if let (Some(needed), Some(granted)) = (report.needed(), report.granted()) {
        let headroom = granted - needed;
        let (server, largest_fleet) = (
            report.binding().map(|c| c.server.as_str()),
            report.largest_fleet(),
        );
        tracing::info!(
            needed,
            granted,
            headroom,
            server,
            largest_fleet,
            "the fleet fits"
        );
    }
    Ok(())
}

impl<D: Driver> PartitionedPool<D> {
    /// Tells the log what the owner should know, each once, and keeps it.
    fn warn(&self, settings: &Settings, surveyed: &Surveyed, checked: bool) {
        let hosts = self.partitions().map(|p| p.endpoint().hosts.as_str());
        let warnings = warnings(&Seen {
            settings,
            report: checked.then_some(&surveyed.report),
            hosts: hosts.collect(),
            idle_session_timeouts: &surveyed.idle_session_timeouts,
        });
        for warning in &warnings {
            tracing::warn!(code = %warning.code(), %warning, "to silence it: boot.silence");
        }
        self.keep_warnings(warnings);
    }
}
