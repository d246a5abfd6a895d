//! What a partition and a pool look like at one moment.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

/// One partition at one moment.
///
/// Every connection counts in exactly one of `opening`, `idle`, `used`, `returning`, `closing`, `ghosts` and
/// `detached`; their sum never exceeds `max_connections`.
///
/// # Examples
/// ```
/// use partitioned_pool::PartitionStatus;
///
/// /// How much of it is in use, for a gauge.
/// fn load(status: &PartitionStatus) -> f64 {
///     f64::from(status.in_use) / f64::from(status.max_connections)
/// }
/// # assert_eq!(PartitionStatus::default().connections(), 0);
/// ```
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
    /// Connections that have left the pool ([`Connection::detach`](crate::Connection::detach)) and are still open:
    /// each keeps its slot, which is not among those `in_use`.
    pub detached: u32,
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
        let ours = self.opening + self.idle + self.used + self.returning + self.closing;
        ours + self.ghosts + self.detached
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
        if self.detached > 0 {
            write!(f, ", detached {}", self.detached)?;
        }
        match self.oldest_hold {
            Some(holder) => write!(f, "; oldest hold {holder}"),
            None => Ok(()),
        }
    }
}

/// A budget at one moment: what its partitions share.
///
/// # Examples
/// ```
/// use partitioned_pool::{PoolStatus, BudgetStatus};
///
/// fn is_exhausted(status: &PoolStatus, budget: &str) -> bool {
///     let is_full = |one: &&BudgetStatus| one.name == budget && one.held == one.capacity;
///     status.shared_budgets.iter().find(is_full).is_some()
/// }
/// # assert!(!is_exhausted(&PoolStatus::default(), "main"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetStatus {
    /// Its name.
    pub name: String,
    /// The most connections, and the most slots.
    pub capacity: u32,
    /// Slots that are held, those on the return path and those that were detached included.
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

/// The [seat](crate::config::SeatsConfig) of this replica at one moment.
///
/// # Examples
/// ```
/// use partitioned_pool::PoolStatus;
///
/// /// Whether this replica may use connections now.
/// fn is_seated(status: &PoolStatus) -> bool {
///     status.seat.is_none_or(|seat| seat.seat.is_some() && !seat.admits_for.is_zero())
/// }
/// # assert!(is_seated(&PoolStatus::default()));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeatStatus {
    /// Which of the fleet's seats it holds, from 1; `None` if it holds none, and admits nothing.
    pub seat: Option<u32>,
    /// How often that seat was taken, this taking included.
    pub epoch: Option<u64>,
    /// For how long it goes on admitting if the seat is not renewed any more; zero if it does not admit.
    pub admits_for: Duration,
    /// For how long it has held the seat, or has had none.
    pub lasted: Duration,
}

impl fmt::Display for SeatStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lasted = Seconds(self.lasted);
        match (self.seat, self.epoch) {
            (Some(seat), Some(epoch)) => write!(
                f,
                "seat {seat}, epoch {epoch}, held for {lasted}, good for {} more",
                Seconds(self.admits_for)
            ),
            _ => write!(f, "no seat for {lasted}"),
        }
    }
}

/// All partitions of a pool, in the order in which they were configured, and what they draw from.
///
/// Each is looked at in turn: a connection that changes hands meanwhile may be seen twice, or not at all.
///
/// # Examples
/// ```
/// use partitioned_pool::PoolStatus;
///
/// /// Connections that the servers may be counting for this replica.
/// fn open(status: &PoolStatus) -> u32 {
///     status.partitions.iter().map(|partition| partition.connections()).sum()
/// }
/// # assert_eq!(open(&PoolStatus::default()), 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStatus {
    /// One entry a partition.
    pub partitions: Vec<PartitionStatus>,
    /// The budgets that several partitions share; empty where each has its own.
    pub shared_budgets: Vec<BudgetStatus>,
    /// The seat of this replica; `None` where the fleet has no seats.
    pub seat: Option<SeatStatus>,
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
        if let Some(seat) = &self.seat {
            write!(f, "\n{seat}")?;
        }
        Ok(())
    }
}

