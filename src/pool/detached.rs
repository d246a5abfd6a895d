//! A connection that has left the pool.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::driver::Driver;

use super::core::{Core, LinkOf, Slot};

/// A connection that has left the pool for good, and is closed when it is dropped: made by
/// [`Connection::detach`](super::Connection::detach). It derefs to the driver's client.
///
/// For what keeps a connection for hours: a listener (`LISTEN`), a leader's advisory lock, a replication of one's own.
/// The pool neither warns of it nor takes it away (`hold_warning`, `max_hold`), does not count it as a hold that tells
/// how long callers keep a connection, and does not wait for it when it is closed. But the server counts it, so it **keeps
/// its slot until its backend is known gone**: it is one of the partition's `max_connections`, shown as
/// [`detached`](crate::PartitionStatus::detached). A partition with all of its slots detached refuses everyone.
///
/// Dropping it never blocks. Its query, if one runs, is cancelled on the server.
///
/// # Examples
/// ```
/// # use partitioned_pool::{Detached, Partition, TokioPostgres};
///
/// /// Leads for as long as this lives: the lock goes with its session.
/// async fn lead(
///     checkout: &Partition<TokioPostgres>,
/// ) -> Result<Option<Detached<TokioPostgres>>, Box<dyn std::error::Error>> {
///     let session = checkout.acquire().await?.detach();
///     let leads: bool = session.query_one("SELECT pg_try_advisory_lock(1)", &[]).await?.get(0);
///     Ok(if leads { Some(session) } else { None })
/// }
/// ```
#[must_use = "dropping a detached connection closes it"]
pub struct Detached<D: Driver> {
    core: Arc<Core<D>>,
    /// `None` only in `drop`.
    kept: Option<(Slot<D>, LinkOf<D>)>,
}

impl<D: Driver> Detached<D> {
    pub(super) fn new(core: Arc<Core<D>>, permit: Slot<D>, link: LinkOf<D>) -> Self {
        Self {
            core,
            kept: Some((permit, link)),
        }
    }

    /// The name of the partition whose slot it keeps.
    #[must_use]
    pub fn partition(&self) -> &str {
        &self.core.settings.name
    }

    #[allow(
        dead_code,
        reason = "not every driver has something of its own to offer"
    )]
    pub(crate) fn session(&self) -> &D::Type {
        &self.link().client
    }

    fn link(&self) -> &LinkOf<D> {
        &self.kept.as_ref().expect(EMPTY).1
    }
}

const EMPTY: &str = "bug: a detached connection without a connection";

impl<D: Driver> Deref for Detached<D> {
    type Target = D::Client;

    fn deref(&self) -> &D::Client {
        D::client(&self.link().client)
    }
}

impl<D: Driver> DerefMut for Detached<D> {
    fn deref_mut(&mut self) -> &mut D::Client {
        D::client_mut(&mut self.kept.as_mut().expect(EMPTY).1.client)
    }
}

impl<D: Driver> Drop for Detached<D> {
    fn drop(&mut self) {
        if let Some((permit, link)) = self.kept.take() {
            self.core.end_detached(permit, link);
        }
    }
}

impl<D: Driver> fmt::Debug for Detached<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Detached")
            .field("partition", &self.partition())
            .finish_non_exhaustive()
    }
}
