//! Waiting for something to happen, instead of sleeping and hoping.

use std::time::{Duration, Instant};

/// Long enough for a loaded machine; whoever reaches it has failed.
pub(crate) const LONG: Duration = Duration::from_secs(20);

const PAUSE: Duration = Duration::from_millis(3);

/// Waits until `is_so`, asking every few milliseconds.
///
/// # Panics
/// If it is not so within [`LONG`].
pub(crate) async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    within(LONG, what, is_so).await;
}

/// Waits until `is_so`, and tells how long that took.
///
/// # Panics
/// If it is not so within `bound`.
pub(crate) async fn within(bound: Duration, what: &str, is_so: impl AsyncFn() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < bound, "not within {bound:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
    began.elapsed()
}