/// The place in a service's code from which a connection was acquired.
///
/// # Examples
/// ```
/// use partitioned_pool::CallSite;
///
/// #[track_caller]
/// fn acquired_at() -> CallSite {
///     CallSite::here()
/// }
///
/// let (first, second) = (acquired_at(), acquired_at());
/// assert_eq!((first.file(), first.line()), (second.file(), second.line()));
/// assert_eq!(first.to_string(), format!("{}:{}", first.file(), first.line()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallSite(&'static Location<'static>);

impl CallSite {
    /// The place of the caller.
    #[must_use]
    #[track_caller]
    #[inline]
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
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::{Holder, PartitionStatus};
///
/// /// Whether somebody has held for longer than this.
/// fn is_stuck(status: &PartitionStatus, limit: Duration) -> bool {
///     status.oldest_hold.is_some_and(|Holder { age, .. }| age > limit)
/// }
/// # assert!(!is_stuck(&PartitionStatus::default(), Duration::ZERO));
/// ```
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

/// The oldest holds of a partition, oldest first: enough to see whether one caller is stuck or a whole
/// workload, and few enough that a refusal stays small.
///
/// Printed, holds of one place are named together: `12.3 s, 11.0 s by src/report.rs:40 and 40 ms by
/// src/checkout.rs:7`.
///
/// # Examples
/// ```
/// use partitioned_pool::{OldestHolds, Rejection};
///
/// /// Whether the oldest holds all come from one place in the code.
/// fn is_one_workload(refused: &Rejection) -> bool {
///     let holds: &OldestHolds = &refused.oldest_holds;
///     let first = holds.first().map(|hold| hold.at);
///     holds.iter().all(|hold| Some(hold.at) == first)
/// }
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct OldestHolds([Option<Holder>; Self::MOST]);

impl OldestHolds {
    /// The most that are kept. A refusal is made under the lock of its partition, so what it copies must
    /// not grow with the partition; [`Partition::holders`](crate::Partition::holders) lists them all.
    pub const MOST: usize = 3;

    /// The oldest of all.
    #[must_use]
    pub const fn first(&self) -> Option<Holder> {
        self.0[0]
    }

    /// Oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Holder> {
        self.0.iter().map_while(|holder| *holder)
    }

    /// How many there are: all, or [`MOST`](Self::MOST).
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether nothing is held.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }
}

impl FromIterator<Holder> for OldestHolds {
    /// Of holders that come oldest first.
    fn from_iter<I: IntoIterator<Item = Holder>>(holders: I) -> Self {
        let mut holders = holders.into_iter();
        Self(std::array::from_fn(|_| holders.next()))
    }
}

impl fmt::Debug for OldestHolds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl fmt::Display for OldestHolds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_first = |at: usize| {
            let place = self.0[at].map(|holder| holder.at);
            place.is_some() && self.0[..at].iter().flatten().all(|h| Some(h.at) != place)
        };
        for at in (0..Self::MOST).filter(|at| is_first(*at)) {
            if at > 0 {
                f.write_str(" and ")?;
            }
            self.write_place(f, at)?;
        }
        Ok(())
    }
}

impl OldestHolds {
    /// The ages of all that were acquired where the hold at `first` was.
    fn write_place(&self, f: &mut fmt::Formatter<'_>, first: usize) -> fmt::Result {
        let Some(Holder { at, age }) = self.0[first] else {
            return Ok(());
        };
        write!(f, "{}", Seconds(age))?;
        let others = self.0[first + 1..].iter().flatten();
        for other in others.filter(|other| other.at == at) {
            write!(f, ", {}", Seconds(other.age))?;
        }
        write!(f, " by {at}")
    }
}

