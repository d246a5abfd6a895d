//! How long a hold lasts, from what has been seen.

use std::time::Duration;

/// Ended holds that must have been seen before their average counts as evidence.
const EVIDENCE: u64 = 8;

/// Weight of the newest hold in the moving average, as a divisor. About the last 16 holds count, so
/// that an estimate follows a change of the workload within one or two turns of a partition.
const WINDOW: u64 = 16;

/// The average of ended holds, and when one last began or ended.
#[derive(Clone, Debug, Default)]
pub(super) struct HoldEstimate {
    ended: u64,
    /// In nanoseconds.
    average: u64,
    last_turn: Duration,
}

impl HoldEstimate {
    /// Takes note that a hold began at `now`.
    #[inline]
    pub(super) fn begin(&mut self, now: Duration) {
        self.last_turn = now;
    }

    /// Takes in a hold of `length` that ended at `now`.
    #[inline]
    pub(super) fn record(&mut self, length: Duration, now: Duration) {
        self.ended += 1;
        self.last_turn = now;
        let (old, new) = (self.average, nanos(length));
        let share = self.share(old.abs_diff(new));
        self.average = if new >= old { old + share } else { old - share };
    }

    /// What one hold moves the average. By a constant once the window is full: a division by a
    /// variable costs as much as the rest of a release.
    #[inline]
    fn share(&self, difference: u64) -> u64 {
        if self.ended >= WINDOW {
            difference / WINDOW
        } else {
            difference / self.ended
        }
    }

    fn average(&self) -> Duration {
        Duration::from_nanos(self.average)
    }

    /// Whether enough holds have ended to tell how long one lasts.
    pub(super) fn has_evidence(&self) -> bool {
        self.ended >= EVIDENCE
    }

    /// The expected length of a hold, or `None` without evidence.
    ///
    /// It is the average of ended holds. When none has begun or ended for longer than that average,
    /// it is the larger of the average and `mean_age`, the mean age of the holds that run: in an
    /// incident nothing ends, and the average would describe a past that is over. While holds do end,
    /// the age of the others is not looked at: one leaked hold, an hour old, must not make a partition
    /// whose other slots turn over in milliseconds refuse everyone. Nor must it after a quiet moment,
    /// when a burst has just taken those slots: so beginnings count, too. (While everything is stuck
    /// none begins, either.)
    pub(super) fn expected(&self, mean_age: Option<Duration>, now: Duration) -> Option<Duration> {
        let average = self.has_evidence().then(|| self.average());
        let stalled = now.saturating_sub(self.last_turn) > self.average();
        let age = mean_age.filter(|age| stalled && !age.is_zero());
        average.max(age)
    }
}

/// `duration` in whole nanoseconds; above 584 years, the most that fits.
#[inline]
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn seen(lengths: impl IntoIterator<Item = u32>) -> (HoldEstimate, Duration) {
        let mut estimate = HoldEstimate::default();
        let mut now = Duration::ZERO;
        for length in lengths {
            now += MS * length;
            estimate.record(MS * length, now);
        }
        (estimate, now)
    }

    #[test]
    fn a_few_ended_holds_are_no_evidence() {
        let (estimate, now) = seen([40; 7]);
        assert_eq!(estimate.expected(None, now), None);
        let (estimate, now) = seen([40; 8]);
        assert_eq!(estimate.expected(None, now), Some(40 * MS));
    }

    #[test]
    fn the_average_follows_a_change_of_the_workload() {
        let (estimate, now) = seen([10; 100].into_iter().chain([1000; 40]));
        assert!(estimate.expected(None, now).unwrap() > 900 * MS);
    }

    #[test]
    fn when_nothing_ends_the_age_of_what_runs_counts() {
        let (estimate, now) = seen([40; 20]);
        let later = now + 10_000 * MS;
        assert_eq!(estimate.expected(Some(9_000 * MS), later), Some(9_000 * MS));
        assert_eq!(estimate.expected(Some(7 * MS), later), Some(40 * MS));
    }

    #[test]
    fn a_leaked_hold_does_not_count_while_others_end() {
        let (estimate, now) = seen([40; 20]);
        let leaked = Some(3_600_000 * MS);
        assert_eq!(estimate.expected(leaked, now + 2 * MS), Some(40 * MS));
    }
}
