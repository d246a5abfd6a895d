//! The description in TOML: what may stand in it. Every value is checked as it is read, and a message names its line.

use std::fmt;
use std::time::Duration;

use partitioned_pool::config::{HandOver, Kind};
use partitioned_pool::plan::formulas::Rate;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use toml::Spanned;

/// A description of flows and of what they share.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) seed: Option<u64>,
    pub(super) length: Option<Time>,
    pub(super) step: Option<Time>,
    pub(super) incident: Option<Spanned<[Time; 2]>>,
    pub(super) layout: Option<Spanned<LayoutName>>,
    pub(super) service: Option<String>,
    pub(super) role: Option<String>,
    pub(super) database: Option<String>,
    pub(super) fleet: Option<FleetTable>,
    pub(super) server: Option<ServerTable>,
    #[serde(default, rename = "budget")]
    pub(super) budgets: Vec<Spanned<BudgetTable>>,
    #[serde(default, rename = "partition")]
    pub(super) partitions: Vec<Spanned<PartitionTable>>,
    #[serde(default, rename = "flow")]
    pub(super) flows: Vec<Spanned<FlowTable>>,
    #[serde(default, rename = "also")]
    pub(super) others: Vec<Spanned<OtherTable>>,
}

/// How the slots are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LayoutName {
    /// As the partitions of the file say.
    Stated,
    /// One pool for all.
    Shared,
    /// In proportion to the peaks.
    Fixed,
    /// The peaks of what is transactional are reserved, the rest is lent.
    Borrowing,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FleetTable {
    pub(super) max_replicas: Count,
    pub(super) surge: u16,
    #[serde(default)]
    pub(super) reserve: Size,
    #[serde(default)]
    pub(super) external: Vec<ExternalTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExternalTable {
    pub(super) name: Name,
    pub(super) size: Count,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerTable {
    pub(super) max_connections: Count,
    pub(super) superuser_reserved_connections: Option<Size>,
    #[serde(default)]
    pub(super) reserved_connections: Size,
    pub(super) role_limit: Option<Size>,
    pub(super) database_limit: Option<Size>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetTable {
    pub(super) name: Option<Name>,
    pub(super) capacity: Count,
    #[serde(default)]
    pub(super) hand_over: HandOver,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartitionTable {
    pub(super) name: Name,
    pub(super) kind: Option<Kind>,
    pub(super) budget: Option<Name>,
    pub(super) reserved: Option<Size>,
    pub(super) max_connections: Option<Count>,
    pub(super) max_waiters: Option<Size>,
    pub(super) acquire_timeout: Option<Time>,
    pub(super) statement_timeout: Option<Time>,
}

/// A further layout for a comparison.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OtherTable {
    pub(super) name: Name,
    pub(super) capacity: Option<Count>,
    #[serde(rename = "partition")]
    pub(super) partitions: Vec<Spanned<PartitionTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowTable {
    pub(super) name: Name,
    pub(super) partition: Option<Name>,
    pub(super) kind: Option<Kind>,
    pub(super) rate_per_replica: Option<PerSecond>,
    pub(super) rate_of_fleet: Option<PerSecond>,
    pub(super) arrivals: Option<Pattern>,
    pub(super) arrivals_csv: Option<String>,
    pub(super) hold: Option<Time>,
    pub(super) hold_p99: Option<Time>,
    pub(super) hold_shape: Option<Shape>,
    pub(super) hold_csv: Option<String>,
    pub(super) hold_in_incident: Option<Time>,
    pub(super) acquire_timeout: Option<Time>,
    pub(super) deadline: Option<Time>,
    #[serde(default)]
    pub(super) at_deadline: ThenWhat,
    pub(super) headroom_percent: Option<Percent>,
    pub(super) loss_percent: Option<LossPercent>,
}

/// When calls come.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Pattern {
    /// Independently of each other.
    Poisson,
    /// Evenly.
    Regular,
}

/// How holds are spread about their mean.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Shape {
    Fixed,
    Exponential,
    LogNormal,
}

/// What a caller does whose deadline comes while its call works.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ThenWhat {
    /// It leaves, and its slot is free: as the pool has it.
    #[default]
    Leave,
    /// It stays until the work is done.
    Stay,
    /// It leaves, and the work goes on without it.
    LeaveWorkBehind,
}

/// What is read from a value of TOML, with a word on what it must be.
trait Checked: Sized {
    const WHAT: &'static str;

    fn of_text(_: &str) -> Option<Self> {
        None
    }

    fn of_number(_: f64) -> Option<Self> {
        None
    }

    fn of_whole(n: i64) -> Option<Self> {
        // Beyond 2^53 no setting makes sense.
        i32::try_from(n)
            .ok()
            .and_then(|n| Self::of_number(n.into()))
    }
}

struct CheckedVisitor<T>(std::marker::PhantomData<T>);

impl<T: Checked> Visitor<'_> for CheckedVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WHAT)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::of_text(text).ok_or_else(|| wrong::<T, E>(format_args!("{text:?}")))
    }

    fn visit_f64<E: de::Error>(self, x: f64) -> Result<T, E> {
        T::of_number(x).ok_or_else(|| wrong::<T, E>(format_args!("{x:e}")))
    }

    fn visit_i64<E: de::Error>(self, n: i64) -> Result<T, E> {
        T::of_whole(n).ok_or_else(|| wrong::<T, E>(format_args!("{n}")))
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<T, E> {
        let whole = i64::try_from(n).ok().and_then(T::of_whole);
        whole.ok_or_else(|| wrong::<T, E>(format_args!("{n}")))
    }
}

