//! From a partition's `url` to the configuration of the driver.

use std::time::Duration;

use ::tokio_postgres::Config;
use ::tokio_postgres::config::{Host, SslMode};

use crate::config::PartitionSettings;
use crate::driver::Endpoint;

/// tokio-postgres's own default, which is as good as none.
const UNSET_KEEPALIVE: Duration = Duration::from_secs(2 * 60 * 60);

/// A peer that vanished is noticed after 10 s + 3 x 5 s, when nothing is under way,
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// and after 25 s when something was sent that it does not acknowledge.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(25);

const KNOWN: &str = "user, password, dbname, host, hostaddr, port, options, sslmode, sslnegotiation, \
    connect_timeout, tcp_user_timeout, keepalives, keepalives_idle, keepalives_interval, \
    keepalives_retries, target_session_attrs, channel_binding, load_balance_hosts";

/// The configuration that `settings.url` stands for.
///
/// The error never repeats a part of the URL: it may be a part of the password.
pub(super) fn parse(settings: &PartitionSettings) -> Result<Config, String> {
    let parsed = settings.url.expose().parse::<Config>();
    let mut config = parsed.map_err(|error| explain(&error))?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err("names no host; write postgres://USER@HOST/DATABASE".to_owned());
    }
    if config.get_ssl_mode() == SslMode::Require {
        return Err(
            "sslmode=require: this version speaks no TLS, and does not go without \
            where it is demanded"
                .to_owned(),
        );
    }
    if config.get_user().is_none() {
        return Err("names no user; write postgres://USER@HOST/DATABASE".to_owned());
    }
    name_hostaddrs(&mut config);
    config.application_name(settings.application_name.as_str());
    set_limits(&mut config, settings.connect_timeout);
    Ok(config)
}

fn explain(error: &::tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    match cause {
        Some(cause) if cause.starts_with("invalid value for option") => cause,
        Some(cause) if cause.starts_with("unknown option") => {
            format!(
                "has an unknown parameter; known are {KNOWN}. A special character in the password must be percent-encoded"
            )
        }
        _ => "is neither postgres://USER:PASSWORD@HOST:PORT/DATABASE nor key=value pairs; \
            a special character in the password must be percent-encoded"
            .to_owned(),
    }
}

/// An address without a name stands for itself.
fn name_hostaddrs(config: &mut Config) {
    if config.get_hosts().is_empty() {
        for addr in config.get_hostaddrs().to_vec() {
            config.host(addr.to_string());
        }
    }
}

/// What the URL leaves open: limits, so that a dead host or network is noticed.
fn set_limits(config: &mut Config, connect_timeout: Duration) {
    if config.get_connect_timeout().is_none() {
        // A share for each host, so that a dead first one leaves time for the next.
        let hosts = u32::try_from(config.get_hosts().len().max(1)).unwrap_or(u32::MAX);
        config.connect_timeout(connect_timeout / hosts);
    }
    if config.get_keepalives_idle() == UNSET_KEEPALIVE {
        config.keepalives_idle(KEEPALIVE_IDLE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(KEEPALIVE_INTERVAL);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(KEEPALIVE_RETRIES);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(TCP_USER_TIMEOUT);
    }
}

/// Hosts, role and database, without any secret.
pub(super) fn endpoint(config: &Config) -> Endpoint {
    let ports = config.get_ports();
    let host = |(at, host): (usize, &Host)| {
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(name) if name.contains(':') => format!("[{name}]:{port}"),
            Host::Tcp(name) => format!("{name}:{port}"),
            Host::Unix(path) => format!("{}:{port}", path.display()),
        }
    };
    let hosts: Vec<String> = config.get_hosts().iter().enumerate().map(host).collect();
    let user = config.get_user().unwrap_or_default().to_owned();
    Endpoint {
        hosts: hosts.join(","),
        database: config.get_dbname().unwrap_or(&user).to_owned(),
        user,
    }
}
