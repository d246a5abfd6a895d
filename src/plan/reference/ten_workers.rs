//! Some workers, classes with reservations, and an incident in one of them.

use std::time::Duration;

use serde::Deserialize;

use crate::admission::{ClassId, ClassRules, HandOver, Rules};
use crate::plan::simulator::{Arrivals, Flow, HoldTime, Measured, Scenario, simulate};

use super::invalid::{InvalidModel, check_names};

const SECOND: Duration = Duration::from_secs(1);

/// The model with ten workers. In each second: holds end, all of them; the queues are served in the order
/// of the classes; then calls come, class by class.
///
/// Its default is the published setting `shared`.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::reference::TenWorkers;
///
/// let mut longer = TenWorkers::shared();
/// longer.seconds = 120;
/// assert_eq!(longer.run()?.flows.len(), 2);
/// # Ok::<(), partitioned_pool::plan::reference::InvalidModel>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct TenWorkers {
    /// How long it runs. Default: 60.
    pub seconds: u32,
    /// The incident: from this second, until that one. Calls that come in it are counted. Default: 10 to 40.
    pub incident: [u32; 2],
    /// Workers that the classes share. Default: 10.
    pub workers: u32,
    /// The classes. Their calls come in this order, and workers are handed over in this order.
    /// Default: search, then payments.
    #[serde(rename = "class")]
    pub classes: Vec<WorkerClass>,
}

/// A class of [`TenWorkers`].
///
/// # Examples
/// ```
/// use partitioned_pool::plan::reference::{TenWorkers, WorkerClass};
///
/// let mut model = TenWorkers::shared();
/// model.classes.push(WorkerClass::new("refunds", 2, 1));
/// assert!(model.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct WorkerClass {
    /// Its name.
    pub name: String,
    /// Workers that are never lent. Default: 0.
    #[serde(default)]
    pub reserved: u32,
    /// The most workers that it may hold.
    pub max: u32,
    /// The most calls that may wait. Default: 2.
    #[serde(default = "default_queue")]
    pub queue: u32,
    /// Calls that come at the beginning of each second.
    pub arrivals_per_second: u32,
    /// How long a call holds its worker. Default: 1.
    #[serde(default = "default_hold")]
    pub hold_seconds: u32,
    /// How long a call holds its worker that starts in the incident. Default: as ever.
    #[serde(default)]
    pub hold_seconds_in_incident: Option<u32>,
}

const fn default_queue() -> u32 {
    2
}

const fn default_hold() -> u32 {
    1
}

impl WorkerClass {
    /// No reservation, a queue of 2, holds of a second.
    #[must_use]
    pub fn new(name: impl Into<String>, max: u32, arrivals_per_second: u32) -> Self {
        Self {
            name: name.into(),
            reserved: 0,
            max,
            queue: default_queue(),
            arrivals_per_second,
            hold_seconds: default_hold(),
            hold_seconds_in_incident: None,
        }
    }

    fn flow(&self, class: usize, incident: [Duration; 2]) -> Flow {
        let arrivals = Arrivals::Regular {
            every: SECOND,
            batch: self.arrivals_per_second,
        };
        let hold = |seconds| HoldTime::Fixed(SECOND * seconds);
        let class = ClassId::new(class);
        let flow = Flow::new(&self.name, class, arrivals, hold(self.hold_seconds));
        match self.hold_seconds_in_incident {
            Some(seconds) => flow.incident(incident[0], incident[1], hold(seconds)),
            None => flow,
        }
    }

    /// What is wrong with its limits, if there are so many workers.
    const fn flaw(&self, workers: u32) -> Option<&'static str> {
        if self.max == 0 {
            return Some("max must be 1 or more");
        }
        if self.reserved > self.max {
            return Some("reserved is above max");
        }
        if self.max > workers {
            return Some("max is above the workers that there are");
        }
        None
    }

    const fn rules(&self) -> ClassRules {
        ClassRules {
            reserved: self.reserved,
            max: self.max,
            queue: self.queue,
        }
    }
}

impl Default for TenWorkers {
    fn default() -> Self {
        let mut search = WorkerClass::new("search", 10, 3);
        search.hold_seconds_in_incident = Some(8);
        Self {
            seconds: 60,
            incident: [10, 40],
            workers: 10,
            classes: vec![search, WorkerClass::new("payments", 10, 4)],
        }
    }
}

