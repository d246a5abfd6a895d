//! One connection of this driver, from its opening to its end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::tokio_postgres::CancelToken;
use deadpool_postgres::ClientWrapper;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::driver::{End, Readiness};

use super::cancel;
use super::connect::{Failed, Route};
use super::watch::{Verdict, Watch};

/// How long a server may take from Terminate to closing its side.
const CLOSE_BOUND: Duration = Duration::from_secs(2);

/// How long a backend that has announced its end may take to be gone.
const LAST_WORD_LINGER: Duration = Duration::from_millis(100);

/// A connection of [`TokioPostgres`](super::TokioPostgres).
pub struct Session {
    /// `None` once it is being closed.
    client: Option<ClientWrapper>,
    watch: Arc<Watch>,
    task: JoinHandle<()>,
    route: Route,
}

const CLOSED: &str = "bug: a session was used while it is closed";

impl Session {
    pub(super) fn new(
        client: ClientWrapper,
        watch: Arc<Watch>,
        task: JoinHandle<()>,
        route: Route,
    ) -> Self {
        Self {
            client: Some(client),
            watch,
            task,
            route,
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

    /// Says good-bye and waits until the server has closed its side.
    pub(super) async fn close(mut self) -> End {
        let was_quiet = self.watch.verdict() == Verdict::Quiet;
        drop(self.client.take());
        let bye = async {
            if was_quiet {
                // How the task ended, the watch knows better.
                let _ = (&mut self.task).await;
                self.watch.has_ended()
            } else {
                self.cut().await
            }
        };
        if timeout(CLOSE_BOUND, bye).await.unwrap_or(false) {
            return End::Seen;
        }
        if self.watch.is_ending() {
            sleep(LAST_WORD_LINGER).await;
            return End::Seen;
        }
        self.task.abort();
        End::Unseen
    }

    /// A task that waits for an answer does not end by itself. This ends it, hangs up on the server,
    /// and waits until it has done the same; whether that was seen.
    async fn cut(&mut self) -> bool {
        let mut remains = self.watch.inherit();
        self.task.abort();
        let _ = (&mut self.task).await;
        match remains.try_recv() {
            Ok(remains) => remains.bury().await.is_ok(),
            Err(_) => self.watch.has_ended(),
        }
    }
}

/// A quiet connection says good-bye by itself when its client is dropped. One that waits for an
/// answer would wait on, so it is cut.
impl Drop for Session {
    fn drop(&mut self) {
        drop(self.client.take());
        if self.watch.verdict() != Verdict::Quiet {
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
