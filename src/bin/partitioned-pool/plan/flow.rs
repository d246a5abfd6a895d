//! A flow of the file.

use std::ops::Range;
use std::time::Duration;

use partitioned_pool::config::{ANALYTICAL, Kind, TRANSACTIONAL};
use partitioned_pool::plan::formulas::Rate;
use partitioned_pool::plan::planner::{FlowNeed, Load};
use partitioned_pool::plan::simulator::{Arrivals, AtDeadline, HoldTime};
use toml::Spanned;

use super::file::{File, FlowTable, PartitionTable, Pattern, Shape, ThenWhat, Time};
use super::source::Source;
use crate::output::Stop;

/// What a simulation knows of a flow beside its need.
pub(super) struct FlowSpec {
    pub(super) arrivals: Arrivals,
    pub(super) in_incident: Option<HoldTime>,
    pub(super) acquire_timeout: Option<Duration>,
    pub(super) at_deadline: AtDeadline,
}

/// All flows of the file.
pub(super) fn read(
    source: &Source,
    file: &File,
    length: Duration,
) -> Result<(Vec<FlowNeed>, Vec<FlowSpec>), Stop> {
    let tables = file.others.iter();
    let tables = tables.flat_map(|other| &other.get_ref().partitions);
    for table in file.partitions.iter().chain(tables) {
        let (at, table) = (table.span(), table.get_ref());
        let what = format!("partition {}", table.name.0);
        check_kind(source, &at, &what, &table.name.0, table.kind)?;
    }
    let kinds = Kinds(&file.partitions);
    let fleet = file.fleet.as_ref();
    let replicas = fleet.map_or(1, |fleet| fleet.max_replicas.0);
    let mut needs: Vec<FlowNeed> = Vec::new();
    let mut specs = Vec::new();
    for table in &file.flows {
        let (at, kinds) = (table.span(), &kinds);
        let reader = Reader {
            source,
            kinds,
            length,
            replicas,
            at,
        };
        let table = table.get_ref();
        let (need, spec) = reader.flow(table)?;
        if needs.iter().any(|known| known.name == need.name) {
            return Err(reader.wrong(table, "is there twice; names are unique"));
        }
        needs.push(need);
        specs.push(spec);
    }
    Ok((needs, specs))
}

/// Reads one flow.
struct Reader<'a> {
    source: &'a Source,
    kinds: &'a Kinds<'a>,
    length: Duration,
    replicas: u32,
    at: Range<usize>,
}