impl TenWorkers {
    /// All ten for both.
    #[must_use]
    pub fn shared() -> Self {
        Self::default()
    }

    /// So many for search alone, the others for payments alone.
    #[must_use]
    pub fn fixed(search: u32) -> Self {
        let payments = 10_u32.saturating_sub(search);
        Self::limits([(search, search), (payments, payments)])
    }

    /// Four for search, six for payments, of which so many are lent.
    #[must_use]
    pub fn borrowing(lent: u32) -> Self {
        Self::limits([(4, 4 + lent), (6_u32.saturating_sub(lent), 10)])
    }

    fn limits(limits: [(u32, u32); 2]) -> Self {
        let mut model = Self::default();
        for (class, limits) in model.classes.iter_mut().zip(limits) {
            (class.reserved, class.max) = limits;
        }
        model
    }

    fn search_hold_in_incident(mut self, seconds: u32) -> Self {
        self.classes[0].hold_seconds_in_incident = Some(seconds);
        self
    }

    fn queue(mut self, queue: u32) -> Self {
        self.classes
            .iter_mut()
            .for_each(|class| class.queue = queue);
        self
    }

    /// The published settings, under their published names.
    #[must_use]
    pub fn published() -> Vec<(&'static str, Self)> {
        vec![
            ("shared", Self::shared()),
            ("fixed 4", Self::fixed(4)),
            ("fixed 6", Self::fixed(6)),
            ("fixed 7", Self::fixed(7)),
            ("borrowing 1", Self::borrowing(1)),
            ("borrowing 2", Self::borrowing(2)),
            ("borrowing 3", Self::borrowing(3)),
            ("borrowing 6", Self::borrowing(6)),
            (
                "shared, incident hold 2 s",
                Self::shared().search_hold_in_incident(2),
            ),
            (
                "shared, incident hold 3 s",
                Self::shared().search_hold_in_incident(3),
            ),
            ("shared, queue 10", Self::shared().queue(10)),
            ("shared, queue 0", Self::shared().queue(0)),
        ]
    }

    /// Whether it can be run: each name once, limits within the workers, and the incident within the run.
    ///
    /// # Errors
    /// The first setting that cannot be.
    pub fn check(&self) -> Result<(), InvalidModel> {
        let names: Vec<_> = self.classes.iter().map(|c| c.name.as_str()).collect();
        check_names(&names)?;
        if self.workers == 0 {
            return Err(InvalidModel::NoWorkers);
        }
        let (incident, seconds) = (self.incident, self.seconds);
        if incident[0] >= incident[1] || incident[1] > seconds {
            return Err(InvalidModel::Incident { incident, seconds });
        }
        self.check_limits()
    }

    fn check_limits(&self) -> Result<(), InvalidModel> {
        let workers = self.workers;
        for (position, class) in self.classes.iter().enumerate() {
            if let Some(problem) = class.flaw(workers) {
                let name = class.name.clone();
                return Err(InvalidModel::Class {
                    position,
                    name,
                    problem,
                });
            }
        }
        let reserved = self.classes.iter().map(|c| u64::from(c.reserved)).sum();
        if reserved > u64::from(workers) {
            return Err(InvalidModel::Reserved { reserved, workers });
        }
        Ok(())
    }

    /// What is simulated: the classes as flows; the incident is reported, with a point a second.
    #[must_use]
    pub fn scenario(&self) -> Scenario {
        let rules = Rules {
            capacity: self.workers,
            classes: self.classes.iter().map(WorkerClass::rules).collect(),
            hand_over: HandOver::DeclaredOrder,
        };
        let incident = self.incident.map(|second| SECOND * second);
        let mut scenario = Scenario::new(SECOND * self.seconds, rules)
            .span(incident[0], incident[1])
            .step(SECOND);
        let classes = self.classes.iter().enumerate();
        scenario.flows = classes.map(|(n, class)| class.flow(n, incident)).collect();
        scenario
    }

    /// Runs it: one flow a class; what became of the calls that came in the incident.
    ///
    /// # Errors
    /// Settings that cannot be run, such as a reservation above `max`, or an incident that is not within
    /// the run.
    pub fn run(&self) -> Result<Measured, InvalidModel> {
        self.check()?;
        let simulation = simulate(&self.scenario())?;
        let incident = simulation.spans.into_iter().next();
        Ok(incident.expect("bug: it was asked for"))
    }
}
