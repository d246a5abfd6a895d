//! Passwords that change: asked for at each connect.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use crate::error::NoPassword;

use super::Endpoint;

/// A password, which no `Debug` prints.
///
/// # Examples
/// ```
/// use partitioned_pool::driver::Password;
///
/// let password = Password::from("hunter2");
/// assert_eq!(format!("{password:?}"), "Password(..)");
/// assert_eq!(password.expose(), "hunter2");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Password(String);

impl Password {
    /// The password itself, for the driver. Do not print it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Password {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Password {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

type Answer = Result<Password, Box<dyn Error + Send + Sync>>;
type Ask = dyn Fn(Endpoint) -> Pin<Box<dyn Future<Output = Answer> + Send>> + Send + Sync;

/// Where a pool gets its passwords from, if they are not in the `url`: tokens of a cloud's IAM, leases of a Vault, a file
/// that is renewed.
///
/// It is asked each time a connection is opened, for the host, role and database that are connected to; a password in the
/// `url` is then not used. What is to be kept for a while it keeps itself. Connections that are open live on when
/// their password has changed: `max_lifetime` says how long.
///
/// Its time is a part of the partition's `connect_timeout`, of which it may use up nine tenths; the rest is needed to
/// connect. An error of its own, or none in time, is a [`NoPassword`] with its name, in
/// [`Phase::Password`](crate::error::Phase::Password). An error that has a [`std::io::Error`] among its causes, and
/// one that is late, [can pass](crate::error::Failure::is_transient): connecting is tried again, with
/// growing pauses, within the caller's deadline.
///
/// Password and provider print without their secrets. The text of its errors is printed, so no secret belongs there.
///
/// # Examples
/// ```
/// use partitioned_pool::config::PoolConfig;
/// use partitioned_pool::driver::{Endpoint, PasswordProvider};
/// # #[cfg(feature = "tokio-postgres")]
/// use partitioned_pool::{BootError, PartitionedPool, TokioPostgres};
///
/// # #[cfg(feature = "tokio-postgres")]
/// async fn start(config: PoolConfig) -> Result<PartitionedPool<TokioPostgres>, BootError> {
///     let file = PasswordProvider::new("password file", |to: Endpoint| async move {
///         let path = format!("/run/secrets/{}", to.user);
///         let text = tokio::fs::read_to_string(path).await?;
///         Ok::<_, std::io::Error>(text.trim_end().to_owned())
///     });
///     PartitionedPool::<TokioPostgres>::builder(config).password_provider(file).connect().await
/// }
/// ```
#[derive(Clone)]
pub struct PasswordProvider {
    name: Arc<str>,
    ask: Arc<Ask>,
}

impl PasswordProvider {
    /// A provider that errors and logs call `name`, and that is asked by calling `ask`.
    pub fn new<F, Asking, P, E>(name: &str, ask: F) -> Self
    where
        F: Fn(Endpoint) -> Asking + Send + Sync + 'static,
        Asking: Future<Output = Result<P, E>> + Send + 'static,
        P: Into<Password>,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let ask = move |to| -> Pin<Box<dyn Future<Output = Answer> + Send>> {
            let asking = ask(to);
            Box::pin(async move { asking.await.map(Into::into).map_err(Into::into) })
        };
        Self {
            name: name.into(),
            ask: Arc::new(ask),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for PasswordProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PasswordProvider").field(&self.name).finish()
    }
}

/// A driver's options that can have a [`PasswordProvider`]: those of both drivers here.
///
/// # Examples
/// ```
/// use partitioned_pool::driver::{AskForPasswords, PasswordProvider};
/// use partitioned_pool::driver_tokio_postgres::Options;
///
/// fn options(vault: PasswordProvider) -> Options {
///     let mut options = Options::default();
///     options.ask_for_passwords(vault);
///     options
/// }
/// ```
pub trait AskForPasswords {
    /// From now on it is asked at each connect.
    fn ask_for_passwords(&mut self, provider: PasswordProvider);
}

/// The provider of one partition, if it has one: what a driver asks before it connects.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::driver::{PasswordProvider, Passwords};
///
/// let fixed = PasswordProvider::new("fixed", |_| async { Ok::<_, std::io::Error>("hunter2") });
/// let passwords = Passwords::new(Some(fixed), Duration::from_secs(3));
/// assert!(passwords.are_asked_for() && passwords.waited_for().is_none());
/// ```
#[derive(Debug)]
pub struct Passwords {
    provider: Option<PasswordProvider>,
    limit: Duration,
    waiting: AtomicUsize,
}

impl Passwords {
    /// For a partition with this `connect_timeout`, of which the provider may use up nine tenths.
    #[must_use]
    pub fn new(provider: Option<PasswordProvider>, connect_timeout: Duration) -> Self {
        Self {
            provider,
            limit: connect_timeout * 9 / 10,
            waiting: AtomicUsize::new(0),
        }
    }

