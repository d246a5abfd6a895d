//! The report as a text for a terminal: first what is wrong and what would do, then the sums.
//!
//! Lines are at most [`WIDTH`] columns, unless a single name is longer.

use std::fmt::{self, Display, Formatter};

use super::capacity::FullRole;
use super::constraint::{Constraint, Part, PartitionShare, Scope, SmallestLimit, Term, Verdict};
use super::report::{FleetReport, PartitionSize, ServerReport, ServerState};
use super::warning::Warning;

/// Columns of a line.
const WIDTH: usize = 100;

/// The widest name that stands in the first column of the table. A longer one gets its own line.
const NAME_WIDTH: usize = 24;

/// Indents of a first line and of the lines that go on from it.
const PLAIN: [&str; 2] = ["", ""];
const ITEM: [&str; 2] = ["", "  "];
const ROW: [&str; 2] = ["    ", "      "];
const SUM: [&str; 2] = ["      ", "        "];

impl Display for FleetReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "fleet check: {}", self.outcome())?;
        for text in self.servers().iter().flat_map(ServerReport::full_texts) {
            fmt_wrapped(f, PLAIN, &text)?;
        }
        if let Some(binding) = self.binding() {
            fmt_wrapped(f, PLAIN, &binding.sentence())?;
        }
        if self.binding().is_some_and(|binding| !binding.fits()) {
            self.fmt_proposals(f)?;
        }
        for server in self.servers() {
            writeln!(f)?;
            server.fmt(f)?;
        }
        self.fmt_warnings(f)
    }
}

impl FleetReport {
    fn outcome(&self) -> String {
        let unread = !self.servers().iter().all(ServerReport::is_read);
        let full = self.servers().iter().find(|server| !server.full.is_empty());
        match self.binding() {
            Some(binding) if !binding.fits() => {
                format!(
                    "does not fit, {} on {}",
                    binding.difference_text(),
                    binding.server
                )
            }
            _ if unread => "could not be done, a server is full".into(),
            _ => match full {
                Some(ServerReport { label, full, .. }) => {
                    format!("{label} is full for role {} at this moment", full[0].role)
                }
                None => "fits".into(),
            },
        }
    }

    fn fmt_proposals(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(largest) = self.largest_fleet() else {
            return Ok(());
        };
        if self.fits_without_surge() {
            fmt_wrapped(f, PLAIN, &self.surge_text())?;
        }
        fmt_wrapped(f, PLAIN, &self.largest_fleet_text(largest))?;
        fmt_wrapped(f, PLAIN, &self.largest_partitions_text())?;
        fmt_wrapped(f, PLAIN, &self.smallest_limits_text())
    }

    fn smallest_limits_text(&self) -> String {
        match self.smallest_limits() {
            [limit] => format!(
                "Smallest {} that fits: {}.",
                limit.setting,
                limit.value_text()
            ),
            limits => {
                let named = |l: &SmallestLimit| format!("{} {}", l.setting, l.value_text());
                let each: Vec<String> = limits.iter().map(named).collect();
                format!("Smallest limits that fit: {}.", each.join(", "))
            }
        }
    }

    fn surge_text(&self) -> String {
        format!(
            "It fits only without the surge: {} alone would, but the next rolling deploy adds {}.",
            replicas(self.max_replicas()),
            self.surge()
        )
    }

    fn largest_fleet_text(&self, largest: u32) -> String {
        let surge = self.surge();
        if self.seats().is_some() {
            return format!("Most seats that fit: {largest}.");
        }
        match largest {
            0 => format!("Largest fleet that fits: none, not even 1 replica with surge {surge}."),
            n => format!(
                "Largest fleet that fits: {} with surge {surge}.",
                replicas(n)
            ),
        }
    }

    fn largest_partitions_text(&self) -> String {
        let at = match self.seats() {
            Some(count) => seats(count),
            None => format!(
                "{} with surge {}",
                replicas(self.max_replicas()),
                self.surge()
            ),
        };
        match self.largest_partitions() {
            Some(sizes) => format!("Largest partitions that fit {at}: {}.", sizes_text(sizes)),
            None => format!("Largest partitions that fit {at}: none, not even 1 connection each."),
        }
    }

    fn fmt_warnings(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.warnings().is_empty() {
            writeln!(f)?;
        }
        for warning in self.warnings() {
            fmt_wrapped(f, ITEM, &format!("warning: {warning}"))?;
        }
        Ok(())
    }
}

impl SmallestLimit {
    fn value_text(&self) -> String {
        let to = self
            .to
            .map_or_else(|| "none that Postgres takes,".into(), |to| to.to_string());
        let of = match self.scope {
            Scope::Server | Scope::Pooler => String::new(),
            _ => format!(" of {}", self.scope),
        };
        format!("{to} instead of {}{of} on {}", self.from, self.server)
    }
}

