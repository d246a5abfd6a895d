//! From the file to flows, sizes and needs.

use std::ops::Range;
use std::time::Duration;

use partitioned_pool::admission::ClassId;
use partitioned_pool::config::{ANALYTICAL, Kind, TRANSACTIONAL};
use partitioned_pool::fleet::{Database, ExternalDemand, Fleet, Role, ServerLimits};
use partitioned_pool::plan::formulas::Rate;
use partitioned_pool::plan::planner::{
    FlowNeed, INCIDENT, Load, PartitionNeed, PartitionSizes, Service, Sizes,
};
use partitioned_pool::plan::simulator::{Arrivals, AtDeadline, Flow, HoldTime, Scenario};
use toml::Spanned;

use super::file::{
    File, FleetTable, FlowTable, LayoutName, OtherTable, PartitionTable, Pattern, ServerTable,
    Shape, Size, ThenWhat, Time,
};
use super::source::Source;
use crate::output::Stop;

/// What is described, ready to be simulated or planned.
pub(super) struct Description {
    pub(super) seed: u64,
    pub(super) length: Duration,
    pub(super) step: Duration,
    pub(super) incident: Option<[Duration; 2]>,
    pub(super) service: Service,
    pub(super) needs: Vec<PartitionNeed>,
    /// The sizes that the file states.
    pub(super) stated: Option<Sizes>,
    /// The layout that it asks for.
    pub(super) layout: LayoutName,
    /// The slots that are to be divided, if the file says how many there are.
    pub(super) capacity: Option<u32>,
    /// Further layouts, by name.
    pub(super) others: Vec<(String, Sizes)>,
    /// Whether fleet and server are stated.
    pub(super) has_server: bool,
    flows: Vec<FlowSpec>,
    partitions: Vec<PartitionTable>,
}

/// A flow, without its class.
struct FlowSpec {
    arrivals: Arrivals,
    in_incident: Option<HoldTime>,
    acquire_timeout: Option<Duration>,
    at_deadline: AtDeadline,
}

/// How long is simulated when nobody says.
const LENGTH: Duration = Duration::from_secs(600);

/// Points of a curve when nobody says.
const POINTS: u32 = 120;

impl Description {
    pub(super) fn new(source: &Source, file: File) -> Result<Self, Stop> {
        if file.flows.is_empty() {
            return Err(source.whole(
                "there is no flow; describe each as [[flow]], with name, rate_per_replica and hold",
            ));
        }
        let length = file.length.map_or(LENGTH, |time| time.0);
        if length.is_zero() {
            return Err(source.whole("length is 0; state how long to simulate, such as \"10min\""));
        }
        let incident = incident(source, &file, length)?;
        let kinds = Kinds(&file.partitions);
        let mut flows = Vec::new();
        let mut needs = Vec::new();
        let replicas = file.fleet.as_ref().map_or(1, |fleet| fleet.max_replicas.0);
        for table in &file.flows {
            let (need, spec) = Reader {
                source,
                kinds: &kinds,
                length,
                replicas,
                at: table.span(),
            }
            .flow(table.get_ref())?;
            if needs.iter().any(|known: &FlowNeed| known.name == need.name) {
                return Err(source.at(
                    &table.span(),
                    format!("flow {} is there twice; names are unique", need.name),
                ));
            }
            needs.push(need);
            flows.push(spec);
        }
        let has_server = file.server.is_some() && file.fleet.is_some();
        let service = service(&file, needs);
        let needs = service.partitions();
        let partitions: Vec<_> = file
            .partitions
            .iter()
            .map(|p| p.get_ref().clone())
            .collect();
        let capacity = file
            .budgets
            .first()
            .map(|budget| budget.get_ref().capacity.0);
        let stated = stated(source, &file, &needs)?;
        let mut others = Vec::new();
        for other in &file.others {
            others.push(other_layout(source, other, &needs, capacity)?);
        }
        let layout = file.layout.as_ref();
        let description = Self {
            seed: file.seed.unwrap_or(1),
            length,
            step: file
                .step
                .map_or(length / POINTS, |step| step.0)
                .max(Duration::from_nanos(1)),
            incident,
            service,
            needs,
            layout: layout.map_or(LayoutName::Stated, |layout| *layout.get_ref()),
            capacity: capacity.or(stated.as_ref().map(Sizes::capacity)),
            stated,
            others,
            has_server,
            flows,
            partitions,
        };
        Ok(description)
    }

