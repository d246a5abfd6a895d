//! Which experiment: what the reports do, and where.

use std::fmt;

/// What a report does for as long as it lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reports {
    /// It sleeps in the database: what checkout feels then is that connections are shared, and nothing else.
    #[default]
    Sleep,
    /// It aggregates a table, part by part and over again: then checkout feels that the server is shared as well.
    Scan,
}

impl Reports {
    const ALL: [Self; 2] = [Self::Sleep, Self::Scan];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Sleep => "sleep",
            Self::Scan => "scan",
        }
    }

    /// The kind of this name.
    ///
    /// # Errors
    /// One sentence that names those that there are.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|kind| kind.as_str() == name);
        known.ok_or_else(|| format!("--reports: sleep or scan, not {name}"))
    }
}

impl fmt::Display for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) reports: Reports,
    /// The analytical partition has a server of its own, a streaming standby.
    pub(crate) standby: bool,
}

impl Variant {
    /// Whether it is what runs when nobody asks for another.
    pub(crate) fn is_usual(self) -> bool {
        self == Self::default()
    }
}

/// The arguments that ask for it; nothing for the usual one.
impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reports =
            (self.reports != Reports::default()).then(|| format!("--reports {}", self.reports));
        let standby = self.standby.then(|| "--standby".to_owned());
        let arguments: Vec<_> = reports.into_iter().chain(standby).collect();
        f.pad(&arguments.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_known_by_their_name_and_no_other() {
        for kind in Reports::ALL {
            assert_eq!(Reports::named(kind.as_str()), Ok(kind));
        }
        let unknown = "--reports: sleep or scan, not join";
        assert_eq!(Reports::named("join"), Err(unknown.into()));
    }

    #[test]
    fn a_variant_is_told_by_its_arguments() {
        let told = |reports, standby| Variant { reports, standby }.to_string();
        assert_eq!(told(Reports::Sleep, false), "");
        assert_eq!(told(Reports::Sleep, true), "--standby");
        assert_eq!(told(Reports::Scan, true), "--reports scan --standby");
    }
}
