//! Are the session limits of a partition in force?

use crate::config::PartitionSettings;
use crate::driver::Rows;
use crate::session::{NEWEST, ServerLimit, limits};

use super::error::NotInForce;

/// Asks for the limits, a row each. A limit that the server does not know is left out.
pub(super) fn question(settings: &PartitionSettings) -> String {
    let names = limits(settings, NEWEST).into_iter().map(quoted);
    format!(
        "SELECT name, setting FROM pg_settings WHERE name IN ({})",
        names.collect::<Vec<_>>().join(", ")
    )
}

fn quoted(limit: ServerLimit) -> String {
    format!("'{}'", limit.name)
}

/// What the answer says is not in force.
pub(super) fn not_in_force(settings: &PartitionSettings, rows: &Rows) -> Vec<NotInForce> {
    let all = limits(settings, NEWEST).into_iter();
    let missing = all.filter_map(|limit| {
        let found = found(rows, limit.name)?;
        (found != limit.millis.to_string()).then(|| NotInForce {
            name: limit.name.to_owned(),
            wanted_ms: limit.millis,
            found: found.to_owned(),
        })
    });
    missing.collect()
}

fn found<'a>(rows: &'a Rows, name: &str) -> Option<&'a str> {
    rows.iter().find_map(|row| match row.as_slice() {
        [Some(found), Some(setting)] if found == name => Some(setting.as_str()),
        _ => None,
    })
}
