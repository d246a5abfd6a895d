//! What can go wrong, by type: a rejection by us, or a failure of the database or the way to it.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::config::PoolerMode;
use crate::status::{BudgetStatus, Holder, OldestHolds, Seconds};

/// A part of acquiring a connection. One deadline runs over all of them.
///
/// # Examples
/// ```
/// use partitioned_pool::AcquireError;
/// use partitioned_pool::error::Phase;
///
/// /// Whether it was the password provider that took too long.
/// fn is_of_the_vault(error: &AcquireError) -> bool {
///     matches!(error, AcquireError::TimedOut { phase: Phase::Password, .. })
/// }
/// # assert_eq!(Phase::OnConnect.to_string(), "on_connect");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Waiting for a slot.
    Wait,
    /// Asking the [`PasswordProvider`](crate::driver::PasswordProvider), the first part of opening a connection.
    Password,
    /// Opening a connection: address, TLS, authentication, session limits.
    Connect,
    /// What the service does to a connection that was opened, before anyone gets it:
    /// [`Builder::on_connect`](crate::Builder::on_connect).
    OnConnect,
    /// Checking a connection that was idle for long.
    Validate,
}

impl Phase {
    /// A short lower-case name, for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Password => "password",
            Self::Connect => "connect",
            Self::OnConnect => "on_connect",
            Self::Validate => "validate",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a call was refused without asking the database.
///
/// # Examples
/// ```
/// use partitioned_pool::AcquireError;
/// use partitioned_pool::error::Reason;
///
/// /// Whether more slots, or fewer calls, would have helped.
/// fn is_overload(error: &AcquireError) -> bool {
///     let reason = error.rejection().map(|refused| refused.reason);
///     matches!(reason, Some(Reason::QueueFull | Reason::NoFreeSlot | Reason::WaitTimeout))
/// }
/// # assert_eq!(Reason::QueueFull.as_str(), "queue_full");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// No slot is free and the queue is at its bound.
    QueueFull,
    /// No slot is free, and the caller did not want to wait.
    NoFreeSlot,
    /// The expected wait (and work) would outlast what the caller has left.
    DeadlineTooShort {
        /// The expected wait.
        expected_wait: Duration,
        /// The expected hold that follows it.
        expected_hold: Duration,
        /// What the caller had left.
        left: Duration,
    },
    /// No slot came free before the acquire timeout or the caller's deadline.
    WaitTimeout,
    /// The pool is closed or closing.
    Closed,
    /// The replica holds none of the fleet's [seats](crate::config::SeatsConfig), and so may use no connection, or
    /// cannot tell, since the database does not answer. It tries to have one all the time.
    NoSeat,
}

impl Reason {
    /// A short lower-case name, for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::NoFreeSlot => "no_free_slot",
            Self::DeadlineTooShort { .. } => "deadline_too_short",
            Self::WaitTimeout => "wait_timeout",
            Self::Closed => "closed",
            Self::NoSeat => "no_seat",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull => f.write_str("queue full"),
            Self::NoFreeSlot => f.write_str("no free slot"),
            Self::DeadlineTooShort {
                expected_wait,
                expected_hold,
                left,
            } => write!(
                f,
                "deadline too short: {} left, expected wait {} and hold {}",
                Seconds(*left),
                Seconds(*expected_wait),
                Seconds(*expected_hold),
            ),
            Self::WaitTimeout => f.write_str("no slot came free in time"),
            Self::Closed => f.write_str("the pool is closed"),
            Self::NoSeat => f.write_str("this replica holds no seat of its fleet"),
        }
    }
}

