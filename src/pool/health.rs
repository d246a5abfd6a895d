//! Is the pool ready: what is known, and one question where too little is.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool::managed::Metrics;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use crate::driver::{Driver, Readiness};
use crate::error::{Failure, Phase};
use crate::join;
use crate::status::Seconds;

use super::core::{Core, LinkOf};
use super::deadline::Deadline;

/// An answer of the server that is younger is as good as a new one: under load nothing is asked.
const FRESH: Duration = Duration::from_secs(1);

/// Whether each partition of a pool can serve: what [`PartitionedPool::ready`](crate::PartitionedPool::ready) found.
///
/// # Examples
/// ```
/// # use partitioned_pool::{Health, PartitionedPool, TokioPostgres};
///
/// use std::time::Duration;
///
/// async fn log_health(pool: &PartitionedPool<TokioPostgres>) {
///     let health: Health = pool.ready(Duration::from_millis(800)).await;
///     if !health.is_ready() {
///         println!("{health}"); // a line for each partition
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// One entry a partition, in the order of the pool.
    pub partitions: Vec<PartitionHealth>,
}

/// Whether one partition can serve.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::PartitionHealth;
///
/// /// For a gauge: the age of what is known.
/// fn age(health: &PartitionHealth) -> Option<Duration> {
///     health.answered.filter(|_| health.is_ready())
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PartitionHealth {
    /// The partition.
    pub partition: String,
    /// How long ago its server was last known to answer; `None` if it never was.
    pub answered: Option<Duration>,
    /// Why it is not ready; `None` if it is.
    pub not_ready: Option<NotReady>,
}

/// Why a partition is not ready.
///
/// # Examples
/// ```
/// use partitioned_pool::{Health, NotReady};
///
/// /// Whether to call somebody: what cannot pass by itself.
/// fn is_for_people(health: &Health) -> bool {
///     health.partitions.iter().any(|partition| match &partition.not_ready {
///         Some(NotReady::Failing { failure, .. }) => !failure.is_transient(),
///         _ => false,
///     })
/// }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum NotReady {
    /// The pool is closed or closing.
    #[error("the pool is closed")]
    Closed,
    /// The replica holds none of its fleet's [seats](crate::config::SeatsConfig), so every call is refused.
    #[error("this replica holds no seat of its fleet")]
    NoSeat,
    /// No connection can be opened, and none has answered since.
    #[error("no connection for {}: {failure}", Seconds(*lasts))]
    Failing {
        /// What the last try reported.
        #[source]
        failure: Failure,
        /// Since the first try that failed, after the last that did not.
        lasts: Duration,
    },
    /// The server did not answer in time.
    #[error("no answer within {}, in phase {phase}", Seconds(*limit))]
    Silent {
        /// What was tried: to open a connection, or to ask over one that was open.
        phase: Phase,
        /// The time that there was.
        limit: Duration,
    },
}

impl Health {
    /// Whether every partition is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.partitions.iter().all(PartitionHealth::is_ready)
    }

    /// That of the partition of this name, if there is one.
    #[must_use]
    pub fn of(&self, partition: &str) -> Option<&PartitionHealth> {
        self.partitions
            .iter()
            .find(|one| one.partition == partition)
    }
}

impl PartitionHealth {
    /// Whether it can serve.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.not_ready.is_none()
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (line, partition) in self.partitions.iter().enumerate() {
            let before = if line > 0 { "\n" } else { "" };
            write!(f, "{before}{partition}")?;
        }
        Ok(())
    }
}

impl fmt::Display for PartitionHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.not_ready {
            None => write!(f, "{}: ready", self.partition)?,
            Some(reason) => write!(f, "{}: not ready, {reason}", self.partition)?,
        }
        match self.answered {
            Some(ago) => write!(f, " (answered {} ago)", Seconds(ago)),
            None => f.write_str(" (never answered)"),
        }
    }
}

/// What is known of a partition's way to its server, on the clock of its bulkhead.
#[derive(Debug, Default)]
struct Known {
    answered: Option<Duration>,
    /// Since the last answer.
    failing: Option<Failing>,
}

#[derive(Clone, Debug)]
struct Failing {
    first: Duration,
    last: Duration,
    failure: Failure,
}

/// The pulse of a partition: felt whenever a connection is opened, or is not.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    known: Mutex<Known>,
    /// Told of each try to open a connection that has ended.
    tried: Notify,
}

impl Pulse {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server has answered.
    pub(super) fn beats(&self, now: Duration) {
        let mut known = self.known();
        known.answered = Some(now);
        let failed = known.failing.take();
        drop(known);
        drop(failed);
        self.tried.notify_waiters();
    }

