//! The conversions between whole numbers and floating point that the lints warn of, each in one place.

use std::time::Duration;

/// The nearest floating point number. Exact up to 2^53.
#[inline]
#[allow(
    clippy::cast_precision_loss,
    reason = "figures for people and for probabilities: 53 bits are enough"
)]
pub(super) const fn float(n: u128) -> f64 {
    n as f64
}

/// The nearest whole number; 0 for what is negative or no number, the most that fits for what is too large.
#[inline]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is what is said above"
)]
pub(super) fn whole(x: f64) -> u64 {
    (x + 0.5) as u64
}

/// `duration` in whole nanoseconds; above 584 years, the most that fits.
#[inline]
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The quotient, 0 where there is nothing to divide by.
pub(super) fn ratio(part: u128, of: u128) -> f64 {
    if of == 0 {
        0.0
    } else {
        float(part) / float(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_round_and_never_wrap() {
        let rounded = [-3.0, 0.4, 0.5, 2.6, f64::NAN, 1e300].map(whole);
        assert_eq!(rounded, [0, 0, 1, 3, 0, u64::MAX]);
        assert_eq!(nanos(Duration::MAX), u64::MAX);
        assert!(ratio(1, 0) < f64::EPSILON);
    }
}
