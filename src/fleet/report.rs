//! The outcome of the fleet check, as values and as JSON. `text` prints it.

use super::capacity::{Fleet, FullRole};
use super::constraint::{Constraint, PartitionShare, Scope, SmallestLimit};
use super::shrink;
use super::warning::Warning;

/// Whether the fleet fits, with the sum that says so.
///
/// Its `Display` is a block of text for a terminal, which shows the arithmetic. It holds no
/// secret, as long as the labels of the servers hold none.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, assess};
///
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// let report = assess(&Fleet::new(5, 0), &[server]);
/// assert!(!report.fits());
/// assert_eq!((report.needed(), report.granted(), report.largest_fleet()), (Some(100), Some(97), Some(4)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct FleetReport {
    fits: bool,
    needed: Option<u64>,
    granted: Option<u64>,
    binding: Option<Constraint>,
    max_replicas: u32,
    surge: u32,
    reserve: u32,
    seats: Option<u32>,
    largest_fleet: Option<u32>,
    largest_partitions: Option<Vec<PartitionSize>>,
    smallest_max_connections: Option<u64>,
    smallest_limits: Vec<SmallestLimit>,
    fits_without_surge: bool,
    servers: Vec<ServerReport>,
    warnings: Vec<Warning>,
}

impl FleetReport {
    pub(super) fn new(fleet: &Fleet, servers: Vec<ServerReport>, warnings: Vec<Warning>) -> Self {
        let constraints = || servers.iter().flat_map(|s| &s.constraints);
        let all_read = servers.iter().all(ServerReport::is_read);
        let sums_fit = all_read && constraints().all(Constraint::fits);
        let fits = sums_fit && servers.iter().all(|s| s.full.is_empty());
        let binding = constraints().min_by_key(|c| c.headroom).cloned();
        let replicas_alone = u64::from(fleet.max_replicas);
        let fit_alone = constraints().all(|c| c.needed_by(replicas_alone) <= c.granted);
        let fleets = constraints().map(Constraint::largest_fleet);
        let exceeded = constraints().filter(|c| !c.fits() && all_read);
        let smallest_limits: Vec<_> = exceeded.map(Constraint::smallest_limit).collect();
        Self {
            smallest_max_connections: smallest_max_connections(binding.as_ref(), &smallest_limits),
            smallest_limits,
            fits,
            needed: binding.as_ref().map(|c| c.needed),
            granted: binding.as_ref().map(|c| c.granted),
            largest_fleet: fleets.min().filter(|_| all_read),
            largest_partitions: shrink::largest_partitions(constraints())
                .filter(|_| all_read && !sums_fit),
            fits_without_surge: match fleet.seats {
                Some(_) => sums_fit,
                None => all_read && fit_alone,
            },
            seats: fleet.seats,
            max_replicas: fleet.max_replicas,
            surge: fleet.surge,
            reserve: fleet.reserve,
            binding,
            servers,
            warnings,
        }
    }

    /// True if every constraint of every server fits, every server could be read, and none was full for one of the
    /// roles.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.fits
    }

    /// The constraint with the least headroom, which is the first to refuse; of several, the first
    /// in the report. `None` if no server could be read.
    #[must_use]
    pub fn binding(&self) -> Option<&Constraint> {
        self.binding.as_ref()
    }

    /// The connections that the fleet needs under the binding constraint.
    #[must_use]
    pub fn needed(&self) -> Option<u64> {
        self.needed
    }

    /// The connections that the binding constraint grants.
    #[must_use]
    pub fn granted(&self) -> Option<u64> {
        self.granted
    }

    /// The most replicas that fit with the surge, the partitions and the reserve as stated. 0 if
    /// not even one does, `u32::MAX` if nothing limits them, `None` if a server could not be read.
    #[must_use]
    pub fn largest_fleet(&self) -> Option<u32> {
        self.largest_fleet
    }

    /// Where the fleet does not fit: the partitions that would, with the replicas, the surge and
    /// the reserve as stated. `None` if it fits, if not even one connection each does, or if a
    /// server could not be read.
    ///
    /// They shrink by [`Criticality`](super::Criticality), never below 1: the less critical give way before a more critical
    /// one loses any, and equals shrink in proportion, by largest remainder. None of them can grow by
    /// one without breaking a constraint, unless it has the size that was stated. A budget that
    /// partitions share is one of them: it shrinks as a whole, capacity and partitions.
    #[must_use]
    pub fn largest_partitions(&self) -> Option<&[PartitionSize]> {
        self.largest_partitions.as_deref()
    }

    /// Where the fleet does not fit: the smallest `max_connections` with which its server would grant what is
    /// needed in all, with the sizes and the replicas as stated. Of several servers, that of the binding
    /// constraint, or else the first that grants too little; [`smallest_limits`](Self::smallest_limits) has them
    /// all. `None` if no `max_connections` has to be raised, if none that Postgres takes is enough, or if
    /// a server could not be read.
    #[must_use]
    pub fn smallest_max_connections(&self) -> Option<u64> {
        self.smallest_max_connections
    }

    /// Every limit that would have to be raised for the fleet to fit as stated, and to what at least. Empty if
    /// it fits, or if a server could not be read.
    #[must_use]
    pub fn smallest_limits(&self) -> &[SmallestLimit] {
        &self.smallest_limits
    }

    /// True if the replicas would fit if there were no surge.
    ///
    /// Where a constraint does not fit, that is a fleet that runs until its next deploy. A fleet with seats has no
    /// surge: there it is whether every constraint fits.
    #[must_use]
    pub fn fits_without_surge(&self) -> bool {
        self.fits_without_surge
    }

    /// The replicas that were stated.
    #[must_use]
    pub fn max_replicas(&self) -> u32 {
        self.max_replicas
    }

    /// The surge that was stated.
    #[must_use]
    pub fn surge(&self) -> u32 {
        self.surge
    }

    /// The seats that were stated. They are counted instead of replicas and surge, and are what
    /// [`largest_fleet`](Self::largest_fleet) is about.
    #[must_use]
    pub fn seats(&self) -> Option<u32> {
        self.seats
    }

    /// The reserve that was stated.
    #[must_use]
    pub fn reserve(&self) -> u32 {
        self.reserve
    }

    /// One report for each server, in the order given.
    #[must_use]
    pub fn servers(&self) -> &[ServerReport] {
        &self.servers
    }

    /// What the owner should know, whether the fleet fits or not.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

