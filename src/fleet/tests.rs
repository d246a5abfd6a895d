//! The fleet check against cases worked by hand, and against its own proposals.

use proptest::prelude::*;

use crate::config::{HandOver, Kind};

use super::*;

fn limits(max_connections: u32) -> ServerLimits {
    ServerLimits::new(170_004, max_connections)
}

fn server(limits: ServerLimits, sizes: &[u32]) -> Server {
    let mut server = Server::new("db:5432/shop", Limits::Known(limits));
    let names = ["transactional", "analytical", "batch"];
    let named = names.into_iter().zip(sizes);
    let demands = named.map(|(name, size)| Demand::partition(name, *size, "app", "shop"));
    server.demands.extend(demands);
    server
}

fn fleet(max_replicas: u32, surge: u32, reserve: u32) -> Fleet {
    Fleet {
        reserve,
        ..Fleet::new(max_replicas, surge)
    }
}

fn role(name: &str, connection_limit: Option<u32>) -> Role {
    Role {
        connection_limit,
        ..Role::new(name)
    }
}

fn database(name: &str, connection_limit: Option<u32>) -> Database {
    Database {
        connection_limit,
        ..Database::new(name)
    }
}

fn superuser(name: &str, connection_limit: Option<u32>) -> Role {
    Role {
        superuser: true,
        ..role(name, connection_limit)
    }
}

/// As an owner would do who follows the proposal.
fn resized(fleet: &Fleet, servers: &[Server], sizes: &[PartitionSize]) -> (Fleet, Vec<Server>) {
    let (mut fleet, mut servers) = (fleet.clone(), servers.to_vec());
    let proposed = |name: &str| sizes.iter().find(|p| p.name == name);
    for budget in &mut fleet.budgets {
        budget.capacity = proposed(&budget.name).map_or(budget.capacity, |p| p.size);
    }
    for demand in servers.iter_mut().flat_map(|s| &mut s.demands) {
        if let Some(share) = &mut demand.share {
            let shares = proposed(&share.budget).map_or(&[][..], |p| &p.partitions);
            if let Some(own) = shares.iter().find(|p| p.name == demand.name) {
                (share.reserved, demand.size) = (own.reserved, own.max_connections);
            }
        } else if let Some(proposed) = proposed(&demand.name) {
            demand.size = proposed.size;
        }
    }
    (fleet, servers)
}

fn fits_resized(fleet: &Fleet, servers: &[Server], sizes: &[PartitionSize]) -> bool {
    let (fleet, servers) = resized(fleet, servers, sizes);
    assess(&fleet, &servers).fits()
}

/// Each partition draws from `main`: its name, reserved, max and role.
fn sharing(
    capacity: u32,
    limits: ServerLimits,
    partitions: &[(&str, u32, u32, &str)],
) -> (SharedBudget, Server) {
    let mut server = Server::new("db:5432/shop", Limits::Known(limits));
    for (name, reserved, max, role) in partitions {
        let demand = Demand::partition(*name, *max, *role, "shop");
        server.demands.push(demand.sharing("main", *reserved));
    }
    (SharedBudget::new("main", capacity), server)
}

fn with_budget(fleet: Fleet, budget: SharedBudget) -> Fleet {
    Fleet {
        budgets: vec![budget],
        ..fleet
    }
}

fn sizes(report: &FleetReport) -> Option<Vec<u32>> {
    let proposed = report.largest_partitions()?;
    Some(proposed.iter().map(|p| p.size).collect())
}

fn role_scope(name: &str) -> Scope {
    Scope::Role { name: name.into() }
}

fn database_scope(name: &str) -> Scope {
    Scope::Database { name: name.into() }
}

/// One server, the default 3 reserved slots, one role without a limit.
struct Case {
    fleet: (u32, u32, u32),
    sizes: &'static [u32],
    max_connections: u32,
    needed: u64,
    granted: u64,
    largest_fleet: u32,
    largest_partitions: Option<&'static [u32]>,
    fits_without_surge: bool,
}

const CASES: &[Case] = &[
    // Twenty times five is the hundred that the database has, but three are not for us.
    Case {
        fleet: (5, 0, 0),
        sizes: &[20],
        max_connections: 100,
        needed: 100,
        granted: 97,
        largest_fleet: 4,
        largest_partitions: Some(&[19]),
        fits_without_surge: false,
    },
    Case {
        fleet: (4, 1, 0),
        sizes: &[20],
        max_connections: 100,
        needed: 100,
        granted: 97,
        largest_fleet: 3,
        largest_partitions: Some(&[19]),
        fits_without_surge: true,
    },
    Case {
        fleet: (4, 0, 17),
        sizes: &[20],
        max_connections: 100,
        needed: 97,
        granted: 97,
        largest_fleet: 4,
        largest_partitions: None,
        fits_without_surge: true,
    },
    Case {
        fleet: (4, 0, 18),
        sizes: &[20],
        max_connections: 100,
        needed: 98,
        granted: 97,
        largest_fleet: 3,
        largest_partitions: Some(&[19]),
        fits_without_surge: false,
    },
    // The published figures.
    Case {
        fleet: (20, 0, 0),
        sizes: &[20, 10],
        max_connections: 100,
        needed: 600,
        granted: 97,
        largest_fleet: 3,
        largest_partitions: Some(&[3, 1]),
        fits_without_surge: false,
    },
    Case {
        fleet: (10, 0, 0),
        sizes: &[20, 10],
        max_connections: 303,
        needed: 300,
        granted: 300,
        largest_fleet: 10,
        largest_partitions: None,
        fits_without_surge: true,
    },
    Case {
        fleet: (12, 0, 0),
        sizes: &[20],
        max_connections: 243,
        needed: 240,
        granted: 240,
        largest_fleet: 12,
        largest_partitions: None,
        fits_without_surge: true,
    },
    // Nothing fits: more replicas than slots, and a surge that eats the last of them.
    Case {
        fleet: (98, 0, 0),
        sizes: &[1],
        max_connections: 100,
        needed: 98,
        granted: 97,
        largest_fleet: 97,
        largest_partitions: None,
        fits_without_surge: false,
    },
    Case {
        fleet: (1, 2, 0),
        sizes: &[40],
        max_connections: 100,
        needed: 120,
        granted: 97,
        largest_fleet: 0,
        largest_partitions: Some(&[32]),
        fits_without_surge: true,
    },
    Case {
        fleet: (1, 0, 98),
        sizes: &[1],
        max_connections: 100,
        needed: 99,
        granted: 97,
        largest_fleet: 0,
        largest_partitions: None,
        fits_without_surge: false,
    },
    // Largest remainder: 12.67 and 6.33 of 19; and nobody goes below 1.
    Case {
        fleet: (5, 0, 0),
        sizes: &[20, 10],
        max_connections: 100,
        needed: 150,
        granted: 97,
        largest_fleet: 3,
        largest_partitions: Some(&[13, 6]),
        fits_without_surge: false,
    },
    Case {
        fleet: (1, 0, 0),
        sizes: &[1, 1, 1000],
        max_connections: 13,
        needed: 1002,
        granted: 10,
        largest_fleet: 0,
        largest_partitions: Some(&[1, 1, 8]),
        fits_without_surge: false,
    },
];

#[test]
fn cases_worked_by_hand_come_out_as_worked() {
    for (index, case) in CASES.iter().enumerate() {
        let (replicas, surge, reserve) = case.fleet;
        let servers = [server(limits(case.max_connections), case.sizes)];
        let report = assess(&fleet(replicas, surge, reserve), &servers);
        let context = format!("case {index}:\n{report}");
        assert_eq!(report.needed(), Some(case.needed), "{context}");
        assert_eq!(report.granted(), Some(case.granted), "{context}");
        assert_eq!(report.fits(), case.needed <= case.granted, "{context}");
        assert_eq!(
            report.largest_fleet(),
            Some(case.largest_fleet),
            "{context}"
        );
        assert_eq!(
            sizes(&report).as_deref(),
            case.largest_partitions,
            "{context}"
        );
        assert_eq!(
            report.fits_without_surge(),
            case.fits_without_surge,
            "{context}"
        );
    }
}

