//! From a partition's `url` to the configuration of the driver.

use std::time::Duration;

use ::tokio_postgres::Config;
use ::tokio_postgres::config::{ChannelBinding, Host};

use crate::config::PartitionSettings;
use crate::driver::Endpoint;

use super::parameters::{self, AMBIGUOUS, unreadable};
use super::ssl::{Ssl, SslMode};

/// tokio-postgres's own default, which is as good as none.
const UNSET_KEEPALIVE: Duration = Duration::from_secs(2 * 60 * 60);

/// A peer that vanished is noticed after 10 s + 3 x 5 s, when nothing is under way,
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// and after 25 s when something was sent that it does not acknowledge.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(25);

/// libpq ignores `sslmode` there; here what demands TLS never goes without.
const NO_TLS_BY_SOCKET: &str =
    "demands TLS, and a socket in the file system has none: write sslmode=prefer or disable";

/// What a partition's `url` stands for.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) config: Config,
    pub(super) ssl: Ssl,
}

/// The configuration that `settings.url` stands for.
///
/// The error never repeats a part of the URL: it may be a part of the password.
pub(super) fn parse(settings: &PartitionSettings) -> Result<Parsed, String> {
    let (text, taken) = parameters::split(settings.url.expose())?;
    let mut ssl = Ssl::read(&taken)?;
    let mut config = text.parse::<Config>().map_err(|error| explain(&error))?;
    check_hosts(&config)?;
    if config.get_channel_binding() == ChannelBinding::Require {
        if ssl.mode == SslMode::Disable {
            return Err(
                "channel_binding=require needs TLS, and sslmode=disable forbids it".to_owned(),
            );
        }
        ssl.mode = ssl.mode.max(SslMode::Require);
    }
    let is_socket = |host: &Host| matches!(host, Host::Unix(_));
    if ssl.mode >= SslMode::Require && config.get_hosts().iter().any(is_socket) {
        return Err(NO_TLS_BY_SOCKET.to_owned());
    }
    if config.get_user().is_none() {
        return Err("names no user; write postgres://USER@HOST/DATABASE".to_owned());
    }
    name_hostaddrs(&mut config);
    config.application_name(settings.application_name.as_str());
    set_limits(&mut config, settings.connect_timeout);
    Ok(Parsed { config, ssl })
}

fn check_hosts(config: &Config) -> Result<(), String> {
    let (hosts, addresses) = (config.get_hosts().len(), config.get_hostaddrs().len());
    if hosts.max(addresses) == 0 {
        return Err("names no host; write postgres://USER@HOST/DATABASE".to_owned());
    }
    if !config.get_hosts().iter().all(is_plain) {
        return Err(AMBIGUOUS.to_owned());
    }
    if addresses > 0 && hosts > 0 && addresses != hosts {
        return Err(format!("names {hosts} hosts and {addresses} hostaddrs"));
    }
    let ports = config.get_ports().len();
    if ports > 1 && ports != hosts.max(addresses) {
        return Err(format!(
            "names {} hosts and {ports} ports",
            hosts.max(addresses)
        ));
    }
    Ok(())
}

/// Whether two configurations lead to the same session, but for what [`dress`](crate::session::dress) sets
/// and what is over once it is connected.
pub(super) fn same_but_for_the_dress(one: &Config, other: &Config) -> bool {
    let bare = |config: &Config| {
        let mut config = config.clone();
        config.application_name("").connect_timeout(Duration::ZERO);
        config
    };
    bare(one) == bare(other)
}

fn explain(error: &::tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    match cause {
        Some(cause) if cause.starts_with("invalid value for option") => cause,
        _ => unreadable(),
    }
}

