//! From calls to figures: of a round, and of all rounds of a siege.

use std::time::Duration;

use tokio::time::Instant;

use crate::calls::{Outcome, Tally, percentile};
use crate::plan::{SIZE, Siege, allowed};
use crate::side::Maker;
use crate::steady::Call;
use crate::support::attempts::{Attempts, most_attempts};
use crate::watch::Seen;

/// A stretch of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) from: Instant,
    pub(crate) to: Instant,
}

/// The steady calls that were planned in one stretch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steadiness {
    pub(crate) tally: Tally,
    /// Of the calls that were answered or left at their deadline: a quick refusal must not look fast.
    pub(crate) p99: Duration,
}

impl Steadiness {
    pub(crate) fn of(calls: &[Call], stretch: Stretch) -> Self {
        let within = |c: &&Call| stretch.from <= c.planned && c.planned < stretch.to;
        let calls: Vec<_> = calls.iter().filter(within).collect();
        let counts = |c: &&&Call| matches!(c.outcome, Outcome::Ok | Outcome::Late);
        let mut sorted: Vec<_> = calls.iter().filter(counts).map(|c| c.latency).collect();
        sorted.sort_unstable();
        Self {
            tally: Tally::of(calls.iter().map(|c| &c.outcome)),
            p99: percentile(&sorted, 99).unwrap_or(Duration::ZERO),
        }
    }
}

/// Connecting in vain while a server is down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub(crate) failed: u64,
    /// The most that one prober may try in the time from the first failure to the last.
    pub(crate) most: u64,
    pub(crate) lasted: Duration,
}

impl Outage {
    pub(crate) fn of(attempts: &Attempts) -> Self {
        let lasted = attempts.lasted();
        Self {
            failed: attempts.failed(),
            most: most_attempts(lasted, SIZE),
            lasted,
        }
    }
}

/// What one round of a siege came to.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) baseline: Steadiness,
    pub(crate) steady: Steadiness,
    pub(crate) neighbour: Tally,
    pub(crate) seen: Seen,
    /// How often a second the server was looked at.
    pub(crate) looks_a_second: f64,
    pub(crate) in_use_after: u32,
    pub(crate) orphans_after: u32,
    /// Until as many callers as there are slots have their answer, who come together when the siege has been over
    /// for a second; `None` if one has none.
    pub(crate) usable: Option<Duration>,
    /// Connections that are left when the pool is closed.
    pub(crate) left: u32,
    /// Where the server is restarted.
    pub(crate) outage: Option<Outage>,
}

impl Round {
    /// How far the p99 is above what is allowed; negative if it is not.
    fn excess(&self) -> f64 {
        self.steady.p99.as_secs_f64() - allowed(self.baseline.p99).as_secs_f64()
    }
}

/// What a siege came to.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) siege: Siege,
    pub(crate) maker: Maker,
    /// At least one.
    rounds: Vec<Round>,
}

impl Figures {
    pub(crate) fn new(siege: Siege, maker: Maker, mut rounds: Vec<Round>) -> Self {
        rounds.sort_by(|a, b| a.excess().total_cmp(&b.excess()));
        Self {
            siege,
            maker,
            rounds,
        }
    }

    /// The round whose p99 is the median, by how far it is from what is allowed.
    pub(crate) fn median(&self) -> &Round {
        &self.rounds[self.rounds.len() / 2]
    }

    /// Steady calls of every round.
    pub(crate) fn started(&self) -> u32 {
        self.sum(|round| round.steady.tally.started)
    }

    /// Those that were answered in time.
    pub(crate) fn ok(&self) -> u32 {
        self.sum(|round| round.steady.tally.ok)
    }

    /// Those that were not.
    pub(crate) fn lost(&self) -> u32 {
        self.sum(|round| round.steady.tally.lost())
    }

    pub(crate) fn sum(&self, pick: impl Fn(&Round) -> u32) -> u32 {
        self.rounds.iter().map(pick).sum()
    }

    pub(crate) fn most(&self, pick: impl Fn(&Round) -> u32) -> u32 {
        self.rounds.iter().map(pick).max().unwrap_or(0)
    }

    /// The slowest of the rounds.
    pub(crate) fn usable(&self) -> Option<Duration> {
        let all: Option<Vec<_>> = self.rounds.iter().map(|round| round.usable).collect();
        all?.into_iter().max()
    }

    /// The outage with the most attempts, where the server is restarted.
    pub(crate) fn outage(&self) -> Option<Outage> {
        let outages = self.rounds.iter().filter_map(|round| round.outage);
        outages.max_by_key(|outage| outage.failed)
    }

    /// The outages in which it was tried more often than one prober may.
    pub(crate) fn hammered(&self) -> Option<Outage> {
        let outages = self.rounds.iter().filter_map(|round| round.outage);
        outages
            .into_iter()
            .find(|outage| outage.failed > outage.most)
    }

    pub(crate) fn looks_a_second(&self) -> f64 {
        let looks = self.rounds.iter().map(|round| round.looks_a_second);
        looks.fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn longest_gap(&self) -> Duration {
        let gaps = self.rounds.iter().map(|round| round.seen.longest_gap);
        gaps.max().unwrap_or_default()
    }

    /// What the first lost steady call was told.
    pub(crate) fn trouble(&self) -> Option<&str> {
        let told = |round: &'_ Round| round.steady.tally.first_trouble.is_some();
        let round = self.rounds.iter().find(|round| told(round))?;
        round.steady.tally.first_trouble.as_deref()
    }
}
