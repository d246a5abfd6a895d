//! What a connection's backend is doing, known without asking it.
//!
//! tokio-postgres tells neither how many requests are unanswered nor whether a transaction is open.
//! Both are on the wire. [`Tap`] is a stream that counts what passes; [`Watched`] is the connection's
//! task, and publishes a verdict at the end of each of its polls.
//!
//! The backend is quiet if the last verdict says so and nothing has happened since:
//!
//! 1. every request (Query, Sync, FunctionCall, startup) has its ReadyForQuery, the last of which said
//!    "idle", and all that was written has left our buffers;
//! 2. the last poll read the socket dry and handed on all that it read: a row stream that outlived
//!    its guard, and holds answers back, makes the connection unsettled, not quiet;
//! 3. nobody has handed the task a request since (`WOKEN`), and it is not being polled (`POLLING`).
//!    Both marks and the verdict are in ONE atomic, set by one store when a poll starts: with two, a
//!    request could slip between them.
//! 4. No COPY IN has begun or ended since the last fence. tokio-postgres sends Sync twice for a COPY IN, and
//!    Postgres swallows the first unless the COPY failed before, so that answers may be off by one.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::{Notify, oneshot};

use super::wire::{Frame, Frames};

/// Somebody handed the task a request, or the socket woke it.
const WOKEN: u8 = 1;
/// The task is being polled.
const POLLING: u8 = 2;
/// The verdict of the last poll, shifted out of the way of the marks.
const VERDICT: u32 = 2;

/// What the wire says of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Verdict {
    /// Something is unanswered, or may be.
    Busy = 0,
    /// Every request is answered, and no transaction is open.
    Quiet = 1,
    /// Every request is answered, and a transaction is open or has failed.
    InTransaction = 2,
    /// A COPY IN has ended: a fence must prove the order of the answers.
    Unfenced = 3,
    /// The counts do not add up, and never will again.
    Broken = 4,
}

/// The shared knowledge of one connection. Only its task writes the counts.
#[derive(Debug)]
pub(super) struct Watch {
    state: AtomicU8,
    sent: AtomicU64,
    answered: AtomicU64,
    born: Instant,
    /// Nanoseconds from then until the oldest unanswered request was sent, or the one before it answered.
    owed_since: AtomicU64,
    /// The status byte of the last ReadyForQuery.
    status: AtomicU8,
    /// The process id in the key for cancel requests.
    key_pid: OnceLock<i32>,
    copied: AtomicBool,
    broken: AtomicBool,
    /// In this poll: the socket was read until it had nothing left, and all writing has left us.
    read_dry: AtomicBool,
    flushed: AtomicBool,
    /// The server has closed its side.
    ended: AtomicBool,
    /// The server has said that it is about to.
    ending: AtomicBool,
    /// The stream belongs to somebody who took the connection away from its owner.
    taken: AtomicBool,
    listeners: AtomicBool,
    changed: Notify,
    task: Mutex<Option<Waker>>,
    /// Who is given the stream when the task ends,
    heir: Mutex<Option<oneshot::Sender<Remains>>>,
    /// by itself or for a closing, and not with its runtime.
    leaves_remains: AtomicBool,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            state: AtomicU8::default(),
            sent: AtomicU64::default(),
            answered: AtomicU64::default(),
            born: Instant::now(),
            owed_since: AtomicU64::default(),
            status: AtomicU8::default(),
            key_pid: OnceLock::default(),
            copied: AtomicBool::default(),
            broken: AtomicBool::default(),
            read_dry: AtomicBool::default(),
            flushed: AtomicBool::default(),
            ended: AtomicBool::default(),
            ending: AtomicBool::default(),
            taken: AtomicBool::default(),
            listeners: AtomicBool::default(),
            changed: Notify::default(),
            task: Mutex::default(),
            heir: Mutex::default(),
            leaves_remains: AtomicBool::default(),
        }
    }
}

/// What a connection runs over.
pub(super) trait Wire: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Wire for S {}

/// The stream of a connection whose task has ended.
pub(super) struct Remains(Box<dyn Wire>);

impl fmt::Debug for Remains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Remains").finish_non_exhaustive()
    }
}

