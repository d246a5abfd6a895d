//! Figures in words.

#![allow(dead_code, reason = "each example uses its own part of this module")]

use std::time::Duration;

/// `12.3 %`, rounded so that only all is 100 and only none is 0.
pub(crate) fn percent(part: u32, whole: u32) -> String {
    if part == 0 || part == whole {
        return format!("{} %", if part == 0 { 0 } else { 100 });
    }
    let percent = 100.0 * f64::from(part) / f64::from(whole);
    format!("{:.1} %", percent.clamp(0.1, 99.9))
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
pub(crate) fn grouped(number: u32) -> String {
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
        assert_eq!(percent(3_999, 4_000), "99.9 %");
        assert_eq!(percent(1, 4_000), "0.1 %");
        assert_eq!(
            (percent(0, 9), percent(9, 9)),
            ("0 %".into(), "100 %".into())
        );
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(4_007), "4,007");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