/// A refusal by the partition: the database was not asked.
///
/// Whoever called may answer "busy" at once; the database is not known to have failed.
///
/// # Examples
/// ```
/// use partitioned_pool::Rejection;
///
/// /// The head of an answer with status 429.
/// fn retry_after(refused: &Rejection) -> Option<String> {
///     let seconds = refused.retry_after?.as_secs().max(1);
///     Some(format!("Retry-After: {seconds}"))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// The partition that refused.
    pub partition: String,
    /// Why.
    pub reason: Reason,
    /// How long the caller had waited when it was refused.
    pub waited: Duration,
    /// The most slots that the partition may hold.
    pub max_connections: u32,
    /// The budget that it shares with other partitions, which may be what is exhausted; `None` where it
    /// has its own.
    pub shared_budget: Option<BudgetStatus>,
    /// Slots held by callers.
    pub in_use: u32,
    /// Slots whose callers have left, and whose connections are not yet quiet or gone.
    pub returning: u32,
    /// Slots whose connections were [detached](crate::Connection::detach), and are still open.
    pub detached: u32,
    /// Open connections that nobody holds.
    pub idle: u32,
    /// Callers in the queue.
    pub waiting: u32,
    /// The bound of the queue.
    pub max_waiters: u32,
    /// In debug builds, the oldest connection of the same budget that the refused task had acquired itself and had
    /// not given back: whoever waits for a slot while holding one can wait for itself. Always `None` in release builds,
    /// which do not look. See [`Partition`](crate::Partition#one-connection-a-task) for the rule that avoids it.
    pub own_hold: Option<Holder>,
    /// Who has held longest, and for how long: the oldest few.
    pub oldest_holds: OldestHolds,
    /// When to come back: the expected time until everyone who waits now, and one more, has had a
    /// slot. Before enough holds have ended to tell, the larger of the partition's acquire timeout and
    /// the age of the oldest hold. Without a seat, the time between two renewals.
    /// `None` only when the pool is closed.
    pub retry_after: Option<Duration>,
}

impl Rejection {
    /// Who has held longest, and for how long.
    #[must_use]
    pub const fn oldest_hold(&self) -> Option<Holder> {
        self.oldest_holds.first()
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            partition,
            reason,
            max_connections,
            in_use,
            idle,
            waiting,
            returning,
            detached,
            ..
        } = self;
        write!(
            f,
            "{partition}: rejected, {reason} (max {max_connections}, in use {in_use}, idle {idle}, waiting {waiting}"
        )?;
        if *returning > 0 {
            write!(f, ", on their way back {returning}")?;
        }
        if *detached > 0 {
            write!(f, ", detached {detached}")?;
        }
        match self.oldest_holds.len() {
            0 => {}
            1 => write!(f, "; oldest hold {}", self.oldest_holds)?,
            _ => write!(f, "; oldest holds {}", self.oldest_holds)?,
        }
        if let Some(own) = &self.own_hold {
            write!(f, "; this task itself holds one: {own}")?;
        }
        if let Some(budget) = &self.shared_budget {
            write!(f, "; {budget}")?;
        }
        f.write_str(")")?;
        if !self.waited.is_zero() {
            write!(f, " after waiting {}", Seconds(self.waited))?;
        }
        match self.retry_after {
            Some(after) => write!(f, "; retry after {}", Seconds(after)),
            None => Ok(()),
        }
    }
}

impl StdError for Rejection {}

/// What a driver, the network or the server reported.
///
/// Of what the server answered it tells the message and the SQLSTATE. The rest (DETAIL, HINT, context) can hold values of
/// a statement's parameters, which belong in no log: it is in the driver's own error, which
/// [`driver_error`](Self::driver_error) gives. For the same reason, a failure that the server answered has no
/// [`source`](StdError::source), since reports print that unasked; any other has the driver's own error.
///
/// # Examples
/// ```
/// use std::error::Error;
/// use partitioned_pool::error::Failure;
///
/// let full = Failure::new(Some("53300".to_owned()), "sorry, too many clients already");
/// assert!(full.is_too_many_connections() && full.is_transient());
/// assert!(full.advice().is_some());
/// let wrong = Failure::new(Some("28P01".to_owned()), "password authentication failed");
/// assert!(wrong.is_refused_login() && !wrong.is_transient());
///
/// let detail = "Key (email)=(ann@example.com) already exists.";
/// let failure = Failure::answered("23505", "duplicate key value", detail);
/// assert_eq!(failure.to_string(), "duplicate key value (SQLSTATE 23505)");
/// assert!(failure.source().is_none());
/// assert_eq!(failure.driver_error().to_string(), detail);
/// ```
#[derive(Clone)]
pub struct Failure(Box<Reported>);

/// Boxed, since it is a part of every error.
#[derive(Clone)]
struct Reported {
    sqlstate: Option<String>,
    /// What may be told of the server's answer, if it is one.
    said: Option<String>,
    known: Known,
    /// The part of opening a connection that has failed, if it was one of its own.
    phase: Option<Phase>,
    source: Arc<dyn StdError + Send + Sync>,
}

