//! Starting a pool: connect, see that the session limits are in force, and that the fleet fits.

mod error;
mod limits;

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::config::{BootSettings, FleetCheck, PoolConfig, Settings, WhenUnavailable};
use crate::driver::{AskForPasswords, Driver, PasswordProvider};
use crate::error::{AcquireError, Failure};
use crate::fleet::check::{Sight, Survey, fleet, look};
use crate::fleet::{FleetReport, assess};
use crate::observe::Observer;
use crate::pool::{Connection, Partition, PartitionedPool};
use crate::status::Seconds;

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
        let pool = PartitionedPool::<D>::assemble(&settings, &self.options, None)?;
        let report = pool.survey(&settings, true).await;
        pool.close(settings.boot.check_timeout).await;
        report
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
        let pool = PartitionedPool::assemble(&settings, &self.options, observer)?;
        let checked = settings.fleet.mode != FleetCheck::Off;
        let report = pool.survey(&settings, checked).await?;
        if checked {
            judge(&report, settings.fleet.mode)?;
            pool.keep_report(report);
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

/// Refuses, or tells the log.
fn judge(report: &FleetReport, mode: FleetCheck) -> Result<(), BootError> {
    if !report.fits() && mode == FleetCheck::Enforce {
        return Err(BootError::DoesNotFit(Box::new(report.clone())));
    }
    for warning in report.warnings() {
        tracing::warn!(%warning, "fleet check");
    }
    if !report.fits() {
        tracing::warn!("the fleet does not fit:\n{report}");
    } else if let (Some(needed), Some(granted)) = (report.needed(), report.granted()) {
        tracing::info!(needed, granted, "the fleet fits");
    }
    Ok(())
}

impl<D: Driver> PartitionedPool<D> {
    /// Connects every partition once and looks at what is there.
    async fn survey(&self, settings: &Settings, looking: bool) -> Result<FleetReport, BootError> {
        let started = Instant::now();
        let mut survey = Survey::default();
        for (index, partition) in self.partitions().enumerate() {
            let first = first_connection(partition, &settings.boot, looking, started).await?;
            let sight = match first {
                First::Connected(connection) => {
                    let service = looking.then_some(settings.service.as_str());
                    let sight =
                        inspect(partition, connection, service, settings.boot.check_timeout);
                    sight.await?.map(Ok)
                }
                First::Full(said) => Some(Err(said)),
                First::Absent => None,
            };
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
        Ok(assess(&fleet(settings), &survey.servers()))
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
    Err(BootError::Unavailable {
        partition: partition.name().to_owned(),
        endpoint: Box::new(partition.endpoint().clone()),
        tried,
        error: Box::new(error),
    })
}

/// Reads the session limits back, and looks at the server if a service name is given to look with.
async fn inspect<D: Driver>(
    partition: &Partition<D>,
    mut connection: Connection<D>,
    service: Option<&str>,
    limit: Duration,
) -> Result<Option<Sight>, BootError> {
    let looking = async {
        let missing = limits::not_in_force(&mut connection, partition.settings()).await?;
        let sight = match service {
            Some(service) => Some(look(&mut connection, service).await?),
            None => None,
        };
        Ok((missing, sight))
    };
    let late = || Failure::new(None, format!("no answer within {}", Seconds(limit)));
    let looked = timeout(limit, looking).await;
    match looked.unwrap_or_else(|_elapsed| Err(late())) {
        Ok((missing, sight)) if missing.is_empty() => Ok(sight),
        Ok((limits, _)) => Err(BootError::LimitsNotInForce {
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
