//! A network that fails on demand: a TCP proxy between the pool and its server.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// What the network does to what passes, from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It passes.
    None,
    /// Nothing passes and nobody is told. Once the fault is over, it passes after all, as TCP would have it.
    Pause,
    /// Connections are closed in order (FIN), new ones at once.
    Drop,
    /// Connections are reset (RST), new ones at once.
    Reset,
    /// Each chunk is held up for so long.
    Delay(Duration),
}

/// What has passed since the proxy was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Connections that were made through the proxy, cancel requests included. Questions for TLS count nowhere else.
    pub(crate) connections: u64,
    /// Messages of the clients.
    pub(crate) from_clients: u64,
    /// Messages of the server.
    pub(crate) from_server: u64,
    /// How often a client spoke after the server had, or first.
    pub(crate) round_trips: u64,
}

impl Traffic {
    /// What has passed since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            connections: self.connections - before.connections,
            from_clients: self.from_clients - before.from_clients,
            from_server: self.from_server - before.from_server,
            round_trips: self.round_trips - before.round_trips,
        }
    }
}

/// What a client began with. Of one that asked for TLS and was told no, also what it did then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// A session that everybody can read.
    Plain,
    /// A cancel request that everybody can read.
    Cancel,
    /// The question for TLS.
    AsksForTls,
    /// TLS without a question.
    Handshake,
}

