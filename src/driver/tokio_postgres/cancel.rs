//! Cancelling what a backend runs, and knowing when no cancel is on its way any more.
//!
//! A cancel request that arrives late kills the next query of the connection. The server closes the
//! request's socket once it has sent the signal, so a cancel is over only when that socket was read
//! to its end: [`Lingering`] makes "shut down" mean just that.
//!
//! It carries the key to the session, so it takes the way that its connection took: if that is encrypted it is, by the
//! same rules, or it is not sent.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready as task_ready};

use ::tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, NoTls, TlsConnect, TlsStream};
use ::tokio_postgres::{CancelToken, Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use super::connect::{Failed, Route};
use super::line::{Line, Way};

/// Sends one cancel request and returns when the server has dealt with it.
///
/// After an error nothing is known: the request may still be on its way.
pub(super) async fn cancel(token: &CancelToken, route: &Route) -> Result<(), Failed> {
    match route {
        Route::Tcp(way) => token.cancel_query(LingeringConnector(way.clone())).await?,
        Route::Unix(path) => {
            let stream = Lingering(UnixStream::connect(path).await?);
            token.cancel_query_raw(stream, NoTls).await?;
        }
    }
    Ok(())
}

/// A stream whose shutdown completes when the server has closed its side.
struct Lingering<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut scrap = [0; 64];
        loop {
            let mut scrap = ReadBuf::new(&mut scrap);
            match task_ready!(Pin::new(&mut self.0).poll_read(cx, &mut scrap)) {
                Ok(()) if scrap.filled().is_empty() => return Poll::Ready(Ok(())),
                Ok(()) => {}
                // The server has read the request and closed, and that is all we wait for.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Lingering<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

/// The "TLS" connector of a cancel request over TCP: as its connection, and lingering.
struct LingeringConnector(Way);

impl MakeTlsConnect<Socket> for LingeringConnector {
    type Stream = Lingering<Line<Socket>>;
    type TlsConnect = LingeringOne;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<LingeringOne> {
        Ok(LingeringOne(self.0.clone(), host.to_owned()))
    }
}

struct LingeringOne(Way, String);

impl TlsConnect<Socket> for LingeringOne {
    type Stream = Lingering<Line<Socket>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Lingering<Line<Socket>>>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let Self(way, host) = self;
        Box::pin(async move {
            let line = Line::over(socket, &host, &way).await;
            line.map(Lingering).map_err(|no| no.error)
        })
    }
}
