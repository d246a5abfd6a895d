//! How fast connections may be opened: freely, or, after the database was not there, with one prober
//! and a slow start. Pure: it is told what happened and says what may be.

use std::time::Duration;

/// The prober's first pause. Doubled with each failure in a row, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The pace of one budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// As many at once as there are places.
    Free,
    /// After this many failures in a row, one task sleeps, and will be the prober. Nobody opens.
    Waiting { failures: u32 },
    /// At most this many at once: 1 for the prober, then 2, 4, ... as connections come.
    Slow { at_once: u32, failures: u32 },
}

impl Pace {
    /// Whether one more may be opened beside `opening` others.
    pub(super) fn allows(self, opening: u32) -> bool {
        match self {
            Self::Free => true,
            Self::Waiting { .. } => false,
            Self::Slow { at_once, .. } => opening < at_once,
        }
    }

    /// A connection was opened.
    pub(super) fn succeeded(&mut self, capacity: u32) {
        if let Self::Slow { at_once, .. } = *self {
            let at_once = at_once.saturating_mul(2);
            *self = if at_once >= capacity {
                Self::Free
            } else {
                Self::Slow {
                    at_once,
                    failures: 0,
                }
            };
        }
    }

    /// An opening failed in a way that can pass. The first of several is told to be the prober, and
    /// after which pause; `random` (0 to 1) takes up to half of it off, so that replicas that failed
    /// together do not come back together.
    pub(super) fn failed(&mut self, random: f64) -> Option<Duration> {
        let failures = match *self {
            Self::Waiting { .. } => return None,
            Self::Free => 0,
            Self::Slow { failures, .. } => failures,
        };
        let doubled = FIRST_PAUSE.saturating_mul(1 << failures.min(16));
        let pause = doubled.min(LONGEST_PAUSE);
        *self = Self::Waiting {
            failures: failures.saturating_add(1),
        };
        Some(pause.mul_f64(1.0 - random.clamp(0.0, 1.0) / 2.0))
    }

    /// The prober has slept: one may be opened.
    pub(super) fn probe(&mut self) {
        if let Self::Waiting { failures } = *self {
            *self = Self::Slow {
                at_once: 1,
                failures,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_of_many_failures_makes_a_prober() {
        let mut pace = Pace::Free;
        assert_eq!(pace.failed(0.0), Some(FIRST_PAUSE));
        assert_eq!(pace.failed(0.0), None);
        assert!(!pace.allows(0));
        pace.probe();
        assert!(pace.allows(0) && !pace.allows(1));
    }

    #[test]
    fn the_pause_doubles_up_to_a_second_and_never_falls_below_half() {
        let mut pace = Pace::Free;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            pauses.extend(pace.failed(1.0));
            pace.probe();
        }
        assert_eq!(pauses[0], FIRST_PAUSE / 2);
        assert_eq!(pauses[1], FIRST_PAUSE);
        assert_eq!(pauses[11], LONGEST_PAUSE / 2);
    }

    #[test]
    fn it_starts_slowly_and_ends_free() {
        let mut pace = Pace::Free;
        pace.failed(0.0);
        pace.probe();
        let mut steps = Vec::new();
        while pace != Pace::Free {
            let allowed = (0..).find(|opening| !pace.allows(*opening));
            steps.extend(allowed);
            pace.succeeded(10);
        }
        assert_eq!(steps, [1, 2, 4, 8]);
    }

    #[test]
    fn a_failure_in_the_slow_start_makes_a_prober_again() {
        let mut pace = Pace::Free;
        pace.failed(0.0);
        pace.probe();
        pace.succeeded(10);
        assert!(pace.failed(0.0).is_some());
        assert!(!pace.allows(0));
    }
}