impl Opening {
    fn of(first: [u8; 8]) -> Self {
        match first {
            [0x16, ..] => Self::Handshake,
            [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f] => Self::AsksForTls,
            [0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e] => Self::Cancel,
            _ => Self::Plain,
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    openings: Mutex<Vec<Opening>>,
    refuses_tls: AtomicBool,
    connections: AtomicU64,
    from_clients: AtomicU64,
    from_server: AtomicU64,
    round_trips: AtomicU64,
}

/// A proxy. Dropping it ends every connection.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    fault: watch::Sender<Fault>,
    counts: Arc<Counts>,
    listening: AbortHandle,
}

impl Proxy {
    /// A proxy before the server at `host:port`.
    pub(crate) async fn start(host: &str, port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (fault, seen) = watch::channel(Fault::None);
        let counts = Arc::new(Counts::default());
        let listening = listen(listener, (host.to_owned(), port), seen, Arc::clone(&counts));
        Self {
            address,
            fault,
            counts,
            listening: tokio::spawn(listening).abort_handle(),
        }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Does `fault` to every connection there is and to those to come.
    pub(crate) fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// What clients began with, in order.
    #[cfg(feature = "tls")]
    pub(crate) fn openings(&self) -> Vec<Opening> {
        let openings = self.counts.openings.lock();
        openings.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on whoever asks for TLS is told that there is none, as somebody might who wants to read along.
    #[cfg(feature = "tls")]
    pub(crate) fn refuse_tls(&self) {
        self.counts.refuses_tls.store(true, Ordering::SeqCst);
    }

    /// What has passed so far.
    pub(crate) fn traffic(&self) -> Traffic {
        let read = |count: &AtomicU64| count.load(Ordering::SeqCst);
        Traffic {
            connections: read(&self.counts.connections),
            from_clients: read(&self.counts.from_clients),
            from_server: read(&self.counts.from_server),
            round_trips: read(&self.counts.round_trips),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
        self.set(Fault::Drop);
    }
}

async fn listen(
    listener: TcpListener,
    server: (String, u16),
    fault: watch::Receiver<Fault>,
    counts: Arc<Counts>,
) {
    while let Ok((client, _)) = listener.accept().await {
        counts.connections.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(relay(
            client,
            server.clone(),
            fault.clone(),
            Arc::clone(&counts),
        ));
    }
}

/// One connection, until both sides have closed it or the network does.
async fn relay(
    mut client: TcpStream,
    server: (String, u16),
    mut fault: watch::Receiver<Fault>,
    counts: Arc<Counts>,
) {
    let _ = fault.wait_for(|fault| *fault != Fault::Pause).await;
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    client.set_nodelay(true).ok();
    server.set_nodelay(true).ok();
    let cut = tokio::select! {
        _ = converse(&mut client, &mut server, &fault, &counts) => Fault::None,
        cut = cut(fault.clone()) => cut,
    };
    if cut == Fault::Reset {
        client.set_zero_linger().ok();
        server.set_zero_linger().ok();
    }
}

async fn converse(
    client: &mut TcpStream,
    server: &mut TcpStream,
    fault: &watch::Receiver<Fault>,
    counts: &Counts,
) -> io::Result<()> {
    let mut first = [0; 8];
    let opening = loop {
        client.read_exact(&mut first).await?;
        let opening = Opening::of(first);
        counts.openings.lock().unwrap().push(opening);
        hold_up(&mut fault.clone()).await;
        if opening != Opening::AsksForTls || is_told_yes(client, server, fault, counts).await? {
            break opening;
        }
    };
    let is_readable = matches!(opening, Opening::Plain | Opening::Cancel);
    let turn = Mutex::new(Side::Server);
    let (from_client, to_client) = client.split();
    let (from_server, mut to_server) = server.split();
    let mut up = Pump::new(Side::Client, is_readable, fault, counts, &turn);
    let down = Pump::new(Side::Server, is_readable, fault, counts, &turn);
    if opening != Opening::AsksForTls {
        up.count(&first);
        to_server.write_all(&first).await?;
    }
    tokio::join!(
        up.run(from_client, to_server),
        down.run(from_server, to_client)
    );
    Ok(())
}

/// Passes the question for TLS on, and the answer.
async fn is_told_yes(
    client: &mut TcpStream,
    server: &mut TcpStream,
    fault: &watch::Receiver<Fault>,
    counts: &Counts,
) -> io::Result<bool> {
    let mut answer = *b"N";
    if !counts.refuses_tls.load(Ordering::SeqCst) {
        server
            .write_all(&[0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f])
            .await?;
        server.read_exact(&mut answer).await?;
        hold_up(&mut fault.clone()).await;
    }
    client.write_all(&answer).await?;
    Ok(answer == *b"S")
}

async fn hold_up(fault: &mut watch::Receiver<Fault>) {
    let fault = fault.wait_for(|fault| *fault != Fault::Pause).await;
    let fault = fault.map_or(Fault::None, |fault| *fault);
    if let Fault::Delay(time) = fault {
        tokio::time::sleep(time).await;
    }
}

async fn cut(mut fault: watch::Receiver<Fault>) -> Fault {
    let cut = fault
        .wait_for(|fault| matches!(fault, Fault::Drop | Fault::Reset))
        .await;
    cut.map_or(Fault::Drop, |fault| *fault)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

/// One direction of a connection.
struct Pump<'a> {
    side: Side,
    fault: watch::Receiver<Fault>,
    counts: &'a Counts,
    /// Who spoke last.
    turn: &'a Mutex<Side>,
    /// `None` if nobody can tell its messages apart: then each chunk counts as one.
    frames: Option<Frames>,
}

impl<'a> Pump<'a> {
    fn new(
        side: Side,
        is_readable: bool,
        fault: &watch::Receiver<Fault>,
        counts: &'a Counts,
        turn: &'a Mutex<Side>,
    ) -> Self {
        Self {
            side,
            fault: fault.clone(),
            counts,
            turn,
            frames: is_readable.then(|| Frames::new(side)),
        }
    }

    async fn run(
        mut self,
        mut from: impl AsyncReadExt + Unpin,
        mut to: impl AsyncWriteExt + Unpin,
    ) {
        let mut chunk = vec![0; 16 << 10];
        loop {
            let read = from.read(&mut chunk).await.unwrap_or(0);
            hold_up(&mut self.fault).await;
            if read == 0 {
                break;
            }
            // Counted first: whoever has seen a message finds it in the figures.
            self.count(&chunk[..read]);
            if to.write_all(&chunk[..read]).await.is_err() {
                break;
            }
        }
        to.shutdown().await.ok();
    }

    fn count(&mut self, bytes: &[u8]) {
        let messages = match self.side {
            Side::Client => &self.counts.from_clients,
            Side::Server => &self.counts.from_server,
        };
        let whole = self.frames.as_mut().map_or(1, |frames| frames.feed(bytes));
        messages.fetch_add(whole, Ordering::SeqCst);
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self.side == Side::Client && *turn == Side::Server {
            self.counts.round_trips.fetch_add(1, Ordering::SeqCst);
        }
        *turn = self.side;
    }
}

/// Counts the messages in a stream: a type byte, and a length that counts itself.
struct Frames {
    /// Bytes of the header that have come; the first message of a client has no type byte.
    header: Vec<u8>,
    type_byte: usize,
    /// Bytes of the message that are still to come.
    left: usize,
}

impl Frames {
    fn new(side: Side) -> Self {
        Self {
            header: Vec::new(),
            type_byte: usize::from(side == Side::Server),
            left: 0,
        }
    }

    /// The messages that are complete with `bytes`.
    fn feed(&mut self, mut bytes: &[u8]) -> u64 {
        let mut complete = 0;
        while !bytes.is_empty() {
            let skipped = self.left.min(bytes.len());
            (self.left, bytes) = (self.left - skipped, &bytes[skipped..]);
            if skipped == 0 {
                self.header.push(bytes[0]);
                bytes = &bytes[1..];
                self.begin();
            }
            complete += u64::from(self.left == 0 && self.header.is_empty());
        }
        complete
    }

    /// Begins with the payload once the header is whole.
    fn begin(&mut self) {
        if self.header.len() == self.type_byte + 4 {
            let length: [u8; 4] = self.header[self.type_byte..].try_into().unwrap();
            self.left = u32::from_be_bytes(length) as usize - 4;
            self.header.clear();
            self.type_byte = 1;
        }
    }
}

#[test]
fn the_proxy_counts_messages_in_whatever_chunks_they_pass() {
    let mut conversation = vec![0, 0, 0, 8, 1, 2, 3, 4];
    conversation.extend(b"Q\0\0\0\x06a\0S\0\0\0\x04X\0\0\0\x04");
    for chunk in 1..=conversation.len() {
        let mut frames = Frames::new(Side::Client);
        let messages: u64 = conversation
            .chunks(chunk)
            .map(|chunk| frames.feed(chunk))
            .sum();
        assert_eq!(messages, 4, "in chunks of {chunk}");
    }
}
