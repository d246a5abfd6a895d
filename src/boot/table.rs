//! The table of the seats, where it is on a server, or its role is one, that no partition uses: its connection counts, too.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::config::{BootSettings, Settings, WhenUnavailable};
use crate::driver::{Driver, Endpoint};
use crate::error::Failure;
use crate::fleet::check::{Question, Sight, is_list, look};
use crate::fleet::seats::to_table;
use crate::pool::{Partition, PartitionedPool};
use crate::status::Seconds;

use super::error::BootError;

/// Between two tries to look at a server that is not there yet.
const PAUSE: Duration = Duration::from_millis(500);

/// The way to the table, and what has been seen on it.
pub(super) struct TableSeen {
    pub(super) endpoint: Endpoint,
    /// `None` if a partition has seen its server, or nobody has looked.
    pub(super) sight: Option<Result<Sight, String>>,
}

impl<D: Driver> PartitionedPool<D> {
    /// Whether the way to the table is none of a partition's.
    pub(super) fn is_apart(&self, table: &Endpoint) -> bool {
        self.partitions()
            .all(|partition| partition.endpoint() != table)
    }

    /// Whether it is, and no partition can see its server.
    pub(super) fn is_to_be_seen(&self, table: &Endpoint) -> bool {
        let sees = |partition: &Partition<D>| {
            let hosts = &partition.endpoint().hosts;
            *hosts == table.hosts && !is_list(hosts) && partition.settings().has_sessions()
        };
        self.is_apart(table) && !self.partitions().any(sees)
    }

    /// What to ask of the servers, that of the table included.
    pub(super) fn question(&self, settings: &Settings, table: Option<&Endpoint>) -> Question {
        let endpoints = self.partitions().map(Partition::endpoint);
        Question::new(settings, endpoints.chain(table))
    }

    /// Looks at the server of the table, where no partition can see it, over a connection that is closed again: for
    /// whoever takes no seat.
    ///
    /// # Errors
    /// It cannot be reached, or refuses us.
    pub(super) async fn see_table(
        &self,
        settings: &Settings,
        options: &D::Options,
    ) -> Result<Option<TableSeen>, BootError> {
        let Some(seats) = &settings.fleet.seats else {
            return Ok(None);
        };
        let driver = to_table::<D>(settings, options)?;
        let endpoint = driver.endpoint().clone();
        if !self.is_to_be_seen(&endpoint) {
            let sight = None;
            return Ok(Some(TableSeen { endpoint, sight }));
        }
        let question = self.question(settings, Some(&endpoint));
        let sight = match look_patiently(&driver, &question, &settings.boot).await {
            Ok(sight) => Ok(sight),
            Err(failure) if failure.is_too_many_connections() => Err(failure.to_string()),
            Err(failure) => {
                return Err(BootError::SeatsFailed {
                    table: seats.table.clone(),
                    endpoint: Box::new(endpoint),
                    failure,
                });
            }
        };
        let sight = Some(sight);
        Ok(Some(TableSeen { endpoint, sight }))
    }
}

/// Again and again, as long as the owner lets a database come up.
async fn look_patiently<D: Driver>(
    driver: &D,
    question: &Question,
    boot: &BootSettings,
) -> Result<Sight, Failure> {
    let patience = match boot.when_unavailable {
        WhenUnavailable::Wait(bound) => bound,
        _ => Duration::ZERO,
    };
    let (began, limit) = (Instant::now(), boot.check_timeout);
    loop {
        let looked = timeout(limit, look_once(driver, question)).await;
        let late = || Failure::lost(format!("no answer within {}", Seconds(limit)));
        match looked.unwrap_or_else(|_elapsed| Err(late())) {
            Err(failure) if failure.is_transient() && began.elapsed() < patience => {
                tracing::warn!(%failure, "waiting for the database of the seats");
                sleep(PAUSE).await;
            }
            sight => return sight,
        }
    }
}

async fn look_once<D: Driver>(driver: &D, question: &Question) -> Result<Sight, Failure> {
    let mut session = driver.create().await.map_err(D::failure)?;
    let sight = look(driver, &mut session, question).await;
    driver.close(session).await;
    sight
}
