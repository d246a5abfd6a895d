//! Are the limits and settings of a partition's sessions in force, and what else is known of its sessions?

use std::time::Duration;

use crate::config::PartitionSettings;
use crate::driver::{Driver, Rows};
use crate::error::Failure;
use crate::session::{Found, SettingNotInForce, SettingsNotInForce, literal};

use super::error::NotInForce;
use super::limits;

/// What one session has told of itself.
#[derive(Debug, Default)]
pub(super) struct Session {
    /// Limits that are not in force.
    pub(super) limits: Vec<NotInForce>,
    /// Settings that were set and are not in force.
    pub(super) not_in_force: Option<SettingsNotInForce>,
    /// After which time the server ends it while it is idle.
    pub(super) idle_session_timeout: Option<Duration>,
}

/// Asks a session: one round trip.
///
/// How the server writes a value that it was given, only the server knows (`65536kB` is `64MB`). So it is given it once
/// more, for as long as the question lasts, and says how it writes it.
pub(super) async fn look<D: Driver>(
    driver: &D,
    session: &mut D::Type,
    settings: &PartitionSettings,
) -> Result<Session, Failure> {
    let (settings_asked, limits_asked) = (question(settings), limits::question(settings));
    let sql = format!("{settings_asked}; {limits_asked}");
    let mut rows = driver.query(session, &sql).await?;
    let of_limits = rows.split_off(answers(settings).min(rows.len()));
    let millis = rows
        .first()
        .and_then(|row| row.first()?.as_deref()?.parse().ok());
    Ok(Session {
        limits: limits::not_in_force(settings, &of_limits),
        not_in_force: SettingsNotInForce::of(not_in_force(settings, &rows)),
        idle_session_timeout: millis.filter(|ms| *ms > 0).map(Duration::from_millis),
    })
}

/// How many rows answer [`question`].
fn answers(settings: &PartitionSettings) -> usize {
    match settings.session_settings.is_empty() {
        true => 1,
        false => 3,
    }
}

/// One row for the idle timeout, one with what is in force, and one with what was wanted.
fn question(settings: &PartitionSettings) -> String {
    let mut sql =
        "SELECT (SELECT setting FROM pg_settings WHERE name = 'idle_session_timeout')".to_owned();
    let settings = &settings.session_settings;
    if settings.is_empty() {
        return sql;
    }
    let found = settings
        .keys()
        .map(|name| format!("current_setting({}, true)", literal(name)));
    let wanted = settings
        .iter()
        .map(|(name, value)| format!("set_config({}, {}, true)", literal(name), literal(value)));
    for columns in [found.collect::<Vec<_>>(), wanted.collect()] {
        sql += &format!("; SELECT {}", columns.join(", "));
    }
    sql
}

fn not_in_force(settings: &PartitionSettings, rows: &Rows) -> Vec<SettingNotInForce> {
    let value = |row: usize, at: usize| rows.get(row).and_then(|row| row.get(at)?.as_deref());
    let names = settings.session_settings.iter().enumerate();
    names
        .filter_map(|(at, (name, stated))| {
            let (found, wanted) = (
                value(1, at).unwrap_or_default(),
                value(2, at).unwrap_or(stated),
            );
            let found = (found != wanted).then(|| Found::Value(found.to_owned()))?;
            Some(SettingNotInForce::new(name, wanted, found))
        })
        .collect()
}
