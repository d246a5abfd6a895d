//! From a partition's `url` to sqlx's options.

use std::fmt;
use std::sync::Arc;

use ::sqlx::ConnectOptions as _;
use ::sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};

use crate::boot::Builder;
use crate::config::PartitionSettings;
use crate::driver::{AskForPasswords, Endpoint, PasswordProvider, Passwords};

use super::{Error, Sqlx};

type Change = dyn Fn(PgConnectOptions) -> PgConnectOptions + Send + Sync;

/// What is said of connections beyond their `url`: see [`Builder::connect_options`] and
/// [`Builder::password_provider`].
///
/// # Examples
/// ```
/// use partitioned_pool::config::PoolConfig;
/// use partitioned_pool::driver_sqlx::Options;
/// use partitioned_pool::{Builder, PartitionedPool, Sqlx};
///
/// fn with(config: PoolConfig, options: Options) -> Builder<Sqlx> {
///     PartitionedPool::builder(config).options(options)
/// }
/// ```
#[derive(Clone, Default)]
pub struct Options {
    change: Option<Arc<Change>>,
    passwords: Option<PasswordProvider>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("changes", &self.change.is_some())
            .field("passwords", &self.passwords)
            .finish()
    }
}

impl AskForPasswords for Options {
    fn ask_for_passwords(&mut self, provider: PasswordProvider) {
        self.passwords = Some(provider);
    }
}

/// How a connection is opened: what sqlx is told, and a password that is asked for each time.
#[derive(Clone)]
pub(super) struct Login {
    pub(super) options: PgConnectOptions,
    endpoint: Endpoint,
    pub(super) passwords: Arc<Passwords>,
}

impl Login {
    pub(super) fn new(settings: &PartitionSettings, options: &Options) -> Result<Self, String> {
        let connect = parse(settings, options)?;
        let provider = options.passwords.clone();
        Ok(Self {
            endpoint: endpoint(&connect),
            options: connect,
            passwords: Arc::new(Passwords::new(provider, settings.connect_timeout)),
        })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The same, with other options.
    pub(super) fn with(self, change: impl FnOnce(PgConnectOptions) -> PgConnectOptions) -> Self {
        let options = change(self.options);
        Self { options, ..self }
    }

    pub(super) async fn connect(&self) -> Result<PgConnection, Error> {
        match self.passwords.ask(&self.endpoint).await? {
            None => Ok(self.options.connect().await?),
            Some(password) => {
                let options = self.options.clone().password(password.expose());
                Ok(options.connect().await?)
            }
        }
    }
}

impl Builder<Sqlx> {
    /// Changes the options that sqlx reads from a partition's `url` before anything is connected with them:
    /// statement logging, certificates from memory, and whatever else a URL cannot say. Called once for each
    /// partition, and again for what connects in its name; for the same `url` it must give the same.
    ///
    /// To use options that are there already, give them back instead: `move |_| options.clone()`. The
    /// `application_name` is the partition's in any case.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::config::PoolConfig;
    /// use partitioned_pool::driver_sqlx::sqlx::ConnectOptions as _;
    /// use partitioned_pool::{BootError, PartitionedPool, Sqlx};
    ///
    /// async fn start(config: PoolConfig) -> Result<PartitionedPool<Sqlx>, BootError> {
    ///     let pool = PartitionedPool::<Sqlx>::builder(config);
    ///     pool.connect_options(|options| options.disable_statement_logging()).connect().await
    /// }
    /// ```
    pub fn connect_options(
        mut self,
        change: impl Fn(PgConnectOptions) -> PgConnectOptions + Send + Sync + 'static,
    ) -> Self {
        self.options_mut().change = Some(Arc::new(change));
        self
    }
}

/// What sqlx 0.9 knows; it would tell the log what it does not know, with its value.
const KNOWN: [&str; 17] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "options",
];

/// The options that `settings.url` stands for.
///
/// The error never repeats a part of the URL: it may be a part of the password.
pub(super) fn parse(
    settings: &PartitionSettings,
    options: &Options,
) -> Result<PgConnectOptions, String> {
    let url = settings.url.expose();
    // sqlx would take any scheme.
    let Some(("postgres" | "postgresql", rest)) = url.split_once("://") else {
        return Err(
            "is no URL; with sqlx, write postgres://USER:PASSWORD@HOST:PORT/DATABASE".to_owned(),
        );
    };
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if tail.contains('@') || authority.matches('@').count() > 1 {
        return Err(
            "is ambiguous: a special character in the password (an @ is %40) must be \
            percent-encoded"
                .to_owned(),
        );
    }
    let query = tail.split_once('?').map_or("", |(_, query)| query);
    if !query.split('&').all(is_known) {
        return Err(format!(
            "has an unknown parameter; with sqlx, known are {}, options[NAME]. A special character in the password \
            must be percent-encoded",
            KNOWN.join(", ")
        ));
    }
    let parsed = url.parse::<PgConnectOptions>().map_err(|_| {
        "cannot be read by sqlx: it takes one host, and a special character in the password must be \
        percent-encoded"
            .to_owned()
    })?;
    let changed = match &options.change {
        Some(change) => change(parsed),
        None => parsed,
    };
    refuse_without_tls(&changed)?;
    let named = changed.application_name(&settings.application_name);
    Ok(match settings.pooler {
        // Poolers refuse it. Without it, Postgres 12 and later write floats as exactly.
        Some(_) => named.extra_float_digits(None),
        None => named,
    })
}

