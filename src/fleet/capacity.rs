//! What a fleet wants of each server, and what each server is known to let in.

use crate::config::{HandOver, Kind};

use super::pooler::PoolerLimits;

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
