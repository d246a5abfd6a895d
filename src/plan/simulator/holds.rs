//! How long a call holds its slot.

use std::sync::Arc;
use std::time::Duration;

use crate::plan::number::{float, nanos, whole};

use super::csv::{self, InvalidCsv};
use super::random::Random;

/// How long the calls of a flow hold a slot.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::plan::simulator::HoldTime;
///
/// let ms = Duration::from_millis;
/// assert_eq!(HoldTime::Empirical([ms(20), ms(60)].into()).mean(), ms(40));
/// assert_eq!(HoldTime::Fixed(ms(40)).times(10), HoldTime::Fixed(ms(400)));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum HoldTime {
    /// Always the same.
    Fixed(Duration),
    /// Exponential with this mean: many short, few long ones.
    Exponential(Duration),
    /// Log-normal: as answer times of a database mostly are.
    LogNormal {
        /// The mean.
        mean: Duration,
        /// The standard deviation as a multiple of the mean: 1 is as wide as exponential.
        spread: f64,
    },
    /// One of these, each as likely as the others; for example as measured.
    Empirical(Arc<[Duration]>),
}

impl HoldTime {
    /// One of the times in the first column of a CSV text, in the format of
    /// [`Arrivals::from_csv`](super::Arrivals::from_csv).
    ///
    /// # Errors
    /// The first line that has no time, with its number.
    pub fn from_csv(text: &str) -> Result<Self, InvalidCsv> {
        Ok(Self::Empirical(csv::seconds(text)?.into()))
    }

    /// Log-normal with this mean, of which one hold in a hundred is longer than `p99`. `None` if there is no
    /// such distribution: `p99` is below the mean, or above 14.9 times it.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use partitioned_pool::plan::simulator::HoldTime;
    ///
    /// let ms = Duration::from_millis;
    /// let Some(HoldTime::LogNormal { spread, .. }) = HoldTime::from_p99(ms(40), ms(150)) else { panic!() };
    /// assert_eq!(format!("{spread:.2}"), "0.74");
    /// assert_eq!(HoldTime::from_p99(ms(40), ms(30)), None);
    /// ```
    #[must_use]
    pub fn from_p99(mean: Duration, p99: Duration) -> Option<Self> {
        // With mean m, p99 is m exp(z s - s^2 / 2), z being the 99th percentile of the normal distribution. Of the
        // two s that solve it the smaller is meant.
        const Z: f64 = 2.326_347_874_040_841;
        let log = libm::log(p99.as_secs_f64() / mean.as_secs_f64());
        let rest = Z * Z - 2.0 * log;
        if mean.is_zero() || !(log >= 0.0 && rest >= 0.0) {
            return None;
        }
        let sigma = Z - rest.sqrt();
        let spread = libm::expm1(sigma * sigma).sqrt();
        Some(Self::LogNormal { mean, spread })
    }

    /// Each hold so many times as long.
    #[must_use]
    pub fn times(&self, factor: u32) -> Self {
        let times = |hold: &Duration| hold.saturating_mul(factor);
        match self {
            Self::Fixed(hold) => Self::Fixed(times(hold)),
            Self::Exponential(mean) => Self::Exponential(times(mean)),
            Self::LogNormal { mean, spread } => Self::LogNormal {
                mean: times(mean),
                spread: *spread,
            },
            Self::Empirical(holds) => Self::Empirical(holds.iter().map(times).collect()),
        }
    }

    /// The mean; zero of an empty list.
    #[must_use]
    pub fn mean(&self) -> Duration {
        match self {
            Self::Fixed(mean) | Self::Exponential(mean) | Self::LogNormal { mean, .. } => *mean,
            Self::Empirical(times) => {
                let sum = times.iter().map(Duration::as_nanos).sum::<u128>();
                let mean = sum.checked_div(times.len() as u128).unwrap_or_default();
                Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
            }
        }
    }

