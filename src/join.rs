//! Several futures at once, in one task.

use std::future::{Future, poll_fn};
use std::task::Poll;

/// Completes when all of them have, with what each has given, in their order.
///
/// # Cancel safety
/// Dropping it drops all of them.
pub(crate) async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let futures = futures.into_iter();
    let mut all: Vec<_> = futures.map(|future| (Box::pin(future), None)).collect();
    poll_fn(|cx| {
        for (future, done) in all.iter_mut().filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                *done = Some(output);
            }
        }
        match all.iter().all(|(_, done)| done.is_some()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    all.into_iter().filter_map(|(_, done)| done).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    #[tokio::test(start_paused = true)]
    async fn all_go_on_at_once_and_answer_in_their_order() {
        let began = Instant::now();
        let slow = async |seconds| {
            sleep(Duration::from_secs(seconds)).await;
            seconds
        };
        assert_eq!(super::all([3, 1, 2].map(slow)).await, [3, 1, 2]);
        assert_eq!(began.elapsed(), Duration::from_secs(3));
    }
}
