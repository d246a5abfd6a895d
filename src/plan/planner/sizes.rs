//! Sizes, and the usual ways to divide a number of slots.

use std::fmt::Write;
use std::time::Duration;

use crate::admission::{ClassRules, HandOver, Rules};
use crate::config::{ConfigError, Defaults, Kind, Limit, PoolConfig};
use crate::fleet::{
    Demand, Fleet, FleetReport, Limits, Server, ServerLimits, SharedBudget, assess,
};

use super::need::{PartitionNeed, Service};

/// What the connections of one replica are divided into.
///
/// # Examples
/// ```
/// use partitioned_pool::config::Kind;
/// use partitioned_pool::plan::planner::{PartitionSizes, Sizes};
///
/// let mut sizes = Sizes::apart(vec![
///     PartitionSizes::fixed("transactional", Kind::Transactional, 20),
///     PartitionSizes::fixed("analytical", Kind::Analytical, 10),
/// ]);
/// assert_eq!((sizes.capacity(), sizes.partitions[0].max_waiters), (30, 40));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sizes {
    /// The capacity of the budget that partitions share; 0 if none does.
    pub shared: u32,
    /// Which of them is looked at first when a slot comes free.
    pub hand_over: HandOver,
    /// The partitions, in their order.
    pub partitions: Vec<PartitionSizes>,
}

/// The limits of one partition.
///
/// # Examples
/// ```
/// use partitioned_pool::config::Kind;
/// use partitioned_pool::plan::planner::PartitionSizes;
///
/// let checkout = PartitionSizes::borrowing("transactional", Kind::Transactional, 12, 25);
/// assert_eq!((checkout.reserved, checkout.max_connections, checkout.max_waiters), (12, 25, 50));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionSizes {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// Whether it draws from the budget that is shared; if not, from one of its own.
    pub shares: bool,
    /// Slots that are never lent.
    pub reserved: u32,
    /// The most slots that it may hold.
    pub max_connections: u32,
    /// The most callers that may wait.
    pub max_waiters: u32,
    /// The longest that a caller may wait.
    pub acquire_timeout: Duration,
    /// When the server ends a statement. `None`: as the pool has it by default. No part of a simulation.
    pub statement_timeout: Option<Duration>,
}

impl PartitionSizes {
    /// All its slots are its own; queue and timeouts are the pool's defaults for the kind.
    #[must_use]
    pub fn fixed(name: impl Into<String>, kind: Kind, size: u32) -> Self {
        Self {
            name: name.into(),
            kind,
            shares: false,
            reserved: size,
            max_connections: size,
            max_waiters: Defaults::of(kind).max_waiters(size),
            acquire_timeout: Defaults::of(kind).acquire_timeout,
            statement_timeout: None,
        }
    }

    /// From the shared budget, `max` slots of which `reserved` are its own.
    #[must_use]
    pub fn borrowing(name: impl Into<String>, kind: Kind, reserved: u32, max: u32) -> Self {
        Self {
            shares: true,
            reserved,
            ..Self::fixed(name, kind, max)
        }
    }

    const fn rules(&self) -> ClassRules {
        ClassRules {
            reserved: self.reserved,
            max: self.max_connections,
            queue: self.max_waiters,
        }
    }
}

impl Sizes {
    /// Every partition for itself.
    #[must_use]
    pub fn apart(partitions: Vec<PartitionSizes>) -> Self {
        Self {
            shared: 0,
            hand_over: HandOver::default(),
            partitions,
        }
    }

    /// Partitions that share so much.
    #[must_use]
    pub fn sharing(capacity: u32, partitions: Vec<PartitionSizes>) -> Self {
        Self {
            shared: capacity,
            ..Self::apart(partitions)
        }
    }