    /// No connection could be opened.
    pub(super) fn fails(&self, now: Duration, failure: Failure) {
        let mut known = self.known();
        let first = known.failing.as_ref().map_or(now, |failing| failing.first);
        let last = now;
        known.failing = Some(Failing {
            first,
            last,
            failure,
        });
        drop(known);
        self.tried.notify_waiters();
    }
}

/// Asks every partition at once.
pub(super) async fn ready<D: Driver>(cores: &[&Arc<Core<D>>], deadline: Deadline) -> Health {
    Health {
        partitions: join::all(cores.iter().map(|core| core.health(deadline))).await,
    }
}

impl<D: Driver> Core<D> {
    /// Whether it can serve, known by `deadline`.
    pub(super) async fn health(self: &Arc<Self>, deadline: Deadline) -> PartitionHealth {
        let not_ready = self.not_ready(deadline).await;
        PartitionHealth {
            partition: self.settings.name.clone(),
            answered: self
                .answered()
                .map(|at| self.bulkhead.now().saturating_sub(at)),
            not_ready,
        }
    }

    async fn not_ready(self: &Arc<Self>, deadline: Deadline) -> Option<NotReady> {
        if self.bulkhead.is_closed() {
            return Some(NotReady::Closed);
        }
        if !self.is_seated() {
            return Some(NotReady::NoSeat);
        }
        if self.is_fresh_at(self.bulkhead.now()) {
            return None;
        }
        let limit = deadline.left();
        let silent = |phase| NotReady::Silent { phase, limit };
        while let Some(link) = self.bulkhead.with_stock(|s| s.take_to_check(self.class)) {
            let mut checking = Checking::new(self, link);
            match timeout_at(deadline.instant(), checking.answers()).await {
                Ok(true) => return None,
                Ok(false) => {}
                Err(_elapsed) => return Some(silent(Phase::Validate)),
            }
        }
        match timeout_at(deadline.instant(), self.try_to_open()).await {
            Ok(()) => self.failing(),
            Err(_elapsed) => Some(self.failing().unwrap_or(silent(self.prepares.phase()))),
        }
    }

    /// When its server was last known to answer: a connection was opened, or came back quiet.
    fn answered(&self) -> Option<Duration> {
        let live = |client: &_| D::readiness(client) == Readiness::Quiet;
        let used = self.bulkhead.with_stock(|s| s.last_used(self.class, live));
        used.max(self.pulse.known().answered)
    }

    fn is_fresh_at(&self, now: Duration) -> bool {
        let answered = self.answered();
        answered.is_some_and(|at| now.saturating_sub(at) < FRESH)
    }

    /// What stands in the way, unless the server has answered since.
    fn failing(&self) -> Option<NotReady> {
        let answered = self.answered();
        let failing = self.pulse.known().failing.clone()?;
        let is_over = answered.is_some_and(|at| at > failing.last);
        (!is_over).then(|| NotReady::Failing {
            lasts: self.bulkhead.now().saturating_sub(failing.first),
            failure: failing.failure,
        })
    }

    /// Opens a connection that nobody needs yet, if one may be opened, and completes when a try has ended. Where the prober
    /// sleeps, or every place is taken, nothing is tried: what is known is the answer.
    async fn try_to_open(self: &Arc<Self>) {
        let mut tried = pin!(self.pulse.tried.notified());
        tried.as_mut().enable();
        self.open_due(1);
        if self.bulkhead.with_stock(|s| s.is_opening(self.class)) {
            tried.await;
        }
    }
}

/// An idle connection that is being asked whether it lives. It takes no slot. Dropped before the answer, it is closed.
struct Checking<'a, D: Driver> {
    core: &'a Arc<Core<D>>,
    link: Option<LinkOf<D>>,
}

impl<'a, D: Driver> Checking<'a, D> {
    fn new(core: &'a Arc<Core<D>>, link: LinkOf<D>) -> Self {
        let link = Some(link);
        Self { core, link }
    }

    /// Whether it does; then it is idle again, as long as before.
    async fn answers(&mut self) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let metrics = Metrics::default();
        if self
            .core
            .driver
            .recycle(&mut link.client, &metrics)
            .await
            .is_err()
        {
            return false;
        }
        let core = self.core;
        core.pulse.beats(core.bulkhead.now());
        let link = self.link.take().expect("bug: it was there");
        match core.bulkhead.with_stock(|s| s.checked(link)) {
            Ok(waker) => waker.into_iter().for_each(std::task::Waker::wake),
            Err(link) => core.discard(link, None),
        }
        true
    }
}

impl<D: Driver> Drop for Checking<'_, D> {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            self.core.discard(link, None);
        }
    }
}
