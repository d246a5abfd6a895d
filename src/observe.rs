//! Watching a pool from outside: what happened, told after it happened.
//!
//! Metrics (feature `metrics`) are one observer. An observer decides nothing and must not block: it is called on the
//! caller's own way.

use std::fmt;
use std::time::Duration;

use crate::error::{AcquireError, Failure};
use crate::status::PartitionStatus;

/// Something that happened in a partition.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::observe::Event;
///
/// /// The part of a call that was spent in the queue.
/// fn queued(event: &Event<'_>) -> Option<Duration> {
///     match event {
///         Event::Acquired { wait, .. } => Some(*wait),
///         _ => None,
///     }
/// }
/// let (wait, took) = (Duration::from_millis(3), Duration::from_millis(45));
/// assert_eq!(queued(&Event::Acquired { wait, took }), Some(wait));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A call got a connection. Every call ends in this, `NotAcquired` or `Abandoned`.
    Acquired {
        /// From the call to the grant of a slot.
        wait: Duration,
        /// From the call to the connection in hand.
        took: Duration,
    },
    /// A call got none.
    NotAcquired {
        /// Why.
        error: &'a AcquireError,
        /// From the call to the answer.
        waited: Duration,
    },
    /// A call was dropped before it had an answer.
    Abandoned,
    /// A connection was given back; the return path may still be at work on it.
    Released {
        /// From the grant of the slot to the drop of the connection.
        held: Duration,
    },
    /// A connection was opened.
    Opened {
        /// Address, TLS, authentication and session limits together.
        took: Duration,
    },
    /// A connection could not be opened.
    OpenFailed {
        /// How long it took to fail.
        took: Duration,
        /// What was reported.
        failure: &'a Failure,
    },
    /// An idle connection of another partition of the budget was taken over, since no further one could be
    /// opened, and the session limits of this one were put in force on it.
    Dressed {
        /// The round trip that it took.
        took: Duration,
    },
    /// The replica has taken a [seat](crate::config::SeatsConfig) of its fleet, at the start or again. Told to each partition.
    SeatTaken {
        /// Which.
        seat: u32,
        /// How often it was taken, this time included.
        epoch: u64,
    },
    /// The replica has lost its seat: nothing is admitted, and what was held was taken away. Told to each partition.
    SeatLost {
        /// Which.
        seat: u32,
        /// Its epoch.
        epoch: u64,
    },
    /// The regular look at the partition: once a second, on
    /// [`PartitionedPool::sample`](crate::PartitionedPool::sample), and at the end of
    /// [`PartitionedPool::close`](crate::PartitionedPool::close).
    Sampled(&'a PartitionStatus),
}

/// Watches one partition.
///
/// # Examples
/// ```
/// use partitioned_pool::observe::{Event, PartitionObserver};
///
/// struct Log(String);
///
/// impl PartitionObserver for Log {
///     fn on(&self, event: &Event<'_>) {
///         if let Event::OpenFailed { failure, .. } = event {
///             eprintln!("{}: {failure}", self.0);
///         }
///     }
/// }
/// # Log("transactional".to_owned()).on(&Event::Abandoned);
/// ```
pub trait PartitionObserver: Send + Sync + 'static {
    /// Called after each event, outside of every lock.
    fn on(&self, event: &Event<'_>);
}

/// Makes an observer for each partition, once, when the pool is built.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use partitioned_pool::observe::{Event, Observer, PartitionObserver};
///
/// /// Counts the calls of all partitions that got no connection.
/// #[derive(Default)]
/// struct Lost(Arc<AtomicU64>);
///
/// impl Observer for Lost {
///     fn partition(&self, _name: &str) -> Box<dyn PartitionObserver> {
///         Box::new(Self(Arc::clone(&self.0)))
///     }
/// }
///
/// impl PartitionObserver for Lost {
///     fn on(&self, event: &Event<'_>) {
///         if let Event::NotAcquired { .. } = event {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
/// # Lost::default().partition("transactional").on(&Event::Abandoned);
/// ```
pub trait Observer: Send + Sync + 'static {
    /// The observer of the partition of this name.
    fn partition(&self, name: &str) -> Box<dyn PartitionObserver>;
}

/// At most one observer, as a partition holds it.
#[derive(Default)]
pub(crate) struct Watch(pub(crate) Option<Box<dyn PartitionObserver>>);

impl Watch {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    #[inline]
    pub(crate) fn tell(&self, event: impl FnOnce() -> Event<'static>) {
        if let Some(observer) = &self.0 {
            observer.on(&event());
        }
    }

    pub(crate) fn tell_about(&self, event: &Event<'_>) {
        if let Some(observer) = &self.0 {
            observer.on(event);
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watch").field(&self.0.is_some()).finish()
    }
}