impl Reader<'_> {
    fn flow(&self, table: &FlowTable) -> Result<(FlowNeed, FlowSpec), Stop> {
        let name = table.name.0.clone();
        let partition = table
            .partition
            .as_ref()
            .map_or(&name, |name| &name.0)
            .clone();
        let what = format!("flow {name}");
        check_kind(self.source, &self.at, &what, &partition, table.kind)?;
        let kind = self.kinds.of(&partition, table.kind);
        let trace = table
            .arrivals_csv
            .as_ref()
            .map(|file| self.trace(file))
            .transpose()?;
        let load = self.load(table, trace.as_ref())?;
        let hold = self.hold(table)?;
        let spec = FlowSpec {
            arrivals: self.arrivals(table, trace, load),
            in_incident: self.in_incident(table, &hold)?,
            acquire_timeout: table.acquire_timeout.map(|time| time.0),
            at_deadline: match table.at_deadline {
                ThenWhat::Leave => AtDeadline::Free,
                ThenWhat::Stay => AtDeadline::Stay,
                ThenWhat::LeaveWorkBehind => AtDeadline::Pin,
            },
        };
        let mut need = FlowNeed::new(name, kind, load, hold);
        need.partition = partition;
        need.deadline = table.deadline.map(|time| time.0);
        (need.at_deadline, need.acquire_timeout) = (spec.at_deadline, spec.acquire_timeout);
        need.headroom_percent = table
            .headroom_percent
            .map_or(need.headroom_percent, |p| p.0);
        need.loss = table.loss_percent.map_or(need.loss, |p| p.0 / 100.0);
        Ok((need, spec))
    }

    fn wrong(&self, table: &FlowTable, problem: &str) -> Stop {
        self.source
            .at(&self.at, format!("flow {}: {problem}", table.name.0))
    }

    fn trace(&self, file: &str) -> Result<Vec<Duration>, Stop> {
        match self.source.beside(file, &self.at, Arrivals::from_csv)? {
            Arrivals::Trace(times) => Ok(times.to_vec()),
            _ => Ok(Vec::new()),
        }
    }

    /// The mean rate of a trace is that of the time that is simulated.
    fn load(&self, table: &FlowTable, trace: Option<&Vec<Duration>>) -> Result<Load, Stop> {
        match (table.rate_per_replica, table.rate_of_fleet, trace) {
            (Some(rate), None, None) => Ok(Load::PerReplica(rate.0)),
            (None, Some(rate), None) => Ok(Load::OfFleet(rate.0)),
            (None, None, Some(times)) => {
                let calls = times.iter().filter(|at| **at < self.length).count();
                let rate = Rate::over(u64::try_from(calls).unwrap_or(u64::MAX), self.length);
                Ok(Load::PerReplica(rate))
            }
            _ => Err(self.wrong(
                table,
                "state one of rate_per_replica, rate_of_fleet and arrivals_csv",
            )),
        }
    }

    fn arrivals(&self, table: &FlowTable, trace: Option<Vec<Duration>>, load: Load) -> Arrivals {
        let rate = load.per_replica(self.replicas);
        match (trace, table.arrivals) {
            (Some(times), _) => Arrivals::trace(times),
            (None, Some(Pattern::Regular)) => Arrivals::regular(rate),
            (None, _) => Arrivals::Poisson(rate),
        }
    }

    fn hold(&self, table: &FlowTable) -> Result<HoldTime, Stop> {
        if let Some(file) = &table.hold_csv {
            if table.hold.is_some() || table.hold_p99.is_some() || table.hold_shape.is_some() {
                return Err(self.wrong(
                    table,
                    "hold_csv says it all; leave the other keys of the hold out",
                ));
            }
            return self.source.beside(file, &self.at, HoldTime::from_csv);
        }
        let mean = table
            .hold
            .ok_or_else(|| self.wrong(table, "state hold, its mean, or hold_csv"))?
            .0;
        self.shaped(table, mean)
    }

    fn shaped(&self, table: &FlowTable, mean: Duration) -> Result<HoldTime, Stop> {
        match (table.hold_shape, table.hold_p99) {
            (Some(Shape::LogNormal) | None, Some(Time(p99))) => HoldTime::from_p99(mean, p99)
                .ok_or_else(|| self.wrong(table, "hold_p99 must be from 1 to 14.9 times the mean")),
            (Some(Shape::Fixed), None) => Ok(HoldTime::Fixed(mean)),
            (Some(Shape::Exponential) | None, None) => Ok(HoldTime::Exponential(mean)),
            (Some(Shape::LogNormal), None) => {
                Err(self.wrong(table, "a log_normal hold needs hold_p99 beside its mean"))
            }
            (Some(_), Some(_)) => {
                Err(self.wrong(table, "hold_p99 is for the shape log_normal only"))
            }
        }
    }

    /// The same shape about another mean.
    fn in_incident(&self, table: &FlowTable, hold: &HoldTime) -> Result<Option<HoldTime>, Stop> {
        let Some(Time(mean)) = table.hold_in_incident else {
            return Ok(None);
        };
        Ok(Some(match hold {
            HoldTime::Fixed(_) => HoldTime::Fixed(mean),
            HoldTime::LogNormal { spread, .. } if !mean.is_zero() => HoldTime::LogNormal {
                mean,
                spread: *spread,
            },
            HoldTime::LogNormal { .. } => return Err(self.wrong(table, "hold_in_incident is 0")),
            _ => HoldTime::Exponential(mean),
        }))
    }
}

/// The kind that the name of a partition tells.
fn implied(partition: &str) -> Option<Kind> {
    match partition {
        TRANSACTIONAL => Some(Kind::Transactional),
        ANALYTICAL => Some(Kind::Analytical),
        _ => None,
    }
}

/// The kind of a partition whose name tells it is not stated otherwise, as in the pool's configuration.
fn check_kind(
    source: &Source,
    at: &Range<usize>,
    what: &str,
    partition: &str,
    stated: Option<Kind>,
) -> Result<(), Stop> {
    match (implied(partition), stated) {
        (Some(implied), Some(stated)) if implied != stated => {
            let implied = implied.as_str();
            let problem = format!(
                "{what}: kind: the partition {partition} is always {implied}; leave kind out"
            );
            Err(source.at(at, problem))
        }
        _ => Ok(()),
    }
}

/// What partitions are for.
pub(super) struct Kinds<'a>(pub(super) &'a [Spanned<PartitionTable>]);

impl Kinds<'_> {
    /// Of a partition of this name: as its name says, as the file says, or as its flow does; else somebody waits
    /// for its answers.
    pub(super) fn of(&self, name: &str, flow: Option<Kind>) -> Kind {
        let tables = self.0.iter().map(Spanned::get_ref);
        let stated = tables
            .filter(|table| table.name.0 == name)
            .find_map(|table| table.kind);
        let kind = implied(name).or(stated).or(flow);
        kind.unwrap_or(Kind::Transactional)
    }
}
