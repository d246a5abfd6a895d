//! Acquiring: a slot, a connection, and a look at it, under one deadline.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use crate::admission::{Cause, Figures, Patience, Refusal};
use crate::bulkhead::{Closed, Request, Waiting};
use crate::driver::Driver;
use crate::error::{AcquireError, Failure, NoPassword, Phase, Reason, Rejection};
use crate::observe::{Event, Watch};
use crate::status::{CallSite, Holder};

use super::connection::Connection;
use super::core::{ConnectionOf, Core, LinkOf, Slot, in_use};
use super::deadline::Deadline;
use super::store::{Found, Seek, Seeker, Stage, Store, Trouble};

/// How long a caller waits for a connection of its own partition that is on the way back, before it takes
/// one over from another: as long as the return path waits before it cancels anything. Mostly it takes microseconds,
/// and to take over costs two round trips: there and back.
const PATIENCE: Duration = Duration::from_millis(1);

type RequestOf<D> = Request<Store<ConnectionOf<D>>>;
type Outcome<D> = Result<Connection<D>, AcquireError>;

/// How much time a call has, and how much of it went where.
#[derive(Clone, Copy)]
struct Timing {
    started: Instant,
    deadline: Instant,
    waited: Duration,
}

impl Timing {
    fn limit(&self) -> Duration {
        self.deadline.saturating_duration_since(self.started)
    }
}

impl<D: Driver> Core<D> {
    /// Acquires within the partition's `acquire_timeout`.
    #[inline]
    pub(super) fn acquire(
        self: &Arc<Self>,
        by: CallSite,
    ) -> impl Future<Output = Outcome<D>> + Send {
        self.acquire_within(by, Patience::wait(self.settings.acquire_timeout))
    }

    /// Acquires for a caller that must be done, work included, at `deadline`.
    pub(super) async fn acquire_by(
        self: &Arc<Self>,
        by: CallSite,
        deadline: Deadline,
    ) -> Outcome<D> {
        // Not when the future was made, but now that it runs.
        let left = deadline.left();
        if left.is_zero() {
            let call = Call::new(&self.watch);
            return call.end(Err(self.rejection(Reason::WaitTimeout, Duration::ZERO)));
        }
        let patience = Patience {
            wait: left.min(self.settings.acquire_timeout),
            work: Some(left),
        };
        self.acquire_within(by, patience).await
    }

    /// Acquires without waiting for a slot.
    pub(super) async fn try_acquire(self: &Arc<Self>, by: CallSite) -> Outcome<D> {
        let call = Call::new(&self.watch);
        let wait = self.settings.acquire_timeout;
        let outcome = self.complete_free(by, wait).await;
        if outcome.as_ref().is_err_and(has_no_free_slot) {
            self.bulkhead.turn_away(self.class);
        }
        call.end(outcome)
    }

    /// The same for ourselves: no observer hears of it.
    pub(super) async fn try_acquire_unobserved(
        self: &Arc<Self>,
        by: CallSite,
        limit: Duration,
    ) -> Outcome<D> {
        let (connection, _) = self.complete_free(by, limit).await?;
        Ok(connection)
    }

    async fn complete_free(
        self: &Arc<Self>,
        by: CallSite,
        limit: Duration,
    ) -> Result<(Connection<D>, Duration), AcquireError> {
        self.seated_or_refused()?;
        let request = match self.bulkhead.try_acquire_for(by, self.class) {
            Some((permit, link)) => Request::Granted(permit, link),
            None if self.bulkhead.is_closed() => Request::Closed,
            None => return Err(self.rejection(Reason::NoFreeSlot, Duration::ZERO)),
        };
        self.complete(request, limit).await
    }

    /// An idle connection for ourselves, if there is one. It may wear the dress of another partition.
    pub(super) fn try_idle(self: &Arc<Self>, by: CallSite) -> Option<Connection<D>> {
        if !self.is_seated() {
            return None;
        }
        let (permit, link) = self.bulkhead.try_acquire_for(by, self.class)?;
        Some(Connection::new(Arc::clone(self), permit, link?))
    }

