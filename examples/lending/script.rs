//! The calls of an hour, drawn once and played in every layout, on the server and in the simulator.

use std::sync::Arc;
use std::time::Duration;

use partitioned_pool::admission::{ClassId, ClassRules, HandOver, Rules};
use partitioned_pool::plan::simulator::{
    Arrivals, AtDeadline, Flow as SimulatedFlow, InvalidScenario, Scenario, Span, What, simulate,
    simulate_watched,
};

use crate::figures::Work;
use crate::plan::{ACQUIRE, Day, Flow, Layout, Plan};

/// Longer than any call that begins within an hour.
const MARGIN: Duration = Duration::from_secs(100_000);
/// As good as no bound.
const MANY: u32 = 1_000_000;

/// A call, as it comes in every layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) flow: Flow,
    pub(crate) at: Duration,
    /// How long it holds a connection.
    hold: Duration,
    /// How long it does if it starts in the incident.
    sick_hold: Duration,
}

/// The calls of one hour.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    pub(crate) plan: Plan,
    /// In order of time.
    pub(crate) calls: Vec<Call>,
    times: [Arc<[Duration]>; 2],
}

/// What the simulator says will come of an hour.
#[derive(Clone, Debug)]
pub(crate) struct Predicted {
    pub(crate) works: [Work; 2],
    pub(crate) utilisation: f64,
}

impl Script {
    /// Draws the hour of a seed.
    ///
    /// # Errors
    /// None, unless the plan is one that cannot be simulated.
    pub(crate) fn draw(seed: u64, plan: Plan) -> Result<Self, InvalidScenario> {
        let times = arrivals(seed, plan)?;
        let mut script = Self {
            seed,
            plan,
            calls: Vec::new(),
            times,
        };
        let [healthy, sick] = [Day::Ordinary, Day::Incident].map(|day| script.holds(day));
        let sick = sick?;
        for ((flow, at, hold), (.., sick_hold)) in healthy?.into_iter().zip(sick) {
            script.calls.push(Call {
                flow,
                at,
                hold,
                sick_hold,
            });
        }
        Ok(script)
    }

    /// How long a call holds a connection that it gets at this time.
    pub(crate) fn hold(&self, call: &Call, day: Day, at: Duration) -> Duration {
        if day == Day::Incident && self.plan.incident().contains(at) {
            call.sick_hold
        } else {
            call.hold
        }
    }

    /// The hour in the simulator.
    ///
    /// # Errors
    /// As [`draw`](Self::draw).
    pub(crate) fn predict(&self, layout: Layout, day: Day) -> Result<Predicted, InvalidScenario> {
        let incident = (day == Day::Incident).then(|| self.plan.incident());
        let scenario = self.scenario(layout.rules(), self.plan.length, incident);
        let mut queued = vec![None; self.calls.len()];
        let mut waits = [Vec::new(), Vec::new()];
        let simulation = simulate_watched(&scenario, |event| {
            let call = usize::try_from(event.call).expect("bug: some thousand calls");
            match event.what {
                What::Queued => queued[call] = Some(event.at),
                What::Granted => {
                    let waited = queued[call].map_or(Duration::ZERO, |since| event.at - since);
                    waits[event.flow].push(waited);
                }
                _ => {}
            }
        })?;
        let measured = &simulation.spans[0];
        let [checkout, reporting] = waits;
        Ok(Predicted {
            works: [
                Work::predicted(&measured.flows[0], checkout),
                Work::predicted(&measured.flows[1], reporting),
            ],
            utilisation: measured.utilisation(),
        })
    }

    /// Whether what is reserved to checkout carries all its calls of this hour, with nothing borrowed: in
    /// the simulator, alone on so many slots, it loses none.
    ///
    /// # Errors
    /// As [`draw`](Self::draw).
    pub(crate) fn covers(&self, layout: Layout) -> Result<bool, InvalidScenario> {
        let (reserved, _) = layout.slots(Flow::Checkout);
        if reserved == 0 {
            return Ok(false);
        }
        let rules = Rules::fixed(reserved, Flow::Checkout.queue());
        let alone = self.flow(Flow::Checkout, ClassId::new(0), None);
        let alone = Scenario::new(self.plan.length, rules)
            .seed(self.seed)
            .flow(alone);
        Ok(simulate(&alone)?.spans[0].flows[0].lost() == 0)
    }

    /// Each call with its flow, its time, and how long it holds a connection on this day, whenever it
    /// gets it: so many slots that nobody waits.
    fn holds(&self, day: Day) -> Result<Vec<(Flow, Duration, Duration)>, InvalidScenario> {
        let ample = ClassRules {
            reserved: 0,
            max: MANY,
            queue: 0,
        };
        let rules = Rules {
            capacity: MANY,
            classes: vec![ample; 2],
            hand_over: HandOver::default(),
        };
        let length = self.plan.length + MARGIN;
        let always = Span {
            from: Duration::ZERO,
            until: length,
        };
        let mut scenario = self.scenario(rules, length, (day == Day::Incident).then_some(always));
        for flow in &mut scenario.flows {
            flow.deadline = None;
        }
        let mut holds = Vec::new();
        simulate_watched(&scenario, |event| match event.what {
            What::Granted => holds.push((Flow::ALL[event.flow], event.at, Duration::ZERO)),
            What::Ended { .. } => {
                let call = usize::try_from(event.call).expect("bug: some thousand calls");
                let (_, since, hold) = &mut holds[call];
                *hold = event.at - *since;
            }
            _ => {}
        })?;
        Ok(holds)
    }

