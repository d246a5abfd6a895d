//! Bursty flows in rounds, without a queue: one pool, or a pool for each.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use crate::admission::{ClassId, ClassRules, HandOver, Rules};
use crate::plan::formulas::{Rate, erlangs};
use crate::plan::number::{float, ratio, whole};
use crate::plan::simulator::{
    Arrivals, Flow, HoldTime, InvalidScenario, MOST_CALLS, Measured, Scenario, Simulation, replay,
};

use super::invalid::{InvalidModel, check_names};
use super::lehmer::Lehmer;

/// What a round lasts on the virtual clock. The model has nothing between two rounds, so any time will do.
const ROUND: Duration = Duration::from_millis(1);

/// The most calls of a flow in one round, on average: for more of them `exp(-lambda)` is no number.
const MOST_PER_ROUND: f64 = 700.0;

/// The model with two bursty flows (or more, or fewer). In each round: holds end, all of them; the calls
/// of the round are drawn, flow by flow, and shuffled; each finds a slot in its pool or is dropped.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::reference::{Day, Layout, TwoFlows};
///
/// let model = TwoFlows::default();
/// let run = model.run(&Layout::Single(32), Day::Healthy)?;
/// assert_eq!(run.measured.flows.len(), 2);
/// # Ok::<(), partitioned_pool::plan::reference::InvalidModel>(())
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct TwoFlows {
    /// Where the random numbers begin. Default: 20260801.
    pub seed: u32,
    /// How long it runs. Default: 4000.
    pub rounds: u32,
    /// What the rates are divided by. Default: 100.
    pub rounds_per_second: u32,
    /// Slots of the single pool. Default: 32.
    pub slots: u32,
    /// Splits to be looked at: the slots of each flow. Default: the five published ones.
    pub splits: Vec<Vec<u32>>,
    /// From this round on, holds are those of the slowdown. Default: 1000.
    pub slowdown_starts_at_round: u32,
    /// The flows, in the order in which they are drawn. Default: tracking, then event.
    #[serde(rename = "flow")]
    pub flows: Vec<BurstyFlow>,
}

/// A flow of [`TwoFlows`].
///
/// # Examples
/// ```
/// use partitioned_pool::plan::reference::{BurstyFlow, TwoFlows};
///
/// let mut model = TwoFlows::default();
/// model.flows[0] = BurstyFlow::new("tracking", 300.0, 4);
/// assert!(model.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BurstyFlow {
    /// Its name.
    pub name: String,
    /// Calls per second, on average.
    pub arrivals_per_second: f64,
    /// How many rounds a call holds its slot.
    pub hold_rounds: u32,
    /// How many rounds in the slowdown. Default: as ever.
    #[serde(default)]
    pub hold_rounds_in_slowdown: Option<u32>,
}

impl BurstyFlow {
    /// Nothing changes in the slowdown.
    #[must_use]
    pub fn new(name: impl Into<String>, arrivals_per_second: f64, hold_rounds: u32) -> Self {
        Self {
            name: name.into(),
            arrivals_per_second,
            hold_rounds,
            hold_rounds_in_slowdown: None,
        }
    }
}

impl Default for TwoFlows {
    fn default() -> Self {
        let mut event = BurstyFlow::new("event", 97.22, 6);
        event.hold_rounds_in_slowdown = Some(22);
        Self {
            seed: 20_260_801,
            rounds: 4000,
            rounds_per_second: 100,
            slots: 32,
            splits: [[28, 4], [24, 8], [20, 12], [16, 16], [27, 5]]
                .map(Vec::from)
                .to_vec(),
            slowdown_starts_at_round: 1000,
            flows: vec![BurstyFlow::new("tracking", 416.67, 4), event],
        }
    }
}

/// How the slots are divided.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::reference::Layout;
///
/// assert_eq!(Layout::Split(vec![28, 4]).to_string(), "28/4");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One pool for all flows.
    Single(u32),
    /// A pool for each flow.
    Split(Vec<u32>),
}

impl Layout {
    fn rules(&self) -> Rules {
        match self {
            Self::Single(slots) => Rules::fixed(*slots, 0),
            Self::Split(sizes) => Rules {
                capacity: sizes.iter().copied().fold(0, u32::saturating_add),
                classes: sizes.iter().map(|n| ClassRules::fixed(*n, 0)).collect(),
                hand_over: HandOver::default(),
            },
        }
    }

