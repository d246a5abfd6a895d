//! The outcome of the fleet check, as values and as JSON. `text` prints it.

use crate::config::HandOver;

use super::capacity::{Criticality, Demand, DemandKind, Fleet, Share, SharedBudget};
use super::shrink;

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
    /// They shrink by [`Criticality`], never below 1: the less critical give way before a more critical
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

/// A limit that is too low, and the lowest at which what it limits would fit.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, SmallestLimit, assess};
///
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// let report = assess(&Fleet::new(5, 0), &[server]);
/// let SmallestLimit { setting, to, .. } = &report.smallest_limits()[0];
/// assert_eq!((*setting, *to), ("max_connections", Some(103)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct SmallestLimit {
    /// The label of the server.
    pub server: String,
    /// What it is about.
    pub scope: Scope,
    /// Its name in Postgres: `max_connections`, `rolconnlimit`, `datconnlimit`; or in PgBouncer.
    pub setting: &'static str,
    /// What it is now.
    pub from: u64,
    /// What it has to be at least; `None` if Postgres takes no value that is enough.
    pub to: Option<u64>,
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
    /// no other way. In a budget with an [order](HandOver::DeclaredOrder) of its partitions,
    /// that order counts, and the last gives way first.
    pub partitions: Vec<PartitionShare>,
}

/// A partition in a budget that several share.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, SharedBudget, assess};
///
/// let mut fleet = Fleet::new(4, 0);
/// fleet.budgets.push(SharedBudget::new("main", 30));
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 25, "app", "shop").sharing("main", 12));
/// server.demands.push(Demand::partition("analytical", 10, "app", "shop").sharing("main", 0));
/// let report = assess(&fleet, &[server]);
/// let proposed = &report.largest_partitions().unwrap()[0];
/// let reserved: Vec<_> = proposed.partitions.iter().map(|share| share.reserved).collect();
/// assert_eq!((proposed.size, reserved), (24, vec![12, 0]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PartitionShare {
    /// The partition.
    pub name: String,
    /// How long it keeps its size.
    pub criticality: Criticality,
    /// The slots that are guaranteed to it.
    pub reserved: u32,
    /// The most slots that it may hold.
    pub max_connections: u32,
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

/// A role that a server had no slot left for (SQLSTATE 53300), while it had one for another. Its limits are known all the
/// same, and what it needs is in the sums.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, FullRole, Limits, Server, ServerLimits, assess};
///
/// let mut server = Server::new("db:5432", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// server.full.push(FullRole::new("app", "shop", "too many connections for role \"app\""));
/// let report = assess(&Fleet::new(1, 0), &[server]);
/// assert!(!report.fits() && report.binding().unwrap().fits());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct FullRole {
    /// The role.
    pub role: String,
    /// The database that it wanted to open.
    pub database: String,
    /// The server's own words, which tell whether it was the server, the role or the database.
    pub said: String,
}

impl FullRole {
    /// A role that was told so when it wanted to open a database.
    #[must_use]
    pub fn new(
        role: impl Into<String>,
        database: impl Into<String>,
        said: impl Into<String>,
    ) -> Self {
        Self {
            role: role.into(),
            database: database.into(),
            said: said.into(),
        }
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
/// assert!(matches!(report.servers()[0].state, ServerState::Read { version_num: 170_004, .. }));
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

/// What a constraint is about.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, Scope, assess};
///
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// let report = assess(&Fleet::new(4, 0), &[server]);
/// assert_eq!(report.binding().unwrap().scope, Scope::Server);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Scope {
    /// All connections to the server.
    Server,
    /// Those of one role.
    Role {
        /// The role.
        name: String,
    },
    /// Those to one database.
    Database {
        /// The database.
        name: String,
    },
    /// All client connections to a pooler.
    Pooler,
    /// Those of one role in one database, each of which needs a server connection of a pooler.
    Pool {
        /// The role.
        role: String,
        /// The database.
        database: String,
    },
    /// Those to one database, each of which needs a server connection of a pooler.
    PoolerDatabase {
        /// The database.
        name: String,
    },
}

impl Scope {
    /// Whether it is about all connections, so that those of everyone else count.
    pub(super) fn is_total(&self) -> bool {
        matches!(self, Self::Server | Self::Pooler)
    }
}

impl Scope {
    /// What Postgres takes at most: `max_connections` up to `MAX_BACKENDS` (13 to 18), limits of roles and
    /// databases up to the largest `int4`, as PgBouncer its limits.
    fn greatest_limit(&self) -> u64 {
        match self {
            Self::Server => 262_143,
            Self::Role { .. } | Self::Database { .. } => 2_147_483_647,
            Self::Pooler | Self::Pool { .. } | Self::PoolerDatabase { .. } => 2_147_483_647,
        }
    }
}

/// Whether a constraint is kept.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, Verdict, assess};
///
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// let report = assess(&Fleet::new(5, 0), &[server]);
/// assert_eq!(report.binding().unwrap().verdict, Verdict::Exceeds);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// What is needed is granted.
    Fits,
    /// More is needed than is granted.
    Exceeds,
}

