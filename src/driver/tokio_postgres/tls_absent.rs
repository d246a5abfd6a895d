//! In the place of `tls.rs` without the feature `tls`: no TLS, and a refusal where it is demanded.

use std::convert::Infallible;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::driver_tokio_postgres::ssl::{Ssl, SslMode};

/// There is none.
#[derive(Clone, Debug)]
pub(crate) enum Tls {}

impl Tls {
    /// `None`: it cannot be spoken.
    ///
    /// # Errors
    /// It is demanded.
    pub(crate) fn new(ssl: &Ssl) -> Result<Option<Self>, String> {
        if ssl.mode >= SslMode::Require {
            return Err("demands TLS, which this build does not speak: switch on the feature `tls` of partitioned-pool".to_owned());
        }
        Ok(None)
    }

    pub(crate) fn is_direct(&self) -> bool {
        match *self {}
    }

    pub(crate) fn tell_once(&self, _: impl FnOnce()) {
        match *self {}
    }

    #[expect(clippy::unused_async, reason = "its twin awaits")]
    pub(crate) async fn shake_hands<S>(&self, _: S, _: &str) -> io::Result<Encrypted<S>> {
        match *self {}
    }
}

/// There is none.
#[derive(Debug)]
pub(crate) struct Encrypted<S>(Infallible, PhantomData<S>);

impl<S> Encrypted<S> {
    pub(crate) fn end_point(&self) -> Option<Vec<u8>> {
        match self.0 {}
    }
}

impl<S> AsyncRead for Encrypted<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.0 {}
    }
}

impl<S> AsyncWrite for Encrypted<S> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        match self.0 {}
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0 {}
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.0 {}
    }
}