    /// The password of the moment; `None` without a provider.
    ///
    /// # Errors
    /// The provider failed, or did not answer in time.
    ///
    /// # Cancel safety
    /// Dropping the future drops that of the provider.
    pub async fn ask(&self, to: &Endpoint) -> Result<Option<Password>, NoPassword> {
        let Some(provider) = &self.provider else {
            return Ok(None);
        };
        let _waiting = Waiting::begin(&self.waiting);
        let asking = (provider.ask)(to.clone());
        match timeout(self.limit, asking).await {
            Ok(Ok(password)) => Ok(Some(password)),
            Ok(Err(error)) => Err(NoPassword::failed(provider.name(), error)),
            Err(_elapsed) => Err(NoPassword::late(provider.name(), self.limit)),
        }
    }

    /// Whether there is a provider.
    #[must_use]
    pub fn are_asked_for(&self) -> bool {
        self.provider.is_some()
    }

    /// The name of the provider, while somebody waits for its answer: for
    /// [`Driver::waits_for_password_of`](super::Driver::waits_for_password_of).
    #[must_use]
    pub fn waited_for(&self) -> Option<&str> {
        let provider = self.provider.as_ref()?;
        (self.waiting.load(Ordering::Relaxed) > 0).then(|| provider.name())
    }
}

/// Counts who waits, also when the waiting is given up.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to() -> Endpoint {
        let text = || "shop".to_owned();
        Endpoint {
            hosts: text(),
            user: text(),
            database: text(),
        }
    }

    fn asked(provider: PasswordProvider) -> Passwords {
        Passwords::new(Some(provider), Duration::from_secs(10))
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_hangs_is_late_before_connecting_is() {
        let hangs = PasswordProvider::new("vault", |_| {
            std::future::pending::<Result<String, String>>()
        });
        let passwords = asked(hangs);
        let began = tokio::time::Instant::now();
        let to = to();
        let mut asking = std::pin::pin!(passwords.ask(&to));
        assert!(timeout(Duration::from_secs(1), &mut asking).await.is_err());
        assert_eq!(passwords.waited_for(), Some("vault"));
        let late = asking.await.unwrap_err();
        assert_eq!(began.elapsed(), Duration::from_secs(9));
        assert_eq!(
            late.to_string(),
            "the password provider vault gave no answer within 9.0 s"
        );
        assert_eq!(passwords.waited_for(), None);
    }

    #[tokio::test]
    async fn a_provider_is_asked_for_the_one_who_connects_and_prints_no_secret() {
        let provider = PasswordProvider::new("vault", |to: Endpoint| async move {
            Ok::<_, String>(format!("S3CRET of {}", to.user))
        });
        assert_eq!(format!("{provider:?}"), "PasswordProvider(\"vault\")");
        let password = asked(provider).ask(&to()).await.unwrap().unwrap();
        assert_eq!(password.expose(), "S3CRET of shop");
        assert_eq!(format!("{password:?}"), "Password(..)");
    }

    #[tokio::test]
    async fn whoever_gives_up_waits_no_longer() {
        let hangs = PasswordProvider::new("vault", |_| {
            std::future::pending::<Result<String, String>>()
        });
        let passwords = asked(hangs);
        let moment = Duration::from_millis(1);
        assert!(timeout(moment, passwords.ask(&to())).await.is_err());
        assert_eq!(passwords.waited_for(), None);
    }
}
