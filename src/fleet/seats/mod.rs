//! Seats: how a fleet whose size nobody can promise is kept within what the server grants.
//!
//! A table has a row for each seat. Whoever has a seat may open its budget; whoever has none, opens nothing but the
//! connection over which it asks. Words: a *taking* has an epoch, which grows with each taking of that seat; the *tag*
//! of a taking, `#<seat>.<epoch>`, is at the end of the `application_name` of every session of its holder, from its first moment
//! on; a *line* is the connection over which the keeper asks, one for each server and role of the pool, open
//! from the boot on and counted by the fleet check.
//!
//! 1. Time is the database's. A seat is free if it was given back, or if `expires_at <= clock_timestamp()`. No clock is
//!    ever compared with another: a replica measures only how long ago it asked, on a clock that goes on while the
//!    machine sleeps, and from *before* it asked.
//! 2. A seat is taken by one statement that locks its row, finds it free, and increments its epoch. So a taking is
//!    one replica's, for ever.
//! 3. A renewal names seat, epoch and holder, and changes nothing if one of them is another. A seat that has expired and
//!    that nobody has taken is still its holder's to renew.
//! 4. Between taking and admitting, the taker ends every session that has the tag of an earlier epoch of that seat, over
//!    the line of each server and role, and looks until none is left. It does so whether the seat had expired or was given
//!    back, so nothing has to be remembered of holders that failed half way. Rows that are made anew begin with the epochs
//!    of the sessions that are there.
//! 5. With every renewal it looks again: a session of an earlier holder that was still logging in when 4 looked has no
//!    longer than a fifth of the term from when it is to be seen.
//! 6. A holder admits nothing from four fifths of the term on, counted by 1, and cuts what is held at nine tenths. So at
//!    the moment from which its seat can be taken, it has been cut for a tenth of the term. (`fleet/lease.rs`)
//! 7. The gate is looked at, by the clock, before each admission and again before its connection is handed out; a connection
//!    that was opened in an earlier tenure is never handed out. (`pool/seat.rs`) So a process that was stopped
//!    through all of 4 to 6, and continued, admits nothing; and what its callers held, 4 has ended.
//! 8. What is lost is tried to have again, first by 3, then by 2. A seat that was had again is another tenure.
//! 9. The seat is given back when the last connection is known gone, or the time to close is over; by 4 that is safe in
//!    any case.
//!
//! By 2, 4, 6 and the cap of each replica's own store, the sessions with a tag of a seat never exceed one budget, and
//! those of the fleet never seats x budget. What 4 cannot see is a session that has not logged in yet: a process that was
//! stopped in the middle of connecting may have one on the server for each connection that it was opening, until it goes on
//! or `authentication_timeout` (1 min) has passed. If it goes on, it closes them after the one statement that sets their
//! limits; 5 ends them in any case.

mod keeper;
mod line;
mod table;

use std::fmt;
use std::time::Duration;

use crate::status::Seconds;

pub(crate) use keeper::{Keeper, NotTaken};
pub(crate) use line::to_table;

/// The migration that makes the table: SQL to be run once by the owner of the database. Idempotent.
///
/// # Examples
/// ```
/// assert!(partitioned_pool::fleet::SEATS_TABLE.contains("CREATE TABLE IF NOT EXISTS partitioned_pool_seats"));
/// ```
pub const SEATS_TABLE: &str = include_str!("../../../migrations/0001_seats.sql");

/// Who holds a seat, by the database's clock.
///
/// # Examples
/// ```
/// use partitioned_pool::BootError;
/// use partitioned_pool::fleet::SeatHolder;
///
/// /// The holder of the seat that expires first.
/// fn next_to_go(error: &BootError) -> Option<&SeatHolder> {
///     match error {
///         BootError::NoSeat { holders, .. } => holders.iter().min_by_key(|holder| holder.left),
///         _ => None,
///     }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeatHolder {
    /// Which seat, from 1.
    pub seat: u32,
    /// How often it was taken.
    pub epoch: u64,
    /// Its host, process and a word of its own: `web-7/4711/k3f9x2ab`.
    pub holder: String,
    /// How long ago it took the seat.
    pub since: Duration,
    /// In how long the seat expires, if it is not renewed.
    pub left: Duration,
}

impl fmt::Display for SeatHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (since, left) = (Seconds(self.since), Seconds(self.left));
        write!(
            f,
            "seat {}: {} for {since}, renewed until in {left}",
            self.seat, self.holder
        )
    }
}
