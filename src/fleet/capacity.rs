//! What a fleet needs of each server, and what each server grants it.
//!
//! ```text
//! granted(role) = max_connections - superuser_reserved_connections
//!                 - reserved_connections   (16+; not for members of pg_use_reserved_connections)
//! needed        = (max_replicas + surge) x (budgets + control + external) + reserve
//! ```
//! Where the fleet has seats, they take the place of `max_replicas + surge`: the database lets no more of them connect,
//! and no fewer have to fit, since nobody promises the size of such a fleet.
//!
//! What holds for every report:
//! 1. The total of a server is held against the smallest grant among the roles used there: the
//!    reserved slots are "slots left free", so whoever fills the server up to a larger grant shuts
//!    out the role with the smaller one.
//! 2. A role's limit binds the connections of that role. A database's limit binds every ordinary
//!    role in it, and the connections of superusers count toward it. Neither binds a superuser.
//! 3. No input panics. Sums saturate at `u64::MAX`, which no server grants, so a saturated sum
//!    never turns into a fleet that fits.
//! 4. A partition that shares no budget is one of its own. A shared budget counts once under each
//!    limit, with what its partitions under that limit can have open together: the sum of what each
//!    may hold, and at most its capacity.
//! 5. The report fits exactly if every constraint fits, every server could be read, and none was full for a role.

use crate::config::{HandOver, Kind};

use super::pooler::PoolerLimits;
use super::report::{
    Constraint, FleetReport, FullRole, Part, RoleGrant, Scope, ServerReport, ServerState, Term,
    Warning,
};

/// What the owner states about the fleet.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::Fleet;
///
/// let mut fleet = Fleet::new(5, 1);
/// fleet.reserve = 10;
/// assert_eq!((fleet.max_replicas, fleet.surge, fleet.reserve), (5, 1, 10));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fleet {
    /// The most replicas that ever serve at once, as the autoscaler is told.
    pub max_replicas: u32,
    /// The replicas that a rolling deploy adds for a while, terminating ones included.
    pub surge: u32,
    /// Connections kept free on every server for everyone else: people, migrations, monitoring.
    pub reserve: u32,
    /// Pools of the same service that this library does not manage.
    ///
    /// Nothing says to which server they connect, so they count on every one.
    pub external: Vec<ExternalDemand>,
    /// What several partitions of a replica share. The demands say which draw from it.
    pub budgets: Vec<SharedBudget>,
    /// How many replicas the database lets connect, if it enforces that: they are what is counted.
    pub seats: Option<u32>,
}

impl Fleet {
    /// A fleet with no reserve, no external pools and no shared budgets.
    ///
    /// Replicas and surge have no default, because a wrong guess is found out under load.
    #[must_use]
    pub fn new(max_replicas: u32, surge: u32) -> Self {
        Self {
            max_replicas,
            surge,
            reserve: 0,
            external: Vec::new(),
            budgets: Vec::new(),
            seats: None,
        }
    }

    /// The replicas that count, and those on top of them in a deploy.
    pub(super) fn counted(&self) -> (u32, u32) {
        self.seats
            .map_or((self.max_replicas, self.surge), |seats| (seats, 0))
    }

    /// A replica that a deploy starts before it ends an old one waits for a seat.
    fn fewer_seats(&self) -> Option<Warning> {
        let replicas = u64::from(self.max_replicas) + u64::from(self.surge);
        let seats = self.seats.filter(|seats| u64::from(*seats) < replicas)?;
        Some(Warning::FewerSeats { seats, replicas })
    }
}

/// A pool that every replica opens beside this library, as declared by the owner.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{ExternalDemand, Fleet};
///
/// let mut fleet = Fleet::new(3, 1);
/// fleet.external.push(ExternalDemand::new("jobs", 4));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExternalDemand {
    /// What the owner calls it.
    pub name: String,
    /// Its connections in each replica.
    pub size: u32,
    /// The role it logs in with. `None`: counted toward the role of the demands, if they use
    /// exactly one, and otherwise toward no role's limit.
    pub role: Option<String>,
    /// The database it uses. `None`: as for `role`.
    pub database: Option<String>,
}

