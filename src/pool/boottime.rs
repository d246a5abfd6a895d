//! A clock that goes on while the machine sleeps.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC` stands still on Linux while the machine, or its virtual machine, is suspended: a lease would seem
/// to have time left that has long passed on the server.
#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;

/// Where there is no other, this one mostly goes on by itself: on macOS it does, on FreeBSD machines that serve do not
/// sleep.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// The time since some moment before the process was started. Never goes back.
#[inline]
pub(crate) fn now() -> Duration {
    let time = clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on() {
        let before = now();
        std::thread::sleep(Duration::from_millis(20));
        let passed = now() - before;
        assert!(passed >= Duration::from_millis(20) && !before.is_zero());
    }
}
