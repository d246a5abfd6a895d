//! What a partition went through lately: the last minute second by second, the hour before it minute by minute.
//! Pure: the time comes with the figures.

use std::collections::VecDeque;
use std::time::Duration;

use crate::admission::Totals;
use crate::plan::Refused;
use crate::plan::diagnosis::{FEWEST, Neighbours, is_loss};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);

/// What happened from one moment until another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: Duration,
    pub(super) until: Duration,
    pub(super) arrived: u64,
    pub(super) refused: Refused,
    pub(super) ended: u64,
    ended_time: Duration,
    pub(super) held_time: Duration,
    pub(super) waited_time: Duration,
    pub(super) most_used: u32,
    pub(super) most_waiting: u32,
}

impl Span {
    /// Two looks may be a few nanoseconds out of order; nothing has happened in a negative time.
    fn between(before: &Totals, now: &Totals) -> Self {
        let more = |of: fn(&Totals) -> u64| of(now).saturating_sub(of(before));
        let longer = |of: fn(&Totals) -> Duration| of(now).saturating_sub(of(before));
        let refused = Refused {
            queue_full: more(|t| t.queue_full),
            deadline_too_short: more(|t| t.deadline_too_short),
            no_free_slot: more(|t| t.turned_away),
            wait_timeout: more(|t| t.left),
        };
        Self {
            from: before.at,
            until: now.at.max(before.at),
            arrived: more(|t| t.arrived),
            refused,
            ended: more(|t| t.ended),
            ended_time: longer(|t| t.ended_time),
            held_time: longer(|t| t.held_time),
            waited_time: longer(|t| t.waited_time),
            most_used: now.most_used,
            most_waiting: now.most_waiting,
        }
    }

    /// Whether both are of some same moment; two looks in one instant are.
    fn overlaps(&self, other: &Self) -> bool {
        let same = (self.from, self.until) == (other.from, other.until);
        same || (self.from < other.until && other.from < self.until)
    }

    /// This one and the one that follows it, as one.
    fn and(mut self, next: &Self) -> Self {
        self.until = next.until;
        self.arrived += next.arrived;
        self.refused += next.refused;
        self.ended += next.ended;
        self.ended_time += next.ended_time;
        self.held_time += next.held_time;
        self.waited_time += next.waited_time;
        self.most_used = self.most_used.max(next.most_used);
        self.most_waiting = self.most_waiting.max(next.most_waiting);
        self
    }

    /// All of them as one; one in which nothing happened, if there is none.
    pub(super) fn all(spans: &[Self]) -> Self {
        let whole = spans.iter().copied().reduce(|all, next| all.and(&next));
        whole.unwrap_or_default()
    }

    pub(super) fn length(&self) -> Duration {
        self.until - self.from
    }

    /// Of the holds that ended.
    pub(super) fn mean_hold(&self) -> Option<Duration> {
        let mean = self.ended_time.as_nanos().checked_div(self.ended.into());
        mean.map(Duration::from_nanos_u128)
    }

    /// How long a hold lasts, if this tells it of a time that was healthy.
    fn healthy_hold(&self) -> Option<Duration> {
        let lost = is_loss(self.refused.total(), self.arrived);
        self.mean_hold().filter(|_| self.ended >= FEWEST && !lost)
    }
}

/// The calls of a neighbour, and those refused while this partition had slots of its `reserved` ones free: in
/// spans of which it is known that it had them at every moment.
pub(super) fn seen_from(own: &[Span], reserved: u32, neighbour: &[Span]) -> Neighbours {
    let is_free = |at: &Span| {
        let meanwhile = own.iter().filter(|own| own.overlaps(at));
        let most_used = meanwhile.map(|own| own.most_used).max();
        most_used.is_some_and(|used| used < reserved)
    };
    let while_free = neighbour.iter().filter(|span| is_free(span));
    Neighbours {
        arrivals: neighbour.iter().map(|span| span.arrived).sum(),
        refused_while_free: while_free.map(|span| span.refused.total()).sum(),
    }
}

/// A healthy minute: when it ended, and the mean of its holds.
type Minute = (Duration, Duration);

#[derive(Debug, Default)]
pub(super) struct History {
    /// Until when everything is noted.
    last: Totals,
    /// Those that reach into the last minute, oldest first.
    seconds: VecDeque<Span>,
    /// The minute that goes on.
    minute: Option<Span>,
    /// The healthy ones of the last hour, oldest first.
    minutes: VecDeque<Minute>,
}