impl ExternalDemand {
    /// A pool whose role and database are not stated.
    #[must_use]
    pub fn new(name: impl Into<String>, size: u32) -> Self {
        Self {
            name: name.into(),
            size,
            role: None,
            database: None,
        }
    }
}

/// Connections of each replica that several partitions share.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Fleet, SharedBudget};
///
/// let mut fleet = Fleet::new(3, 1);
/// fleet.budgets.push(SharedBudget::new("main", 30));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedBudget {
    /// Its name.
    pub name: String,
    /// The most connections that its partitions have together in one replica.
    pub capacity: u32,
    /// [`DeclaredOrder`](HandOver::DeclaredOrder) says that the order of its demands is the owner's own
    /// order of importance: in a proposal the last gives way first, whatever its [`Criticality`].
    pub hand_over: HandOver,
}

impl SharedBudget {
    /// A budget of so many connections.
    #[must_use]
    pub fn new(name: impl Into<String>, capacity: u32) -> Self {
        Self {
            name: name.into(),
            capacity,
            hand_over: HandOver::default(),
        }
    }
}

/// One real server, however many URLs lead to it, and what each replica wants of it.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Limits, Server, ServerLimits};
///
/// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Server {
    /// How the report calls it, in the manner of `host:port/database`. It is printed, so it must
    /// hold no secret.
    pub label: String,
    /// What the server said about itself.
    pub limits: Limits,
    /// The connections that each replica opens here.
    pub demands: Vec<Demand>,
    /// The roles that it had no slot for, while another role has read its limits.
    pub full: Vec<FullRole>,
}

impl Server {
    /// A server with nothing asked of it yet.
    #[must_use]
    pub fn new(label: impl Into<String>, limits: Limits) -> Self {
        Self {
            label: label.into(),
            limits,
            demands: Vec::new(),
            full: Vec::new(),
        }
    }
}

/// Whether the limits of a server are known.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Fleet, Limits, Server, assess};
///
/// let said = "sorry, too many clients already".to_owned();
/// let full = Server::new("db:5432/shop", Limits::Full { said });
/// assert!(!assess(&Fleet::new(1, 0), &[full]).fits());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Limits {
    /// They were read, or stated by hand.
    Known(ServerLimits),
    /// The server refused the check itself for want of a slot (SQLSTATE 53300). The report says so,
    /// and does not fit.
    Full {
        /// In the server's own words, which tell whether it was the server, the role or the database.
        said: String,
    },
    /// It is not a server but a pooler before one, with these limits as its owner stated them.
    Pooler(PoolerLimits),
}

/// What a server grants, and to whom.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::ServerLimits;
///
/// let mut limits = ServerLimits::new(170_004, 200);
/// limits.reserved_connections = 5;
/// assert_eq!(limits.superuser_reserved_connections, 3);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerLimits {
    /// `server_version_num`: 170004 is 17.4. `None` where limits are stated and no version is.
    pub version_num: Option<u32>,
    /// `max_connections`; on a standby, the standby's own.
    pub max_connections: u32,
    /// `superuser_reserved_connections`.
    pub superuser_reserved_connections: u32,
    /// `reserved_connections`. Not counted where the version is known to be before 16, which does not know it.
    pub reserved_connections: u32,
    /// `pg_is_in_recovery()`: the server is a standby.
    pub in_recovery: bool,
    /// The roles used here. One that is missing is taken for an ordinary role without a limit.
    pub roles: Vec<Role>,
    /// The databases used here. One that is missing is taken to be valid and without a limit.
    pub databases: Vec<Database>,
    /// Client sessions that are open now and are not of this fleet, superusers included. Empty if
    /// they were not counted.
    pub others: Vec<OpenSessions>,
}

impl ServerLimits {
    /// The limits of a primary with Postgres's default of 3 `superuser_reserved_connections`.
    #[must_use]
    pub fn new(version_num: u32, max_connections: u32) -> Self {
        Self {
            version_num: Some(version_num),
            ..Self::stated(max_connections)
        }
    }