    const fn class(&self, flow: usize) -> ClassId {
        match self {
            Self::Single(_) => ClassId::new(0),
            Self::Split(_) => ClassId::new(flow),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(slots) => write!(f, "single pool {slots}"),
            Self::Split(sizes) => {
                let sizes: Vec<_> = sizes.iter().map(u32::to_string).collect();
                f.write_str(&sizes.join("/"))
            }
        }
    }
}

/// With the slowdown, or without.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::reference::{Day, Layout, TwoFlows};
///
/// let model = TwoFlows::default();
/// let of = |day| model.run(&Layout::Single(32), day);
/// let (healthy, slow) = (of(Day::Healthy)?.measured, of(Day::Slowdown)?.measured);
/// assert!(healthy.flows[0].refused.total() < slow.flows[0].refused.total());
/// # Ok::<(), partitioned_pool::plan::reference::InvalidModel>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Day {
    /// Nothing happens.
    Healthy,
    /// Holds change at [`TwoFlows::slowdown_starts_at_round`].
    Slowdown,
}

/// What came of one run of [`TwoFlows`].
///
/// # Examples
/// ```
/// use partitioned_pool::plan::reference::{BurstyRun, Day, Layout, TwoFlows};
///
/// let BurstyRun { average_busy, .. } = TwoFlows::default().run(&Layout::Single(32), Day::Healthy)?;
/// assert!(average_busy < 32.0);
/// # Ok::<(), partitioned_pool::plan::reference::InvalidModel>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BurstyRun {
    /// The whole run: one flow each. Dropped calls are those refused for a full queue; idle slots are
    /// [`Measured::idle_when_refused`].
    pub measured: Measured,
    /// Slots held at the beginning of a round, when holds have ended and nobody has come yet; on average.
    pub average_busy: f64,
}

/// What a split saves for a flow in the slowdown, against the single pool.
///
/// # Examples
/// ```
/// use partitioned_pool::plan::reference::TwoFlows;
///
/// let rescued = TwoFlows::default().rescued(0, &[24, 8])?;
/// println!("{:.1} % of the calls that one pool drops", rescued.percent);
/// # assert!(rescued.percent > 0.0);
/// # Ok::<(), partitioned_pool::plan::reference::InvalidModel>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rescued {
    /// Of the calls that the single pool drops, in percent.
    pub percent: f64,
    /// Calls, were the slowdown to last for ten minutes.
    pub in_ten_minutes: f64,
}

impl TwoFlows {
    /// The single pool, and the splits.
    #[must_use]
    pub fn layouts(&self) -> Vec<Layout> {
        let splits = self.splits.iter().cloned().map(Layout::Split);
        std::iter::once(Layout::Single(self.slots))
            .chain(splits)
            .collect()
    }

    /// Whether names and splits fit each other: each name once, and each split with a pool for each flow and
    /// as many slots as the single pool. What a run needs beside that, [`run`](Self::run) says.
    ///
    /// # Errors
    /// The first that does not.
    pub fn check(&self) -> Result<(), InvalidModel> {
        let names: Vec<_> = self.flows.iter().map(|flow| flow.name.as_str()).collect();
        check_names(&names)?;
        if self.slots == 0 {
            return Err(InvalidModel::NoSlots);
        }
        for sizes in &self.splits {
            let split = Layout::Split(sizes.clone());
            self.check_layout(&split)?;
            let (sum, slots) = (sizes.iter().copied().map(u64::from).sum(), self.slots);
            if sum != u64::from(slots) {
                return Err(InvalidModel::Sum { split, sum, slots });
            }
        }
        Ok(())
    }