impl History {
    /// Forgets what was before.
    pub(super) fn begin(&mut self, totals: &Totals) {
        self.last = *totals;
    }

    /// Takes note of what has happened since the last time. The peaks of a new time begin with it.
    pub(super) fn note(&mut self, totals: &Totals) {
        let span = Span::between(&self.last, totals);
        self.last = *totals;
        self.seconds.push_back(span);
        let (now, seconds) = (totals.at, &mut self.seconds);
        while seconds.pop_front_if(|s| s.until + MINUTE <= now).is_some() {}
        self.count_into_minute(&span);
        while (self.minutes.pop_front_if(|(end, _)| *end + HOUR <= now)).is_some() {}
    }

    fn count_into_minute(&mut self, span: &Span) {
        let minute = self.minute.take();
        let minute = minute.map_or(*span, |minute| minute.and(span));
        if minute.length() < MINUTE {
            self.minute = Some(minute);
        } else if let Some(hold) = minute.healthy_hold() {
            self.minutes.push_back((minute.until, hold));
        }
    }

    /// What reaches into the last minute, oldest first; the last one goes on.
    pub(super) fn recent(&self, now: &Totals) -> Vec<Span> {
        let reaches = |span: &Span| span.until + MINUTE > now.at;
        let noted = self.seconds.iter().copied().filter(reaches);
        noted.chain([Span::between(&self.last, now)]).collect()
    }