    /// The same where no version is stated.
    #[must_use]
    pub fn stated(max_connections: u32) -> Self {
        Self {
            version_num: None,
            max_connections,
            superuser_reserved_connections: 3,
            reserved_connections: 0,
            in_recovery: false,
            roles: Vec::new(),
            databases: Vec::new(),
            others: Vec::new(),
        }
    }
}

/// A role that the fleet logs in with.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Role, ServerLimits};
///
/// let mut app = Role::new("app");
/// app.connection_limit = Some(80);
/// let mut limits = ServerLimits::new(170_004, 200);
/// limits.roles.push(app);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Role {
    /// `rolname`.
    pub name: String,
    /// `rolsuper`.
    pub superuser: bool,
    /// Whether it has the privileges of `pg_use_reserved_connections` (16+).
    pub may_use_reserved: bool,
    /// `rolconnlimit`; `None` where Postgres says -1.
    pub connection_limit: Option<u32>,
}

impl Role {
    /// An ordinary role without a limit of its own.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            superuser: false,
            may_use_reserved: false,
            connection_limit: None,
        }
    }
}

/// A database that the fleet connects to.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Database, ServerLimits};
///
/// let mut shop = Database::new("shop");
/// shop.connection_limit = Some(120);
/// let mut limits = ServerLimits::new(170_004, 200);
/// limits.databases.push(shop);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Database {
    /// `datname`.
    pub name: String,
    /// `datconnlimit`; `None` where Postgres says -1 or -2.
    pub connection_limit: Option<u32>,
    /// False where `datconnlimit` is -2: a DROP DATABASE was interrupted, and nobody can connect.
    pub valid: bool,
}

impl Database {
    /// A valid database without a limit of its own.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            connection_limit: None,
            valid: true,
        }
    }
}

/// Sessions that are open now under one role in one database, and are not of this fleet.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{OpenSessions, ServerLimits};
///
/// let mut limits = ServerLimits::new(170_004, 200);
/// limits.others.push(OpenSessions::new("monitoring", "shop", 2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenSessions {
    /// `usename`.
    pub role: String,
    /// `datname`.
    pub database: String,
    /// How many.
    pub sessions: u32,
}

impl OpenSessions {
    /// So many sessions of this role in this database.
    #[must_use]
    pub fn new(role: impl Into<String>, database: impl Into<String>, sessions: u32) -> Self {
        Self {
            role: role.into(),
            database: database.into(),
            sessions,
        }
    }
}

/// Connections that each replica opens to one server.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::Demand;
///
/// let (checkout, own) = (Demand::partition("transactional", 20, "app", "shop"), Demand::control(1, "app", "shop"));
/// assert!(checkout.may_shrink && !own.may_shrink);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Demand {
    /// What opens them. A partition that a failover can bring to several servers is a demand on
    /// each of them, under one name, and is given one size in every proposal.
    pub name: String,
    /// Partition or control.
    pub kind: DemandKind,
    /// The most connections in each replica.
    pub size: u32,
    /// How long it keeps its size where a proposal has to make partitions smaller.
    pub criticality: Criticality,
    /// The budget that it shares with other partitions, if any.
    pub share: Option<Share>,
    /// The role they log in with.
    pub role: String,
    /// The database they use.
    pub database: String,
    /// Whether a proposal may make it smaller.
    pub may_shrink: bool,
}