#[test]
fn a_fleet_that_fits_only_without_the_surge_is_refused_and_told_so() {
    let report = assess(&fleet(4, 1, 0), &[server(limits(100), &[20])]);
    assert!(!report.fits());
    let text = unwrapped(&report);
    assert!(
        text.contains("It fits only without the surge: 4 replicas alone would"),
        "{text}"
    );
    let without = assess(&fleet(4, 0, 0), &[server(limits(100), &[20])]);
    assert!(without.fits());
    assert!(!without.to_string().contains("only without"));
}

#[test]
fn the_limit_of_the_role_binds_when_it_is_the_smaller() {
    let mut known = limits(100);
    known.roles.push(role("app", Some(50)));
    let report = assess(&fleet(3, 0, 30), &[server(known, &[20])]);
    let binding = report.binding().unwrap();
    assert_eq!(binding.scope, role_scope("app"));
    assert_eq!(
        (binding.needed, binding.granted, binding.headroom),
        (60, 50, -10)
    );
    assert_eq!(report.servers()[0].constraints[0].headroom, 7);
    assert_eq!(
        (report.largest_fleet(), sizes(&report)),
        (Some(2), Some(vec![16]))
    );
}

#[test]
fn the_limit_of_the_database_binds_when_it_is_the_smaller() {
    let mut known = limits(100);
    known.roles.push(role("app", Some(50)));
    known.databases.push(database("shop", Some(40)));
    let report = assess(&fleet(3, 0, 0), &[server(known, &[20])]);
    let binding = report.binding().unwrap();
    assert_eq!(binding.scope, database_scope("shop"));
    assert_eq!((binding.needed, binding.granted), (60, 40));
    assert_eq!(report.servers()[0].constraints.len(), 3);
}

#[test]
fn a_limit_of_zero_is_a_limit() {
    let mut known = limits(100);
    known.roles.push(role("app", Some(0)));
    let report = assess(&fleet(1, 0, 0), &[server(known, &[1])]);
    assert_eq!(report.binding().map(|c| c.granted), Some(0));
    assert_eq!((report.largest_fleet(), sizes(&report)), (Some(0), None));
}

#[test]
fn each_role_is_held_to_its_own_limit() {
    let mut known = limits(100);
    known.roles = vec![role("app", Some(40)), role("reports", Some(30))];
    let mut server = server(known, &[20]);
    server
        .demands
        .push(Demand::partition("analytical", 10, "reports", "shop"));
    let report = assess(&fleet(3, 0, 0), &[server]);
    let headrooms = report.servers()[0].constraints.iter().map(|c| c.headroom);
    assert_eq!(headrooms.collect::<Vec<_>>(), [7, -20, 0]);
    // Only the role that is over its limit has to shrink.
    assert_eq!(sizes(&report), Some(vec![13, 10]));
}

#[test]
fn no_limit_and_no_reserved_slot_binds_a_superuser() {
    let mut known = limits(100);
    known.roles.push(superuser("app", Some(1)));
    known.databases.push(database("shop", Some(1)));
    let report = assess(&fleet(5, 0, 0), &[server(known, &[20])]);
    assert!(report.fits());
    assert_eq!(
        (report.granted(), report.servers()[0].constraints.len()),
        (Some(100), 1)
    );
    let advised = |w: &Warning| matches!(w, Warning::SuperuserRole { role, .. } if role == "app");
    assert!(report.warnings().iter().any(advised));
}

#[test]
fn superusers_use_up_the_limit_of_a_database_for_the_others() {
    let mut known = limits(100);
    known.roles.push(superuser("root", None));
    known.databases.push(database("shop", Some(25)));
    let mut server = server(known, &[20]);
    server.demands.push(Demand::control(10, "root", "shop"));
    let report = assess(&fleet(1, 0, 0), &[server]);
    let binding = report.binding().unwrap();
    assert_eq!(binding.scope, database_scope("shop"));
    assert_eq!((binding.needed, binding.granted), (30, 25));
}

#[test]
fn reserved_connections_count_from_16_on_and_not_for_those_who_may_use_them() {
    let granted = |version_num, may_use_reserved| {
        let mut known = ServerLimits::new(version_num, 100);
        known.reserved_connections = 5;
        known.roles.push(Role {
            may_use_reserved,
            ..Role::new("app")
        });
        assess(&fleet(1, 0, 0), &[server(known, &[1])]).granted()
    };
    assert_eq!(granted(150_010, false), Some(97));
    assert_eq!(granted(159_999, false), Some(97));
    assert_eq!(granted(160_000, false), Some(92));
    assert_eq!(granted(170_004, false), Some(92));
    assert_eq!(granted(170_004, true), Some(97));
}

#[test]
fn the_total_is_held_against_the_smallest_grant_of_the_roles_used() {
    let mut known = limits(100);
    known.reserved_connections = 5;
    let privileged = Role {
        may_use_reserved: true,
        ..Role::new("ops")
    };
    known.roles = vec![
        superuser("root", None),
        privileged,
        Role::new("app"),
        Role::new("idle"),
    ];
    let mut server = server(known, &[]);
    server
        .demands
        .push(Demand::partition("a", 10, "root", "shop"));
    server
        .demands
        .push(Demand::partition("b", 10, "ops", "shop"));
    let without_app = assess(&fleet(1, 0, 0), std::slice::from_ref(&server));
    assert_eq!(without_app.granted(), Some(97));
    server
        .demands
        .push(Demand::partition("c", 10, "app", "shop"));
    let with_app = assess(&fleet(1, 0, 0), &[server]);
    assert_eq!(with_app.granted(), Some(92));
    let grants = with_app.servers()[0].grants.iter().map(|g| g.granted);
    assert_eq!(grants.collect::<Vec<_>>(), [100, 97, 92]);
    let text = unwrapped(&with_app);
    assert!(
        text.contains("granted by role: 100 to root, 97 to ops, 92 to app"),
        "{text}"
    );
}

#[test]
fn a_standby_is_held_to_its_own_limits_and_named_as_one() {
    let primary = server(limits(100), &[20]);
    let mut known = limits(50);
    known.in_recovery = true;
    let mut standby = Server::new("standby:5432/shop", Limits::Known(known));
    standby
        .demands
        .push(Demand::partition("analytical", 10, "app", "shop"));
    let report = assess(&fleet(5, 0, 0), &[primary, standby]);
    assert_eq!(report.binding().map(|c| &*c.server), Some("db:5432/shop"));
    let standby = &report.servers()[1].constraints[0];
    assert_eq!(
        (standby.needed, standby.granted, standby.headroom),
        (50, 47, -3)
    );
    assert!(
        report
            .to_string()
            .contains("standby:5432/shop: Postgres 17.4, a standby")
    );
    assert_eq!(
        (report.largest_fleet(), sizes(&report)),
        (Some(4), Some(vec![19, 9]))
    );
}

#[test]
fn a_partition_that_can_fail_over_gets_one_size_for_both_servers() {
    let first = server(limits(103), &[20]);
    let second = Server {
        label: "other:5432/shop".into(),
        ..server(limits(53), &[20, 20])
    };
    let servers = [first, second];
    let report = assess(&fleet(5, 0, 0), &servers);
    assert_eq!(sizes(&report), Some(vec![5, 5]));
    let proposed = report.largest_partitions().unwrap();
    assert!(fits_resized(&fleet(5, 0, 0), &servers, proposed));
}

#[test]
fn a_partition_that_was_counted_on_two_servers_is_told() {
    let other = Server {
        label: "other:5432/shop".into(),
        ..server(limits(100), &[20])
    };
    let report = assess(&fleet(1, 0, 1), &[server(limits(100), &[20]), other]);
    let servers = vec!["db:5432/shop".into(), "other:5432/shop".into()];
    let partition = "transactional".into();
    assert_eq!(
        report.warnings(),
        [Warning::CountedOnEach { partition, servers }]
    );
}

#[test]
fn a_database_that_is_invalid_and_that_nobody_uses_is_nobodys_concern() {
    let mut known = limits(100);
    known.databases.push(Database {
        valid: false,
        ..Database::new("left_over")
    });
    let report = assess(&fleet(1, 0, 1), &[server(known, &[1])]);
    assert_eq!(report.warnings(), []);
}

