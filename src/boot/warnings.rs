//! When the owner is warned. What there is to say, and how: `warning.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::{LIFETIME_JITTER_PERCENT, PartitionSettings, Settings};
use crate::fleet::{FleetReport, Warning};
use crate::plan::formulas::erlang_b;
use crate::warning::BootWarning;

/// A partition with fewer slots is small: at half load, every fifth of its calls finds both of two taken.
const USEFUL_SIZE: u32 = 3;

/// So many small partitions waste more than they protect.
const MANY: usize = 3;

/// What was seen of a pool that is about to start.
pub(super) struct Seen<'a> {
    pub(super) settings: &'a Settings,
    /// Unless the fleet check is off.
    pub(super) report: Option<&'a FleetReport>,
    /// The hosts of each partition.
    pub(super) hosts: Vec<&'a str>,
    /// The server's idle timeout for each partition.
    pub(super) idle_session_timeouts: &'a [Option<Duration>],
}

/// All that is to be told, but for what was silenced.
pub(super) fn warnings(seen: &Seen<'_>) -> Vec<BootWarning> {
    let partitions = &seen.settings.partitions;
    let timeouts = seen.idle_session_timeouts;
    let idle = partitions.iter().zip(timeouts);
    let mut all = Vec::new();
    all.extend(shared_server(seen));
    all.extend(over_isolation(partitions));
    all.extend(partitions.iter().filter_map(acquire_timeout));
    all.extend(idle.filter_map(|(partition, server)| idle_timeout(partition, (*server)?)));
    all.extend(partitions.iter().filter_map(max_lifetime));
    all.retain(|warning| !seen.settings.boot.silence.contains(&warning.code()));
    all
}

fn shared_server(seen: &Seen<'_>) -> Option<BootWarning> {
    let servers = match seen.report {
        Some(report) => report.warnings().iter().find_map(|warning| match warning {
            Warning::SharedServer { servers } => Some(servers.clone()),
            _ => None,
        })?,
        None => hosts_of_several(&seen.hosts),
    };
    (!servers.is_empty()).then_some(BootWarning::SharedServer { servers })
}

fn hosts_of_several(hosts: &[&str]) -> Vec<String> {
    let mut partitions = BTreeMap::new();
    for hosts in hosts {
        *partitions.entry(hosts).or_insert(0) += 1;
    }
    let several = partitions.into_iter().filter(|(_, count)| *count > 1);
    several.map(|(hosts, _)| (*hosts).to_owned()).collect()
}

fn over_isolation(partitions: &[PartitionSettings]) -> Option<BootWarning> {
    let size = |partition: &PartitionSettings| partition.max_connections.get();
    let is_small = |p: &&PartitionSettings| size(p) < USEFUL_SIZE && p.reserved == size(p);
    let small: Vec<_> = partitions.iter().filter(is_small).collect();
    if small.len() < MANY {
        return None;
    }
    let slots = small.iter().map(|partition| size(partition)).sum();
    let load = |slots: u32| f64::from(slots) / 2.0;
    let lost = |slots: u32| erlang_b(slots, load(slots)) * load(slots);
    let apart = small
        .iter()
        .map(|partition| lost(size(partition)))
        .sum::<f64>();
    Some(BootWarning::OverIsolation {
        partitions: small
            .iter()
            .map(|partition| partition.name.clone())
            .collect(),
        slots,
        apart: apart / load(slots),
        together: lost(slots) / load(slots),
    })
}

fn acquire_timeout(partition: &PartitionSettings) -> Option<BootWarning> {
    let caller_deadline = partition.caller_deadline?;
    let acquire_timeout = partition.acquire_timeout;
    (acquire_timeout >= caller_deadline).then(|| BootWarning::AcquireTimeout {
        partition: partition.name.clone(),
        acquire_timeout,
        caller_deadline,
    })
}

fn idle_timeout(partition: &PartitionSettings, server: Duration) -> Option<BootWarning> {
    let idle_timeout = partition.idle_timeout;
    idle_timeout
        .is_none_or(|limit| limit >= server)
        .then(|| BootWarning::IdleTimeout {
            partition: partition.name.clone(),
            idle_timeout,
            idle_session_timeout: server,
        })
}

fn max_lifetime(partition: &PartitionSettings) -> Option<BootWarning> {
    let stated = partition.max_lifetime?;
    let max_lifetime = stated / 100 * (100 - LIFETIME_JITTER_PERCENT);
    let statement_timeout = partition.statement_timeout;
    statement_timeout
        .is_none_or(|limit| limit > max_lifetime)
        .then(|| BootWarning::MaxLifetime {
            partition: partition.name.clone(),
            max_lifetime,
            statement_timeout,
        })
}