/// A named amount in a sum. Negative: taken away.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, assess};
///
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// let report = assess(&Fleet::new(4, 0), &[server]);
/// let sum = &report.binding().unwrap().granted_terms;
/// assert_eq!(sum.iter().map(|term| term.amount).collect::<Vec<_>>(), [100, -3]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Term {
    /// How much.
    pub amount: i64,
    /// Of what, in the words of Postgres.
    pub name: &'static str,
}

impl Term {
    pub(super) fn new(amount: u32, name: &'static str) -> Self {
        let amount = i64::from(amount);
        Self { amount, name }
    }

    pub(super) fn less(amount: u32, name: &'static str) -> Self {
        let amount = -i64::from(amount);
        Self { amount, name }
    }

    /// The sum; 0 where more is taken away than is there.
    pub(super) fn total(terms: &[Self]) -> u64 {
        let sum: i64 = terms.iter().map(|t| t.amount).sum();
        u64::try_from(sum).unwrap_or(0)
    }
}

/// What each replica opens under a constraint.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, assess};
///
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// let report = assess(&Fleet::new(4, 0), &[server]);
/// let part = &report.binding().unwrap().per_replica[0];
/// assert_eq!((part.name.as_str(), part.size), ("transactional", 20));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Part {
    /// The partition, shared budget or pool.
    pub name: String,
    /// What opens it.
    pub kind: DemandKind,
    /// Its connections in each replica; of a shared budget, what its partitions under this
    /// constraint may have open together.
    pub size: u32,
    /// How long it keeps its size; of a shared budget, the highest of its partitions.
    pub criticality: Criticality,
    /// Whether a proposal may make it smaller.
    pub may_shrink: bool,
    /// What the size of a shared budget comes from; `None` for anything else.
    pub budget: Option<BudgetPart>,
}

/// A budget that partitions share, as far as it is under a constraint.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, SharedBudget, assess};
///
/// let mut fleet = Fleet::new(4, 0);
/// fleet.budgets.push(SharedBudget::new("main", 30));
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 25, "app", "shop").sharing("main", 12));
/// server.demands.push(Demand::partition("analytical", 10, "app", "shop").sharing("main", 0));
/// let report = assess(&fleet, &[server]);
/// let part = &report.binding().unwrap().per_replica[0];
/// assert_eq!(part.budget.as_ref().unwrap().capacity, 30);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct BudgetPart {
    /// Its capacity in each replica.
    pub capacity: u32,
    /// Whether the order of its partitions is one of importance.
    pub hand_over: HandOver,
    /// Those of its partitions that are under the constraint.
    pub partitions: Vec<PartitionShare>,
}

impl BudgetPart {
    /// The most that the partitions here have open together.
    fn size(&self) -> u32 {
        let most = self.partitions.iter().map(|p| u64::from(p.max_connections));
        let most = most.sum::<u64>().min(u64::from(self.capacity));
        u32::try_from(most).unwrap_or(self.capacity)
    }
}

impl Part {
    /// What shares no budget.
    pub(super) fn of_demand(demand: &Demand) -> Self {
        Self {
            name: demand.name.clone(),
            kind: demand.kind,
            size: demand.size,
            criticality: demand.criticality,
            may_shrink: demand.may_shrink,
            budget: None,
        }
    }