    fn check_layout(&self, layout: &Layout) -> Result<(), InvalidModel> {
        let flows = self.flows.len();
        match layout {
            Layout::Split(sizes) if sizes.len() != flows => {
                let split = layout.clone();
                Err(InvalidModel::Pools { split, flows })
            }
            _ => Ok(()),
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Settings that cannot be run: see [`InvalidModel`].
    pub fn run(&self, layout: &Layout, day: Day) -> Result<BurstyRun, InvalidModel> {
        let Simulation { spans, curve } = self.simulate(layout, day)?;
        let curves = curve.into_iter().flat_map(|curve| curve.flows);
        let busy = curves.flat_map(|flow| flow.held).map(u128::from).sum();
        Ok(BurstyRun {
            measured: spans
                .into_iter()
                .next()
                .expect("bug: there is the whole run"),
            average_busy: ratio(busy, self.rounds.into()),
        })
    }

    /// Runs it; the whole run is reported, and there is a curve with a point a round.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn simulate(&self, layout: &Layout, day: Day) -> Result<Simulation, InvalidModel> {
        self.check_layout(layout)?;
        let scenario = self.scenario(layout, day)?;
        // Before any call is drawn: there may be more than can be.
        scenario.check()?;
        Ok(replay(&scenario, self.calls()?)?)
    }

    /// What a split saves for a flow in the slowdown.
    ///
    /// # Errors
    /// As [`run`](Self::run); and a flow that there is not.
    pub fn rescued(&self, flow: usize, split: &[u32]) -> Result<Rescued, InvalidModel> {
        let dropped = |layout| {
            let run = self.run(&layout, Day::Slowdown)?;
            let flow = run.measured.flows.get(flow).ok_or(InvalidModel::Flow)?;
            Ok::<_, InvalidModel>(float(flow.refused.total().into()))
        };
        let single = dropped(Layout::Single(self.slots))?;
        let saved = single - dropped(Layout::Split(split.to_vec()))?;
        let rounds = self.rounds.saturating_sub(self.slowdown_starts_at_round);
        let seconds = f64::from(rounds) / f64::from(self.rounds_per_second);
        Ok(Rescued {
            percent: 100.0 * saved / single,
            in_ten_minutes: saved * 600.0 / seconds,
        })
    }

    /// The load of a flow on an ordinary day, as a share of so many slots.
    ///
    /// # Errors
    /// A flow that there is not, or whose rate is no rate.
    pub fn utilisation(&self, flow: usize, slots: u32) -> Result<f64, InvalidModel> {
        let flow = self.flows.get(flow).ok_or(InvalidModel::Flow)?;
        let per_round = flow.arrivals_per_second / f64::from(self.rounds_per_second);
        let rate = Rate::per_second(per_round).ok_or_else(|| wrong_rate(flow))?;
        let hold = Duration::from_secs(flow.hold_rounds.into());
        Ok(erlangs(rate, hold) / f64::from(slots))
    }

    /// All calls, each with its round and its flow, as they come.
    fn calls(&self) -> Result<Vec<(Duration, usize)>, InvalidModel> {
        let lambdas = self.flows.iter().map(|flow| self.lambda(flow));
        let lambdas = lambdas.collect::<Result<Vec<_>, _>>()?;
        let expected = whole(lambdas.iter().sum::<f64>() * f64::from(self.rounds));
        if expected > MOST_CALLS {
            return Err(InvalidScenario::TooManyCalls(expected).into());
        }
        let mut random = Lehmer::new(self.seed).ok_or(InvalidModel::Seed(self.seed))?;
        let mut calls = Vec::new();
        for round in 0..self.rounds {
            let begin = calls.len();
            for (flow, lambda) in lambdas.iter().enumerate() {
                let count = random.poisson(*lambda);
                calls.extend((0..count).map(|_| (ROUND * round, flow)));
            }
            random.shuffle(&mut calls[begin..]);
        }
        Ok(calls)
    }

    fn lambda(&self, flow: &BurstyFlow) -> Result<f64, InvalidModel> {
        let lambda = flow.arrivals_per_second / f64::from(self.rounds_per_second);
        let fine = (0.0..=MOST_PER_ROUND).contains(&lambda);
        fine.then_some(lambda).ok_or_else(|| wrong_rate(flow))
    }

    fn scenario(&self, layout: &Layout, day: Day) -> Result<Scenario, InvalidModel> {
        let slowdown = [self.slowdown_starts_at_round, self.rounds].map(|round| ROUND * round);
        if day == Day::Slowdown && slowdown[0] >= slowdown[1] {
            return Err(InvalidModel::Slowdown);
        }
        let hold = |rounds| HoldTime::Fixed(ROUND * rounds);
        let mut scenario = Scenario::new(slowdown[1], layout.rules()).step(ROUND);
        for (n, flow) in self.flows.iter().enumerate() {
            let none = Arrivals::trace([]);
            let healthy = Flow::new(&flow.name, layout.class(n), none, hold(flow.hold_rounds));
            scenario = scenario.flow(match (day, flow.hold_rounds_in_slowdown) {
                (Day::Slowdown, Some(slow)) => {
                    healthy.incident(slowdown[0], slowdown[1], hold(slow))
                }
                _ => healthy,
            });
        }
        Ok(scenario)
    }
}

fn wrong_rate(flow: &BurstyFlow) -> InvalidModel {
    InvalidModel::Rate(flow.name.clone())
}