/// A password with an unencoded `@` ends up in the host, and hosts are printed.
fn is_plain(host: &Host) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "._:%-".contains(c);
    match host {
        Host::Tcp(name) => name.chars().all(plain),
        Host::Unix(_) => true,
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

#[cfg(test)]
mod tests {
    use crate::config::{FleetConfig, PartitionConfig, PoolConfig};
    use crate::parameters_page::rows;

    use super::*;

    fn settings(url: &str) -> PartitionSettings {
        let config = PoolConfig::new("shop", url, FleetConfig::new(1, 0))
            .transactional(PartitionConfig::transactional(2))
            .analytical(PartitionConfig::analytical(1));
        config.resolve().unwrap().partitions[0].clone()
    }

    fn parsed(url: &str) -> Result<Config, String> {
        parse(&settings(url)).map(|parsed| parsed.config)
    }

    /// Host, user and database, and these parameters.
    fn with(example: &str) -> Result<(Config, Ssl), String> {
        let stated: Vec<_> = example.split('&').filter(|pair| !pair.is_empty()).collect();
        let name = |pair: &str| pair.split('=').next().unwrap().to_owned();
        let base = ["host=db", "user=app", "dbname=shop"];
        let base = base
            .iter()
            .filter(|pair| stated.iter().all(|other| name(other) != name(pair)));
        let pairs: Vec<_> = base.chain(&stated).copied().collect();
        let parsed = parse(&settings(&pairs.join(" ")))?;
        Ok((parsed.config, parsed.ssl))
    }

    #[test]
    fn each_parameter_of_the_docs_does_what_they_say() {
        for [name, example, told, _] in rows() {
            let others = example
                .split('&')
                .filter(|pair| pair.split('=').next() != Some(name));
            let without = with(&others.collect::<Vec<_>>().join("&"));
            match (told, with(example), without) {
                // A certificate and its key come together.
                ("taken", Ok(found), Err(needed)) => assert!(needed.contains(name), "{found:?}"),
                ("taken", Ok(found), Ok(without)) => assert_ne!(found, without, "{name}"),
                ("left out", Ok(found), Ok(without)) if name != "sslcertmode" => {
                    assert_eq!(found, without, "{name}");
                }
                ("left out", Ok(found), Ok(_)) => assert_eq!(found, with("").unwrap(), "{name}"),
                ("refused", Err(problem), Ok(_)) => assert!(problem.contains(name), "{problem}"),
                (_, found, _) => panic!("{name}: {found:?}"),
            }
        }
    }

    #[test]
    fn no_part_of_a_password_becomes_a_printed_host_or_database() {
        for url in [
            "postgres://app:x@hunter2@db/shop",
            "postgres://app:@hunter2@db/shop",
            "postgres://app:x@hunter2:5432@db/shop",
            "postgres://app:x@hunter2/rest@db/shop",
            "postgres://app:x@hunter2?rest@db/shop",
            "postgres://app:x@y,hunter2@db/shop",
            "postgres://app:hunter2@db/shop",
            "postgres://app:hunter2/x@db/shop",
            "postgres://db/shop?password=x@hunter2",
            "postgres://db/shop?user=app&password=x&hunter2=y",
            "host=db user=app password=hunter2",
            "host=db user=app password='hunter2 x'",
            "host=db user=app password=x hunter2",
        ] {
            let told = match parsed(url) {
                Ok(config) => endpoint(&config).to_string(),
                Err(problem) => problem,
            };
            assert!(
                !told.contains("hunter2") && !told.contains("rest"),
                "{url}: {told}"
            );
        }
    }

    #[test]
    fn hosts_of_every_kind_are_told_with_their_ports() {
        for (url, told) in [
            ("postgres://app@db/shop", "shop on db:5432 as app"),
            ("postgres://app@a:1,b:2/shop", "shop on a:1,b:2 as app"),
            ("postgres://app@[::1]:9/shop", "shop on [::1]:9 as app"),
            ("host=/run/pg user=app", "app on /run/pg:5432 as app"),
            (
                "hostaddr=10.1.2.3 user=app dbname=shop",
                "shop on 10.1.2.3:5432 as app",
            ),
        ] {
            assert_eq!(endpoint(&parsed(url).unwrap()).to_string(), told);
        }
    }

    #[test]
    fn a_dead_first_host_leaves_time_for_the_next() {
        let one = parsed("postgres://app@a/shop").unwrap();
        let three = parsed("postgres://app@a,b,c/shop").unwrap();
        let limit = |config: &Config| config.get_connect_timeout().copied().unwrap();
        assert_eq!(limit(&three) * 3, limit(&one));
        let stated = parsed("postgres://app@a,b/shop?connect_timeout=7").unwrap();
        assert_eq!(limit(&stated), Duration::from_secs(7));
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_what_to_do() {
        for (url, told) in [
            ("postgres:///shop?user=app", "names no host"),
            ("postgres://db/shop", "names no user"),
            ("postgres://app@db/shop?sslmode=verify-ca", "verify-ca"),
            (
                "postgres://app@db/shop?sslmode=disable&channel_binding=require",
                "needs TLS",
            ),
            (
                "postgres://app@%2Frun%2Fpg/shop?sslmode=require",
                "demands TLS, and a socket in the file system has none",
            ),
            (
                "host=db,/run/pg user=app channel_binding=require",
                "demands TLS, and a socket",
            ),
            ("host=/run/pg user=app sslrootcert=system", "demands TLS"),
            ("host=a,b port=1,2,3 user=app", "2 hosts and 3 ports"),
            (
                "host=a,b hostaddr=10.0.0.1 user=app",
                "2 hosts and 1 hostaddrs",
            ),
            ("postgres://app@db:many/shop", "port"),
            ("postgres://app@db/shop?aplication_name=x", "known are"),
        ] {
            let problem = parsed(url).unwrap_err();
            assert!(problem.contains(told), "{url}: {problem}");
        }
    }
}
