//! What a seat and its lease are, and until when a lease may be trusted. Pure: every time is passed in, on one
//! clock of the replica's own; no clock is ever compared with another.
//!
//! ```text
//! sent          renew        no admission      cut           ends
//!   |------------|----------------|-------------|-------------|
//!   0           1/5              4/5           9/10           1  x term
//! ```
//!
//! A lease counts from before it was asked for; the server counts the same term from when it wrote it down, which is
//! later. So `ends` is before the moment from which somebody else may take the seat, whatever the clocks say, as
//! long as one of them does not run a tenth faster than the other.

use std::fmt;
use std::time::Duration;

/// One taking of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// From 1.
    pub(crate) number: u32,
    /// It grows with each taking.
    pub(crate) epoch: u64,
}

impl Seat {
    /// What the sessions of its holder have behind their names: `#3.17`.
    pub(crate) fn tag(self) -> String {
        format!("#{}.{}", self.number, self.epoch)
    }
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seat {}, epoch {}", self.number, self.epoch)
    }
}

/// How long a lease is, and what follows from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term(pub(crate) Duration);

impl Term {
    /// Between two renewals, and the most that one may take: two can fail before anything happens. Whoever waits for a
    /// seat looks as often.
    pub(crate) fn renewal(self) -> Duration {
        self.0 / 5
    }

    /// Between two tries after one that failed.
    pub(crate) fn pause(self) -> Duration {
        const SHORTEST: Duration = Duration::from_millis(50);
        const LONGEST: Duration = Duration::from_secs(1);
        (self.0 / 20).clamp(SHORTEST, LONGEST)
    }
}

/// The right to a seat for one term. It counts from before it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    sent: Duration,
    term: Term,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Nothing.
    Fresh,
    /// Its renewal.
    Due,
    /// Its renewal, and nothing may be admitted.
    Doubtful,
    /// It is over, and what is held is to be cut.
    Over,
}

impl Lease {
    /// Of which the renewal, or the taking, was sent at `sent` at the earliest.
    pub(crate) const fn new(sent: Duration, term: Term) -> Self {
        Self { sent, term }
    }

    /// When it is to be renewed.
    pub(crate) fn renew_at(self) -> Duration {
        self.sent + self.term.renewal()
    }

    /// From when on nothing is admitted: a fifth before anybody else can have the seat.
    pub(crate) fn admits_until(self) -> Duration {
        self.sent + self.term.0 / 5 * 4
    }

    /// When what is held is cut: a tenth before anybody else can have the seat.
    pub(crate) fn cut_at(self) -> Duration {
        self.sent + self.term.0 / 10 * 9
    }

    pub(crate) fn stage(self, now: Duration) -> Stage {
        match () {
            () if now >= self.cut_at() => Stage::Over,
            () if now >= self.admits_until() => Stage::Doubtful,
            () if now >= self.renew_at() => Stage::Due,
            () => Stage::Fresh,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::config::{MOST_SEATS, SEAT_TAG_BYTES};

    use super::*;

    const TERM: Term = Term(Duration::from_secs(10));

    #[test]
    fn a_lease_goes_through_its_stages_to_the_nanosecond() {
        let lease = Lease::new(Duration::from_secs(100), TERM);
        let ns = Duration::from_nanos(1);
        for (at, before, from) in [
            (102, Stage::Fresh, Stage::Due),
            (108, Stage::Due, Stage::Doubtful),
            (109, Stage::Doubtful, Stage::Over),
        ] {
            let at = Duration::from_secs(at);
            assert_eq!((lease.stage(at - ns), lease.stage(at)), (before, from));
        }
        assert_eq!(lease.admits_until(), Duration::from_secs(108));
    }

    #[test]
    fn a_tag_has_room_for_every_seat_and_epoch_that_the_table_takes() {
        let last = Seat {
            number: MOST_SEATS,
            epoch: 9_999_999_999,
        };
        assert_eq!(last.tag().len(), SEAT_TAG_BYTES);
        assert_eq!(last.tag(), "#9999.9999999999");
    }

    /// A clock: where it stands when the story begins, and how fast it runs, in millionths.
    #[derive(Clone, Copy, Debug)]
    struct Clock {
        offset: u64,
        millionths: u64,
    }

    impl Clock {
        /// What it shows when so many true microseconds have passed.
        fn shows(self, true_us: u64) -> Duration {
            Duration::from_micros(self.offset + true_us * self.millionths / 1_000_000)
        }
    }

    prop_compose! {
        /// Of a machine: anywhere within ten years, and up to 5 % too fast or too slow, which is a hundred times worse
        /// than what a clock that is slewed does.
        fn clock()(offset in 0..315_360_000_000_000_u64, millionths in 950_000..1_050_000_u64) -> Clock {
            Clock { offset, millionths }
        }
    }

    proptest! {
        /// The server writes `expires_at` by its clock, somewhere between sending and answer; whoever takes the seat
        /// does so when the server's clock has passed that. At that true instant, the old holder's clock is past its cut.
        #[test]
        fn nobody_can_take_a_seat_before_its_holder_has_cut_whatever_their_clocks_show(
            holder in clock(),
            server in clock(),
            term_ms in 1_000..3_600_000_u64,
            sent_us in 0..1_000_000_000_u64,
            delay_us in 0..60_000_000_u64,
            later_us in 0..100_000_000_u64,
        ) {
            let term = Duration::from_millis(term_ms);
            let lease = Lease::new(holder.shows(sent_us), Term(term));
            let expires_at = server.shows(sent_us + delay_us) + term;
            // The first true instant at which the server's clock shows that, or any later one.
            let written = u64::try_from(expires_at.as_micros()).unwrap() - server.offset;
            let mut taken_us = (written * 1_000_000).div_ceil(server.millionths) + later_us;
            while server.shows(taken_us) < expires_at {
                taken_us += 1;
            }
            prop_assert_eq!(lease.stage(holder.shows(taken_us)), Stage::Over);
        }

        #[test]
        fn the_stages_follow_each_other_and_a_later_renewal_is_never_earlier_over(
            sent in 0..1_000_000_u64, later in 0..1_000_000_u64, now in 0..3_000_000_u64,
        ) {
            let of = |ms| Lease::new(Duration::from_millis(ms), TERM);
            let now = Duration::from_millis(now);
            let (first, second) = (of(sent), of(sent + later));
            prop_assert!(second.stage(now) <= first.stage(now));
            prop_assert!(first.renew_at() < first.admits_until());
            prop_assert!(first.admits_until() < first.cut_at());
        }
    }
}