/// What is known of a failure that has no SQLSTATE.
#[derive(Clone, Copy, Debug)]
enum Known {
    Nothing,
    /// The other side ended the connection without a word.
    Lost,
    /// What to do about it.
    Advice(&'static str),
}

impl Failure {
    /// A failure with the server's SQLSTATE, if one is known. It is told by the text of `source` and of all that it
    /// comes from; for an answer of the server, see [`answered`](Self::answered).
    pub fn new(
        sqlstate: Option<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self(Box::new(Reported {
            sqlstate,
            said: None,
            known: Known::Nothing,
            phase: None,
            source: source.into().into(),
        }))
    }

    /// What the server answered: its SQLSTATE and its message. The driver's `error` is kept and not printed.
    pub fn answered(
        sqlstate: impl Into<String>,
        message: impl Into<String>,
        error: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        let mut failure = Self::new(Some(sqlstate.into()), error);
        failure.0.said = Some(message.into());
        failure
    }

    /// The driver's own error; downcast it for more. What it prints, the server's DETAIL included, is the driver's affair.
    #[must_use]
    pub fn driver_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.0.source
    }

    /// The failure of a connection that the other side ended without a word: it
    /// [can pass](Self::is_transient).
    pub fn lost(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let mut failure = Self::new(None, source);
        failure.0.known = Known::Lost;
        failure
    }

    /// The same failure, of this part of opening a connection.
    #[must_use]
    pub fn in_phase(mut self, phase: Phase) -> Self {
        self.0.phase = Some(phase);
        self
    }

    /// The part of opening a connection that has failed, if it was another than connecting itself.
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        let of_password = || self.password_provider().map(|_| Phase::Password);
        self.0.phase.or_else(of_password)
    }

    /// The same, with what its owner can do about it.
    #[must_use]
    pub fn advising(mut self, advice: &'static str) -> Self {
        self.0.known = Known::Advice(advice);
        self
    }

    /// What is known of a pooler that is in between and that the configuration does not state, if that is the
    /// failure.
    #[must_use]
    pub fn undeclared_pooler(&self) -> Option<&UndeclaredPooler> {
        self.0.source.downcast_ref()
    }

    /// The server's SQLSTATE: five characters, such as `53300`.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        self.0.sqlstate.as_deref()
    }

    /// The server, the role or the database has no connection left for us (`53300`).
    #[must_use]
    pub fn is_too_many_connections(&self) -> bool {
        self.sqlstate() == Some("53300")
    }

    /// The server is starting up, shutting down or recovering (`57P01` to `57P03`).
    #[must_use]
    pub fn is_server_restarting(&self) -> bool {
        matches!(self.sqlstate(), Some("57P01" | "57P02" | "57P03"))
    }

    /// The server refused who we say we are, or what we want to open (`28xxx`, `3D000`, `42501`).
    /// Trying again changes nothing.
    #[must_use]
    pub fn is_refused_login(&self) -> bool {
        self.sqlstate()
            .is_some_and(|code| code.starts_with("28") || matches!(code, "3D000" | "42501"))
    }

    /// Whether it can pass by itself: the network, a server that restarts or is full for the moment,
    /// a pooler that has lost its server. Connecting is then tried again, within the caller's
    /// deadline; everything else fails at once.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self.sqlstate() {
            Some(code) => {
                let class = code.get(..2).unwrap_or_default();
                matches!(class, "08" | "53" | "58") || self.is_server_restarting()
            }
            None => matches!(self.0.known, Known::Lost) || self.is_of_the_network(),
        }
    }

    fn is_of_the_network(&self) -> bool {
        self.causes().any(|cause| {
            let of_network = cause.downcast_ref::<io::Error>();
            of_network.is_some_and(|error| !is_an_answer(error))
        })
    }

    /// The password provider that failed, if it was one.
    #[must_use]
    pub fn password_provider(&self) -> Option<&str> {
        let found = self.causes().find_map(|cause| cause.downcast_ref());
        found.map(NoPassword::provider)
    }

    fn causes(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        let first: &(dyn StdError + 'static) = &*self.0.source;
        std::iter::successors(Some(first), |error| StdError::source(*error))
    }

    /// What the owner can do about it, where that is known.
    #[must_use]
    pub fn advice(&self) -> Option<&'static str> {
        match self.0.known {
            Known::Advice(advice) => Some(advice),
            Known::Nothing | Known::Lost => self.advice_by_code(),
        }
    }

    fn advice_by_code(&self) -> Option<&'static str> {
        let code = self.sqlstate()?;
        Some(match code {
            "08P01" => {
                "this is a pooler's word: if it names a startup parameter, take it out of the url or add it to PgBouncer's \
                 ignore_startup_parameters; if it has no more connections, run the fleet check with its \
                 max_client_conn stated"
            }
            "28P01" => {
                "check the user and the password in the url, or that of the password provider"
            }
            _ if code.starts_with("28") => "check the user in the url and the server's pg_hba.conf",
            "3D000" => "check the database name in the url",
            "42501" => "grant the role CONNECT on the database",
            "53300" => "the server, role or database has no free connection: run the fleet check",
            "57P03" => "the server is starting up: try again shortly",
            _ => return None,
        })
    }
}

