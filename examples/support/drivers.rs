//! Over which driver an example runs.

use std::fmt;

/// A driver, whether this build has it or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driven {
    TokioPostgres,
    Sqlx,
}

impl Driven {
    const ALL: [Self; 2] = [Self::TokioPostgres, Self::Sqlx];

    /// Its name, which is also that of its feature.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::TokioPostgres => "tokio-postgres",
            Self::Sqlx => "sqlx",
        }
    }

    /// The driver of this name.
    ///
    /// # Errors
    /// One sentence that names those that there are.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let named = |driver: &Self| driver.as_str() == name;
        let known = Self::ALL.into_iter().find(named);
        let unknown = || format!("--driver: tokio-postgres or sqlx, not {name}");
        known.ok_or_else(unknown)
    }
}

impl fmt::Display for Driven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The driver is not part of this build.
#[derive(Debug, thiserror::Error)]
#[error("this was built without {0}: add `--features {0}` before the `--`")]
#[allow(dead_code, reason = "a build with every driver misses none")]
pub(crate) struct Missing(pub(crate) Driven);

/// Calls a function that is generic over the driver with the one that is wanted; [`Missing`] if this build is
/// without it.
macro_rules! over {
    ($driver:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $driver {
            #[cfg(feature = "tokio-postgres")]
            $crate::drivers::Driven::TokioPostgres => {
                Ok($function::<partitioned_pool::TokioPostgres>($($argument),*).await)
            }
            #[cfg(feature = "sqlx")]
            $crate::drivers::Driven::Sqlx => {
                Ok($function::<partitioned_pool::Sqlx>($($argument),*).await)
            }
            #[cfg(not(all(feature = "tokio-postgres", feature = "sqlx")))]
            missing => Err($crate::drivers::Missing(missing)),
        }
    };
}
pub(crate) use over;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_known_by_its_name_and_no_other() {
        for driver in Driven::ALL {
            assert_eq!(Driven::named(driver.as_str()), Ok(driver));
        }
        let unknown = "--driver: tokio-postgres or sqlx, not diesel";
        assert_eq!(Driven::named("diesel"), Err(unknown.into()));
    }
}
