//! What is wrong with a configuration: every problem at once, each with its field and its place.

use std::fmt;

/// A configuration that cannot be used.
///
/// It holds every [`Problem`] that was found, not only the first, so that one restart is enough to see them
/// all. It prints as one readable block, and never holds a password: values of text fields are not repeated.
///
/// # Examples
/// ```
/// use partitioned_pool::config::PoolConfig;
///
/// let error = PoolConfig::from_toml("servise = 'shop'").unwrap_err();
/// assert_eq!(error.problems()[0].field, "servise");
/// assert!(error.to_string().contains("line 1"));
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", block(.problems))]
pub struct ConfigError {
    problems: Vec<Problem>,
}

impl ConfigError {
    /// The error for these problems; `Ok(())` if there are none.
    pub(super) fn check(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Self { problems })
        }
    }

    /// The error for what a driver says of fields: at least one of `(field, problem)`.
    pub(crate) fn of_fields(fields: Vec<(String, String)>) -> Self {
        let problem = |(field, problem)| Problem::new(field, problem);
        Self {
            problems: fields.into_iter().map(problem).collect(),
        }
    }

    /// Every problem found, in the order of the configuration; never empty.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

/// The same block: a `main` that returns the error prints it by `Debug`.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Problem> for ConfigError {
    fn from(problem: Problem) -> Self {
        Self {
            problems: vec![problem],
        }
    }
}

/// One thing that is wrong with a configuration.
///
/// # Examples
/// ```
/// use partitioned_pool::config::{PoolConfig, Problem};
///
/// let error = PoolConfig::from_toml("service = 'shop'").unwrap().resolve().unwrap_err();
/// let fields: Vec<_> = error.problems().iter().map(|Problem { field, .. }| field.as_str()).collect();
/// assert!(fields.contains(&"fleet.max_replicas"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The field, such as `partition.analytical.statement_timeout`; for a name that is no field, the name as
    /// it was written (a key of the file, an environment variable), and for a file that cannot be read, its path.
    pub field: String,
    /// Where the field was stated, or can be: `pool.toml line 12` or `SHOP_DB_ANALYTICAL_STATEMENT_TIMEOUT`.
    /// `None` if it comes from code, or is not stated at all.
    pub origin: Option<String>,
    /// What is wrong, and what to write instead.
    pub problem: String,
}

impl Problem {
    pub(super) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            origin: None,
            problem: problem.into(),
        }
    }

    pub(super) fn at(mut self, origin: impl Into<String>) -> Self {
        self.origin = Some(origin.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.field)?;
        if let Some(origin) = &self.origin {
            write!(f, " ({origin})")?;
        }
        write!(f, ": {}", self.problem)
    }
}

fn block(problems: &[Problem]) -> String {
    let title = match problems.len() {
        1 => "the pool's configuration has a problem:".to_owned(),
        n => format!("the pool's configuration has {n} problems:"),
    };
    problems
        .iter()
        .fold(title, |text, problem| format!("{text}\n  - {problem}"))
}

/// A key or variable name as it may be printed: a name that holds anything but letters, digits, `_`, `-` and
/// `.`, or is very long, may be a secret in the wrong place, and is only described.
pub(super) fn printable(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if (1..=100).contains(&name.len()) && name.chars().all(plain) {
        name.to_owned()
    } else {
        format!("<a name of {} bytes that is not printed>", name.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_problems_print_as_one_block() {
        let problems = vec![
            Problem::new("service", "is empty"),
            Problem::new("boot.wait", "is missing").at("pool.toml line 3"),
        ];
        let error = ConfigError::check(problems).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the pool's configuration has 2 problems:\n  - service: is empty\n  - boot.wait (pool.toml line 3): is missing"
        );
    }

    #[test]
    fn no_problems_are_no_error() {
        assert_eq!(ConfigError::check(vec![]), Ok(()));
    }

    #[test]
    fn a_name_that_may_be_a_secret_is_not_printed() {
        assert_eq!(printable("SHOP_DB_URL"), "SHOP_DB_URL");
        for name in ["", "postgres://app:s3cret@db", "two words", "line\nbreak"] {
            assert!(printable(name).starts_with("<a name of"), "{name:?}");
        }
    }
}
