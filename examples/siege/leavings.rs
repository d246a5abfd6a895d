//! Callers that leave at random moments in seven kinds of work, by the ten thousand.

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use partitioned_pool::config::{FleetCheck, FleetConfig, Kind, PartitionConfig, PoolConfig};
use partitioned_pool::{AcquireError, BootError, Partition, PartitionedPool};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::calls::percentile;
use crate::leavings_of_callers::{Found, Work, Worker as _};
use crate::round::Ground;
use crate::side::{Driven, Side};
use crate::watch::Seen;
use crate::words::millis;

/// Partitions of one slot each, so that the time of each leaving can be told.
const LANES: u32 = 8;
/// Callers of a lane: one is always waiting when the other leaves.
const CALLERS: u32 = 2;
/// The latest moment at which a caller leaves.
const MOMENT: u64 = 4_000;
/// What callers leave behind would last so many seconds.
const LEFT_BEHIND: f64 = 30.0;
const PATIENCE: Duration = Duration::from_secs(60);
const CLOSE: Duration = Duration::from_secs(5);
/// Where a slot is gone for longer, no busy machine is to blame.
const GONE: Duration = Duration::from_secs(10);

/// A partition, and who has left it last.
struct Lane<D: Driven> {
    partition: Partition<D>,
    left: Mutex<Option<(Work, Instant)>>,
    took: Mutex<Vec<(Work, Duration)>>,
}

impl<D: Driven> Lane<D> {
    fn new(partition: &Partition<D>) -> Arc<Self> {
        Arc::new(Self {
            partition: partition.clone(),
            left: Mutex::default(),
            took: Mutex::default(),
        })
    }

