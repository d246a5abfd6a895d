//! What does not refuse a fleet, and should be known.

use super::constraint::Scope;

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
