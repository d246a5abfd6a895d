//! What happens when, and how much of it: the figures of the sieges.

use std::fmt;
use std::time::Duration;

/// Steady calls a second, evenly spaced and planned ahead.
pub(crate) const RATE: u32 = 100;
/// How long the database is busy with a steady call, asleep: two cores are far from full.
pub(crate) const CALL: Duration = Duration::from_millis(5);
/// A steady call that has no answer this long after its planned arrival is lost.
pub(crate) const DEADLINE: Duration = Duration::from_secs(1);
/// The connections of the steady partition, and of its neighbour.
pub(crate) const SIZE: u32 = 8;
/// Of both together.
pub(crate) const BUDGET: u32 = 2 * SIZE;
/// The neighbour's queue.
pub(crate) const WAITERS: u32 = 16;
/// How long a caller of the neighbour waits for a connection.
pub(crate) const ACQUIRE: Duration = Duration::from_millis(500);
/// How long one of the neighbour's callers may keep a connection in the leaking siege.
pub(crate) const MAX_HOLD: Duration = Duration::from_secs(1);
/// From the end of a siege to the look at what it has left behind.
pub(crate) const SETTLE: Duration = Duration::from_secs(1);
/// How much the p99 may always be above its baseline; or else 1.3 times.
pub(crate) const SLACK: Duration = Duration::from_millis(10);

/// What the neighbour suffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Siege {
    Saturated,
    Slow,
    Leaking,
    CutOff,
    Killed,
    Restarted,
    Stormed,
    Panicking,
    Untidy,
}

/// What the steady partition's p99 is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Baseline {
    /// Its own quiet phase: the neighbour has a server of its own, or only holds connections.
    Quiet,
    /// An equally loaded neighbour that behaves well, since both burn the same server.
    Behaved,
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Quiet => "quiet",
            Self::Behaved => "behaved",
        })
    }
}

impl Siege {
    pub(crate) const ALL: [Self; 9] = [
        Self::Saturated,
        Self::Slow,
        Self::Leaking,
        Self::CutOff,
        Self::Killed,
        Self::Restarted,
        Self::Stormed,
        Self::Panicking,
        Self::Untidy,
    ];

    /// The sieges that the plain pools go through as well.
    pub(crate) const BESIDE: [Self; 2] = [Self::Saturated, Self::Stormed];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Saturated => "saturated",
            Self::Slow => "slow",
            Self::Leaking => "leaking",
            Self::CutOff => "cut_off",
            Self::Killed => "killed",
            Self::Restarted => "restarted",
            Self::Stormed => "stormed",
            Self::Panicking => "panicking",
            Self::Untidy => "untidy",
        }
    }

    /// The siege of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|siege| siege.as_str() == name)
    }

    /// What happens to the neighbour, in words.
    pub(crate) const fn what(self) -> &'static str {
        match self {
            Self::Saturated => "200 calls a second of 100 ms, for 80 of which there is room",
            Self::Slow => "20 calls a second of 2 s",
            Self::Leaking => {
                "20 connections a second are acquired and never given back; max_hold (1 s) takes them away"
            }
            Self::CutOff => "its network is paused: nothing passes and nobody is told",
            Self::Killed => "all its backends are terminated, ten times a second",
            Self::Restarted => "its server, which is its own, is stopped and started",
            Self::Stormed => {
                "its callers leave at random moments, in seven kinds of work, 100 a second"
            }
            Self::Panicking => "its callers panic with a connection in hand, 100 a second",
            Self::Untidy => "its callers leave transactions open, 100 a second",
        }
    }

    pub(crate) const fn baseline(self) -> Baseline {
        match self {
            Self::Saturated | Self::Slow | Self::Leaking | Self::CutOff | Self::Restarted => {
                Baseline::Quiet
            }
            Self::Killed | Self::Stormed | Self::Panicking | Self::Untidy => Baseline::Behaved,
        }
    }

    /// The neighbour's calls a second.
    pub(crate) const fn rate(self) -> u32 {
        match self {
            Self::Saturated => 200,
            Self::Slow | Self::Leaking => 20,
            Self::CutOff
            | Self::Killed
            | Self::Restarted
            | Self::Stormed
            | Self::Panicking
            | Self::Untidy => 100,
        }
    }
}

impl fmt::Display for Siege {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How long each part of a round lasts, and how many rounds there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    /// Steady calls before the first that counts.
    pub(crate) warm_up: Duration,
    pub(crate) baseline: Duration,
    pub(crate) siege: Duration,
}

impl Plan {
    pub(crate) const FULL: Self = Self {
        rounds: 3,
        warm_up: Duration::from_millis(500),
        baseline: Duration::from_secs(3),
        siege: Duration::from_secs(4),
    };

    pub(crate) const QUICK: Self = Self {
        rounds: 1,
        warm_up: Duration::from_millis(500),
        baseline: Duration::from_millis(1_500),
        siege: Duration::from_millis(2_500),
    };
}

/// The most that the p99 may be over this baseline.
pub(crate) fn allowed(baseline: Duration) -> Duration {
    (baseline * 13 / 10).max(baseline + SLACK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_of_ten_milliseconds_and_three_tenths_is_allowed() {
        let ms = Duration::from_millis;
        assert_eq!(allowed(ms(8)), ms(18));
        assert_eq!(allowed(ms(100)), ms(130));
    }

    #[test]
    fn a_siege_is_found_by_its_name() {
        for siege in Siege::ALL {
            assert_eq!(Siege::named(siege.as_str()), Some(siege));
        }
        assert_eq!(Siege::named("besieged"), None);
    }
}
