//! What a fleet needs of each server, held against what each server grants it.
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

use super::capacity::{
    Criticality, Database, Demand, DemandKind, ExternalDemand, Fleet, Limits, OpenSessions, Role,
    Server, ServerLimits, SharedBudget,
};
use super::constraint::{Constraint, Part, Scope, Term};
use super::report::{FleetReport, RoleGrant, ServerReport, ServerState};
use super::warning::Warning;

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
    all.extend(fewer_seats(fleet));
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

/// A replica that a deploy starts before it ends an old one waits for a seat.
fn fewer_seats(fleet: &Fleet) -> Option<Warning> {
    let replicas = u64::from(fleet.max_replicas) + u64::from(fleet.surge);
    let seats = fleet.seats.filter(|seats| u64::from(*seats) < replicas)?;
    Some(Warning::FewerSeats { seats, replicas })
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
