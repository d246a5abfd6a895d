//! Two dependencies behind partitions, of which one stalls: the published order of events, through the ledger.

use std::time::Duration;

use partitioned_pool::admission::{
    Admission, ClassId, ClassRules, HandOver, Hold, Ledger, Patience, Rules,
};
use serde_json::Value;

use super::{Gathered, rows};
use crate::output::Stop;

const NOW: Duration = Duration::ZERO;

/// Partitions, and who holds a slot of them.
struct Replay {
    names: Vec<&'static str>,
    ledger: Ledger<&'static str>,
    runs: Vec<(&'static str, Hold)>,
}

impl Replay {
    /// Partitions with slots of their own and a bound of their queue.
    fn new(partitions: &[(&'static str, u32, u32)]) -> Result<Self, Stop> {
        let classes = partitions.iter();
        let classes = classes.map(|(_, slots, queue)| ClassRules::fixed(*slots, *queue));
        let rules = Rules {
            capacity: partitions.iter().map(|(_, slots, _)| slots).sum(),
            classes: classes.collect(),
            hand_over: HandOver::default(),
        };
        Ok(Self {
            names: partitions.iter().map(|(name, ..)| *name).collect(),
            ledger: Ledger::new(rules).map_err(Stop::new)?,
            runs: Vec::new(),
        })
    }

    /// A call to a partition; what it is told at once.
    fn call(&mut self, call: &'static str, partition: usize) -> Told {
        let patience = Patience::wait(Duration::from_secs(60));
        let class = ClassId::new(partition);
        match self.ledger.admit(class, NOW, patience, || call) {
            Admission::Granted(hold) => {
                self.runs.push((call, hold));
                Told::Runs
            }
            Admission::Queued(_) => Told::Waits,
            Admission::Refused(_) => Told::Rejected,
        }
    }

    /// The call is done, well or not; whom its slot goes to.
    fn done(&mut self, call: &str) -> Option<&'static str> {
        let position = self.runs.iter().position(|(name, _)| *name == call)?;
        let (_, hold) = self.runs.remove(position);
        let grant = self.ledger.release(hold, NOW)?;
        self.runs.push((grant.waiter, grant.hold));
        Some(grant.waiter)
    }

    /// A call, which ends at once if it runs.
    fn outcome(&mut self, call: &'static str, partition: usize) -> String {
        match self.call(call, partition) {
            Told::Runs => {
                self.done(call);
                "ok".to_owned()
            }
            Told::Waits => "waits".to_owned(),
            Told::Rejected => format!("rejected by {}", self.names[partition]),
        }
    }

    /// A call that runs is done.
    fn after_release(&mut self, call: &str) -> &'static str {
        let runs = self.runs.iter().any(|(name, _)| *name == call);
        self.done(call);
        if runs {
            "ok after release"
        } else {
            "never ran"
        }
    }

    fn figures(&self, partition: usize) -> String {
        let figures = self.ledger.figures(ClassId::new(partition), NOW);
        format!("running {}, queued {}", figures.used, figures.waiting)
    }
}

enum Told {
    Runs,
    Waits,
    Rejected,
}

impl Told {
    const fn word(&self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::Waits => "waits",
            Self::Rejected => "rejected",
        }
    }
}

pub(super) fn replay(published: &Value, figures: &mut Gathered) -> Result<(), Stop> {
    let shared = Replay::new(&[("shared", 2, 0)])?;
    stall(shared, "shared", 0, published, figures);
    let separate = Replay::new(&[("payments", 2, 0), ("catalog", 2, 0)])?;
    stall(separate, "separate", 1, published, figures);
    let ours = queued()?;
    let queued = rows(&published["queued"], "sequence");
    for (n, line) in queued.iter().enumerate() {
        let row = serde_json::json!({ "step": line });
        let ours = ours.get(n).cloned().unwrap_or_default();
        let run = format!("two dependencies, queued {}", n + 1);
        figures.add(&run, &row, "step", ours);
    }
    Ok(())
}

/// Two payments stall in partition 0, a third comes, and a call to the catalog.
fn stall(
    mut replay: Replay,
    name: &str,
    catalog: usize,
    published: &Value,
    figures: &mut Gathered,
) {
    let (run, row) = (format!("two dependencies, {name}"), &published[name]);
    replay.call("payment_1", 0);
    replay.call("payment_2", 0);
    figures.add(&run, row, "payment_3", replay.outcome("payment_3", 0));
    figures.add(&run, row, "catalog", replay.outcome("catalog", catalog));
    for payment in ["payment_1", "payment_2"] {
        figures.add(&run, row, payment, replay.after_release(payment));
    }
}

/// The six steps with a queue of one, each as a line in the published words.
fn queued() -> Result<[String; 6], Stop> {
    let mut replay = Replay::new(&[("payments", 2, 1), ("catalog", 2, 0)])?;
    let told = ["pay-1", "pay-2", "pay-3", "pay-4"].map(|call| replay.call(call, 0));
    let [first, second, third, fourth] = told.map(|told| told.word());
    let both = if first == second { "run" } else { "differ" };
    let figures = replay.figures(0);
    let came = format!("pay-1, pay-2 {both}, pay-3 {third}, pay-4 {fourth} ({figures})");
    let catalog = format!("catalog-1 {}", replay.outcome("catalog-1", 1));
    let passed = replay.done("pay-2").unwrap_or("nobody");
    let passed = format!("pay-2 fails: its slot goes to {passed}");
    let ends = ["pay-3", "pay-1"].map(|call| {
        let ended = replay.after_release(call);
        format!("{call} {}", ended.trim_end_matches(" after release"))
    });
    let left = replay.figures(0);
    let last = format!("pay-5 {}", replay.outcome("pay-5", 0));
    Ok([came, catalog, passed, ends.join(", "), left, last])
}
