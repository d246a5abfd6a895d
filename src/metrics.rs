//! The `metrics` facade as an [observer](crate::observe): what a partition does, in numbers.
//!
//! It records nothing unless it is asked for, with [`Builder::observer`](crate::Builder::observer):
//!
//! ```
//! # fn watched(config: partitioned_pool::config::PoolConfig) {
//! use partitioned_pool::metrics::PoolMetrics;
//! use partitioned_pool::{PartitionedPool, TokioPostgres};
//!
//! // First the exporter, then the pool: handles are made once, when the pool is built.
//! let pool = PartitionedPool::<TokioPostgres>::builder(config).observer(PoolMetrics::new());
//! # drop(pool);
//! # }
//! ```
//!
//! Names follow OpenTelemetry's `db.client.connection.*` where it has one (marked *), and its style
//! elsewhere. Times are in seconds, everything else is a count.
//!
//! | metric | kind | meaning |
//! |---|---|---|
//! | `db.client.connection.count` * | gauge | connections by `db.client.connection.state`: `used`, `idle`, and of our own `opening`, `returning`, `closing`, `ghost`, `detached`; their sum is what the server may count, and never exceeds the maximum |
//! | `db.client.connection.max` * | gauge | the most connections of the partition |
//! | `db.client.connection.idle.min` * | gauge | idle connections that are kept ready |
//! | `db.client.connection.pending_requests` * | gauge | callers that wait for a slot |
//! | `db.client.connection.pending_requests.max` | gauge | the bound of the queue |
//! | `db.client.connection.slots_in_use` | gauge | slots held by callers, also while their connection is being opened |
//! | `db.client.connection.oldest_use_time` | gauge, s | age of the oldest hold: it grows when a caller forgets to give back |
//! | `db.client.connection.seats_taken` | counter | how often the replica has taken a seat of its fleet; it holds one while that is one more than `seats_lost` |
//! | `db.client.connection.seats_lost` | counter | how often the replica has lost its seat |
//! | `db.client.connection.acquires` | counter | calls that have ended, by `outcome` and `reason`, see below |
//! | `db.client.connection.timeouts` * | counter | calls that ran out of time, in whatever phase; they are among the acquires, too |
//! | `db.client.connection.create_failures` | counter | connections that could not be opened, by `reason`: `too_many_connections`, `server_restarting`, `refused_login` or `other` |
//! | `db.client.connection.wait_time` * | histogram, s | from the call to a connection in hand, of the calls that got one |
//! | `db.client.connection.slot_wait_time` | histogram, s | the part of it that was spent in the queue; the rest went into opening or checking a connection |
//! | `db.client.connection.create_time` * | histogram, s | opening a connection: address, TLS, authentication and session limits |
//! | `db.client.connection.dress_time` | histogram, s | putting the session limits in force on a connection that was taken over from another partition of the budget |
//! | `db.client.connection.use_time` * | histogram, s | from the grant of a slot to the drop of the connection |
//!
//! Each carries the partition as `db.client.connection.pool.name`, and the labels that were added with
//! [`PoolMetrics::label`]. Every call to a partition is counted in `acquires` exactly once:
//!
//! | `outcome` | `reason` |
//! |---|---|
//! | `acquired` | `none` |
//! | `rejected` | `queue_full`, `no_free_slot`, `deadline_too_short`, `wait_timeout`, `closed` or `no_seat`: the database was not asked |
//! | `timed_out` | the phase that used up the time: `password`, `connect`, `on_connect` or `validate` (`wait` is `rejected`, `wait_timeout`) |
//! | `failed` | the phase in which the database, or the way to it, said no: `password`, `connect` or `on_connect` |
//! | `abandoned` | `none`: the caller dropped its call before it was answered |
//!
//! Gauges are set once a second, by [`PartitionedPool::sample`](crate::PartitionedPool::sample), and at
//! the end of [`PartitionedPool::close`](crate::PartitionedPool::close); counters and histograms at once.

use std::fmt;
use std::sync::Arc;

use ::metrics::{
    Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString, Unit,
    with_recorder,
};

use crate::error::{AcquireError, Failure, Phase, Reason};
use crate::observe::{Event, Observer, PartitionObserver};
use crate::status::PartitionStatus;

const METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

const PARTITION: &str = "db.client.connection.pool.name";
const STATE: &str = "db.client.connection.state";
const OUTCOME: &str = "outcome";
const REASON: &str = "reason";

enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// One line of the table at the top.
struct Family {
    kind: Kind,
    name: &'static str,
    unit: Unit,
    about: &'static str,
}