impl Demand {
    /// The connections of a partition, of high criticality. A proposal may make it smaller.
    #[must_use]
    pub fn partition(
        name: impl Into<String>,
        size: u32,
        role: impl Into<String>,
        database: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            kind: DemandKind::Partition,
            size,
            criticality: Criticality::High,
            share: None,
            role: role.into(),
            database: database.into(),
            may_shrink: true,
        }
    }

    /// The same with this criticality, or that of a [`Kind`].
    ///
    /// # Examples
    /// Reports give way first:
    /// ```
    /// use partitioned_pool::config::Kind;
    /// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, assess};
    ///
    /// let limits = Limits::Known(ServerLimits::new(170_004, 100));
    /// let mut server = Server::new("db:5432/shop", limits);
    /// let analytical = Demand::partition("analytical", 10, "app", "shop");
    /// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
    /// server.demands.push(analytical.criticality(Kind::Analytical));
    ///
    /// let report = assess(&Fleet::new(4, 0), &[server]);
    /// let proposed = report.largest_partitions().unwrap();
    /// assert_eq!((proposed[0].size, proposed[1].size), (20, 4));
    /// assert_eq!(report.smallest_max_connections(), Some(123));
    /// ```
    #[must_use]
    pub fn criticality(mut self, criticality: impl Into<Criticality>) -> Self {
        self.criticality = criticality.into();
        self
    }

    /// The same, drawn from this one of [`Fleet::budgets`], of which so many slots are guaranteed to
    /// it. If the fleet has no budget of this name, it counts as if it shared none.
    ///
    /// # Examples
    /// Alone they could need 35; of their budget they never need more than 30:
    /// ```
    /// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, SharedBudget, assess};
    ///
    /// let mut fleet = Fleet::new(3, 0);
    /// fleet.budgets.push(SharedBudget::new("main", 30));
    /// let mut server = Server::new("db:5432/shop", Limits::Known(ServerLimits::new(170_004, 100)));
    /// let transactional = Demand::partition("transactional", 25, "app", "shop");
    /// let analytical = Demand::partition("analytical", 10, "app", "shop");
    /// server.demands.push(transactional.sharing("main", 12));
    /// server.demands.push(analytical.sharing("main", 0));
    /// assert_eq!(assess(&fleet, &[server]).needed(), Some(90));
    /// ```
    #[must_use]
    pub fn sharing(mut self, budget: impl Into<String>, reserved: u32) -> Self {
        self.share = Some(Share {
            budget: budget.into(),
            reserved,
        });
        self
    }

    /// The library's own connections. They keep their size in every proposal.
    #[must_use]
    pub fn control(size: u32, role: impl Into<String>, database: impl Into<String>) -> Self {
        Self {
            kind: DemandKind::Control,
            may_shrink: false,
            ..Self::partition("control", size, role, database)
        }
    }
}

/// Which partitions keep their size the longest where a proposal has to make some smaller. The less
/// critical go down to 1 before a more critical one loses any.
///
/// # Examples
/// ```
/// use partitioned_pool::config::Kind;
/// use partitioned_pool::fleet::Criticality;
///
/// assert_eq!(Criticality::from(Kind::Analytical), Criticality::Low);
/// assert!(Criticality::Low < Criticality::High);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Criticality {
    /// Work that can be asked for again: an analytical partition.
    Low,
    /// Work that somebody waits for: a transactional partition.
    High,
}

impl Criticality {
    /// Who is served first stands first.
    pub(super) const IN_TURN: [Self; 2] = [Self::High, Self::Low];
}

impl From<Kind> for Criticality {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Transactional => Self::High,
            Kind::Analytical => Self::Low,
        }
    }
}

/// The part of a partition in a budget that it shares.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::Demand;
///
/// let share = Demand::partition("transactional", 25, "app", "shop").sharing("main", 12).share.unwrap();
/// assert_eq!((share.budget.as_str(), share.reserved), ("main", 12));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Share {
    /// The budget.
    pub budget: String,
    /// The slots that are guaranteed to the partition.
    pub reserved: u32,
}

/// What opens a connection.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, DemandKind};
///
/// assert_eq!(Demand::control(1, "app", "shop").kind, DemandKind::Control);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DemandKind {
    /// A partition of the pool.
    Partition,
    /// Partitions of the pool that share a budget.
    Budget,
    /// The library itself, for its own upkeep.
    Control,
    /// A pool that the library does not manage.
    External,
}