/// libpq ignores `sslmode` there; here what demands TLS never goes without.
const NO_TLS_BY_SOCKET: &str =
    "demands TLS, and a socket in the file system has none: write sslmode=prefer or disable";

/// sqlx would say so as well, but only when it connects, and of a socket in words that do not tell what to do.
fn refuse_without_tls(options: &PgConnectOptions) -> Result<(), String> {
    use PgSslMode::{Require, VerifyCa, VerifyFull};
    let demanded = matches!(options.get_ssl_mode(), Require | VerifyCa | VerifyFull);
    if demanded && options.get_socket().is_some() {
        return Err(NO_TLS_BY_SOCKET.to_owned());
    }
    if demanded && !::sqlx_core::net::tls::available() {
        return Err(
            "demands TLS, which this build of sqlx does not speak: switch on the feature `tls` of partitioned-pool, or one \
             of sqlx's own"
                .to_owned(),
        );
    }
    Ok(())
}

fn is_known(parameter: &str) -> bool {
    let name = parameter.split('=').next().unwrap_or_default();
    let name = name.split(['[', '%']).next().unwrap_or_default();
    name.is_empty() || name == "application_name" || KNOWN.contains(&name)
}

/// Host, role and database, without any secret.
pub(super) fn endpoint(options: &PgConnectOptions) -> Endpoint {
    let port = options.get_port();
    let hosts = match options.get_socket() {
        Some(folder) => format!("{}:{port}", folder.display()),
        None => format!("{}:{port}", options.get_host()),
    };
    let user = options.get_username().to_owned();
    Endpoint {
        hosts,
        database: options.get_database().unwrap_or(&user).to_owned(),
        user,
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{FleetConfig, PartitionConfig, PoolConfig};
    use crate::parameters_page::rows;

    use super::*;

    fn parsed(url: &str) -> Result<PgConnectOptions, String> {
        let config = PoolConfig::new("shop", url, FleetConfig::new(1, 0))
            .transactional(PartitionConfig::transactional(2))
            .analytical(PartitionConfig::analytical(1));
        parse(
            &config.resolve().unwrap().partitions[0],
            &Options::default(),
        )
    }

    #[test]
    fn each_parameter_of_the_docs_does_what_they_say() {
        let shown = |options: &PgConnectOptions| format!("{options:?}");
        let plain = shown(&parsed("postgres://app@db/shop").unwrap());
        for [name, example, _, told] in rows() {
            match (told, parsed(&format!("postgres://app@db/shop?{example}"))) {
                ("refused", Err(problem)) => assert!(problem.contains("known are"), "{problem}"),
                // Without sqlx's TLS.
                ("taken", Err(problem)) if name == "sslmode" => {
                    assert!(problem.contains("feature `tls`"), "{problem}");
                }
                ("taken", Ok(options)) => assert_ne!(shown(&options), plain, "{name}"),
                ("left out", Ok(options)) => assert_eq!(shown(&options), plain, "{name}"),
                (_, found) => panic!("{name}: {found:?}"),
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
            "postgres://app:5432/hunter2@db/shop",
            "postgres://app:5432?hunter2@db/shop",
            "postgres://app:5432#hunter2@db/shop",
            "postgres://app:x@y,hunter2@db/shop",
            "postgres://app:hunter2@db/shop",
            "postgres://app:hunter2/x@db/shop",
            "postgres://app@db/shop?sslpassword=hunter2",
            "host=db user=app password=hunter2",
        ] {
            let told = match parsed(url) {
                Ok(options) => endpoint(&options).to_string(),
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
            ("postgres://app@[::1]:9/shop", "shop on [::1]:9 as app"),
            (
                "postgres://app@%2Frun%2Fpg/shop",
                "shop on /run/pg:5432 as app",
            ),
            (
                "postgres://app@db/?host=/run/pg",
                "app on /run/pg:5432 as app",
            ),
        ] {
            assert_eq!(endpoint(&parsed(url).unwrap()).to_string(), told);
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_what_to_do() {
        for (url, told) in [
            ("host=db user=app", "with sqlx, write postgres://"),
            ("mysql://app@db/shop", "with sqlx, write postgres://"),
            ("postgres://app@db:many/shop", "one host"),
            ("postgres://app@a:1,b:2/shop", "one host"),
            ("postgres://app@db/shop?connect_timeout=3", "known are"),
            (
                "postgres://app@%2Frun%2Fpg/shop?sslmode=require",
                "demands TLS, and a socket in the file system has none",
            ),
            (
                "postgres://app@db/shop?host=/run/pg&sslmode=verify-full",
                "demands TLS, and a socket",
            ),
        ] {
            let problem = parsed(url).unwrap_err();
            assert!(problem.contains(told), "{url}: {problem}");
        }
        let known = "postgres://app@db/shop?sslmode=prefer&options[work_mem]=9MB&statement-cache-capacity=7";
        assert_eq!(
            parsed(known).unwrap().get_options(),
            Some("-c work_mem=9MB")
        );
    }
}