fn sizes_text(sizes: &[PartitionSize]) -> String {
    let named: Vec<String> = sizes.iter().map(size_text).collect();
    named.join(", ")
}

fn size_text(size: &PartitionSize) -> String {
    let share = |p: &PartitionShare| {
        let (name, reserved, max) = (&p.name, p.reserved, p.max_connections);
        format!("{name} up to {max} with {reserved} reserved")
    };
    let shares: Vec<String> = size.partitions.iter().map(share).collect();
    let named = format!("{} {}", size.name, size.size);
    if shares.is_empty() {
        return named;
    }
    format!("{named} ({})", shares.join(", "))
}

fn replicas(count: u32) -> String {
    counted(count, "replica")
}

fn seats(count: u32) -> String {
    counted(count, "seat")
}

fn counted(count: u32, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

impl Display for ServerReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        fmt_wrapped(f, ITEM, &format!("{}: {}", self.label, self.state_text()))?;
        if self.constraints.is_empty() {
            return Ok(());
        }
        let columns = Columns::of(&self.constraints);
        columns.fmt_row(f, "limit", ["granted", "needed", "headroom"], "")?;
        for constraint in &self.constraints {
            columns.fmt_constraint(f, constraint)?;
        }
        self.fmt_grants(f)
    }
}

impl ServerReport {
    fn state_text(&self) -> String {
        let roles: Vec<&str> = self.full.iter().map(|full| full.role.as_str()).collect();
        match roles[..] {
            [] => self.state.to_string(),
            _ => format!("{}, full for {}", self.state, roles.join(" and ")),
        }
    }

    fn full_texts(&self) -> Vec<String> {
        const TO_DO: &str = "As a superuser, look in pg_stat_activity for who holds them, and at rolconnlimit and \
            datconnlimit; end what can go, and start again.";
        let label = &self.label;
        let mut texts = Vec::new();
        if let ServerState::Full { said, .. } = &self.state {
            texts.push(format!(
                "{label} has no connection left for this check (53300: of the server, the role or the database), \
                 so its limits could not be read. It said: {said}. {TO_DO}"
            ));
        }
        for FullRole {
            role,
            database,
            said,
        } in &self.full
        {
            texts.push(format!(
                "{label} has no connection left for role {role} in database {database} (53300); another role could read \
                 its limits. It said: {said}. {TO_DO}"
            ));
        }
        texts
    }

    /// Says which role decides, where they differ.
    fn fmt_grants(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let same = self.grants.windows(2).all(|w| w[0].granted == w[1].granted);
        if same {
            return Ok(());
        }
        let each = self
            .grants
            .iter()
            .map(|g| format!("{} to {}", g.granted, g.role));
        let each: Vec<String> = each.collect();
        let text = format!("granted by role: {}; the smallest counts.", each.join(", "));
        fmt_wrapped(f, ROW, &text)
    }
}

impl Display for ServerState {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read {
                version_num,
                in_recovery,
            } => {
                match version_num.map(|version| (version / 10_000, version % 10_000)) {
                    None => write!(f, "its limits as they were stated")?,
                    // So one states it, and so the first of a series is called.
                    Some((major, 0)) => write!(f, "Postgres {major}")?,
                    Some((major, minor)) => write!(f, "Postgres {major}.{minor}")?,
                }
                f.write_str(if *in_recovery { ", a standby" } else { "" })
            }
            Self::Pooler => write!(f, "its limits as they were stated"),
            Self::Full { needed, .. } => write!(f, "full; the fleet needs {needed} there"),
        }
    }
}

/// The widths of the table, under which every figure of a server fits.
struct Columns {
    name: usize,
    figure: usize,
}

impl Columns {
    fn of(constraints: &[Constraint]) -> Self {
        let names = constraints.iter().map(|c| width(&c.scope.to_string()));
        let figures = constraints.iter().flat_map(Constraint::figures);
        let widest = |widths: &mut dyn Iterator<Item = usize>| widths.max().unwrap_or(0);
        Self {
            name: widest(&mut names.filter(|w| *w <= NAME_WIDTH)).max("server".len()),
            figure: widest(&mut figures.map(|f| width(&f))).max("headroom".len()),
        }
    }

    fn fmt_constraint(&self, f: &mut Formatter<'_>, constraint: &Constraint) -> fmt::Result {
        let name = constraint.scope.to_string();
        let [granted, needed, headroom] = constraint.figures();
        let figures = [&*granted, &*needed, &*headroom];
        self.fmt_row(f, &name, figures, constraint.verdict.as_str())?;
        let granted = Term::sum_text(&constraint.granted_terms);
        fmt_wrapped(f, SUM, &format!("granted = {granted}"))?;
        fmt_wrapped(f, SUM, &format!("needed  = {}", constraint.needed_text()))
    }

