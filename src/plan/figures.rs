//! Figures over a span of time, live or simulated.

use std::ops::AddAssign;
use std::time::Duration;

/// Calls that never got a slot, by reason.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::Refused;
///
/// let mut all = Refused::default();
/// all.queue_full = 3;
/// all.wait_timeout = 2;
/// assert_eq!((all.total(), all.at_once()), (5, 3));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// No slot was free and the queue was full.
    pub queue_full: u64,
    /// The expected wait was too long for the caller.
    pub deadline_too_short: u64,
    /// No slot was free, and the caller would not wait.
    pub no_free_slot: u64,
    /// The caller waited as long as it could, and left.
    pub wait_timeout: u64,
}

impl Refused {
    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.at_once() + self.wait_timeout
    }

    /// Those that were told at once.
    #[must_use]
    pub const fn at_once(&self) -> u64 {
        self.queue_full + self.deadline_too_short + self.no_free_slot
    }
}

impl AddAssign for Refused {
    fn add_assign(&mut self, other: Self) {
        self.queue_full += other.queue_full;
        self.deadline_too_short += other.deadline_too_short;
        self.no_free_slot += other.no_free_slot;
        self.wait_timeout += other.wait_timeout;
    }
}

/// A count over a span of time.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::Level;
///
/// let in_use = Level { average: 12.5, peak: 20 };
/// # let _ = in_use;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Level {
    /// Its mean over the time.
    pub average: f64,
    /// The most that it was.
    pub peak: u32,
}

/// How old the holds are that run at one moment.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::Ages;
///
/// let ages = Ages::of([90, 3, 1].map(Duration::from_secs), Duration::from_secs(60));
/// assert_eq!((ages.running, ages.median, ages.stuck), (3, Some(Duration::from_secs(3)), 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ages {
    /// How many there are.
    pub running: u32,
    /// The oldest.
    pub oldest: Option<Duration>,
    /// The one in the middle; of two, the younger.
    pub median: Option<Duration>,
    /// The youngest.
    pub youngest: Option<Duration>,
    /// How many have run all through the time that ends in this moment.
    pub stuck: u32,
}

impl Ages {
    /// Of holds with these ages, oldest first, at the end of a time of `length`.
    #[must_use]
    pub fn of(oldest_first: impl IntoIterator<Item = Duration>, length: Duration) -> Self {
        let ages: Vec<_> = oldest_first.into_iter().collect();
        let stuck = ages.iter().filter(|age| **age >= length).count();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            running: count(ages.len()),
            oldest: ages.first().copied(),
            median: ages.get(ages.len() / 2).copied(),
            youngest: ages.last().copied(),
            stuck: count(stuck),
        }
    }
}