/// Holds the fleet against every server and says whether it fits, with the sum.
///
/// Each element of `servers` is one real server. Two that are the same server must be merged by
/// the caller first, or each would be granted what they share.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Demand, Fleet, Limits, Server, ServerLimits, assess};
///
/// let limits = Limits::Known(ServerLimits::new(170_004, 100));
/// let mut server = Server::new("db:5432/shop", limits);
/// server.demands.push(Demand::partition("transactional", 20, "app", "shop"));
///
/// let report = assess(&Fleet::new(5, 0), &[server]);
/// assert!(!report.fits());
/// assert_eq!((report.needed(), report.granted()), (Some(100), Some(97)));
/// assert_eq!(report.largest_fleet(), Some(4));
/// ```
#[must_use]
pub fn assess(fleet: &Fleet, servers: &[Server]) -> FleetReport {
    let reports = servers.iter().map(|s| Sum::new(fleet, s).report());
    FleetReport::new(fleet, reports.collect(), warnings(fleet, servers))
}

/// One server with the connections that each replica opens to it.
struct Sum<'a> {
    fleet: &'a Fleet,
    server: &'a Server,
    uses: Vec<Use<'a>>,
}

/// A demand, or an external pool with its role and database filled in where they are certain.
struct Use<'a> {
    part: Part,
    role: Option<&'a str>,
    database: Option<&'a str>,
}

impl<'a> Sum<'a> {
    fn new(fleet: &'a Fleet, server: &'a Server) -> Self {
        let demands = server.demands.iter().map(|d| Use::of_demand(d, fleet));
        let external = fleet.external.iter().map(|e| Use::of_external(e, server));
        Self {
            fleet,
            server,
            uses: demands.chain(external).collect(),
        }
    }

    fn report(&self) -> ServerReport {
        let label = self.server.label.clone();
        let (state, grants, constraints) = match &self.server.limits {
            Limits::Known(limits) => (
                ServerState::Read {
                    version_num: limits.version_num,
                    in_recovery: limits.in_recovery,
                },
                self.grants(limits),
                self.constraints(limits),
            ),
            Limits::Full { said } => (
                ServerState::Full {
                    said: said.clone(),
                    needed: self.constraint(Scope::Server, Vec::new()).needed,
                },
                Vec::new(),
                Vec::new(),
            ),
            Limits::Pooler(limits) => {
                let scopes = limits.scopes().map(|(s, t)| self.constraint(s, t));
                (ServerState::Pooler, Vec::new(), scopes.collect())
            }
        };
        ServerReport {
            label,
            state,
            full: self.server.full.clone(),
            grants,
            constraints,
        }
    }

    fn constraints(&self, limits: &ServerLimits) -> Vec<Constraint> {
        let total = self.constraint(Scope::Server, self.smallest_grant(limits));
        let roles = self.roles(limits).into_iter().filter_map(role_limit);
        let databases = limits.databases.iter().filter_map(database_limit);
        let limited = roles.chain(databases).map(|(s, t)| self.constraint(s, t));
        let all = std::iter::once(total).chain(limited.filter(|c| self.binds(c, limits)));
        let with_others = |constraint: Constraint| Constraint {
            others: limits.open_under(&constraint.scope),
            ..constraint
        };
        all.map(with_others).collect()
    }

    /// Invariant 2: a limit that nobody here is bound by is not a constraint.
    fn binds(&self, constraint: &Constraint, limits: &ServerLimits) -> bool {
        let mut under = self.uses.iter().filter(|u| u.is_under(&constraint.scope));
        under.any(|u| !u.role.is_some_and(|r| role_of(limits, r).superuser))
    }

    fn constraint(&self, scope: Scope, granted_terms: Vec<Term>) -> Constraint {
        let under = self.uses.iter().filter(|u| u.is_under(&scope));
        let parts = Part::merged(under.map(|u| &u.part));
        Constraint::new(
            self.fleet,
            self.server.label.clone(),
            scope,
            granted_terms,
            parts,
        )
    }