    /// A shared budget, of which only this partition is here.
    pub(super) fn of_budget(budget: &SharedBudget, share: &Share, demand: &Demand) -> Self {
        let partition = PartitionShare {
            name: demand.name.clone(),
            criticality: demand.criticality,
            reserved: share.reserved,
            max_connections: demand.size,
        };
        let part = BudgetPart {
            capacity: budget.capacity,
            hand_over: budget.hand_over,
            partitions: vec![partition],
        };
        Self {
            name: budget.name.clone(),
            kind: DemandKind::Budget,
            size: part.size(),
            criticality: demand.criticality,
            may_shrink: demand.may_shrink,
            budget: Some(part),
        }
    }

    /// The parts, with those of one budget as one.
    pub(super) fn merged<'a>(parts: impl Iterator<Item = &'a Self>) -> Vec<Self> {
        let mut merged: Vec<Self> = Vec::new();
        for part in parts {
            if !merged.iter_mut().any(|known| known.join(part)) {
                merged.push(part.clone());
            }
        }
        merged
    }

    /// Takes `other` in, if both are of one budget.
    fn join(&mut self, other: &Self) -> bool {
        let (Some(own), Some(others)) = (&mut self.budget, &other.budget) else {
            return false;
        };
        let is_same = self.name == other.name;
        if is_same {
            own.partitions.extend(others.partitions.iter().cloned());
            self.size = own.size();
            self.criticality = self.criticality.max(other.criticality);
            self.may_shrink &= other.may_shrink;
        }
        is_same
    }
}

/// One limit of one server, and what the fleet needs under it.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, assess};
///
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// let report = assess(&Fleet::new(4, 0), &[server]);
/// let limit = report.binding().unwrap();
/// assert_eq!((limit.needed, limit.granted, limit.headroom), (80, 97, 17));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Constraint {
    /// The label of the server.
    pub server: String,
    /// What the limit is about.
    pub scope: Scope,
    /// The connections that are granted: the sum of `granted_terms`.
    pub granted: u64,
    /// What it is the sum of.
    pub granted_terms: Vec<Term>,
    /// The connections that are needed: `(max_replicas + surge) x per_replica + reserve`. It
    /// saturates at `u64::MAX`.
    pub needed: u64,
    /// The replicas that were counted; of a fleet with seats, the seats.
    pub max_replicas: u32,
    /// The replicas of a rolling deploy that were counted; of a fleet with seats, none.
    pub surge: u32,
    /// The seats, if it was they that were counted.
    pub seats: Option<u32>,
    /// What each replica opens.
    pub per_replica: Vec<Part>,
    /// What is kept for others; always 0 for a role or a database.
    pub reserve: u32,
    /// Sessions of others that are open now and count toward it, superusers' included. They change no verdict:
    /// the reserve is for them.
    pub others: u64,
    /// Whether it fits.
    pub verdict: Verdict,
    /// Granted less needed; negative: so many too many.
    pub headroom: i64,
}

impl Constraint {
    pub(super) fn new(
        fleet: &Fleet,
        server: String,
        scope: Scope,
        granted_terms: Vec<Term>,
        per_replica: Vec<Part>,
    ) -> Self {
        let reserve = if scope.is_total() { fleet.reserve } else { 0 };
        let (max_replicas, surge) = fleet.counted();
        let mut constraint = Self {
            server,
            scope,
            granted: Term::total(&granted_terms),
            granted_terms,
            needed: 0,
            max_replicas,
            surge,
            seats: fleet.seats,
            per_replica,
            reserve,
            others: 0,
            verdict: Verdict::Fits,
            headroom: 0,
        };
        constraint.judge();
        constraint
    }

    fn judge(&mut self) {
        self.needed = self.needed_by(self.replicas());
        self.headroom = difference(self.granted, self.needed);
        if self.headroom < 0 {
            self.verdict = Verdict::Exceeds;
        }
    }

