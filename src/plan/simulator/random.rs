//! The random numbers of a run: the same on every machine, and for ever.

/// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014): the
/// state goes up by a constant, and its mixture is the number. Small, and made to be split into streams.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The stream `index` of `seed`. What one stream draws does not move the others.
    pub(super) fn stream(seed: u64, index: u64) -> Self {
        let start = Self(seed).draw();
        Self(start ^ Self(index).draw())
    }

    #[inline]
    pub(super) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly from (0, 1]: its logarithm is a number.
    #[inline]
    pub(super) fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / 9_007_199_254_740_992.0;
        crate::plan::number::float(u128::from((self.draw() >> 11) + 1)) * STEP
    }

    /// Exponential with mean 1.
    #[inline]
    pub(super) fn exponential(&mut self) -> f64 {
        -libm::log(self.unit())
    }

    /// Normal with mean 0 and variance 1 (Box and Muller).
    pub(super) fn normal(&mut self) -> f64 {
        let radius = (2.0 * self.exponential()).sqrt();
        radius * libm::cos(std::f64::consts::TAU * self.unit())
    }

    /// A whole number below `n`, which is not 0.
    pub(super) fn below(&mut self, n: usize) -> usize {
        let n = u128::try_from(n).expect("bug: usize has at most 128 bits");
        let scaled = (u128::from(self.draw()) * n) >> 64;
        usize::try_from(scaled).expect("bug: it is below n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_published_one() {
        let mut random = Random::new(1_234_567);
        let first = [0; 5].map(|_| random.draw());
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(first, published);
    }

    #[test]
    fn the_distributions_have_the_moments_that_they_should() {
        let mut random = Random::stream(7, 3);
        let n = 200_000;
        let mean =
            |draw: &mut dyn FnMut() -> f64| (0..n).map(|_| draw()).sum::<f64>() / f64::from(n);
        assert!((mean(&mut || random.unit()) - 0.5).abs() < 0.005);
        assert!((mean(&mut || random.exponential()) - 1.0).abs() < 0.01);
        assert!(mean(&mut || random.normal()).abs() < 0.01);
        assert!((mean(&mut || random.normal().powi(2)) - 1.0).abs() < 0.02);
        let mut counts = [0_u32; 3];
        (0..30_000).for_each(|_| counts[random.below(3)] += 1);
        assert!(
            counts.iter().all(|c| c.abs_diff(10_000) < 300),
            "{counts:?}"
        );
    }

    #[test]
    fn streams_are_apart() {
        let first = |index| Random::stream(1, index).draw();
        assert!((1..100).all(|index| first(index) != first(0)));
        assert_ne!(Random::stream(2, 0).draw(), first(0));
    }
}
