//! Connecting for the first time, and looking at what is there.

use std::error::Error as _;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::config::{BootSettings, PoolerMode, Settings, WhenUnavailable};
use crate::driver::Driver;
use crate::error::{AcquireError, Failure};
use crate::fleet::check::{Question, Sight, Survey, is_list, look};
use crate::fleet::{Fleet, FleetReport, Login, assess, seats};
use crate::pool::{Connection, Partition, PartitionedPool};
use crate::session::SettingsNotInForce;
use crate::status::Seconds;

use super::error::BootError;
use super::pooler;
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
        options: &D::Options,
        purpose: Purpose,
    ) -> Result<Surveyed, BootError> {
        let first = FirstTime {
            boot: &settings.boot,
            options,
            started: Instant::now(),
        };
        let line = seats::line_of_its_own::<D>(settings, options)?;
        let endpoints = self.partitions().map(Partition::endpoint);
        let question = Question::new(settings, endpoints.chain(&line));
        let mut survey = Survey::default();
        let mut before: Vec<(&Partition<D>, Found)> = Vec::new();
        for (index, partition) in self.partitions().enumerate() {
            let same_way = same_way(&before, partition).filter(|_| purpose == Purpose::Check);
            let found = match (same_way, purpose) {
                (Some(found), _) => found.clone(),
                (None, Purpose::BootUnchecked) => first.see(partition, Ask::Nothing).await?,
                (None, _) => {
                    let known = same_server(&before, partition).map(Ask::Known);
                    let ask = known.unwrap_or(Ask::Server(&question));
                    first.see(partition, ask).await?
                }
            };
            if let Some(server) = found.server.clone() {
                let (budget, beside) = (settings.budget_of(index), self.beside(settings, index));
                let (endpoint, settings) = (partition.endpoint(), partition.settings());
                survey.add(endpoint, settings, budget, beside, server);
            }
            before.push((partition, found));
        }
        line.iter().for_each(|line| survey.add_line(line));
        let timeouts = before.iter().map(|(_, found)| found.idle_session_timeout);
        Ok(Surveyed {
            report: assess(&Fleet::of(settings), &survey.servers()),
            idle_session_timeouts: timeouts.collect(),
        })
    }

    /// How each partition logs in.
    pub(super) fn logins(&self, settings: &Settings) -> Vec<Login> {
        let login = |(index, partition): (usize, &Partition<D>)| {
            let endpoint = partition.endpoint();
            let mut login = Login::new(&endpoint.hosts, &endpoint.user, &endpoint.database);
            login.control = self.beside(settings, index);
            login
        };
        self.partitions().enumerate().map(login).collect()
    }

    /// The connections beside those of a partition: what its driver keeps, and what the keeper of the seat does.
    fn beside(&self, settings: &Settings, index: usize) -> u32 {
        let line = settings.fleet.seats.is_some() && self.is_first_of_its_role(index);
        let own = self.partitions().nth(index);
        own.map_or(0, Partition::control_connections) + u32::from(line)
    }

    /// The keeper of the seat has a connection for each server and role.
    fn is_first_of_its_role(&self, index: usize) -> bool {
        let role = |partition: &Partition<D>| {
            let endpoint = partition.endpoint();
            (endpoint.hosts.clone(), endpoint.user.clone())
        };
        let mut roles: Vec<_> = self.partitions().map(role).take(index + 1).collect();
        let own = roles.pop();
        own.is_some_and(|own| !roles.contains(&own))
    }
}

/// What was seen by whoever goes the same way in: to the same server as the same role, with nothing different.
/// Behind a transaction pooler, where nothing is set, each partition has to find its own limits in force.
fn same_way<'a, D: Driver>(
    before: &'a [(&Partition<D>, Found)],
    partition: &Partition<D>,
) -> Option<&'a Found> {
    let same = |(other, _): &&(&Partition<D>, Found)| partition.driver().can_dress(other.driver());
    let before = || before.iter().find(same).map(|(_, found)| found);
    partition.settings().has_sessions().then(before)?
}

/// What was seen of the same server, if its one host says that it is the same. A pooler stands for many.
fn same_server<D: Driver>(
    before: &[(&Partition<D>, Found)],
    partition: &Partition<D>,
) -> Option<Sight> {
    let hosts = &partition.endpoint().hosts;
    let is_one = !is_list(hosts) && partition.settings().pooler.is_none();
    let on_it = before
        .iter()
        .filter(|(other, _)| is_one && other.endpoint().hosts == *hosts);
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

enum First<D: Driver> {
    Connected(Connection<D>),
    /// The server has no connection left: the fleet check says so, in the server's own words.
    Full(String),
    /// The database is not there, and the owner wants to start without it.
    Absent,
}

/// The first time that the partitions of a pool connect.
struct FirstTime<'a, D: Driver> {
    boot: &'a BootSettings,
    options: &'a D::Options,
    started: Instant,
}

impl<D: Driver> FirstTime<'_, D> {
    /// Connects a partition, reads its session limits back, and asks its server if that is not known.
    async fn see(&self, partition: &Partition<D>, ask: Ask<'_>) -> Result<Found, BootError> {
        let looking = !matches!(ask, Ask::Nothing);
        let connection = match self.connect(partition, looking).await? {
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
        let inspected = inspect(partition, connection, question, self.boot.check_timeout);
        let (session, sight) = inspected.await?;
        Ok(Found {
            server: sight.or(known).map(Ok),
            idle_session_timeout: session.idle_session_timeout,
        })
    }

    async fn connect(
        &self,
        partition: &Partition<D>,
        looking: bool,
    ) -> Result<First<D>, BootError> {
        let (boot, started) = (self.boot, self.started);
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
            if let Some(found) = error.failure().and_then(Failure::undeclared_pooler) {
                let told = pooler::undeclared(partition, self.options, found, boot.check_timeout);
                return Err(told.await);
            }
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
        if pooler::is_no_session(partition, &mut connection, limit).await? {
            return Ok(None);
        }
        let (driver, session) = connection.driver_parts();
        let session = sessions::look(driver, session, partition.settings()).await?;
        let sight = match ask {
            Some(question) => Some(look(&mut connection, question).await?),
            None => None,
        };
        Ok(Some((session, sight)))
    };
    let late = || Failure::new(None, format!("no answer within {}", Seconds(limit)));
    let looked = timeout(limit, looking).await;
    match looked.unwrap_or_else(|_elapsed| Err(late())) {
        Ok(Some((session, sight))) => in_force(partition, session).map(|session| (session, sight)),
        Ok(None) => Err(BootError::Pooler {
            partition: partition.name().to_owned(),
            endpoint: Box::new(partition.endpoint().clone()),
            stated: Some(PoolerMode::Session),
            found: Some(PoolerMode::Transaction),
            limits: Vec::new(),
        }),
        Err(failure) => Err(BootError::CheckFailed {
            partition: partition.name().to_owned(),
            endpoint: Box::new(partition.endpoint().clone()),
            failure,
        }),
    }
}

/// A session whose limits and settings are in force.
fn in_force<D: Driver>(
    partition: &Partition<D>,
    mut session: Session,
) -> Result<Session, BootError> {
    if !session.limits.is_empty() {
        return Err(BootError::LimitsNotInForce {
            partition: partition.name().to_owned(),
            endpoint: Box::new(partition.endpoint().clone()),
            pooler: partition
                .settings()
                .pooler
                .as_ref()
                .map(|pooler| pooler.mode),
            limits: session.limits,
        });
    }
    match session.not_in_force.take() {
        Some(settings) => Err(settings_error(partition, settings)),
        None => Ok(session),
    }
}