    /// One caller: looks at the connection as it finds it, and leaves in the middle of something.
    async fn call(&self, found: &Found, to_go: &AtomicU32) -> Result<(), AcquireError> {
        let mut held = self.partition.acquire().await?;
        let now = Instant::now();
        let left = lock(&self.left).take();
        lock(&self.took).extend(left.map(|(work, at)| (work, now - at)));
        found.look_at(&mut *held).await;
        let work = Work::at_random();
        let moment = Duration::from_micros(fastrand::u64(0..MOMENT));
        let done = timeout(moment, held.perform(work, LEFT_BEHIND)).await;
        match done {
            // The only kind that may be done by then.
            Ok(Ok(())) => {}
            Ok(Err(error)) => found.failures().push(format!("{work}: {error}")),
            Err(_left) => {
                let more = |to_go: u32| to_go.checked_sub(1);
                let _ = to_go.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
                *lock(&self.left) = Some((work, Instant::now()));
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What they came to.
pub(crate) struct Leavings {
    wanted: u32,
    lasted: Duration,
    /// By kind, from leaving to the next caller's grant, sorted.
    took: Vec<(Work, Vec<Duration>)>,
    counts: (u64, u64, u64),
    failures: Vec<String>,
    slots_taken: u32,
    seen: Seen,
    looks_a_second: f64,
}

/// Lets so many callers leave.
///
/// # Errors
/// If it cannot be run, or a caller gets no connection.
pub(crate) async fn run<D: Driven>(
    ground: &Ground,
    wanted: u32,
) -> Result<Leavings, Box<dyn Error>> {
    let pool = partitions::<D>(ground).await?;
    let watch = ground.watch();
    let lanes: Vec<_> = pool.partitions().map(Lane::new).collect();
    let (found, to_go) = (Arc::new(Found::default()), Arc::new(AtomicU32::new(wanted)));
    let began = Instant::now();
    let mut callers = JoinSet::new();
    for lane in lanes
        .iter()
        .flat_map(|lane| (0..CALLERS).map(move |_| lane))
    {
        callers.spawn(calls(
            Arc::clone(lane),
            Arc::clone(&found),
            Arc::clone(&to_go),
        ));
    }
    for ended in callers.join_all().await {
        ended?;
    }
    let lasted = began.elapsed();
    let slots_taken = until_free(&pool).await;
    let (seen, looks_a_second) = watch.seen();
    let report = pool.close(CLOSE).await;
    if !report.is_drained() {
        return Err(format!("the pool does not close: {report}").into());
    }
    Ok(Leavings {
        wanted,
        lasted,
        took: by_kind(&lanes),
        counts: found.counts(),
        failures: std::mem::take(&mut *found.failures()),
        slots_taken,
        seen,
        looks_a_second,
    })
}

async fn calls<D: Driven>(
    lane: Arc<Lane<D>>,
    found: Arc<Found>,
    to_go: Arc<AtomicU32>,
) -> Result<(), AcquireError> {
    while to_go.load(Ordering::SeqCst) > 0 && !found.stop.load(Ordering::Relaxed) {
        lane.call(&found, &to_go).await?;
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn partitions<D: Driven>(ground: &Ground) -> Result<PartitionedPool<D>, BootError> {
    let tenant = ground.tenant();
    let lane = |lane: PartitionConfig| {
        lane.min_idle(0)
            .max_waiters(CALLERS)
            .acquire_timeout(PATIENCE)
            .statement_timeout(PATIENCE)
    };
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    let mut config = PoolConfig::new(&tenant.name, tenant.url(), fleet)
        .transactional(lane(PartitionConfig::transactional(1)))
        .analytical(lane(PartitionConfig::analytical(1)));
    for number in 3..=LANES {
        let name = format!("lane{number}");
        config = config.partition(lane(PartitionConfig::named(name, Kind::Transactional, 1)));
    }
    PartitionedPool::connect(config).await
}

/// The slots that are still taken a second after the last caller has left.
async fn until_free<D: Driven>(pool: &PartitionedPool<D>) -> u32 {
    tokio::time::sleep(Duration::from_secs(1)).await;
    let taken = |partition: &Partition<D>| Side::Partition(partition.clone()).taken();
    pool.partitions().map(taken).sum()
}

fn by_kind<D: Driven>(lanes: &[Arc<Lane<D>>]) -> Vec<(Work, Vec<Duration>)> {
    let of = |kind: Work| {
        let took = |lane: &Arc<Lane<D>>| {
            let took = lock(&lane.took);
            let took = took.iter().filter(|(work, _)| *work == kind);
            took.map(|(_, took)| *took).collect::<Vec<_>>()
        };
        let mut took: Vec<_> = lanes.iter().flat_map(took).collect();
        took.sort_unstable();
        (kind, took)
    };
    Work::ALL.map(of).into()
}

impl Leavings {
    /// What is not as it must be.
    pub(crate) fn findings(&self) -> Vec<String> {
        let (dirty, busy, killed) = self.counts;
        let must_be_none = [
            (dirty, "connections were handed on with an open transaction"),
            (busy, "connections were handed on busy"),
            (killed, "healthy queries were killed by a late cancel"),
            (u64::from(self.slots_taken), "slots are taken at the end"),
        ];
        let mut findings: Vec<_> = must_be_none
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("broken: {count} {what}"))
            .collect();
        let failures = self.failures.len();
        findings.extend(
            self.failures
                .first()
                .map(|first| format!("broken: {failures} calls failed; the first: {first}")),
        );
        let slowest = |(work, took): &(Work, Vec<_>)| Some((*work, *took.last()?));
        let slowest = self.took.iter().filter_map(slowest);
        let gone = slowest.filter(|(_, took)| *took > GONE);
        findings.extend(gone.map(|(work, took)| {
            let took = millis(took);
            format!("broken: a slot was gone for {took} when its caller had left in {work}")
        }));
        if self.seen.most > LANES {
            let most = self.seen.most;
            findings.push(format!(
                "broken: {most} server connections, the budget is {LANES}"
            ));
        }
        if self.seen.control > 1 {
            let control = self.seen.control;
            findings.push(format!(
                "broken: {control} control connections, 1 is counted"
            ));
        }
        if self.looks_a_second < 100.0 {
            findings.push(format!(
                "the run cannot tell: pg_stat_activity was looked at only {:.0} times a second",
                self.looks_a_second
            ));
        }
        findings
    }
}

impl fmt::Display for Leavings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<13}{:>8}{:>10}{:>10}{:>10}",
            "left in", "callers", "p50", "p99", "max"
        )?;
        for (work, took) in &self.took {
            let of = |percent| percentile(took, percent).map_or("-".to_owned(), millis);
            let (p50, p99, max) = (of(50), of(99), of(100));
            let callers = took.len();
            writeln!(f, "{work:<13}{callers:>8}{p50:>10}{p99:>10}{max:>10}")?;
        }
        let (dirty, busy, killed) = self.counts;
        write!(
            f,
            "\nFrom a caller's leaving to the next caller's having the connection, on loopback, {LANES} slots.\n\
            {} callers left within {:.0} s. Handed on dirty: {dirty}, busy: {busy}. Healthy queries killed: {killed}. \
            Slots taken at the end: {}.\nServer connections at most {} of {LANES}, and {} control connection beside them, looked at {:.0} times a \
            second.",
            self.wanted,
            self.lasted.as_secs_f64(),
            self.slots_taken,
            self.seen.most,
            self.seen.control,
            self.looks_a_second,
        )
    }
}
