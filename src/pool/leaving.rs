//! The way of a connection back into the store, or to its end.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::admission::ClassId;
use crate::driver::{Driver, End, Readiness};

use super::core::{Core, LinkOf, Slot};
use super::store::{Link, Place, Stage};

/// How long a connection that is being closed is no ghost yet.
const CLOSE_BOUND: Duration = Duration::from_secs(2);

/// How long the place of a connection stays taken whose end was not seen: longer than the server
/// needs to notice by the keepalive that the session sets (10 s + 3 x 5 s).
pub(super) const GHOST_LINGER: Duration = Duration::from_secs(30);

/// A connection that its caller has left, with its slot if it came with one. Both are held until the
/// backend is quiet or known gone; dropped early (the runtime stops), the connection is cut.
pub(super) struct Leaving<D: Driver> {
    core: Arc<Core<D>>,
    permit: Option<Slot<D>>,
    client: Option<D::Type>,
    place: Option<Place>,
    dress: Option<ClassId>,
    expires: Option<Duration>,
    tenure: u64,
}

impl<D: Driver> Leaving<D> {
    #[expect(
        clippy::boxed_local,
        reason = "a connection is boxed wherever it changes hands"
    )]
    pub(super) fn new(
        core: &Arc<Core<D>>,
        permit: Option<Slot<D>>,
        link: LinkOf<D>,
        stage: Stage,
    ) -> Self {
        let Link {
            client,
            mut place,
            dress,
            expires,
            tenure,
            ..
        } = *link;
        core.bulkhead.with_stock(|s| {
            s.shift(&mut place, stage);
            if permit.is_some() {
                s.slot_returns(place.class());
            }
        });
        Self {
            core: Arc::clone(core),
            permit,
            client: Some(client),
            place: Some(place),
            dress,
            expires,
            tenure,
        }
    }

    /// Back into the store once the backend is quiet and, if asked for, free of session state; to its end
    /// if it cannot be made so.
    pub(super) async fn settle(mut self) {
        let core = Arc::clone(&self.core);
        let readiness = self.make_clean(&core).await;
        let expired = self.expires.is_some_and(|at| core.bulkhead.now() >= at);
        match readiness {
            Readiness::Quiet if !expired && self.tenure == core.tenure() => self.come_back(),
            _ => self.close().await,
        }
    }

    /// Quiet, dressed, and free of session state if that is asked for.
    async fn make_clean(&mut self, core: &Core<D>) -> Readiness {
        let Some(client) = &mut self.client else {
            return Readiness::Lost;
        };
        let readiness = core.driver.settle(client).await;
        let as_it_was = self.dress.is_some() && !core.settings.reset_session;
        if readiness != Readiness::Quiet || as_it_was {
            return readiness;
        }
        self.dress = Some(core.class);
        let readiness = core.driver.reset(client).await;
        if readiness != Readiness::Quiet {
            return readiness;
        }
        match core.prepare(client, core.settings.connect_timeout).await {
            Ok(()) => readiness,
            Err(failure) => {
                let partition = &core.settings.name;
                tracing::warn!(%partition, %failure, "on_connect has failed on a connection that came back");
                Readiness::Lost
            }
        }
    }

    fn come_back(mut self) {
        let (permit, client, place) = (self.permit.take(), self.client.take(), self.place.take());
        let (Some(permit), Some(client), Some(place)) = (permit, client, place) else {
            unreachable!("bug: a connection came back in parts");
        };
        let class = place.class();
        let link = Box::new(Link {
            client,
            place,
            dress: self.dress,
            expires: self.expires,
            tenure: self.tenure,
            idle_since: Duration::ZERO,
        });
        if let Some(link) = permit.give_back(link) {
            self.core.bulkhead.with_stock(|s| s.slot_returned(class));
            self.core.discard(link, None);
        }
    }

    /// Closes the connection; its place and slot stay taken until its end was seen, or so much time
    /// has passed that the server must have noticed.
    pub(super) async fn close(mut self) {
        self.shift(Stage::Closing);
        let core = Arc::clone(&self.core);
        let Some(mut client) = self.client.take() else {
            return;
        };
        core.driver.detach(&mut client);
        let mut seen = pin!(seen(core.driver.close(client)));
        if timeout(CLOSE_BOUND, &mut seen).await.is_err() {
            self.shift(Stage::Ghost);
            // Who waits for its place waits for another one now.
            core.open_due(0);
            let _ = timeout(GHOST_LINGER, seen).await;
        }
    }

    fn shift(&mut self, to: Stage) {
        if let Some(place) = &mut self.place {
            self.core.bulkhead.with_stock(|s| s.shift(place, to));
        }
    }
}

/// Completes when an end was seen; never, if it cannot be.
async fn seen(end: impl Future<Output = End>) {
    if end.await == End::Unseen {
        pending::<()>().await;
    }
}

/// Completes when an end was seen, or so much time has passed that the server must have noticed.
pub(super) async fn see_the_end(end: impl Future<Output = End>) {
    let _ = timeout(GHOST_LINGER, seen(end)).await;
}

impl<D: Driver> Drop for Leaving<D> {
    fn drop(&mut self) {
        if let Some(mut client) = self.client.take() {
            self.core.driver.detach(&mut client);
        }
        let Some(place) = self.place.take() else {
            return;
        };
        let class = place.class();
        self.core.give_up(place);
        if let Some(permit) = self.permit.take() {
            self.core.bulkhead.with_stock(|s| s.slot_returned(class));
            drop(permit);
        }
        self.core.open_due(0);
    }
}
