//! What is checked: a configuration or flags, against a server or stated limits.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use partitioned_pool::config::{
    ANALYTICAL, BootConfig, ExternalPool, FleetConfig, Kind, PartitionConfig, PoolConfig, Settings,
    TRANSACTIONAL, WhenUnavailable,
};
use partitioned_pool::fleet::{FleetReport, Login, ServerLimits, StatedLimits, assess_stated};
use partitioned_pool::{PartitionedPool, TokioPostgres};
use tokio::runtime::{self, Runtime};
use tokio::time::timeout;

use super::secret::with_password;
use super::{invalid, unchecked};
use crate::output::Stop;

/// The variables that are read beside the flags.
const URL: &str = "DATABASE_URL";
const PASSWORD: &str = "PGPASSWORD";

/// Where nothing is asked and no url is given: names for the report.
const PLACEHOLDER: &str = "postgres://the-role@the-server/the-database";

#[derive(Args)]
pub(super) struct Input {
    #[command(flatten)]
    stated: Stated,
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    offline: Offline,
    /// The longest that all of it may take, such as "5s". Default: boot.check_timeout (10s unless stated), and
    /// boot.wait.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// Connections that the service's driver keeps in each replica beside its partitions: 0 with tokio-postgres, 1 with
    /// sqlx. For each role and database that partitions log in with.
    #[arg(long, value_name = "N", default_value = "0", value_parser = count, allow_negative_numbers = true)]
    control: u32,
}

/// The service's own configuration.
#[derive(Args)]
struct Stated {
    /// The service's configuration, in TOML.
    #[arg(long, value_name = "FILE", conflicts_with_all = Flags::ALL)]
    config: Option<PathBuf>,
    /// Reads the variables that begin with PREFIX and _ over the file, or instead of one: SHOP_DB reads SHOP_DB_URL.
    #[arg(long, value_name = "PREFIX", conflicts_with_all = Flags::ALL)]
    env_prefix: Option<String>,
}

/// The same, as far as the sum needs it.
#[derive(Args)]
struct Flags {
    /// The server, role and database. Default: the variable DATABASE_URL. A password is better there, or in PGPASSWORD.
    #[arg(long)]
    url: Option<String>,
    /// The name of the service, by which its own sessions are known from those of others.
    #[arg(long, value_name = "NAME", default_value = "fleet-check")]
    service: String,
    /// A partition and its max_connections, once for each.
    #[arg(long = "partition", value_name = "NAME=SIZE", value_parser = named_size, required_unless_present_any = ["config", "env_prefix"])]
    partitions: Vec<(String, u32)>,
    /// A pool of each replica that is not of partitioned-pool, once for each.
    #[arg(long, value_name = "NAME=SIZE", value_parser = named_size)]
    external: Vec<(String, u32)>,
    /// The most replicas in steady running.
    #[arg(long, value_name = "N", required_unless_present_any = ["config", "env_prefix"], value_parser = count, allow_negative_numbers = true)]
    max_replicas: Option<u32>,
    /// The replicas that a deploy adds, terminating ones included; 0 must be said.
    #[arg(long, value_name = "N", required_unless_present_any = ["config", "env_prefix"], value_parser = count, allow_negative_numbers = true)]
    surge: Option<u32>,
    /// Connections left to everybody else.
    #[arg(long, value_name = "N", default_value = "0", value_parser = count, allow_negative_numbers = true)]
    reserve: u32,
}

/// Limits that are stated, and not asked for.
#[derive(Args)]
struct Offline {
    /// Asks no server: its limits are stated.
    #[arg(long, requires = "max_connections")]
    offline: bool,
    /// max_connections of each server.
    #[arg(long, value_name = "N", requires = "offline", value_parser = count, allow_negative_numbers = true)]
    max_connections: Option<u32>,
    /// superuser_reserved_connections. Default: that of Postgres, 3.
    #[arg(long, value_name = "N", requires = "offline", value_parser = count, allow_negative_numbers = true)]
    superuser_reserved: Option<u32>,
    /// reserved_connections (16 and later). Default: 0.
    #[arg(long, value_name = "N", requires = "offline", value_parser = count, allow_negative_numbers = true)]
    reserved: Option<u32>,
    /// CONNECTION LIMIT of each role that partitions log in with. Default: none.
    #[arg(long, value_name = "N", requires = "offline", value_parser = count, allow_negative_numbers = true)]
    role_limit: Option<u32>,
    /// CONNECTION LIMIT of each database that they use. Default: none.
    #[arg(long, value_name = "N", requires = "offline", value_parser = count, allow_negative_numbers = true)]
    database_limit: Option<u32>,
    /// The major version, if it is before 16, which knows no reserved_connections. Default: not stated.
    #[arg(long, value_name = "MAJOR", requires = "offline", value_parser = clap::value_parser!(u32).range(10..=99))]
    server_version: Option<u32>,
}

