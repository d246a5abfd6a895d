//! Connecting for the first time, and looking at what is there.

use std::error::Error as _;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::config::{BootSettings, Settings, WhenUnavailable};
use crate::driver::Driver;
use crate::error::{AcquireError, Failure};
use crate::fleet::check::{Question, Sight, Survey, is_list, look};
use crate::fleet::{Fleet, FleetReport, assess};
use crate::pool::{Connection, Partition, PartitionedPool};
use crate::session::SettingsNotInForce;
use crate::status::Seconds;

use super::error::BootError;
use super::sessions::{self, Session};

/// Between two tries to reach a database that is not there yet: doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// What a pool is looked at for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The report alone.
    Check,
    /// To start it.
    Boot,
    /// To start it, whether the fleet fits or not.
    BootUnchecked,
}

/// What the look at the servers has found.
pub(super) struct Surveyed {
    pub(super) report: FleetReport,
    /// For each partition.
    pub(super) idle_session_timeouts: Vec<Option<Duration>>,
}

/// What was seen through a partition.
#[derive(Clone, Default)]
struct Found {
    /// Of its server, or the server's words when it had no connection for us. `None`: nothing, since the database
    /// is not there, or nobody looked.
    server: Option<Result<Sight, String>>,
    idle_session_timeout: Option<Duration>,
}

impl<D: Driver> PartitionedPool<D> {
    /// Connects and looks at what is there.
    pub(super) async fn survey(
        &self,
        settings: &Settings,
        purpose: Purpose,
    ) -> Result<Surveyed, BootError> {
        let started = Instant::now();
        let question = Question::new(settings, self.partitions().map(Partition::endpoint));
        let mut survey = Survey::default();
        let mut before: Vec<(&Partition<D>, Found)> = Vec::new();
        for (index, partition) in self.partitions().enumerate() {
            let same_way = same_way(&before, partition).filter(|_| purpose == Purpose::Check);
            let found = match (same_way, same_server(&before, partition)) {
                (Some(found), _) => found.clone(),
                (None, _) if purpose == Purpose::BootUnchecked => {
                    see(partition, &settings.boot, Ask::Nothing, started).await?
                }
                (None, Some(sight)) => {
                    see(partition, &settings.boot, Ask::Known(sight), started).await?
                }
                (None, None) => {
                    see(partition, &settings.boot, Ask::Server(&question), started).await?
                }
            };
            if let Some(server) = found.server.clone() {
                let (budget, beside) = (settings.budget_of(index), partition.control_connections());
                let (endpoint, settings) = (partition.endpoint(), partition.settings());
                survey.add(endpoint, settings, budget, beside, server);
            }
            before.push((partition, found));
        }
        let timeouts = before.iter().map(|(_, found)| found.idle_session_timeout);
        Ok(Surveyed {
            report: assess(&Fleet::of(settings), &survey.servers()),
            idle_session_timeouts: timeouts.collect(),
        })
    }
}

/// What was seen by whoever goes the same way in: to the same server as the same role, with nothing different.
fn same_way<'a, D: Driver>(
    before: &'a [(&Partition<D>, Found)],
    partition: &Partition<D>,
) -> Option<&'a Found> {
    let same = |(other, _): &&(&Partition<D>, Found)| partition.driver().can_dress(other.driver());
    before.iter().find(same).map(|(_, found)| found)
}

/// What was seen of the same server, if its one host says that it is the same.
fn same_server<D: Driver>(
    before: &[(&Partition<D>, Found)],
    partition: &Partition<D>,
) -> Option<Sight> {
    let hosts = &partition.endpoint().hosts;
    let on_it = before
        .iter()
        .filter(|(other, _)| !is_list(hosts) && other.endpoint().hosts == *hosts);
    on_it
        .filter_map(|(_, found)| found.server.as_ref()?.as_ref().ok())
        .next()
        .cloned()
}

/// What is asked of a server.
enum Ask<'a> {
    /// Nothing: the fleet is not checked.
    Nothing,
    /// Nothing: it has been asked, and this is what it said.
    Known(Sight),
    /// All that the fleet check needs.
    Server(&'a Question),
}

/// Connects a partition, reads its session limits back, and asks its server if that is not known.
async fn see<D: Driver>(
    partition: &Partition<D>,
    boot: &BootSettings,
    ask: Ask<'_>,
    started: Instant,
) -> Result<Found, BootError> {
    let looking = !matches!(ask, Ask::Nothing);
    let connection = match first_connection(partition, boot, looking, started).await? {
        First::Connected(connection) => connection,
        First::Full(said) => {
            return Ok(Found {
                server: Some(Err(said)),
                ..Found::default()
            });
        }
        First::Absent => return Ok(Found::default()),
    };
    let (question, known) = match ask {
        Ask::Nothing => (None, None),
        Ask::Known(sight) => (None, Some(sight)),
        Ask::Server(question) => (Some(question), None),
    };
    let (session, sight) = inspect(partition, connection, question, boot.check_timeout).await?;
    Ok(Found {
        server: sight.or(known).map(Ok),
        idle_session_timeout: session.idle_session_timeout,
    })
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
        // Boxed, or the futures of a service that starts a pool are nested deeper than the compiler goes.
        let error = match Box::pin(partition.first(limit)).await {
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

/// Reads session limits and settings back, and looks at the server if there is something to ask it.
async fn inspect<D: Driver>(
    partition: &Partition<D>,
    mut connection: Connection<D>,
    ask: Option<&Question>,
    limit: Duration,
) -> Result<(Session, Option<Sight>), BootError> {
    let looking = async {
        let session = sessions::look(&mut connection, partition.settings()).await?;
        let sight = match ask {
            Some(question) => Some(look(&mut connection, question).await?),
            None => None,
        };
        Ok((session, sight))
    };
    let late = || Failure::new(None, format!("no answer within {}", Seconds(limit)));
    let looked = timeout(limit, looking).await;
    match looked.unwrap_or_else(|_elapsed| Err(late())) {
        Ok((session, _)) if !session.limits.is_empty() => Err(BootError::LimitsNotInForce {
            partition: partition.name().to_owned(),
            endpoint: Box::new(partition.endpoint().clone()),
            limits: session.limits,
        }),
        Ok((session, sight)) => match session.not_in_force {
            Some(settings) => Err(settings_error(partition, settings)),
            None => Ok((session, sight)),
        },
        Err(failure) => Err(BootError::CheckFailed {
            partition: partition.name().to_owned(),
            endpoint: Box::new(partition.endpoint().clone()),
            failure,
        }),
    }
}