    /// Invariant 1. A role that is not known is taken for an ordinary one.
    fn smallest_grant(&self, limits: &ServerLimits) -> Vec<Term> {
        let unknown = self.uses.iter().any(|u| u.role.is_none());
        let unknown = unknown.then(|| Role::new("unknown"));
        let roles = self.roles(limits).into_iter().chain(unknown);
        let grants = roles.map(|role| grant(limits, &role));
        grants
            .min_by_key(|terms| Term::total(terms))
            .unwrap_or_else(|| grant(limits, &Role::new("nobody")))
    }

    fn grants(&self, limits: &ServerLimits) -> Vec<RoleGrant> {
        let roles = self.roles(limits).into_iter();
        let granted = roles.map(|role| RoleGrant {
            granted: Term::total(&grant(limits, &role)),
            role: role.name,
        });
        granted.collect()
    }

    /// The roles used here, each once, in the order of the demands.
    fn roles(&self, limits: &ServerLimits) -> Vec<Role> {
        let names = distinct(self.uses.iter().filter_map(|u| u.role));
        names.into_iter().map(|n| role_of(limits, n)).collect()
    }
}

impl<'a> Use<'a> {
    fn of_demand(demand: &'a Demand, fleet: &Fleet) -> Self {
        let drawn = demand.share.as_ref().and_then(|share| {
            let budget = fleet.budgets.iter().find(|b| b.name == share.budget)?;
            Some(Part::of_budget(budget, share, demand))
        });
        Self {
            part: drawn.unwrap_or_else(|| Part::of_demand(demand)),
            role: Some(&demand.role),
            database: Some(&demand.database),
        }
    }

    fn of_external(external: &'a ExternalDemand, server: &'a Server) -> Self {
        Self {
            part: Part {
                name: external.name.clone(),
                kind: DemandKind::External,
                size: external.size,
                criticality: Criticality::High,
                may_shrink: false,
                budget: None,
            },
            role: external.role.as_deref().or_else(|| only_role(server)),
            database: external
                .database
                .as_deref()
                .or_else(|| only_database(server)),
        }
    }

    fn is_under(&self, scope: &Scope) -> bool {
        match scope {
            Scope::Server | Scope::Pooler => true,
            Scope::Role { name } => self.role == Some(name),
            Scope::Database { name } | Scope::PoolerDatabase { name } => {
                self.database == Some(name)
            }
            Scope::Pool { role, database } => {
                (self.role, self.database) == (Some(role), Some(database))
            }
        }
    }
}

fn role_limit(role: Role) -> Option<(Scope, Vec<Term>)> {
    let term = Term::new(role.connection_limit?, "rolconnlimit");
    Some((Scope::Role { name: role.name }, vec![term]))
}

fn database_limit(database: &Database) -> Option<(Scope, Vec<Term>)> {
    let term = Term::new(database.connection_limit?, "datconnlimit");
    let name = database.name.clone();
    Some((Scope::Database { name }, vec![term]))
}

/// The first version that knows `reserved_connections`.
const RESERVED_CONNECTIONS_SINCE: u32 = 160_000;

/// What the server grants this role, as terms to be added up.
fn grant(limits: &ServerLimits, role: &Role) -> Vec<Term> {
    let superusers = limits.superuser_reserved_connections;
    let reserved = limits.reserved_connections;
    let mut terms = vec![Term::new(limits.max_connections, "max_connections")];
    if role.superuser {
        return terms;
    }
    terms.push(Term::less(superusers, "superuser_reserved_connections"));
    let version = limits.version_num.unwrap_or(u32::MAX);
    let keeps_some = version >= RESERVED_CONNECTIONS_SINCE && reserved > 0;
    if keeps_some && !role.may_use_reserved {
        terms.push(Term::less(reserved, "reserved_connections"));
    }
    terms
}

fn role_of(limits: &ServerLimits, name: &str) -> Role {
    let found = limits.roles.iter().find(|r| r.name == name);
    found.cloned().unwrap_or_else(|| Role::new(name))
}

fn only_role(server: &Server) -> Option<&str> {
    only(of_partitions(server).map(|d| d.role.as_str()))
}

