//! What the owner states about booting.

use std::{fmt, time::Duration};

use serde::Deserialize;

use super::{
    leaf::{Overlay, replace},
    limit,
};

/// How long the boot check of one server may take when nothing is stated: long enough for a connection through
/// TLS to a busy server, short enough for the start-up probe of a container.
pub const DEFAULT_CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// What building the pool does when a database is not there yet.
///
/// As text `when_unavailable = "fail"`, `"wait"` (and then `wait = "30s"`) or `"start"`.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::{BootConfig, WhenUnavailable};
///
/// let patient = BootConfig::new().when_unavailable(WhenUnavailable::Wait(Duration::from_secs(30)));
/// # let _ = patient;
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenUnavailable {
    /// Fails at once. The default: whatever starts the service sees it, and tries again.
    #[default]
    Fail,
    /// Tries again for up to this long, then fails.
    Wait(Duration),
    /// Starts without it, and without having checked anything: acquires fail until it is there.
    Start,
}

/// What the pool may have to say of itself when it starts, and can be told not to.
///
/// As text in `boot.silence`: the code of the [warning](crate::BootWarning), such as `"shared_server"`.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{BootConfig, WarningCode};
///
/// let quiet = BootConfig::new().silence([WarningCode::SharedServer]);
/// assert_eq!(WarningCode::SharedServer.as_str(), "shared_server");
/// # let _ = quiet;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WarningCode {
    /// Partitions share a server.
    SharedServer,
    /// Many partitions too small to be useful.
    OverIsolation,
    /// `acquire_timeout` leaves nothing of the callers' deadline.
    AcquireTimeout,
    /// The server ends idle sessions before `idle_timeout` does.
    IdleTimeout,
    /// A connection is older than `max_lifetime` when its longest statement ends.
    MaxLifetime,
}

impl WarningCode {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::SharedServer,
        Self::OverIsolation,
        Self::AcquireTimeout,
        Self::IdleTimeout,
        Self::MaxLifetime,
    ];

    /// The code as it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SharedServer => "shared_server",
            Self::OverIsolation => "over_isolation",
            Self::AcquireTimeout => "acquire_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::MaxLifetime => "max_lifetime",
        }
    }

    /// The code that is written so. The text itself is not part of the message: it may be a secret in the wrong field.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|code| code.as_str() == text);
        found.ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            format!("unknown warning; known are {known}")
        })
    }
}

impl fmt::Display for WarningCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the pool boots.
///
/// In TOML this is the table `[boot]`.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::{BootConfig, WhenUnavailable};
///
/// let boot = BootConfig::new().when_unavailable(WhenUnavailable::Wait(Duration::from_secs(30)));
/// # let _ = boot;
/// ```
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootConfig {
    pub(super) when_unavailable: Option<Word>,
    #[serde(default, deserialize_with = "limit::duration")]
    pub(super) wait: Option<Duration>,
    #[serde(default, deserialize_with = "limit::duration")]
    pub(super) check_timeout: Option<Duration>,
    pub(super) silence: Option<Vec<WarningCode>>,
}

/// The word for a [`WhenUnavailable`], whose bound is stated apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Word {
    #[default]
    Fail,
    Wait,
    Start,
}

impl BootConfig {
    /// The defaults: fail at once when a database is not there, and check each server within 10 s.
    pub fn new() -> Self {
        Self::default()
    }

    /// What happens when a database is not there yet. Default: [`WhenUnavailable::Fail`].
    #[must_use]
    pub fn when_unavailable(mut self, when: WhenUnavailable) -> Self {
        let (word, wait) = match when {
            WhenUnavailable::Fail => (Word::Fail, None),
            WhenUnavailable::Wait(bound) => (Word::Wait, Some(bound)),
            WhenUnavailable::Start => (Word::Start, None),
        };
        (self.when_unavailable, self.wait) = (Some(word), wait);
        self
    }

    /// The longest that one try to connect a partition may take, and then the look at its server: each.
    /// Default: [`DEFAULT_CHECK_TIMEOUT`].
    #[must_use]
    pub fn check_timeout(mut self, timeout: Duration) -> Self {
        self.check_timeout = Some(timeout);
        self
    }

    /// The [warnings](crate::BootWarning) that are not given: their owner knows. Default: none is silenced. In TOML a
    /// list of codes, in the environment the same with commas between.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::config::{BootConfig, PoolConfig, WarningCode};
    ///
    /// let boot = BootConfig::new().silence([WarningCode::SharedServer]);
    /// let pool = PoolConfig::from_toml("boot = { silence = ['shared_server'] }")?;
    /// # let _ = (boot, pool);
    /// # Ok::<(), partitioned_pool::config::ConfigError>(())
    /// ```
    #[must_use]
    pub fn silence(mut self, codes: impl IntoIterator<Item = WarningCode>) -> Self {
        self.silence = Some(codes.into_iter().collect());
        self
    }
}

impl Overlay for BootConfig {
    fn overlay(&mut self, over: Self) {
        let Self {
            when_unavailable,
            wait,
            check_timeout,
            silence,
        } = over;
        replace(&mut self.when_unavailable, when_unavailable);
        replace(&mut self.wait, wait);
        replace(&mut self.check_timeout, check_timeout);
        replace(&mut self.silence, silence);
    }
}
