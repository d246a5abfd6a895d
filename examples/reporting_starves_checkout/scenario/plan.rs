//! What happens when: the figures of the scenario.

use std::fmt;
use std::time::Duration;

/// Checkouts a second. Evenly spaced, and planned ahead: whether the last one is answered or not, the next comes.
pub(crate) const RATE: u32 = 200;
/// How long the database is busy with one checkout, so that 8 are under way.
pub(crate) const CALL: Duration = Duration::from_millis(40);
/// A checkout that has no answer this long after its planned arrival is lost.
pub(crate) const DEADLINE: Duration = Duration::from_secs(1);
/// Reports that start together when the incident begins.
pub(crate) const REPORTS: u32 = 50;
/// The connections of the one pool.
pub(crate) const SHARED: u32 = 50;
/// The connections of the transactional partition.
pub(crate) const TRANSACTIONAL: u32 = 20;
/// The connections of the analytical partition.
pub(crate) const ANALYTICAL: u32 = 10;
/// The server's limit.
pub(crate) const MAX_CONNECTIONS: u32 = 100;

/// The three parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Before,
    Incident,
    After,
}

impl Phase {
    pub(crate) const ALL: [Self; 3] = [Self::Before, Self::Incident, Self::After];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::Incident => "incident",
            Self::After => "after",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How long each part lasts. A report lasts as long as the incident.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Checkouts before the first that counts.
    pub(crate) warm_up: Duration,
    pub(crate) before: Duration,
    pub(crate) incident: Duration,
    pub(crate) after: Duration,
    /// How much the p99 of the incident may be above that before it, where 1.2 times is less than that. Among few
    /// checkouts the p99 is one of the slowest, and one hiccup of the machine moves it by some milliseconds.
    pub(crate) p99_slack: Duration,
}

impl Plan {
    /// The worked example: reports of 20 s, and enough checkouts before them for a p99 that means something.
    pub(crate) const FULL: Self = Self {
        warm_up: Duration::from_secs(1),
        before: Duration::from_secs(20),
        incident: Duration::from_secs(20),
        after: Duration::from_secs(10),
        p99_slack: Duration::ZERO,
    };

    /// The same within seconds, reports of 3 s.
    pub(crate) const QUICK: Self = Self {
        warm_up: Duration::from_millis(500),
        before: Duration::from_secs(2),
        incident: Duration::from_secs(3),
        after: Duration::from_secs(1),
        p99_slack: Duration::from_millis(10),
    };

    /// From the start of `before` to the end of `after`.
    pub(crate) fn total(&self) -> Duration {
        self.before + self.incident + self.after
    }

    pub(crate) fn lasts(&self, phase: Phase) -> Duration {
        match phase {
            Phase::Before => self.before,
            Phase::Incident => self.incident,
            Phase::After => self.after,
        }
    }

    /// The phase at this time after the start of `before`.
    pub(crate) fn phase_at(&self, at: Duration) -> Phase {
        if at < self.before {
            Phase::Before
        } else if at < self.before + self.incident {
            Phase::Incident
        } else {
            Phase::After
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both_layouts(plan: &Plan) -> Duration {
        2 * (plan.warm_up + plan.total())
    }

    #[test]
    fn the_quick_run_leaves_time_to_start_a_server_within_20_s() {
        assert!(both_layouts(&Plan::QUICK) <= Duration::from_secs(15));
        assert!(both_layouts(&Plan::FULL) <= Duration::from_secs(120));
    }

    #[test]
    fn a_phase_begins_where_the_one_before_it_ends() {
        let at = |millis| Plan::QUICK.phase_at(Duration::from_millis(millis));
        let phases = [0, 1_999, 2_000, 4_999, 5_000, 6_000].map(at);
        let [before, incident, after] = Phase::ALL;
        assert_eq!(phases, [before, before, incident, incident, after, after]);
    }

    #[test]
    fn an_incident_lasts_long_enough_for_most_of_its_checkouts_to_miss_their_deadline() {
        assert!(Plan::QUICK.incident > 2 * DEADLINE);
        assert_eq!(Plan::FULL.incident, Duration::from_secs(20));
    }
}