#[test]
fn others_are_told_under_each_limit_that_counts_them() {
    let mut known = limits(100);
    known.roles.push(role("app", Some(50)));
    known.databases.push(database("shop", Some(60)));
    known.others = vec![
        OpenSessions::new("app", "shop", 1),
        OpenSessions::new("postgres", "shop", 2),
        OpenSessions::new("postgres", "postgres", 4),
    ];
    let report = assess(&fleet(1, 0, 10), &[server(known, &[20])]);
    let others = report.servers()[0].constraints.iter().map(|c| c.others);
    assert_eq!(others.collect::<Vec<_>>(), [7, 1, 3]);
}

#[test]
fn a_partition_of_two_sizes_is_proposed_one_up_to_the_larger() {
    let second = server(limits(203), &[10]);
    let report = assess(&fleet(6, 0, 0), &[server(limits(103), &[20]), second]);
    assert_eq!(sizes(&report), Some(vec![16]));
}

#[test]
fn partitions_under_a_tight_limit_keep_their_proportion_when_another_limit_is_met() {
    let mut known = limits(33);
    known.roles.push(role("app", Some(10)));
    let mut server = server(known, &[40, 20]);
    server
        .demands
        .push(Demand::partition("reports", 40, "reports", "shop"));
    let report = assess(&fleet(1, 0, 0), &[server]);
    assert_eq!(sizes(&report), Some(vec![7, 3, 20]));
}

#[test]
fn an_external_pool_counts_on_every_server_and_keeps_its_size() {
    let mut fleet = fleet(5, 0, 0);
    fleet.external.push(ExternalDemand::new("jobs", 4));
    let report = assess(&fleet, &[server(limits(100), &[20])]);
    assert_eq!(report.needed(), Some(120));
    assert_eq!(sizes(&report), Some(vec![15]));
}

#[test]
fn an_external_pool_without_a_role_counts_toward_the_only_one() {
    let mut known = limits(100);
    known.roles.push(role("app", Some(20)));
    known.databases.push(database("shop", Some(60)));
    let mut fleet = fleet(1, 0, 0);
    fleet.external.push(ExternalDemand::new("jobs", 4));
    let report = assess(&fleet, &[server(known, &[20])]);
    let needed = report.servers()[0].constraints.iter().map(|c| c.needed);
    assert_eq!(needed.collect::<Vec<_>>(), [24, 24, 24]);
    let text = unwrapped(&report);
    assert!(
        text.contains("It was counted toward role app, the only one used."),
        "{text}"
    );
    assert!(
        text.contains("It was counted toward database shop, the only one used."),
        "{text}"
    );
}

#[test]
fn an_external_pool_without_a_role_counts_toward_none_of_several() {
    let mut known = limits(100);
    known.roles.push(role("app", Some(20)));
    let mut server = server(known, &[20]);
    server
        .demands
        .push(Demand::partition("analytical", 10, "reports", "shop"));
    let mut fleet = fleet(1, 0, 0);
    fleet.external.push(ExternalDemand::new("jobs", 4));
    let report = assess(&fleet, &[server]);
    let needed = report.servers()[0].constraints.iter().map(|c| c.needed);
    assert_eq!(needed.collect::<Vec<_>>(), [34, 20]);
    let undecided = Warning::ExternalWithoutRole {
        server: "db:5432/shop".into(),
        pool: "jobs".into(),
        counted_toward: None,
    };
    assert!(report.warnings().contains(&undecided));
}

#[test]
fn an_external_pool_of_unknown_role_is_granted_no_more_than_an_ordinary_one() {
    let mut known = limits(100);
    known.roles = vec![superuser("root", None), superuser("admin", None)];
    let mut server = server(known, &[]);
    server
        .demands
        .push(Demand::partition("a", 10, "root", "shop"));
    server
        .demands
        .push(Demand::partition("b", 10, "admin", "shop"));
    let mut fleet = fleet(1, 0, 0);
    assert_eq!(
        assess(&fleet, std::slice::from_ref(&server)).granted(),
        Some(100)
    );
    fleet.external.push(ExternalDemand::new("jobs", 4));
    assert_eq!(assess(&fleet, &[server]).granted(), Some(97));
}

#[test]
fn a_version_that_nobody_has_stated_is_not_claimed() {
    let state = |limits: ServerLimits| {
        let report = assess(&fleet(1, 0, 1), &[server(limits, &[1])]);
        let text = report.to_string();
        text.lines()
            .find_map(|l| Some(l.strip_prefix("db:5432/shop: ")?.to_owned()))
    };
    let stated = ServerLimits::stated(100);
    assert_eq!(
        state(stated.clone()).unwrap(),
        "its limits as they were stated"
    );
    assert_eq!(
        state(ServerLimits::new(170_000, 100)).unwrap(),
        "Postgres 17"
    );
    assert_eq!(
        state(ServerLimits::new(150_018, 100)).unwrap(),
        "Postgres 15.18"
    );
    // What is stated counts; only of a version that does not know it, it does not.
    let keeping_some = |limits: ServerLimits| {
        let limits = ServerLimits {
            reserved_connections: 4,
            ..limits
        };
        assess(&fleet(1, 0, 1), &[server(limits, &[1])]).granted()
    };
    assert_eq!(keeping_some(stated), Some(93));
    assert_eq!(keeping_some(ServerLimits::new(150_000, 100)), Some(97));
}

#[test]
fn an_external_pool_with_its_own_role_is_held_to_that_roles_limit() {
    let mut known = limits(100);
    known.roles = vec![role("app", None), role("worker", Some(3))];
    let mut fleet = fleet(1, 0, 0);
    fleet.external.push(ExternalDemand {
        role: Some("worker".into()),
        ..ExternalDemand::new("jobs", 4)
    });
    let report = assess(&fleet, &[server(known, &[20])]);
    assert_eq!(
        report.binding().map(|c| &c.scope),
        Some(&role_scope("worker"))
    );
    assert_eq!((report.needed(), report.granted()), (Some(4), Some(3)));
    // Shrinking the partitions would not help.
    assert_eq!(sizes(&report), None);
}

const SAID: &str = "FATAL: sorry, too many clients already";

fn full() -> Limits {
    Limits::Full {
        said: SAID.to_owned(),
    }
}

