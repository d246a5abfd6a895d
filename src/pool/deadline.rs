//! Until when a caller waits.

use std::time::Duration;

use tokio::time::Instant;

/// About thirty years: what is later than that is as good as never.
const FAR: Duration = Duration::from_secs(1 << 30);

/// When a caller must have its answer: a [`Duration`] from now, or an instant.
///
/// # Examples
/// ```
/// use std::time::{Duration, Instant};
/// use partitioned_pool::Deadline;
///
/// let in_a_second: Deadline = Duration::from_secs(1).into();
/// let at_an_instant: Deadline = (Instant::now() + Duration::from_secs(1)).into();
/// assert!(in_a_second.left() <= at_an_instant.left());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    pub(super) const fn instant(self) -> Instant {
        self.0
    }

    /// What is left until then; zero when it has passed.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

impl From<Duration> for Deadline {
    fn from(left: Duration) -> Self {
        Self(Instant::now() + left.min(FAR))
    }
}

impl From<Instant> for Deadline {
    fn from(at: Instant) -> Self {
        Self(at)
    }
}

impl From<std::time::Instant> for Deadline {
    fn from(at: std::time::Instant) -> Self {
        Self(Instant::from_std(at))
    }
}