    fn scenario(&self, rules: Rules, length: Duration, incident: Option<Span>) -> Scenario {
        let scenario = Scenario::new(length, rules).seed(self.seed);
        Flow::ALL.into_iter().fold(scenario, |scenario, flow| {
            scenario.flow(self.flow(flow, ClassId::new(flow.index()), incident))
        })
    }

    fn flow(&self, flow: Flow, class: ClassId, incident: Option<Span>) -> SimulatedFlow {
        let arrivals = Arrivals::Trace(Arc::clone(&self.times[flow.index()]));
        let mut simulated = SimulatedFlow::new(flow.as_str(), class, arrivals, flow.hold())
            .acquire_timeout(ACQUIRE);
        if let Some(deadline) = flow.deadline() {
            simulated = simulated.deadline(deadline, AtDeadline::Free);
        }
        match (incident, flow.sick_hold()) {
            (Some(span), Some(hold)) => simulated.incident(span.from, span.until, hold),
            _ => simulated,
        }
    }
}

/// Poisson processes, one for each flow and part of the hour, one part after the other.
fn arrivals(seed: u64, plan: Plan) -> Result<[Arc<[Duration]>; 2], InvalidScenario> {
    let pieces = plan.pieces();
    let ample = Rules::fixed(MANY, 0);
    let mut scenario = Scenario::new(plan.length, ample).seed(seed);
    for (_, rates) in &pieces {
        for flow in Flow::ALL {
            let arrivals = Arrivals::Poisson(rates[flow.index()]);
            let at_once = ClassId::new(0);
            scenario = scenario.flow(SimulatedFlow::new(
                flow.as_str(),
                at_once,
                arrivals,
                flow.hold(),
            ));
        }
    }
    let mut times = [Vec::new(), Vec::new()];
    simulate_watched(&scenario, |event| {
        let (span, _) = &pieces[event.flow / Flow::ALL.len()];
        if event.what == What::Granted && event.at < span.length() {
            times[event.flow % Flow::ALL.len()].push(span.from + event.at);
        }
    })?;
    Ok(times.map(|mut times| {
        times.sort_unstable();
        times.into()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_has_the_rates_and_the_holds_of_its_plan() {
        let script = Script::draw(3, Plan::FULL).unwrap();
        for (span, rates) in Plan::FULL.pieces() {
            for flow in Flow::ALL {
                let calls = script.calls.iter();
                let calls = calls.filter(|call| call.flow == flow && span.contains(call.at));
                let seconds = span.length().as_secs_f64();
                let expected = rates[flow.index()].as_per_second() * seconds;
                let off = (f64::from(u32::try_from(calls.count()).unwrap()) - expected).abs();
                assert!(off < 4.0 * expected.sqrt(), "{flow:?} {span:?}: {off}");
            }
        }
        let mut reports = script
            .calls
            .iter()
            .filter(|call| call.flow == Flow::Reporting);
        assert!(reports.all(|call| {
            let times = call.sick_hold.as_secs_f64() / call.hold.as_secs_f64();
            (19.9..20.1).contains(&times)
        }));
        let mut checkouts = script
            .calls
            .iter()
            .filter(|call| call.flow == Flow::Checkout);
        assert!(checkouts.all(|call| call.sick_hold == call.hold));
    }

    #[test]
    fn the_calls_that_are_played_are_those_that_are_simulated() {
        let script = Script::draw(3, Plan::QUICK).unwrap();
        for layout in Layout::ALL {
            let predicted = script.predict(layout, Day::Incident).unwrap();
            for flow in Flow::ALL {
                let calls = script.calls.iter().filter(|call| call.flow == flow).count();
                let arrived = predicted.works[flow.index()].arrived();
                assert_eq!(usize::try_from(arrived).unwrap(), calls);
            }
        }
        let again = Script::draw(3, Plan::QUICK).unwrap();
        assert_eq!(again.times, script.times);
        assert_ne!(Script::draw(4, Plan::QUICK).unwrap().times, script.times);
    }

    /// The claim, twenty hours of it, and more than the server has time for.
    #[test]
    fn borrowing_keeps_checkout_whole_in_every_hour_in_which_its_reservation_covers_its_load() {
        let mut covered = 0;
        for seed in 0..20 {
            let script = Script::draw(seed, Plan::FULL).unwrap();
            if script.covers(Layout::Borrowing).unwrap() {
                covered += 1;
                let predicted = script.predict(Layout::Borrowing, Day::Incident).unwrap();
                assert_eq!(predicted.works[0].lost(), 0, "seed {seed}");
            }
        }
        assert!(covered > 15, "{covered} of 20 hours tell something");
    }
}