macro_rules! families {
    ($($id:ident: $kind:ident, $unit:ident, $name:literal, $about:literal;)+) => {
        $(const $id: Family = Family {
            kind: Kind::$kind,
            name: concat!("db.client.connection.", $name),
            unit: Unit::$unit,
            about: $about,
        };)+
        const FAMILIES: &[Family] = &[$($id),+];
    };
}

families! {
    COUNT: Gauge, Count, "count", "Connections by state; their sum never exceeds the maximum.";
    MAX: Gauge, Count, "max", "The most connections of the partition.";
    IDLE_MIN: Gauge, Count, "idle.min", "Idle connections that are kept ready.";
    PENDING: Gauge, Count, "pending_requests", "Callers that wait for a slot.";
    PENDING_MAX: Gauge, Count, "pending_requests.max", "The bound of the queue.";
    SLOTS: Gauge, Count, "slots_in_use", "Slots held by callers, also while their connection is being opened.";
    OLDEST: Gauge, Seconds, "oldest_use_time", "Age of the oldest hold.";
    SEATS_TAKEN: Counter, Count, "seats_taken", "How often the replica has taken a seat of its fleet.";
    SEATS_LOST: Counter, Count, "seats_lost", "How often the replica has lost its seat.";
    ACQUIRES: Counter, Count, "acquires", "Calls that have ended, by outcome and reason.";
    TIMEOUTS: Counter, Count, "timeouts", "Calls that ran out of time, in whatever phase.";
    CREATE_FAILURES: Counter, Count, "create_failures", "Connections that could not be opened, by reason.";
    WAIT: Histogram, Seconds, "wait_time", "From the call to a connection in hand.";
    SLOT_WAIT: Histogram, Seconds, "slot_wait_time", "From the call to the grant of a slot.";
    CREATE: Histogram, Seconds, "create_time", "Opening a connection, session limits included.";
    DRESS: Histogram, Seconds, "dress_time", "Dressing a connection that was taken over from another partition.";
    USE: Histogram, Seconds, "use_time", "From the grant of a slot to the drop of the connection.";
}

impl Family {
    fn describe(&self, recorder: &dyn Recorder) {
        let (name, about) = (self.name.into(), SharedString::const_str(self.about));
        match self.kind {
            Kind::Counter => recorder.describe_counter(name, Some(self.unit), about),
            Kind::Gauge => recorder.describe_gauge(name, Some(self.unit), about),
            Kind::Histogram => recorder.describe_histogram(name, Some(self.unit), about),
        }
    }
}

/// Records a pool through the `metrics` facade; see the [module](self) for what.
///
/// Each pool needs its own: where one process has two pools with partitions of the same names,
/// [`label`](Self::label) tells them apart.
///
/// # Examples
/// ```
/// use partitioned_pool::config::PoolConfig;
/// use partitioned_pool::metrics::PoolMetrics;
/// use partitioned_pool::{BootError, PartitionedPool, TokioPostgres};
///
/// async fn start(config: PoolConfig) -> Result<PartitionedPool<TokioPostgres>, BootError> {
///     let metrics = PoolMetrics::new().label("service", "shop");
///     PartitionedPool::builder(config).observer(metrics).connect().await
/// }
/// ```
#[derive(Clone, Default)]
#[must_use = "nothing is recorded unless a pool is built with it"]
pub struct PoolMetrics {
    recorder: Option<Arc<dyn Recorder + Send + Sync>>,
    labels: Vec<Label>,
}

impl PoolMetrics {
    /// Records with the recorder that is installed when the pool is built: of the thread that builds
    /// it, if it has one of its own, else the global one. What is installed later hears nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records with `recorder` instead.
    pub fn to(recorder: impl Recorder + Send + Sync + 'static) -> Self {
        Self {
            recorder: Some(Arc::new(recorder)),
            labels: Vec::new(),
        }
    }

    /// Adds a label to every metric. Default: none but the partition.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::metrics::PoolMetrics;
    ///
    /// let metrics = PoolMetrics::new().label("service", "shop");
    /// # drop(metrics);
    /// ```
    pub fn label(mut self, key: impl Into<SharedString>, value: impl Into<SharedString>) -> Self {
        self.labels.push(Label::new(key, value));
        self
    }

    fn with_recorder<T>(&self, make: impl FnOnce(&dyn Recorder) -> T) -> T {
        match &self.recorder {
            Some(recorder) => make(recorder),
            None => with_recorder(make),
        }
    }
}

