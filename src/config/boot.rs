//! What the owner states about booting.

use std::time::Duration;

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
}

impl Overlay for BootConfig {
    fn overlay(&mut self, over: Self) {
        let Self {
            when_unavailable,
            wait,
            check_timeout,
        } = over;
        replace(&mut self.when_unavailable, when_unavailable);
        replace(&mut self.wait, wait);
        replace(&mut self.check_timeout, check_timeout);
    }
}
