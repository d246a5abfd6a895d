//! The steady work: an open loop of short calls.

use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use std::time::Duration;

use crate::calls::Outcome;
use crate::plan::{CALL, DEADLINE, RATE};
use crate::side::{Driven, Side};

/// One steady call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) planned: Instant,
    /// From then, and not from when it got its turn, to its answer or to its caller's leaving.
    pub(crate) latency: Duration,
    pub(crate) outcome: Outcome,
}

/// Steady work that is under way.
pub(crate) struct Steady {
    stop: oneshot::Sender<()>,
    calling: JoinHandle<Vec<Call>>,
}

impl Steady {
    /// Nothing in it waits for an answer, so that a stall shows in the latencies, and never as fewer calls.
    pub(crate) fn start<D: Driven>(side: &Side<D>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let calling = tokio::spawn(call_by_the_clock(side.clone(), stopped));
        Self { stop, calling }
    }

    /// Calls no more, and returns all calls once the last is answered.
    pub(crate) async fn stop(self) -> Vec<Call> {
        // It ends only when it is told to.
        let _ = self.stop.send(());
        self.calling.await.expect("bug: the steady work panicked")
    }
}

async fn call_by_the_clock<D: Driven>(
    side: Side<D>,
    mut stopped: oneshot::Receiver<()>,
) -> Vec<Call> {
    let mut under_way = JoinSet::new();
    let mut done = Vec::new();
    let start = Instant::now();
    for number in 0_u32.. {
        let planned = start + Duration::from_secs(1) * number / RATE;
        // A call that is due is made, however late this loop is.
        if Instant::now() < planned {
            tokio::select! {
                biased;
                _ = &mut stopped => break,
                () = sleep_until(planned) => {}
            }
        }
        under_way.spawn(call(side.clone(), planned));
        while let Some(ended) = under_way.try_join_next() {
            done.push(ended.expect("bug: a steady call panicked"));
        }
    }
    done.extend(under_way.join_all().await);
    done
}

async fn call<D: Driven>(side: Side<D>, planned: Instant) -> Call {
    let left = DEADLINE.saturating_sub(planned.elapsed());
    let outcome = side.sleep(CALL, left).await;
    let latency = planned.elapsed();
    let outcome = match outcome {
        Outcome::Ok if latency > DEADLINE => Outcome::Late,
        other => other,
    };
    Call {
        planned,
        latency,
        outcome,
    }
}