impl fmt::Debug for PoolMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolMetrics")
            .field("own_recorder", &self.recorder.is_some())
            .field("labels", &self.labels)
            .finish()
    }
}

impl Observer for PoolMetrics {
    fn partition(&self, name: &str) -> Box<dyn PartitionObserver> {
        self.with_recorder(|recorder| -> Box<dyn PartitionObserver> {
            FAMILIES.iter().for_each(|family| family.describe(recorder));
            let mut labels = self.labels.clone();
            labels.push(Label::new(PARTITION, name.to_owned()));
            Box::new(Handles::new(&Register { recorder, labels }))
        })
    }
}

/// Makes the handles of one partition.
struct Register<'a> {
    recorder: &'a dyn Recorder,
    labels: Vec<Label>,
}

type Labels<'a> = &'a [(&'static str, &'static str)];

impl Register<'_> {
    fn key(&self, family: &Family, more: Labels<'_>) -> Key {
        let more = more.iter().map(Label::from);
        let labels: Vec<Label> = self.labels.iter().cloned().chain(more).collect();
        Key::from_parts(family.name, labels)
    }

    fn counter(&self, family: &Family, labels: Labels<'_>) -> Counter {
        let key = self.key(family, labels);
        self.recorder.register_counter(&key, &METADATA)
    }

    fn gauge(&self, family: &Family, labels: Labels<'_>) -> Gauge {
        let key = self.key(family, labels);
        self.recorder.register_gauge(&key, &METADATA)
    }

    fn histogram(&self, family: &Family) -> Histogram {
        let key = self.key(family, &[]);
        self.recorder.register_histogram(&key, &METADATA)
    }
}

/// The handles of one partition, made once.
struct Handles {
    gauges: Gauges,
    acquires: Acquires,
    create_failures: CreateFailures,
    timeouts: Counter,
    seats_taken: Counter,
    seats_lost: Counter,
    wait: Histogram,
    slot_wait: Histogram,
    create: Histogram,
    dress: Histogram,
    hold: Histogram,
}

impl Handles {
    fn new(register: &Register<'_>) -> Self {
        Self {
            gauges: Gauges::new(register),
            acquires: Acquires::new(register),
            create_failures: CreateFailures::new(register),
            timeouts: register.counter(&TIMEOUTS, &[]),
            seats_taken: register.counter(&SEATS_TAKEN, &[]),
            seats_lost: register.counter(&SEATS_LOST, &[]),
            wait: register.histogram(&WAIT),
            slot_wait: register.histogram(&SLOT_WAIT),
            create: register.histogram(&CREATE),
            dress: register.histogram(&DRESS),
            hold: register.histogram(&USE),
        }
    }

    fn not_acquired(&self, error: &AcquireError) {
        self.acquires.of_error(error).increment(1);
        if error.is_timeout() {
            self.timeouts.increment(1);
        }
    }
}

impl PartitionObserver for Handles {
    fn on(&self, event: &Event<'_>) {
        match event {
            Event::Acquired { wait, took } => {
                self.acquires.acquired.increment(1);
                self.wait.record(*took);
                self.slot_wait.record(*wait);
            }
            Event::NotAcquired { error, .. } => self.not_acquired(error),
            Event::Abandoned => self.acquires.abandoned.increment(1),
            Event::Released { held } => self.hold.record(*held),
            Event::Opened { took } => self.create.record(*took),
            Event::Dressed { took } => self.dress.record(*took),
            Event::OpenFailed { failure, .. } => self.create_failures.of(failure).increment(1),
            Event::SeatTaken { .. } => self.seats_taken.increment(1),
            Event::SeatLost { .. } => self.seats_lost.increment(1),
            Event::Sampled(status) => self.gauges.set(status),
        }
    }
}

struct Gauges {
    used: Gauge,
    idle: Gauge,
    opening: Gauge,
    returning: Gauge,
    closing: Gauge,
    ghosts: Gauge,
    detached: Gauge,
    max: Gauge,
    min_idle: Gauge,
    waiting: Gauge,
    max_waiters: Gauge,
    slots: Gauge,
    oldest: Gauge,
}

impl Gauges {
    fn new(register: &Register<'_>) -> Self {
        let state = |name| register.gauge(&COUNT, &[(STATE, name)]);
        let gauge = |family| register.gauge(family, &[]);
        Self {
            used: state("used"),
            idle: state("idle"),
            opening: state("opening"),
            returning: state("returning"),
            closing: state("closing"),
            ghosts: state("ghost"),
            detached: state("detached"),
            max: gauge(&MAX),
            min_idle: gauge(&IDLE_MIN),
            waiting: gauge(&PENDING),
            max_waiters: gauge(&PENDING_MAX),
            slots: gauge(&SLOTS),
            oldest: gauge(&OLDEST),
        }
    }