/// Not the way to the other side failed: it is not what was asked for, and will not be. TLS says so, and certificates.
fn is_an_answer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::Unsupported
    )
}

/// A [`PasswordProvider`](crate::driver::PasswordProvider) gave no password.
///
/// It is the [`source`](StdError::source) of a [`Failure`] whose
/// [`password_provider`](Failure::password_provider) is its name.
///
/// # Examples
/// ```
/// use std::error::Error;
/// use partitioned_pool::error::{Failure, NoPassword};
///
/// /// What the provider itself said.
/// fn said(failure: &Failure) -> Option<String> {
///     let no_password: &NoPassword = failure.source()?.downcast_ref()?;
///     no_password.source().map(ToString::to_string)
/// }
/// ```
#[derive(Debug, Error)]
#[error("the password provider {provider} {what}")]
pub struct NoPassword {
    provider: String,
    what: String,
    source: Box<dyn StdError + Send + Sync>,
}

impl NoPassword {
    /// It failed with an error of its own.
    pub(crate) fn failed(provider: &str, source: Box<dyn StdError + Send + Sync>) -> Self {
        Self {
            provider: provider.to_owned(),
            what: "failed".to_owned(),
            source,
        }
    }

    /// It did not answer in time.
    pub(crate) fn late(provider: &str, limit: Duration) -> Self {
        Self {
            provider: provider.to_owned(),
            what: format!("gave no answer within {}", Seconds(limit)),
            source: Box::new(io::Error::from(io::ErrorKind::TimedOut)),
        }
    }

    /// Its name.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.provider
    }
}

/// A pooler is in between that the configuration does not state.
///
/// Nothing was set for the session: behind a transaction pooler, that would have stayed with a backend which serves
/// a stranger next.
///
/// # Examples
/// ```
/// use partitioned_pool::config::PoolerMode;
/// use partitioned_pool::error::{Failure, UndeclaredPooler};
///
/// let failure = Failure::from(UndeclaredPooler::of_mode(PoolerMode::Transaction));
/// let found = failure.undeclared_pooler().and_then(|found| found.mode);
/// assert_eq!(found, Some(PoolerMode::Transaction));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a pooler is in between, which the configuration does not state")]
#[non_exhaustive]
pub struct UndeclaredPooler {
    /// Its mode, if the driver has found it.
    pub mode: Option<PoolerMode>,
}

impl UndeclaredPooler {
    /// It is there, and that is all that is known.
    #[must_use]
    pub fn of_unknown_mode() -> Self {
        Self { mode: None }
    }

    /// A pooler that is in this mode.
    #[must_use]
    pub fn of_mode(mode: PoolerMode) -> Self {
        Self { mode: Some(mode) }
    }
}

impl From<UndeclaredPooler> for Failure {
    fn from(found: UndeclaredPooler) -> Self {
        Self::new(None, found).advising(
            "state the pooler beside the url that leads to it ([pooler] in TOML, with mode and max_client_conn), or \
             connect to Postgres directly",
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.said {
            Some(said) => f.write_str(said)?,
            None => {
                let texts: Vec<String> = self.causes().map(ToString::to_string).collect();
                f.write_str(&texts.join(": "))?;
            }
        }
        match self.sqlstate() {
            Some(code) => write!(f, " (SQLSTATE {code})"),
            None => Ok(()),
        }
    }
}

/// By what it tells, since the driver's own error prints all that the server said.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Failure");
        shown.field("told", &self.to_string());
        shown.field("phase", &self.phase()).finish()
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self.0.said {
            Some(_) => None,
            None => Some(&*self.0.source),
        }
    }
}

