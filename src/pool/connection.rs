//! The guard of a connection.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use crate::driver::{Driver, Readiness};
use crate::error::Failure;
use crate::observe::Event;

use super::core::{Core, LinkOf, Slot};
use super::detached::Detached;
use super::store::{Stage, Store};

/// A connection and the slot that it takes up; both are given back when it is dropped.
///
/// It derefs to the driver's client. Dropping it never blocks: if the backend is quiet, connection
/// and slot go to the next caller in the same step; if a query is still running or a transaction is
/// open (the caller left in the middle), the slot stays taken until the connection has been made
/// quiet, or closed and its backend is known gone, which a task does in the background. The next
/// caller never sees a busy or dirty connection.
///
/// A cancel request of your own, by the client's `cancel_token`, may arrive late and hit whoever has the
/// connection next: leave cancelling to [`run`](super::Partition::run), or to dropping the connection.
///
/// It may be dropped in a panic, outside of the runtime, and after the runtime has stopped.
///
/// # Examples
/// ```
/// # use partitioned_pool::{Partition, TokioPostgres};
/// async fn order(checkout: &Partition<TokioPostgres>) -> Result<(), Box<dyn std::error::Error>> {
///     let mut connection = checkout.acquire().await?;
///     let order = connection.transaction().await?;
///     order.execute("INSERT INTO orders DEFAULT VALUES", &[]).await?;
///     order.commit().await?;
///     drop(connection); // quiet: the next caller has it at once
///     Ok(())
/// }
/// ```
#[must_use = "dropping a connection gives it back"]
pub struct Connection<D: Driver> {
    core: Arc<Core<D>>,
    /// `None` only in `drop` and while a bad connection is being replaced.
    held: Option<(Slot<D>, LinkOf<D>)>,
    /// Whether the observer has heard that it was acquired.
    observed: bool,
}

impl<D: Driver> Connection<D> {
    #[inline]
    pub(super) fn new(core: Arc<Core<D>>, permit: Slot<D>, link: LinkOf<D>) -> Self {
        core.budget.tasks.acquired(permit.hold());
        Self {
            core,
            held: Some((permit, link)),
            observed: false,
        }
    }

    /// From now on it is in the hands of a caller: the observer will hear of its return.
    #[inline]
    pub(super) fn hand_out(&mut self) {
        self.observed = true;
    }

    /// The name of its partition.
    #[must_use]
    pub fn partition(&self) -> &str {
        &self.core.settings.name
    }

    /// After how long it was taken away, because its hold passed `max_hold`, the seat was lost or the pool was closed;
    /// `None` if it was not. Whatever is done with it then fails with the driver's "closed".
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{Connection, TokioPostgres};
    /// /// Whether work on it has failed because it took too long.
    /// fn was_too_long(connection: &Connection<TokioPostgres>) -> bool {
    ///     connection.taken_after().is_some()
    /// }
    /// ```
    #[must_use]
    pub fn taken_after(&self) -> Option<Duration> {
        let place = &self.link().place;
        let taken = self.core.bulkhead.with_stock(|s| s.taken(place));
        taken.map(|(age, _)| age)
    }

    /// Closes it rather than giving it back: for a session in a state that nobody else should meet, and that
    /// [`reset_session`](crate::config::PartitionConfig::reset_session) does not undo. Its slot comes back when its
    /// backend is known gone; a query that runs is cancelled.
    ///
    /// # Examples
    /// ```
    /// # use partitioned_pool::{Connection, TokioPostgres};
    /// async fn set_up(connection: Connection<TokioPostgres>) {
    ///     match connection.batch_execute("CREATE TEMP TABLE scratch (id int)").await {
    ///         Ok(()) => { /* use it */ }
    ///         Err(_) => connection.discard(),
    ///     }
    /// }
    /// ```
    pub fn discard(mut self) {
        let (permit, link) = self.take();
        let since = permit.since();
        self.core.discard(link, Some(permit));
        self.tell_released(since);
    }

    /// Takes it out of the pool for good: see [`Detached`]. It keeps its slot until it is dropped and its backend is
    /// gone, so that the budget stays true. The observer hears that it was released.
    ///
    /// # Examples
    /// A listener, which is not a hold to be warned of:
    /// ```
    /// # use partitioned_pool::{AcquireError, Detached, Partition, TokioPostgres};
    /// async fn listener(
    ///     reports: &Partition<TokioPostgres>,
    /// ) -> Result<Detached<TokioPostgres>, Box<dyn std::error::Error>> {
    ///     let listener = reports.acquire().await?.detach();
    ///     listener.batch_execute("LISTEN orders").await?;
    ///     Ok(listener)
    /// }
    /// ```
    pub fn detach(mut self) -> Detached<D> {
        let (permit, mut link) = self.take();
        let to_detached = |s: &mut Store<_>| s.shift(&mut link.place, Stage::Detached);
        self.core.bulkhead.with_stock(to_detached);
        let since = permit.since();
        if let Some(hold) = permit.hold() {
            self.core.bulkhead.detach(hold);
        }
        // Whoever closes the pool does not wait for it.
        self.core.budget.one_less();
        self.tell_released(since);
        Detached::new(Arc::clone(&self.core), permit, link)
    }