/// What was found.
pub(super) struct Found {
    pub(super) report: FleetReport,
    pub(super) settings: Settings,
    pub(super) logins: Vec<Login>,
}

impl Input {
    pub(super) fn is_offline(&self) -> bool {
        self.offline.offline
    }

    fn is_of_flags(&self) -> bool {
        self.stated.config.is_none() && self.stated.env_prefix.is_none()
    }

    /// A partition of which nothing but a name and a size is known.
    pub(super) fn kindless(&self) -> Option<&str> {
        let mut partitions = self.flags.partitions.iter();
        let found = partitions.find(|(name, _)| name != TRANSACTIONAL && name != ANALYTICAL);
        found.map(|(name, _)| name.as_str())
    }

    /// True if roles and databases are known.
    pub(super) fn names_roles(&self) -> bool {
        !self.is_of_flags() || self.flags.stated_url().is_some()
    }

    /// Does the check.
    pub(super) fn check(&self) -> Result<Found, Stop> {
        let runtime = runtime()?;
        let found = self.check_on(&runtime);
        // A name that is still being looked up has a thread, which nobody waits for.
        runtime.shutdown_background();
        found
    }

    fn check_on(&self, runtime: &Runtime) -> Result<Found, Stop> {
        let _entered = runtime.enter();
        let config = self.with_control(self.config()?)?;
        let settings = config.resolve().map_err(|error| invalid(&error))?;
        let logins = logins(config.clone())?;
        let report = match self.offline.limits() {
            Some(limits) => assess_stated(&settings, &logins, &limits),
            None => runtime.block_on(self.ask(config, &settings))?,
        };
        Ok(Found {
            report,
            settings,
            logins,
        })
    }

    fn config(&self) -> Result<PoolConfig, Stop> {
        let Stated { config, env_prefix } = &self.stated;
        let stated = match (config, env_prefix) {
            (None, None) => return self.flags.config(self.is_offline()),
            (None, Some(prefix)) => PoolConfig::from_env(prefix),
            (Some(file), None) => PoolConfig::from_toml_file(file),
            (Some(file), Some(prefix)) => {
                PoolConfig::from_toml_file(file).and_then(|config| config.apply_env(prefix))
            }
        };
        stated.map_err(|error| invalid(&error))
    }

    /// The driver's own connections, as a pool of each role and database.
    fn with_control(&self, mut config: PoolConfig) -> Result<PoolConfig, Stop> {
        if self.control == 0 {
            return Ok(config);
        }
        let mut known: Vec<(String, String)> = Vec::new();
        let settings = config.clone().resolve().map_err(|error| invalid(&error))?;
        // The one that may follow is that of the seats, beside which nothing is kept.
        let of_partitions = settings.partitions.len();
        for login in logins(config.clone())?.into_iter().take(of_partitions) {
            let of = (login.role, login.database);
            if !known.contains(&of) {
                known.push(of);
            }
        }
        for (n, (role, database)) in (1..).zip(known) {
            let pool = ExternalPool::new(format!("control-{n}"), self.control);
            config = config.external(pool.role(role).database(database));
        }
        Ok(config)
    }

    async fn ask(&self, config: PoolConfig, settings: &Settings) -> Result<FleetReport, Stop> {
        let Bound { whole, boot } = self.bound(settings);
        let check = PartitionedPool::<TokioPostgres>::check(config.boot(boot));
        match timeout(whole, check).await {
            Ok(checked) => checked.map_err(|error| unchecked(&error)),
            Err(_elapsed) => Err(Stop(format!(
                "the server did not answer within {}; see whether it is up and reachable from here, or raise --timeout",
                humantime::format_duration(whole)
            ))),
        }
    }

