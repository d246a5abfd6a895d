//! What a partition and a pool look like at one moment.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

/// One partition at one moment.
///
/// Every connection counts in exactly one of `opening`, `idle`, `used`, `returning`, `closing` and
/// `ghosts`; their sum never exceeds `max_connections`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionStatus {
    /// Its name.
    pub name: String,
    /// The budget that it draws from; its own name where it is alone in it.
    pub budget: String,
    /// The slots that are guaranteed to it.
    pub reserved: u32,
    /// The most slots that it may hold.
    pub max_connections: u32,
    /// The bound of its queue.
    pub max_waiters: u32,
    /// The idle connections that are kept ready.
    pub min_idle: u32,
    /// Slots held by callers, also while their connection is being opened.
    pub in_use: u32,
    /// Callers in the queue.
    pub waiting: u32,
    /// Connections being opened.
    pub opening: u32,
    /// Open connections that nobody holds.
    pub idle: u32,
    /// Connections in the hands of callers.
    pub used: u32,
    /// Connections on the return path: their caller has left, their backend is not quiet yet.
    pub returning: u32,
    /// Connections being closed.
    pub closing: u32,
    /// Connections that we closed and whose backend is not yet known gone.
    pub ghosts: u32,
    /// The oldest hold.
    pub oldest_hold: Option<Holder>,
    /// Expected length of a hold, once there is evidence.
    pub expected_hold: Option<Duration>,
}

impl PartitionStatus {
    /// Slots that it holds beyond those that are guaranteed to it.
    #[must_use]
    pub fn borrowed(&self) -> u32 {
        self.in_use.saturating_sub(self.reserved)
    }

    /// Connections that the server may be counting for us.
    #[must_use]
    pub fn connections(&self) -> u32 {
        self.opening + self.idle + self.used + self.returning + self.closing + self.ghosts
    }
}

impl fmt::Display for PartitionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: in use {} of {}, waiting {} of {}; connections: opening {}, idle {}, used {}, returning {}, closing {}, ghosts {}",
            self.name,
            self.in_use,
            self.max_connections,
            self.waiting,
            self.max_waiters,
            self.opening,
            self.idle,
            self.used,
            self.returning,
            self.closing,
            self.ghosts,
        )?;
        match self.oldest_hold {
            Some(holder) => write!(f, "; oldest hold {holder}"),
            None => Ok(()),
        }
    }
}

/// A budget at one moment: what its partitions share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetStatus {
    /// Its name; that of its partition where there is one only.
    pub name: String,
    /// The most connections, and the most slots.
    pub capacity: u32,
    /// Slots that are held, those on the return path included.
    pub held: u32,
    /// Connections that the server may be counting for us; never above `capacity`.
    pub connections: u32,
}

impl fmt::Display for BudgetStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            capacity,
            held,
            connections,
        } = self;
        write!(
            f,
            "budget {name}: {held} of {capacity} slots held, connections {connections}"
        )
    }
}

/// All partitions of a pool, in the order in which they were configured, and what they draw from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatus {
    /// One entry a partition.
    pub partitions: Vec<PartitionStatus>,
    /// The budgets that several partitions share; empty where each has its own.
    pub shared_budgets: Vec<BudgetStatus>,
}

impl fmt::Display for PoolStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (line, partition) in self.partitions.iter().enumerate() {
            if line > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{partition}")?;
        }
        for budget in &self.shared_budgets {
            write!(f, "\n{budget}")?;
        }
        Ok(())
    }
}

/// The place in a service's code from which a connection was acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallSite(&'static Location<'static>);

impl CallSite {
    /// The place of the caller.
    #[must_use]
    #[track_caller]
    pub fn here() -> Self {
        Self(Location::caller())
    }

    /// Its file, as the compiler was given it.
    #[must_use]
    pub const fn file(&self) -> &'static str {
        self.0.file()
    }

    /// Its line.
    #[must_use]
    pub const fn line(&self) -> u32 {
        self.0.line()
    }
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file(), self.line())
    }
}

/// A slot that is held: by whom, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Where it was acquired.
    pub at: CallSite,
    /// How long ago it was granted.
    pub age: Duration,
}

impl Holder {
    pub(crate) const fn new(at: CallSite, age: Duration) -> Self {
        Self { at, age }
    }
}

/// A slot that is held, and the backend of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// By whom, and for how long.
    pub holder: Holder,
    /// The process id of the backend; `None` while the connection is being opened.
    pub backend_pid: Option<i32>,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.holder)?;
        match self.backend_pid {
            Some(pid) => write!(f, ", backend {pid}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", Seconds(self.age), self.at)
    }
}

/// A duration for people: `12.3 s`, `40 ms`, `250 us`.
pub(crate) struct Seconds(pub(crate) Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if self.0 >= Duration::from_secs(100) {
            write!(f, "{seconds:.0} s")
        } else if self.0 >= Duration::from_secs(1) {
            write!(f, "{seconds:.1} s")
        } else if self.0 >= Duration::from_millis(1) {
            write!(f, "{:.0} ms", seconds * 1e3)
        } else {
            write!(f, "{:.0} us", seconds * 1e6)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_like_a_person_would_say_them() {
        let text = |nanos| Seconds(Duration::from_nanos(nanos)).to_string();
        assert_eq!(text(12_345_000_000), "12.3 s");
        assert_eq!(text(40_000_000), "40 ms");
        assert_eq!(text(250_000), "250 us");
        assert_eq!(text(3_600_000_000_000), "3600 s");
    }
}
