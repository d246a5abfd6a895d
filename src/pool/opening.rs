//! Opening a connection.

use std::io;
use std::sync::Arc;
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

    pub(super) async fn run(self) {
        let core = Arc::clone(&self.core);
        let limit = core.settings.connect_timeout;
        let started = Instant::now();
        let outcome = timeout(limit, core.driver.create()).await;
        let took = started.elapsed();
        match outcome {
            Ok(Ok(client)) => self.arrive(client, took),
            Ok(Err(error)) => self.fail(D::failure(error), took),
            Err(_) => self.abandon(limit, took).await,
        }
    }

    fn arrive(mut self, client: D::Type, took: Duration) {
        let place = self.take_place();
        self.core.watch.tell(|| Event::Opened { took });
        self.core.offer(self.core.link(client, place));
    }

    fn fail(mut self, failure: Failure, took: Duration) {
        self.report(&failure, took);
        let place = self.take_place();
        self.core.opening_failed(Some(place), failure);
        self.core.open_due(0);
    }

    /// Tells of the timeout at once, but keeps the place until the server must have noticed, too.
    async fn abandon(mut self, limit: Duration, took: Duration) {
        let failure = connect_timeout(limit);
        self.report(&failure, took);
        if let Some(place) = &mut self.place {
            let to_ghost = |s: &mut Store<_>| s.shift(place, Stage::Ghost);
            self.core.bulkhead.with_stock(to_ghost);
        }
        self.core.opening_failed(None, failure);
        sleep(ABANDONED_LINGER).await;
        let place = self.take_place();
        self.core.give_up(place);
        self.core.open_due(0);
    }

    fn report(&self, failure: &Failure, took: Duration) {
        let event = Event::OpenFailed { took, failure };
        self.core.watch.tell_about(&event);
    }

    fn take_place(&mut self) -> Place {
        self.place.take().expect("bug: an opening without a place")
    }
}

fn connect_timeout(limit: Duration) -> Failure {
    let text = format!("no answer within {} (connect_timeout)", Seconds(limit));
    Failure::new(None, io::Error::new(io::ErrorKind::TimedOut, text))
}

impl<D: Driver> Drop for Opening<D> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let failure = Failure::new(None, "connecting was aborted");
            self.core.opening_failed(Some(place), failure);
        }
    }
}
