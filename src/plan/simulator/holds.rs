//! How long a call holds its slot.

use std::sync::Arc;
use std::time::Duration;

use crate::plan::number::{float, nanos, whole};

use super::csv::{self, InvalidCsv};
use super::random::Random;

/// How long the calls of a flow hold a slot.
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
