//! One limit of a server: what counts toward it, what it grants, and by how much that is too little.

use crate::config::HandOver;

use super::capacity::{Criticality, Demand, DemandKind, Fleet, Share, SharedBudget};

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
    pub(super) fn smallest_limit(&self) -> SmallestLimit {
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

    pub(super) fn largest_fleet(&self) -> u32 {
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