    /// The connections of a replica: the shared budget, and what is apart from it.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        let apart = self.partitions.iter().filter(|p| !p.shares);
        apart.fold(self.shared, |sum, p| sum.saturating_add(p.max_connections))
    }

    /// The same as the rules of one ledger, in which partition `n` is class `n`. What is apart is in it with all
    /// its slots reserved, so that nobody else ever gets them.
    #[must_use]
    pub fn rules(&self) -> Rules {
        Rules {
            capacity: self.capacity(),
            classes: self.partitions.iter().map(PartitionSizes::rules).collect(),
            hand_over: self.hand_over,
        }
    }

    /// The position of a partition.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.partitions.iter().position(|p| p.name == name)
    }

    /// One pool for all: nothing is reserved, and everybody may have everything. Queues as by default, for all of
    /// `capacity`.
    #[must_use]
    pub fn one_pool(needs: &[PartitionNeed], capacity: u32) -> Self {
        let pool =
            |need: &PartitionNeed| PartitionSizes::borrowing(&need.name, need.kind, 0, capacity);
        Self::sharing(capacity, needs.iter().map(pool).collect())
    }

    /// Fixed partitions in proportion to what they need at their peaks, at least 1 each.
    /// `None` if `capacity` is not even that.
    #[must_use]
    pub fn fixed(needs: &[PartitionNeed], capacity: u32) -> Option<Self> {
        let peaks: Vec<_> = needs.iter().map(|need| need.peak).collect();
        Some(Self::split(needs, &share(capacity, &peaks)?))
    }

    /// Fixed partitions of these sizes.
    #[must_use]
    pub fn split(needs: &[PartitionNeed], sizes: &[u32]) -> Self {
        let partitions = needs.iter().zip(sizes);
        let partitions =
            partitions.map(|(need, size)| PartitionSizes::fixed(&need.name, need.kind, *size));
        Self::apart(partitions.collect())
    }

    /// Transactional partitions reserve what they need at their peaks, or else their part of what there is, and may
    /// have everything; analytical ones reserve nothing, and may have what is not reserved. One slot is always
    /// left to lend. `None` if `capacity` is not even one for each that reserves, and one more.
    #[must_use]
    pub fn lending(needs: &[PartitionNeed], capacity: u32) -> Option<Self> {
        let critical = |need: &&PartitionNeed| need.kind == Kind::Transactional;
        let peaks: Vec<_> = needs.iter().filter(critical).map(|n| n.peak).collect();
        let wanted = peaks.iter().copied().fold(0, u32::saturating_add);
        let most = capacity.checked_sub(1)?;
        let mut reserved = match wanted <= most {
            true => peaks,
            false => share(most, &peaks)?,
        }
        .into_iter();
        let left = capacity - reserved.as_slice().iter().sum::<u32>();
        let partition = |need: &PartitionNeed| {
            let (reserved, max) = match need.kind {
                Kind::Transactional => (reserved.next().unwrap_or_default(), capacity),
                Kind::Analytical => (0, left),
            };
            PartitionSizes::borrowing(&need.name, need.kind, reserved, max)
        };
        Some(Self::sharing(
            capacity,
            needs.iter().map(partition).collect(),
        ))
    }

    /// Whether a fleet of these sizes fits its server.
    #[must_use]
    pub fn check(&self, service: &Service) -> FleetReport {
        let mut fleet: Fleet = service.fleet.clone();
        fleet.budgets = match self.shared {
            0 => Vec::new(),
            capacity => {
                let mut budget = SharedBudget::new(&service.budget, capacity);
                budget.hand_over = self.hand_over;
                vec![budget]
            }
        };
        let limits: ServerLimits = service.server.clone();
        let mut server = Server::new("server", Limits::Known(limits));
        let demand = |p: &PartitionSizes| {
            let demand =
                Demand::partition(&p.name, p.max_connections, &service.role, &service.database)
                    .criticality(p.kind);
            match p.shares {
                true => demand.sharing(&service.budget, p.reserved),
                false => demand,
            }
        };
        server.demands = self.partitions.iter().map(demand).collect();
        assess(&fleet, &[server])
    }

    /// The service's own configuration in TOML, as [`PoolConfig::from_toml`] reads it. Its `url` is a place-holder:
    /// where the database is, no plan says.
    ///
    /// # Errors
    /// What the pool would refuse, in its words: a name that breaks its rules, a partition that every pool has and that
    /// is not here, or one that cannot have its sizes.
    pub fn to_toml(&self, service: &Service) -> Result<String, ConfigError> {
        let mut text = String::new();
        self.write(service, &mut text)
            .expect("bug: a string takes everything");
        PoolConfig::from_toml(&text)?.resolve()?;
        Ok(text)
    }

    fn write(&self, service: &Service, text: &mut String) -> std::fmt::Result {
        let fleet = &service.fleet;
        writeln!(text, "service = {}", quoted(&service.name))?;
        let [role, database] = [&service.role, &service.database].map(|name| percent_encoded(name));
        let url = format!("postgres://{role}@localhost/{database}");
        writeln!(text, "url = {} # put your own here", quoted(&url))?;
        writeln!(text, "\n[fleet]\nmax_replicas = {}", fleet.max_replicas)?;
        writeln!(text, "surge = {}\nreserve = {}", fleet.surge, fleet.reserve)?;
        for external in &fleet.external {
            let (name, size) = (quoted(&external.name), external.size);
            writeln!(text, "\n[[fleet.external]]\nname = {name}\nsize = {size}")?;
        }
        if self.shared > 0 {
            let (name, order) = (quoted(&service.budget), hand_over(self.hand_over));
            writeln!(text, "\n[[budget]]\nname = {name}")?;
            writeln!(text, "capacity = {}\nhand_over = {order}", self.shared)?;
        }
        self.partitions
            .iter()
            .try_for_each(|p| p.write(&service.budget, text))
    }
}

