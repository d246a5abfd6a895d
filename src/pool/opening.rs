//! Opening a connection.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::driver::Driver;
use crate::error::Failure;
use crate::observe::Event;
use crate::status::Seconds;

use super::core::Core;
use super::leaving::GHOST_LINGER;
use super::store::{Place, Stage, Store};

/// An opening under way. It runs in a task of its own, so that a caller that leaves does not orphan
/// the connection; dropped early, it gives up its place and tells a seeker.
pub(super) struct Opening<D: Driver> {
    core: Arc<Core<D>>,
    place: Option<Place>,
    /// Once it is open, until it is prepared.
    client: Option<D::Type>,
    /// That of the seat under which it was begun.
    tenure: u64,
}

impl<D: Driver> Opening<D> {
    pub(super) fn new(core: &Arc<Core<D>>, place: Place) -> Self {
        Self {
            core: Arc::clone(core),
            place: Some(place),
            client: None,
            tenure: core.tenure(),
        }
    }

    pub(super) async fn run(mut self) {
        let core = Arc::clone(&self.core);
        let limit = core.settings.connect_timeout;
        let started = Instant::now();
        let mut create = pin!(core.driver.create());
        let outcome = match timeout(limit, &mut create).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => {
                self.is_late(connect_timeout(limit), started.elapsed());
                // It goes on: only so can we know when its backend, if there is one, has gone.
                match timeout(GHOST_LINGER, create).await {
                    Ok(Ok(client)) => Ok(client),
                    _ => return self.end(),
                }
            }
        };
        let client = match outcome {
            Ok(client) => self.client.insert(client),
            Err(error) => return self.fail(D::failure(error), started.elapsed()),
        };
        let left = limit.saturating_sub(started.elapsed());
        // Nobody waits any longer for one that comes late.
        let left = if left.is_zero() { limit } else { left };
        match core.prepare(client, left).await {
            Ok(()) => self.arrive(started.elapsed()),
            Err(failure) => self.end_unprepared(failure, started.elapsed()),
        }
    }

    fn arrive(mut self, took: Duration) {
        self.core.watch.tell(|| Event::Opened { took });
        self.core.pulse.beats(self.core.bulkhead.now());
        let place = self.place.take().expect("bug: an opening without a place");
        let client = self.client.take().expect("bug: nothing was opened");
        let leash = D::leash(&client);
        self.core.bulkhead.with_stock(|s| s.opened(&place, leash));
        let link = self.core.link(client, place, self.tenure);
        // Of a seat that was lost meanwhile, nobody may use it, and perhaps somebody else has the seat.
        if self.tenure == self.core.tenure() && self.core.is_seated() {
            self.core.offer(link);
        } else {
            self.core.discard(link, None);
        }
        self.core.open_due(0);
    }

    fn fail(mut self, failure: Failure, took: Duration) {
        self.give_up();
        self.pass_on(failure, took);
    }

    /// The service's hook has failed, or was too late: the connection counts until its end is known.
    fn end_unprepared(mut self, failure: Failure, took: Duration) {
        self.close_or_give_up();
        self.pass_on(failure, took);
    }

    /// Nobody waits for it any longer, but it counts, as a ghost, until its end is known.
    fn is_late(&mut self, failure: Failure, took: Duration) {
        if let Some(place) = &mut self.place {
            let to_ghost = |s: &mut Store<_>| s.shift(place, Stage::Ghost);
            self.core.bulkhead.with_stock(to_ghost);
        }
        self.pass_on(failure, took);
    }

    fn end(mut self) {
        self.give_up();
        self.core.open_due(0);
    }

    fn give_up(&mut self) {
        if let Some(place) = self.place.take() {
            self.core.give_up(place);
        }
    }

    fn close_or_give_up(&mut self) {
        match (self.place.take(), self.client.take()) {
            (Some(place), Some(client)) => self
                .core
                .discard(self.core.link(client, place, self.tenure), None),
            (place, _) => place.into_iter().for_each(|place| self.core.give_up(place)),
        }
    }

    /// Passes the failure on, has somebody probe after a while if nobody does, and tells the observer.
    fn pass_on(&self, failure: Failure, took: Duration) {
        if let Some(pause) = self.core.opening_failed(failure.clone()) {
            self.core.probe_after(pause);
        }
        // Perhaps somebody else may open now, or take over what is idle.
        self.core.open_due(0);
        let failure = &failure;
        let event = Event::OpenFailed { took, failure };
        self.core.watch.tell_about(&event);
    }
}

/// The one that sleeps between two tries. However its sleep ends, somebody may open after it.
pub(super) struct Prober<D: Driver>(Weak<Core<D>>);

impl<D: Driver> Prober<D> {
    pub(super) fn new(core: &Arc<Core<D>>) -> Self {
        Self(Arc::downgrade(core))
    }

    pub(super) async fn sleep(self, pause: Duration) {
        sleep(pause).await;
        let core = self.0.upgrade();
        drop(self);
        if let Some(core) = core {
            core.open_due(0);
        }
    }
}

impl<D: Driver> Drop for Prober<D> {
    fn drop(&mut self) {
        if let Some(core) = self.0.upgrade() {
            core.bulkhead.with_stock(|s| s.probe(core.class));
        }
    }
}

fn connect_timeout(limit: Duration) -> Failure {
    let text = format!("no answer within {} (connect_timeout)", Seconds(limit));
    Failure::new(None, io::Error::new(io::ErrorKind::TimedOut, text))
}

/// Dropped early: the runtime stops, or the driver or the service's hook has panicked.
impl<D: Driver> Drop for Opening<D> {
    fn drop(&mut self) {
        if self.place.is_some() {
            self.close_or_give_up();
            let failure = Failure::new(None, "connecting was aborted");
            self.core.opening_failed(failure);
        }
    }
}