#[cfg(test)]
mod tests {
    use crate::config::{
        BootConfig, FleetConfig, Kind, Limit, PartitionConfig, PoolConfig, WarningCode,
    };

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn config(transactional: PartitionConfig) -> PoolConfig {
        PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(1, 0))
            .transactional(transactional)
            .analytical(PartitionConfig::analytical(10).url("postgres://shop@standby/shop"))
    }

    /// What is told of these partitions, on two servers, where idle sessions end after so long.
    fn told(config: &PoolConfig, idle: Option<Duration>) -> Vec<BootWarning> {
        let settings = config.resolve().unwrap();
        let hosts = settings.partitions.iter();
        warnings(&Seen {
            hosts: hosts.map(|partition| partition.name.as_str()).collect(),
            idle_session_timeouts: &vec![idle; settings.partitions.len()],
            settings: &settings,
            report: None,
        })
    }

    fn codes(config: &PoolConfig, idle: Option<Duration>) -> Vec<&'static str> {
        let told = told(config, idle).into_iter();
        told.map(|warning| warning.code().as_str()).collect()
    }

    fn twenty() -> PartitionConfig {
        PartitionConfig::transactional(20)
    }

    #[test]
    fn an_ordinary_pool_on_two_servers_is_told_nothing() {
        assert_eq!(codes(&config(twenty()), None), [""; 0]);
    }

    #[test]
    fn two_partitions_on_the_same_hosts_share_a_server() {
        assert_eq!(hosts_of_several(&["a", "b", "a", "b", "c"]), ["a", "b"]);
        assert!(hosts_of_several(&["a", "b"]).is_empty());
    }

    #[test]
    fn three_small_partitions_are_too_many_and_the_figures_say_why() {
        let small = |name: &str, size| PartitionConfig::named(name, Kind::Transactional, size);
        let two = config(twenty())
            .partition(small("a", 1))
            .partition(small("b", 2));
        assert_eq!(codes(&two, None), [""; 0]);
        let told = told(&two.partition(small("c", 1)), None);
        let [
            BootWarning::OverIsolation {
                partitions,
                slots,
                apart,
                together,
            },
        ] = &told[..]
        else {
            panic!("{told:?}");
        };
        assert_eq!((partitions.join(" "), *slots), ("a b c".to_owned(), 4));
        // B(1, 0.5) = 1/3 and B(2, 1) = 1/5 of half of the calls each; B(4, 2) = 2/21.
        assert!((apart - (1.0 / 3.0 + 1.0 / 5.0) / 2.0).abs() < 1e-9);
        assert!((together - 2.0 / 21.0).abs() < 1e-9);
        assert!(
            told[0]
                .to_string()
                .contains("27 of 100 calls find none free, and 10 with"),
            "{}",
            told[0]
        );
    }

    #[test]
    fn an_acquire_timeout_that_leaves_nothing_of_the_callers_deadline_is_told() {
        let stated = |deadline| config(twenty().acquire_timeout(SECOND).caller_deadline(deadline));
        assert_eq!(codes(&stated(2 * SECOND), None), [""; 0]);
        assert_eq!(codes(&stated(SECOND), None), ["acquire_timeout"]);
    }

    #[test]
    fn a_server_that_ends_idle_sessions_first_is_told_of() {
        let with = |limit: Limit| config(twenty().idle_timeout(limit));
        let minute = Limit::After(60 * SECOND);
        let told = told(&with(Limit::Off), Some(300 * SECOND));
        assert!(
            told[0]
                .to_string()
                .starts_with("transactional: idle_timeout off"),
            "{}",
            told[0]
        );
        assert_eq!(codes(&with(minute), Some(300 * SECOND)), [""; 0]);
        assert_eq!(codes(&with(minute), Some(60 * SECOND)), ["idle_timeout"; 2]);
    }

    #[test]
    fn a_lifetime_below_the_longest_statement_is_told() {
        let with =
            |limit: Limit| config(twenty().max_lifetime(300 * SECOND).statement_timeout(limit));
        assert_eq!(codes(&with(Limit::After(270 * SECOND)), None), [""; 0]);
        assert_eq!(
            codes(&with(Limit::After(271 * SECOND)), None),
            ["max_lifetime"]
        );
        assert_eq!(codes(&with(Limit::Off), None), ["max_lifetime"]);
    }

    #[test]
    fn what_was_silenced_is_not_told_and_the_rest_is() {
        let deadline = twenty().acquire_timeout(SECOND).caller_deadline(SECOND);
        let all = config(deadline.statement_timeout(Limit::Off));
        assert_eq!(codes(&all, None), ["acquire_timeout", "max_lifetime"]);
        let silent = BootConfig::new().silence([WarningCode::AcquireTimeout]);
        assert_eq!(codes(&all.boot(silent), None), ["max_lifetime"]);
    }
}