    /// A tenth of the time is left to say what took so long. A service that may start unchecked is checked here.
    fn bound(&self, settings: &Settings) -> Bound {
        let patience = match settings.boot.when_unavailable {
            WhenUnavailable::Wait(patience) => patience,
            _ => Duration::ZERO,
        };
        let stated = settings.boot.check_timeout.saturating_add(patience);
        let whole = self.timeout.unwrap_or(stated);
        let each = settings.boot.check_timeout.min(whole) * 9 / 10;
        let boot = BootConfig::new().check_timeout(each);
        let patience = patience.min(whole - each);
        Bound {
            whole,
            boot: match patience {
                Duration::ZERO => boot,
                patience => boot.when_unavailable(WhenUnavailable::Wait(patience)),
            },
        }
    }
}

/// How long it may take.
struct Bound {
    whole: Duration,
    boot: BootConfig,
}

impl Flags {
    /// What a configuration states itself.
    const ALL: [&str; 7] = [
        "url",
        "service",
        "partitions",
        "external",
        "max_replicas",
        "surge",
        "reserve",
    ];

    fn config(&self, offline: bool) -> Result<PoolConfig, Stop> {
        let (Some(replicas), Some(surge)) = (self.max_replicas, self.surge) else {
            return Err(Stop::new("state --max-replicas and --surge"));
        };
        for always in [TRANSACTIONAL, ANALYTICAL] {
            if self.partitions.iter().all(|(name, _)| name != always) {
                return Err(Stop(format!(
                    "state --partition {always}=SIZE, too: every pool has it"
                )));
            }
        }
        let fleet = FleetConfig::new(replicas, surge).reserve(self.reserve);
        let external = self.external.iter();
        let fleet = external.fold(fleet, |fleet, (name, size)| {
            fleet.external(ExternalPool::new(name, *size))
        });
        let config = PoolConfig::new(&self.service, self.url(offline)?, fleet);
        let partitions = self.partitions.iter();
        Ok(partitions.fold(config, |config, (name, size)| {
            config.partition(partition(name, *size))
        }))
    }

    fn url(&self, offline: bool) -> Result<String, Stop> {
        match (self.stated_url(), env::var(PASSWORD)) {
            (Some(url), Ok(password)) => Ok(with_password(&url, &password)),
            (Some(url), Err(_)) => Ok(url),
            (None, _) if offline => Ok(PLACEHOLDER.to_owned()),
            (None, _) => Err(Stop(format!(
                "state the server by --url or in the variable {URL}"
            ))),
        }
    }

    fn stated_url(&self) -> Option<String> {
        self.url.clone().or_else(|| env::var(URL).ok())
    }
}

/// The sum is of sizes alone, whatever its kind.
fn partition(name: &str, size: u32) -> PartitionConfig {
    match name {
        ANALYTICAL => PartitionConfig::analytical(size),
        _ => PartitionConfig::named(name, Kind::Transactional, size),
    }
}

impl Offline {
    fn limits(&self) -> Option<StatedLimits> {
        let mut server = ServerLimits::stated(self.max_connections?);
        server.version_num = self.server_version.map(|major| major * 10_000);
        if let Some(reserved) = self.superuser_reserved {
            server.superuser_reserved_connections = reserved;
        }
        server.reserved_connections = self.reserved.unwrap_or(0);
        let mut limits = StatedLimits::new(server);
        limits.role_limit = self.role_limit;
        limits.database_limit = self.database_limit;
        Some(limits)
    }
}

fn logins(config: PoolConfig) -> Result<Vec<Login>, Stop> {
    let builder = PartitionedPool::<TokioPostgres>::builder(config);
    builder.logins().map_err(|error| unchecked(&error))
}

fn runtime() -> Result<Runtime, Stop> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Stop(format!("nothing can be asked here: {error}")))
}

/// Not repeated in any message: it may be a secret in the wrong place.
fn named_size(text: &str) -> Result<(String, u32), String> {
    let named = text.split_once('=');
    let sized = named.and_then(|(name, size)| Some((name.to_owned(), size.parse().ok()?)));
    sized.ok_or_else(|| "write NAME=SIZE with a whole number from 1, such as reports=10".to_owned())
}

fn count(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "write a whole number, such as 3")
}

fn duration(text: &str) -> Result<Duration, String> {
    let read = humantime::parse_duration(text).ok();
    let read = read.filter(|time| !time.is_zero());
    read.ok_or_else(|| "write a time above 0 with its unit, such as 5s".to_owned())
}