    /// Sizes of this layout.
    pub(super) fn sizes(&self, layout: LayoutName) -> Result<Sizes, Stop> {
        if layout == LayoutName::Stated {
            let stated = self.stated.clone();
            return stated.ok_or_else(|| Stop::new("no sizes are stated: state [[partition]] with max_connections for each, or layout = \"shared\", \"fixed\" or \"borrowing\" and a [[budget]] with its capacity"));
        }
        let capacity = self.capacity.ok_or_else(|| Stop::new("no capacity is stated: add [[budget]] with capacity, the slots that are to be divided"))?;
        let sizes = match layout {
            LayoutName::Shared | LayoutName::Stated => Some(Sizes::one_pool(&self.needs, capacity)),
            LayoutName::Fixed => Sizes::fixed(&self.needs, capacity),
            LayoutName::Borrowing => Sizes::lending(&self.needs, capacity),
        };
        let sizes = sizes.ok_or_else(|| {
            Stop(format!(
                "a capacity of {capacity} is not even one slot for each of {} partitions",
                self.needs.len()
            ))
        })?;
        Ok(self.with_stated_waits(sizes))
    }

    /// Queues and timeouts that the file states hold in every layout.
    pub(super) fn with_stated_waits(&self, mut sizes: Sizes) -> Sizes {
        for partition in &mut sizes.partitions {
            let Some(table) = self.partitions.iter().find(|t| t.name.0 == partition.name) else {
                continue;
            };
            if let Some(Size(queue)) = table.max_waiters {
                partition.max_waiters = queue;
            }
            if let Some(Time(timeout)) = table.acquire_timeout {
                partition.acquire_timeout = timeout;
            }
        }
        sizes
    }

    /// The day with these sizes; the incident is in it.
    pub(super) fn scenario(&self, sizes: &Sizes) -> Scenario {
        let day = Scenario::new(self.length, sizes.rules()).seed(self.seed);
        let flows = self.service.flows.iter().zip(&self.flows);
        flows.fold(day, |day, (need, spec)| {
            day.flow(self.flow(need, spec, sizes))
        })
    }

    /// When the incident is: where the file says, or else in the middle third.
    pub(super) fn incident_span(&self) -> Option<[Duration; 2]> {
        Some(
            self.incident
                .unwrap_or([self.length / 3, self.length / 3 * 2]),
        )
    }

    /// The flow that has an incident although the file says of none: the last that is analytical, or the last of all.
    fn culprit(&self) -> Option<usize> {
        if self.incident.is_some() && self.flows.iter().any(|spec| spec.in_incident.is_some()) {
            return None;
        }
        let flows = &self.service.flows;
        let reports = flows.iter().rposition(|flow| flow.kind == Kind::Analytical);
        reports.or(flows.len().checked_sub(1))
    }

    /// What the incident is, in words.
    pub(super) fn incident_words(&self) -> String {
        let flows = &self.service.flows;
        if let Some(flow) = self.culprit() {
            return format!("holds of {} x {INCIDENT}", flows[flow].name);
        }
        let of = flows.iter().zip(&self.flows).filter_map(|(flow, spec)| {
            let (before, now) = (flow.hold.mean(), spec.in_incident.as_ref()?.mean());
            Some(format!("holds of {} {before:?} -> {now:?}", flow.name))
        });
        of.collect::<Vec<_>>().join(", ")
    }

    /// The day with these sizes and an incident, also where the file says of none.
    pub(super) fn incident_day(&self, sizes: &Sizes) -> Scenario {
        let mut day = self.scenario(sizes);
        if let (Some(flow), Some([from, until])) = (self.culprit(), self.incident_span()) {
            let hold = self.service.flows[flow].hold.times(INCIDENT);
            day.flows[flow] = day.flows[flow].clone().incident(from, until, hold);
        }
        day
    }

