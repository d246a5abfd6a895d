//! Opening a connection that can be watched, without losing what `tokio_postgres::Config` offers.
//!
//! `Config::connect` tries the addresses of a host, sets timeouts and keepalive, and checks
//! `target_session_attrs`, but hands its stream to nobody, unless TLS is asked for directly: then the
//! connector is given the raw socket. [`TapConnector`] is such a "TLS" connector: it makes a [`Line`] of the socket,
//! which is encrypted or not, and puts a [`Tap`] on top, which sees the messages as they are. Sockets in the file
//! system have no host name for TLS, so they are opened here.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use ::tokio_postgres::config::{
    Host, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs,
};
use ::tokio_postgres::error::SqlState;
use ::tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, NoTls, TlsConnect, TlsStream};
use ::tokio_postgres::{Client, Config, Connection, Error, SimpleQueryMessage, Socket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::error::{NoPassword, UndeclaredPooler};
use crate::session::SettingsNotInForce;
use crate::tls::Tls;

use super::failure::words;
use super::line::{Line, Way};
use super::messages::{Attentive, Hearing};
use super::ssl;
use super::watch::{Tap, Watch, Watched};

/// An open connection, with what is known of it.
pub(super) struct Opened {
    pub(super) client: Client,
    pub(super) watch: Arc<Watch>,
    pub(super) task: JoinHandle<()>,
    pub(super) server_version: String,
    pub(super) route: Route,
    pub(super) hearing: Arc<Hearing>,
}

/// The way that a cancel request has to take: that of its connection.
#[derive(Clone, Debug)]
pub(super) enum Route {
    Tcp(Way),
    Unix(PathBuf),
}

/// How TLS is gone about, try by try.
#[derive(Clone, Debug)]
pub(super) struct Security {
    mode: ssl::SslMode,
    tls: Option<Tls>,
}

impl Security {
    pub(super) fn new(mode: ssl::SslMode, tls: Option<Tls>) -> Self {
        Self { mode, tls }
    }

    /// The first way, and the one to try when it fails by how it goes about TLS.
    fn ways(&self) -> (Way, Option<Way>) {
        use ssl::SslMode::{Allow, Prefer};
        match (self.mode, self.tls.clone()) {
            (_, None) => (Way::Plain, None),
            (Allow, Some(tls)) => (Way::Plain, Some(Way::Encrypted(tls))),
            (Prefer, Some(tls)) => (Way::Offered(tls), Some(Way::Plain)),
            (_, Some(tls)) => (Way::Encrypted(tls), None),
        }
    }
}

/// Opens a connection to the first host that will have us, in the order that the URL asks for. A host that keeps us
/// waiting has its share of the time, in which its address, TLS and authentication must be done; the last one has
/// what is left.
pub(super) async fn open(config: &Config, security: &Security) -> Result<Opened, Failed> {
    let mut order: Vec<usize> = (0..config.get_hosts().len()).collect();
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        fastrand::shuffle(&mut order);
    }
    let (last, others) = order.split_last().ok_or_else(nowhere)?;
    for host in others {
        let opening = open_one(config, security, *host);
        let opened = match config.get_connect_timeout() {
            Some(limit) => timeout(*limit, opening).await,
            None => Ok(opening.await),
        };
        match opened.map_err(|elapsed| Failed::Io(elapsed.into())) {
            Ok(Ok(opened)) => return Ok(opened),
            Ok(Err(error)) | Err(error) => {
                tracing::debug!(error = %words(&error), "trying the next host");
            }
        }
    }
    open_one(config, security, *last).await
}

fn nowhere() -> Failed {
    Failed::Io(io::Error::other("the url names no host"))
}

/// Why no connection could be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error(transparent)]
    Driver(#[from] Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    NoPassword(#[from] NoPassword),
    /// The second try is what it came to.
    #[error("{second}; before that, {first}")]
    BothWays {
        first: Box<Failed>,
        #[source]
        second: Error,
    },
    /// The server refuses settings of the partition.
    #[error(transparent)]
    Settings(SettingsNotInForce),
    #[error(transparent)]
    Pooled(UndeclaredPooler),
}