/// What the server says of a backend (`pg_stat_activity`).
///
/// The parameters of a statement are never in it; literals that were written into its text are. It is
/// given to whoever asked, and never logged by this crate.
///
/// # Examples
/// ```
/// use partitioned_pool::{Held, Statement};
///
/// /// Whether a holder waits for somebody else's lock.
/// fn waits_for_a_lock(held: &Held) -> bool {
///     let event = held.statement.as_ref().and_then(|Statement { waits_for, .. }| waits_for.as_ref());
///     event.is_some_and(|event| event.starts_with("Lock: "))
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statement {
    /// The text of the statement that runs, or of the last that ran; the server keeps its first
    /// `track_activity_query_size` bytes (1 KiB by default).
    pub query: String,
    /// `active`, `idle in transaction`, `idle` and the like, as the server says it.
    pub state: String,
    /// For how long it has been in this state: of an active one, for how long its statement has run.
    pub lasts: Duration,
    /// What the backend waits for, such as `Lock: transactionid`; `Client: ClientRead` waits for us.
    pub waits_for: Option<String>,
}

/// Characters of a statement that are printed.
const PRINTED: usize = 120;

impl fmt::Display for Statement {
    /// On one line, and cut off after 120 characters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}", self.state, Seconds(self.lasts))?;
        if let Some(event) = &self.waits_for {
            write!(f, " (waits for {event})")?;
        }
        let words: Vec<_> = self.query.split_whitespace().collect();
        let line = words.join(" ");
        match line.char_indices().nth(PRINTED) {
            Some((end, _)) => write!(f, ": {}...", &line[..end]),
            None => write!(f, ": {line}"),
        }
    }
}

/// A slot that is held, and the backend of its connection.
///
/// # Examples
/// ```
/// use partitioned_pool::Held;
///
/// /// For `SELECT pg_terminate_backend(..)`, by hand.
/// fn backends(held: &[Held]) -> Vec<i32> {
///     held.iter().filter_map(|held| held.backend_pid).collect()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// By whom, and for how long.
    pub holder: Holder,
    /// The process id of the backend; `None` while the connection is being opened.
    pub backend_pid: Option<i32>,
    /// What the backend runs, if the server was asked:
    /// [`PartitionedPool::holders_with_statements`](crate::PartitionedPool::holders_with_statements).
    pub statement: Option<Statement>,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.holder)?;
        if let Some(pid) = self.backend_pid {
            write!(f, ", backend {pid}")?;
        }
        match &self.statement {
            Some(statement) => write!(f, ", {statement}"),
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
    fn the_oldest_holds_of_one_place_are_named_together() {
        let (report, checkout) = (CallSite::here(), CallSite::here());
        let seconds = |at, age| Holder::new(at, Duration::from_secs(age));
        let text = |holders: &[Holder]| OldestHolds::from_iter(holders.iter().copied()).to_string();
        assert_eq!(text(&[]), "");
        assert_eq!(text(&[seconds(report, 12)]), format!("12.0 s by {report}"));
        let mixed = [
            seconds(report, 12),
            seconds(checkout, 11),
            seconds(report, 10),
            seconds(checkout, 9),
        ];
        assert_eq!(
            text(&mixed),
            format!("12.0 s, 10.0 s by {report} and 11.0 s by {checkout}")
        );
        let three = OldestHolds::from_iter(mixed);
        assert_eq!((three.len(), three.is_empty()), (3, false));
        assert_eq!(three.first(), Some(mixed[0]));
        assert_eq!(format!("{three:?}"), format!("{:?}", &mixed[..3]));
    }

    #[test]
    fn a_statement_is_printed_on_one_line_and_cut_off() {
        let mut statement = Statement {
            query: "SELECT 1\n\t FROM orders".to_owned(),
            state: "active".to_owned(),
            lasts: Duration::from_secs(12),
            waits_for: Some("Lock: transactionid".to_owned()),
        };
        assert_eq!(
            statement.to_string(),
            "active for 12.0 s (waits for Lock: transactionid): SELECT 1 FROM orders"
        );
        statement.query = "\u{e9}".repeat(500);
        statement.waits_for = None;
        let cut = format!("active for 12.0 s: {}...", "\u{e9}".repeat(120));
        assert_eq!(statement.to_string(), cut);
    }

    #[test]
    fn durations_read_like_a_person_would_say_them() {
        let text = |nanos| Seconds(Duration::from_nanos(nanos)).to_string();
        assert_eq!(text(12_345_000_000), "12.3 s");
        assert_eq!(text(40_000_000), "40 ms");
        assert_eq!(text(250_000), "250 us");
        assert_eq!(text(3_600_000_000_000), "3600 s");
    }
}
