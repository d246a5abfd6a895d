//! A count that changes over time.

use crate::plan::figures::Level;
use crate::plan::number::ratio;

/// Its value now, and its area and its peak since it was last taken.
#[derive(Clone, Debug, Default)]
pub(super) struct Gauge {
    value: u32,
    since: u64,
    area: u128,
    peak: u32,
    taken: u64,
}

impl Gauge {
    pub(super) const fn value(&self) -> u32 {
        self.value
    }

    #[inline]
    pub(super) fn up(&mut self, now: u64) {
        self.pass(now);
        self.value += 1;
        self.peak = self.peak.max(self.value);
    }

    #[inline]
    pub(super) fn down(&mut self, now: u64) {
        self.pass(now);
        self.value -= 1;
    }

    #[inline]
    fn pass(&mut self, now: u64) {
        self.area += u128::from(self.value) * u128::from(now - self.since);
        self.since = now;
    }

    /// What it was since it was last taken; a new time begins.
    pub(super) fn take(&mut self, now: u64) -> Level {
        self.pass(now);
        let average = ratio(self.area, u128::from(now - self.taken));
        let level = Level {
            average,
            peak: self.peak,
        };
        (self.area, self.peak, self.taken) = (0, self.value, now);
        level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_is_over_time_and_the_peak_over_all_moments() {
        let mut gauge = Gauge::default();
        gauge.up(10);
        gauge.up(20);
        gauge.down(20);
        let (average, peak) = (0.75, 2);
        assert_eq!(gauge.take(40), Level { average, peak });
        let (average, peak) = (1.0, 1);
        assert_eq!(gauge.take(50), Level { average, peak });
    }
}