async fn open_one(config: &Config, security: &Security, at: usize) -> Result<Opened, Failed> {
    let ports = config.get_ports();
    let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
    match &config.get_hosts()[at] {
        Host::Unix(directory) => {
            let path = directory.join(format!(".s.PGSQL.{port}"));
            open_unix(config, &path).await
        }
        Host::Tcp(name) => open_tcp(&only(config, at, name, port), security).await,
    }
}

/// Opens over TCP, in one way or the other.
async fn open_tcp(config: &Config, security: &Security) -> Result<Opened, Failed> {
    let (way, other) = security.ways();
    let (first, other) = match (open_by(config, &way).await, other) {
        (Ok(opened), _) => return Ok(opened),
        (Err(tried), Some(other)) if tried.may_do_otherwise(&way) => (tried.error, other),
        (Err(tried), _) => return Err(tried.error.into()),
    };
    if let Way::Offered(tls) = &way {
        tls.tell_once(|| {
            tracing::warn!(error = %words(&first), "going without TLS, as sslmode=prefer allows");
        });
    }
    let second = open_by(config, &other).await;
    second.map_err(|tried| Failed::BothWays {
        first: Box::new(first.into()),
        second: tried.error,
    })
}

/// A try that came to nothing.
struct Tried {
    error: Error,
    /// How far it came.
    seen: Seen,
}

impl Tried {
    /// Whether the other way may do: TLS did not come about, or the server lets nobody in that way. A wrong password
    /// is not sent again.
    fn may_do_otherwise(&self, way: &Way) -> bool {
        let not_so = self.error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
        match way {
            Way::Offered(_) => self.seen.handshake_failed || (self.seen.is_encrypted && not_so),
            Way::Plain | Way::Encrypted(_) => not_so,
        }
    }
}

/// Opens over TCP, by the driver's own way.
async fn open_by(config: &Config, way: &Way) -> Result<Opened, Tried> {
    let mut config = config.clone();
    config
        .ssl_mode(SslMode::Require)
        .ssl_negotiation(SslNegotiation::Direct);
    let connector = TapConnector::new(way.clone());
    let connected = config.connect(connector.clone()).await;
    let seen = connector.seen();
    match connected {
        Ok((client, connection)) => {
            let route = Route::Tcp(way.again(seen.is_encrypted));
            Ok(Opened::start(client, connection, seen.watch, route))
        }
        Err(error) => Err(Tried { error, seen }),
    }
}

/// Opens over a socket in the file system.
async fn open_unix(config: &Config, path: &Path) -> Result<Opened, Failed> {
    let connecting = UnixStream::connect(path);
    let connected = match config.get_connect_timeout() {
        Some(limit) => timeout(*limit, connecting).await,
        None => Ok(connecting.await),
    };
    let stream = connected.unwrap_or_else(|elapsed| Err(elapsed.into()));
    let stream = stream.map_err(|error| at_path(path, &error))?;
    let mut config = config.clone();
    config.ssl_mode(SslMode::Disable);
    let watch = Arc::new(Watch::default());
    let tap = Tap::new(stream, Arc::clone(&watch));
    let (client, connection) = config.connect_raw(tap, NoTls).await?;
    let opened = Opened::start(client, connection, watch, Route::Unix(path.to_owned()));
    check_session_attrs(&opened.client, config.get_target_session_attrs()).await?;
    Ok(opened)
}

fn at_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// What `Config::connect` does for TCP hosts.
async fn check_session_attrs(client: &Client, wanted: TargetSessionAttrs) -> Result<(), Failed> {
    let refused = match wanted {
        TargetSessionAttrs::ReadWrite => ("on", "database does not allow writes"),
        TargetSessionAttrs::ReadOnly => ("off", "database is not read only"),
        _ => return Ok(()),
    };
    let rows = client.simple_query("SHOW transaction_read_only").await?;
    let is_refused = rows.iter().any(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0) == Some(refused.0),
        _ => false,
    });
    if is_refused {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, refused.1).into());
    }
    Ok(())
}

