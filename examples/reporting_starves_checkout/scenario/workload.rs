//! The callers: checkouts by the clock, reports all at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::calls::{Outcome, of_call};
use super::layout::{Driven, Layout};
use super::plan::{DEADLINE, Plan, RATE, REPORTS};
use super::variant::Reports;

/// One checkout.
#[derive(Clone, Debug)]
pub(crate) struct Checkout {
    /// When it was planned to arrive, after the start of `before`.
    pub(crate) planned: Duration,
    /// From then, and not from when it got its turn, to its answer or to its caller's leaving.
    pub(crate) latency: Duration,
    pub(crate) outcome: Outcome,
}

/// One report.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// From its call to its answer.
    pub(crate) latency: Duration,
    pub(crate) outcome: Outcome,
    /// What it has read of the database.
    pub(crate) rows: u64,
}

/// As many as are under way in steady use, twice.
const FIRST: u32 = 16;
/// Longer than a busy machine needs to open so many connections.
const PATIENCE: Duration = Duration::from_secs(10);

/// On a busy machine a report may have had to wait for its connection; the more so if the other reports are what it is
/// busy with.
const fn grace(kind: Reports) -> Duration {
    match kind {
        Reports::Sleep => Duration::from_secs(2),
        Reports::Scan => Duration::from_secs(30),
    }
}

/// Has connections opened and statements prepared, before the clock runs: a pool that starts under full load
/// on a busy machine has a trouble of its own, which is not the one that is measured here.
pub(super) async fn first_checkouts<D: Driven>(layout: &Arc<Layout<D>>) {
    let mut under_way = JoinSet::new();
    for number in 0..FIRST {
        let layout = Arc::clone(layout);
        under_way.spawn(async move { layout.checkout(number, Instant::now() + PATIENCE).await });
    }
    // Whether they succeed is told by the next, which count.
    under_way.join_all().await;
}

/// Sends every checkout at its planned time, warm-up included, and returns what became of those that count.
/// `each_second` gets those that were answered since it was called last.
///
/// Nothing here waits for an answer, so that a stall of the database, of the pool or of this loop shows in
/// the latencies, and never as fewer calls.
pub(super) async fn checkouts<D: Driven>(
    layout: &Arc<Layout<D>>,
    plan: &Plan,
    start: Instant,
    mut each_second: impl FnMut(Duration, &[Checkout]),
) -> Vec<Checkout> {
    let mut under_way = JoinSet::new();
    let mut done: Vec<Checkout> = Vec::new();
    let (mut told, mut next) = (0, Duration::from_secs(1));
    let first = start - plan.warm_up;
    let schedule = (0..).map(|number| (number, first + Duration::from_secs(number.into()) / RATE));
    for (number, planned) in schedule.take_while(|(_, planned)| *planned < start + plan.total()) {
        sleep_until(planned).await;
        let checkout = checkout(Arc::clone(layout), number, start, planned);
        under_way.spawn(checkout);
        done.extend(std::iter::from_fn(|| under_way.try_join_next()).filter_map(counting));
        if start + next <= planned {
            each_second(next, &done[told..]);
            (told, next) = (done.len(), next + Duration::from_secs(1));
        }
    }
    while let Some(ended) = under_way.join_next().await {
        done.extend(counting(ended));
    }
    each_second(plan.total(), &done[told..]);
    done.sort_by_key(|checkout| checkout.planned);
    done
}

/// `None` for one of the warm-up.
async fn checkout<D: Driven>(
    layout: Arc<Layout<D>>,
    number: u32,
    start: Instant,
    planned: Instant,
) -> Option<Checkout> {
    let outcome = layout.checkout(number, planned + DEADLINE).await;
    let latency = planned.elapsed();
    let outcome = match outcome {
        Outcome::Ok if latency > DEADLINE => Outcome::Late,
        other => other,
    };
    Some(Checkout {
        planned: planned.checked_duration_since(start)?,
        latency,
        outcome,
    })
}

fn counting<T>(ended: Result<Option<T>, JoinError>) -> Option<T> {
    ended.expect("bug: a call panicked")
}

/// Starts every report at the incident. One that has no answer soon after the run's end is given up.
pub(super) async fn reports<D: Driven>(
    layout: Arc<Layout<D>>,
    kind: Reports,
    plan: Plan,
    start: Instant,
) -> Vec<Report> {
    sleep_until(start + plan.before).await;
    let end = start + plan.total() + grace(kind);
    let mut under_way = JoinSet::new();
    for _ in 0..REPORTS {
        let layout = Arc::clone(&layout);
        let lasts = plan.incident;
        under_way.spawn(async move { report(&layout, kind, lasts, end).await });
    }
    under_way.join_all().await
}

async fn report<D: Driven>(
    layout: &Layout<D>,
    kind: Reports,
    lasts: Duration,
    end: Instant,
) -> Report {
    let called = Instant::now();
    let answer = timeout_at(end, layout.report(kind, lasts)).await;
    let given_up = |_| {
        Err(Outcome::Failed(
            "not done soon after the end of the run".into(),
        ))
    };
    let answer = answer.unwrap_or_else(given_up);
    Report {
        rows: answer.as_ref().copied().unwrap_or(0),
        outcome: of_call(answer.map(drop)),
        latency: called.elapsed(),
    }
}
