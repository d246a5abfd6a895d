//! What is said to the table: each a single statement, so that each is a transaction of its own.

use std::time::Duration;

use crate::config::SeatsSettings;
use crate::driver::Rows;
use crate::fleet::lease::Seat;
use crate::session::literal;

use super::SeatHolder;

/// The rows of one fleet, as one replica speaks of them.
#[derive(Clone, Debug)]
pub(super) struct Table {
    table: String,
    service: String,
    fleet: String,
    count: u32,
    lease_ms: u128,
    /// Who we are; nobody else is called so.
    holder: String,
}

impl Table {
    pub(super) fn new(seats: &SeatsSettings, fleet: &str, holder: &str) -> Self {
        Self {
            table: seats.table.clone(),
            service: fleet.to_owned(),
            fleet: literal(fleet),
            count: seats.count.get(),
            lease_ms: seats.lease.as_millis(),
            holder: literal(holder),
        }
    }

    /// Makes the rows that are not there. Rows beyond the count are left alone: they are those of replicas that still
    /// run with more seats.
    ///
    /// Where a table was lost and made again, there may be sessions of its time: the epochs go on after theirs, so that
    /// whoever takes a seat ends them.
    pub(super) fn fill(&self) -> String {
        let Self {
            table,
            service,
            fleet,
            count,
            ..
        } = self;
        let ours = is_of(service);
        format!(
            "INSERT INTO {table} (fleet, seat, epoch) SELECT {fleet}, n, coalesce(max(epoch), 0) \
             FROM generate_series(1, {count}) n LEFT JOIN (\
             SELECT substring(application_name FROM '#([0-9]{{1,4}})[.][0-9]{{1,10}}$')::int AS seat, \
             substring(application_name FROM '[.]([0-9]{{1,10}})$')::bigint AS epoch \
             FROM pg_stat_activity WHERE {ours}) there ON seat = n \
             WHERE NOT EXISTS (SELECT FROM {table} known WHERE known.fleet = {fleet} AND known.seat = n) \
             GROUP BY n ON CONFLICT DO NOTHING"
        )
    }

    /// Takes a free seat, if there is one: those that were given back first, then the one that expired first. The lock
    /// looks at the row once more, and passes over what others are about to take.
    pub(super) fn take(&self) -> String {
        let Self {
            table,
            fleet,
            count,
            holder,
            ..
        } = self;
        let until = self.until();
        format!(
            "WITH free AS (SELECT seat FROM {table} WHERE fleet = {fleet} AND seat <= {count} \
             AND (holder IS NULL OR expires_at <= clock_timestamp()) \
             ORDER BY expires_at NULLS FIRST, seat LIMIT 1 FOR UPDATE SKIP LOCKED) \
             UPDATE {table} t SET epoch = t.epoch + 1, holder = {holder}, taken_at = clock_timestamp(), \
             expires_at = {until} FROM free WHERE t.fleet = {fleet} AND t.seat = free.seat \
             RETURNING t.seat, t.epoch"
        )
    }

    /// Renews a seat; no row, if it is not ours any more.
    pub(super) fn renew(&self, seat: Seat) -> String {
        let (table, until, ours) = (&self.table, self.until(), self.ours(seat));
        format!("UPDATE {table} SET expires_at = {until} WHERE {ours} RETURNING seat")
    }

    /// Gives a seat back, if it is still ours.
    pub(super) fn give_back(&self, seat: Seat) -> String {
        let (table, ours) = (&self.table, self.ours(seat));
        format!("UPDATE {table} SET holder = NULL, taken_at = NULL, expires_at = NULL WHERE {ours}")
    }

    /// Who holds which seat: rows for [`holders`].
    pub(super) fn who(&self) -> String {
        let Self {
            table,
            fleet,
            count,
            ..
        } = self;
        let millis =
            |span: &str| format!("greatest(0, floor(extract(epoch FROM {span}) * 1000))::bigint");
        format!(
            "SELECT seat, epoch, holder, {}, {} FROM {table} WHERE fleet = {fleet} AND seat <= {count} \
             AND holder IS NOT NULL ORDER BY seat",
            millis("clock_timestamp() - taken_at"),
            millis("expires_at - clock_timestamp()"),
        )
    }

    fn until(&self) -> String {
        format!(
            "clock_timestamp() + interval '{} milliseconds'",
            self.lease_ms
        )
    }

    fn ours(&self, seat: Seat) -> String {
        let Self { fleet, holder, .. } = self;
        let Seat { number, epoch } = seat;
        format!("fleet = {fleet} AND seat = {number} AND epoch = {epoch} AND holder = {holder}")
    }
}

/// Ends the sessions of earlier holders of a seat that log in as the role of this session to one of `databases`: a
/// row for each that is there.
pub(super) fn end_earlier(service: &str, databases: &[String], seat: Seat) -> String {
    let databases: Vec<_> = databases.iter().map(|name| literal(name)).collect();
    let Seat { number, epoch } = seat;
    format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = session_user \
         AND pid <> pg_backend_pid() AND datname IN ({databases}) AND {ours} \
         AND substring(application_name FROM '#{number}[.]([0-9]{{1,10}})$')::bigint < {epoch}",
        databases = databases.join(", "),
        ours = is_of(service),
    )
}

/// Whether a session is one of the service's, by its name: ASCII, and without another slash.
fn is_of(service: &str) -> String {
    let prefix = format!("{service}/");
    let (length, prefix) = (prefix.len(), literal(&prefix));
    format!("left(application_name, {length}) = {prefix}")
}

/// The seat that was taken, if one was. `None` within if the row cannot be read.
pub(super) fn taken(rows: &Rows) -> Option<Option<Seat>> {
    let row = rows.first()?;
    let text = |at: usize| row.get(at)?.as_deref();
    let number = text(0).and_then(|text| text.parse().ok());
    let epoch = text(1).and_then(|text| text.parse().ok());
    Some(
        number
            .zip(epoch)
            .map(|(number, epoch)| Seat { number, epoch }),
    )
}

/// Who holds which seat.
pub(super) fn holders(rows: &Rows) -> Vec<SeatHolder> {
    let holder = |row: &Vec<Option<String>>| {
        let text = |at: usize| row.get(at)?.as_deref();
        let millis = |at| Some(Duration::from_millis(text(at)?.parse().ok()?));
        Some(SeatHolder {
            seat: text(0)?.parse().ok()?,
            epoch: text(1)?.parse().ok()?,
            holder: text(2)?.to_owned(),
            since: millis(3)?,
            left: millis(4)?,
        })
    };
    rows.iter().filter_map(holder).collect()
}