fn only_database(server: &Server) -> Option<&str> {
    only(of_partitions(server).map(|d| d.database.as_str()))
}

/// Nothing else comes in as what the library keeps for itself.
fn of_partitions(server: &Server) -> impl Iterator<Item = &Demand> {
    let demands = server.demands.iter();
    demands.filter(|demand| demand.kind != DemandKind::Control)
}

/// The one value that all of them are, if they are all one.
fn only<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    match distinct(names)[..] {
        [name] => Some(name),
        _ => None,
    }
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

fn warnings(fleet: &Fleet, servers: &[Server]) -> Vec<Warning> {
    let mut all = Vec::new();
    for server in servers {
        if let Limits::Known(limits) = &server.limits {
            let sum = Sum::new(fleet, server);
            all.extend(sum.others_beyond_reserve(limits));
            all.extend(sum.others_under_limits(limits));
            all.extend(sum.superusers(limits));
            all.extend(sum.invalid_databases(limits));
            all.extend(sum.guessed_externals(limits));
        }
    }
    all.extend(fleet.fewer_seats());
    all.extend((fleet.reserve == 0).then_some(Warning::NoReserve));
    all.extend(shared_servers(servers));
    all.extend(counted_on_each(servers));
    all.extend(
        fleet
            .budgets
            .iter()
            .filter_map(|b| spread_budget(b, servers)),
    );
    all
}

impl Sum<'_> {
    fn others_beyond_reserve(&self, limits: &ServerLimits) -> Option<Warning> {
        let open = limits.open_under(&Scope::Server);
        if open <= u64::from(self.fleet.reserve) {
            return None;
        }
        let total = self.constraint(Scope::Server, self.smallest_grant(limits));
        Some(Warning::OthersBeyondReserve {
            server: self.server.label.clone(),
            open,
            reserve: self.fleet.reserve,
            needed_with_them: total.needed_without_reserve().saturating_add(open),
            granted: total.granted,
        })
    }

    /// Others count toward the limits of a role and a database too, which the reserve does not cover.
    fn others_under_limits(&self, limits: &ServerLimits) -> Vec<Warning> {
        let limited = self.constraints(limits).into_iter().skip(1);
        limited.filter_map(|c| self.others_under(&c)).collect()
    }

    fn others_under(&self, constraint: &Constraint) -> Option<Warning> {
        let open = constraint.others;
        let needed_with_them = constraint.needed.saturating_add(open);
        (open > 0 && needed_with_them > constraint.granted).then(|| Warning::OthersUnderLimit {
            server: self.server.label.clone(),
            scope: constraint.scope.clone(),
            open,
            needed_with_them,
            granted: constraint.granted,
        })
    }

    fn superusers(&self, limits: &ServerLimits) -> Vec<Warning> {
        let roles = self.roles(limits).into_iter().filter(|r| r.superuser);
        let warning = |role: Role| Warning::SuperuserRole {
            server: self.server.label.clone(),
            role: role.name,
        };
        roles.map(warning).collect()
    }

    fn invalid_databases(&self, limits: &ServerLimits) -> Vec<Warning> {
        let is_used = |d: &&Database| self.uses.iter().any(|u| u.database == Some(&d.name));
        let invalid = limits.databases.iter().filter(|d| !d.valid).filter(is_used);
        let warning = |database: &Database| Warning::InvalidDatabase {
            server: self.server.label.clone(),
            database: database.name.clone(),
        };
        invalid.map(warning).collect()
    }

    /// Says where an external pool was counted, where a limit makes that matter.
    fn guessed_externals(&self, limits: &ServerLimits) -> Vec<Warning> {
        let constraints = self.constraints(limits);
        let limited = |is: fn(&Scope) -> bool| constraints.iter().any(|c| is(&c.scope));
        let role_limited = limited(|s| matches!(s, Scope::Role { .. }));
        let database_limited = limited(|s| matches!(s, Scope::Database { .. }));
        let mut all = Vec::new();
        for external in &self.fleet.external {
            if role_limited && external.role.is_none() {
                all.push(self.without_role(external));
            }
            if database_limited && external.database.is_none() {
                all.push(self.without_database(external));
            }
        }
        all
    }

    fn without_role(&self, external: &ExternalDemand) -> Warning {
        Warning::ExternalWithoutRole {
            server: self.server.label.clone(),
            pool: external.name.clone(),
            counted_toward: only_role(self.server).map(String::from),
        }
    }

    fn without_database(&self, external: &ExternalDemand) -> Warning {
        Warning::ExternalWithoutDatabase {
            server: self.server.label.clone(),
            pool: external.name.clone(),
            counted_toward: only_database(self.server).map(String::from),
        }
    }
}