    /// How long a hold lasted in the healthy minutes that were over at `before`: their median, of two in
    /// the middle the shorter.
    pub(super) fn hold_before(&self, before: Duration) -> Option<Duration> {
        let over = self.minutes.iter().filter(|(end, _)| *end <= before);
        let mut holds: Vec<_> = over.map(|(_, hold)| *hold).collect();
        holds.sort_unstable();
        holds.get(holds.len().checked_sub(1)? / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    /// A partition of which somebody else says how it fares.
    #[derive(Default)]
    struct Life {
        totals: Totals,
        history: History,
    }

    impl Life {
        /// Looks every `step`, for `time`; in each, `calls` come, `refused` of them in vain.
        fn go_on(
            &mut self,
            time: Duration,
            step: Duration,
            calls: u32,
            hold: Duration,
            refused: u32,
        ) {
            let until = self.totals.at + time;
            while self.totals.at < until {
                self.happen(step, calls, hold, refused);
                self.history.note(&self.totals);
            }
        }

        fn happen(&mut self, step: Duration, calls: u32, hold: Duration, refused: u32) {
            let totals = &mut self.totals;
            totals.at += step;
            totals.arrived += u64::from(calls);
            totals.queue_full += u64::from(refused);
            totals.ended += u64::from(calls - refused);
            totals.ended_time += hold * (calls - refused);
            totals.held_time += hold * (calls - refused);
        }

        fn now(&self) -> Span {
            Span::all(&self.history.recent(&self.totals))
        }

        fn hold_before(&self) -> Option<Duration> {
            self.history.hold_before(self.now().from)
        }
    }

    #[test]
    fn the_window_is_all_there_is_and_later_the_last_minute() {
        let mut life = Life::default();
        life.happen(300 * MS, 3, 40 * MS, 1);
        let (length, calls) = (life.now().length(), life.now().arrived);
        assert_eq!((length, calls), (300 * MS, 3));
        life.go_on(30 * SECOND, SECOND, 10, 40 * MS, 0);
        assert_eq!(life.now().arrived, 303);
        life.go_on(300 * SECOND, SECOND, 10, 50 * MS, 0);
        life.happen(500 * MS, 5, 50 * MS, 0);
        let now = life.now();
        assert_eq!((now.length(), now.arrived), (60 * SECOND + 500 * MS, 605));
        assert_eq!((now.ended, now.mean_hold()), (605, Some(50 * MS)));
        assert!(life.history.seconds.len() <= 61 && life.history.minutes.len() <= 60);
    }

    #[test]
    fn when_nobody_has_looked_for_long_the_window_says_so() {
        let mut life = Life::default();
        life.go_on(100 * SECOND, SECOND, 10, 40 * MS, 0);
        life.happen(600 * SECOND, 7, 40 * MS, 0);
        assert_eq!((life.now().length(), life.now().arrived), (600 * SECOND, 7));
        life.history.note(&life.totals);
        life.happen(SECOND, 1, 40 * MS, 0);
        assert_eq!((life.now().length(), life.now().arrived), (601 * SECOND, 8));
    }

    #[test]
    fn peaks_are_the_most_of_the_window() {
        let mut life = Life::default();
        for used in [3, 9, 2] {
            (life.totals.most_used, life.totals.most_waiting) = (used, used * 2);
            life.go_on(SECOND, SECOND, 1, MS, 0);
        }
        let most = |life: &Life| (life.now().most_used, life.now().most_waiting);
        assert_eq!(most(&life), (9, 18));
        life.go_on(58 * SECOND, SECOND, 1, MS, 0);
        assert_eq!(most(&life), (9, 18));
        life.go_on(SECOND, SECOND, 1, MS, 0);
        assert_eq!(
            most(&life),
            (2, 4),
            "the second of 9 is more than a minute ago"
        );
    }

    #[test]
    fn what_a_hold_lasted_before_is_the_median_of_the_healthy_minutes_before_the_window() {
        let mut life = Life::default();
        life.go_on(119 * SECOND, SECOND, 10, 40 * MS, 0);
        assert_eq!(
            life.hold_before(),
            None,
            "the first minute is still in the window"
        );
        life.go_on(181 * SECOND, SECOND, 10, 40 * MS, 0);
        assert_eq!(life.hold_before(), Some(40 * MS));
        // An incident that refuses nobody counts, and is the normal only after half of the time.
        life.go_on(240 * SECOND, SECOND, 10, 900 * MS, 0);
        assert_eq!(life.hold_before(), Some(40 * MS));
        life.go_on(240 * SECOND, SECOND, 10, 900 * MS, 0);
        assert_eq!(life.hold_before(), Some(900 * MS));
    }

    #[test]
    fn minutes_with_refusals_or_hardly_any_hold_tell_nothing_of_before() {
        let mut life = Life::default();
        life.go_on(60 * SECOND, SECOND, 10, 40 * MS, 0);
        life.go_on(1200 * SECOND, SECOND, 10, 900 * MS, 1);
        life.go_on(1200 * SECOND, 60 * SECOND, 2, 900 * MS, 0);
        assert_eq!(life.hold_before(), Some(40 * MS));
        life.go_on(1200 * SECOND, SECOND, 0, MS, 0);
        assert_eq!(life.hold_before(), None, "an hour is over");
    }

    #[test]
    fn looks_that_come_out_of_order_are_no_negative_time() {
        let (mut before, mut now) = (Totals::default(), Totals::default());
        (before.at, now.at) = (10 * SECOND, 9 * SECOND);
        (before.held_time, now.held_time) = (5 * SECOND, 4 * SECOND);
        let span = Span::between(&before, &now);
        assert_eq!(
            (span.length(), span.held_time),
            (Duration::ZERO, Duration::ZERO)
        );
    }

    #[test]
    fn neighbours_count_for_the_seconds_in_which_something_reserved_was_free_throughout() {
        let span = |from: u32, used, refused| {
            let mut span = Span::default();
            (span.from, span.until) = (MS * from, MS * from + SECOND);
            (span.arrived, span.most_used) = (100, used);
            span.refused.queue_full = refused;
            span
        };
        let own = [span(0, 3, 0), span(1000, 4, 0), span(2000, 1, 0)];
        let neighbour = [span(0, 0, 1), span(1000, 0, 10), span(2000, 0, 100)];
        let seen = seen_from(&own, 4, &neighbour);
        assert_eq!((seen.arrivals, seen.refused_while_free), (300, 101));
        let late = [span(10, 0, 1), span(1010, 0, 10), span(2010, 0, 100)];
        assert_eq!(seen_from(&own, 4, &late).refused_while_free, 100);
        assert_eq!(seen_from(&own, 1, &neighbour).refused_while_free, 0);
        // Of a time in which nobody has looked at this partition, nothing is known.
        let after = [span(3000, 0, 1)];
        assert_eq!(seen_from(&own, 4, &after).refused_while_free, 0);
        assert_eq!(seen_from(&[], 4, &neighbour).refused_while_free, 0);
    }
}
