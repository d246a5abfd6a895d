//! Starting a pool: connect, see that the session limits are in force, and that the fleet fits.

mod error;
mod limits;
mod sessions;
mod warnings;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::config::{
    BootSettings, FleetCheck, PartitionSettings, PoolConfig, Settings, WhenUnavailable,
};
use crate::driver::{AskForPasswords, Driver, PasswordProvider};
use crate::error::{AcquireError, Failure};
use crate::fleet::check::{Sight, Survey, look};
use crate::fleet::{Fleet, FleetReport, Login, Warning, assess};
use crate::observe::Observer;
use crate::pool::{Connection, OnConnect, Partition, PartitionedPool};
use crate::session::SettingsNotInForce;
use crate::status::Seconds;

use sessions::Session;
use warnings::{Seen, warnings};

pub use error::{BootError, NotInForce};

/// Between two tries to reach a database that is not there yet: doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// A pool to be started: its configuration, and who watches it.
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
    pub async fn check(config: PoolConfig) -> Result<FleetReport, BootError> {
        Self::builder(config).check().await
    }
}

impl<D: Driver> Builder<D> {
    /// Has the pool watched, for example by [metrics](crate::observe).
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// What the driver is told beyond the configuration: see its type. Default: nothing.
    pub fn options(mut self, options: D::Options) -> Self {
        self.options = options;
        self
    }

    /// What the driver has been told so far.
    pub(crate) fn options_mut(&mut self) -> &mut D::Options {
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
    /// # Errors
    /// As [`connect`](Self::connect), but a fleet that does not fit is a report and no error.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn check(self) -> Result<FleetReport, BootError> {
        let settings = self.config.resolve()?;
        let on_connect = self.on_connect.as_ref();
        let pool = PartitionedPool::<D>::assemble(&settings, &self.options, None, on_connect)?;
        let surveyed = pool.survey(&settings, true).await;
        // Whoever is told of a server that hangs does not wait for it a second time.
        let patience = surveyed
            .as_ref()
            .map_or(Duration::ZERO, |_| settings.boot.check_timeout);
        pool.close(patience).await;
        Ok(surveyed?.report)
    }

    /// How each partition would log in, in the order of the settings: for a check [without a
    /// server](crate::fleet::assess_stated), or a [wall](crate::fleet::Wall) in the database. Nothing is connected.
    ///
    /// # Errors
    /// [`BootError::Config`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn logins(self) -> Result<Vec<Login>, BootError> {
        let settings = self.config.resolve()?;
        let pool = PartitionedPool::<D>::assemble(&settings, &self.options, None, None)?;
        Ok(pool.partitions().map(login).collect())
    }

    /// Starts the pool.
    ///
    /// Each partition opens one connection, over which its session limits are read back and its
    /// server is asked for its limits; the fleet is then held against them. `min_idle` is filled in
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
        let pool = PartitionedPool::assemble(&settings, &self.options, observer, on_connect)?;
        let checked = settings.fleet.mode != FleetCheck::Off;
        let surveyed = pool.survey(&settings, checked).await?;
        if checked {
            judge(&surveyed.report, settings.fleet.mode)?;
        }
        pool.warn(&settings, &surveyed, checked);
        if checked {
            pool.keep_report(surveyed.report);
        }
        pool.start();
        Ok(pool)
    }
}

impl<D: Driver> fmt::Debug for Builder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

fn login<D: Driver>(partition: &Partition<D>) -> Login {
    let endpoint = partition.endpoint();
    let mut login = Login::new(&endpoint.hosts, &endpoint.user, &endpoint.database);
    login.control = partition.control_connections();
    login
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
        tracing::info!(needed, granted, "the fleet fits");
    }
    Ok(())
}

/// What the look at the servers has found.
struct Surveyed {
    report: FleetReport,
    /// For each partition.
    idle_session_timeouts: Vec<Option<Duration>>,
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

    /// Connects every partition once and looks at what is there.
    async fn survey(&self, settings: &Settings, looking: bool) -> Result<Surveyed, BootError> {
        let started = Instant::now();
        let mut survey = Survey::default();
        let mut idle_session_timeouts = Vec::new();
        for (index, partition) in self.partitions().enumerate() {
            let first = first_connection(partition, &settings.boot, looking, started).await?;
            let sight = match first {
                First::Connected(connection) => {
                    let service = looking.then_some(settings.service.as_str());
                    let inspected =
                        inspect(partition, connection, service, settings.boot.check_timeout);
                    let (session, sight) = inspected.await?;
                    idle_session_timeouts.push(session.idle_session_timeout);
                    sight.map(Ok)
                }
                First::Full(said) => Some(Err(said)),
                First::Absent => None,
            };
            idle_session_timeouts.resize(index + 1, None);
            if let Some(sight) = sight {
                let budget = settings.budget_of(index);
                let beside = partition.control_connections();
                survey.add(
                    partition.endpoint(),
                    partition.settings(),
                    budget,
                    beside,
                    sight,
                );
            }
        }
        Ok(Surveyed {
            report: assess(&Fleet::of(settings), &survey.servers()),
            idle_session_timeouts,
        })
    }
}

