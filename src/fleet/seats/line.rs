//! The connections over which the keeper asks: one for each server and role that the pool uses, open from the boot on, so
//! that a renewal needs no free slot of the server, and a taker can end the sessions of each role as that role.

use std::time::Duration;

use tokio::time::timeout;

use crate::config::{ConfigError, PartitionSettings, SeatsSettings, Settings};
use crate::driver::{Driver, Endpoint, Readiness, Rows};
use crate::error::Failure;
use crate::fleet::check::{Question, Sight, look};
use crate::fleet::lease::{Seat, Term};
use crate::join;
use crate::status::Seconds;

use super::table::end_earlier;

/// One of them.
pub(super) struct Line<D: Driver> {
    driver: D,
    /// `None` while it is not open.
    open: Option<D::Type>,
    service: String,
    /// Those in which its role has sessions of the pool; with none, there is nothing to be ended.
    databases: Vec<String>,
}

impl<D: Driver> Line<D> {
    fn new(driver: D, service: &str) -> Self {
        Self {
            driver,
            open: None,
            service: service.to_owned(),
            databases: Vec::new(),
        }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        self.driver.endpoint()
    }

    fn leads_to(&self, endpoint: &Endpoint) -> bool {
        let own = self.endpoint();
        (&own.hosts, &own.user) == (&endpoint.hosts, &endpoint.user)
    }

    fn uses(&mut self, database: &str) {
        if self.databases.iter().all(|known| known != database) {
            self.databases.push(database.to_owned());
        }
    }

    /// Asks, and connects first where it must. A connection that did not answer in order is never used again.
    pub(super) async fn ask(&mut self, sql: &str, limit: Duration) -> Result<Rows, Failure> {
        let asked = timeout(limit, self.ask_at_length(sql)).await;
        asked.unwrap_or_else(|_elapsed| {
            let late = format!("no answer within {}", Seconds(limit));
            Err(Failure::lost(late))
        })
    }

    async fn ask_at_length(&mut self, sql: &str) -> Result<Rows, Failure> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.driver.create().await.map_err(D::failure)?,
        };
        let answer = self.driver.query(&mut open, sql).await;
        let is_usable = match &answer {
            Ok(_) => true,
            // The server has said no to what was asked, not to the connection.
            Err(failure) => failure.sqlstate().is_some() && !failure.is_transient(),
        };
        if is_usable {
            self.open = Some(open);
        }
        answer
    }

    /// What the server says of itself, over the connection that is open.
    pub(super) async fn look(
        &mut self,
        question: &Question,
        limit: Duration,
    ) -> Result<Sight, Failure> {
        let Some(mut open) = self.open.take() else {
            return Err(Failure::lost("the line is not open"));
        };
        let looked = timeout(limit, look(&self.driver, &mut open, question)).await;
        let late = || Failure::lost(format!("no answer within {}", Seconds(limit)));
        let sight = looked.unwrap_or_else(|_elapsed| Err(late()))?;
        self.open = Some(open);
        Ok(sight)
    }

    /// What is opened from now on is called so, and the session that is open, too.
    async fn tag(&mut self, tag: &str, limit: Duration) {
        self.driver.tag(tag);
        let Some(mut open) = self.open.take() else {
            return;
        };
        let reset = timeout(limit, self.driver.reset(&mut open)).await;
        if matches!(reset, Ok(Readiness::Quiet)) {
            self.open = Some(open);
        }
    }

    /// Ends the sessions of earlier holders of `seat` on its server and of its role; returns how many were still there.
    pub(super) async fn end_earlier(
        &mut self,
        seat: Seat,
        limit: Duration,
    ) -> Result<usize, Failure> {
        if self.databases.is_empty() {
            return Ok(0);
        }
        let sql = end_earlier(&self.service, &self.databases, seat);
        Ok(self.ask(&sql, limit).await?.len())
    }

    fn hang_up(&mut self) {
        self.open = None;
    }
}

/// All of them; the first leads to the table.
pub(super) struct Lines<D: Driver>(Vec<Line<D>>);

