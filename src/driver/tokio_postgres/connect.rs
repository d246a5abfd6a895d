//! Opening a connection that can be watched, without losing what `tokio_postgres::Config` offers.
//!
//! `Config::connect` walks the hosts, sets timeouts and keepalive, and checks
//! `target_session_attrs`, but hands its stream to nobody, unless TLS is asked for directly: then the
//! connector is given the raw socket. [`TapConnector`] is such a "TLS" connector that wraps the
//! socket in a [`Tap`] and speaks plain. Sockets in the file system have no host name for TLS, so
//! they are opened here.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ::tokio_postgres::config::{
    Host, LoadBalanceHosts, SslMode, SslNegotiation, TargetSessionAttrs,
};
use ::tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, NoTls, TlsConnect, TlsStream};
use ::tokio_postgres::{Client, Config, Connection, Error, SimpleQueryMessage, Socket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use crate::error::UndeclaredPooler;

use super::watch::{Tap, Watch, Watched, Wire};

/// An open connection, with what is known of it.
pub(super) struct Opened {
    pub(super) client: Client,
    pub(super) watch: Arc<Watch>,
    pub(super) task: JoinHandle<()>,
    pub(super) server_version: String,
    pub(super) route: Route,
}

/// The way that a cancel request has to take.
#[derive(Clone, Debug)]
pub(super) enum Route {
    Tcp,
    Unix(PathBuf),
}

/// Opens a connection to the first host that will have us, in the order that the URL asks for.
pub(super) async fn open(config: &Config) -> Result<Opened, Failed> {
    if !config.get_hosts().iter().any(is_unix) {
        return open_tcp(config).await;
    }
    let mut order: Vec<usize> = (0..config.get_hosts().len()).collect();
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        fastrand::shuffle(&mut order);
    }
    let mut last = None;
    for host in order {
        match open_one(config, host).await {
            Ok(opened) => return Ok(opened),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Failed::Io(io::Error::other("the url names no host"))))
}

/// Why no connection could be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error(transparent)]
    Driver(#[from] Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Pooled(UndeclaredPooler),
}

fn is_unix(host: &Host) -> bool {
    matches!(host, Host::Unix(_))
}

async fn open_one(config: &Config, at: usize) -> Result<Opened, Failed> {
    let ports = config.get_ports();
    let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
    match &config.get_hosts()[at] {
        Host::Unix(directory) => {
            let path = directory.join(format!(".s.PGSQL.{port}"));
            open_unix(config, &path).await
        }
        Host::Tcp(name) => open_tcp(&only(config, at, name, port)).await,
    }
}

/// Opens over TCP, by the driver's own way.
async fn open_tcp(config: &Config) -> Result<Opened, Failed> {
    let mut config = config.clone();
    config
        .ssl_mode(SslMode::Require)
        .ssl_negotiation(SslNegotiation::Direct);
    let connector = TapConnector::default();
    let (client, connection) = config.connect(connector.clone()).await?;
    Ok(Opened::start(
        client,
        connection,
        connector.tapped(),
        Route::Tcp,
    ))
}

/// Opens over a socket in the file system.
async fn open_unix(config: &Config, path: &Path) -> Result<Opened, Failed> {
    let connecting = UnixStream::connect(path);
    let connected = match config.get_connect_timeout() {
        Some(limit) => tokio::time::timeout(*limit, connecting).await,
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
        let watched = Watched::new(connection, Arc::clone(&watch));
        let task = tokio::spawn(async move {
            if let Err(error) = watched.await {
                tracing::debug!(%error, "a connection ended");
            }
        });
        Self {
            client,
            watch,
            task,
            server_version,
            route,
        }
    }
}

/// A "TLS" connector that taps the socket and speaks plain.
#[derive(Clone, Debug, Default)]
struct TapConnector {
    /// What watches the socket that was tapped last: the one that is in use once connecting is done.
    watch: Arc<Mutex<Arc<Watch>>>,
}

impl TapConnector {
    fn tapped(&self) -> Arc<Watch> {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&watch)
    }
}

impl MakeTlsConnect<Socket> for TapConnector {
    type Stream = Tap<Socket>;
    type TlsConnect = TapOne;
    type Error = Infallible;

    fn make_tls_connect(&mut self, _: &str) -> Result<TapOne, Infallible> {
        let fresh = Arc::new(Watch::default());
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch.clone_from(&fresh);
        Ok(TapOne(fresh))
    }
}

struct TapOne(Arc<Watch>);

impl TlsConnect<Socket> for TapOne {
    type Stream = Tap<Socket>;
    type Error = Infallible;
    type Future = Ready<Result<Tap<Socket>, Infallible>>;

    fn connect(self, stream: Socket) -> Self::Future {
        ready(Ok(Tap::new(stream, self.0)))
    }
}

impl<S: Wire> TlsStream for Tap<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}
