//! What is told while it runs.

use std::fmt;
use std::time::Duration;

use super::calls::Outcome;
use super::layout::Kind;
use super::measure::Latency;
use super::plan::{Phase, Plan};
use super::words::millis;
use super::workload::Checkout;

/// The last second of a layout.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    layout: Kind,
    phase: Phase,
    at: Duration,
    total: Duration,
    ok: usize,
    lost: usize,
    latency: Option<Latency>,
    backends: u32,
}

impl Progress {
    pub(super) fn new(
        layout: Kind,
        plan: &Plan,
        at: Duration,
        answered: &[Checkout],
        backends: u32,
    ) -> Self {
        let ok = |c: &&Checkout| c.outcome == Outcome::Ok;
        let ok = answered.iter().filter(ok).count();
        Self {
            layout,
            phase: plan.phase_at(at.saturating_sub(Duration::from_millis(1))),
            at,
            total: plan.total(),
            ok,
            lost: answered.len() - ok,
            latency: Latency::of(&answered.iter().collect::<Vec<_>>()),
            backends,
        }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p99 = self.latency.map_or("-".to_owned(), |l| millis(l.p99));
        write!(
            f,
            "{:<12}{:<9}{:>5.0} of {:.0} s   checkouts {:>4} ok {:>4} lost   p99 {:>8}   connections {:>2}",
            self.layout,
            self.phase,
            self.at.as_secs_f64(),
            self.total.as_secs_f64(),
            self.ok,
            self.lost,
            p99,
            self.backends,
        )
    }
}