enum First<D: Driver> {
    Connected(Connection<D>),
    /// The server has no connection left: the fleet check says so, in the server's own words.
    Full(String),
    /// The database is not there, and the owner wants to start without it.
    Absent,
}

async fn first_connection<D: Driver>(
    partition: &Partition<D>,
    boot: &BootSettings,
    looking: bool,
    started: Instant,
) -> Result<First<D>, BootError> {
    let patience = match boot.when_unavailable {
        WhenUnavailable::Wait(bound) => bound,
        _ => Duration::ZERO,
    };
    let mut pause = FIRST_PAUSE;
    loop {
        let limit = match patience.saturating_sub(started.elapsed()) {
            Duration::ZERO => boot.check_timeout,
            left => boot.check_timeout.min(left),
        };
        let error = match partition.first(limit).await {
            Ok(connection) => return Ok(First::Connected(connection)),
            Err(error) => error,
        };
        let tried = started.elapsed();
        // Nobody else holds a slot yet: it is that of another partition of the budget, on its way back.
        if error.is_rejection() && tried < boot.check_timeout {
            sleep(pause).await;
            continue;
        }
        let left = patience.saturating_sub(tried);
        if left.is_zero() || is_final(&error) {
            return give_up(partition, boot, looking, error, tried);
        }
        tracing::warn!(partition = partition.name(), %error, left = %Seconds(left), "waiting for the database");
        sleep(pause.min(left)).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

fn is_final(error: &AcquireError) -> bool {
    error
        .failure()
        .is_some_and(|failure| !failure.is_transient())
}

fn give_up<D: Driver>(
    partition: &Partition<D>,
    boot: &BootSettings,
    looking: bool,
    error: AcquireError,
    tried: Duration,
) -> Result<First<D>, BootError> {
    let full = error.failure().filter(|f| f.is_too_many_connections());
    if let Some(failure) = full.filter(|_| looking) {
        let endpoint = partition.endpoint();
        tracing::warn!(partition = partition.name(), %endpoint, %error, "its session limits could not be read back");
        return Ok(First::Full(failure.to_string()));
    }
    if boot.when_unavailable == WhenUnavailable::Start && !is_final(&error) {
        let endpoint = partition.endpoint();
        tracing::warn!(partition = partition.name(), %endpoint, %error, "starting without the database; nothing was checked");
        return Ok(First::Absent);
    }
    if let Some(refused) = refused_settings(&error) {
        return Err(settings_error(partition, refused.clone()));
    }
    Err(BootError::Unavailable {
        partition: partition.name().to_owned(),
        endpoint: Box::new(partition.endpoint().clone()),
        tried,
        error: Box::new(error),
    })
}

fn refused_settings(error: &AcquireError) -> Option<&SettingsNotInForce> {
    error.failure()?.source()?.downcast_ref()
}

fn settings_error<D: Driver>(partition: &Partition<D>, settings: SettingsNotInForce) -> BootError {
    BootError::SettingsNotInForce {
        partition: partition.name().to_owned(),
        endpoint: Box::new(partition.endpoint().clone()),
        settings: settings.settings,
    }
}

/// Reads session limits and settings back, and looks at the server if a service name is given to look with.
async fn inspect<D: Driver>(
    partition: &Partition<D>,
    mut connection: Connection<D>,
    service: Option<&str>,
    limit: Duration,
) -> Result<(Session, Option<Sight>), BootError> {
    let looking = async {
        let missing = limits::not_in_force(&mut connection, partition.settings()).await?;
        let session = sessions::look(&mut connection, partition.settings()).await?;
        let sight = match service {
            Some(service) => Some(look(&mut connection, service).await?),
            None => None,
        };
        Ok((missing, session, sight))
    };
    let late = || Failure::new(None, format!("no answer within {}", Seconds(limit)));
    let looked = timeout(limit, looking).await;
    match looked.unwrap_or_else(|_elapsed| Err(late())) {
        Ok((missing, session, sight)) if missing.is_empty() => match session.not_in_force {
            Some(settings) => Err(settings_error(partition, settings)),
            None => Ok((session, sight)),
        },
        Ok((limits, ..)) => Err(BootError::LimitsNotInForce {
            partition: partition.name().to_owned(),
            endpoint: Box::new(partition.endpoint().clone()),
            limits,
        }),
        Err(failure) => Err(BootError::CheckFailed {
            partition: partition.name().to_owned(),
            endpoint: Box::new(partition.endpoint().clone()),
            failure,
        }),
    }
}