    fn fmt_row(
        &self,
        f: &mut Formatter<'_>,
        name: &str,
        [granted, needed, headroom]: [&str; 3],
        verdict: &str,
    ) -> fmt::Result {
        let (n, w) = (self.name, self.figure);
        let figures = format!("  {granted:>w$}  {needed:>w$}  {headroom:>w$}  {verdict}");
        let figures = figures.trim_end();
        if width(name) > n {
            return writeln!(f, "    {name}\n    {:n$}{figures}", "");
        }
        writeln!(f, "    {name:n$}{figures}")
    }
}

impl Constraint {
    fn figures(&self) -> [String; 3] {
        [
            self.granted.to_string(),
            self.needed.to_string(),
            self.headroom.to_string(),
        ]
    }

    /// The sum in one sentence.
    fn sentence(&self) -> String {
        let sizes: Vec<String> = self
            .per_replica
            .iter()
            .map(|p| p.size.to_string())
            .collect();
        format!(
            "{counted} of {sizes}{beside} against {limit} {need} {needed} of {granted} granted{terms}: \
             {difference}.",
            counted = self.counted_text(),
            sizes = if sizes.is_empty() {
                "0".into()
            } else {
                sizes.join(" + ")
            },
            beside = self.beside_text(),
            limit = self.limit_text(),
            need = if self.max_replicas == 1 {
                "needs"
            } else {
                "need"
            },
            needed = self.needed,
            granted = self.granted,
            terms = self.terms_text(),
            difference = self.difference_text(),
        )
    }

    fn counted_text(&self) -> String {
        self.seats
            .map_or_else(|| replicas(self.max_replicas), seats)
    }

    fn beside_text(&self) -> String {
        let surge = self.surge;
        match (self.seats, self.reserve) {
            (Some(_), 0) => String::new(),
            (Some(_), reserve) => format!(" with reserve {reserve}"),
            (None, 0) => format!(" with surge {surge}"),
            (None, reserve) => format!(" with surge {surge} and reserve {reserve}"),
        }
    }

    fn limit_text(&self) -> String {
        let limit = self.granted_terms.first();
        let limit = limit.map_or_else(String::new, |t| format!("{} {}", t.name, t.amount));
        match self.scope {
            Scope::Server | Scope::Pooler => limit,
            _ => format!("{limit} of {}", self.scope),
        }
    }

    fn terms_text(&self) -> String {
        match self.granted_terms.len() {
            0 | 1 => String::new(),
            _ => format!(" ({})", Term::sum_text(&self.granted_terms)),
        }
    }

    fn difference_text(&self) -> String {
        match self.headroom.unsigned_abs() {
            many if self.headroom < 0 => format!("{many} too many"),
            left => format!("{left} to spare"),
        }
    }

    fn needed_text(&self) -> String {
        let reserve = match self.scope.is_total() {
            true => format!(" + {} reserve", self.reserve),
            false => String::new(),
        };
        let counted = match self.seats {
            Some(_) => self.counted_text(),
            None => format!("({} + {} surge)", self.counted_text(), self.surge),
        };
        format!("{counted} x ({}){reserve}", parts_text(&self.per_replica))
    }
}

fn parts_text(parts: &[Part]) -> String {
    let named: Vec<String> = parts.iter().map(part_text).collect();
    if named.is_empty() {
        "0".into()
    } else {
        named.join(" + ")
    }
}

fn part_text(part: &Part) -> String {
    let named = format!("{} {}", part.size, part.name);
    let Some(budget) = &part.budget else {
        return named;
    };
    let share = |p: &PartitionShare| format!("{} up to {}", p.name, p.max_connections);
    let shares: Vec<String> = budget.partitions.iter().map(share).collect();
    format!("{named} ({})", shares.join(", "))
}

impl Term {
    fn sum_text(terms: &[Self]) -> String {
        let mut text = String::new();
        for Self { amount, name } in terms {
            let sign = if *amount < 0 { " - " } else { "" };
            text += &format!("{sign}{} {name}", amount.unsigned_abs());
        }
        text
    }
}