impl PartitionSizes {
    fn write(&self, budget: &str, text: &mut String) -> std::fmt::Result {
        writeln!(text, "\n[[partition]]\nname = {}", quoted(&self.name))?;
        let implied = [Kind::Transactional, Kind::Analytical].map(Kind::as_str);
        if !implied.contains(&self.name.as_str()) {
            writeln!(text, "kind = {}", quoted(self.kind.as_str()))?;
        }
        if self.shares {
            writeln!(text, "budget = {}", quoted(budget))?;
            writeln!(text, "reserved = {}", self.reserved)?;
        }
        writeln!(text, "max_connections = {}", self.max_connections)?;
        writeln!(text, "max_waiters = {}", self.max_waiters)?;
        let timeout = Limit::After(self.acquire_timeout);
        writeln!(text, "acquire_timeout = \"{timeout}\"")?;
        if let Some(timeout) = self.statement_timeout {
            let timeout = Limit::After(timeout);
            writeln!(text, "statement_timeout = \"{timeout}\"")?;
        }
        Ok(())
    }
}

const fn hand_over(order: HandOver) -> &'static str {
    match order {
        HandOver::OldestFirst => "\"oldest_first\"",
        HandOver::DeclaredOrder => "\"declared_order\"",
    }
}

/// A part of a URL, in which any other character could split it.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match char::from(byte) {
            c if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '~') => encoded.push(c),
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

/// Text in the quotes of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted += &format!("\\u{:04X}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// `total` in proportion to the weights, at least 1 each, by largest remainder; of equals the first gets more.
/// `None` if there is not 1 for each.
pub(super) fn share(total: u32, weights: &[u32]) -> Option<Vec<u32>> {
    let count = u32::try_from(weights.len()).ok()?;
    let rest = u64::from(total.checked_sub(count)?);
    // The first of each is given; what it was worth is taken off its weight.
    let weights: Vec<u64> = weights
        .iter()
        .map(|w| u64::from(w.saturating_sub(1)))
        .collect();
    let sum = weights.iter().sum::<u64>();
    let even = |weight: &u64| match sum {
        0 => (rest, u64::from(count.max(1))),
        sum => (rest * weight, sum),
    };
    let parts: Vec<_> = weights.iter().map(even).collect();
    let mut shares: Vec<u64> = parts.iter().map(|(part, of)| 1 + part / of).collect();
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|n| std::cmp::Reverse(parts[*n].0 % parts[*n].1));
    let left = u64::from(total) - shares.iter().sum::<u64>();
    for n in order.into_iter().cycle().take(usize::try_from(left).ok()?) {
        shares[n] += 1;
    }
    shares
        .into_iter()
        .map(u32::try_from)
        .collect::<Result<_, _>>()
        .ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_there_is_is_shared_in_proportion_and_nobody_gets_nothing() {
        assert_eq!(share(30, &[20, 10]), Some(vec![20, 10]));
        assert_eq!(share(15, &[20, 10]), Some(vec![10, 5]));
        assert_eq!(share(3, &[1000, 1, 1]), Some(vec![1, 1, 1]));
        assert_eq!(share(5, &[1, 1]), Some(vec![3, 2]));
        assert_eq!(share(2, &[9, 9, 9]), None);
        assert_eq!(share(4, &[]), Some(vec![]));
        assert_eq!(quoted("a\"\\\n"), r#""a\"\\\u000A""#);
        assert_eq!(percent_encoded("a_1@b/\u{e9}"), "a_1%40b%2F%C3%A9");
    }

    proptest! {
        #[test]
        fn shares_add_up(total in 1_u32..5000, weights in prop::collection::vec(0_u32..100_000, 1..6)) {
            match share(total, &weights) {
                Some(shares) => {
                    prop_assert_eq!(shares.iter().sum::<u32>(), total);
                    prop_assert!(shares.iter().all(|share| *share > 0));
                }
                None => prop_assert!((total as usize) < weights.len()),
            }
        }
    }
}