#[test]
fn a_server_that_is_full_is_itself_the_finding() {
    let mut full = Server::new("db:5432/shop", full());
    full.demands
        .push(Demand::partition("transactional", 20, "app", "shop"));
    let report = assess(&fleet(2, 0, 5), &[full]);
    assert!(!report.fits());
    assert_eq!(
        (report.binding(), report.needed(), report.granted()),
        (None, None, None)
    );
    assert_eq!(
        (report.largest_fleet(), report.largest_partitions()),
        (None, None)
    );
    let (said, needed) = (SAID.to_owned(), 45);
    assert_eq!(
        report.servers()[0].state,
        ServerState::Full { said, needed }
    );
    let text = unwrapped(&report);
    for part in [
        "db:5432/shop has no connection left for this check (53300: of the",
        &format!("It said: {SAID}. As a superuser"),
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn next_to_a_server_that_is_full_nothing_is_proposed() {
    let full = Server::new("full:5432/shop", full());
    let report = assess(&fleet(5, 0, 0), &[server(limits(100), &[20]), full.clone()]);
    assert_eq!((report.needed(), report.granted()), (Some(100), Some(97)));
    assert_eq!(
        (report.largest_fleet(), report.largest_partitions()),
        (None, None)
    );
    assert!(!report.fits_without_surge());
    let fitting = assess(&fleet(1, 0, 0), &[server(limits(100), &[20]), full]);
    assert!(!fitting.fits());
    assert!(
        fitting
            .to_string()
            .starts_with("fleet check: could not be done, a server is full\n")
    );
}

#[test]
fn others_beyond_the_reserve_are_a_warning_with_the_figures() {
    let mut known = limits(100);
    known.others = vec![
        OpenSessions::new("app", "shop", 9),
        OpenSessions::new("postgres", "postgres", 9),
    ];
    let report = |reserve| assess(&fleet(4, 0, reserve), &[server(known.clone(), &[20])]);
    assert!(report(17).fits());
    let expected = Warning::OthersBeyondReserve {
        server: "db:5432/shop".into(),
        open: 18,
        reserve: 17,
        needed_with_them: 98,
        granted: 97,
    };
    assert!(report(17).warnings().contains(&expected));
    assert!(report(18).warnings().is_empty());
}

#[test]
fn others_under_a_limit_are_a_warning_since_no_reserve_covers_them() {
    let mut known = limits(100);
    known.roles.push(role("app", Some(25)));
    known.databases.push(database("shop", Some(60)));
    known.others.push(OpenSessions::new("app", "shop", 6));
    let report = assess(&fleet(1, 0, 10), &[server(known, &[20])]);
    let expected = Warning::OthersUnderLimit {
        server: "db:5432/shop".into(),
        scope: role_scope("app"),
        open: 6,
        needed_with_them: 26,
        granted: 25,
    };
    assert_eq!(report.warnings(), [expected]);
}

#[test]
fn what_a_partition_does_not_isolate_is_said_once_for_all_servers() {
    let other = Server {
        label: "other:5432/shop".into(),
        ..server(limits(100), &[1, 1])
    };
    let report = assess(&fleet(1, 0, 1), &[server(limits(100), &[1, 1]), other]);
    let servers = vec!["db:5432/shop".into(), "other:5432/shop".into()];
    let shared = report.warnings().iter();
    let shared = shared.filter(|w| matches!(w, Warning::SharedServer { .. }));
    assert_eq!(
        shared.collect::<Vec<_>>(),
        [&Warning::SharedServer { servers }]
    );
    let alone = assess(&fleet(1, 0, 1), &[server(limits(100), &[1])]);
    assert_eq!(alone.warnings(), []);
}

#[test]
fn a_reserve_of_zero_and_an_invalid_database_are_warnings() {
    let mut known = limits(100);
    known.databases.push(Database {
        valid: false,
        ..Database::new("shop")
    });
    let report = assess(&fleet(1, 0, 0), &[server(known, &[1])]);
    let invalid = Warning::InvalidDatabase {
        server: "db:5432/shop".into(),
        database: "shop".into(),
    };
    assert_eq!(report.warnings(), [invalid, Warning::NoReserve]);
}

#[test]
fn the_largest_figures_saturate_and_never_fit() {
    let mut known = limits(u32::MAX);
    known.roles.push(role("app", Some(u32::MAX)));
    known
        .others
        .push(OpenSessions::new("app", "shop", u32::MAX));
    let mut fleet = fleet(u32::MAX, u32::MAX, u32::MAX);
    fleet.external.push(ExternalDemand::new("jobs", u32::MAX));
    let servers = [server(known, &[u32::MAX, u32::MAX, u32::MAX])];
    let report = assess(&fleet, &servers);
    assert!(!report.fits());
    assert_eq!(report.needed(), Some(u64::MAX));
    assert_eq!(report.binding().map(|c| c.headroom), Some(i64::MIN));
    assert_eq!((report.largest_fleet(), sizes(&report)), (Some(0), None));
    assert!(widest_line(&report) <= 100, "{report}");
}

/// `size` of high and of low criticality, each with a budget of its own.
fn two_kinds(limits: ServerLimits, high: u32, low: u32) -> Server {
    let mut server = server(limits, &[high, low]);
    server.demands[1].criticality = Criticality::Low;
    server
}

#[test]
fn reports_give_way_before_checkout_loses_any() {
    let proposed = |granted: u32, high, low| {
        let servers = [two_kinds(limits(3 + granted), high, low)];
        sizes(&assess(&fleet(1, 0, 0), &servers)).unwrap()
    };
    assert_eq!(proposed(29, 20, 10), [20, 9]);
    assert_eq!(proposed(21, 20, 10), [20, 1]);
    assert_eq!(proposed(20, 20, 10), [19, 1]);
    assert_eq!(proposed(2, 20, 10), [1, 1]);
}

#[test]
fn what_the_critical_cannot_use_is_left_to_the_others() {
    let mut known = limits(103);
    known.roles.push(role("app", Some(5)));
    let mut server = server(known, &[20]);
    let reports = Demand::partition("analytical", 200, "reports", "shop");
    server.demands.push(reports.criticality(Kind::Analytical));
    let report = assess(&fleet(1, 0, 0), &[server]);
    assert_eq!(sizes(&report), Some(vec![5, 95]));
}

#[test]
fn a_budget_gives_the_critical_what_they_had_at_worst_before_a_report_beside_it_has_two() {
    let both = [
        ("transactional", 12, 25, "app"),
        ("analytical", 3, 10, "app"),
    ];
    let (budget, mut server) = sharing(30, limits(28), &both);
    server.demands[1].criticality = Criticality::Low;
    let batch = Demand::partition("batch", 10, "app", "shop");
    server.demands.push(batch.criticality(Kind::Analytical));
    let report = assess(&with_budget(fleet(1, 0, 0), budget), &[server]);
    let [main, batch] = report.largest_partitions().unwrap() else {
        panic!("{report}")
    };
    // At worst checkout had 30 - 10, and now it has 23 - 3.
    assert_eq!((main.size, batch.size), (23, 2));
    let shares = main.partitions.iter();
    let shares = shares.map(|p| (p.name.as_str(), p.reserved, p.max_connections));
    let expected = [("transactional", 12, 23), ("analytical", 3, 3)];
    assert_eq!(shares.collect::<Vec<_>>(), expected);
}

#[test]
fn in_a_budget_with_an_order_the_last_gives_way_first_whatever_its_kind() {
    let both = [
        ("month_end", 10, 15, "app"),
        ("transactional", 10, 15, "app"),
    ];
    let (mut budget, mut server) = sharing(30, limits(23), &both);
    server.demands[0].criticality = Criticality::Low;
    let proposed = |budget: &SharedBudget| {
        let fleet = with_budget(fleet(1, 0, 0), budget.clone());
        let report = assess(&fleet, std::slice::from_ref(&server));
        let main = report.largest_partitions().unwrap()[0].clone();
        let shares = main.partitions.iter();
        let shares: Vec<_> = shares.map(|p| (p.reserved, p.max_connections)).collect();
        shares
    };
    assert_eq!(proposed(&budget), [(5, 5), (10, 15)]);
    budget.hand_over = HandOver::DeclaredOrder;
    assert_eq!(proposed(&budget), [(10, 15), (5, 5)]);
}

#[test]
fn no_budget_is_proposed_that_its_partitions_cannot_use() {
    let both = [("a", 0, 10, "app"), ("b", 0, 10, "app")];
    for granted in 2..20 {
        let (budget, server) = sharing(40, limits(3 + granted), &both);
        let report = assess(&with_budget(fleet(1, 0, 0), budget), &[server]);
        let main = &report.largest_partitions().unwrap()[0];
        let together: u32 = main.partitions.iter().map(|p| p.max_connections).sum();
        assert!(main.size <= together, "{main:?}");
    }
}

#[test]
fn the_smallest_max_connections_is_that_of_the_binding_server() {
    let mut known = limits(100);
    known.reserved_connections = 4;
    let first = server(known, &[20]);
    let other = Server {
        label: "other:5432/shop".into(),
        ..server(limits(50), &[20])
    };
    let report = assess(&fleet(5, 0, 7), &[first, other]);
    assert_eq!(report.smallest_max_connections(), Some(110));
    let limits = report.smallest_limits().iter();
    let limits = limits.map(|l| (&*l.server, l.from, l.to));
    let expected = [
        ("db:5432/shop", 100, Some(114)),
        ("other:5432/shop", 50, Some(110)),
    ];
    assert_eq!(limits.collect::<Vec<_>>(), expected);
}

#[test]
fn a_limit_of_a_role_is_raised_and_not_max_connections_where_only_that_is_too_low() {
    let mut known = limits(100);
    known.roles.push(role("app", Some(15)));
    let report = assess(&fleet(2, 0, 0), &[server(known, &[20])]);
    assert_eq!(report.smallest_max_connections(), None);
    let text = unwrapped(&report);
    let said = "Smallest rolconnlimit that fits: 40 instead of 15 of role app on db:5432/shop.";
    assert!(text.contains(said), "{text}");
}

#[test]
fn more_than_postgres_takes_is_not_proposed() {
    let report = assess(&fleet(262_141, 0, 0), &[server(limits(100), &[1])]);
    assert_eq!(report.smallest_max_connections(), None);
    assert_eq!(report.smallest_limits()[0].to, None);
    let text = unwrapped(&report);
    assert!(
        text.contains("Smallest max_connections that fits: none that Postgres takes"),
        "{text}"
    );
    let report = assess(&fleet(262_140, 0, 0), &[server(limits(100), &[1])]);
    assert_eq!(report.smallest_max_connections(), Some(262_143));
}

#[test]
fn huge_partitions_shrink_without_counting_them_down() {
    let servers = [server(limits(u32::MAX), &[u32::MAX, u32::MAX, u32::MAX])];
    let report = assess(&fleet(1, 0, 0), &servers);
    let third = (u32::MAX - 3) / 3;
    assert_eq!(sizes(&report), Some(vec![third, third, third]));
}

#[test]
fn more_reserved_slots_than_slots_grant_nothing() {
    let mut known = limits(3);
    known.superuser_reserved_connections = 10;
    let report = assess(&fleet(1, 0, 0), &[server(known, &[1])]);
    assert_eq!((report.granted(), report.fits()), (Some(0), false));
}

#[test]
fn a_service_without_servers_fits() {
    let report = assess(&fleet(5, 1, 0), &[]);
    assert!(report.fits());
    assert_eq!((report.binding(), report.largest_fleet()), (None, None));
}

#[test]
fn the_json_holds_the_figures_under_plain_names() {
    let report = assess(&fleet(5, 0, 2), &[server(limits(100), &[20])]);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["fits"], false);
    assert_eq!(
        (&json["needed"], &json["granted"]),
        (&102.into(), &97.into())
    );
    assert_eq!(json["largest_fleet"], 4);
    assert_eq!(json["largest_partitions"][0]["size"], 19);
    assert_eq!(json["smallest_max_connections"], 105);
    assert_eq!(json["smallest_limits"][0]["setting"], "max_connections");
    assert_eq!(json["binding"]["scope"]["kind"], "server");
    assert_eq!(json["binding"]["granted_terms"][1]["amount"], -3);
    assert_eq!(json["servers"][0]["constraints"][0]["verdict"], "exceeds");
    assert_eq!(json["warnings"].as_array().map(Vec::len), Some(0));
}

/// The text as one line, however it was broken.
fn unwrapped(report: &FleetReport) -> String {
    let text = report.to_string();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn widest_line(report: &FleetReport) -> usize {
    let text = report.to_string();
    text.lines().map(|l| l.chars().count()).max().unwrap_or(0)
}

#[test]
fn five_replicas_of_twenty_against_a_hundred_are_refused_with_the_sum() {
    let report = assess(&fleet(5, 0, 0), &[server(limits(100), &[20])]);
    let text = unwrapped(&report);
    let expected = "5 replicas of 20 with surge 0 against max_connections 100 need 100 of 97 \
                    granted (100 max_connections - 3 superuser_reserved_connections): 3 too many. \
                    Largest fleet that fits: 4 replicas with surge 0. \
                    Largest partitions that fit 5 replicas with surge 0: transactional 19. \
                    Smallest max_connections that fits: 103 instead of 100 on db:5432/shop.";
    assert!(text.contains(expected), "{report}");
}

#[test]
fn the_text_of_a_refusal_shows_its_arithmetic() {
    let mut known = limits(100);
    known.reserved_connections = 2;
    known.roles.push(role("app", Some(120)));
    known.others.push(OpenSessions::new("postgres", "shop", 9));
    let mut server = server(known, &[20, 10]);
    server.demands.push(Demand::control(1, "app", "shop"));
    let mut fleet = fleet(4, 1, 5);
    fleet.external.push(ExternalDemand::new("jobs", 2));
    let report = assess(&fleet, &[server]);
    assert_eq!(report.to_string(), REFUSAL);
}

const REFUSAL: &str = "\
fleet check: does not fit, 75 too many on db:5432/shop
4 replicas of 20 + 10 + 1 + 2 with surge 1 and reserve 5 against max_connections 100 need 170 of 95
granted (100 max_connections - 3 superuser_reserved_connections - 2 reserved_connections): 75 too
many.
Largest fleet that fits: 1 replica with surge 1.
Largest partitions that fit 4 replicas with surge 1: transactional 10, analytical 5.
Smallest limits that fit: max_connections 175 instead of 100 on db:5432/shop, rolconnlimit 165
instead of 120 of role app on db:5432/shop.

db:5432/shop: Postgres 17.4
    limit      granted    needed  headroom
    server          95       170       -75  exceeds
      granted = 100 max_connections - 3 superuser_reserved_connections - 2 reserved_connections
      needed  = (4 replicas + 1 surge) x (20 transactional + 10 analytical + 1 control + 2 jobs) + 5
        reserve
    role app       120       165       -45  exceeds
      granted = 120 rolconnlimit
      needed  = (4 replicas + 1 surge) x (20 transactional + 10 analytical + 1 control + 2 jobs)

warning: db:5432/shop: 9 sessions of others are open now, more than the reserve of 5. With them in
  its place 174 of 95 are needed, which does not fit. Raise the reserve, or end them.
warning: db:5432/shop: external pool jobs names no role. It was counted toward role app, the only
  one used. Name its role in the configuration.
warning: several partitions share db:5432/shop. A partition isolates connections, not the server's
  CPU, I/O or locks.
";

#[test]
fn the_text_of_a_fleet_that_fits_shows_its_arithmetic_too() {
    let mut known = limits(60);
    known.in_recovery = true;
    known
        .databases
        .push(database("a_database_with_a_rather_long_name", Some(50)));
    let mut standby = Server::new("standby:5432/shop", Limits::Known(known));
    standby.demands.push(Demand::partition(
        "analytical",
        10,
        "reports",
        "a_database_with_a_rather_long_name",
    ));
    let report = assess(&fleet(4, 1, 3), &[server(limits(200), &[20]), standby]);
    assert_eq!(report.to_string(), FITS);
}

const FITS: &str = "\
fleet check: fits
4 replicas of 10 with surge 1 against datconnlimit 50 of database a_database_with_a_rather_long_name
need 50 of 50 granted: 0 to spare.

db:5432/shop: Postgres 17.4
    limit    granted    needed  headroom
    server       197       103        94  fits
      granted = 200 max_connections - 3 superuser_reserved_connections
      needed  = (4 replicas + 1 surge) x (20 transactional) + 3 reserve

standby:5432/shop: Postgres 17.4, a standby
    limit    granted    needed  headroom
    server        57        53         4  fits
      granted = 60 max_connections - 3 superuser_reserved_connections
      needed  = (4 replicas + 1 surge) x (10 analytical) + 3 reserve
    database a_database_with_a_rather_long_name
                  50        50         0  fits
      granted = 50 datconnlimit
      needed  = (4 replicas + 1 surge) x (10 analytical)
";

#[test]
fn a_shared_budget_counts_once_with_its_capacity() {
    let both = [
        ("transactional", 12, 25, "app"),
        ("analytical", 0, 10, "app"),
    ];
    let (budget, server) = sharing(30, limits(150), &both);
    let report = assess(&with_budget(fleet(4, 1, 0), budget), &[server]);
    assert_eq!(report.needed(), Some(150));
    let [part] = &report.binding().unwrap().per_replica[..] else {
        panic!("{report}")
    };
    assert_eq!((part.kind, part.size), (DemandKind::Budget, 30));
    let text = unwrapped(&report);
    assert!(
        text.contains("(4 replicas + 1 surge) x (30 main (transactional up to 25, analytical up to 10)) + 0 reserve"),
        "{text}"
    );
    assert!(
        text.contains(
            "main 29 (transactional up to 24 with 12 reserved, analytical up to 9 with 0 reserved)."
        ),
        "{text}"
    );
}

#[test]
fn under_a_limit_a_shared_budget_counts_what_its_partitions_there_may_open() {
    let mut known = limits(200);
    known.roles = vec![role("app", Some(100)), role("reports", Some(100))];
    let three = [
        ("transactional", 12, 25, "app"),
        ("batch", 0, 20, "app"),
        ("analytical", 0, 10, "reports"),
    ];
    let (budget, server) = sharing(30, known, &three);
    let report = assess(&with_budget(fleet(1, 0, 0), budget), &[server]);
    let needed = report.servers()[0].constraints.iter().map(|c| c.needed);
    assert_eq!(needed.collect::<Vec<_>>(), [30, 30, 10]);
}

#[test]
fn a_budget_that_the_fleet_does_not_have_is_one_of_its_own() {
    let both = [
        ("transactional", 12, 25, "app"),
        ("analytical", 0, 10, "app"),
    ];
    let (_, server) = sharing(30, limits(150), &both);
    assert_eq!(assess(&fleet(4, 0, 0), &[server]).needed(), Some(140));
}

#[test]
fn beside_others_a_shared_budget_shrinks_in_proportion() {
    let both = [
        ("transactional", 12, 25, "app"),
        ("analytical", 3, 10, "app"),
    ];
    let (budget, mut server) = sharing(30, limits(33), &both);
    server
        .demands
        .push(Demand::partition("batch", 10, "app", "shop"));
    let report = assess(&with_budget(fleet(1, 0, 0), budget), &[server]);
    let [main, batch] = report.largest_partitions().unwrap() else {
        panic!("{report}")
    };
    assert_eq!((main.size, batch.size), (23, 7));
    assert!(batch.partitions.is_empty());
    let shares = main.partitions.iter();
    let shares = shares.map(|p| (p.name.as_str(), p.reserved, p.max_connections));
    let expected = [("transactional", 12, 19), ("analytical", 3, 8)];
    assert_eq!(shares.collect::<Vec<_>>(), expected);
}

#[test]
fn a_budget_of_which_a_part_is_held_shrinks_no_further_than_that_part_must() {
    let mut known = limits(53);
    known.roles = vec![role("app", None), role("reports", Some(5))];
    let both = [
        ("transactional", 12, 25, "app"),
        ("analytical", 3, 10, "reports"),
    ];
    let (budget, mut server) = sharing(30, known, &both);
    server
        .demands
        .push(Demand::partition("batch", 40, "app", "shop"));
    let report = assess(&with_budget(fleet(1, 0, 0), budget), &[server]);
    assert_eq!(sizes(&report), Some(vec![12, 38]));
}

#[test]
fn a_budget_of_which_a_partition_may_not_shrink_keeps_its_size() {
    let both = [
        ("transactional", 12, 25, "app"),
        ("analytical", 3, 10, "app"),
    ];
    let (budget, mut server) = sharing(30, limits(43), &both);
    server.demands[1].may_shrink = false;
    server
        .demands
        .push(Demand::partition("batch", 20, "app", "shop"));
    let report = assess(&with_budget(fleet(1, 0, 0), budget), &[server]);
    assert_eq!(sizes(&report), Some(vec![10]));
}

#[test]
fn reservations_shrink_only_where_they_no_longer_fit() {
    let proposed = |granted| {
        let three = [
            ("transactional", 12, 25, "app"),
            ("analytical", 1, 10, "app"),
            ("batch", 0, 10, "app"),
        ];
        let (budget, server) = sharing(30, limits(3 + granted), &three);
        let report = assess(&with_budget(fleet(1, 0, 0), budget), &[server]);
        let main = report.largest_partitions().unwrap()[0].clone();
        assert_eq!(main.size, granted);
        let reserved = main.partitions.iter().map(|p| p.reserved);
        reserved.collect::<Vec<_>>()
    };
    assert_eq!(proposed(20), [12, 1, 0]);
    assert_eq!(proposed(14), [12, 1, 0]);
    // 12 + 1 would leave the 13 slots without one for batch.
    assert_eq!(proposed(13), [11, 1, 0]);
    assert_eq!(proposed(5), [3, 1, 0]);
    assert_eq!(proposed(1), [0, 0, 0]);
}

#[test]
fn a_shared_budget_on_two_servers_is_counted_on_each_and_told() {
    let (budget, first) = sharing(30, limits(100), &[("transactional", 12, 25, "app")]);
    let (_, second) = sharing(30, limits(100), &[("analytical", 0, 10, "app")]);
    let second = Server {
        label: "other:5432/shop".into(),
        ..second
    };
    let fleet = with_budget(fleet(2, 0, 1), budget);
    let report = assess(&fleet, &[first.clone(), second.clone()]);
    let needed = report.servers().iter().map(|s| s.constraints[0].needed);
    assert_eq!(needed.collect::<Vec<_>>(), [51, 21]);
    let servers = vec!["db:5432/shop".into(), "other:5432/shop".into()];
    let budget = "main".into();
    assert_eq!(
        report.warnings(),
        [Warning::SpreadBudget { budget, servers }]
    );

    let spread = |w: &Warning| matches!(w, Warning::SpreadBudget { .. });
    let full = Server {
        limits: full(),
        ..second.clone()
    };
    let may_be_one = assess(&fleet, &[first.clone(), full]);
    assert!(!may_be_one.warnings().iter().any(spread));

    // A failover brings all of them along, and then nothing is spread.
    let mut moved = first;
    moved.demands.extend(second.demands);
    let standby = Server {
        label: "other:5432/shop".into(),
        ..moved.clone()
    };
    assert!(
        !assess(&fleet, &[moved, standby])
            .warnings()
            .iter()
            .any(spread)
    );
}

#[test]
fn the_json_of_a_shared_budget_names_its_partitions() {
    let both = [
        ("transactional", 12, 25, "app"),
        ("analytical", 0, 10, "app"),
    ];
    let (budget, server) = sharing(30, limits(150), &both);
    let report = assess(&with_budget(fleet(5, 0, 0), budget), &[server]);
    let json = serde_json::to_value(&report).unwrap();
    let part = &json["binding"]["per_replica"][0];
    assert_eq!(
        (&part["kind"], &part["size"]),
        (&"budget".into(), &30.into())
    );
    assert_eq!(part["budget"]["capacity"], 30);
    assert_eq!(part["budget"]["partitions"][0]["reserved"], 12);
    let proposed = &json["largest_partitions"][0];
    assert_eq!(
        (&proposed["name"], &proposed["size"]),
        (&"main".into(), &29.into())
    );
    assert_eq!(proposed["partitions"][1]["max_connections"], 9);
}

#[test]
fn huge_shared_budgets_shrink_without_counting_them_down() {
    let mut known = limits(u32::MAX);
    known.roles.push(role("few", Some(1)));
    let both = [("p", 1, 3, "few"), ("q", u32::MAX, u32::MAX, "app")];
    let (budget, server) = sharing(u32::MAX, known, &both);
    let report = assess(&with_budget(fleet(1, 0, 0), budget), &[server]);
    // Up to half of it, 3 come to 1; beyond, to 2.
    let size = report.largest_partitions().unwrap()[0].size;
    assert_eq!(size, u32::MAX / 2 - 1);
}

/// One or two servers, whose partitions share roles, databases and, by failover, each other.
fn any_servers() -> impl Strategy<Value = Vec<Server>> {
    let limit = || proptest::option::of(0..120_u32);
    let known = (
        4..300_u32,
        0..8_u32,
        any::<bool>(),
        [limit(), limit(), limit(), limit()],
    );
    let known = known.prop_map(
        |(max, reserved, privileged, [r0, r1, d0, d1])| ServerLimits {
            reserved_connections: reserved,
            roles: vec![
                role("r0", r0),
                Role {
                    may_use_reserved: privileged,
                    ..role("r1", r1)
                },
                superuser("r2", Some(1)),
            ],
            databases: vec![database("d0", d0), database("d1", d1)],
            ..limits(max)
        },
    );
    let demand = (0..5_u8, 0..3_u8, 0..2_u8);
    let demands = proptest::collection::vec(demand, 0..5);
    let sizes = proptest::array::uniform5(1..60_u32);
    (
        proptest::collection::vec((known, demands), 1..3),
        sizes,
        0..3_u32,
    )
        .prop_map(|(servers, sizes, control)| {
            let server = |(known, demands): (ServerLimits, Vec<(u8, u8, u8)>)| {
                let partition = |(p, r, d): (u8, u8, u8)| {
                    let (name, role) = (format!("p{p}"), format!("r{r}"));
                    let kind = [Kind::Transactional, Kind::Analytical][usize::from(p % 2)];
                    Demand::partition(name, sizes[usize::from(p)], role, format!("d{d}"))
                        .criticality(kind)
                };
                let mut server = Server::new("db", Limits::Known(known));
                server.demands = demands.into_iter().map(partition).collect();
                server.demands.push(Demand::control(control, "r0", "d0"));
                server
            };
            servers.into_iter().map(server).collect()
        })
}

fn any_fleet() -> impl Strategy<Value = Fleet> {
    let external = proptest::option::of((1..5_u32, proptest::option::of(0..3_u8)));
    (1..12_u32, 0..4_u32, 0..20_u32, external).prop_map(|(replicas, surge, reserve, external)| {
        let mut fleet = fleet(replicas, surge, reserve);
        fleet
            .external
            .extend(external.map(|(size, role)| ExternalDemand {
                role: role.map(|r| format!("r{r}")),
                ..ExternalDemand::new("jobs", size)
            }));
        fleet
    })
}

fn with_replicas(fleet: &Fleet, max_replicas: u32) -> Fleet {
    Fleet {
        max_replicas,
        ..fleet.clone()
    }
}

/// Partitions of which some share the budgets `b0` and `b1`, in ways that a configuration allows.
fn any_case() -> impl Strategy<Value = (Fleet, Vec<Server>)> {
    let draws = proptest::array::uniform5((proptest::option::of(0..2_usize), 0..=100_u32));
    let spare = proptest::array::uniform2(0..60_u32);
    (any_fleet(), any_servers(), draws, spare).prop_map(|(mut fleet, mut servers, draws, spare)| {
        let mut least = [(0, 0, 0); 2];
        for (p, (budget, percent)) in draws.iter().enumerate() {
            let name = format!("p{p}");
            let demands = servers.iter_mut().flat_map(|s| &mut s.demands);
            let mut own: Vec<_> = demands.filter(|d| d.name == name).collect();
            let (Some(budget), Some(first)) = (budget, own.first()) else {
                continue;
            };
            let (size, reserved) = (first.size, first.size * percent / 100);
            let (max, sum, zeros) = least[*budget];
            least[*budget] = (
                size.max(max),
                sum + reserved,
                zeros.max(u32::from(reserved == 0)),
            );
            for demand in &mut own {
                **demand = demand.clone().sharing(format!("b{budget}"), reserved);
            }
        }
        for (b, (max, sum, zeros)) in least.into_iter().enumerate() {
            let capacity = max.max(sum + zeros) + spare[b];
            fleet
                .budgets
                .push(SharedBudget::new(format!("b{b}"), capacity));
        }
        (fleet, servers)
    })
}

/// What was stated for the partition or budget of this name.
fn stated(fleet: &Fleet, servers: &[Server], name: &str) -> PartitionSize {
    let demands = servers.iter().flat_map(|s| &s.demands);
    let mut unit = PartitionSize {
        name: name.into(),
        size: 0,
        partitions: Vec::new(),
    };
    unit.size = fleet
        .budgets
        .iter()
        .find(|b| b.name == name)
        .map_or(0, |b| b.capacity);
    for demand in demands {
        match &demand.share {
            None if demand.name == name => unit.size = unit.size.max(demand.size),
            Some(share)
                if share.budget == name
                    && unit.partitions.iter().all(|p| p.name != demand.name) =>
            {
                unit.partitions.push(PartitionShare {
                    name: demand.name.clone(),
                    criticality: demand.criticality,
                    reserved: share.reserved,
                    max_connections: demand.size,
                });
            }
            _ => {}
        }
    }
    unit
}

/// The unit of this size: of a budget, what it loses is taken from the less critical first.
fn scaled(stated: &PartitionSize, size: u32) -> PartitionSize {
    let mut unit = stated.clone();
    let mut taken = usable(stated) - size;
    unit.size = size;
    for criticality in [Criticality::Low, Criticality::High] {
        let of_it = |p: &&mut PartitionShare| p.criticality == criticality;
        let group: Vec<_> = unit.partitions.iter_mut().filter(of_it).collect();
        let spare: u32 = group.iter().map(|p| p.max_connections - 1).sum();
        let from_group = taken.min(spare);
        taken -= from_group;
        for partition in group.into_iter().filter(|_| spare > 0) {
            let own = partition.max_connections - 1;
            partition.max_connections = 1 + own * (spare - from_group) / spare;
        }
    }
    for partition in &mut unit.partitions {
        partition.max_connections = partition.max_connections.min(size);
    }
    unit
}

/// Of a capacity, what its partitions can use.
fn usable(stated: &PartitionSize) -> u32 {
    let together: u32 = stated.partitions.iter().map(|p| p.max_connections).sum();
    match stated.partitions.is_empty() {
        true => stated.size,
        false => stated.size.min(together),
    }
}

/// Every unit at 1.
fn smallest(fleet: &Fleet, servers: &[Server]) -> Vec<PartitionSize> {
    let names = ["p0", "p1", "p2", "p3", "p4", "b0", "b1"].iter();
    let stated = names.map(|name| stated(fleet, servers, name));
    stated
        .filter(|s| s.size > 0)
        .map(|s| scaled(&s, 1))
        .collect()
}

/// The same partitions, each with a budget of its own.
fn fixed(servers: &[Server]) -> Vec<Server> {
    let mut servers = servers.to_vec();
    for demand in servers.iter_mut().flat_map(|s| &mut s.demands) {
        demand.share = None;
    }
    servers
}

fn demand_of<'a>(
    servers: &'a [Server],
    name: &str,
    criticality: Criticality,
) -> Option<&'a Demand> {
    let mut demands = servers.iter().flat_map(|s| &s.demands);
    demands.find(|d| d.name == name && d.criticality == criticality)
}

