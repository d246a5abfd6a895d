//! An hour on the server: the calls of a script, by the clock, in the partitions of one layout.

use std::error::Error;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use partitioned_pool::config::{
    BudgetConfig, FleetCheck, FleetConfig, PartitionConfig, PoolConfig,
};
use partitioned_pool::observe::{Event, Observer, PartitionObserver};
use partitioned_pool::{AcquireError, Connection, Partition, PartitionedPool, TokioPostgres};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::calls::{Outcome, failed, of_acquire};
use crate::figures::{Costs, Hour, Made, Played};
use crate::plan::{ACQUIRE, CAPACITY, COMPRESSED, Day, Flow, Layout};
use crate::postgres::Postgres;
use crate::script::{Call, Script};
use crate::support::tenant::Tenant;
use crate::watch::Watch;

type Failed = Box<dyn Error>;
type Held = Connection<TokioPostgres>;

/// Sleeps, and says under which limit.
const WORK: &str = "SELECT current_setting('statement_timeout') FROM pg_sleep($1)";
/// How long the pool may take to close.
const CLOSE: Duration = Duration::from_secs(5);
/// Between the opening of the pool and the first call.
const BREATH: Duration = Duration::from_millis(300);
/// How long the pool lets a caller wait for one of its own on the way back.
const MOMENT: Duration = Duration::from_millis(1);
/// Between two looks at how long a moment takes.
const PAUSE: Duration = Duration::from_millis(9);

/// Plays the hour of a script.
///
/// # Errors
/// The pool cannot be opened or closed.
pub(crate) async fn play(
    server: &Postgres,
    tenant: &Tenant,
    script: &Script,
    (layout, day): (Layout, Day),
) -> Result<Hour, Failed> {
    let watch = Watch::start(server.url(), &tenant.name);
    let notes = Notes::default();
    let pool = PartitionedPool::<TokioPostgres>::builder(config(tenant, layout))
        .observer(notes.clone())
        .connect()
        .await?;
    sleep(BREATH).await;
    let moments = Moments::start(&notes);
    let calls = Stage::new(&pool, script.clone(), day).play().await;
    drop(moments);
    let report = pool.close(CLOSE).await;
    if !report.is_drained() {
        return Err(format!("the pool does not close: {report}").into());
    }
    let (seen, looks_a_second) = watch.seen();
    tenant.until_gone().await;
    let played = Played {
        length: script.plan.length,
        calls,
        costs: notes.take(),
        seen,
        looks_a_second,
    };
    let (predicted, covers) = (script.predict(layout, day)?, script.covers(layout)?);
    Ok(Hour::new(script.seed, played, predicted, covers))
}

/// The limits of a minute in which an hour passes: what is minutes by default is seconds.
fn config(tenant: &Tenant, layout: Layout) -> PoolConfig {
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    let config = PoolConfig::new(&tenant.name, tenant.url(), fleet);
    let [checkout, reporting] = Flow::ALL.map(|flow| partition(layout, flow));
    let config = config.transactional(checkout).analytical(reporting);
    match layout {
        Layout::Fixed => config,
        Layout::Shared | Layout::Borrowing => config.budget(BudgetConfig::new("main", CAPACITY)),
    }
}

fn partition(layout: Layout, flow: Flow) -> PartitionConfig {
    let (reserved, max) = layout.slots(flow);
    let (partition, idle) = match flow {
        Flow::Checkout => (PartitionConfig::transactional(max), 10),
        Flow::Reporting => (PartitionConfig::analytical(max), 1),
    };
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes) / COMPRESSED;
    let partition = partition
        .max_waiters(flow.queue())
        .acquire_timeout(ACQUIRE)
        .idle_timeout(minutes(idle))
        .max_lifetime(minutes(30));
    match layout {
        Layout::Fixed => partition,
        Layout::Shared | Layout::Borrowing => partition.budget("main").reserved(reserved),
    }
}

/// What the pool and the runtime tell of.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Costs>>);

impl Notes {
    fn note(&self, pick: impl FnOnce(&mut Costs) -> &mut Vec<Duration>, took: Duration) {
        let mut costs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pick(&mut costs).push(took);
    }

