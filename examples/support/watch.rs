//! How many server connections a role has: asked of pg_stat_activity, over a connection that does not count.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_postgres::{Client, Error, NoTls};

/// Two hundred and fifty times a second, so that a busy machine still makes it a hundred.
const EVERY: Duration = Duration::from_millis(4);
/// Until a server that restarts is asked again.
const PAUSE: Duration = Duration::from_millis(20);

const COUNT: &str = "SELECT count(*) FILTER (WHERE application_name NOT LIKE '%/control'),
        count(*) FILTER (WHERE application_name LIKE '%/control')
    FROM pg_stat_activity WHERE usename = $1 AND backend_type = 'client backend'";

/// What was seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The most connections at one moment, without the next.
    pub(crate) most: u32,
    /// The most control connections, which some drivers keep beside the budgets.
    pub(crate) control: u32,
    /// How often it was looked at.
    pub(crate) looks: u32,
    /// The longest time between two looks of one session.
    pub(crate) longest_gap: Duration,
}

impl Seen {
    const NOTHING: Self = Self {
        most: 0,
        control: 0,
        looks: 0,
        longest_gap: Duration::ZERO,
    };
}

/// Looks until it is dropped.
pub(crate) struct Watch {
    seen: Arc<Mutex<Seen>>,
    began: Instant,
    looking: AbortHandle,
}

impl Watch {
    /// Counts the connections of `role` at the server of which this is the owner's URL.
    pub(crate) fn start(owner: &str, role: &str) -> Self {
        let seen = Arc::new(Mutex::new(Seen::NOTHING));
        let looking = look(owner.to_owned(), role.to_owned(), Arc::clone(&seen));
        Self {
            seen,
            began: Instant::now(),
            looking: tokio::spawn(looking).abort_handle(),
        }
    }

    /// What was seen until now, and how often a second it was looked.
    pub(crate) fn seen(&self) -> (Seen, f64) {
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (
            seen,
            f64::from(seen.looks) / self.began.elapsed().as_secs_f64(),
        )
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

/// A session of its own.
pub(crate) async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// A server that is being restarted does not answer; then it has no connections, either.
async fn look(owner: String, role: String, seen: Arc<Mutex<Seen>>) {
    loop {
        // It never ends but by an error, which the restart of the server is.
        let _ = look_at_one(&owner, &role, &seen).await;
        sleep(PAUSE).await;
    }
}

async fn look_at_one(owner: &str, role: &str, seen: &Mutex<Seen>) -> Result<(), Error> {
    let client = connect(owner).await?;
    let statement = client.prepare(COUNT).await?;
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut last = Instant::now();
    loop {
        ticks.tick().await;
        let row = client.query_one(&statement, &[&role]).await?;
        let count = |at| {
            u32::try_from(row.get::<_, i64>(at))
                .expect("bug: Postgres has at most 262,143 backends")
        };
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.most = seen.most.max(count(0));
        seen.control = seen.control.max(count(1));
        seen.looks += 1;
        seen.longest_gap = seen.longest_gap.max(last.elapsed());
        last = Instant::now();
    }
}
