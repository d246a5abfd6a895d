//! Where each field was stated: for messages only.

use std::collections::BTreeMap;

use super::env;

/// Remembers, for each field, the line or the variable that stated it last.
#[derive(Debug, Clone, Default)]
pub(super) struct Origins {
    stated: BTreeMap<String, String>,
    variables: Option<String>,
}

impl Origins {
    /// `field` was stated at `origin`.
    pub(super) fn note(&mut self, field: String, origin: impl Into<String>) {
        self.stated.insert(field, origin.into());
    }

    /// From now on, a field that nothing stated is said to be missing as a variable of this prefix.
    pub(super) fn note_variables(&mut self, prefix: &str) {
        self.variables = Some(prefix.to_owned());
    }

    /// Where `field` was stated; failing that, the variable that could state it.
    pub(super) fn find(&self, field: &str) -> Option<String> {
        let variable = || Some(env::variable(self.variables.as_deref()?, field));
        self.stated.get(field).cloned().or_else(variable)
    }
}