/// A call got no connection.
///
/// # Examples
/// A service that answers "busy, come back" apart from "the database is down":
/// ```
/// use std::time::Duration;
/// use partitioned_pool::AcquireError;
///
/// /// Status code and `Retry-After`, in seconds.
/// fn answer(error: &AcquireError) -> (u16, Option<u64>) {
///     let after = error.retry_after().unwrap_or(Duration::from_secs(1));
///     if error.is_rejection() {
///         (429, Some(after.as_secs().max(1)))
///     } else {
///         (503, None)
///     }
/// }
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The partition refused: it is full, or closed. The database was not asked.
    #[error(transparent)]
    Rejected(Box<Rejection>),
    /// A slot was granted, but opening or checking a connection outlasted the deadline.
    #[error("{partition}: no connection within {}, stuck in phase {phase} (waited {} for a slot){}", Seconds(*limit), Seconds(*waited), last(failure.as_ref()))]
    TimedOut {
        /// The partition.
        partition: String,
        /// The phase that used the deadline up.
        phase: Phase,
        /// The deadline, from the call on.
        limit: Duration,
        /// How much of it went into waiting for a slot.
        waited: Duration,
        /// What the last try to connect reported, if one has failed.
        #[source]
        failure: Option<Failure>,
    },
    /// The database, or the way to it, said no.
    #[error("{partition}: {phase} failed: {failure}")]
    Failed {
        /// The partition.
        partition: String,
        /// What was being done.
        phase: Phase,
        /// What was reported.
        #[source]
        failure: Failure,
    },
}

impl AcquireError {
    /// Whether we refused, rather than the database failed.
    #[must_use]
    pub const fn is_rejection(&self) -> bool {
        matches!(self, Self::Rejected(_))
    }

    /// Whether time ran out, in whatever phase.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        match self {
            Self::Rejected(rejection) => rejection.reason == Reason::WaitTimeout,
            Self::TimedOut { .. } => true,
            Self::Failed { .. } => false,
        }
    }

    /// Whether the pool is closed: no later call will succeed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.rejection().is_some_and(|r| r.reason == Reason::Closed)
    }

    /// When to come back, if we refused.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.rejection()?.retry_after
    }

    /// The refusal, if it was one.
    #[must_use]
    pub fn rejection(&self) -> Option<&Rejection> {
        match self {
            Self::Rejected(rejection) => Some(rejection),
            _ => None,
        }
    }

    /// The partition that was asked.
    #[must_use]
    pub fn partition(&self) -> &str {
        match self {
            Self::Rejected(rejection) => &rejection.partition,
            Self::TimedOut { partition, .. } | Self::Failed { partition, .. } => partition,
        }
    }

    /// The phase in which the call ended.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        match self {
            Self::Rejected(_) => Phase::Wait,
            Self::TimedOut { phase, .. } | Self::Failed { phase, .. } => *phase,
        }
    }

    /// The server's SQLSTATE, if the server answered with one.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&str> {
        self.failure()?.sqlstate()
    }

    /// What the database, or the way to it, reported.
    #[must_use]
    pub const fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed { failure, .. } => Some(failure),
            Self::TimedOut { failure, .. } => failure.as_ref(),
            Self::Rejected(_) => None,
        }
    }
}

fn last(failure: Option<&Failure>) -> String {
    failure.map_or_else(String::new, |failure| format!("; the last try: {failure}"))
}

/// [`Partition::run`](crate::Partition::run) gave no result.
///
/// The work's own error may be of any type: also one that is no [`Error`](StdError), such as `anyhow::Error`,
/// a boxed error or a `String`. This error is an `Error` for all of them, and so cannot have the
/// work's error as its [`source`](StdError::source): Rust knows no "if it is one". It prints it, and gives it
/// out by [`work`](Self::work) and [`into_work`](Self::into_work); the source of `Acquire` is kept.
///
/// # Examples
/// ```
/// use std::error::Error;
/// use partitioned_pool::RunError;
///
/// /// The work's error itself, for a chain of causes; or that of the pool.
/// fn cause<E: Error + 'static>(error: &RunError<E>) -> &(dyn Error + 'static) {
///     error.work().map_or(error, |work| work)
/// }
/// let error = RunError::Work(std::io::Error::other("no stock"));
/// assert!(cause(&error).is::<std::io::Error>());
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError<E> {
    /// There was no connection: the work never began, and repeating it is safe.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The deadline passed while the work ran. It is being cancelled on the server; what it had
    /// committed by then stays, so it may have taken effect.
    #[error("{partition}: the deadline of {} passed while the work ran; it may have taken effect", Seconds(*limit))]
    DeadlineExceeded {
        /// The partition.
        partition: String,
        /// The deadline, from the call on.
        limit: Duration,
    },
    /// The connection was taken away while the work ran, and the work failed: it may have taken
    /// effect.
    #[error("{partition}: the connection was taken away after {} (max_hold, its seat was lost, or the pool was closed); the work may have taken effect", Seconds(*held))]
    TakenAway {
        /// The partition.
        partition: String,
        /// How long the connection had been held.
        held: Duration,
        /// What the work returned.
        error: E,
    },
    /// The work itself returned an error.
    #[error("{0}")]
    Work(E),
}

