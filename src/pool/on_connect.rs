//! What a service does to each connection before anyone gets it.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use crate::config::PartitionSettings;
use crate::driver::{Driver, Readiness};
use crate::error::{Failure, Phase};
use crate::status::Seconds;

use super::core::{ConnectionOf, Core};

type Doing<'a> =
    Pin<Box<dyn Future<Output = Result<(), Box<dyn StdError + Send + Sync>>> + Send + 'a>>;

type Hook<D> =
    dyn for<'a> Fn(&'a mut <D as Driver>::Client, &'a PartitionSettings) -> Doing<'a> + Send + Sync;

/// The hook of a pool, shared by its partitions.
pub(crate) struct OnConnect<D: Driver>(Arc<Hook<D>>);

impl<D: Driver> OnConnect<D> {
    pub(crate) fn new(
        hook: impl for<'a> Fn(&'a mut D::Client, &'a PartitionSettings) -> Doing<'a>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self(Arc::new(hook))
    }
}

impl<D: Driver> Clone for OnConnect<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: Driver> fmt::Debug for OnConnect<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnConnect")
    }
}

/// The hook as a partition has it.
pub(super) struct Prepares<D: Driver> {
    hook: Option<OnConnect<D>>,
    /// How many connections it is at work on.
    running: AtomicU32,
}

impl<D: Driver> Prepares<D> {
    pub(super) fn new(hook: Option<OnConnect<D>>) -> Self {
        Self {
            hook,
            running: AtomicU32::new(0),
        }
    }

    /// The phase of whoever waits for a connection that is being opened or dressed.
    pub(super) fn phase(&self) -> Phase {
        match self.running.load(Ordering::Relaxed) {
            0 => Phase::Connect,
            _ => Phase::OnConnect,
        }
    }
}

/// Counts one of those at work.
struct Running<'a>(&'a AtomicU32);

impl<'a> Running<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<D: Driver> Core<D> {
    /// Has the hook do its work on a connection whose session limits are in force, within `limit`; afterwards it is
    /// quiet.
    pub(super) async fn prepare(
        &self,
        client: &mut ConnectionOf<D>,
        limit: Duration,
    ) -> Result<(), Failure> {
        let Some(OnConnect(hook)) = &self.prepares.hook else {
            return Ok(());
        };
        let _running = Running::new(&self.prepares.running);
        let work = async {
            let done = hook(D::client_mut(client), &self.settings).await;
            done.map_err(D::failure_of)?;
            match self.driver.settle(client).await {
                Readiness::Quiet => Ok(()),
                _ => Err(Failure::lost("it left its connection unusable")),
            }
        };
        let done = timeout(limit, work).await;
        let done = done.unwrap_or_else(|_elapsed| Err(late(self.settings.connect_timeout)));
        done.map_err(|failure| failure.in_phase(Phase::OnConnect))
    }
}

fn late(limit: Duration) -> Failure {
    let text = format!("not done within {} (connect_timeout)", Seconds(limit));
    Failure::new(None, io::Error::new(io::ErrorKind::TimedOut, text))
}
