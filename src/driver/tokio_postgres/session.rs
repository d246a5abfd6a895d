//! One connection of this driver, from its opening to its end.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use ::tokio_postgres::{CancelToken, SimpleQueryMessage};
use deadpool_postgres::ClientWrapper;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;

use crate::driver::{End, Leash, Readiness};

use super::cancel;
use super::connect::{Failed, Route};
use super::messages::Hearing;
use super::watch::{Remains, Verdict, Watch};

/// While a connection is being closed, what its backend runs is cancelled this often.
const CANCEL_AGAIN: Duration = Duration::from_millis(250);

/// How long one of those cancels may take.
const CANCEL_BOUND: Duration = Duration::from_secs(1);

/// How long a backend that has announced its end may take to be gone.
const LAST_WORD_BOUND: Duration = Duration::from_millis(250);

/// A connection of [`TokioPostgres`](super::TokioPostgres).
///
/// # Examples
/// ```
/// use partitioned_pool::driver::Driver;
/// use partitioned_pool::driver_tokio_postgres::{Session, deadpool_postgres::ClientWrapper};
/// use partitioned_pool::TokioPostgres;
///
/// /// What a connection of the pool derefs to.
/// fn client(session: &Session) -> &ClientWrapper {
///     TokioPostgres::client(session)
/// }
/// ```
pub struct Session {
    /// `None` once it is being closed.
    client: Option<ClientWrapper>,
    watch: Arc<Watch>,
    task: JoinHandle<()>,
    /// The stream, once the task has ended.
    remains: oneshot::Receiver<Remains>,
    route: Route,
    hearing: Arc<Hearing>,
    backend_pid: Option<i32>,
    /// `server_version_num`.
    version: u32,
}

const CLOSED: &str = "bug: a session was used while it is closed";

impl Session {
    pub(super) fn new(
        client: ClientWrapper,
        watch: Arc<Watch>,
        task: JoinHandle<()>,
        route: Route,
        hearing: Arc<Hearing>,
        version: u32,
    ) -> Self {
        Self {
            client: Some(client),
            remains: watch.inherit(),
            watch,
            task,
            route,
            hearing,
            backend_pid: None,
            version,
        }
    }

    /// Takes note of what the server said when the session limits were set; `false` if it did not.
    pub(super) fn know_backend(&mut self, messages: &[SimpleQueryMessage]) -> bool {
        self.backend_pid = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
            _ => None,
        });
        self.backend_pid.is_some()
    }

    pub(super) fn hearing(&self) -> &Hearing {
        &self.hearing
    }

    pub(super) fn version(&self) -> u32 {
        self.version
    }

    pub(super) fn leash(&self) -> SessionLeash {
        SessionLeash {
            backend_pid: self.backend_pid,
            token: self.cancel_token(),
            route: self.route.clone(),
            watch: Arc::clone(&self.watch),
            task: self.task.abort_handle(),
        }
    }

    #[inline]
    pub(super) fn client(&self) -> &ClientWrapper {
        self.client.as_ref().expect(CLOSED)
    }

    #[inline]
    pub(super) fn client_mut(&mut self) -> &mut ClientWrapper {
        self.client.as_mut().expect(CLOSED)
    }

    pub(super) fn watch(&self) -> &Watch {
        &self.watch
    }

    #[inline]
    pub(super) fn readiness(&self) -> Readiness {
        if self.client().is_closed() {
            return Readiness::Lost;
        }
        match self.watch.verdict() {
            Verdict::Quiet => Readiness::Quiet,
            Verdict::Broken => Readiness::Lost,
            Verdict::Busy if self.watch.is_polled() => Readiness::Settling,
            Verdict::Busy | Verdict::InTransaction | Verdict::Unfenced => Readiness::Unsettled,
        }
    }

    pub(super) fn cancel_token(&self) -> CancelToken {
        self.client().cancel_token()
    }

    /// Cancels what the backend runs now; returns when no cancel is on its way any more.
    pub(super) async fn cancel(&self) -> Result<(), Failed> {
        cancel::cancel(&self.cancel_token(), &self.route).await
    }

    /// Says good-bye, and waits until the server has closed its side. A backend that still runs
    /// something, or whose answers nobody takes, would not hear it: then we hang up, whatever the
    /// task waits for, and cancel again and again.
    pub(super) async fn close(mut self) -> End {
        let token = self.cancel_token();
        drop(self.client.take());
        if timeout(CANCEL_AGAIN, &mut self.task).await.is_err() {
            self.watch.leave_remains();
            self.task.abort();
            let _ = (&mut self.task).await;
        }
        if self.watch.has_ended() {
            return End::Seen;
        }
        // Also a task that ended by itself, because the answers were out of order, has not seen it.
        let remains = self.remains.try_recv();
        match remains {
            // It had its last word: its end is a matter of moments, whether we see it or not.
            Ok(remains) if self.watch.is_ending() => {
                let _ = timeout(LAST_WORD_BOUND, remains.bury()).await;
                End::Seen
            }
            Ok(remains) => bury(remains, &token, &self.route).await,
            // Whoever took the connection away has the stream, and sees the end.
            Err(_) if self.watch.is_taken() => {
                self.watch.until(Watch::has_ended).await;
                End::Seen
            }
            Err(_) => End::Unseen,
        }
    }
}

/// Enough of a session to take it away from whoever has it.
pub(super) struct SessionLeash {
    backend_pid: Option<i32>,
    token: CancelToken,
    route: Route,
    watch: Arc<Watch>,
    task: AbortHandle,
}

impl Leash for SessionLeash {
    fn backend_pid(&self) -> Option<i32> {
        self.backend_pid
    }

    fn take_away(&self) -> Pin<Box<dyn Future<Output = End> + Send + '_>> {
        Box::pin(async move {
            if self.task.is_finished() {
                // The session itself has the stream, if anybody has.
                return End::Unseen;
            }
            let remains = self.watch.take();
            self.task.abort();
            let _ = timeout(CANCEL_BOUND, cancel::cancel(&self.token, &self.route)).await;
            if let Ok(Ok(remains)) = timeout(CANCEL_BOUND, remains).await
                && bury(remains, &self.token, &self.route).await == End::Seen
            {
                self.watch.is_buried();
            }
            if self.watch.has_ended() {
                End::Seen
            } else {
                End::Unseen
            }
        })
    }
}

/// Hangs up and reads to the end, cancelling what the backend runs until it has heard.
async fn bury(remains: Remains, token: &CancelToken, route: &Route) -> End {
    let mut burial = pin!(remains.bury());
    loop {
        match timeout(CANCEL_AGAIN, &mut burial).await {
            Ok(Ok(())) => return End::Seen,
            Ok(Err(_)) => return End::Unseen,
            Err(_elapsed) => {
                let _ = timeout(CANCEL_BOUND, cancel::cancel(token, route)).await;
            }
        }
    }
}

/// A quiet connection says good-bye by itself when its client is dropped. One that waits for an
/// answer would wait on, so it is cut; and so is one whose closing was given up.
impl Drop for Session {
    fn drop(&mut self) {
        let closing = self.client.take().is_none();
        if closing || self.watch.verdict() != Verdict::Quiet {
            self.task.abort();
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("verdict", &self.watch.verdict())
            .field("route", &self.route)
            .finish_non_exhaustive()
    }
}