impl<E> RunError<E> {
    /// Whether the work never began, so that repeating it is safe.
    #[must_use]
    pub const fn never_began(&self) -> bool {
        matches!(self, Self::Acquire(_))
    }

    /// What the work returned, if it returned an error.
    #[must_use]
    pub const fn work(&self) -> Option<&E> {
        match self {
            Self::Work(error) | Self::TakenAway { error, .. } => Some(error),
            Self::Acquire(_) | Self::DeadlineExceeded { .. } => None,
        }
    }

    /// What the work returned, if it returned an error; else the error of the pool.
    ///
    /// # Errors
    /// This error, if the work returned none: it never began, or its deadline passed.
    pub fn into_work(self) -> Result<E, Self> {
        match self {
            Self::Work(error) | Self::TakenAway { error, .. } => Ok(error),
            other => Err(other),
        }
    }

    /// Whether a partition refused, rather than the database failed.
    #[must_use]
    pub const fn is_rejection(&self) -> bool {
        matches!(self, Self::Acquire(error) if error.is_rejection())
    }

    /// When to come back, if a partition refused.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Acquire(error) => error.retry_after(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxed<E: fmt::Debug + fmt::Display + 'static>(error: RunError<E>) -> Box<dyn StdError> {
        error.into()
    }

    #[test]
    fn work_may_return_errors_of_any_type_and_gives_them_out() {
        let text = boxed(RunError::Work("no stock".to_owned()));
        assert_eq!(text.to_string(), "no stock");
        let none: Box<dyn StdError + Send + Sync> = "none".into();
        assert_eq!(boxed(RunError::Work(none)).to_string(), "none");

        let work = || RunError::Work(io::Error::other("no stock"));
        assert!(work().work().is_some() && !work().never_began());
        assert_eq!(work().into_work().unwrap().to_string(), "no stock");
        let late: RunError<io::Error> = RunError::DeadlineExceeded {
            partition: "transactional".to_owned(),
            limit: Duration::from_secs(1),
        };
        assert!(late.work().is_none());
        assert!(late.into_work().is_err());
    }

    #[test]
    fn of_an_answer_nothing_is_printed_but_message_and_code() {
        let failure = Failure::answered("23505", "duplicate key value", "Key (x)=(S3CRET)");
        let error = AcquireError::Failed {
            partition: "transactional".to_owned(),
            phase: Phase::OnConnect,
            failure: failure.in_phase(Phase::OnConnect),
        };
        let mut printed = format!("{error:?} {error:#?}");
        let mut next: Option<&dyn StdError> = Some(&error);
        while let Some(error) = next {
            printed += &format!(" {error} {error:?}");
            next = error.source();
        }
        assert!(!printed.contains("S3CRET"), "{printed}");
        assert!(printed.contains("on_connect failed: duplicate key value (SQLSTATE 23505)"));
        let told = error.failure().unwrap().driver_error().to_string();
        assert!(told.contains("S3CRET"), "{told}");
    }

    #[test]
    fn the_cause_of_a_failed_acquire_is_kept() {
        let failure = Failure::new(Some("28P01".to_owned()), "no such password");
        let acquire = AcquireError::Failed {
            partition: "transactional".to_owned(),
            phase: Phase::Connect,
            failure,
        };
        let error = boxed(RunError::<String>::Acquire(acquire));
        let cause = error.source().unwrap().downcast_ref::<Failure>();
        assert_eq!(cause.unwrap().sqlstate(), Some("28P01"));
    }
}