    fn set(&self, status: &PartitionStatus) {
        self.used.set(status.used);
        self.idle.set(status.idle);
        self.opening.set(status.opening);
        self.returning.set(status.returning);
        self.closing.set(status.closing);
        self.ghosts.set(status.ghosts);
        self.detached.set(status.detached);
        self.max.set(status.max_connections);
        self.min_idle.set(status.min_idle);
        self.waiting.set(status.waiting);
        self.max_waiters.set(status.max_waiters);
        self.slots.set(status.in_use);
        self.oldest.set(
            status
                .oldest_hold
                .map_or(0.0, |holder| holder.age.as_secs_f64()),
        );
    }
}

/// One counter for each way in which a call can end.
struct Acquires {
    acquired: Counter,
    abandoned: Counter,
    queue_full: Counter,
    no_free_slot: Counter,
    deadline_too_short: Counter,
    wait_timeout: Counter,
    closed: Counter,
    no_seat: Counter,
    timed_out: ByPhase,
    failed: ByPhase,
}

impl Acquires {
    fn new(register: &Register<'_>) -> Self {
        let ended =
            |outcome, reason| register.counter(&ACQUIRES, &[(OUTCOME, outcome), (REASON, reason)]);
        Self {
            acquired: ended("acquired", "none"),
            abandoned: ended("abandoned", "none"),
            queue_full: ended("rejected", "queue_full"),
            no_free_slot: ended("rejected", "no_free_slot"),
            deadline_too_short: ended("rejected", "deadline_too_short"),
            wait_timeout: ended("rejected", "wait_timeout"),
            closed: ended("rejected", "closed"),
            no_seat: ended("rejected", "no_seat"),
            timed_out: ByPhase::new(|phase| ended("timed_out", phase.as_str())),
            failed: ByPhase::new(|phase| ended("failed", phase.as_str())),
        }
    }

    fn of_error(&self, error: &AcquireError) -> &Counter {
        match error {
            AcquireError::Rejected(rejection) => match rejection.reason {
                Reason::QueueFull => &self.queue_full,
                Reason::NoFreeSlot => &self.no_free_slot,
                Reason::DeadlineTooShort { .. } => &self.deadline_too_short,
                Reason::WaitTimeout => &self.wait_timeout,
                Reason::Closed => &self.closed,
                Reason::NoSeat => &self.no_seat,
            },
            AcquireError::TimedOut { phase, .. } => self.timed_out.of(*phase),
            AcquireError::Failed { phase, .. } => self.failed.of(*phase),
        }
    }
}

struct ByPhase {
    wait: Counter,
    password: Counter,
    connect: Counter,
    on_connect: Counter,
    validate: Counter,
}

impl ByPhase {
    fn new(make: impl Fn(Phase) -> Counter) -> Self {
        Self {
            wait: make(Phase::Wait),
            password: make(Phase::Password),
            connect: make(Phase::Connect),
            on_connect: make(Phase::OnConnect),
            validate: make(Phase::Validate),
        }
    }

    fn of(&self, phase: Phase) -> &Counter {
        match phase {
            Phase::Wait => &self.wait,
            Phase::Password => &self.password,
            Phase::Connect => &self.connect,
            Phase::OnConnect => &self.on_connect,
            Phase::Validate => &self.validate,
        }
    }
}

struct CreateFailures {
    too_many_connections: Counter,
    server_restarting: Counter,
    refused_login: Counter,
    password_provider: Counter,
    other: Counter,
}

impl CreateFailures {
    fn new(register: &Register<'_>) -> Self {
        let failed = |reason| register.counter(&CREATE_FAILURES, &[(REASON, reason)]);
        Self {
            too_many_connections: failed("too_many_connections"),
            server_restarting: failed("server_restarting"),
            refused_login: failed("refused_login"),
            password_provider: failed("password_provider"),
            other: failed("other"),
        }
    }

    fn of(&self, failure: &Failure) -> &Counter {
        if failure.is_too_many_connections() {
            &self.too_many_connections
        } else if failure.is_server_restarting() {
            &self.server_restarting
        } else if failure.is_refused_login() {
            &self.refused_login
        } else if failure.password_provider().is_some() {
            &self.password_provider
        } else {
            &self.other
        }
    }
}