    /// Acquires for ourselves: no observer hears of it.
    pub(super) async fn acquire_unobserved(self: &Arc<Self>, limit: Duration) -> Outcome<D> {
        self.seated_or_refused()?;
        let us = CallSite::here();
        let request = self
            .bulkhead
            .request_for(us, self.class, Patience::wait(limit));
        let (connection, _) = self.complete(request, limit).await?;
        Ok(connection)
    }

    #[inline]
    async fn acquire_within(self: &Arc<Self>, by: CallSite, patience: Patience) -> Outcome<D> {
        let call = Call::new(&self.watch);
        if let Err(refused) = self.seated_or_refused() {
            return call.end(Err(refused));
        }
        // What is had at once is never a part of the future: it would be moved in and out of it. What takes time is on the
        // heap: it is large, and would be moved with the future of those who need none of it.
        let request = match self.at_once(by, patience) {
            ControlFlow::Break(Ok(connection)) => {
                return Ok(call.acquired(connection, Duration::ZERO));
            }
            ControlFlow::Break(Err(refused)) => return call.end(Err(refused)),
            ControlFlow::Continue(request) => request,
        };
        let outcome = Box::pin(self.complete(request, patience.wait)).await;
        if let Err(error) = &outcome {
            self.warn_of_nesting(by, error);
        }
        call.end(outcome)
    }

    /// A slot and a connection that need nothing else, or a refusal; or what there is instead, which takes time.
    #[inline]
    fn at_once(
        self: &Arc<Self>,
        by: CallSite,
        patience: Patience,
    ) -> ControlFlow<Outcome<D>, RequestOf<D>> {
        match self.bulkhead.request_for(by, self.class, patience) {
            Request::Granted(permit, Some(link)) if self.is_fresh(&link, permit.since()) => {
                ControlFlow::Break(Ok(Connection::new(Arc::clone(self), permit, link)))
            }
            Request::Refused(refusal, figures) => {
                ControlFlow::Break(Err(self.refused(refusal, &figures)))
            }
            request => ControlFlow::Continue(request),
        }
    }

    /// Everything that takes time, or ends in an error. Whoever waits when the seat is lost is told at once, and nobody is
    /// handed anything after that.
    async fn complete(
        self: &Arc<Self>,
        request: RequestOf<D>,
        limit: Duration,
    ) -> Result<(Connection<D>, Duration), AcquireError> {
        let Some(seat) = &self.seat else {
            return self.complete_unseated(request, limit).await;
        };
        let started = Instant::now();
        let work = Box::pin(self.complete_unseated(request, limit));
        let done = seat.gate().unless_lost(work).await;
        match done {
            Some(Ok(_)) if !self.is_seated() => Err(self.has_no_seat(started.elapsed())),
            Some(done) => done,
            None => Err(self.has_no_seat(started.elapsed())),
        }
    }

    #[inline]
    fn seated_or_refused(&self) -> Result<(), AcquireError> {
        if self.is_seated() {
            return Ok(());
        }
        Err(self.has_no_seat(Duration::ZERO))
    }

    fn has_no_seat(&self, waited: Duration) -> AcquireError {
        let reason = match self.bulkhead.is_closed() {
            true => Reason::Closed,
            false => Reason::NoSeat,
        };
        self.rejection(reason, waited)
    }

    async fn complete_unseated(
        self: &Arc<Self>,
        request: RequestOf<D>,
        limit: Duration,
    ) -> Result<(Connection<D>, Duration), AcquireError> {
        let started = Instant::now();
        let mut timing = Timing {
            started,
            deadline: started + limit,
            waited: Duration::ZERO,
        };
        let (mut permit, mut link) = self.slot(request, &mut timing).await?;
        loop {
            let found = match link.take() {
                Some(link) => link,
                None => self.seek(&permit, &timing).await?,
            };
            let connection = Connection::new(Arc::clone(self), permit, found);
            match self.examine(connection, &timing).await? {
                Ok(connection) => return Ok((connection, timing.waited)),
                Err(slot) => permit = slot,
            }
        }
    }