impl OpenSessions {
    fn is_under(&self, scope: &Scope) -> bool {
        match scope {
            Scope::Server => true,
            Scope::Role { name } => self.role == *name,
            Scope::Database { name } => self.database == *name,
            // Postgres does not see them.
            Scope::Pooler | Scope::Pool { .. } | Scope::PoolerDatabase { .. } => false,
        }
    }
}

impl ServerLimits {
    /// Sessions of others under a limit.
    fn open_under(&self, scope: &Scope) -> u64 {
        let under = self.others.iter().filter(|o| o.is_under(scope));
        under.map(|o| u64::from(o.sessions)).sum()
    }
}

/// One warning for all servers: it is the same truth about each.
fn shared_servers(servers: &[Server]) -> Option<Warning> {
    // Behind a pooler in session mode the server itself is there, too.
    let is_server = |s: &&Server| match &s.limits {
        Limits::Pooler(limits) => limits.pools.is_empty(),
        Limits::Known(_) | Limits::Full { .. } => true,
    };
    let servers = servers.iter().filter(is_server);
    let shared = servers.filter(|s| partitions(s).len() > 1);
    let labels: Vec<String> = shared.map(|s| s.label.clone()).collect();
    (!labels.is_empty()).then_some(Warning::SharedServer { servers: labels })
}

/// A partition on several servers: a failover can bring it to either.
fn counted_on_each(servers: &[Server]) -> Vec<Warning> {
    let on = |name: &str| -> Vec<String> {
        let there = servers.iter().filter(|s| partitions(s).contains(&name));
        there.map(|s| s.label.clone()).collect()
    };
    let names = distinct(servers.iter().flat_map(partitions));
    let warning = |partition: &str| Warning::CountedOnEach {
        partition: partition.to_owned(),
        servers: on(partition),
    };
    let several = names.into_iter().filter(|name| on(name).len() > 1);
    several.map(warning).collect()
}

/// Partitions of one budget that are on different servers. One that a failover can bring to several
/// is on each of them, and so are those beside it. A server that is full could be any of them.
fn spread_budget(budget: &SharedBudget, servers: &[Server]) -> Option<Warning> {
    let drawing = |server| (drawing_from(budget, server), server);
    let read = servers
        .iter()
        .filter(|s| matches!(s.limits, Limits::Known(_)));
    let on: Vec<(Vec<&str>, &Server)> = read.map(drawing).collect();
    let on: Vec<_> = on.iter().filter(|(names, _)| !names.is_empty()).collect();
    let is_spread = on.windows(2).any(|pair| pair[0].0 != pair[1].0);
    is_spread.then(|| Warning::SpreadBudget {
        budget: budget.name.clone(),
        servers: on.iter().map(|(_, s)| s.label.clone()).collect(),
    })
}

fn drawing_from<'a>(budget: &SharedBudget, server: &'a Server) -> Vec<&'a str> {
    let draws = |d: &&Demand| d.share.as_ref().is_some_and(|s| s.budget == budget.name);
    let mut names = distinct(server.demands.iter().filter(draws).map(|d| d.name.as_str()));
    names.sort_unstable();
    names
}

fn partitions(server: &Server) -> Vec<&str> {
    let demands = server.demands.iter();
    let partitions = demands.filter(|d| d.kind == DemandKind::Partition);
    distinct(partitions.map(|d| d.name.as_str()))
}