    fn flow(&self, need: &FlowNeed, spec: &FlowSpec, sizes: &Sizes) -> Flow {
        let class = sizes.position(&need.partition).unwrap_or_default();
        let timeout = spec
            .acquire_timeout
            .unwrap_or(sizes.partitions[class].acquire_timeout);
        let mut flow = Flow::new(
            &need.name,
            ClassId::new(class),
            spec.arrivals.clone(),
            need.hold.clone(),
        )
        .acquire_timeout(timeout);
        if let Some(deadline) = need.deadline {
            flow = flow.deadline(deadline, spec.at_deadline);
        }
        match (&spec.in_incident, self.incident) {
            (Some(hold), Some([from, until])) => flow.incident(from, until, hold.clone()),
            _ => flow,
        }
    }
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
        let text = self.source.beside(file, &self.at)?;
        let trace = Arrivals::from_csv(&text).map_err(|error| Stop(format!("{file} {error}")))?;
        match trace {
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
            let text = self.source.beside(file, &self.at)?;
            return HoldTime::from_csv(&text).map_err(|error| Stop(format!("{file} {error}")));
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

/// What partitions are for.
struct Kinds<'a>(&'a [Spanned<PartitionTable>]);

impl Kinds<'_> {
    /// Of a partition of this name: as its name says, as the file says, or as its flow does; else somebody waits
    /// for its answers.
    fn of(&self, name: &str, flow: Option<Kind>) -> Kind {
        let tables = self.0.iter().map(Spanned::get_ref);
        let stated = tables
            .filter(|table| table.name.0 == name)
            .find_map(|table| table.kind);
        match name {
            TRANSACTIONAL => Kind::Transactional,
            ANALYTICAL => Kind::Analytical,
            _ => stated.or(flow).unwrap_or(Kind::Transactional),
        }
    }
}

fn incident(source: &Source, file: &File, length: Duration) -> Result<Option<[Duration; 2]>, Stop> {
    let concerned = file
        .flows
        .iter()
        .any(|flow| flow.get_ref().hold_in_incident.is_some());
    let Some(span) = &file.incident else {
        // The middle third.
        return Ok(concerned.then_some([length / 3, length / 3 * 2]));
    };
    let [Time(from), Time(until)] = *span.get_ref();
    if from >= until || until > length {
        return Err(source.at(
            &span.span(),
            "an incident is [from, until], within the length of the run",
        ));
    }
    Ok(Some([from, until]))
}

fn service(file: &File, flows: Vec<FlowNeed>) -> Service {
    let fleet = file.fleet.as_ref().map_or_else(|| Fleet::new(1, 0), fleet);
    let limits = ServerLimits::new(170_000, 100);
    let name = file.service.clone().unwrap_or_else(|| "service".to_owned());
    let mut service = Service::new(name, flows, fleet, limits);
    service.role = file.role.clone().unwrap_or(service.role);
    service.database = file.database.clone().unwrap_or(service.database);
    if let Some(table) = &file.server {
        service.server = server(table, &service);
    }
    service
}

fn fleet(table: &FleetTable) -> Fleet {
    let mut fleet = Fleet::new(table.max_replicas.0, table.surge.into());
    fleet.reserve = table.reserve.0;
    let external = table.external.iter();
    fleet.external = external
        .map(|pool| ExternalDemand::new(&pool.name.0, pool.size.0))
        .collect();
    fleet
}

fn server(table: &ServerTable, service: &Service) -> ServerLimits {
    let mut limits = ServerLimits::new(170_000, table.max_connections.0);
    if let Some(Size(reserved)) = table.superuser_reserved_connections {
        limits.superuser_reserved_connections = reserved;
    }
    limits.reserved_connections = table.reserved_connections.0;
    let mut role = Role::new(&service.role);
    role.connection_limit = table.role_limit.map(|size| size.0);
    let mut database = Database::new(&service.database);
    database.connection_limit = table.database_limit.map(|size| size.0);
    (limits.roles, limits.databases) = (vec![role], vec![database]);
    limits
}