impl Display for Scope {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server => write!(f, "server"),
            Self::Role { name } => write!(f, "role {name}"),
            Self::Database { name } => write!(f, "database {name}"),
            Self::Pooler => write!(f, "pooler"),
            Self::Pool { role, database } => write!(f, "pool of role {role} in {database}"),
            Self::PoolerDatabase { name } => write!(f, "pools of database {name}"),
        }
    }
}

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Exceeds => "exceeds",
        }
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Display for Warning {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::OthersBeyondReserve {
                server,
                open,
                reserve,
                needed_with_them,
                granted,
            } => {
                let sum = [*needed_with_them, *granted];
                fmt_beyond_reserve(f, server, *open, *reserve, sum)
            }
            Self::OthersUnderLimit {
                server,
                scope,
                open,
                needed_with_them,
                granted,
            } => {
                let sum = [*needed_with_them, *granted];
                fmt_under_limit(f, server, *open, scope, sum)
            }
            Self::SuperuserRole { server, role } => fmt_superuser(f, server, role),
            Self::InvalidDatabase { server, database } => fmt_invalid(f, server, database),
            Self::ExternalWithoutRole {
                server,
                pool,
                counted_toward,
            } => fmt_external(f, server, pool, "role", counted_toward.as_deref()),
            Self::ExternalWithoutDatabase {
                server,
                pool,
                counted_toward,
            } => fmt_external(f, server, pool, "database", counted_toward.as_deref()),
            Self::FewerSeats { seats, replicas } => write!(
                f,
                "there are {seats} seats for {replicas} replicas, surge included. Those without one wait, and a \
                 rolling deploy that starts new replicas first can wait for ever. Raise fleet.seats.count, or \
                 have the deploy end old replicas first (maxSurge: 0)."
            ),
            Self::NoReserve => f.write_str(
                "the reserve is 0: nothing is kept for people, migrations and monitoring. Set it \
                 to what else connects.",
            ),
            Self::SpreadBudget { budget, servers } => write!(
                f,
                "the partitions of budget {budget} are on different servers, {}, and cannot use each \
                 other's connections. Give each server a budget of its own.",
                servers.join(" and ")
            ),
            Self::CountedOnEach { partition, servers } => write!(
                f,
                "partition {partition} was counted on each of {}, since the hosts of its url can bring it to any.",
                servers.join(" and ")
            ),
            Self::SharedServer { servers } => write!(
                f,
                "several partitions share {}. A partition isolates connections, not the server's \
                 CPU, I/O or locks.",
                servers.join(" and ")
            ),
        }
    }
}

fn fmt_beyond_reserve(
    f: &mut Formatter<'_>,
    server: &str,
    open: u64,
    reserve: u32,
    [needed, granted]: [u64; 2],
) -> fmt::Result {
    write!(
        f,
        "{server}: {open} are open now, more than the reserve of {reserve}. With them in its place \
         {needed} of {granted} are needed, which {verdict}. Raise the reserve, or end them.",
        open = foreign_sessions(open),
        verdict = if needed <= granted {
            "fits"
        } else {
            "does not fit"
        },
    )
}

fn fmt_under_limit(
    f: &mut Formatter<'_>,
    server: &str,
    open: u64,
    scope: &Scope,
    [needed, granted]: [u64; 2],
) -> fmt::Result {
    write!(
        f,
        "{server}: {open} are open now under the limit of {scope}. With them {needed} of {granted} \
         are needed, which does not fit. Raise the limit, or end them.",
        open = foreign_sessions(open),
    )
}

fn fmt_superuser(f: &mut Formatter<'_>, server: &str, role: &str) -> fmt::Result {
    write!(
        f,
        "{server}: role {role} is a superuser. No limit binds it, so the service can take the \
         slots that are reserved for repairs. Use a role that has only LOGIN and its grants."
    )
}

fn fmt_invalid(f: &mut Formatter<'_>, server: &str, database: &str) -> fmt::Result {
    write!(
        f,
        "{server}: database {database} is invalid, since a DROP DATABASE was interrupted. Nobody \
         can connect to it. Drop it and restore it."
    )
}

fn foreign_sessions(count: u64) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} session{plural} of others")
}

fn fmt_external(
    f: &mut Formatter<'_>,
    server: &str,
    pool: &str,
    kind: &str,
    counted_toward: Option<&str>,
) -> fmt::Result {
    write!(f, "{server}: external pool {pool} names no {kind}. ")?;
    match counted_toward {
        Some(name) => write!(f, "It was counted toward {kind} {name}, the only one used.")?,
        None => {
            f.write_str("Several are used, so it was counted toward the server's total only.")?
        }
    }
    write!(f, " Name its {kind} in the configuration.")
}

/// The text in lines of at most [`WIDTH`] columns, broken at spaces, with the indent of the first
/// line and of the rest.
fn fmt_wrapped(f: &mut Formatter<'_>, indents: [&str; 2], text: &str) -> fmt::Result {
    let [first, rest] = indents;
    let mut line = String::from(first);
    let mut is_empty = true;
    for word in text.split(' ') {
        if !is_empty && width(&line) + 1 + width(word) > WIDTH {
            writeln!(f, "{line}")?;
            line = rest.into();
            is_empty = true;
        }
        line += if is_empty { "" } else { " " };
        line += word;
        is_empty = false;
    }
    writeln!(f, "{line}")
}

fn width(text: &str) -> usize {
    text.chars().count()
}
