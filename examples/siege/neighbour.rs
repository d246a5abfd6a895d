//! The neighbour's callers, besieged or behaving well.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use partitioned_pool::Connection;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::calls::{Outcome, Tally, failed, of_acquire, of_call};
use crate::leavings_of_callers::{INSERT, Work, Worker as _};
use crate::plan::Siege;
use crate::side::{Driven, Side};

/// How long a well-behaved call of the stormed neighbour lasts; a caller of the storm leaves sooner than twice that.
const WORK: Duration = Duration::from_millis(10);
/// What a caller of the storm leaves behind would last so long.
const LEFT_BEHIND: f64 = 30.0;

/// How callers behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manners {
    Good,
    Bad,
}

/// What callers of the neighbour need.
pub(crate) struct Neighbour<D: Driven> {
    pub(crate) side: Side<D>,
    pub(crate) siege: Siege,
    /// The connections that were never given back.
    pub(crate) leaked: Arc<Mutex<Vec<Connection<D>>>>,
}

impl<D: Driven> Clone for Neighbour<D> {
    fn clone(&self) -> Self {
        Self {
            side: self.side.clone(),
            siege: self.siege,
            leaked: Arc::clone(&self.leaked),
        }
    }
}

impl<D: Driven> Neighbour<D> {
    pub(crate) fn new(side: Side<D>, siege: Siege) -> Self {
        let leaked = Arc::default();
        Self {
            side,
            siege,
            leaked,
        }
    }

    /// Gives the leaked connections back.
    pub(crate) fn give_back(&self) {
        let mut leaked = self.leaked.lock().unwrap_or_else(PoisonError::into_inner);
        leaked.clear();
    }

    async fn call(self, manners: Manners) -> Outcome {
        let ms = Duration::from_millis;
        match self.siege {
            Siege::Saturated => self.side.sleep(ms(100), ms(2_000)).await,
            Siege::Slow => self.side.sleep(ms(2_000), ms(10_000)).await,
            Siege::Leaking => self.leak().await,
            Siege::CutOff => self.side.sleep(ms(10), ms(300)).await,
            Siege::Killed => self.side.sleep(ms(20), ms(1_000)).await,
            Siege::Restarted => self.side.sleep(ms(10), ms(500)).await,
            Siege::Stormed => self.storm(manners).await,
            Siege::Panicking => self.panic(manners).await,
            Siege::Untidy => self.begin(manners).await,
        }
    }

    async fn acquire(&self) -> Result<Connection<D>, Outcome> {
        let Side::Partition(partition) = &self.side else {
            unreachable!("bug: plain pools are only saturated and stormed");
        };
        partition.acquire().await.map_err(of_acquire)
    }

    async fn leak(self) -> Outcome {
        let leaked = self.acquire().await.map(|connection| {
            let mut leaked = self.leaked.lock().unwrap_or_else(PoisonError::into_inner);
            leaked.push(connection);
        });
        of_call(leaked)
    }

    async fn storm(self, manners: Manners) -> Outcome {
        let work = Work::at_random();
        match manners {
            Manners::Good => {
                let patience = Duration::from_secs(1);
                self.side.work(work, WORK.as_secs_f64(), patience).await
            }
            Manners::Bad => {
                let patience = WORK.mul_f64(2.0 * fastrand::f64());
                self.side.work(work, LEFT_BEHIND, patience).await
            }
        }
    }

    async fn panic(self, manners: Manners) -> Outcome {
        let work = async {
            let mut connection = self.acquire().await?;
            connection.nap(WORK.as_secs_f64()).await.map_err(failed)?;
            if manners == Manners::Bad {
                // As a panic, and without its lines on the terminal.
                resume_unwind(Box::new("on purpose"));
            }
            Ok(())
        };
        of_call(work.await)
    }

    async fn begin(self, manners: Manners) -> Outcome {
        let work = async {
            let mut connection = self.acquire().await?;
            let begin = format!("BEGIN; {INSERT}");
            connection.tell(&begin).await.map_err(failed)?;
            match manners {
                Manners::Good => connection.tell("COMMIT").await.map_err(failed),
                Manners::Bad => Ok(()),
            }
        };
        of_call(work.await)
    }
}

/// Callers that are under way.
pub(crate) struct Callers {
    tally: Arc<Mutex<Tally>>,
    calling: JoinHandle<()>,
}

impl Callers {
    /// Calls by the clock.
    pub(crate) fn start<D: Driven>(neighbour: &Neighbour<D>, manners: Manners) -> Self {
        let tally = Arc::default();
        let calling = call_by_the_clock(neighbour.clone(), manners, Arc::clone(&tally));
        Self {
            tally,
            calling: tokio::spawn(calling),
        }
    }

    /// All callers leave, wherever they are, and are not counted then.
    pub(crate) async fn leave(self) -> Tally {
        self.calling.abort();
        // Cancelled: that is what was asked for.
        let _ = self.calling.await;
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *tally)
    }
}

async fn call_by_the_clock<D: Driven>(
    neighbour: Neighbour<D>,
    manners: Manners,
    tally: Arc<Mutex<Tally>>,
) {
    let mut under_way = JoinSet::new();
    let start = Instant::now();
    for number in 0_u32.. {
        sleep_until(start + Duration::from_secs(1) * number / neighbour.siege.rate()).await;
        under_way.spawn(neighbour.clone().call(manners));
        while let Some(ended) = under_way.try_join_next() {
            let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            tally.add(&ended.unwrap_or_else(panicked));
        }
    }
}

fn panicked(_: JoinError) -> Outcome {
    Outcome::Failed("the caller panicked".into())
}
