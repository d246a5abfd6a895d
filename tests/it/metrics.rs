//! Metrics on a real Postgres: what was counted is what was called.

use std::collections::BTreeMap;
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use partitioned_pool::config::{
    BootConfig, FleetCheck, FleetConfig, Kind, PartitionConfig, PoolConfig, WhenUnavailable,
};
use partitioned_pool::error::{AcquireError, RunError};
use partitioned_pool::metrics::PoolMetrics;
use partitioned_pool::{Connection, Partition, PartitionedPool};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::postgres;
use crate::support::driver::{Speaks as _, Tested, on_each_driver};

const MS: Duration = Duration::from_millis(1);

on_each_driver![
    ; alone: every_call_is_counted_once_with_its_outcome,
    gauges_come_back_to_rest,
    connecting_in_vain_is_a_timeout_and_its_failures_are_counted,
    a_wait_that_outlasts_its_timeout_counts_as_rejected_and_as_timeout,
    without_a_recorder_of_its_own_a_pool_uses_the_installed_one
];

/// How calls ended, as `outcome` and `reason`.
type Ends = BTreeMap<(String, String), u64>;

/// One metric with its labels: `name{key=value,...}` without the partition, which is apart.
type Series = (String, String);

/// What was recorded.
struct Recorded(BTreeMap<Series, DebugValue>);

impl Recorded {
    /// Takes what was recorded since the last time. Nothing may lack its unit or description.
    fn take(snapshotter: &Snapshotter) -> Self {
        let docs = include_str!("../../src/metrics.rs");
        let all = snapshotter.snapshot().into_vec();
        let series = all.into_iter().map(|(key, unit, about, value)| {
            let name = key.key().name().to_owned();
            assert!(unit.is_some(), "{name} has no unit");
            assert!(
                about.is_some_and(|a| !a.is_empty()),
                "{name} is not described"
            );
            assert!(
                docs.contains(&format!("//! | `{name}`")),
                "{name} is not in the table"
            );
            let (partition, others): (Vec<_>, Vec<_>) = key
                .key()
                .labels()
                .partition(|l| l.key() == "db.client.connection.pool.name");
            let others: Vec<_> = others
                .iter()
                .map(|l| format!("{}={}", l.key(), l.value()))
                .collect();
            let id = format!("{name}{{{}}}", others.join(","));
            ((partition[0].value().to_owned(), id), value)
        });
        Self(series.collect())
    }

    fn of(&self, partition: &str, id: &str) -> &DebugValue {
        let id = format!("db.client.connection.{id}");
        let found = self.0.get(&(partition.to_owned(), id.clone()));
        found.unwrap_or_else(|| panic!("{partition} has no {id}: {:?}", self.0.keys()))
    }

    fn gauge(&self, partition: &str, id: &str) -> f64 {
        match self.of(partition, id) {
            DebugValue::Gauge(value) => value.into_inner(),
            other => panic!("{id} is {other:?}"),
        }
    }

    fn counter(&self, partition: &str, id: &str) -> u64 {
        match self.of(partition, id) {
            DebugValue::Counter(value) => *value,
            other => panic!("{id} is {other:?}"),
        }
    }

    fn times(&self, partition: &str, name: &str) -> Vec<f64> {
        match self.of(partition, &format!("{name}{{}}")) {
            DebugValue::Histogram(values) => values.iter().map(|v| v.into_inner()).collect(),
            other => panic!("{name} is {other:?}"),
        }
    }

    /// The acquires of a partition that were counted, by outcome and reason.
    fn ends(&self, partition: &str) -> Ends {
        let mut ends = Ends::new();
        for ((of, id), value) in &self.0 {
            let Some(labels) = id.strip_prefix("db.client.connection.acquires{outcome=") else {
                continue;
            };
            let (outcome, reason) = labels.split_once(",reason=").expect("two labels");
            if let DebugValue::Counter(count @ 1..) = value
                && of == partition
            {
                let key = (outcome.to_owned(), reason.trim_end_matches('}').to_owned());
                ends.insert(key, *count);
            }
        }
        ends
    }
}

fn end(outcome: &str, reason: &str) -> (String, String) {
    (outcome.to_owned(), reason.to_owned())
}

/// How the metrics must name an error.
fn end_of(error: &AcquireError) -> (String, String) {
    match error {
        AcquireError::Rejected(rejection) => end("rejected", rejection.reason.as_str()),
        AcquireError::TimedOut { phase, .. } => end("timed_out", phase.as_str()),
        AcquireError::Failed { phase, .. } => end("failed", phase.as_str()),
        other => panic!("a new kind of error: {other:?}"),
    }
}

fn acquired() -> (String, String) {
    end("acquired", "none")
}

fn abandoned() -> (String, String) {
    end("abandoned", "none")
}

