//! Times from text.

use std::time::Duration;

/// A line of a CSV text that has no time.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::simulator::Arrivals;
///
/// let error = Arrivals::from_csv("at\n0.5\nsoon").unwrap_err();
/// assert_eq!((error.line, error.found.as_str()), (3, "soon"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {found:?} is not a number of seconds such as 12.5")]
pub struct InvalidCsv {
    /// Its number, from 1.
    pub line: usize,
    /// What stands in its first column.
    pub found: String,
}

/// The first column, in seconds.
pub(super) fn seconds(text: &str) -> Result<Vec<Duration>, InvalidCsv> {
    let lines = text.lines().map(str::trim).zip(1..);
    let lines = lines.filter(|(text, _)| !text.is_empty() && !text.starts_with('#'));
    let mut times = Vec::new();
    for (nth, (text, line)) in lines.enumerate() {
        let cell = text.split([',', ';', '\t']).next().unwrap_or_default();
        let cell = bare(cell);
        match parse(cell) {
            Some(time) => times.push(time),
            None if nth == 0 && is_heading(text) => {}
            None => {
                let found = cell.to_owned();
                return Err(InvalidCsv { line, found });
            }
        }
    }
    Ok(times)
}

/// Words in every column: a number that is spelt wrongly is no heading.
fn is_heading(line: &str) -> bool {
    let mut cells = line.split([',', ';', '\t']).map(bare);
    bare(line).starts_with(|c: char| c.is_alphabetic() || c == '_') && !cells.any(is_like_a_number)
}

/// Whether something begins as a number does, or has decimals, or is one of the words that are numbers.
fn is_like_a_number(cell: &str) -> bool {
    let digit = |c: char| c.is_ascii_digit();
    let decimals = cell
        .split_once('.')
        .is_some_and(|(_, rest)| rest.starts_with(digit));
    cell.starts_with(digit) || decimals || cell.parse::<f64>().is_ok()
}

fn bare(cell: &str) -> &str {
    cell.trim().trim_matches('"')
}

/// A decimal number of seconds, exactly; digits after the ninth are cut off.
fn parse(cell: &str) -> Option<Duration> {
    let (whole, fraction) = cell.split_once('.').unwrap_or((cell, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let nanos = format!("{fraction:0<9}")[..9].parse().ok()?;
    Some(Duration::new(whole.parse().ok()?, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_exactly() {
        let text = "time,flow\n# of Monday\n\n0.1,a\n 12 ;b\r\n\"3.0000000019\"\t\n";
        let nanos = [100_000_000, 12_000_000_000, 3_000_000_001];
        assert_eq!(seconds(text).unwrap(), nanos.map(Duration::from_nanos));
        assert_eq!(seconds(""), Ok(vec![]));
    }

    #[test]
    fn a_line_without_a_time_is_named() {
        for (text, line, found) in [
            ("time\n1\nlater\n", 3, "later"),
            ("-1\n", 1, "-1"),
            ("1e3", 1, "1e3"),
            ("a\nb\n", 2, "b"),
            ("1.\n", 1, "1."),
            ("O.5\n1\n", 1, "O.5"),
            ("nan\n1\n", 1, "nan"),
            ("l,12.5\n1\n", 1, "l"),
            ("99999999999999999999999\n", 1, "99999999999999999999999"),
        ] {
            let error = seconds(text).unwrap_err();
            assert_eq!((error.line, error.found.as_str()), (line, found));
        }
    }
}
