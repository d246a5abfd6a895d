//! What an observer hears.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use partitioned_pool::PartitionedPool;
use partitioned_pool::config::PartitionConfig;
use partitioned_pool::error::{AcquireError, Phase};
use partitioned_pool::observe::{Event, Observer, PartitionObserver};
use tokio::time::{sleep, timeout};

use crate::memory::{self, Memory};

/// Keeps the names of the events of all partitions.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<&'static str>>>);

impl Heard {
    /// All but the regular looks, and forgets them.
    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.0.lock().expect("no panic"))
    }
}

impl Observer for Heard {
    fn partition(&self, _: &str) -> Box<dyn PartitionObserver> {
        Box::new(self.clone())
    }
}

impl PartitionObserver for Heard {
    fn on(&self, event: &Event<'_>) {
        let name = match event {
            Event::Acquired { .. } => "acquired",
            Event::NotAcquired { .. } => "not acquired",
            Event::Abandoned => "abandoned",
            Event::Released { .. } => "released",
            Event::Opened { .. } => "opened",
            _ => return,
        };
        self.0.lock().expect("no panic").push(name);
    }
}

async fn pool(url: &str, heard: &Heard) -> PartitionedPool<Memory> {
    let checked_each_time = PartitionConfig::transactional(1)
        .validate_after_idle(Duration::from_millis(1))
        .acquire_timeout(Duration::from_millis(50));
    let config = memory::config(url)
        .transactional(checked_each_time)
        .analytical(PartitionConfig::analytical(1));
    let pool = PartitionedPool::builder(config).observer(heard.clone());
    let pool = pool.connect().await.expect("the pool starts");
    sleep(Duration::from_millis(5)).await;
    heard.take();
    pool
}

#[tokio::test]
async fn what_was_acquired_is_released_once() {
    let heard = Heard::default();
    let pool = pool(memory::STEADY, &heard).await;
    drop(pool.transactional().acquire().await.expect("a connection"));
    assert_eq!(heard.take(), ["acquired", "released"]);
}

#[tokio::test]
async fn what_was_never_handed_out_is_not_released() {
    let heard = Heard::default();
    let pool = pool(memory::MUTE, &heard).await;
    let error = pool.transactional().acquire().await.expect_err("mute");
    assert!(matches!(
        error,
        AcquireError::TimedOut {
            phase: Phase::Validate,
            ..
        }
    ));
    assert_eq!(heard.take(), ["not acquired"]);
}

#[tokio::test]
async fn a_call_that_is_dropped_while_a_connection_is_checked_is_abandoned_only() {
    let heard = Heard::default();
    let pool = pool(memory::MUTE, &heard).await;
    let dropped = timeout(Duration::from_millis(5), pool.transactional().acquire()).await;
    assert!(dropped.is_err());
    assert_eq!(heard.take(), ["abandoned"]);
}
