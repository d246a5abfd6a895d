//! The way to a server: a socket, encrypted or not, as the connection text asks for.
//!
//! Who wants TLS says so before anything else, in eight bytes; the server answers with one. From there on the line
//! is encrypted, or the socket is what it was. Neither a password nor a cancel request goes over a line that is less
//! than what was asked for.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::tls::{Encrypted, Tls};

/// The length of the message, and the code of a request for TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// How one try to open a connection goes about TLS.
#[derive(Clone, Debug)]
pub(super) enum Way {
    Plain,
    /// Encrypted if the server will.
    Offered(Tls),
    Encrypted(Tls),
}

impl Way {
    /// The way of what belongs to a connection that was opened by this one: no less than that.
    pub(super) fn again(&self, encrypted: bool) -> Self {
        let tls = self.tls().filter(|_| encrypted).cloned();
        tls.map_or(Self::Plain, Self::Encrypted)
    }

    fn tls(&self) -> Option<&Tls> {
        match self {
            Self::Plain => None,
            Self::Offered(tls) | Self::Encrypted(tls) => Some(tls),
        }
    }
}

/// What leads to the server.
#[derive(Debug)]
pub(super) enum Line<S> {
    Plain(S),
    Encrypted(Box<Encrypted<S>>),
}

/// Why a socket became no line.
#[derive(Debug)]
pub(super) struct NoLine {
    pub(super) error: io::Error,
    /// The server has said that it speaks TLS, and then it did not come about.
    pub(super) in_handshake: bool,
}

impl From<io::Error> for NoLine {
    fn from(error: io::Error) -> Self {
        let in_handshake = false;
        Self {
            error,
            in_handshake,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Line<S> {
    /// Makes a line of a socket that has just been opened to `host`.
    ///
    /// # Errors
    /// The socket failed; or, by the kinds `Unsupported` and `InvalidData`, the other side is not what we want it to be.
    pub(super) async fn over(mut socket: S, host: &str, way: &Way) -> Result<Self, NoLine> {
        let (tls, demanded) = match way {
            Way::Plain => return Ok(Self::Plain(socket)),
            Way::Offered(tls) => (tls, false),
            Way::Encrypted(tls) => (tls, true),
        };
        if !tls.is_direct() && !is_accepted(&mut socket).await? {
            return match demanded {
                true => Err(none_of(host).into()),
                false => Ok(Self::Plain(socket)),
            };
        }
        match tls.shake_hands(socket, host).await {
            Ok(encrypted) => Ok(Self::Encrypted(Box::new(encrypted))),
            Err(error) => Err(NoLine {
                error,
                in_handshake: true,
            }),
        }
    }
}

fn none_of(host: &str) -> io::Error {
    let text = format!("{host} speaks no TLS, and the url demands it");
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// Asks for TLS. Reads one byte and no more: what came behind it unencrypted would fail as a handshake.
async fn is_accepted<S: AsyncRead + AsyncWrite + Unpin>(socket: &mut S) -> io::Result<bool> {
    socket.write_all(&SSL_REQUEST).await?;
    socket.flush().await?;
    match socket.read_u8().await? {
        b'S' => Ok(true),
        b'N' => Ok(false),
        // An error, which nobody has vouched for: what it says is not repeated.
        _ => Err(io::Error::other(
            "the server answered the request for TLS neither with yes nor with no",
        )),
    }
}

impl<S> Line<S> {
    pub(super) fn is_encrypted(&self) -> bool {
        matches!(self, Self::Encrypted(_))
    }

    /// What SCRAM is bound to, if the line can be told from others.
    pub(super) fn end_point(&self) -> Option<Vec<u8>> {
        match self {
            Self::Plain(_) => None,
            Self::Encrypted(line) => line.end_point(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Line<S> {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Encrypted(line) => Pin::new(line).poll_read(cx, buf),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Line<S> {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Encrypted(line) => Pin::new(line).poll_write(cx, bytes),
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Encrypted(line) => Pin::new(line).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Encrypted(line) => Pin::new(line).poll_shutdown(cx),
        }
    }
}
