//! Making a backend quiet that its caller has left, and proving that it is.
//!
//! sqlx tells neither whether a transaction is open (it counts its own `begin`s) nor whether every answer was read
//! (it does not count those of COPY). So a connection of which nothing is known is asked: a *fence* is a question
//! that only its own answer can look like, and the answer says whether a transaction was open before. One round trip.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use ::sqlx::postgres::{PgConnection, PgTransactionManager};
use ::sqlx::{AssertSqlSafe, Connection as _, Error, raw_sql};
use sqlx_core::transaction::TransactionManager as _;
use tokio::time::timeout;

use crate::driver::Readiness;

use super::session::{Known, Session, is_an_end};
use super::{sqlstate, text};

/// An ordinary `?` leaves a ROLLBACK that is about to be answered. What is owed gets this long, or two round trips.
const GRACE: Duration = Duration::from_millis(1);

/// Where nothing is known to be owed, only a COPY that was left can hold the answer back: a cancel is sent after
/// this time, or ten round trips.
const LONG_GRACE: Duration = Duration::from_millis(20);

/// A cancel that arrives before its statement has begun is ignored, and one cancel ends one statement: the next is
/// sent after this time.
const CANCEL_AGAIN: Duration = Duration::from_millis(5);

/// How long all of it may take. What is not quiet by then is closed.
pub(super) const BOUND: Duration = Duration::from_secs(2);

/// In a transaction that has failed, everything fails like this but its end.
const FAILED_TRANSACTION: &str = "25P02";

/// What was sent cannot be understood: the server expected a COPY to go on.
const PROTOCOL_VIOLATION: &str = "08P01";

/// The connection must not be used again; if that is why, because of this.
struct Unusable(Option<Error>);

/// Out of step, or without an answer in time.
const DOUBTFUL: Unusable = Unusable(None);

impl From<Error> for Unusable {
    fn from(error: Error) -> Self {
        Self(Some(error))
    }
}

/// Waits a moment where that may help, cancels until everything is answered, rolls back, and proves it.
pub(super) async fn settle(session: &mut Session) -> Readiness {
    if session.readiness() == Readiness::Quiet {
        return Readiness::Quiet;
    }
    let settled = timeout(BOUND, steps(session)).await;
    conclude(session, settled.unwrap_or(Err(DOUBTFUL)))
}

/// Frees a quiet session of its state and dresses it again, in one round trip.
pub(super) async fn reset(session: &mut Session, redress: String) -> Readiness {
    let renew = raw_sql(AssertSqlSafe(redress)).execute(session.connection_mut());
    let renewed = match timeout(BOUND, renew).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.into()),
        Err(_elapsed) => Err(DOUBTFUL),
    };
    conclude(session, renewed)
}

/// Asks whether the session lives and is quiet.
pub(super) async fn prove(session: &mut Session) -> Readiness {
    let proved = proof(session).await;
    conclude(session, proved)
}

fn conclude(session: &mut Session, outcome: Result<(), Unusable>) -> Readiness {
    match outcome {
        Ok(()) => {
            session.know_quiet();
            session.readiness()
        }
        Err(Unusable(error)) => {
            if let Some(error) = error {
                session.fails(&error);
            }
            Readiness::Lost
        }
    }
}

async fn steps(session: &mut Session) -> Result<(), Unusable> {
    let known = session.known();
    let connection = session.connection_mut();
    forget_transactions(connection);
    if is_rolled_back(known, connection).await {
        return Ok(());
    }
    let owed = is_owed(connection).await?;
    let round_trip = session.control().round_trip();
    let grace = match owed {
        true => GRACE.max(round_trip * 2),
        false => LONG_GRACE.max(round_trip * 10),
    };
    if let Ok(proved) = timeout(grace, proof(session)).await {
        return proved;
    }
    cancel_until_answered(session).await?;
    proof(session).await
}