    async fn slot(
        self: &Arc<Self>,
        request: RequestOf<D>,
        timing: &mut Timing,
    ) -> Result<(Slot<D>, Option<LinkOf<D>>), AcquireError> {
        let waiting = match request {
            Request::Granted(permit, link) => return Ok((permit, link)),
            Request::Refused(refusal, figures) => return Err(self.refused(refusal, &figures)),
            Request::Closed => return Err(self.rejection(Reason::Closed, Duration::ZERO)),
            Request::Waiting(waiting) => waiting,
        };
        let waiting = Queued {
            core: self,
            waiting: Some(waiting),
        };
        let outcome = timeout_at(timing.deadline, waiting).await;
        timing.waited = timing.started.elapsed();
        match outcome {
            Ok(Ok(granted)) => Ok(granted),
            Ok(Err(_closed)) => Err(self.rejection(Reason::Closed, timing.waited)),
            Err(_elapsed) => Err(self.rejection(Reason::WaitTimeout, timing.waited)),
        }
    }

    /// A connection for a slot that came without one: the first to come free or to be opened.
    async fn seek(
        self: &Arc<Self>,
        permit: &Slot<D>,
        timing: &Timing,
    ) -> Result<LinkOf<D>, AcquireError> {
        let hold = permit.hold().expect("bug: a permit without a slot");
        let (key, patient) = match self.bulkhead.with_stock(|s| s.seek(hold)) {
            Seek::Idle(link) => return Ok(link),
            Seek::Closed => return Err(self.rejection(Reason::Closed, timing.waited)),
            Seek::Seeking { key, patient } => (key, patient),
        };
        let mut seeking = Seeking {
            core: self,
            key: Some(key),
        };
        let found = async {
            if patient && let Ok(found) = timeout(PATIENCE, &mut seeking).await {
                return found;
            }
            self.bulkhead
                .with_stock(|s| s.lose_patience(self.class, key));
            self.open_due(0);
            seeking.await
        };
        match timeout_at(timing.deadline, found).await {
            Ok(Ok(link)) => {
                if link.dress != Some(self.class) {
                    // What was taken over may leave room for others.
                    self.open_due(0);
                }
                Ok(link)
            }
            Ok(Err(Trouble::Closed)) => Err(self.rejection(Reason::Closed, timing.waited)),
            Ok(Err(Trouble::Failed(failure))) => Err(self.failed(failure)),
            Err(_elapsed) => Err(self.not_connected(timing)),
        }
    }

    /// Looks at a connection before it is handed out, and dresses one that was taken over. A bad one is closed in the background, and its
    /// slot comes back, to be tried with another.
    async fn examine(
        &self,
        mut connection: Connection<D>,
        timing: &Timing,
    ) -> Result<Result<Connection<D>, Slot<D>>, AcquireError> {
        if connection.is_fresh() {
            return Ok(Ok(connection));
        }
        let (phase, good) = if connection.is_spent() {
            (Phase::Validate, Ok(false))
        } else if connection.is_dressed() {
            let lives = connection.validate();
            (Phase::Validate, timeout_at(timing.deadline, lives).await)
        } else {
            let dressed = timeout_at(timing.deadline, connection.dress()).await;
            let good = match dressed {
                Ok(Err(failure)) => {
                    connection.discard();
                    return Err(self.failed(failure));
                }
                Ok(Ok(good)) => Ok(good),
                Err(elapsed) => Err(elapsed),
            };
            (Phase::Connect, good)
        };
        match good {
            Ok(true) => Ok(Ok(connection)),
            Ok(false) if self.bulkhead.is_closed() => {
                Err(self.rejection(Reason::Closed, timing.waited))
            }
            // Its slot may be somebody else's by now.
            Ok(false) if connection.taken_after().is_some() => Err(self.timed_out(phase, timing)),
            Ok(false) => Ok(Err(connection.into_slot())),
            Err(_elapsed) => Err(self.timed_out(phase, timing)),
        }
    }

