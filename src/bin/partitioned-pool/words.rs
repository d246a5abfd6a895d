//! Figures in words.

#![allow(dead_code, reason = "whoever prints uses its own part of this module")]

use std::time::Duration;

/// `12.3 %`, rounded so that only all is 100 and only none is 0.
pub(crate) fn percent(part: impl Into<u64>, whole: impl Into<u64>) -> String {
    let (part, whole) = (u128::from(part.into()), u128::from(whole.into()));
    if part == 0 || part == whole {
        return format!("{} %", if part == 0 { 0 } else { 100 });
    }
    let tenths = (part * 2000 + whole) / (whole * 2).max(1);
    let tenths = tenths.clamp(1, 999);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// `41.3 ms`, and whole ones from 100 on.
pub(crate) fn millis(duration: Duration) -> String {
    let millis = duration.as_secs_f64() * 1e3;
    if millis < 100.0 {
        format!("{millis:.1} ms")
    } else {
        format!("{millis:.0} ms")
    }
}

/// `12,345`.
pub(crate) fn grouped(number: impl Into<u64>) -> String {
    let number = number.into();
    let (thousands, rest) = (number / 1000, number % 1000);
    if thousands == 0 {
        rest.to_string()
    } else {
        format!("{},{rest:03}", grouped(thousands))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_lost_of_many_is_not_rounded_to_all() {
        assert_eq!(percent(3_999_u32, 4_000_u32), "99.9 %");
        assert_eq!(percent(1_u32, 4_000_u32), "0.1 %");
        assert_eq!(percent(1_u64, 3_u64), "33.3 %");
        assert_eq!(
            (percent(0_u32, 9_u32), percent(9_u32, 9_u32)),
            ("0 %".into(), "100 %".into())
        );
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(grouped(999_u32), "999");
        assert_eq!(grouped(4_007_u32), "4,007");
        assert_eq!(grouped(1_234_567_u64), "1,234,567");
    }
}
