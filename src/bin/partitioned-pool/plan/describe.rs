//! From the file to flows, sizes and needs.

use std::time::Duration;

use partitioned_pool::admission::ClassId;
use partitioned_pool::config::Kind;
use partitioned_pool::fleet::{Database, ExternalDemand, Fleet, Role, ServerLimits};
use partitioned_pool::plan::planner::{FlowNeed, INCIDENT, PartitionNeed, Service, Sizes};
use partitioned_pool::plan::simulator::{Flow, Scenario};
use toml::Spanned;

use super::file::{
    File, FleetTable, LayoutName, OtherTable, PartitionTable, ServerTable, Size, Time,
};
use super::flow::{self, FlowSpec};
use super::partitions::{other_layout, stated};
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
    pub(super) partitions: Vec<PartitionTable>,
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
        let (needs, flows) = flow::read(source, &file, length)?;
        let has_server = file.server.is_some() && file.fleet.is_some();
        let service = service(&file, needs);
        let needs = service.partitions();
        let partitions = file.partitions.iter().map(|p| p.get_ref().clone());
        let partitions = partitions.collect();
        let budget = file.budgets.first().map(Spanned::get_ref);
        let capacity = budget.map(|budget| budget.capacity.0);
        let stated = stated(source, &file, &needs)?;
        // What is compared is of one size: that of the layout that is stated, if one is.
        let capacity = stated.as_ref().map(Sizes::capacity).or(capacity);
        let mut others = Vec::new();
        for other in &file.others {
            check_name(source, other, &others)?;
            others.push(other_layout(source, other, &needs, capacity)?);
        }
        let layout = file.layout.as_ref();
        Ok(Self {
            seed: file.seed.unwrap_or(1),
            length,
            step: file.step.map_or(length / POINTS, |step| step.0),
            incident,
            service,
            needs,
            layout: layout.map_or(LayoutName::Stated, |layout| *layout.get_ref()),
            capacity,
            stated,
            others,
            has_server,
            flows,
            partitions,
        })
    }

    /// Sizes of this layout.
    pub(super) fn sizes(&self, source: &Source, layout: LayoutName) -> Result<Sizes, Stop> {
        if layout == LayoutName::Stated {
            let stated = self.stated.clone();
            return stated.ok_or_else(|| source.whole("no sizes are stated: state [[partition]] with max_connections for each, or layout = \"shared\", \"fixed\" or \"borrowing\" and a [[budget]] with its capacity"));
        }
        let capacity = self.capacity.ok_or_else(|| source.whole("no capacity is stated: add [[budget]] with capacity, the slots that are to be divided"))?;
        let sizes = match layout {
            LayoutName::Shared | LayoutName::Stated => Some(Sizes::one_pool(&self.needs, capacity)),
            LayoutName::Fixed => Sizes::fixed(&self.needs, capacity),
            LayoutName::Borrowing => Sizes::lending(&self.needs, capacity),
        };
        let sizes = sizes.ok_or_else(|| {
            let problem = self.too_few(capacity, layout);
            source.at_key("budget", Some(0), problem)
        })?;
        Ok(self.with_stated_waits(sizes))
    }

    fn too_few(&self, capacity: u32, layout: LayoutName) -> String {
        let partitions = self.needs.iter();
        let transactional = partitions.filter(|need| need.kind == Kind::Transactional);
        match layout {
            LayoutName::Borrowing => format!(
                "a capacity of {capacity} cannot be lent: it takes one slot for each of {} transactional partitions, and one more",
                transactional.count()
            ),
            _ => format!(
                "a capacity of {capacity} is not even one slot for each of {} partitions",
                self.needs.len()
            ),
        }
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

    /// Whether the file says when the incident is, and of no flow what happens in it.
    pub(super) fn nothing_happens(&self) -> bool {
        self.incident.is_some() && self.flows.iter().all(|spec| spec.in_incident.is_none())
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

/// Layouts that are compared anyway.
const USUAL: [&str; 4] = ["stated", "fixed", "shared", "borrowing"];

/// A further layout has a name of its own.
fn check_name(
    source: &Source,
    other: &Spanned<OtherTable>,
    before: &[(String, Sizes)],
) -> Result<(), Stop> {
    let name = &other.get_ref().name.0;
    if USUAL.contains(&name.as_str()) || before.iter().any(|(known, _)| known == name) {
        let problem = format!(
            "layout {name}: is there twice; names are unique, and {} are taken",
            USUAL.join(", ")
        );
        return Err(source.at(&other.span(), problem));
    }
    Ok(())
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
    let limits = ServerLimits::stated(100);
    let name = file.service.clone().unwrap_or_else(|| "service".to_owned());
    let mut service = Service::new(name, flows, fleet, limits);
    service.role = file.role.clone().unwrap_or(service.role);
    service.database = file.database.clone().unwrap_or(service.database);
    let budget = file
        .budgets
        .first()
        .and_then(|budget| budget.get_ref().name.clone());
    service.budget = budget.map_or(service.budget, |name| name.0);
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
    let mut limits = ServerLimits::stated(table.max_connections.0);
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