/// The server, with its limits as an owner would set them who follows the proposal.
fn raised(server: &Server, limits: &[SmallestLimit]) -> Server {
    let mut server = server.clone();
    let Limits::Known(known) = &mut server.limits else {
        panic!("its limits are known")
    };
    for limit in limits {
        let to = limit.to.map(|to| u32::try_from(to).unwrap());
        match &limit.scope {
            Scope::Server => known.max_connections = to.unwrap(),
            Scope::Role { name } => {
                let role = known.roles.iter_mut().find(|r| r.name == *name);
                role.unwrap().connection_limit = to;
            }
            Scope::Database { name } => {
                let database = known.databases.iter_mut().find(|d| d.name == *name);
                database.unwrap().connection_limit = to;
            }
            pooler => panic!("no pooler is here: {pooler:?}"),
        }
    }
    server
}

fn needs(report: &FleetReport) -> Vec<u64> {
    let all = report.servers().iter().flat_map(|s| &s.constraints);
    all.map(|c| c.needed).collect()
}

#[test]
fn seats_are_counted_in_the_place_of_replicas_and_fewer_are_told() {
    let with = |seats| Fleet {
        seats: Some(seats),
        ..fleet(4, 2, 7)
    };
    let servers = [server(limits(103), &[10])];
    let report = assess(&with(5), &servers);
    assert_eq!(
        (report.needed(), report.granted()),
        (Some(5 * 10 + 7), Some(100))
    );
    let told = Warning::FewerSeats {
        seats: 5,
        replicas: 6,
    };
    assert!(report.warnings().contains(&told), "{report}");
    assert!(
        report.to_string().contains("5 seats for 6 replicas"),
        "{report}"
    );
    assert_eq!(report.largest_fleet(), Some(9));

    let report = assess(&with(10), &servers);
    assert!(!report.fits() && !report.fits_without_surge());
    let text = report.to_string();
    assert!(text.contains("Most seats that fit: 9."), "{text}");
    assert!(
        text.contains("Largest partitions that fit 10 seats: transactional 9."),
        "{text}"
    );
    assert!(
        !report
            .warnings()
            .iter()
            .any(|w| matches!(w, Warning::FewerSeats { .. }))
    );
    assert!(
        !assess(&fleet(4, 2, 7), &servers)
            .to_string()
            .contains("seats")
    );
    // In the sum, too, they are called what they are.
    assert!(
        text.contains("needed  = 10 seats x (10 transactional) + 7 reserve"),
        "{text}"
    );
    let sum = "10 seats of 10 with reserve 7 against max_connections 103 need 107 of 100 granted";
    assert!(unwrapped(&report).contains(sum), "{text}");
    assert!(
        !text.contains("replicas") && !text.contains("surge"),
        "{text}"
    );
    let counted = report.binding().unwrap();
    assert_eq!((counted.seats, counted.surge), (Some(10), 0));
    let one = Fleet {
        reserve: 0,
        ..with(1)
    };
    let text = unwrapped(&assess(&one, &servers));
    assert!(
        text.contains("1 seat of 10 against max_connections 103 needs 10 of 100"),
        "{text}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_largest_fleet_fits_and_one_more_does_not((fleet, servers) in any_case()) {
        let report = assess(&fleet, &servers);
        let largest = report.largest_fleet().unwrap();
        if largest > 0 {
            prop_assert!(assess(&with_replicas(&fleet, largest), &servers).fits());
        }
        if let Some(more) = largest.checked_add(1) {
            prop_assert!(!assess(&with_replicas(&fleet, more), &servers).fits());
        }
        prop_assert_eq!(report.fits(), fleet.max_replicas <= largest);
    }

    #[test]
    fn the_largest_partitions_fit_and_none_of_them_can_grow((fleet, servers) in any_case()) {
        let report = assess(&fleet, &servers);
        let Some(proposed) = report.largest_partitions() else {
            let hopeless = !fits_resized(&fleet, &servers, &smallest(&fleet, &servers));
            prop_assert!(report.fits() || hopeless);
            return Ok(());
        };
        prop_assert!(!report.fits());
        prop_assert!(fits_resized(&fleet, &servers, proposed));
        for (index, unit) in proposed.iter().enumerate() {
            let stated = stated(&fleet, &servers, &unit.name);
            let most = usable(&stated);
            prop_assert!((1..=most).contains(&unit.size));
            // Rounding down inside of a budget may take more than one slot to come out as one more.
            let more_of = |size: &u32| usable(&scaled(&stated, *size)) > unit.size;
            let Some(next) = (unit.size + 1..=most).find(more_of) else {
                continue;
            };
            let mut more = proposed.to_vec();
            more[index] = scaled(&stated, next);
            let grown = fits_resized(&fleet, &servers, &more);
            prop_assert!(!grown, "{:?} can grow to {}", unit, next);
        }
    }

    #[test]
    fn the_critical_lose_nothing_while_the_less_critical_have_more_than_one((fleet, servers) in any_case()) {
        let servers = fixed(&servers);
        let fleet = Fleet { budgets: Vec::new(), ..fleet };
        let report = assess(&fleet, &servers);
        let proposed = report.largest_partitions().unwrap_or_default();
        for unit in proposed.iter().filter(|unit| unit.size < stated(&fleet, &servers, &unit.name).size) {
            let Some(critical) = demand_of(&servers, &unit.name, Criticality::High) else {
                continue;
            };
            // It is held in a room of its own, or by others that are as critical.
            let mut more = proposed.to_vec();
            for other in &mut more {
                if demand_of(&servers, &other.name, Criticality::Low).is_some() {
                    other.size = 1;
                } else if other.name == critical.name {
                    other.size += 1;
                }
            }
            prop_assert!(!fits_resized(&fleet, &servers, &more), "{:?} loses to the less critical", unit);
        }
    }

    #[test]
    fn with_the_smallest_limits_it_fits_and_with_any_of_them_one_lower_it_does_not((fleet, servers) in any_case()) {
        let server = &servers[..1];
        let report = assess(&fleet, server);
        let limits = report.smallest_limits();
        prop_assert_eq!(report.fits(), limits.is_empty());
        prop_assert!(assess(&fleet, &[raised(&server[0], limits)]).fits());
        for index in 0..limits.len() {
            let mut lower = limits.to_vec();
            lower[index].to = lower[index].to.map(|to| to - 1);
            prop_assert!(!assess(&fleet, &[raised(&server[0], &lower)]).fits(), "{:?}", limits[index]);
        }
    }

    #[test]
    fn the_partitions_of_a_proposed_budget_can_share_it((fleet, servers) in any_case()) {
        let report = assess(&fleet, &servers);
        for unit in report.largest_partitions().unwrap_or_default() {
            let stated = stated(&fleet, &servers, &unit.name);
            let reserved: u32 = unit.partitions.iter().map(|p| p.reserved).sum();
            let all_reserve = unit.partitions.iter().all(|p| p.reserved > 0);
            prop_assert!(reserved < unit.size || all_reserve && reserved == unit.size, "{:?}", unit);
            let together: u32 = unit.partitions.iter().map(|p| p.max_connections).sum();
            prop_assert!(unit.partitions.is_empty() || unit.size <= together, "{:?}", unit);
            for partition in &unit.partitions {
                let was = stated.partitions.iter().find(|p| p.name == partition.name).unwrap();
                prop_assert!(partition.reserved <= partition.max_connections.min(was.reserved));
                prop_assert!((1..=unit.size.min(was.max_connections)).contains(&partition.max_connections));
                prop_assert!(unit.size < usable(&stated) || partition == was);
            }
        }
    }

    #[test]
    fn sharing_never_needs_more_than_fixed_partitions_and_never_more_than_the_capacity((fleet, servers) in any_case()) {
        let shared = assess(&fleet, &servers);
        let alone = assess(&fleet, &fixed(&servers));
        prop_assert!(needs(&shared).iter().zip(needs(&alone)).all(|(shared, alone)| *shared <= alone));
        for part in shared.servers().iter().flat_map(|s| &s.constraints).flat_map(|c| &c.per_replica) {
            prop_assert!(part.budget.as_ref().is_none_or(|budget| part.size <= budget.capacity));
        }
        let mut ample = fleet.clone();
        ample.budgets.iter_mut().for_each(|budget| budget.capacity = 10_000);
        prop_assert_eq!(needs(&assess(&ample, &servers)), needs(&alone));
    }

    #[test]
    fn under_one_limit_each_partition_gets_its_quota_rounded(
        stated in proptest::collection::vec(50..200_u32, 1..4),
        permille in 40..1000_u32,
    ) {
        let total: u32 = stated.iter().sum();
        let granted = total * permille / 1000;
        let report = assess(&fleet(1, 0, 0), &[server(limits(granted + 3), &stated)]);
        let sizes = sizes(&report).unwrap();
        prop_assert_eq!(sizes.iter().sum::<u32>(), granted);
        for (size, stated) in sizes.iter().zip(&stated) {
            let quota = stated * granted / total;
            prop_assert!((quota..=quota + 1).contains(size), "{} of quota {}", size, quota);
        }
    }

    #[test]
    fn the_report_fits_exactly_if_its_binding_constraint_does((fleet, servers) in any_case()) {
        let report = assess(&fleet, &servers);
        let all = report.servers().iter().flat_map(|s| &s.constraints);
        let least = all.map(|c| c.headroom).min();
        let binding = report.binding().unwrap();
        prop_assert_eq!(least, Some(binding.headroom));
        prop_assert_eq!(report.fits(), binding.headroom >= 0);
        prop_assert_eq!(report.fits(), report.needed() <= report.granted());
        prop_assert!(!report.fits() || report.fits_without_surge());
    }

    #[test]
    fn no_figures_make_it_panic_or_widen_a_line(
        replicas: u32, surge: u32, reserve: u32, max: u32, superusers: u32, limit: Option<u32>,
        others: u32, sizes in proptest::collection::vec(any::<u32>(), 0..4),
    ) {
        let mut known = limits(max);
        known.superuser_reserved_connections = superusers;
        known.roles.push(role("app", limit));
        known.others.push(OpenSessions::new("app", "shop", others));
        let report = assess(&fleet(replicas, surge, reserve), &[server(known, &sizes)]);
        prop_assert!(widest_line(&report) <= 100, "{}", report);
    }
}
