//! Opening a connection.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::driver::Driver;
use crate::error::Failure;
use crate::observe::Event;
use crate::status::Seconds;

use super::core::Core;
use super::store::{Place, Stage, Store};

/// How long the place of an opening stays taken that was given up: a backend that finds its client
/// gone while it authenticates ends at once, and what remains is the way there.
const ABANDONED_LINGER: Duration = Duration::from_secs(1);

/// An opening under way. It runs in a task of its own, so that a caller that leaves does not orphan
/// the connection; dropped early, it gives up its place and tells a seeker.
pub(super) struct Opening<D: Driver> {
    core: Arc<Core<D>>,
    place: Option<Place>,
}

impl<D: Driver> Opening<D> {
    pub(super) fn new(core: &Arc<Core<D>>, place: Place) -> Self {
        Self {
            core: Arc::clone(core),
            place: Some(place),
        }
    }

    pub(super) async fn run(mut self) {
        let limit = self.core.settings.connect_timeout;
        let started = Instant::now();
        let outcome = timeout(limit, self.core.driver.create()).await;
        let took = started.elapsed();
        match outcome {
            Ok(Ok(client)) => self.arrive(client, took),
            Ok(Err(error)) => {
                let failure = D::failure(error);
                self.give_up();
                self.fail(failure, took).await;
            }
            Err(_elapsed) => self.abandon(connect_timeout(limit), took).await,
        }
    }

    fn arrive(mut self, client: D::Type, took: Duration) {
        let place = self.place.take().expect("bug: an opening without a place");
        self.core.watch.tell(|| Event::Opened { took });
        let leash = D::leash(&client);
        self.core.bulkhead.with_stock(|s| s.opened(&place, leash));
        self.core.offer(self.core.link(client, place));
        self.core.open_due(0);
    }

    /// Tells of the timeout at once, but keeps the place until the server must have noticed, too.
    async fn abandon(mut self, failure: Failure, took: Duration) {
        if let Some(place) = &mut self.place {
            let to_ghost = |s: &mut Store<_>| s.shift(place, Stage::Ghost);
            self.core.bulkhead.with_stock(to_ghost);
        }
        let mut ghost = Self {
            core: Arc::clone(&self.core),
            place: self.place.take(),
        };
        let linger = async move {
            sleep(ABANDONED_LINGER).await;
            ghost.give_up();
            ghost.core.open_due(0);
        };
        tokio::join!(linger, self.fail(failure, took));
    }

    fn give_up(&mut self) {
        if let Some(place) = self.place.take() {
            self.core.give_up(place);
        }
    }

    /// Passes the failure on, and probes after a while if nobody else does.
    async fn fail(self, failure: Failure, took: Duration) {
        self.report(&failure, took);
        let Some(pause) = self.core.opening_failed(failure) else {
            self.core.open_due(0);
            return;
        };
        let prober = Prober(Arc::downgrade(&self.core));
        drop(self);
        sleep(pause).await;
        let core = prober.0.upgrade();
        drop(prober);
        if let Some(core) = core {
            core.open_due(0);
        }
    }

    fn report(&self, failure: &Failure, took: Duration) {
        let event = Event::OpenFailed { took, failure };
        self.core.watch.tell_about(&event);
    }
}

/// The one that sleeps between two tries. However its sleep ends, somebody may open after it.
struct Prober<D: Driver>(Weak<Core<D>>);

impl<D: Driver> Drop for Prober<D> {
    fn drop(&mut self) {
        if let Some(core) = self.0.upgrade() {
            core.bulkhead.with_stock(Store::probe);
        }
    }
}

fn connect_timeout(limit: Duration) -> Failure {
    let text = format!("no answer within {} (connect_timeout)", Seconds(limit));
    Failure::new(None, io::Error::new(io::ErrorKind::TimedOut, text))
}

/// Dropped early: the runtime stops, or the driver has panicked.
impl<D: Driver> Drop for Opening<D> {
    fn drop(&mut self) {
        if self.place.is_some() {
            self.give_up();
            let failure = Failure::new(None, "connecting was aborted");
            self.core.opening_failed(failure);
        }
    }
}