    /// What it holds, which is no longer this task's.
    fn take(&mut self) -> (Slot<D>, LinkOf<D>) {
        let (permit, link) = self.held.take().expect(EMPTY);
        self.core.budget.tasks.given_back(permit.hold());
        (permit, link)
    }

    /// Last: nothing is lost if the observer panics.
    #[inline]
    fn tell_released(&self, since: Duration) {
        if self.observed {
            let held = self.core.bulkhead.now().saturating_sub(since);
            self.core.watch.tell(|| Event::Released { held });
        }
    }

    /// Asks the server whether it still lives; `false` if it does not.
    pub(super) async fn validate(&mut self) -> bool {
        let core = Arc::clone(&self.core);
        let metrics = deadpool::managed::Metrics::default();
        let client = &mut self.link_mut().client;
        core.driver.recycle(client, &metrics).await.is_ok()
    }

    /// Puts the session limits of its partition in force on a connection that another partition had
    /// opened, and frees it of that one's session state; `false` if that failed. One round trip, and what the
    /// service's hook takes.
    ///
    /// Dropped half way, it is dressed on the return path.
    ///
    /// # Errors
    /// The hook has failed, though the connection is alive.
    pub(super) async fn dress(&mut self) -> Result<bool, Failure> {
        let core = Arc::clone(&self.core);
        let started = core.bulkhead.now();
        let link = self.link_mut();
        link.dress = None;
        if core.driver.reset(&mut link.client).await != Readiness::Quiet {
            return Ok(false);
        }
        let limit = core.settings.connect_timeout;
        if let Err(failure) = core.prepare(&mut link.client, limit).await {
            return match D::readiness(&link.client) {
                Readiness::Lost => Ok(false),
                _ => Err(failure),
            };
        }
        link.dress = Some(core.class);
        let took = core.bulkhead.now().saturating_sub(started);
        core.watch.tell(|| Event::Dressed { took });
        Ok(true)
    }

    /// Whether the session limits of its partition are in force.
    pub(super) fn is_dressed(&self) -> bool {
        self.link().dress == Some(self.core.class)
    }

    pub(super) fn is_fresh(&self) -> bool {
        let (permit, link) = self.held.as_ref().expect(EMPTY);
        self.core.is_fresh(link, permit.since())
    }

    /// Whether it must not be handed out, whatever the server says.
    pub(super) fn is_spent(&self) -> bool {
        let (permit, link) = self.held.as_ref().expect(EMPTY);
        link.has_expired(permit.since())
            || link.tenure != self.core.tenure()
            || D::readiness(&link.client) == Readiness::Lost
    }

    /// Closes a bad connection in the background and keeps its slot.
    pub(super) fn into_slot(mut self) -> Slot<D> {
        let (permit, link) = self.take();
        self.core.discard(link, None);
        permit
    }

    pub(crate) fn driver_parts(&mut self) -> (&D, &mut D::Type) {
        let (_, link) = self.held.as_mut().expect(EMPTY);
        (&self.core.driver, &mut link.client)
    }

    #[allow(
        dead_code,
        reason = "not every driver has something of its own to offer"
    )]
    pub(crate) fn session(&self) -> &D::Type {
        &self.link().client
    }

    fn link(&self) -> &LinkOf<D> {
        &self.held.as_ref().expect(EMPTY).1
    }

    fn link_mut(&mut self) -> &mut LinkOf<D> {
        &mut self.held.as_mut().expect(EMPTY).1
    }
}

const EMPTY: &str = "bug: a connection guard without a connection";

impl<D: Driver> Deref for Connection<D> {
    type Target = D::Client;

    #[inline]
    fn deref(&self) -> &D::Client {
        D::client(&self.link().client)
    }
}

impl<D: Driver> DerefMut for Connection<D> {
    #[inline]
    fn deref_mut(&mut self) -> &mut D::Client {
        D::client_mut(&mut self.link_mut().client)
    }
}

impl<D: Driver> Drop for Connection<D> {
    #[inline]
    fn drop(&mut self) {
        let Some((permit, link)) = self.held.take() else {
            return;
        };
        let since = permit.since();
        self.core.budget.tasks.given_back(permit.hold());
        self.core.take_back(permit, link);
        self.tell_released(since);
    }
}

impl<D: Driver> fmt::Debug for Connection<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("partition", &self.partition())
            .finish_non_exhaustive()
    }
}