impl<D: Driver> Lines<D> {
    /// For the endpoints of a pool's partitions. Connects to nothing yet.
    ///
    /// # Errors
    /// What is wrong with a `url`: the field, and the problem.
    pub(super) fn new(settings: &Settings, options: &D::Options) -> Result<Self, (String, String)> {
        let (service, term) = (&settings.service, Term(seats(settings).lease));
        let mut lines = Vec::<Line<D>>::new();
        lines.push(Line::new(driver_to_table(settings, options)?, service));
        for partition in &settings.partitions {
            let driver = D::alone(&as_line(partition, service, term), options);
            let field = || format!("partition.{}.url", partition.name);
            let driver = driver.map_err(|problem| (field(), problem))?;
            let endpoint = driver.endpoint().clone();
            let at = match lines.iter().position(|line| line.leads_to(&endpoint)) {
                Some(at) => at,
                None => {
                    lines.push(Line::new(driver, service));
                    lines.len() - 1
                }
            };
            lines[at].uses(&endpoint.database);
        }
        Ok(Self(lines))
    }

    /// The one to the table.
    pub(super) fn first(&mut self) -> &mut Line<D> {
        &mut self.0[0]
    }

    /// Where the table is.
    pub(super) fn table_at(&self) -> &Endpoint {
        self.0[0].endpoint()
    }

    /// What is opened from now on is called so.
    pub(super) fn name(&mut self, tag: &str) {
        self.0.iter().for_each(|line| line.driver.tag(tag));
    }

    /// All of them are called so from now on.
    pub(super) async fn tag(&mut self, tag: &str, limit: Duration) {
        join::all(self.0.iter_mut().map(|line| line.tag(tag, limit))).await;
    }

    /// Ends the sessions of earlier holders of `seat`; returns how many were still there. All lines are asked at once: one
    /// that hangs keeps none of the others.
    pub(super) async fn end_earlier(
        &mut self,
        seat: Seat,
        limit: Duration,
    ) -> Result<usize, Failure> {
        let asked = self.0.iter_mut().map(|line| line.end_earlier(seat, limit));
        join::all(asked).await.into_iter().sum()
    }

    pub(super) fn hang_up(&mut self) {
        self.0.iter_mut().for_each(Line::hang_up);
    }
}

/// A driver that leads to the table, for whoever has no seat yet and wants none.
///
/// # Errors
/// What is wrong with the `url`.
pub(crate) fn to_table<D: Driver>(
    settings: &Settings,
    options: &D::Options,
) -> Result<D, ConfigError> {
    let driver = driver_to_table(settings, options);
    driver.map_err(|problem| ConfigError::of_fields(vec![problem]))
}

fn driver_to_table<D: Driver>(
    settings: &Settings,
    options: &D::Options,
) -> Result<D, (String, String)> {
    let driver = D::alone(&as_line_to_table(settings), options);
    driver.map_err(|problem| ("fleet.seats.url".to_owned(), problem))
}

fn seats(settings: &Settings) -> &SeatsSettings {
    let seats = settings.fleet.seats.as_ref();
    seats.expect("bug: a line to no seats")
}

/// The settings of the line to the table: those of a partition that goes the same way, if one does, with its pooler.
fn as_line_to_table(settings: &Settings) -> PartitionSettings {
    let seats = seats(settings);
    let mut partitions = settings.partitions.iter();
    let same_way = partitions.find(|partition| partition.url == seats.url);
    let first = same_way.unwrap_or(&settings.partitions[0]);
    let mut line = as_line(first, &settings.service, Term(seats.lease));
    line.url = seats.url.clone();
    line.pooler = line.pooler.filter(|_| same_way.is_some());
    line
}

/// What the statements of the seats rely on, whatever a partition, the role or the database has set: they write; one that
/// finds a row changed looks again; and a taking that was told outlasts a crash of the server, or its epoch could be
/// another's once more.
const SETTINGS: [(&str, &str); 3] = [
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_read_only", "off"),
    ("synchronous_commit", "on"),
];

/// The settings of a partition, for a line that goes the same way: nothing of the partition's own makes it slow. The server
/// gives up what we have given up; and what waits for a lock it gives up before us, because a line of which we have given
/// up a question is lost, and where the server is full there is no other.
fn as_line(partition: &PartitionSettings, service: &str, term: Term) -> PartitionSettings {
    let mut line = partition.clone();
    line.name = "seats".to_owned();
    line.application_name = format!("{service}/seats");
    line.statement_timeout = Some(in_millis(term.0));
    line.lock_timeout = Some(in_millis(term.renewal() / 4 * 3));
    line.idle_in_transaction_session_timeout = line.statement_timeout;
    line.transaction_timeout = None;
    let settings = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned()));
    line.session_settings = settings.into();
    line
}

fn in_millis(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
