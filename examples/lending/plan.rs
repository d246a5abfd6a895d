//! Who calls when and for how long, and how the connections are divided: the figures of the hour.

use std::fmt;
use std::time::Duration;

use partitioned_pool::admission::{ClassRules, HandOver, Rules};
use partitioned_pool::plan::formulas::Rate;
use partitioned_pool::plan::simulator::{HoldTime, Span};

/// Connections, in every layout.
pub(crate) const CAPACITY: u32 = 20;
/// A checkout that is not done this long after it was to come is late, and its caller leaves.
pub(crate) const DEADLINE: Duration = Duration::from_secs(1);
/// How long a call waits for a connection.
pub(crate) const ACQUIRE: Duration = Duration::from_millis(500);
/// A minute stands for an hour: what is stated in minutes is divided by this.
pub(crate) const COMPRESSED: u32 = 60;

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// In the transactional partition: the critical one.
    Checkout,
    /// In the analytical partition.
    Reporting,
}

impl Flow {
    pub(crate) const ALL: [Self; 2] = [Self::Checkout, Self::Reporting];

    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Checkout => "checkout",
            Self::Reporting => "reporting",
        }
    }

    /// How long its calls hold a connection.
    pub(crate) const fn hold(self) -> HoldTime {
        match self {
            Self::Checkout => HoldTime::LogNormal {
                mean: Duration::from_millis(30),
                spread: 0.5,
            },
            Self::Reporting => HoldTime::LogNormal {
                mean: Duration::from_millis(250),
                spread: 1.0,
            },
        }
    }

    /// How long in the incident: twenty times as long.
    pub(crate) const fn sick_hold(self) -> Option<HoldTime> {
        match self {
            Self::Checkout => None,
            Self::Reporting => Some(HoldTime::LogNormal {
                mean: Duration::from_secs(5),
                spread: 1.0,
            }),
        }
    }

    pub(crate) const fn deadline(self) -> Option<Duration> {
        match self {
            Self::Checkout => Some(DEADLINE),
            Self::Reporting => None,
        }
    }

    /// The bound of its queue, in every layout.
    pub(crate) const fn queue(self) -> u32 {
        match self {
            Self::Checkout => 40,
            Self::Reporting => 8,
        }
    }

    /// What the server must say of `statement_timeout` in its sessions.
    pub(crate) const fn statement_timeout(self) -> &'static str {
        match self {
            Self::Checkout => "5s",
            Self::Reporting => "5min",
        }
    }
}

/// A part of the hour.
struct Piece {
    /// In hundredths of it.
    percent: u32,
    /// Calls a second.
    rates: [Rate; 2],
}

const fn piece(percent: u32, checkout: u32, reporting: u32) -> Piece {
    let rates = [Rate::of(checkout), Rate::of(reporting)];
    Piece { percent, rates }
}

/// Quiet, the peak of checkout, and a lull, in which the reports are made.
const HOUR: [Piece; 3] = [piece(25, 60, 20), piece(45, 180, 16), piece(30, 90, 40)];

/// How the connections are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Bulkheads: nothing is lent.
    Fixed,
    /// One pool: nothing is reserved.
    Shared,
    /// What is reserved is never lent, the rest goes to whoever asks.
    Borrowing,
}

impl Layout {
    pub(crate) const ALL: [Self; 3] = [Self::Fixed, Self::Shared, Self::Borrowing];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Shared => "shared",
            Self::Borrowing => "borrowing",
        }
    }

    /// What is reserved to a flow, and the most that it may have.
    pub(crate) const fn slots(self, flow: Flow) -> (u32, u32) {
        match (self, flow) {
            (Self::Fixed, Flow::Checkout) => (12, 12),
            (Self::Fixed, Flow::Reporting) => (8, 8),
            (Self::Shared, _) => (0, CAPACITY),
            (Self::Borrowing, Flow::Checkout) => (8, CAPACITY),
            (Self::Borrowing, Flow::Reporting) => (2, CAPACITY),
        }
    }

    /// The same as the pool's ledger has it.
    pub(crate) fn rules(self) -> Rules {
        let class = |flow: Flow| {
            let (reserved, max) = self.slots(flow);
            ClassRules {
                reserved,
                max,
                queue: flow.queue(),
            }
        };
        Rules {
            capacity: CAPACITY,
            classes: Flow::ALL.map(class).into(),
            hand_over: HandOver::default(),
        }
    }

    /// In words.
    pub(crate) fn what(self) -> String {
        let [(checkout, most), (reporting, _)] = Flow::ALL.map(|flow| self.slots(flow));
        match self {
            Self::Fixed => format!("checkout has {checkout} connections, reporting {reporting}"),
            Self::Shared => format!("each may have all {most} connections"),
            Self::Borrowing => format!(
                "{checkout} are reserved to checkout and {reporting} to reporting; each may have all that nobody has reserved"
            ),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Day {
    Ordinary,
    /// For a part of the hour, reports that start hold their connection twenty times as long.
    Incident,
}

impl Day {
    pub(crate) const ALL: [Self; 2] = [Self::Ordinary, Self::Incident];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Incident => "incident",
        }
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How long an hour lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) length: Duration,
}

impl Plan {
    pub(crate) const FULL: Self = Self {
        length: Duration::from_secs(60),
    };

    pub(crate) const QUICK: Self = Self {
        length: Duration::from_secs(4),
    };

    /// The parts of the hour, with the calls a second of each flow.
    pub(crate) fn pieces(self) -> Vec<(Span, [Rate; 2])> {
        let mut from = Duration::ZERO;
        let parts = HOUR.iter().map(|piece| {
            let until = from + self.part(piece.percent);
            let span = Span { from, until };
            from = until;
            (span, piece.rates)
        });
        parts.collect()
    }

    /// From the peak of checkout on, and a little longer than that.
    pub(crate) fn incident(self) -> Span {
        Span {
            from: self.part(30),
            until: self.part(75),
        }
    }

    fn part(self, percent: u32) -> Duration {
        self.length * percent / 100
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_follow_each_other_and_make_the_whole() {
        let pieces = Plan::FULL.pieces();
        assert_eq!(pieces[0].0.from, Duration::ZERO);
        assert!(pieces.windows(2).all(|two| two[0].0.until == two[1].0.from));
        assert_eq!(pieces.last().unwrap().0.until, Plan::FULL.length);
    }

    #[test]
    fn every_layout_has_the_same_capacity_and_reserves_no_more() {
        for layout in Layout::ALL {
            let rules = layout.rules();
            let reserved: u32 = rules.classes.iter().map(|class| class.reserved).sum();
            assert!(reserved <= CAPACITY);
            assert!(rules.classes.iter().all(|class| class.max <= CAPACITY));
        }
    }
}