    /// True if what is needed is granted.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.verdict == Verdict::Fits
    }

    /// All replicas at the worst moment of a deploy.
    pub(super) fn replicas(&self) -> u64 {
        u64::from(self.max_replicas) + u64::from(self.surge)
    }

    pub(super) fn needed_by(&self, replicas: u64) -> u64 {
        let own = replicas.saturating_mul(self.sum_per_replica());
        own.saturating_add(u64::from(self.reserve))
    }

    pub(super) fn needed_without_reserve(&self) -> u64 {
        self.replicas().saturating_mul(self.sum_per_replica())
    }

    fn sum_per_replica(&self) -> u64 {
        self.per_replica.iter().map(|p| u64::from(p.size)).sum()
    }

    /// What is granted to the fleet alone. `None` if the reserve alone is more than that.
    pub(super) fn granted_to_fleet(&self) -> Option<u64> {
        self.granted.checked_sub(u64::from(self.reserve))
    }

    /// The limit itself is the first term; the others are taken away from it whatever it is.
    fn smallest_limit(&self) -> SmallestLimit {
        let limit = self.granted_terms.first();
        let (setting, from) = limit.map_or(("", 0), |t| (t.name, t.amount));
        let taken: i64 = self.granted_terms.iter().skip(1).map(|t| t.amount).sum();
        let to = self.needed.saturating_add(taken.unsigned_abs());
        SmallestLimit {
            server: self.server.clone(),
            scope: self.scope.clone(),
            setting,
            from: u64::try_from(from).unwrap_or(0),
            to: Some(to).filter(|to| *to <= self.scope.greatest_limit()),
        }
    }

    fn largest_fleet(&self) -> u32 {
        let Some(granted) = self.granted_to_fleet() else {
            return 0;
        };
        let Some(replicas) = granted.checked_div(self.sum_per_replica()) else {
            return u32::MAX;
        };
        let without_surge = replicas.saturating_sub(u64::from(self.surge));
        u32::try_from(without_surge).unwrap_or(u32::MAX)
    }
}

fn difference(granted: u64, needed: u64) -> i64 {
    let exact = i128::from(granted) - i128::from(needed);
    i64::try_from(exact).unwrap_or(if exact < 0 { i64::MIN } else { i64::MAX })
}

/// Something that the owner should know, and that does not by itself refuse the fleet.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, Warning, assess};
///
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// let report = assess(&Fleet::new(4, 0), &[server]);
/// assert!(report.warnings().contains(&Warning::NoReserve));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Warning {
    /// More sessions of others are open now than the reserve allows for.
    OthersBeyondReserve {
        /// The server.
        server: String,
        /// Their sessions.
        open: u64,
        /// What was declared for them.
        reserve: u32,
        /// What is needed with them in the place of the reserve.
        needed_with_them: u64,
        /// What is granted.
        granted: u64,
    },
    /// With the sessions of others that are open now, the limit of a role or database is exceeded.
    OthersUnderLimit {
        /// The server.
        server: String,
        /// The role or database.
        scope: Scope,
        /// Their sessions under it.
        open: u64,
        /// What is needed with them.
        needed_with_them: u64,
        /// What is granted.
        granted: u64,
    },
    /// The service logs in as a superuser.
    SuperuserRole {
        /// The server.
        server: String,
        /// The role.
        role: String,
    },
    /// A database that nobody can connect to.
    InvalidDatabase {
        /// The server.
        server: String,
        /// The database.
        database: String,
    },
    /// A role has a limit, and an external pool does not say which role it uses.
    ExternalWithoutRole {
        /// The server.
        server: String,
        /// The pool.
        pool: String,
        /// The role it was counted toward; `None` if the partitions use several.
        counted_toward: Option<String>,
    },
    /// A database has a limit, and an external pool does not say which database it uses.
    ExternalWithoutDatabase {
        /// The server.
        server: String,
        /// The pool.
        pool: String,
        /// The database it was counted toward; `None` if the partitions use several.
        counted_toward: Option<String>,
    },
    /// More replicas may run than there are seats: some wait for one. A rolling deploy that starts new replicas before
    /// it ends old ones can wait for ever.
    FewerSeats {
        /// The seats.
        seats: u32,
        /// The most replicas of a deploy.
        replicas: u64,
    },
    /// Nothing is kept for anyone else.
    NoReserve,
    /// Partitions of one budget are on different servers, where they cannot use each other's
    /// connections. On each, what its partitions there may open was counted.
    SpreadBudget {
        /// The budget.
        budget: String,
        /// The servers.
        servers: Vec<String>,
    },
    /// The hosts of a partition's URL can bring it to several servers, and it was counted on each.
    CountedOnEach {
        /// The partition.
        partition: String,
        /// The servers.
        servers: Vec<String>,
    },
    /// Partitions share a server. Given once, for all servers where it is so.
    SharedServer {
        /// The servers.
        servers: Vec<String>,
    },
}
