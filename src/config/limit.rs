//! Time limits: a duration as text, and [`Limit`], which may also be off.

use std::{fmt, time::Duration};

use serde::{Deserialize, Deserializer, de};

const DURATION: &str = "a duration with its unit, such as \"250ms\", \"5s\" or \"10min\"";
const LIMIT: &str = "a duration with its unit, such as \"250ms\", \"5s\" or \"10min\", or \"off\"";

/// A time limit that may be off.
///
/// As text: `"off"`, or a duration with its unit (`"250ms"`, `"5s"`, `"10min"`). "Off" is a word of its own,
/// so that no number means "for ever": in Postgres 0 does, and here 0 is an error.
///
/// Exhaustive: a limit is a duration, or there is none.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use partitioned_pool::config::Limit;
///
/// assert_eq!(Limit::from(Duration::from_millis(250)).to_string(), "250ms");
/// assert_eq!(Limit::Off.to_string(), "off");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// No limit.
    Off,
    /// The limit is reached after this time.
    After(Duration),
}

impl From<Duration> for Limit {
    fn from(duration: Duration) -> Self {
        Self::After(duration)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::After(duration) => humantime::format_duration(*duration).fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(LimitVisitor)
    }
}

struct LimitVisitor;

impl de::Visitor<'_> for LimitVisitor {
    type Value = Limit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(LIMIT)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Limit, E> {
        match text {
            "off" => Ok(Limit::Off),
            _ => parse(text, LIMIT).map(Limit::After),
        }
    }
}

/// For `#[serde(deserialize_with)]`: a duration as text.
pub(super) fn duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    deserializer.deserialize_str(DurationVisitor).map(Some)
}

struct DurationVisitor;

impl de::Visitor<'_> for DurationVisitor {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(DURATION)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        match text {
            "off" => Err(E::custom(
                "cannot be off: every wait is bounded; write a duration, such as \"5s\"",
            )),
            _ => parse(text, DURATION),
        }
    }
}

/// The text itself is not part of the message: it may be a secret in the wrong field.
fn parse<E: de::Error>(text: &str, expected: &str) -> Result<Duration, E> {
    humantime::parse_duration(text).map_err(|_| E::custom(format_args!("expected {expected}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limit(text: &str) -> Result<Limit, serde_json::Error> {
        serde_json::from_value(text.into())
    }

    #[test]
    fn text_is_off_or_a_duration() {
        assert_eq!(limit("off").unwrap(), Limit::Off);
        assert_eq!(
            limit("250ms").unwrap(),
            Limit::After(Duration::from_millis(250))
        );
        assert_eq!(
            limit("1min 30s").unwrap(),
            Limit::After(Duration::from_secs(90))
        );
    }

    #[test]
    fn a_duration_without_a_unit_is_refused_and_not_repeated() {
        for text in [
            "250",
            "",
            "Off",
            "-1s",
            "hunter2",
            "99999999999999999999years",
        ] {
            let message = limit(text).unwrap_err().to_string();
            assert!(
                message.starts_with("expected a duration with its unit"),
                "{text:?}: {message}"
            );
            assert!(!message.contains("hunter2"));
        }
    }

    proptest! {
        #[test]
        fn a_printed_limit_reads_back(nanos in any::<u64>()) {
            let stated = Limit::After(Duration::from_nanos(nanos));
            prop_assert_eq!(limit(&stated.to_string()).unwrap(), stated);
        }
    }
}