/// The sizes that the file states: all of them, or none.
fn stated(source: &Source, file: &File, needs: &[PartitionNeed]) -> Result<Option<Sizes>, Stop> {
    if let [_, second, ..] = file.budgets.as_slice() {
        return Err(source.at(
            &second.span(),
            "a plan has one budget that is shared; partitions without a budget have their own",
        ));
    }
    if file
        .partitions
        .iter()
        .all(|table| table.get_ref().max_connections.is_none())
    {
        return Ok(None);
    }
    let budget = file.budgets.first().map(Spanned::get_ref);
    let named = budget.map(|budget| budget.name.clone());
    let mut sizes = layout(source, &file.partitions, needs, |table, at| {
        match (&table.budget, &named) {
            (None, _) => Ok(false),
            (Some(name), Some(Some(known))) if name == known => Ok(true),
            (Some(name), _) => Err(source.at(
                at,
                format!(
                    "partition {}: there is no [[budget]] with name = \"{}\"",
                    table.name.0, name.0
                ),
            )),
        }
    })?;
    if let Some(budget) = budget.filter(|_| sizes.partitions.iter().any(|p| p.shares)) {
        (sizes.shared, sizes.hand_over) = (budget.capacity.0, budget.hand_over);
    }
    Ok(Some(sizes))
}

fn other_layout(
    source: &Source,
    table: &Spanned<OtherTable>,
    needs: &[PartitionNeed],
    capacity: Option<u32>,
) -> Result<(String, Sizes), Stop> {
    let other = table.get_ref();
    let mut sizes = layout(source, &other.partitions, needs, |table, _| {
        Ok(table.reserved.is_some())
    })?;
    if sizes.partitions.iter().any(|p| p.shares) {
        let capacity = other.capacity.map(|count| count.0).or(capacity);
        sizes.shared = capacity.ok_or_else(|| {
            source.at(
                &table.span(),
                "state the capacity that its partitions share",
            )
        })?;
    }
    Ok((other.name.0.clone(), sizes))
}

fn layout(
    source: &Source,
    tables: &[Spanned<PartitionTable>],
    needs: &[PartitionNeed],
    shares: impl Fn(&PartitionTable, &Range<usize>) -> Result<bool, Stop>,
) -> Result<Sizes, Stop> {
    let mut sizes = Sizes::apart(Vec::new());
    for table in tables {
        let (at, table) = (table.span(), table.get_ref());
        let wrong =
            |problem: &str| source.at(&at, format!("partition {}: {problem}", table.name.0));
        if sizes.position(&table.name.0).is_some() {
            return Err(wrong("is there twice; names are unique"));
        }
        let max = table
            .max_connections
            .ok_or_else(|| wrong("state max_connections, as the others do"))?
            .0;
        let shares = shares(table, &at)?;
        let reserved = match (table.reserved, shares) {
            (Some(Size(reserved)), true) => reserved,
            (None, true) => {
                return Err(wrong(
                    "state reserved: what is guaranteed to it of the budget (0 if nothing)",
                ));
            }
            (_, false) => max,
        };
        sizes
            .partitions
            .push(one_partition(table, needs, shares, reserved, max));
    }
    let missing = needs
        .iter()
        .find(|need| sizes.position(&need.name).is_none());
    match missing {
        Some(need) => Err(source.whole(format!("flows call the partition {}, which is not stated; add [[partition]] with its name and max_connections", need.name))),
        None => Ok(sizes),
    }
}

fn one_partition(
    table: &PartitionTable,
    needs: &[PartitionNeed],
    shares: bool,
    reserved: u32,
    max: u32,
) -> PartitionSizes {
    let name = &table.name.0;
    let need = needs.iter().find(|need| need.name == *name);
    let implied = Kinds(&[]).of(name, table.kind);
    let kind = need.map_or(implied, |need| need.kind);
    let mut sizes = PartitionSizes::borrowing(name, kind, reserved, max);
    sizes.shares = shares;
    sizes.max_waiters = table.max_waiters.map_or(sizes.max_waiters, |size| size.0);
    sizes.acquire_timeout = table
        .acquire_timeout
        .map_or(sizes.acquire_timeout, |time| time.0);
    sizes.statement_timeout = table.statement_timeout.map(|time| time.0);
    sizes
}
