//! How many connections a server has of us, and which of them run reports: asked of pg_stat_activity, over a connection
//! that does not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_postgres::{Client, Error, Row};

use super::ScenarioError;
use super::shop::{REPORT, connect};

/// Fifty times a second.
const EVERY: Duration = Duration::from_millis(20);
/// A session that is told to end has gone by then.
const GONE: Duration = Duration::from_secs(30);

/// A control connection is beside the budget.
const COUNT: &str = "SELECT count(*) FILTER (WHERE application_name NOT LIKE '%/control'),
        count(*) FILTER (WHERE reports),
        count(*) FILTER (WHERE reports AND application_name NOT LIKE '%/analytical'),
        extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8
    FROM (
        SELECT application_name, state = 'active' AND starts_with(query, $2) AS reports
        FROM pg_stat_activity WHERE starts_with(application_name, $1)
    ) AS session";
const LEFT: &str = "SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, $1)";
const END: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
    WHERE starts_with(application_name, $1)";

/// What the server had at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) at: Instant,
    pub(super) backends: u32,
    /// Those of them that ran a report,
    pub(super) reports: u32,
    /// and those that did so although they are not the analytical partition's.
    pub(super) strays: u32,
    /// How old the newest commit was that could be read there; of a standby. With 200 checkouts a second, that is how
    /// far it is behind.
    pub(super) behind: Option<Duration>,
}

/// Looks at the server until it is stopped.
pub(super) struct Sampler {
    latest: Arc<AtomicU32>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(Client, Vec<Seen>), Error>>,
    prefix: String,
}

impl Sampler {
    /// Counts the sessions whose `application_name` begins with `prefix`.
    pub(super) async fn start(url: &str, prefix: String) -> Result<Self, Error> {
        let client = connect(url).await?;
        let latest = Arc::new(AtomicU32::new(0));
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(look(client, prefix.clone(), Arc::clone(&latest), stopped));
        Ok(Self {
            latest,
            stop,
            task,
            prefix,
        })
    }

    /// The count of the last look.
    pub(super) fn latest(&self) -> u32 {
        self.latest.load(Ordering::Relaxed)
    }

    /// Stops looking; ends the sessions that are still there, such as those of queries that their callers
    /// have left, and waits until they are gone.
    pub(super) async fn stop(self) -> Result<Vec<Seen>, ScenarioError> {
        // It has ended by itself if the server said no; then the task tells.
        let _ = self.stop.send(());
        let looked = self.task.await.expect("bug: the sampler panicked");
        let (client, seen) = looked.map_err(ScenarioError::postgres("count the connections"))?;
        let left = end_all(&client, &self.prefix).await;
        match left.map_err(ScenarioError::postgres("end the sessions that are left"))? {
            0 => Ok(seen),
            left => Err(ScenarioError::Left(left)),
        }
    }
}

async fn look(
    client: Client,
    prefix: String,
    latest: Arc<AtomicU32>,
    mut stopped: oneshot::Receiver<()>,
) -> Result<(Client, Vec<Seen>), Error> {
    let statement = client.prepare(COUNT).await?;
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut seen = Vec::new();
    loop {
        tokio::select! {
            _ = &mut stopped => return Ok((client, seen)),
            _ = ticks.tick() => {}
        }
        let row = client.query_one(&statement, &[&prefix, &REPORT]).await?;
        let now = seen_in(&row);
        latest.store(now.backends, Ordering::Relaxed);
        seen.push(now);
    }
}

fn seen_in(row: &Row) -> Seen {
    let count = |column| {
        u32::try_from(row.get::<_, i64>(column))
            .expect("bug: Postgres has at most 262,143 backends")
    };
    // The clocks of two servers may differ: then it is not behind by less than nothing.
    let behind: Option<f64> = row.get(3);
    Seen {
        at: Instant::now(),
        backends: count(0),
        reports: count(1),
        strays: count(2),
        behind: behind.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))),
    }
}

/// Returns how many would not end.
async fn end_all(client: &Client, prefix: &str) -> Result<i64, Error> {
    let bound = Instant::now() + GONE;
    // Idle sessions of a pool that was just closed go by themselves, in a moment.
    sleep(EVERY).await;
    loop {
        client.execute(END, &[&prefix]).await?;
        let left: i64 = client.query_one(LEFT, &[&prefix]).await?.get(0);
        if left == 0 || Instant::now() > bound {
            return Ok(left);
        }
        sleep(EVERY).await;
    }
}
