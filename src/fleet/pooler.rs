//! What a pooler grants, as its owner stated it: the limits that Postgres knows nothing of.
//!
//! ```text
//! max_client_conn      >=  needed by everybody who connects through it, the reserve included
//! session mode only, where a client has a server connection of its own:
//! default_pool_size    >=  needed by one role in one database
//! max_db_connections   >=  needed in one database
//! ```
//!
//! In session mode the limits of Postgres count as well, since each client needs a connection there, too. In
//! transaction mode clients share server connections on purpose: how many there are is the pooler's own affair, and
//! Postgres's figures say nothing of ours.

use crate::config::PoolerSettings;

use super::capacity::{Limits, Server};
use super::constraint::{Scope, Term};

/// How the pooler behind these hosts is called, apart from the server that may be there as well.
pub(super) fn label(hosts: &str) -> String {
    format!("pooler {hosts}")
}

/// The pooler that was stated so, with nothing asked of it yet.
pub(super) fn server(label: &str, stated: &PoolerSettings) -> Server {
    let limits = PoolerLimits::new(stated.max_client_conn.get());
    Server::new(label, Limits::Pooler(limits))
}

/// What a pooler takes, and from whom.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::{Limits, PoolSize, PoolerLimits, Server};
///
/// let mut limits = PoolerLimits::new(500);
/// limits.pools.push(PoolSize::new("app", "shop", 100));
/// let pooler = Server::new("pooler pgbouncer:6432", Limits::Pooler(limits));
/// # let _ = pooler;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolerLimits {
    /// The client connections that it takes, from everybody together: `max_client_conn`.
    pub max_client_conn: u32,
    /// The server connections of a role in a database, where each client needs one of its own: `default_pool_size`.
    pub pools: Vec<PoolSize>,
    /// The server connections of a database, where each client needs one of its own, as its name and
    /// `max_db_connections`.
    pub databases: Vec<(String, u32)>,
}

/// The server connections that a pooler opens for one role in one database.
///
/// # Examples
/// ```
/// use partitioned_pool::fleet::PoolSize;
///
/// assert_eq!(PoolSize::new("app", "shop", 100).size, 100);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolSize {
    /// The role.
    pub role: String,
    /// The database.
    pub database: String,
    /// How many.
    pub size: u32,
}

impl PoolSize {
    /// So many for this role in this database.
    #[must_use]
    pub fn new(role: impl Into<String>, database: impl Into<String>, size: u32) -> Self {
        Self {
            role: role.into(),
            database: database.into(),
            size,
        }
    }
}

impl PoolerLimits {
    /// A pooler in transaction mode, where nothing else is a limit.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::fleet::{Demand, Fleet, Limits, PoolerLimits, Server, assess};
    ///
    /// let mut pooler = Server::new("pgbouncer:6432", Limits::Pooler(PoolerLimits::new(100)));
    /// pooler.demands.push(Demand::partition("transactional", 30, "app", "shop"));
    /// let report = assess(&Fleet::new(4, 0), &[pooler]);
    /// assert_eq!((report.needed(), report.granted()), (Some(120), Some(100)));
    /// ```
    #[must_use]
    pub fn new(max_client_conn: u32) -> Self {
        Self {
            max_client_conn,
            pools: Vec::new(),
            databases: Vec::new(),
        }
    }

    /// Takes in what was stated for a role and a database. Where one pooler was stated with different figures, the
    /// smaller count.
    pub(super) fn take_in(&mut self, stated: &PoolerSettings, role: &str, database: &str) {
        self.max_client_conn = self.max_client_conn.min(stated.max_client_conn.get());
        if let Some(size) = stated.default_pool_size {
            self.take_in_pool(PoolSize::new(role, database, size.get()));
        }
        if let Some(most) = stated.max_db_connections {
            self.take_in_database(database, most.get());
        }
    }

    fn take_in_pool(&mut self, stated: PoolSize) {
        let is_same =
            |p: &&mut PoolSize| (&p.role, &p.database) == (&stated.role, &stated.database);
        match self.pools.iter_mut().find(is_same) {
            Some(known) => known.size = known.size.min(stated.size),
            None => self.pools.push(stated),
        }
    }

    fn take_in_database(&mut self, name: &str, most: u32) {
        match self.databases.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = most.min(*known),
            None => self.databases.push((name.to_owned(), most)),
        }
    }

    /// Each limit, with what it is the sum of. The total first.
    pub(super) fn scopes(&self) -> impl Iterator<Item = (Scope, Vec<Term>)> {
        let clients = Term::new(self.max_client_conn, "max_client_conn");
        let total = std::iter::once((Scope::Pooler, vec![clients]));
        let pools = self.pools.iter().map(|pool| {
            let (role, database) = (pool.role.clone(), pool.database.clone());
            let term = Term::new(pool.size, "default_pool_size");
            (Scope::Pool { role, database }, vec![term])
        });
        let databases = self.databases.iter().map(|(name, most)| {
            let term = Term::new(*most, "max_db_connections");
            (Scope::PoolerDatabase { name: name.clone() }, vec![term])
        });
        total.chain(pools).chain(databases)
    }
}