    /// No connection was opened in time: it waits for its password, or for what the service does to it, or the server.
    fn not_connected(&self, timing: &Timing) -> AcquireError {
        match self.driver.waits_for_password_of() {
            Some(provider) => self.late_password(provider, timing),
            None => self.timed_out(self.prepares.phase(), timing),
        }
    }

    fn late_password(&self, provider: &str, timing: &Timing) -> AcquireError {
        let asked = timing.started.elapsed().saturating_sub(timing.waited);
        let late = Failure::new(None, NoPassword::late(provider, asked));
        let trouble = self.bulkhead.with_stock(|s| s.trouble(self.class));
        let trouble = trouble.filter(|failure| failure.password_provider().is_some());
        AcquireError::TimedOut {
            partition: self.settings.name.clone(),
            phase: Phase::Password,
            limit: timing.limit(),
            waited: timing.waited,
            failure: trouble.or(Some(late)),
        }
    }

    /// A failure that was reported while a connection was opened or dressed.
    fn failed(&self, failure: Failure) -> AcquireError {
        AcquireError::Failed {
            partition: self.settings.name.clone(),
            phase: failure.phase().unwrap_or(Phase::Connect),
            failure,
        }
    }

    fn timed_out(&self, phase: Phase, timing: &Timing) -> AcquireError {
        let failure = self.bulkhead.with_stock(|s| s.trouble(self.class));
        let of_its_own = failure.as_ref().and_then(Failure::phase);
        let phase = match phase {
            Phase::Connect => of_its_own.unwrap_or(phase),
            phase => phase,
        };
        AcquireError::TimedOut {
            partition: self.settings.name.clone(),
            phase,
            limit: timing.limit(),
            waited: timing.waited,
            failure,
        }
    }

    fn refused(&self, refusal: Refusal, figures: &Figures) -> AcquireError {
        let reason = match refusal.cause {
            Cause::QueueFull => Reason::QueueFull,
            Cause::DeadlineTooShort {
                expected_wait,
                expected_hold,
                left,
            } => Reason::DeadlineTooShort {
                expected_wait,
                expected_hold,
                left,
            },
        };
        self.rejected(reason, Duration::ZERO, figures, refusal.retry_after)
    }

    fn rejection(&self, reason: Reason, waited: Duration) -> AcquireError {
        let figures = self.bulkhead.figures(self.class);
        self.rejected(reason, waited, &figures, figures.retry_after)
    }

    fn rejected(
        &self,
        reason: Reason,
        waited: Duration,
        figures: &Figures,
        retry_after: Option<Duration>,
    ) -> AcquireError {
        let counts = self.bulkhead.with_stock(|s| s.counts(self.class));
        let oldest = figures.oldest_holds.first();
        let oldest = oldest.map_or(Duration::ZERO, |h| h.age);
        let fallback = self.settings.acquire_timeout.max(oldest);
        AcquireError::Rejected(Box::new(Rejection {
            partition: self.settings.name.clone(),
            reason,
            waited,
            max_connections: self.settings.max_connections.get(),
            shared_budget: self.budget.status(),
            in_use: in_use(figures, &counts),
            returning: counts.slots_returning,
            detached: figures.detached,
            own_hold: self.own_hold(),
            idle: counts.of(Stage::Idle),
            waiting: figures.waiting,
            max_waiters: self.settings.max_waiters,
            oldest_holds: figures.oldest_holds,
            retry_after: match (reason, &self.seat) {
                (Reason::Closed, _) => None,
                (Reason::NoSeat, Some(seat)) => Some(seat.gate().retry_after()),
                _ => Some(retry_after.unwrap_or(fallback)),
            },
        }))
    }
}

impl<D: Driver> Core<D> {
    /// What the present task itself holds of the same budget, as far as that is known.
    fn own_hold(&self) -> Option<Holder> {
        let own = self.budget.tasks.own()?;
        let holders = self.bulkhead.holders(own.class()).into_iter();
        let mut holders = holders.filter(|(hold, _)| *hold == own);
        holders.next().map(|(_, holder)| holder)
    }