/// One call of a random kind; how it ended.
async fn call<D: Tested>(partition: &Partition<D>) -> (String, String) {
    let short = MS * fastrand::u32(1..15);
    let outcome = match fastrand::u8(0..6) {
        0 => partition.try_acquire().await,
        1 => partition.acquire_by(short * 2).await,
        2 | 3 => match timeout(short, partition.acquire()).await {
            Ok(outcome) => outcome,
            Err(_) => return abandoned(),
        },
        4 => return run(partition, short).await,
        _ => partition.acquire().await,
    };
    match outcome {
        Ok(mut connection) => {
            let asked = connection.say("SELECT 1").await;
            asked.expect("the server answers");
            sleep(short).await;
            acquired()
        }
        Err(error) => end_of(&error),
    }
}

/// Work that sometimes outlasts its deadline.
async fn run<D: Tested>(partition: &Partition<D>, short: Duration) -> (String, String) {
    let sleeping =
        async |connection: &mut Connection<D>| connection.say("SELECT pg_sleep(0.008)").await;
    match partition.run(short, sleeping).await {
        Err(RunError::Acquire(error)) => end_of(&error),
        _ => acquired(),
    }
}

/// `tasks` tasks with `turns` random calls each; how they ended.
async fn calls<D: Tested>(partition: &Partition<D>, tasks: u64, turns: u64) -> Ends {
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let partition = partition.clone();
        running.spawn(async move {
            let mut ends = Vec::new();
            for _ in 0..turns {
                ends.push(call(&partition).await);
            }
            ends
        });
    }
    let mut ends = Ends::new();
    for end in running.join_all().await.into_iter().flatten() {
        *ends.entry(end).or_default() += 1;
    }
    ends
}

/// Until every slot and connection has found its place.
async fn at_rest<D: Tested>(pool: &PartitionedPool<D>) {
    let busy = || {
        let partitions = pool.status().partitions;
        partitions
            .iter()
            .any(|p| p.in_use + p.opening + p.returning + p.closing + p.ghosts > 0)
    };
    let quiet = async {
        while busy() {
            sleep(MS).await;
        }
    };
    timeout(10_000 * MS, quiet)
        .await
        .expect("everything comes back");
}

fn config(url: &str, slots: u32, patience: Duration) -> PoolConfig {
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    PoolConfig::new("shop", url, fleet)
        .transactional(
            PartitionConfig::transactional(slots)
                .max_waiters(6)
                .min_idle(1)
                .acquire_timeout(patience),
        )
        .analytical(PartitionConfig::analytical(1))
}

async fn connect<D: Tested>(config: PoolConfig) -> (PartitionedPool<D>, Snapshotter) {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let builder = PartitionedPool::<D>::builder(config).observer(PoolMetrics::to(recorder));
    (
        builder.connect().await.expect("the pool starts"),
        snapshotter,
    )
}

async fn every_call_is_counted_once_with_its_outcome<D: Tested>() {
    let server = postgres::start(postgres::Want::default()).await.unwrap();
    let (pool, snapshotter) = connect::<D>(config(server.url(), 4, 100 * MS)).await;
    let partition = pool.transactional();

    let mut ends = calls(partition, 24, 50).await;
    pool.close(10_000 * MS).await;
    let late = partition.acquire().await.expect_err("closed");
    ends.insert(end_of(&late), 1);

    let recorded = Recorded::take(&snapshotter);
    assert_eq!(recorded.ends("transactional"), ends);
    assert_eq!(ends.values().sum::<u64>(), 24 * 50 + 1);
    for kind in [
        acquired(),
        abandoned(),
        end("rejected", "queue_full"),
        end("rejected", "no_free_slot"),
        end("rejected", "deadline_too_short"),
        end("rejected", "closed"),
    ] {
        assert!(
            ends.contains_key(&kind),
            "no call ended as {kind:?}: {ends:?}"
        );
    }

    let granted = usize::try_from(ends[&acquired()]).unwrap();
    let (wait, slot_wait, hold) = (
        recorded.times("transactional", "wait_time"),
        recorded.times("transactional", "slot_wait_time"),
        recorded.times("transactional", "use_time"),
    );
    assert_eq!(
        (wait.len(), slot_wait.len(), hold.len()),
        (granted, granted, granted)
    );
    assert!(wait.iter().all(|s| *s < 1.0), "in seconds");
    assert!(slot_wait.iter().sum::<f64>() <= wait.iter().sum::<f64>());
    assert!(
        hold.iter().sum::<f64>() > 0.001 * 100.0,
        "holds take milliseconds"
    );
    assert!(!recorded.times("transactional", "create_time").is_empty());
    let timed_out = ends
        .iter()
        .filter(|((outcome, reason), _)| outcome == "timed_out" || reason == "wait_timeout");
    let timeouts: u64 = timed_out.map(|(_, count)| count).sum();
    assert_eq!(recorded.counter("transactional", "timeouts{}"), timeouts);
    assert_eq!(
        recorded.ends("analytical"),
        Ends::new(),
        "the boot check is no call"
    );
}