fn wrong<T: Checked, E: de::Error>(found: fmt::Arguments<'_>) -> E {
    E::custom(format_args!("expected {}, found {found}", T::WHAT))
}

macro_rules! checked {
    ($($type:ident),*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(CheckedVisitor(std::marker::PhantomData))
            }
        }
    )*};
}

checked!(Time, PerSecond, Name, Count, Size, Percent, LossPercent);

/// A time, above zero and at most ten years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Time(pub(super) Duration);

/// Ten years.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

impl Checked for Time {
    const WHAT: &'static str = "a time with its unit, such as \"40ms\" or \"10min\"";

    fn of_text(text: &str) -> Option<Self> {
        let time = humantime::parse_duration(text).ok()?;
        (time <= LONGEST).then_some(Self(time))
    }
}

/// Calls per second.
#[derive(Clone, Copy)]
pub(super) struct PerSecond(pub(super) Rate);

impl Checked for PerSecond {
    const WHAT: &'static str = "calls per second, above 0 and at most 1e9";

    fn of_number(calls: f64) -> Option<Self> {
        let rate = Rate::per_second(calls)?;
        (rate.as_millionths() > 0).then_some(Self(rate))
    }
}

/// The name of a flow, a partition or a layout.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Name(pub(super) String);

impl Checked for Name {
    const WHAT: &'static str = "a name of a-z, 0-9, _ and -, with 1 to 32 characters";

    fn of_text(text: &str) -> Option<Self> {
        let allowed =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
        let fine = (1..=32).contains(&text.len()) && text.chars().all(allowed);
        fine.then(|| Self(text.to_owned()))
    }
}

/// A number of slots or replicas that is not 0.
#[derive(Clone, Copy)]
pub(super) struct Count(pub(super) u32);

/// The most connections that a Postgres can be told to accept.
const MOST: u32 = 262_143;

impl Checked for Count {
    const WHAT: &'static str = "a whole number from 1 to 262143";

    fn of_whole(n: i64) -> Option<Self> {
        let n = u32::try_from(n).ok()?;
        (1..=MOST).contains(&n).then_some(Self(n))
    }
}

/// A number of slots or waiters that may be 0.
#[derive(Clone, Copy, Default)]
pub(super) struct Size(pub(super) u32);

impl Checked for Size {
    const WHAT: &'static str = "a whole number from 0 to 1000000";

    fn of_whole(n: i64) -> Option<Self> {
        let n = u32::try_from(n).ok()?;
        (n <= 1_000_000).then_some(Self(n))
    }
}

/// A peak in percent of the mean.
#[derive(Clone, Copy)]
pub(super) struct Percent(pub(super) u32);

impl Checked for Percent {
    const WHAT: &'static str = "a whole number of percent from 100 to 10000";

    fn of_whole(n: i64) -> Option<Self> {
        let n = u32::try_from(n).ok()?;
        (100..=10_000).contains(&n).then_some(Self(n))
    }
}

/// A share of calls in percent.
#[derive(Clone, Copy)]
pub(super) struct LossPercent(pub(super) f64);

impl Checked for LossPercent {
    const WHAT: &'static str = "a number of percent above 0 and at most 100";

    fn of_number(percent: f64) -> Option<Self> {
        (percent > 0.0 && percent <= 100.0).then_some(Self(percent))
    }
}