    /// Tells the log of a task that has waited in vain while it held a connection itself. Not before: what another
    /// branch of the same task holds may come back in time.
    fn warn_of_nesting(&self, by: CallSite, error: &AcquireError) {
        let late = error
            .rejection()
            .filter(|r| r.reason == Reason::WaitTimeout);
        if let Some(holder) = late.and_then(|rejection| rejection.own_hold) {
            let partition = &self.settings.name;
            tracing::warn!(%partition, waits = %by, holds = %holder, "a task waits for a connection while it holds one: \
                 it may wait for itself");
        }
    }
}

fn has_no_free_slot(error: &AcquireError) -> bool {
    error
        .rejection()
        .is_some_and(|rejection| rejection.reason == Reason::NoFreeSlot)
}

/// A caller in the queue. Dropping it passes on what it was given, also where the store takes it back no
/// more.
struct Queued<'a, D: Driver> {
    core: &'a Arc<Core<D>>,
    waiting: Option<Waiting<Store<ConnectionOf<D>>>>,
}

impl<D: Driver> Future for Queued<'_, D> {
    type Output = Result<(Slot<D>, Option<LinkOf<D>>), Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let waiting = self.waiting.as_mut().expect("bug: polled after its end");
        let granted = Pin::new(waiting).poll(cx);
        if granted.is_ready() {
            self.waiting = None;
        }
        granted
    }
}

impl<D: Driver> Drop for Queued<'_, D> {
    fn drop(&mut self) {
        let refused = self.waiting.take().and_then(Waiting::leave);
        if let Some(link) = refused {
            self.core.discard(link, None);
        }
    }
}

/// A caller that has a slot and waits for a connection. Dropping it passes on what it was given.
struct Seeking<'a, D: Driver> {
    core: &'a Arc<Core<D>>,
    key: Option<usize>,
}

impl<D: Driver> Future for Seeking<'_, D> {
    type Output = Found<ConnectionOf<D>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let key = self.key.expect("bug: polled after its end");
        let mut replaced = None;
        let look = |s: &mut Store<_>| s.poll_seeker(key, cx, &mut replaced);
        let found = self.core.bulkhead.with_stock(look);
        if found.is_ready() {
            self.key = None;
        }
        found
    }
}

impl<D: Driver> Drop for Seeking<'_, D> {
    fn drop(&mut self) {
        let Some(key) = self.key.take() else {
            return;
        };
        // A failure that nobody hears of any more concerns nobody else: they have their own openings.
        let seeker = self.core.bulkhead.with_stock(|s| s.stop_seeking(key));
        if let Seeker::Answered(Ok(link)) = seeker {
            self.core.offer(link);
            self.core.open_due(0);
        }
    }
}

/// One call, of which the observer hears exactly one end, also when it is dropped before that.
struct Call<'a> {
    watch: Option<&'a Watch>,
    started: Option<Instant>,
}

impl<'a> Call<'a> {
    #[inline]
    fn new(watch: &'a Watch) -> Self {
        Self {
            watch: watch.is_on().then_some(watch),
            started: watch.is_on().then(Instant::now),
        }
    }

    fn end<D: Driver>(
        mut self,
        outcome: Result<(Connection<D>, Duration), AcquireError>,
    ) -> Outcome<D> {
        match outcome {
            Ok((connection, wait)) => Ok(self.acquired(connection, wait)),
            Err(error) => {
                let waited = self.took();
                if let Some(watch) = self.watch.take() {
                    let error = &error;
                    watch.tell_about(&Event::NotAcquired { error, waited });
                }
                Err(error)
            }
        }
    }

    #[inline]
    fn acquired<D: Driver>(
        mut self,
        mut connection: Connection<D>,
        wait: Duration,
    ) -> Connection<D> {
        if let Some(watch) = self.watch.take() {
            connection.hand_out();
            let took = self.took();
            watch.tell_about(&Event::Acquired { wait, took });
        }
        connection
    }

    fn took(&self) -> Duration {
        self.started.map_or(Duration::ZERO, |at| at.elapsed())
    }
}

impl Drop for Call<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(watch) = self.watch {
            watch.tell_about(&Event::Abandoned);
        }
    }
}
