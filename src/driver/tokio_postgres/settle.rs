//! Making a backend quiet that its caller has left.

use std::time::Duration;

use ::tokio_postgres::SimpleQueryMessage;
use tokio::time::{Instant, timeout, timeout_at};

use crate::driver::Readiness;

use super::session::Session;
use super::watch::{Verdict, Watch};

/// An ordinary `?` leaves a queued ROLLBACK or Close that is about to be answered.
const GRACE: Duration = Duration::from_millis(1);

/// What has gone unanswered for this long is more likely to go on than to be answered within the grace, which a
/// timer makes 2 ms.
const OVERDUE: Duration = Duration::from_millis(3);

/// A cancel that arrives before its statement has begun is ignored, and one cancel ends one
/// statement: the next is sent after this time, or as soon as something was answered.
const CANCEL_AGAIN: Duration = Duration::from_millis(5);

/// How long all of it may take. What is not quiet by then is closed.
const BOUND: Duration = Duration::from_secs(2);

/// What the fence asks for. No other answer can look like it.
const FENCE: (&str, &str) = ("SELECT 'partitioned-pool fence'", "partitioned-pool fence");

/// Waits a moment where that may help, cancels until everything is answered, rolls back, and proves the order of the
/// answers where a COPY IN left it in doubt.
pub(super) async fn settle(session: &Session) -> Readiness {
    match timeout(BOUND, steps(session)).await {
        Ok(Some(())) => session.readiness(),
        Ok(None) | Err(_) => Readiness::Lost,
    }
}

/// Frees a quiet session of its state and dresses it again, in one round trip.
pub(super) async fn reset(session: &Session, redress: &str) -> Readiness {
    let renew = async {
        session.client().batch_execute(redress).await.ok()?;
        session.watch().until(is_answered).await;
        Some(())
    };
    match timeout(BOUND, renew).await {
        Ok(Some(())) => session.readiness(),
        Ok(None) | Err(_) => Readiness::Lost,
    }
}

async fn steps(session: &Session) -> Option<()> {
    let watch = session.watch();
    if is_overdue(watch) || timeout(GRACE, watch.until(is_answered)).await.is_err() {
        cancel_until_answered(session).await?;
    }
    if watch.verdict() == Verdict::InTransaction {
        session.client().batch_execute("ROLLBACK").await.ok()?;
        watch.until(is_answered).await;
    }
    if watch.verdict() == Verdict::Unfenced {
        fence(session).await?;
        watch.until(is_answered).await;
    }
    Some(())
}

/// Whether to wait for an answer is in vain. A COPY IN ends by itself when its caller leaves, however long ago
/// it has begun.
fn is_overdue(watch: &Watch) -> bool {
    watch.owed_for() >= OVERDUE && !watch.has_copied_in()
}

fn is_answered(watch: &Watch) -> bool {
    watch.verdict() != Verdict::Busy
}

/// `None` if a cancel may still be on its way: then the connection must not be used again.
async fn cancel_until_answered(session: &Session) -> Option<()> {
    let watch = session.watch();
    while !is_answered(watch) && !session.client().is_closed() {
        // What the task has not sent yet, or is just handing on, is not on the server to be cancelled.
        let owed = !watch.owes_nothing();
        let answered = watch.answered();
        if owed {
            session.cancel().await.ok()?;
        }
        let again = Instant::now() + CANCEL_AGAIN;
        let moved =
            watch.until(|w| is_answered(w) || w.answered() > answered || owed == w.owes_nothing());
        let _ = timeout_at(again, moved).await;
    }
    Some(())
}

/// Asks for something that only its own answer can be: if the answers are off by one, the first to
/// come is another's.
async fn fence(session: &Session) -> Option<()> {
    session.watch().fence();
    let messages = session.client().simple_query(FENCE.0).await.ok()?;
    let answered = messages.iter().any(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0) == Some(FENCE.1),
        _ => false,
    });
    answered.then_some(())
}