impl Remains {
    /// Says that we are done, and completes when the server has closed its side, too.
    ///
    /// # Errors
    /// The stream failed, and the end of the server's side was not seen.
    pub(super) async fn bury(mut self) -> io::Result<()> {
        self.0.shutdown().await?;
        let mut scrap = vec![0; 16 << 10];
        loop {
            match self.0.read(&mut scrap).await {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if is_end(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether an error says that the other side has closed, rather than that nothing is heard of it.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error.kind(), ConnectionReset | BrokenPipe)
}

impl Watch {
    /// What is known now.
    #[inline]
    pub(super) fn verdict(&self) -> Verdict {
        match self.state.load(Ordering::Acquire) {
            QUIET => Verdict::Quiet,
            IN_TRANSACTION => Verdict::InTransaction,
            UNFENCED => Verdict::Unfenced,
            state if state >> VERDICT == Verdict::Broken as u8 => Verdict::Broken,
            _ => Verdict::Busy,
        }
    }

    /// Whether the task is being polled, or about to be.
    pub(super) fn is_polled(&self) -> bool {
        self.state.load(Ordering::Acquire) & (POLLING | WOKEN) != 0
    }

    /// The process id in the key for cancel requests: that of the backend, unless somebody in between made it up.
    pub(super) fn key_pid(&self) -> Option<i32> {
        self.key_pid.get().copied()
    }

    /// Whether the server has closed its side: then the backend is gone.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether the server has said that it ends the session.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// As [`inherit`](Self::inherit), for good: whoever closes the session waits for us.
    pub(super) fn take(&self) -> oneshot::Receiver<Remains> {
        self.taken.store(true, Ordering::SeqCst);
        self.leave_remains();
        self.inherit()
    }

    /// Whether the stream was taken.
    pub(super) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// The server's end was seen on the stream that was taken.
    pub(super) fn is_buried(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// The stream, once the task has ended: by itself, or after [`leave_remains`](Self::leave_remains).
    pub(super) fn inherit(&self) -> oneshot::Receiver<Remains> {
        let (heir, remains) = oneshot::channel();
        let mut slot = self.heir.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(heir);
        remains
    }

    /// The stream is wanted even if the task is aborted.
    pub(super) fn leave_remains(&self) {
        self.leaves_remains.store(true, Ordering::Release);
    }

    /// Whether every request that was sent is answered.
    pub(super) fn owes_nothing(&self) -> bool {
        self.answered.load(Ordering::Relaxed) >= self.sent.load(Ordering::Relaxed)
    }

    /// Requests that were sent and are not answered.
    fn owes(&self) -> u64 {
        let (sent, answered) = (&self.sent, &self.answered);
        sent.load(Ordering::Relaxed)
            .saturating_sub(answered.load(Ordering::Relaxed))
    }

    /// For how long the server has owed the next answer; zero if it owes none.
    pub(super) fn owed_for(&self) -> Duration {
        if self.owes_nothing() {
            return Duration::ZERO;
        }
        let since = Duration::from_nanos(self.owed_since.load(Ordering::Relaxed));
        self.born.elapsed().saturating_sub(since)
    }

    /// Whether a COPY IN is under way, or has ended without a fence since.
    pub(super) fn has_copied_in(&self) -> bool {
        self.copied.load(Ordering::Acquire)
    }

    /// The server owes the next answer from now on.
    fn owed_from_now(&self) {
        let now = u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.owed_since.store(now, Ordering::Relaxed);
    }

    /// Requests that were answered so far.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Acquire)
    }

    /// A fence is about to prove the order of the answers; without its own answer, the connection
    /// must not be used again.
    pub(super) fn fence(&self) {
        self.copied.store(false, Ordering::Release);
    }

    /// Completes when `done` holds, looking again after each poll of the task.
    pub(super) async fn until(&self, done: impl Fn(&Self) -> bool) {
        loop {
            let mut changed = pin!(self.changed.notified());
            // Before the mark: a poll that ends in between would take the mark away and tell nobody.
            changed.as_mut().enable();
            self.listeners.store(true, Ordering::SeqCst);
            // Whoever ends a poll either sees the mark or has published before we look.
            fence(Ordering::SeqCst);
            if done(self) {
                return;
            }
            changed.await;
        }
    }

    fn judge(&self) -> Verdict {
        let sent = self.sent.load(Ordering::Relaxed);
        let answered = self.answered.load(Ordering::Relaxed);
        let passed_on =
            self.read_dry.load(Ordering::Relaxed) && self.flushed.load(Ordering::Relaxed);
        if self.broken.load(Ordering::Relaxed) || answered > sent {
            self.broken.store(true, Ordering::Relaxed);
            Verdict::Broken
        } else if answered < sent || !passed_on {
            Verdict::Busy
        } else if self.status.load(Ordering::Relaxed) != b'I' {
            Verdict::InTransaction
        } else if self.copied.load(Ordering::Acquire) {
            Verdict::Unfenced
        } else {
            Verdict::Quiet
        }
    }

    fn poll_starts(&self) {
        self.state.store(POLLING, Ordering::SeqCst);
        self.read_dry.store(false, Ordering::Relaxed);
        self.flushed.store(false, Ordering::Relaxed);
    }

    fn poll_ends(&self) {
        let verdict = (self.judge() as u8) << VERDICT;
        self.state.fetch_xor(POLLING | verdict, Ordering::SeqCst);
        if self.listeners.swap(false, Ordering::SeqCst) {
            self.changed.notify_waiters();
        }
    }
}

const QUIET: u8 = (Verdict::Quiet as u8) << VERDICT;
const IN_TRANSACTION: u8 = (Verdict::InTransaction as u8) << VERDICT;
const UNFENCED: u8 = (Verdict::Unfenced as u8) << VERDICT;

impl Wake for Watch {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.state.fetch_or(WOKEN, Ordering::SeqCst);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        let task = task.clone();
        task.into_iter().for_each(Waker::wake);
    }
}

/// A stream that counts the messages that pass.
#[derive(Debug)]
pub(super) struct Tap<S: Wire> {
    /// `None` only in `drop`.
    stream: Option<S>,
    watch: Arc<Watch>,
    from_client: Frames,
    from_server: Frames,
    /// The last message of the client was CopyDone or CopyFail.
    copy_ended: bool,
}

const NO_STREAM: &str = "bug: only drop takes the stream out";

impl<S: Wire> Tap<S> {
    pub(super) fn new(stream: S, watch: Arc<Watch>) -> Self {
        Self {
            stream: Some(stream),
            watch,
            from_client: Frames::of_client(),
            from_server: Frames::of_server(),
            copy_ended: false,
        }
    }

    fn stream(&mut self) -> Pin<&mut S> {
        Pin::new(self.stream.as_mut().expect(NO_STREAM))
    }

    pub(super) fn stream_ref(&self) -> &S {
        self.stream.as_ref().expect(NO_STREAM)
    }

    /// Passes a result on; an error that tells of the server's end is noted.
    fn noted<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.as_ref().is_err_and(is_end) {
            self.watch.ended.store(true, Ordering::Release);
        }
        result
    }

    fn sent(&mut self, bytes: &[u8]) {
        let (watch, copy_ended) = (&self.watch, &mut self.copy_ended);
        self.from_client.feed(bytes, |frame| {
            match frame.tag {
                b'S' if *copy_ended => {}
                0 | b'Q' | b'S' | b'F' => {
                    if watch.owes_nothing() {
                        watch.owed_from_now();
                    }
                    add_one(&watch.sent);
                }
                b'c' | b'f' => watch.copied.store(true, Ordering::Relaxed),
                _ => {}
            }
            *copy_ended = matches!(frame.tag, b'c' | b'f');
        });
        self.check();
    }

    fn received(&mut self, bytes: &[u8]) {
        let watch = &self.watch;
        self.from_server.feed(bytes, |frame| match frame {
            Frame {
                tag: b'Z',
                first: Some(status),
                ..
            } => {
                watch.status.store(status, Ordering::Relaxed);
                // First: whoever sees the count must not take the old time for that of the next answer.
                if watch.owes() > 1 {
                    watch.owed_from_now();
                }
                add_one(&watch.answered);
            }
            Frame { pid: Some(pid), .. } => drop(watch.key_pid.set(pid)),
            // The server is ready for a COPY IN. Should it fail from here on, the Sync that was sent with it
            // has an answer of its own.
            Frame { tag: b'G', .. } => watch.copied.store(true, Ordering::Relaxed),
            // An error that answers nothing is the server's last word.
            Frame { tag: b'E', .. } if watch.owes_nothing() => {
                watch.ending.store(true, Ordering::Release);
            }
            // The statement is over, though its ReadyForQuery may come in another packet.
            Frame {
                tag: b'C' | b'E', ..
            } => watch.owed_from_now(),
            _ => {}
        });
        self.check();
    }

    fn check(&self) {
        if self.from_client.is_lost() || self.from_server.is_lost() {
            self.watch.broken.store(true, Ordering::Relaxed);
        }
    }
}

/// The task is the only writer.
fn add_one(count: &AtomicU64) {
    let next = count.load(Ordering::Relaxed) + 1;
    count.store(next, Ordering::Release);
}

/// The task has ended; the stream goes to whoever wants to see the server's end.
impl<S: Wire> Drop for Tap<S> {
    fn drop(&mut self) {
        if !self.watch.leaves_remains.load(Ordering::Acquire) {
            return;
        }
        let mut heir = self
            .watch
            .heir
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let (Some(heir), Some(stream)) = (heir.take(), self.stream.take()) {
            // Nobody wants it any more: then it is dropped.
            let _ = heir.send(Remains(Box::new(stream)));
        }
    }
}

impl<S: Wire> AsyncRead for Tap<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let Poll::Ready(read) = self.stream().poll_read(cx, buf) else {
            self.watch.read_dry.store(true, Ordering::Relaxed);
            return Poll::Pending;
        };
        self.noted(read)?;
        match &buf.filled()[before..] {
            [] => self.watch.ended.store(true, Ordering::Release),
            bytes => self.received(bytes),
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Wire> AsyncWrite for Tap<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.watch.flushed.store(false, Ordering::Relaxed);
        let written = ready!(self.stream().poll_write(cx, bytes));
        let written = self.noted(written)?;
        self.sent(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.stream().poll_flush(cx))?;
        self.watch.flushed.store(true, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }

    /// Says that we are done, and completes when the server has closed its side, too.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.stream().poll_shutdown(cx))?;
        let mut scrap = [0; 512];
        while !self.watch.has_ended() {
            let mut scrap = ReadBuf::new(&mut scrap);
            ready!(self.as_mut().poll_read(cx, &mut scrap))?;
        }
        Poll::Ready(Ok(()))
    }
}

