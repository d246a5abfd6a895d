//! No, by us: who was refused, why, and when to come back.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::status::{BudgetStatus, Holder, OldestHolds, Seconds};

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