async fn gauges_come_back_to_rest<D: Tested>() {
    let server = postgres::start(postgres::Want::default()).await.unwrap();
    let (pool, snapshotter) = connect::<D>(config(server.url(), 4, 2_000 * MS)).await;
    let partition = pool.transactional();
    let state = |name: &str| format!("count{{db.client.connection.state={name}}}");

    at_rest(&pool).await;
    let held = partition.acquire().await.expect("a connection");
    let also_held = partition.acquire().await.expect("a connection");
    pool.sample();
    let busy = Recorded::take(&snapshotter);
    assert_eq!(busy.gauge("transactional", &state("used")), 2.0);
    assert_eq!(busy.gauge("transactional", "slots_in_use{}"), 2.0);
    assert!(busy.gauge("transactional", "oldest_use_time{}") > 0.0);
    assert_eq!(busy.gauge("transactional", "max{}"), 4.0);
    assert_eq!(busy.gauge("transactional", "idle.min{}"), 1.0);
    assert_eq!(busy.gauge("transactional", "pending_requests.max{}"), 6.0);
    drop((held, also_held));

    calls(partition, 12, 20).await;
    at_rest(&pool).await;
    pool.sample();
    let rest = Recorded::take(&snapshotter);
    for name in ["used", "opening", "returning", "closing", "ghost"] {
        assert_eq!(rest.gauge("transactional", &state(name)), 0.0, "{name}");
    }
    let idle = rest.gauge("transactional", &state("idle"));
    assert!((1.0..=4.0).contains(&idle), "idle {idle}");
    for id in ["slots_in_use{}", "pending_requests{}", "oldest_use_time{}"] {
        assert_eq!(rest.gauge("transactional", id), 0.0, "{id}");
    }

    pool.close(10_000 * MS).await;
    let closed = Recorded::take(&snapshotter);
    assert_eq!(closed.gauge("transactional", &state("idle")), 0.0);
    assert_eq!(
        closed.gauge("transactional", "max{}"),
        4.0,
        "told at the close"
    );
}

async fn connecting_in_vain_is_a_timeout_and_its_failures_are_counted<D: Tested>() {
    let server = postgres::start(postgres::Want::default()).await.unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = (silent.local_addr().unwrap(), silent);
    let dead = {
        let soon_gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
        soon_gone.local_addr().unwrap()
    };
    let named = |name: &str| PartitionConfig::named(name, Kind::Transactional, 2).min_idle(0);
    let config = config(server.url(), 4, 100 * MS)
        .partition(
            named("silent")
                .url(format!("postgres://shop@{}/shop", silent.0))
                .connect_timeout(500 * MS)
                .acquire_timeout(20 * MS),
        )
        .partition(named("dead").url(format!("postgres://shop@{dead}/shop")))
        .boot(BootConfig::new().when_unavailable(WhenUnavailable::Start));
    let (pool, snapshotter) = connect::<D>(config).await;
    let partition = |name| pool.partition(name).expect("it was configured");
    Recorded::take(&snapshotter);

    let slow = partition("silent").acquire().await.expect_err("silent");
    assert_eq!(end_of(&slow), end("timed_out", "connect"));
    let failed = partition("dead").acquire().await.expect_err("dead");
    // It may come back: it was tried until there was no time left.
    assert_eq!(end_of(&failed), end("timed_out", "connect"));

    let recorded = Recorded::take(&snapshotter);
    assert_eq!(recorded.ends("silent"), Ends::from([(end_of(&slow), 1)]));
    assert_eq!(recorded.counter("silent", "timeouts{}"), 1);
    assert_eq!(recorded.ends("dead"), Ends::from([(end_of(&failed), 1)]));
    assert_eq!(recorded.counter("dead", "timeouts{}"), 1);
    assert!(recorded.counter("dead", "create_failures{reason=other}") > 1);
    assert!(recorded.times("dead", "create_time").is_empty());
    pool.close(5_000 * MS).await;
}

async fn a_wait_that_outlasts_its_timeout_counts_as_rejected_and_as_timeout<D: Tested>() {
    let server = postgres::start(postgres::Want::default()).await.unwrap();
    let (pool, snapshotter) = connect::<D>(config(server.url(), 1, 100 * MS)).await;
    let partition = pool.transactional();
    let _held = partition.acquire().await.expect("a connection");
    let error = partition.acquire().await.expect_err("the slot is taken");
    let recorded = Recorded::take(&snapshotter);
    assert_eq!(end_of(&error), end("rejected", "wait_timeout"));
    let ends = Ends::from([(acquired(), 1), (end_of(&error), 1)]);
    assert_eq!(recorded.ends("transactional"), ends);
    assert_eq!(recorded.counter("transactional", "timeouts{}"), 1);
}

async fn without_a_recorder_of_its_own_a_pool_uses_the_installed_one<D: Tested>() {
    let server = postgres::start(postgres::Want::default()).await.unwrap();
    let recorder = DebuggingRecorder::new();
    let pool = {
        let _installed = ::metrics::set_default_local_recorder(&recorder);
        let metrics = PoolMetrics::new().label("service", "shop");
        PartitionedPool::<D>::builder(config(server.url(), 4, 100 * MS))
            .observer(metrics)
            .connect()
            .await
    };
    drop(
        pool.expect("the pool starts")
            .transactional()
            .acquire()
            .await,
    );
    let recorded = Recorded::take(&recorder.snapshotter());
    let id = "acquires{service=shop,outcome=acquired,reason=none}";
    assert_eq!(recorded.counter("transactional", id), 1);
}
