//! Are the session limits of a partition in force?

use crate::config::PartitionSettings;
use crate::driver::{Driver, Rows};
use crate::error::Failure;
use crate::pool::Connection;
use crate::session::{NEWEST, limits};

use super::error::NotInForce;

/// Reads the limits back: one round trip. A limit that the server does not know is left out.
pub(super) async fn not_in_force<D: Driver>(
    connection: &mut Connection<D>,
    settings: &PartitionSettings,
) -> Result<Vec<NotInForce>, Failure> {
    let all = limits(settings, NEWEST);
    let names: Vec<String> = all.iter().map(|l| format!("'{}'", l.name)).collect();
    let sql = format!(
        "SELECT name, setting FROM pg_settings WHERE name IN ({})",
        names.join(", ")
    );
    let (driver, session) = connection.driver_parts();
    let rows = driver.query(session, &sql).await?;
    Ok(all
        .into_iter()
        .filter_map(|limit| {
            let found = found(&rows, limit.name)?;
            (found != limit.millis.to_string()).then(|| NotInForce {
                name: limit.name.to_owned(),
                wanted_ms: limit.millis,
                found: found.to_owned(),
            })
        })
        .collect())
}

fn found<'a>(rows: &'a Rows, name: &str) -> Option<&'a str> {
    rows.iter().find_map(|row| match row.as_slice() {
        [Some(found), Some(setting)] if found == name => Some(setting.as_str()),
        _ => None,
    })
}