/// A connection's task, watched.
#[derive(Debug)]
pub(super) struct Watched<F> {
    connection: F,
    watch: Arc<Watch>,
    waker: Waker,
}

impl<F> Watched<F> {
    pub(super) fn new(connection: F, watch: Arc<Watch>) -> Self {
        let waker = Waker::from(Arc::clone(&watch));
        Self {
            connection,
            watch,
            waker,
        }
    }

    fn wake_also(&self, waker: &Waker) {
        let mut task = self
            .watch
            .task
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match &mut *task {
            Some(known) => known.clone_from(waker),
            None => *task = Some(waker.clone()),
        }
    }
}

impl<F: Future + Unpin> Future for Watched<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.wake_also(cx.waker());
        self.watch.poll_starts();
        let this = &mut *self;
        let mut inner = Context::from_waker(&this.waker);
        let polled = Pin::new(&mut this.connection).poll(&mut inner);
        this.watch.poll_ends();
        if polled.is_ready() {
            this.watch.leave_remains();
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY: &[u8] = b"Q\0\0\0\x05\0";
    const READY: &[u8] = b"Z\0\0\0\x05I";
    const MOMENT: Duration = Duration::from_millis(5);

    /// A tap on nothing, after the startup message and its answer.
    fn tap() -> (Tap<tokio::io::DuplexStream>, Arc<Watch>) {
        let watch = Arc::new(Watch::default());
        let (stream, _) = tokio::io::duplex(64);
        let mut tap = Tap::new(stream, Arc::clone(&watch));
        tap.sent(b"\0\0\0\x09\0\x03\0\0\0");
        tap.received(READY);
        (tap, watch)
    }

    #[test]
    fn an_answer_is_owed_from_its_request_on_and_the_next_from_the_last_answer_on() {
        let (mut tap, watch) = tap();
        std::thread::sleep(MOMENT);
        assert_eq!(watch.owed_for(), Duration::ZERO);
        let began = Instant::now();
        tap.sent(QUERY);
        std::thread::sleep(MOMENT);
        tap.sent(QUERY);
        assert!((MOMENT..=began.elapsed()).contains(&watch.owed_for()));

        let answered = Instant::now();
        tap.received(READY);
        assert!(watch.owed_for() <= answered.elapsed());
        std::thread::sleep(MOMENT);
        assert!(watch.owed_for() >= MOMENT);
        tap.received(READY);
        assert_eq!(watch.owed_for(), Duration::ZERO);
    }

    #[test]
    fn a_statement_that_has_ended_is_not_overdue_while_its_last_message_is_on_the_way() {
        for ended in [b"C\0\0\0\x05\0", b"E\0\0\0\x05\0"] {
            let (mut tap, watch) = tap();
            tap.sent(QUERY);
            std::thread::sleep(MOMENT);
            let answered = Instant::now();
            tap.received(ended);
            assert!(watch.owed_for() <= answered.elapsed());
            assert!(!watch.is_ending());
        }
    }
}