/// Ends the transaction of a session of which every answer was read: that to the ROLLBACK is the last one.
async fn is_rolled_back(known: Known, connection: &mut PgConnection) -> bool {
    let rolled_back = async {
        match known {
            Known::Open => drain(connection).await,
            Known::Begun => roll_back(connection).await,
            _ => Err(DOUBTFUL),
        }
    };
    matches!(timeout(LONG_GRACE, rolled_back).await, Ok(Ok(())))
}

/// Queues the ROLLBACK of what sqlx knows to be open, and has it count from zero again.
fn forget_transactions(connection: &mut PgConnection) {
    while PgTransactionManager::get_transaction_depth(connection) > 0 {
        PgTransactionManager::start_rollback(connection);
    }
}

/// Whether sqlx waits for an answer that has not come yet. What was queued is sent.
async fn is_owed(connection: &mut PgConnection) -> Result<bool, Unusable> {
    loop {
        let mut flush = pin!(connection.flush());
        let flushed = poll_fn(|cx| {
            Poll::Ready(match flush.as_mut().poll(cx) {
                Poll::Ready(flushed) => Some(flushed),
                Poll::Pending => None,
            })
        });
        match flushed.await {
            None => return Ok(true),
            Some(Ok(())) => return Ok(false),
            Some(Err(error)) => swallow(error)?,
        }
    }
}

/// An error of the statement that was left tells nothing; one of the connection does.
fn swallow(error: Error) -> Result<(), Unusable> {
    match sqlstate(&error) {
        Some(code) if code != PROTOCOL_VIOLATION && !is_an_end(&error) => Ok(()),
        _ => Err(error.into()),
    }
}

async fn drain(connection: &mut PgConnection) -> Result<(), Unusable> {
    loop {
        match connection.flush().await {
            Ok(()) => return Ok(()),
            Err(error) => swallow(error)?,
        }
    }
}

/// In this order: first the cancel's own answer, then those to what it may have hit. Then nothing that is sent later
/// can be hit.
async fn cancel_until_answered(session: &mut Session) -> Result<(), Unusable> {
    let (backend, control) = (session.backend(), session.control().clone());
    let connection = session.connection_mut();
    loop {
        match control.cancel(backend).await {
            Ok(true) => {}
            Ok(false) | Err(_) => return Err(DOUBTFUL),
        }
        if let Ok(drained) = timeout(CANCEL_AGAIN, drain(connection)).await {
            return drained;
        }
    }
}

/// Proves that every answer was read, and that no transaction is open; ends one that is.
async fn proof(session: &mut Session) -> Result<(), Unusable> {
    loop {
        match fence(session).await {
            Ok(false) => return Ok(()),
            // Nothing else is unanswered, so the next answer is that to the ROLLBACK.
            Ok(true) => return roll_back(session.connection_mut()).await,
            Err(Some(error)) => {
                let failed = sqlstate(&error).is_some_and(|code| code == FAILED_TRANSACTION);
                swallow(error)?;
                drain(session.connection_mut()).await?;
                if failed {
                    roll_back(session.connection_mut()).await?;
                }
            }
            Err(None) => return Err(DOUBTFUL),
        }
    }
}

async fn roll_back(connection: &mut PgConnection) -> Result<(), Unusable> {
    raw_sql("ROLLBACK").execute(connection).await?;
    Ok(())
}

/// Whether a transaction is open. It is an error without a cause if the answer is another's.
async fn fence(session: &mut Session) -> Result<bool, Option<Error>> {
    let (number, sent) = (session.next_fence(), Instant::now());
    let question = format!("SELECT 'fence {number}', now() <> statement_timestamp()");
    let asked = raw_sql(AssertSqlSafe(question)).fetch_all(session.connection_mut());
    let rows = asked.await?;
    session.control().answered_in(sent.elapsed());
    let [row] = rows.as_slice() else {
        return Err(None);
    };
    match (text(row, 0), text(row, 1)) {
        (Some(own), Some(open)) if own == format!("fence {number}") => Ok(open == "t"),
        _ => Err(None),
    }
}