    pub(super) fn sampler(&self) -> Sampler {
        let mean = float(nanos(self.mean()).into());
        match self {
            Self::Fixed(hold) => Sampler::Fixed(nanos(*hold)),
            Self::Exponential(_) => Sampler::Exponential(mean),
            Self::LogNormal { spread, .. } => {
                let variance = libm::log1p(spread * spread);
                let (mu, sigma) = (libm::log(mean) - variance / 2.0, variance.sqrt());
                Sampler::LogNormal { mu, sigma }
            }
            Self::Empirical(times) => Sampler::Empirical(Arc::clone(times)),
        }
    }
}

/// A [`HoldTime`] with what does not change worked out, in nanoseconds.
pub(super) enum Sampler {
    Fixed(u64),
    Exponential(f64),
    LogNormal { mu: f64, sigma: f64 },
    Empirical(Arc<[Duration]>),
}

impl Sampler {
    /// The hold of a call with this luck.
    pub(super) fn hold(&self, luck: u64) -> u64 {
        let mut random = Random::new(luck);
        match self {
            Self::Fixed(hold) => *hold,
            Self::Exponential(mean) => whole(mean * random.exponential()),
            Self::LogNormal { mu, sigma } => whole(libm::exp(mu + sigma * random.normal())),
            Self::Empirical(times) => nanos(times[random.below(times.len())]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Mean in microseconds, and standard deviation as a multiple of it.
    fn measured(hold: &HoldTime) -> (u64, f64) {
        let (sampler, mut luck) = (hold.sampler(), Random::new(5));
        let holds = (0..200_000).map(|_| float(sampler.hold(luck.draw()).into()));
        let holds = holds.collect::<Vec<_>>();
        let mean = holds.iter().sum::<f64>() / 200_000.0;
        let variance = holds.iter().map(|h| (h - mean).powi(2)).sum::<f64>() / 200_000.0;
        (whole(mean / 1e3), variance.sqrt() / mean)
    }

    #[test]
    fn one_hold_in_a_hundred_is_longer_than_the_p99() {
        for p99 in [41, 60, 150, 500] {
            let hold = HoldTime::from_p99(40 * MS, p99 * MS).unwrap();
            let (sampler, mut luck) = (hold.sampler(), Random::new(3));
            let longer = (0..100_000).filter(|_| sampler.hold(luck.draw()) > nanos(p99 * MS));
            let longer = longer.count();
            assert!((850..1150).contains(&longer), "{p99}: {longer}");
        }
        assert_eq!(HoldTime::from_p99(40 * MS, 39 * MS), None);
        assert_eq!(HoldTime::from_p99(40 * MS, 601 * MS), None);
        assert_eq!(HoldTime::from_p99(Duration::ZERO, MS), None);
    }

    #[test]
    fn a_tenfold_hold_is_of_the_same_shape() {
        let list = HoldTime::Empirical([MS, 2 * MS].into());
        assert_eq!(
            list.times(10),
            HoldTime::Empirical([10 * MS, 20 * MS].into())
        );
        let (mean, spread) = (MS, 0.5);
        let log_normal = HoldTime::LogNormal { mean, spread };
        assert_eq!(log_normal.times(10).mean(), 10 * MS);
    }

    #[test]
    fn holds_have_the_mean_and_the_spread_that_were_asked_for() {
        let log_normal = |spread| HoldTime::LogNormal {
            mean: 40 * MS,
            spread,
        };
        let list = HoldTime::from_csv("hold\n0.02\n0.06\n").unwrap();
        for (hold, spread) in [
            (HoldTime::Fixed(40 * MS), 0.0),
            (HoldTime::Exponential(40 * MS), 1.0),
            (log_normal(0.5), 0.5),
            (log_normal(1.0), 1.0),
            (list, 0.5),
        ] {
            let (mean, measured) = measured(&hold);
            assert_eq!(hold.mean(), 40 * MS);
            assert!((39_500..40_500).contains(&mean), "{hold:?}: {mean}");
            assert!((measured - spread).abs() < 0.05, "{hold:?}: {measured}");
        }
    }
}
