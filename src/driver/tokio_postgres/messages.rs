//! What a server says without being asked: notices, and notifications of channels that a session listens to.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use ::tokio_postgres::{AsyncMessage, Connection as DriverConnection, Error};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::broadcast::{self, error::RecvError};

use crate::pool::{Connection, Detached};

use super::TokioPostgres;

/// So many messages are kept for whoever does not take them yet; then the oldest are lost.
pub const MESSAGES_KEPT: usize = 256;

/// Where the task of a connection leaves what it hears.
#[derive(Debug)]
pub(super) struct Hearing(Mutex<State>);

#[derive(Debug)]
enum State {
    /// Nobody has asked yet.
    Unheard,
    Heard(broadcast::Sender<AsyncMessage>),
    /// The connection has ended.
    Ended,
}

impl Hearing {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::Unheard)))
    }

    fn hear(&self, message: AsyncMessage) {
        if let State::Heard(listeners) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // Nobody listens any more: then it is lost, as it would be without us.
            let _ = listeners.send(message);
        }
    }

    fn listen(&self) -> broadcast::Receiver<AsyncMessage> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*state {
            State::Heard(listeners) => listeners.subscribe(),
            State::Ended => broadcast::channel(1).1,
            State::Unheard => {
                let (listeners, receiver) = broadcast::channel(MESSAGES_KEPT);
                *state = State::Heard(listeners);
                receiver
            }
        }
    }

    fn end(&self) {
        let ended = std::mem::replace(
            &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner),
            State::Ended,
        );
        drop(ended);
    }
}

/// A connection's task that passes on what the server says without being asked.
pub(super) struct Attentive<S, T> {
    connection: DriverConnection<S, T>,
    hearing: Arc<Hearing>,
}

impl<S, T> Attentive<S, T> {
    pub(super) fn new(connection: DriverConnection<S, T>, hearing: Arc<Hearing>) -> Self {
        Self {
            connection,
            hearing,
        }
    }
}

impl<S, T> Future for Attentive<S, T>
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        while let Some(message) = ready!(self.connection.poll_message(cx)?) {
            if let AsyncMessage::Notice(notice) = &message {
                // Not its text: what a function raises may be a secret.
                let (severity, code) = (notice.severity(), notice.code().code());
                tracing::debug!(severity, code, "the server gives notice");
            }
            self.hearing.hear(message);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S, T> Drop for Attentive<S, T> {
    fn drop(&mut self) {
        self.hearing.end();
    }
}

/// What a server says to one session without being asked, from the call of
/// [`messages`](Connection::messages) on: notices, and notifications of the channels it listens to.
///
/// It borrows the connection, so that nothing that is said to its next owner is heard. [`MESSAGES_KEPT`] messages are
/// kept until they are taken; then the oldest are lost, and how many is told.
///
/// # Examples
/// ```
/// use partitioned_pool::driver_tokio_postgres::{Heard, Messages, tokio_postgres::AsyncMessage};
///
/// /// The payload of the next notification; `None` when the connection has ended.
/// async fn next(messages: &mut Messages<'_>) -> Option<String> {
///     loop {
///         if let Heard::Message(AsyncMessage::Notification(order)) = messages.recv().await? {
///             return Some(order.payload().to_owned());
///         }
///     }
/// }
/// ```
pub struct Messages<'c> {
    receiver: broadcast::Receiver<AsyncMessage>,
    connection: PhantomData<&'c ()>,
}

/// One step of what a server says. Exhaustive: a message is heard, or missed.
///
/// # Examples
/// ```
/// use partitioned_pool::driver_tokio_postgres::Heard;
///
/// assert!(matches!(Heard::Missed(3), Heard::Missed(lost) if lost > 0));
/// ```
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "mostly it is a message")]
pub enum Heard {
    /// A notice or a notification.
    Message(AsyncMessage),
    /// So many messages were lost here, because nobody took them in time. Whoever keeps a state by notifications has to
    /// read it anew.
    Missed(u64),
}

impl Messages<'_> {
    fn new(hearing: &Hearing) -> Self {
        Self {
            receiver: hearing.listen(),
            connection: PhantomData,
        }
    }

    /// The next message; `None` when the connection has ended.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<Heard> {
        match self.receiver.recv().await {
            Ok(message) => Some(Heard::Message(message)),
            Err(RecvError::Lagged(missed)) => Some(Heard::Missed(missed)),
            Err(RecvError::Closed) => None,
        }
    }
}

impl fmt::Debug for Messages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages")
            .field("kept", &self.receiver.len())
            .finish_non_exhaustive()
    }
}

impl Connection<TokioPostgres> {
    /// What the server says to this session without being asked, from now on: see [`Messages`].
    ///
    /// A channel that is listened to is state of the session: without `UNLISTEN`, or
    /// [`reset_session`](crate::config::PartitionConfig::reset_session), it stays when the connection is given back. For a
    /// listener that lives as long as the service, see [`Detached`].
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::driver_tokio_postgres::{Heard, tokio_postgres::AsyncMessage};
    /// # use partitioned_pool::{Connection, TokioPostgres};
    ///
    /// async fn with_notices(
    ///     connection: &Connection<TokioPostgres>,
    ///     sql: &str,
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     let mut messages = connection.messages();
    ///     let mut work = std::pin::pin!(connection.batch_execute(sql));
    ///     loop {
    ///         tokio::select! {
    ///             done = &mut work => return Ok(done?),
    ///             Some(Heard::Message(AsyncMessage::Notice(notice))) = messages.recv() => {
    ///                 println!("{}", notice.message());
    ///             }
    ///         }
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn messages(&self) -> Messages<'_> {
        Messages::new(self.session().hearing())
    }
}

impl Detached<TokioPostgres> {
    /// What the server says to this session without being asked, from now on: see [`Messages`].
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::driver_tokio_postgres::{Heard, tokio_postgres::AsyncMessage};
    /// # use partitioned_pool::{Partition, TokioPostgres};
    ///
    /// async fn listen(reports: &Partition<TokioPostgres>) -> Result<(), Box<dyn std::error::Error>> {
    ///     let listener = reports.acquire().await?.detach();
    ///     let mut messages = listener.messages();
    ///     listener.batch_execute("LISTEN orders").await?;
    ///     while let Some(heard) = messages.recv().await {
    ///         match heard {
    ///             Heard::Message(AsyncMessage::Notification(order)) => println!("{}", order.payload()),
    ///             Heard::Message(_) => {}
    ///             Heard::Missed(_) => println!("look at all orders"),
    ///         }
    ///     }
    ///     Ok(()) // the connection has ended: connect again
    /// }
    /// ```
    #[must_use]
    pub fn messages(&self) -> Messages<'_> {
        Messages::new(self.session().hearing())
    }
}
