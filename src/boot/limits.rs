//! Are the session limits of a partition in force?

use crate::config::PartitionSettings;
use crate::driver::{Driver, Rows};
use crate::error::Failure;
use crate::session::{NEWEST, limits};

use super::error::NotInForce;

/// Reads the limits back: one round trip. A limit that the server does not know is left out.
///
/// Behind a transaction pooler it counts as well what a session starts with: what is set there now may be left over
/// from anybody.
pub(super) async fn not_in_force<D: Driver>(
    driver: &D,
    session: &mut D::Type,
    settings: &PartitionSettings,
) -> Result<Vec<NotInForce>, Failure> {
    let all = limits(settings, NEWEST);
    let names: Vec<String> = all.iter().map(|l| format!("'{}'", l.name)).collect();
    let sql = format!(
        "SELECT name, setting, reset_val FROM pg_settings WHERE name IN ({})",
        names.join(", ")
    );
    let rows = driver.query(session, &sql).await?;
    let starts_with_them = !settings.has_sessions();
    Ok(all
        .into_iter()
        .filter_map(|limit| {
            let wanted = limit.millis.to_string();
            let [now, at_start] = found(&rows, limit.name)?;
            let is_off = |found: &&str| *found != wanted;
            let at_start = Some(at_start).filter(|_| starts_with_them);
            let found = Some(now).into_iter().chain(at_start).find(is_off)?;
            Some(NotInForce {
                name: limit.name.to_owned(),
                wanted_ms: limit.millis,
                found: found.to_owned(),
            })
        })
        .collect())
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
