//! The random numbers of the published model with two flows.

use crate::plan::number::{float, whole};

const MODULUS: u64 = 2_147_483_647;

/// Lehmer's generator: `s = 48271 s mod 2147483647`, and `u = s / 2147483647`.
pub(super) struct Lehmer(u64);

impl Lehmer {
    /// `None` for a seed from which only zeros follow.
    pub(super) fn new(seed: u32) -> Option<Self> {
        let seed = u64::from(seed) % MODULUS;
        (seed != 0).then_some(Self(seed))
    }

    fn unit(&mut self) -> f64 {
        self.0 = self.0 * 48_271 % MODULUS;
        float(self.0.into()) / float(MODULUS.into())
    }

    /// Poisson, by Knuth's product method: how many factors until the product is not above `exp(-lambda)`.
    pub(super) fn poisson(&mut self, lambda: f64) -> usize {
        let limit = libm::exp(-lambda);
        let (mut count, mut product) = (0, self.unit());
        while product > limit {
            count += 1;
            product *= self.unit();
        }
        count
    }

    /// Fisher and Yates, from the last down to the second.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let scaled = (self.unit() * float(last as u128 + 1)).floor();
            let other = usize::try_from(whole(scaled)).unwrap_or(last);
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_published_one() {
        // Park and Miller's check of the multiplier 48271: from 1, the 10,000th is this.
        let mut lehmer = Lehmer::new(1).unwrap();
        (0..10_000).for_each(|_| {
            lehmer.unit();
        });
        assert_eq!(lehmer.0, 399_268_537);
        assert!(Lehmer::new(0).is_none() && Lehmer::new(2_147_483_647).is_none());
    }
}