    fn take(&self) -> Costs {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for Notes {
    fn partition(&self, _: &str) -> Box<dyn PartitionObserver> {
        Box::new(self.clone())
    }
}

impl PartitionObserver for Notes {
    fn on(&self, event: &Event<'_>) {
        match event {
            Event::Opened { took } => self.note(|costs| &mut costs.openings, *took),
            Event::Dressed { took } => self.note(|costs| &mut costs.dressings, *took),
            _ => {}
        }
    }
}

/// Looks at how long a moment takes, until it is dropped.
struct Moments(AbortHandle);

impl Moments {
    fn start(notes: &Notes) -> Self {
        let notes = notes.clone();
        let looking = async move {
            loop {
                let began = Instant::now();
                sleep(MOMENT).await;
                notes.note(|costs| &mut costs.moments, began.elapsed());
                sleep(PAUSE).await;
            }
        };
        Self(tokio::spawn(looking).abort_handle())
    }
}

impl Drop for Moments {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Where the calls are made.
struct Stage {
    script: Script,
    day: Day,
    start: Instant,
    partitions: [Partition<TokioPostgres>; 2],
    /// Whoever asks looks first, and nobody asks in between.
    asking: Mutex<()>,
}

impl Stage {
    fn new(pool: &PartitionedPool<TokioPostgres>, script: Script, day: Day) -> Arc<Self> {
        Arc::new(Self {
            script,
            day,
            start: Instant::now(),
            partitions: [pool.transactional().clone(), pool.analytical().clone()],
            asking: Mutex::new(()),
        })
    }

    /// Nothing in it waits for an answer: a call that is due is made.
    async fn play(self: Arc<Self>) -> Vec<Made> {
        let mut under_way = JoinSet::new();
        let mut made = Vec::with_capacity(self.script.calls.len());
        for call in self.script.calls.clone() {
            sleep_until(self.start + call.at).await;
            let stage = Arc::clone(&self);
            under_way.spawn(async move { stage.make(call).await });
            while let Some(ended) = under_way.try_join_next() {
                made.push(ended.expect("bug: a call panicked"));
            }
        }
        made.extend(under_way.join_all().await);
        made
    }

    /// One call, until its end, its deadline, or that of the hour.
    async fn make(&self, call: Call) -> Made {
        let mut made = Made {
            flow: call.flow,
            outcome: None,
            wait: None,
            held: None,
            below: false,
            queued: false,
            waited: false,
        };
        let over = self.start + self.script.plan.length;
        let deadline = call.flow.deadline().map(|d| self.start + call.at + d);
        let until = deadline.map_or(over, |deadline| deadline.min(over));
        let outcome = timeout_at(until, self.work(&call, deadline, &mut made)).await;
        if outcome.is_err()
            && let Some((_, returned)) = &mut made.held
        {
            *returned = self.start.elapsed();
        }
        made.outcome = outcome.ok().or((until < over).then_some(Outcome::Late));
        made
    }

    async fn work(&self, call: &Call, deadline: Option<Instant>, made: &mut Made) -> Outcome {
        let partition = &self.partitions[call.flow.index()];
        let asked = Instant::now();
        let answer = match deadline {
            Some(deadline) => {
                self.ask(partition, partition.acquire_by(deadline), made)
                    .await
            }
            None => self.ask(partition, partition.acquire(), made).await,
        };
        let connection = match answer {
            Ok(connection) => connection,
            Err(error) => return of_acquire(error),
        };
        made.wait = Some(asked.elapsed());
        let taken = self.start.elapsed();
        made.held = Some((taken, taken));
        let hold = self.script.hold(call, self.day, taken);
        let outcome = sleep_in(&connection, call.flow, hold).await;
        drop(connection);
        made.held = Some((taken, self.start.elapsed()));
        outcome
    }

    /// Asks for a connection, and writes down whether the partition was below its reservation in that moment.
    ///
    /// Slots that come back in between make it say less often than it is so, never more often.
    async fn ask(
        &self,
        partition: &Partition<TokioPostgres>,
        acquiring: impl Future<Output = Result<Held, AcquireError>>,
        made: &mut Made,
    ) -> Result<Held, AcquireError> {
        let mut acquiring = pin!(acquiring);
        let mut asked = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut asked, true) {
                return acquiring.as_mut().poll(cx);
            }
            let _alone = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
            let status = partition.status();
            let taken = status.in_use + status.returning + status.closing + status.ghosts;
            made.below = taken < status.reserved;
            let answer = acquiring.as_mut().poll(cx);
            made.waited = answer.is_pending();
            made.queued = answer.is_pending() && partition.status().waiting > status.waiting;
            answer
        })
        .await
    }
}

/// Work of so long, in a session that must have the limits of its partition.
async fn sleep_in(connection: &Held, flow: Flow, hold: Duration) -> Outcome {
    let work = async {
        let statement = connection.prepare_cached(WORK).await?;
        connection
            .query_one(&statement, &[&hold.as_secs_f64()])
            .await
    };
    let expected = flow.statement_timeout();
    match work.await.map(|row| row.get::<_, String>(0)) {
        Ok(limit) if limit == expected => Outcome::Ok,
        Ok(limit) => Outcome::Failed(format!(
            "a session of {} has a statement_timeout of {limit}, not of {expected}",
            flow.as_str()
        )),
        Err(error) => failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_stands_for_an_hour() {
        assert_eq!(
            Duration::from_secs(3600) / COMPRESSED,
            crate::plan::Plan::FULL.length
        );
    }

    #[test]
    fn slots_and_queues_are_the_same_on_the_server_as_in_the_simulator() {
        for layout in Layout::ALL {
            let settings = PoolConfig::new("s", "postgres://localhost/d", FleetConfig::new(1, 0));
            let [checkout, reporting] = Flow::ALL.map(|flow| partition(layout, flow));
            let settings = settings.transactional(checkout).analytical(reporting);
            let settings = match layout {
                Layout::Fixed => settings,
                _ => settings.budget(BudgetConfig::new("main", CAPACITY)),
            };
            let settings = settings.resolve().unwrap();
            for (partition, rules) in settings.partitions.iter().zip(layout.rules().classes) {
                assert_eq!(
                    (partition.max_connections.get(), partition.max_waiters),
                    (rules.max, rules.queue)
                );
            }
        }
    }
}
