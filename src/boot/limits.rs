//! Are the session limits of a partition in force?

use crate::config::PartitionSettings;
use crate::driver::Rows;
use crate::session::{NEWEST, ServerLimit, limits};

use super::error::NotInForce;

/// Asks for the limits, a row each. A limit that the server does not know is left out.
pub(super) fn question(settings: &PartitionSettings) -> String {
    let names = limits(settings, NEWEST).into_iter().map(quoted);
    format!(
        "SELECT name, setting, reset_val FROM pg_settings WHERE name IN ({})",
        names.collect::<Vec<_>>().join(", ")
    )
}

fn quoted(limit: ServerLimit) -> String {
    format!("'{}'", limit.name)
}

/// What the answer says is not in force.
///
/// Behind a transaction pooler it counts as well what a session starts with: what is set there now may be left over
/// from anybody.
pub(super) fn not_in_force(settings: &PartitionSettings, rows: &Rows) -> Vec<NotInForce> {
    let starts_with_them = !settings.has_sessions();
    let all = limits(settings, NEWEST).into_iter();
    let missing = all.filter_map(|limit| {
        let wanted = limit.millis.to_string();
        let [now, at_start] = found(rows, limit.name)?;
        let is_off = |found: &&str| *found != wanted;
        let at_start = Some(at_start).filter(|_| starts_with_them);
        let found = Some(now).into_iter().chain(at_start).find(is_off)?;
        Some(NotInForce {
            name: limit.name.to_owned(),
            wanted_ms: limit.millis,
            found: found.to_owned(),
        })
    });
    missing.collect()
}

/// The value now, and the one that the session has started with.
fn found<'a>(rows: &'a Rows, name: &str) -> Option<[&'a str; 2]> {
    rows.iter().find_map(|row| match row.as_slice() {
        [Some(found), Some(now), Some(at_start)] if found == name => {
            Some([now.as_str(), at_start.as_str()])
        }
        _ => None,
    })
}