fn smallest_max_connections(binding: Option<&Constraint>, limits: &[SmallestLimit]) -> Option<u64> {
    let of_servers = || limits.iter().filter(|l| l.scope == Scope::Server);
    let binding = binding.map(|c| c.server.as_str());
    let of_binding = of_servers().find(|l| Some(l.server.as_str()) == binding);
    of_binding.or_else(|| of_servers().next())?.to
}

/// The size that a proposal gives to a partition, or to a budget that several share.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, assess};
///
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// let report = assess(&Fleet::new(5, 0), &[server]);
/// let proposed = report.largest_partitions().unwrap();
/// assert_eq!((proposed[0].name.as_str(), proposed[0].size), ("transactional", 19));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PartitionSize {
    /// The partition, or the budget.
    pub name: String,
    /// Its connections in each replica; of a budget, the capacity.
    pub size: u32,
    /// What becomes of the partitions of a shared budget: they fit its new capacity. Empty for a
    /// partition that shares none.
    ///
    /// What the capacity loses, the least critical may hold less, down to 1, then the next; equals in
    /// proportion. So what the critical ones can have at worst stays, as long as it can. What is
    /// reserved stays as long as it fits; else it shrinks by the same order, and to 0 only where there is
    /// no other way. In a budget with an [order](crate::config::HandOver::DeclaredOrder) of its partitions,
    /// that order counts, and the last gives way first.
    pub partitions: Vec<PartitionShare>,
}

/// What was found on one server.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, assess};
///
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// let report = assess(&Fleet::new(4, 0), &[server]);
/// assert_eq!((report.servers()[0].label.as_str(), report.servers()[0].constraints.len()), ("db:5432/shop", 1));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct ServerReport {
    /// The label that it was given.
    pub label: String,
    /// Whether it could be read.
    pub state: ServerState,
    /// The roles for which it had no slot left, where another role could read it.
    pub full: Vec<FullRole>,
    /// What it grants to each role used, before their own limits.
    pub grants: Vec<RoleGrant>,
    /// The total first, then each limit of a role and of a database that binds somebody. Empty if
    /// the server could not be read.
    pub constraints: Vec<Constraint>,
}

impl ServerReport {
    pub(super) fn is_read(&self) -> bool {
        !matches!(self.state, ServerState::Full { .. })
    }
}

/// Whether a server could be read.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, ServerState, assess};
///
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// let report = assess(&Fleet::new(4, 0), &[server]);
/// assert!(matches!(report.servers()[0].state, ServerState::Read { version_num: Some(170_004), .. }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ServerState {
    /// Its limits are known.
    Read {
        /// `server_version_num`; `None` if the limits were stated without a version.
        version_num: Option<u32>,
        /// It is a standby.
        in_recovery: bool,
    },
    /// It had no slot left for the check itself.
    Full {
        /// The server's own words.
        said: String,
        /// The connections that the fleet needs there.
        needed: u64,
    },
    /// It is a pooler before a server. Its limits are those that were stated.
    Pooler,
}

/// What a server grants to one role.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, assess};
///
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// let report = assess(&Fleet::new(4, 0), &[server]);
/// let grant = &report.servers()[0].grants[0];
/// assert_eq!((grant.role.as_str(), grant.granted), ("app", 97));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct RoleGrant {
    /// The role.
    pub role: String,
    /// The connections that it can open on an empty server.
    pub granted: u64,
}