/// The configuration for one TCP host of several.
fn only(config: &Config, at: usize, host: &str, port: u16) -> Config {
    let mut one = Config::new();
    one.host(host).port(port);
    config
        .get_hostaddrs()
        .get(at)
        .map(|addr| one.hostaddr(*addr));
    config.get_user().map(|user| one.user(user));
    config.get_password().map(|password| one.password(password));
    config.get_dbname().map(|name| one.dbname(name));
    config.get_options().map(|options| one.options(options));
    config
        .get_application_name()
        .map(|name| one.application_name(name));
    config
        .get_connect_timeout()
        .map(|limit| one.connect_timeout(*limit));
    config
        .get_tcp_user_timeout()
        .map(|limit| one.tcp_user_timeout(*limit));
    one.keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle());
    config
        .get_keepalives_interval()
        .map(|interval| one.keepalives_interval(interval));
    config
        .get_keepalives_retries()
        .map(|retries| one.keepalives_retries(retries));
    one.target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    one
}

impl Opened {
    /// Runs the connection in a task of its own from here on.
    fn start<S, T>(
        client: Client,
        connection: Connection<S, T>,
        watch: Arc<Watch>,
        route: Route,
    ) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let server_version = connection.parameter("server_version").unwrap_or_default();
        let server_version = server_version.to_owned();
        let hearing = Hearing::new();
        let attentive = Attentive::new(connection, Arc::clone(&hearing));
        let watched = Watched::new(attentive, Arc::clone(&watch));
        let task = tokio::spawn(async move {
            if let Err(error) = watched.await {
                tracing::debug!(error = %words(&error), "a connection ended");
            }
        });
        Self {
            client,
            watch,
            task,
            server_version,
            route,
            hearing,
        }
    }
}

/// What is known of the socket that was given last: the one that is in use once connecting is done.
#[derive(Clone, Debug, Default)]
struct Seen {
    watch: Arc<Watch>,
    is_encrypted: bool,
    handshake_failed: bool,
}

/// A "TLS" connector that makes a line of the socket and taps it.
#[derive(Clone, Debug)]
struct TapConnector {
    way: Way,
    seen: Arc<Mutex<Seen>>,
}

impl TapConnector {
    fn new(way: Way) -> Self {
        let seen = Arc::default();
        Self { way, seen }
    }

    fn seen(&self) -> Seen {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.clone()
    }

    fn see(&self, seen: Seen) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }
}

impl MakeTlsConnect<Socket> for TapConnector {
    type Stream = Tap<Line<Socket>>;
    type TlsConnect = TapOne;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<TapOne> {
        self.see(Seen::default());
        Ok(TapOne {
            connector: self.clone(),
            host: host.to_owned(),
        })
    }
}

struct TapOne {
    connector: TapConnector,
    host: String,
}

impl TlsConnect<Socket> for TapOne {
    type Stream = Tap<Line<Socket>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Tap<Line<Socket>>>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let Self { connector, host } = self;
        Box::pin(async move {
            let line = Line::over(socket, &host, &connector.way).await;
            let seen = Seen {
                watch: Arc::default(),
                is_encrypted: line.as_ref().is_ok_and(Line::is_encrypted),
                handshake_failed: line.as_ref().is_err_and(|no| no.in_handshake),
            };
            let tap = line.map(|line| Tap::new(line, Arc::clone(&seen.watch)));
            connector.see(seen);
            tap.map_err(|no| no.error)
        })
    }
}

impl TlsStream for Tap<Line<Socket>> {
    fn channel_binding(&self) -> ChannelBinding {
        match self.stream_ref().end_point() {
            Some(end_point) => ChannelBinding::tls_server_end_point(end_point),
            None => ChannelBinding::none(),
        }
    }
}
