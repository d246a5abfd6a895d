//! What holds whichever way a configuration is stated.

use std::{collections::BTreeSet, fmt::Write as _, time::Duration};

use proptest::prelude::*;

use super::{leaf::fields_of, *};

const PREFIX: &str = "SHOP_DB";

/// A value that a field must take: as text, and by the builder. Every field of a partition is listed, except
/// those that every partition states (`name`, `kind`, `max_connections`), `budget`, which needs one, and `settings`, which
/// are a table.
type Setter = fn(PartitionConfig) -> PartitionConfig;
const GOOD: &[(&str, &str, Setter)] = &[
    ("url", "postgres://reader@standby/shop", |p| {
        p.url("postgres://reader@standby/shop")
    }),
    ("reserved", "20", |p| p.reserved(20)),
    ("max_waiters", "0", |p| p.max_waiters(0)),
    ("acquire_timeout", "250ms", |p| {
        p.acquire_timeout(Duration::from_millis(250))
    }),
    ("connect_timeout", "2s", |p| {
        p.connect_timeout(Duration::from_secs(2))
    }),
    ("statement_timeout", "1500ms", |p| {
        p.statement_timeout(Duration::from_millis(1500))
    }),
    ("lock_timeout", "off", |p| p.lock_timeout(Limit::Off)),
    ("idle_in_transaction_session_timeout", "1ms", |p| {
        p.idle_in_transaction_session_timeout(Duration::from_millis(1))
    }),
    ("transaction_timeout", "2147483647ms", |p| {
        p.transaction_timeout(Duration::from_millis(2_147_483_647))
    }),
    ("hold_warning", "off", |p| p.hold_warning(Limit::Off)),
    ("max_hold", "1m", |p| p.max_hold(Duration::from_secs(60))),
    ("idle_timeout", "1h", |p| {
        p.idle_timeout(Duration::from_secs(3600))
    }),
    ("max_lifetime", "1day", |p| {
        p.max_lifetime(Duration::from_secs(86_400))
    }),
    ("min_idle", "20", |p| p.min_idle(20)),
    ("validate_after_idle", "500us", |p| {
        p.validate_after_idle(Duration::from_micros(500))
    }),
    ("reset_session", "true", |p| p.reset_session(true)),
    ("caller_deadline", "2s", |p| {
        p.caller_deadline(Duration::from_secs(2))
    }),
];

const BAD_COUNT: &[&str] = &[
    "-1",
    "many",
    "1.5",
    "",
    "18446744073709551616",
    "4294967295",
];
const BAD_WAIT: &[&str] = &["0s", "0ms", "off", "250", "", "-1s", "soon", "11years"];
const BAD_CLIENT_LIMIT: &[&str] = &["0s", "Off", "250", "", "-1s", "never", "11years"];
const BAD_SERVER_LIMIT: &[&str] = &[
    "0s",
    "none",
    "250",
    "",
    "1us",
    "1500us",
    "2147483648ms",
    "11years",
];

/// Values that a field must refuse, for the partition `transactional` of 20.
const BAD_PARTITION: &[(&str, &[&str])] = &[
    ("pooler", &["", "session"]),
    (
        "name",
        &[
            "",
            "Batch",
            "two words",
            "a/b",
            "a.b",
            "abcdefghijklmnopqrstuvwxyz-0123456",
            "ü",
        ],
    ),
    ("kind", &["analytical", "", "Transactional", "0"]),
    ("url", &["", "  "]),
    ("max_connections", &["0", "262144"]),
    ("budget", &["", "main", "Main", "two words"]),
    ("reserved", &["0", "19", "21"]),
    ("max_waiters", &["1000001"]),
    ("acquire_timeout", BAD_WAIT),
    ("connect_timeout", BAD_WAIT),
    ("statement_timeout", BAD_SERVER_LIMIT),
    ("lock_timeout", BAD_SERVER_LIMIT),
    ("idle_in_transaction_session_timeout", BAD_SERVER_LIMIT),
    ("transaction_timeout", BAD_SERVER_LIMIT),
    ("hold_warning", BAD_CLIENT_LIMIT),
    ("max_hold", BAD_CLIENT_LIMIT),
    ("idle_timeout", BAD_CLIENT_LIMIT),
    ("max_lifetime", BAD_CLIENT_LIMIT),
    ("min_idle", &["21"]),
    ("validate_after_idle", BAD_CLIENT_LIMIT),
    ("reset_session", &["", "1", "on", "True", "30s"]),
    ("caller_deadline", BAD_WAIT),
    ("settings", &["", "64MB", "work_mem"]),
];

/// Values that a field of the budget `main` must refuse, in [`Stated::shared`].
const BAD_BUDGET: &[(&str, &[&str])] = &[
    ("name", &["", "Main", "two words", "ü"]),
    ("capacity", &["0", "262144"]),
    ("hand_over", &["", "oldest", "OldestFirst", "1"]),
];

const BAD_FLEET: &[(&str, &[&str])] = &[
    ("max_replicas", &["0", "262144"]),
    ("surge", &["262144"]),
    ("reserve", &["262144"]),
    (
        "external",
        &[
            "jobs",
            "jobs=",
            "jobs=many",
            "jobs=-1",
            "jobs=0",
            "jobs=262144",
            "=4",
            "Jobs=4",
            "a=1,a=2",
        ],
    ),
    ("mode", &["", "on", "Warn"]),
];

const BAD_SEATS: &[(&str, &[&str])] = &[
    ("count", &["0", "10000", "262144"]),
    (
        "lease",
        &["0s", "off", "250", "", "999ms", "1000500us", "61min", "-1s"],
    ),
    ("wait", BAD_CLIENT_LIMIT),
    (
        "table",
        &[
            "",
            "Seats",
            "a.b.c",
            "a;b",
            "two words",
            "1seats",
            "a.",
            "ü",
        ],
    ),
    ("url", &["", "  "]),
];

const BAD_BOOT: &[(&str, &[&str])] = &[
    ("when_unavailable", &["", "later", "Fail"]),
    ("wait", BAD_WAIT),
    ("check_timeout", BAD_WAIT),
    ("silence", &["everything", "shared-server", "SharedServer"]),
];

const BAD_POOL: &[(&str, &[&str])] = &[
    (
        "service",
        &[
            "",
            "shöp",
            "shop\n",
            "shop/eu",
            "a-service-whose-name-is-so-long-that-postgres-cuts-it-off",
        ],
    ),
    ("url", &["", "\t"]),
];

const COUNTS: &[&str] = &[
    "capacity",
    "count",
    "max_connections",
    "reserved",
    "max_waiters",
    "min_idle",
    "max_replicas",
    "surge",
    "reserve",
    "size",
];

const FLAGS: &[&str] = &["reset_session"];

/// A configuration as text: the fields of each table, in order.
#[derive(Clone)]
struct Stated {
    pool: Vec<(String, String)>,
    fleet: Vec<(String, String)>,
    seats: Vec<(String, String)>,
    boot: Vec<(String, String)>,
    budgets: Vec<Vec<(String, String)>>,
    partitions: Vec<Vec<(String, String)>>,
}

fn fields(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn put(table: &mut Vec<(String, String)>, key: &str, value: &str) {
    table.retain(|(other, _)| other != key);
    table.push((key.to_owned(), value.to_owned()));
}

impl Stated {
    fn base() -> Self {
        Self {
            pool: fields(&[("service", "shop"), ("url", "postgres://shop:pw@db/shop")]),
            fleet: fields(&[("max_replicas", "3"), ("surge", "1")]),
            seats: vec![],
            boot: vec![],
            budgets: vec![],
            partitions: vec![
                fields(&[("name", "transactional"), ("max_connections", "20")]),
                fields(&[("name", "analytical"), ("max_connections", "10")]),
            ],
        }
    }

    /// Both partitions in the budget `main` of 30.
    fn shared() -> Self {
        let partition = |name, reserved, max| {
            fields(&[
                ("name", name),
                ("budget", "main"),
                ("reserved", reserved),
                ("max_connections", max),
            ])
        };
        Self {
            budgets: vec![fields(&[("name", "main"), ("capacity", "30")])],
            partitions: vec![
                partition("transactional", "12", "25"),
                partition("analytical", "0", "10"),
            ],
            ..Self::base()
        }
    }

    fn toml(&self) -> String {
        let mut text = toml_lines(&self.pool) + "[fleet]\n" + &toml_lines(&self.fleet);
        if !self.seats.is_empty() {
            text += &("[fleet.seats]\n".to_owned() + &toml_lines(&self.seats));
        }
        text += &("[boot]\n".to_owned() + &toml_lines(&self.boot));
        for budget in &self.budgets {
            text += &("[[budget]]\n".to_owned() + &toml_lines(budget));
        }
        for partition in &self.partitions {
            text += &("[[partition]]\n".to_owned() + &toml_lines(partition));
        }
        text
    }

    fn variables(&self) -> Vec<(String, String)> {
        let names = names_in(&self.partitions);
        let budgets = names_in(&self.budgets);
        let mut variables = vec![(format!("{PREFIX}_PARTITIONS"), names.join(","))];
        if !budgets.is_empty() {
            variables.push((format!("{PREFIX}_BUDGETS"), budgets.join(",")));
        }
        let mut add = |table: &str, fields: &[(String, String)]| {
            for (key, value) in fields.iter().filter(|(key, _)| key != "name") {
                let name = format!("{PREFIX}_{table}{key}")
                    .to_uppercase()
                    .replace('-', "_");
                variables.push((name, value.clone()));
            }
        };
        add("", &self.pool);
        add("fleet_", &self.fleet);
        add("fleet_seats_", &self.seats);
        add("boot_", &self.boot);
        for (name, budget) in budgets.iter().zip(&self.budgets) {
            add(&format!("budget_{name}_"), budget);
        }
        for (name, partition) in names.iter().zip(&self.partitions) {
            add(&format!("{name}_"), partition);
        }
        variables
    }

    fn through_toml(&self) -> Result<Settings, ConfigError> {
        PoolConfig::from_toml(&self.toml())?.resolve()
    }

    fn through_variables(&self) -> Result<Settings, ConfigError> {
        PoolConfig::from_vars(PREFIX, self.variables())?.resolve()
    }
}

fn names_in(list: &[Vec<(String, String)>]) -> Vec<String> {
    list.iter().map(|fields| fields[0].1.clone()).collect()
}

fn toml_lines(fields: &[(String, String)]) -> String {
    fields.iter().fold(String::new(), |mut text, (key, value)| {
        let is_count = COUNTS.contains(&key.as_str()) && value.parse::<f64>().is_ok();
        let is_flag = FLAGS.contains(&key.as_str()) && value.parse::<bool>().is_ok();
        let value = if is_count || is_flag {
            value.clone()
        } else {
            toml_string(value)
        };
        writeln!(text, "{key} = {value}").unwrap();
        text
    })
}

fn toml_string(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

fn built() -> PoolConfig {
    PoolConfig::new("shop", "postgres://shop:pw@db/shop", FleetConfig::new(3, 1))
}

fn names_of(table: &[(&str, &[&str])]) -> BTreeSet<String> {
    table.iter().map(|(field, _)| (*field).to_owned()).collect()
}

fn set_of(fields: &[&str]) -> BTreeSet<String> {
    fields.iter().map(|field| (*field).to_owned()).collect()
}

/// Each value that a field must refuse, with the variable that holds it and the path that the error must name.
fn each_bad(mut check: impl FnMut(&Stated, &str, &str, &str)) {
    let mut each = |table: &str, bad: &[(&str, &[&str])], put_in: fn(&mut Stated, &str, &str)| {
        for (field, values) in bad {
            let counts: &[&str] = if COUNTS.contains(field) {
                BAD_COUNT
            } else {
                &[]
            };
            for value in values.iter().chain(counts) {
                let mut stated = Stated::base();
                put_in(&mut stated, field, value);
                let variable =
                    format!("{PREFIX}_{}{}", table.replace("partition.", ""), field).to_uppercase();
                check(
                    &stated,
                    &format!("{table}{field}"),
                    &variable.replace('.', "_"),
                    value,
                );
            }
        }
    };
    each("", BAD_POOL, |stated, field, value| {
        put(&mut stated.pool, field, value)
    });
    each("fleet.", BAD_FLEET, |stated, field, value| {
        put(&mut stated.fleet, field, value)
    });
    each("fleet.seats.", BAD_SEATS, |stated, field, value| {
        put(&mut stated.seats, "count", "8");
        put(&mut stated.seats, field, value)
    });
    each("boot.", BAD_BOOT, |stated, field, value| {
        let waits = field == "wait";
        put(&mut stated.boot, field, value);
        if waits {
            put(&mut stated.boot, "when_unavailable", "wait");
        }
    });
    each("budget.main.", BAD_BUDGET, |stated, field, value| {
        *stated = Stated::shared();
        put(&mut stated.budgets[0], field, value);
    });
    each(
        "partition.transactional.",
        BAD_PARTITION,
        |stated, field, value| {
            put(&mut stated.partitions[0], field, value);
        },
    );
}

#[test]
fn the_tables_of_bad_values_list_every_field() {
    let tables = [
        (BAD_PARTITION, fields_of::<PartitionConfig>()),
        (BAD_SEATS, fields_of::<SeatsConfig>()),
    ];
    let fleet: BTreeSet<_> = names_of(BAD_FLEET)
        .into_iter()
        .chain(["seats".to_owned()])
        .collect();
    assert_eq!(fleet, set_of(fields_of::<FleetConfig>()));
    for (table, fields) in tables.into_iter().chain([
        (BAD_BOOT, fields_of::<BootConfig>()),
        (BAD_BUDGET, fields_of::<BudgetConfig>()),
    ]) {
        assert_eq!(names_of(table), set_of(fields));
    }
    let of_parts = ["pooler", "fleet", "boot", "budget", "partition"].map(str::to_owned);
    let pool = names_of(BAD_POOL)
        .into_iter()
        .chain(of_parts)
        .collect::<BTreeSet<_>>();
    assert_eq!(pool, set_of(fields_of::<PoolConfig>()));
}

#[test]
fn seats_are_the_same_from_code_file_and_environment_and_complete() {
    let lease = Duration::from_secs(10);
    let wait = Duration::from_secs(60);
    let seats = SeatsConfig::new(8).lease(lease).wait(wait);
    let seats = seats.table("ops.seats").url("postgres://seats:pw@db/shop");
    let config = |fleet| {
        PoolConfig::new("shop", "postgres://shop:pw@db/shop", fleet)
            .transactional(PartitionConfig::transactional(20))
            .analytical(PartitionConfig::analytical(10))
    };
    let built = config(FleetConfig::new(3, 1).seats(seats))
        .resolve()
        .unwrap();
    let mut stated = Stated::base();
    stated.seats = fields(&[
        ("count", "8"),
        ("lease", "10s"),
        ("wait", "1min"),
        ("table", "ops.seats"),
        ("url", "postgres://seats:pw@db/shop"),
    ]);
    assert_eq!(stated.through_toml().unwrap(), built);
    assert_eq!(stated.through_variables().unwrap(), built);
    let file = PoolConfig::from_toml(&stated.toml()).unwrap();
    let one = [("SHOP_DB_FLEET_SEATS_COUNT".to_owned(), "9".to_owned())];
    let over = file.apply_vars(PREFIX, one).unwrap().resolve().unwrap();
    let over = over.fleet.seats.unwrap();
    assert_eq!((over.count.get(), over.lease), (9, lease));

    let plain = config(FleetConfig::new(3, 1).seats(SeatsConfig::new(8)));
    let plain = plain.resolve().unwrap().fleet.seats.unwrap();
    assert_eq!(plain.lease, Duration::from_secs(15));
    assert_eq!(plain.wait, Some(2 * plain.lease));
    assert_eq!(plain.table, "partitioned_pool_seats");
    assert_eq!(plain.url, DatabaseUrl::from("postgres://shop:pw@db/shop"));
    let off = SeatsConfig::new(8).wait(Limit::Off);
    let off = config(FleetConfig::new(3, 1).seats(off)).resolve().unwrap();
    assert_eq!(off.fleet.seats.unwrap().wait, None);
    assert_eq!(
        config(FleetConfig::new(3, 1))
            .resolve()
            .unwrap()
            .fleet
            .seats,
        None
    );
}

#[test]
fn a_name_leaves_room_for_the_number_of_a_seat() {
    let named = |bytes: usize, seats: bool| {
        let fleet = FleetConfig::new(3, 1);
        let fleet = if seats {
            fleet.seats(SeatsConfig::new(8))
        } else {
            fleet
        };
        // And a slash.
        let service = "s".repeat(bytes - 1 - TRANSACTIONAL.len());
        PoolConfig::new(service, "postgres://shop@db/shop", fleet)
            .transactional(PartitionConfig::transactional(20))
            .analytical(PartitionConfig::analytical(10))
            .resolve()
    };
    assert!(named(63, false).is_ok() && named(63 - SEAT_TAG_BYTES, true).is_ok());
    let error = named(64 - SEAT_TAG_BYTES, true).unwrap_err().to_string();
    assert!(error.contains("the number of a seat takes 16"), "{error}");
}

#[test]
fn the_table_of_good_values_lists_every_field() {
    let good = GOOD.iter().map(|(field, _, _)| *field);
    let good: Vec<_> = good
        .chain([
            "name",
            "kind",
            "max_connections",
            "budget",
            "pooler",
            "settings",
        ])
        .collect();
    assert_eq!(set_of(&good), set_of(fields_of::<PartitionConfig>()));
}

#[test]
fn a_bad_value_in_a_file_is_an_error_that_names_its_field_and_line() {
    each_bad(|stated, path, _, value| {
        let error = stated
            .through_toml()
            .expect_err(&format!("{path} = {value:?} was accepted"));
        let path = path
            .replace("transactional.name", "[1].name")
            .replace("partition.[", "partition[")
            .replace("budget.main.name", "budget[1].name");
        let named = error
            .problems()
            .iter()
            .find(|problem| problem.field.starts_with(&path));
        let named = named.unwrap_or_else(|| panic!("{path} = {value:?} is not named: {error}"));
        assert!(
            named
                .origin
                .as_ref()
                .is_some_and(|origin| origin.starts_with("line ")),
            "{error}"
        );
    });
}

#[test]
fn a_bad_value_in_the_environment_is_an_error_that_names_its_variable() {
    each_bad(|stated, path, variable, value| {
        if path.ends_with(".name") {
            return;
        }
        let error = stated
            .through_variables()
            .expect_err(&format!("{variable}={value:?} was accepted"));
        assert!(
            error.to_string().contains(variable),
            "{variable}={value:?} is not named: {error}"
        );
    });
}

#[test]
fn every_field_is_read_alike_and_takes_effect() {
    let plain = Stated::base().through_toml().unwrap();
    for (field, value, set) in GOOD {
        let mut stated = Stated::base();
        put(&mut stated.partitions[0], field, value);
        let config = built().transactional(set(PartitionConfig::transactional(20)));
        let settings = config
            .analytical(PartitionConfig::analytical(10))
            .resolve()
            .unwrap();
        assert_eq!(
            stated.through_toml().unwrap(),
            settings,
            "{field} in a file"
        );
        assert_eq!(
            stated.through_variables().unwrap(),
            settings,
            "{field} in the environment"
        );
        let json = serde_json::from_str::<PoolConfig>(&json(&stated)).unwrap();
        assert_eq!(json.resolve().unwrap(), settings, "{field} in JSON");
        assert!(
            settings != plain || *field == "reserved",
            "{field} has no effect"
        );
    }
}

fn json(stated: &Stated) -> String {
    let table = |fields: &[(String, String)]| {
        let value = |key: &str, value: &str| match value.parse::<u32>() {
            Ok(number) if COUNTS.contains(&key) => serde_json::Value::from(number),
            _ if FLAGS.contains(&key) => serde_json::Value::from(value.parse::<bool>().unwrap()),
            _ => serde_json::Value::from(value),
        };
        let entries = fields
            .iter()
            .map(|(key, text)| (key.clone(), value(key, text)));
        serde_json::Value::Object(entries.collect())
    };
    let mut root = table(&stated.pool);
    root["fleet"] = table(&stated.fleet);
    root["boot"] = table(&stated.boot);
    root["budget"] = stated.budgets.iter().map(|it| table(it)).collect();
    root["partition"] = stated.partitions.iter().map(|it| table(it)).collect();
    root.to_string()
}

#[test]
fn fleet_and_boot_are_read_alike() {
    let fleet = FleetConfig::new(3, 0).reserve(5).mode(FleetCheck::Warn);
    let fleet = fleet
        .external(ExternalPool::new("jobs", 4))
        .external(ExternalPool::new("a", 2));
    let wait = WhenUnavailable::Wait(Duration::from_secs(30));
    let settings = PoolConfig::new("shop", "postgres://shop:pw@db/shop", fleet)
        .boot(
            BootConfig::new()
                .when_unavailable(wait)
                .check_timeout(Duration::from_secs(5)),
        )
        .transactional(PartitionConfig::transactional(20))
        .analytical(PartitionConfig::analytical(10))
        .resolve()
        .unwrap();

    let mut stated = Stated::base();
    stated.fleet = fields(&[
        ("max_replicas", "3"),
        ("surge", "0"),
        ("reserve", "5"),
        ("mode", "warn"),
    ]);
    stated.boot = fields(&[
        ("when_unavailable", "wait"),
        ("wait", "30s"),
        ("check_timeout", "5s"),
    ]);
    let file = stated.toml()
        + "[[fleet.external]]\nname = 'jobs'\nsize = 4\n[[fleet.external]]\nname = 'a'\nsize = 2";
    assert_eq!(
        PoolConfig::from_toml(&file).unwrap().resolve().unwrap(),
        settings
    );

    put(&mut stated.fleet, "external", "jobs=4, a=2");
    assert_eq!(stated.through_variables().unwrap(), settings);
}

/// A pooler before the pool's server, one before that of the partition `batch`, and none before that of the reports.
const POOLERS: &str = "
    service = 'shop'
    url = 'postgres://shop@pooler/shop'
    fleet.max_replicas = 3
    fleet.surge = 0

    [pooler]
    mode = 'session'
    max_client_conn = 500
    default_pool_size = 60
    max_db_connections = 90

    [[partition]]
    name = 'transactional'
    max_connections = 20

    [[partition]]
    name = 'analytical'
    max_connections = 10
    url = 'postgres://shop@standby/shop'

    [[partition]]
    name = 'batch'
    kind = 'analytical'
    max_connections = 5
    url = 'postgres://shop@other/shop'

    [partition.pooler]
    mode = 'transaction'
    max_client_conn = 400
";

#[test]
fn a_pooler_is_read_alike_and_counts_where_its_url_does() {
    let session = PoolerConfig::session(500, 60).max_db_connections(90);
    let fleet = FleetConfig::new(3, 0);
    let reports = PartitionConfig::analytical(10).url("postgres://shop@standby/shop");
    let batch = PartitionConfig::named("batch", Kind::Analytical, 5);
    let settings = PoolConfig::new("shop", "postgres://shop@pooler/shop", fleet)
        .pooler(session)
        .transactional(PartitionConfig::transactional(20))
        .analytical(reports)
        .partition(
            batch
                .url("postgres://shop@other/shop")
                .pooler(PoolerConfig::transaction(400)),
        )
        .resolve()
        .unwrap();
    let stated = settings.partitions.iter().map(|it| it.pooler.as_ref());
    let stated: Vec<_> = stated.map(|it| it.map(|it| it.mode)).collect();
    let modes = [
        Some(PoolerMode::Session),
        None,
        Some(PoolerMode::Transaction),
    ];
    assert_eq!(stated, modes);
    let file = PoolConfig::from_toml(POOLERS).unwrap();
    assert_eq!(file.resolve().unwrap(), settings);
    let variables = [
        ("SERVICE", "shop"),
        ("URL", "postgres://shop@pooler/shop"),
        ("FLEET_MAX_REPLICAS", "3"),
        ("FLEET_SURGE", "0"),
        ("POOLER_MODE", "session"),
        ("POOLER_MAX_CLIENT_CONN", "500"),
        ("POOLER_DEFAULT_POOL_SIZE", "60"),
        ("POOLER_MAX_DB_CONNECTIONS", "90"),
        ("PARTITIONS", "transactional,analytical,batch"),
        ("TRANSACTIONAL_MAX_CONNECTIONS", "20"),
        ("ANALYTICAL_MAX_CONNECTIONS", "10"),
        ("ANALYTICAL_URL", "postgres://shop@standby/shop"),
        ("BATCH_KIND", "analytical"),
        ("BATCH_MAX_CONNECTIONS", "5"),
        ("BATCH_URL", "postgres://shop@other/shop"),
        ("BATCH_POOLER_MODE", "transaction"),
        ("BATCH_POOLER_MAX_CLIENT_CONN", "400"),
    ];
    let variables = variables.map(|(name, value)| (format!("SHOP_DB_{name}"), value.to_owned()));
    let environment = PoolConfig::from_vars("SHOP_DB", variables).unwrap();
    assert_eq!(environment.resolve().unwrap(), settings);

    let over = ("SHOP_DB_POOLER_MAX_CLIENT_CONN".to_owned(), "7".to_owned());
    let over = file
        .apply_vars("SHOP_DB", [over])
        .unwrap()
        .resolve()
        .unwrap();
    let of_pool = over.partitions[0].pooler.as_ref().unwrap();
    assert_eq!(of_pool.max_client_conn.get(), 7);
    assert_eq!(over.partitions[2], settings.partitions[2]);
}

#[test]
fn what_is_wrong_with_a_pooler_is_said_with_its_field_and_its_line() {
    for (from, to, field, told) in [
        (
            "mode = 'session'",
            "",
            "pooler.mode",
            "state \"session\" or \"transaction\"",
        ),
        (
            "mode = 'session'",
            "mode = 'statement'",
            "pooler.mode",
            "expected \"session\" or \"transaction\"",
        ),
        (
            "max_client_conn = 500",
            "",
            "pooler.max_client_conn",
            "there is no default",
        ),
        (
            "max_client_conn = 500",
            "max_client_conn = 0",
            "pooler.max_client_conn",
            "at least 1",
        ),
        (
            "default_pool_size = 60",
            "",
            "pooler.default_pool_size",
            "each client needs one",
        ),
        (
            "max_db_connections = 90",
            "max_db_connections = 0",
            "pooler.max_db_connections",
            "at least 1",
        ),
        (
            "max_db_connections = 90",
            "size = 90",
            "pooler.size",
            "unknown key",
        ),
        (
            "max_client_conn = 400",
            "max_client_conn = 400\ndefault_pool_size = 9",
            "partition.batch.pooler.default_pool_size",
            "only with mode",
        ),
        (
            "url = 'postgres://shop@other/shop'",
            "",
            "partition.batch.pooler",
            "where a url is stated",
        ),
        (
            "max_connections = 5",
            "max_connections = 5\nreset_session = true",
            "partition.batch.reset_session",
            "no session to reset",
        ),
        (
            "[partition.pooler]",
            "[partition.poler]",
            "partition.batch.poler",
            "unknown key",
        ),
    ] {
        let text = POOLERS.replacen(from, to, 1);
        assert_ne!(text, POOLERS);
        let error = PoolConfig::from_toml(&text).and_then(|config| config.resolve());
        let error = error.unwrap_err();
        let [problem] = error.problems() else {
            panic!("{error}")
        };
        assert_eq!(problem.field, field);
        assert!(problem.problem.contains(told), "{error}");
        assert!(problem.origin.is_some() || to.is_empty(), "{error}");
    }
}

#[test]
fn seats_do_not_go_with_a_pooler_in_transaction_mode() {
    let seated = |text: &str| {
        let stated = format!("{text}\n[fleet.seats]\ncount = 3\n");
        PoolConfig::from_toml(&stated).and_then(|config| config.resolve())
    };
    let error = seated(POOLERS).unwrap_err();
    let [problem] = error.problems() else {
        panic!("{error}")
    };
    assert_eq!(problem.field, "fleet.seats");
    assert!(
        problem.problem.contains("before the partition batch"),
        "{error}"
    );
    let session = "mode = 'session'\n    default_pool_size = 9";
    seated(&POOLERS.replace("mode = 'transaction'", session)).unwrap();
}

#[test]
fn an_external_pool_may_name_its_role_and_database() {
    let text = Stated::base().toml()
        + "[[fleet.external]]\nname = 'jobs'\nsize = 4\nrole = 'worker'\ndatabase = 'queue'";
    let settings = PoolConfig::from_toml(&text).unwrap().resolve().unwrap();
    let jobs = &settings.fleet.external[0];
    assert_eq!(
        (jobs.role.as_deref(), jobs.database.as_deref()),
        (Some("worker"), Some("queue"))
    );
    for (field, value) in [
        ("size", "0"),
        ("size", "-1"),
        ("role", "''"),
        ("database", "''"),
        ("colour", "1"),
    ] {
        let key = format!("\n{field} = ");
        let rest = "name = 'jobs'\nsize = 4\nrole = 'worker'\ndatabase = 'queue'".lines();
        let rest: Vec<_> = rest.filter(|line| !line.starts_with(field)).collect();
        let text = format!(
            "{}[[fleet.external]]\n{}{key}{value}",
            Stated::base().toml(),
            rest.join("\n")
        );
        let error = PoolConfig::from_toml(&text)
            .and_then(|config| config.resolve())
            .unwrap_err();
        assert_eq!(
            error.problems()[0].field,
            format!("fleet.external.jobs.{field}")
        );
    }
}

#[test]
fn the_defaults_differ_by_kind() {
    let settings = Stated::base().through_toml().unwrap();
    let [transactional, analytical] = &settings.partitions[..] else {
        panic!("{settings:?}")
    };
    assert_eq!(
        (
            transactional.max_waiters,
            transactional.min_idle,
            transactional.reserved
        ),
        (40, 5, 20)
    );
    assert_eq!(
        (
            analytical.max_waiters,
            analytical.min_idle,
            analytical.reserved
        ),
        (0, 0, 10)
    );
    assert_eq!(
        transactional.statement_timeout,
        Some(Duration::from_secs(5))
    );
    assert_eq!(analytical.statement_timeout, Some(Duration::from_secs(300)));
    assert_eq!(analytical.application_name, "shop/analytical");
    assert_eq!(settings.boot.when_unavailable, WhenUnavailable::Fail);
    assert_eq!(settings.fleet.mode, FleetCheck::Enforce);
}

#[test]
fn what_must_be_stated_is_reported_at_once() {
    let error = PoolConfig::default().resolve().unwrap_err();
    let fields: Vec<_> = error
        .problems()
        .iter()
        .map(|problem| problem.field.as_str())
        .collect();
    let expected = [
        "service",
        "url",
        "fleet.max_replicas",
        "fleet.surge",
        "partition.transactional.max_connections",
        "partition.analytical.max_connections",
    ];
    assert_eq!(fields, expected);
    assert_eq!(
        error.problems()[4].problem,
        "state max_connections; there is no default size"
    );
}

#[test]
fn what_is_missing_in_the_environment_is_named_as_a_variable() {
    let error = PoolConfig::from_vars(PREFIX, [])
        .unwrap()
        .resolve()
        .unwrap_err()
        .to_string();
    for name in [
        "SERVICE",
        "URL",
        "FLEET_SURGE",
        "TRANSACTIONAL_MAX_CONNECTIONS",
        "ANALYTICAL_MAX_CONNECTIONS",
    ] {
        assert!(error.contains(&format!("({PREFIX}_{name}): ")), "{error}");
    }
}

#[test]
fn unknown_keys_are_named_wherever_they_are() {
    let base = Stated::base().toml();
    for (text, field) in [
        (format!("colour = 1\n{base}"), "colour"),
        (base.replace("surge", "colour = 1\nsurge"), "fleet.colour"),
        (base.replace("[boot]", "[boot]\ncolour = 1"), "boot.colour"),
        (
            base.replace("max_connections = 10", "max_connections = 10\ncolour = 1"),
            "partition.analytical.colour",
        ),
    ] {
        let error = PoolConfig::from_toml(&text).unwrap_err();
        assert_eq!(error.problems()[0].field, field);
        assert!(
            error.problems()[0]
                .problem
                .starts_with("unknown key; known here are "),
            "{error}"
        );
    }
}

#[test]
fn unknown_variables_are_named() {
    for name in [
        "COLOUR",
        "FLEET_COLOUR",
        "BOOT_COLOUR",
        "BUDGET_COLOUR",
        "BUDGET",
        "ANALYTICAL_COLOUR",
        "ANALYTICAL_NAME",
        "Url",
        "",
        "FLEET",
    ] {
        let variables = [(format!("{PREFIX}_{name}"), "1".to_owned())];
        let error = PoolConfig::from_vars(PREFIX, variables).unwrap_err();
        assert_eq!(error.problems()[0].field, format!("{PREFIX}_{name}"));
        assert!(
            error.problems()[0].problem.starts_with("unknown"),
            "{error}"
        );
    }
}

#[test]
fn a_table_in_the_wrong_shape_is_explained() {
    for (text, field, problem) in [
        (
            "[partition.batch]\nmax_connections = 1",
            "partition",
            "write [[partition]], with two brackets",
        ),
        ("partition = [1]", "partition[1]", "expected a table"),
        ("budget = 'main'", "budget", "write [[budget]]"),
        ("fleet = 3", "fleet", "expected a table"),
        (
            "[fleet]\nexternal = 'jobs=4'",
            "fleet.external",
            "write [[fleet.external]]",
        ),
    ] {
        let error = PoolConfig::from_toml(text).unwrap_err();
        assert_eq!(error.problems()[0].field, field);
        assert!(error.problems()[0].problem.starts_with(problem), "{error}");
    }
}

#[test]
fn every_wrong_type_of_a_file_is_reported_at_once() {
    let error =
        PoolConfig::from_toml("service = 1\nurl = []\n[fleet]\nsurge = '1'\n[boot]\nwait = 30")
            .unwrap_err();
    let lines: Vec<_> = error.problems().iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "boot.wait (line 6): expected a duration with its unit, such as \"250ms\", \"5s\" or \"10min\", found a number",
            "fleet.surge (line 4): expected a whole number without quotes, found text",
            "service (line 1): expected a string, found a number",
            "url (line 2): expected a string, found an array",
        ]
    );
}

#[test]
fn what_is_not_toml_is_reported_with_line_and_key_but_without_the_line() {
    let error = PoolConfig::from_toml("service = 'shop'\nurl = postgres://shop:s3cret@db/shop")
        .unwrap_err();
    let problem = &error.problems()[0];
    assert_eq!(
        (problem.field.as_str(), problem.origin.as_deref()),
        ("url", Some("line 2"))
    );
    assert!(problem.problem.starts_with("is not TOML: "), "{error}");
    assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
}

#[test]
fn a_file_is_read_with_its_path_in_every_message() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool.toml");
    let missing = PoolConfig::from_toml_file(&path).unwrap_err();
    assert_eq!(missing.problems()[0].field, path.display().to_string());

    std::fs::write(&path, Stated::base().toml().replace("20", "0")).unwrap();
    let error = PoolConfig::from_toml_file(&path)
        .unwrap()
        .resolve()
        .unwrap_err();
    assert_eq!(
        error.problems()[0].origin,
        Some(format!("{} line 9", path.display()))
    );
}

#[test]
fn the_environment_overrides_a_file_field_by_field() {
    let mut stated = Stated::base();
    stated.boot = fields(&[("when_unavailable", "wait"), ("wait", "30s")]);
    let file = PoolConfig::from_toml(&stated.toml()).unwrap();
    let variables = [
        ("URL", "postgres://other/shop"),
        ("TRANSACTIONAL_MAX_CONNECTIONS", "30"),
        ("BOOT_WHEN_UNAVAILABLE", "start"),
        ("FLEET_SURGE", "0"),
    ];
    let variables = variables.map(|(name, value)| (format!("{PREFIX}_{name}"), value.to_owned()));
    let settings = file
        .apply_vars(PREFIX, variables)
        .unwrap()
        .resolve()
        .unwrap();
    let [transactional, analytical] = &settings.partitions[..] else {
        panic!("{settings:?}")
    };
    assert_eq!(transactional.url.expose(), "postgres://other/shop");
    assert_eq!(
        (
            transactional.max_connections.get(),
            analytical.max_connections.get()
        ),
        (30, 10)
    );
    assert_eq!(
        (settings.fleet.surge, settings.boot.when_unavailable),
        (0, WhenUnavailable::Start)
    );
}

#[test]
fn a_wrong_override_is_named_as_the_variable_and_the_rest_by_its_line() {
    let mut stated = Stated::base();
    put(&mut stated.partitions[1], "lock_timeout", "0s");
    let variables = [(
        format!("{PREFIX}_ANALYTICAL_MAX_CONNECTIONS"),
        "0".to_owned(),
    )];
    let config = PoolConfig::from_toml(&stated.toml())
        .unwrap()
        .apply_vars(PREFIX, variables)
        .unwrap();
    let error = config.resolve().unwrap_err();
    let origins: Vec<_> = error
        .problems()
        .iter()
        .map(|problem| problem.origin.clone().unwrap())
        .collect();
    assert_eq!(origins, ["SHOP_DB_ANALYTICAL_MAX_CONNECTIONS", "line 13"]);
}

#[test]
fn partitions_that_a_file_states_cannot_be_listed_again() {
    let file = PoolConfig::from_toml(&Stated::base().toml()).unwrap();
    let variables = [(format!("{PREFIX}_PARTITIONS"), "analytical".to_owned())];
    let error = file.apply_vars(PREFIX, variables).unwrap_err();
    assert_eq!(error.problems()[0].field, "SHOP_DB_PARTITIONS");
}

#[test]
fn names_whose_variables_are_not_their_own_are_refused() {
    for (names, named) in [
        ("a-b,a_b", "SHOP_DB_A_B"),
        ("fleet", "SHOP_DB_FLEET"),
        ("boot-x", "SHOP_DB_BOOT_X"),
        ("budget", "SHOP_DB_BUDGET"),
    ] {
        let variables = [(format!("{PREFIX}_PARTITIONS"), names.to_owned())];
        let error = PoolConfig::from_vars(PREFIX, variables).unwrap_err();
        assert_eq!(error.problems()[0].field, named);
        assert!(
            error.problems()[0].problem.starts_with("is ambiguous"),
            "{error}"
        );
    }
}

#[test]
fn a_partition_whose_name_begins_with_anothers_has_its_own_variables() {
    let mut stated = Stated::base();
    for (name, size) in [("batch", "3"), ("batch_max", "4"), ("batch-url", "5")] {
        stated.partitions.push(fields(&[
            ("name", name),
            ("kind", "analytical"),
            ("max_connections", size),
        ]));
    }
    put(&mut stated.partitions[2], "max_hold", "7s");
    assert_eq!(
        stated.through_variables().unwrap(),
        stated.through_toml().unwrap()
    );
}

#[test]
fn a_prefix_that_cannot_be_one_is_refused() {
    for prefix in ["", "SHOP_DB_", "SHOP DB", "SHOP=DB"] {
        assert!(PoolConfig::from_vars(prefix, []).is_err(), "{prefix:?}");
    }
}

#[test]
fn names_are_unique_and_each_is_reported_once() {
    let config = built()
        .transactional(PartitionConfig::transactional(20))
        .transactional(PartitionConfig::transactional(20))
        .transactional(PartitionConfig::transactional(20))
        .analytical(PartitionConfig::analytical(10));
    let error = config.resolve().unwrap_err();
    assert_eq!(error.problems().len(), 1, "{error}");
    assert_eq!(error.problems()[0].field, "partition.transactional");
}

#[test]
fn a_partition_in_the_place_of_another_is_refused() {
    let config = built()
        .transactional(PartitionConfig::analytical(10))
        .analytical(PartitionConfig::transactional(20));
    let error = config.resolve().unwrap_err();
    let fields: Vec<_> = error
        .problems()
        .iter()
        .map(|problem| problem.field.as_str())
        .collect();
    assert_eq!(fields, ["partition.transactional", "partition.analytical"]);
}

#[test]
fn a_named_partition_must_state_its_kind() {
    let mut stated = Stated::base();
    stated
        .partitions
        .push(fields(&[("name", "batch"), ("max_connections", "5")]));
    let error = stated.through_toml().unwrap_err();
    assert_eq!(error.problems()[0].field, "partition.batch.kind");
}

#[test]
fn a_bound_on_waiting_is_stated_if_and_only_if_boot_waits() {
    for (word, wait, fits) in [
        ("wait", None, false),
        ("wait", Some("1s"), true),
        ("fail", Some("1s"), false),
    ] {
        let mut stated = Stated::base();
        put(&mut stated.boot, "when_unavailable", word);
        wait.iter()
            .for_each(|wait| put(&mut stated.boot, "wait", wait));
        let error = stated.through_toml().err();
        assert_eq!(error.is_none(), fits, "{word} {wait:?}");
        assert!(
            error
                .iter()
                .all(|error| error.problems()[0].field == "boot.wait"),
            "{error:?}"
        );
    }
}

#[test]
fn a_url_of_each_partition_makes_the_common_one_unnecessary() {
    let mut stated = Stated::base();
    stated.pool.retain(|(key, _)| key != "url");
    put(&mut stated.partitions[0], "url", "postgres://a/shop");
    assert_eq!(
        stated.through_toml().unwrap_err().problems()[0].field,
        "url"
    );
    put(&mut stated.partitions[1], "url", "postgres://b/shop");
    assert_eq!(
        stated.through_toml().unwrap().partitions[1].url.expose(),
        "postgres://b/shop"
    );
}

#[test]
fn an_application_name_that_postgres_would_cut_is_refused_with_its_length() {
    let service = |bytes: usize| {
        let mut stated = Stated::base();
        put(&mut stated.pool, "service", &"s".repeat(bytes));
        stated.through_toml()
    };
    assert_eq!(
        service(49).unwrap().partitions[0].application_name.len(),
        63
    );
    let error = service(50).unwrap_err();
    assert_eq!(error.problems()[0].field, "service");
    assert!(error.to_string().contains("has 64 bytes"), "{error}");
}

fn lines(error: &ConfigError) -> Vec<String> {
    error.problems().iter().map(ToString::to_string).collect()
}

fn sharing(capacity: u32, transactional: [u32; 2], analytical: [u32; 2]) -> PoolConfig {
    let [reserved, max] = transactional;
    let transactional = PartitionConfig::transactional(max).reserved(reserved);
    let [reserved, max] = analytical;
    let analytical = PartitionConfig::analytical(max).reserved(reserved);
    built()
        .budget(BudgetConfig::new("main", capacity))
        .transactional(transactional.budget("main"))
        .analytical(analytical.budget("main"))
}

#[test]
fn a_shared_budget_is_read_alike_and_holds_its_partitions_in_their_order() {
    let mut stated = Stated::shared();
    put(&mut stated.budgets[0], "hand_over", "declared_order");
    stated.partitions.insert(
        1,
        fields(&[
            ("name", "batch"),
            ("kind", "analytical"),
            ("max_connections", "3"),
        ]),
    );
    let budget = BudgetConfig::new("main", 30).hand_over(HandOver::DeclaredOrder);
    let transactional = PartitionConfig::transactional(25).reserved(12);
    let analytical = PartitionConfig::analytical(10).reserved(0);
    let settings = built()
        .budget(budget)
        .transactional(transactional.budget("main"))
        .partition(PartitionConfig::named("batch", Kind::Analytical, 3))
        .analytical(analytical.budget("main"))
        .resolve()
        .unwrap();
    assert_eq!(stated.through_toml().unwrap(), settings);
    assert_eq!(stated.through_variables().unwrap(), settings);
    let json = serde_json::from_str::<PoolConfig>(&json(&stated)).unwrap();
    assert_eq!(json.resolve().unwrap(), settings);

    let of = |budget: &BudgetSettings| {
        let partitions = budget.partitions.clone();
        (
            budget.name.clone(),
            budget.capacity.get(),
            budget.hand_over,
            partitions,
        )
    };
    let budgets: Vec<_> = settings.budgets.iter().map(of).collect();
    let main = ("main".to_owned(), 30, HandOver::DeclaredOrder, vec![0, 2]);
    let batch = ("batch".to_owned(), 3, HandOver::OldestFirst, vec![1]);
    assert_eq!(budgets, [main, batch]);
    let names = [0, 1, 2].map(|at| settings.budget_of(at).name.as_str());
    assert_eq!(names, ["main", "batch", "main"]);
    let reserved: Vec<_> = settings.partitions.iter().map(|it| it.reserved).collect();
    assert_eq!(reserved, [12, 3, 0]);
}

#[test]
fn a_variable_overrides_one_field_of_a_budget() {
    let file = PoolConfig::from_toml(&Stated::shared().toml()).unwrap();
    let variables = [("BUDGET_MAIN_CAPACITY", "40"), ("ANALYTICAL_RESERVED", "5")];
    let variables = variables.map(|(name, value)| (format!("{PREFIX}_{name}"), value.to_owned()));
    let settings = file
        .apply_vars(PREFIX, variables)
        .unwrap()
        .resolve()
        .unwrap();
    assert_eq!(settings, sharing(40, [12, 25], [5, 10]).resolve().unwrap());
}

#[test]
fn budgets_that_a_file_states_cannot_be_listed_again_nor_share_variables() {
    let file = PoolConfig::from_toml(&Stated::shared().toml()).unwrap();
    let variables = [(format!("{PREFIX}_BUDGETS"), "main".to_owned())];
    let error = file.apply_vars(PREFIX, variables).unwrap_err();
    assert_eq!(error.problems()[0].field, "SHOP_DB_BUDGETS");
    for (names, field) in [
        ("a-b,a_b", "SHOP_DB_BUDGET_A_B"),
        ("a,", "SHOP_DB_BUDGETS"),
        ("Main", "SHOP_DB_BUDGETS"),
    ] {
        let variables = [(format!("{PREFIX}_BUDGETS"), names.to_owned())];
        let error = PoolConfig::from_vars(PREFIX, variables).unwrap_err();
        assert_eq!(error.problems()[0].field, field);
    }
}

#[test]
fn what_a_shared_budget_cannot_keep_is_said_with_its_figures() {
    let cases = [
        (
            sharing(20, [12, 25], [0, 10]),
            "partition.transactional.max_connections: 25 is above the capacity of its budget main, which is 20",
        ),
        (
            sharing(25, [16, 25], [10, 10]),
            "budget.main.capacity: 25 is below what its partitions reserve: 16 transactional + 10 analytical = 26",
        ),
        (
            sharing(25, [25, 25], [0, 10]),
            "partition.analytical.reserved: is 0, and the others reserve all 25 of the budget main: its callers \
             would wait for ever; reserve 1 for it, or less for the others",
        ),
        (
            sharing(30, [26, 25], [0, 10]),
            "partition.transactional.reserved: 26 is above max_connections, which is 25",
        ),
        (
            sharing(0, [1, 2], [0, 1]),
            "budget.main.capacity: is 0; it must be at least 1",
        ),
        (
            sharing(30, [12, 25], [0, 10]).budget(BudgetConfig::new("spare", 5)),
            "budget.spare: no partition draws from it; state budget = \"spare\" in the partitions that do, or \
             leave it out",
        ),
        (
            sharing(30, [12, 25], [0, 10]).budget(BudgetConfig::new("main", 30)),
            "budget.main: is stated more than once; names are unique",
        ),
        (
            sharing(30, [12, 25], [0, 10]).partition(PartitionConfig::named(
                "main",
                Kind::Analytical,
                2,
            )),
            "budget.main: is also the name of a partition that does not draw from it; rename one of them",
        ),
        (
            sharing(30, [12, 25], [0, 10])
                .partition(PartitionConfig::named("batch", Kind::Analytical, 2).budget("mian")),
            "partition.batch.reserved: state how many slots of the budget are guaranteed to this partition (0 if \
             none); there is no default in a shared budget",
        ),
    ];
    for (config, problem) in cases {
        let lines = lines(&config.resolve().unwrap_err());
        assert_eq!(lines[0], problem);
        assert!(
            lines.len() == 1 || problem.contains("batch.reserved"),
            "{lines:?}"
        );
    }
}

#[test]
fn a_budget_that_is_not_stated_is_answered_with_those_that_are() {
    let drawing = |config: PoolConfig| {
        let batch = PartitionConfig::named("batch", Kind::Analytical, 2);
        let error = config.partition(batch.budget("mian").reserved(1)).resolve();
        lines(&error.unwrap_err())
    };
    assert_eq!(
        drawing(sharing(30, [12, 25], [0, 10])),
        ["partition.batch.budget: is not a budget; stated are main"]
    );
    let alone = built()
        .transactional(PartitionConfig::transactional(20))
        .analytical(PartitionConfig::analytical(10));
    assert_eq!(
        drawing(alone),
        [
            "partition.batch.budget: is not a budget; none is stated: state one with this name and a capacity, or \
             leave this out"
        ]
    );
}

#[test]
fn a_budget_may_have_the_name_of_a_partition_that_draws_from_it() {
    let config = built()
        .budget(BudgetConfig::new("transactional", 20))
        .transactional(
            PartitionConfig::transactional(20)
                .budget("transactional")
                .reserved(10),
        )
        .analytical(
            PartitionConfig::analytical(5)
                .budget("transactional")
                .reserved(0),
        );
    assert_eq!(config.resolve().unwrap().budgets.len(), 1);
}

#[test]
fn a_partition_that_reserves_less_than_it_may_hold_is_told_to_name_a_budget() {
    let config = built()
        .transactional(PartitionConfig::transactional(20).reserved(5))
        .analytical(PartitionConfig::analytical(10));
    assert_eq!(
        lines(&config.resolve().unwrap_err()),
        [
            "partition.transactional.reserved: 5 is below max_connections, which is 20: name a budget to borrow the \
             rest from, or leave reserved out"
        ]
    );
}

#[test]
fn in_a_shared_budget_no_more_is_filled_than_is_reserved() {
    let settings = |reserved| sharing(30, [reserved, 25], [0, 10]).resolve().unwrap();
    let filled = [0, 3, 12].map(|reserved| settings(reserved).partitions[0].min_idle);
    assert_eq!(filled, [0, 3, 7]);

    let own = |transactional: u32, analytical: u32| {
        let transactional = PartitionConfig::transactional(25).min_idle(transactional);
        let analytical = PartitionConfig::analytical(10).min_idle(analytical);
        built()
            .budget(BudgetConfig::new("main", 30))
            .transactional(transactional.budget("main").reserved(0))
            .analytical(analytical.budget("main").reserved(0))
            .resolve()
    };
    assert_eq!(own(20, 10).unwrap().partitions[1].min_idle, 10);
    assert_eq!(
        lines(&own(21, 10).unwrap_err()),
        [
            "budget.main.capacity: 30 is below the min_idle of its partitions: 21 transactional + 10 analytical = 31"
        ]
    );
}

#[test]
fn every_problem_of_a_budget_is_found_at_once_with_its_line() {
    let mut stated = Stated::shared();
    put(&mut stated.budgets[0], "capacity", "20");
    put(&mut stated.partitions[0], "reserved", "20");
    stated.budgets.push(fields(&[("name", "spare")]));
    let error = stated.through_toml().unwrap_err();
    let places = error
        .problems()
        .iter()
        .map(|it| (it.field.as_str(), it.origin.as_deref()));
    let expected = [
        ("budget.spare.capacity", None),
        ("partition.transactional.max_connections", Some("line 15")),
        ("partition.analytical.reserved", Some("line 20")),
        ("budget.spare", Some("line 10")),
    ];
    assert_eq!(places.collect::<Vec<_>>(), expected);
}

/// A password in marked parts, with whatever may break a parser between them.
fn password() -> impl Strategy<Value = String> {
    let glue = || prop_oneof!["[@/?#:%&= ,;'\"\\\\\\[\\]{}\n]{0,3}", "\\PC{0,5}"];
    (glue(), glue(), glue()).prop_map(|(a, b, c)| format!("{a}S3CR{b}S3CR{c}"))
}

fn assert_silent(text: &str) {
    assert!(!text.contains("S3CR"), "{text}");
}

fn assert_no_secret(read: Result<PoolConfig, ConfigError>) {
    match read {
        Err(error) => assert_silent(&format!("{error} {error:?}")),
        Ok(config) => {
            assert_silent(&format!("{config:?} {config:#?}"));
            match config.resolve() {
                Err(error) => assert_silent(&format!("{error} {error:?}")),
                Ok(settings) => assert_silent(&format!("{settings:?} {settings:#?}")),
            }
        }
    }
}

/// Texts in which the URL is where it belongs, where it does not, and where it breaks the syntax. Names are left
/// out: a name that keeps the rule is printed.
fn files_with(url: &str) -> Vec<String> {
    let base = Stated::base().toml();
    let mut files = vec![
        base.replace("\"postgres://shop:pw@db/shop\"", &toml_string(url)),
        base.replace("\"postgres://shop:pw@db/shop\"", url),
        base.replace("\"postgres://shop:pw@db/shop\"", &format!("\"{url}\"")),
        // A quote in it would end the text before the rest, and leave a URL of another host and database.
        base.replace(
            "\"postgres://shop:pw@db/shop\"",
            &format!("'{}", url.replace('\'', "")),
        ),
        base.replace(
            "url = \"postgres://shop:pw@db/shop\"",
            &format!("url {url}"),
        ),
        format!("{url}\n{base}"),
        format!("{} = 1\n{base}", toml_string(url)),
        format!("urll = {}\n{base}", toml_string(url)),
        format!("partition = {}", toml_string(url)),
        format!("fleet = {}", toml_string(url)),
        format!("[{}]", toml_string(url)),
        format!("url = {0}\nurl = {0}", toml_string(url)),
    ];
    for field in fields_of::<PartitionConfig>()
        .iter()
        .filter(|field| **field != "name")
    {
        let mut stated = Stated::base();
        put(&mut stated.partitions[0], field, url);
        files.push(stated.toml());
    }
    files
}

fn variables_with(url: &str) -> Vec<(String, String)> {
    let parts = [
        ("", fields_of::<PoolConfig>()),
        ("FLEET_", fields_of::<FleetConfig>()),
        ("BOOT_", fields_of::<BootConfig>()),
        ("BUDGET_MAIN_", fields_of::<BudgetConfig>()),
        ("ANALYTICAL_", fields_of::<PartitionConfig>()),
        ("", &["partitions", "budgets", "colour"]),
    ];
    let named = |table: &str, field: &str| {
        (
            format!("{PREFIX}_{table}{}", field.to_uppercase()),
            url.to_owned(),
        )
    };
    let of_table = |(table, fields): (&'static str, &'static [&'static str])| {
        fields.iter().map(move |field| named(table, field))
    };
    let variables = parts.into_iter().flat_map(of_table);
    variables
        .filter(|(name, _)| !name.ends_with("_SERVICE"))
        .chain([(format!("{PREFIX}_{url}"), String::new())])
        .collect()
}

const SETTINGS: &str = "
    work_mem = '64MB'
    Max_Parallel_Workers_Per_Gather = 0
    random_page_cost = 1.10
    default_transaction_read_only = true
    jit = false
    'pg_trgm.similarity_threshold' = '0.5'
";

#[test]
fn settings_are_the_same_from_code_a_file_json_and_the_environment() {
    let base = Stated::base();
    let file = base.toml().replace(
        "[[partition]]\nname = \"analytical\"",
        &format!("[partition.settings]\n{SETTINGS}\n[[partition]]\nname = \"analytical\""),
    );
    let file = PoolConfig::from_toml(&file).unwrap().resolve().unwrap();
    let expected = [
        ("default_transaction_read_only", "on"),
        ("jit", "off"),
        ("max_parallel_workers_per_gather", "0"),
        ("pg_trgm.similarity_threshold", "0.5"),
        ("random_page_cost", "1.10"),
        ("work_mem", "64MB"),
    ];
    let stated = &file.partitions[0].session_settings;
    let stated: Vec<_> = stated
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(stated, expected);

    let set =
        |partition: PartitionConfig, (name, value): &(&str, &str)| partition.setting(name, *value);
    let transactional = expected
        .iter()
        .fold(PartitionConfig::transactional(20), set);
    let code = built()
        .transactional(transactional)
        .analytical(PartitionConfig::analytical(10));
    assert_eq!(code.resolve().unwrap(), file);

    let variables = expected.map(|(name, value)| {
        let name = name.to_uppercase().replace('.', "__");
        (
            format!("{PREFIX}_TRANSACTIONAL_SETTINGS_{name}"),
            value.to_owned(),
        )
    });
    let environment = PoolConfig::from_vars(PREFIX, base.variables().into_iter().chain(variables));
    assert_eq!(environment.unwrap().resolve().unwrap(), file);

    let json = serde_json::json!({
        "service": "shop", "url": "postgres://shop:pw@db/shop",
        "fleet": { "max_replicas": 3, "surge": 1 },
        "partition": [
            { "name": "transactional", "max_connections": 20, "settings": {
                "work_mem": "64MB", "max_parallel_workers_per_gather": 0, "random_page_cost": "1.10",
                "default_transaction_read_only": true, "jit": false, "pg_trgm.similarity_threshold": 0.5 } },
            { "name": "analytical", "max_connections": 10 },
        ],
    });
    let json: PoolConfig = serde_json::from_value(json).unwrap();
    assert_eq!(json.resolve().unwrap(), file);
}

#[test]
fn the_environment_overrides_one_setting_and_keeps_the_others() {
    let file = PoolConfig::from_toml(
        &(Stated::base().toml() + "settings = { jit = 'off', work_mem = '1MB' }"),
    );
    let variable = (
        format!("{PREFIX}_ANALYTICAL_SETTINGS_WORK_MEM"),
        "9MB".to_owned(),
    );
    let settings = file
        .unwrap()
        .apply_vars(PREFIX, [variable])
        .unwrap()
        .resolve()
        .unwrap();
    let stated: Vec<_> = settings.partitions[1].session_settings.values().collect();
    assert_eq!(stated, ["off", "9MB"]);
}

#[test]
fn settings_that_belong_to_others_are_refused_with_what_to_use() {
    for (name, says) in [
        ("statement_timeout", "field of the partition"),
        ("transaction_timeout", "field of the partition"),
        ("Application_Name", "<service>/<partition>"),
        ("tcp_keepalives_idle", "set by the pool"),
        ("client_connection_check_interval", "set by the pool"),
        ("role", "by a url"),
        ("client_encoding", "UTF8"),
        ("transaction_read_only", "default_transaction_read_only"),
        ("work mem", "named as in Postgres"),
        ("a.", "named as in Postgres"),
        ("1a", "named as in Postgres"),
        ("", "named as in Postgres"),
    ] {
        let wrong = PartitionConfig::transactional(20).setting(name, "1");
        let error = built()
            .transactional(wrong)
            .analytical(PartitionConfig::analytical(10))
            .resolve();
        let error = error.unwrap_err();
        let [problem] = error.problems() else {
            panic!("{error}")
        };
        assert!(
            problem
                .field
                .starts_with("partition.transactional.settings."),
            "{problem}"
        );
        assert!(problem.problem.contains(says), "{problem}");
    }
    let wrong = Stated::base().toml() + "\n[partition.settings]\nrole = 'x'\nwork_mem = ['x']";
    let error = PoolConfig::from_toml(&wrong).unwrap_err();
    let [problem] = error.problems() else {
        panic!("{error}")
    };
    assert_eq!(problem.field, "partition.analytical.settings.work_mem");
    assert!(
        problem
            .problem
            .contains("text, a number or a boolean, found an array"),
        "{problem}"
    );
    let variable = (format!("{PREFIX}_ANALYTICAL_SETTINGS_ROLE"), "x".to_owned());
    let file = PoolConfig::from_toml(&Stated::base().toml()).unwrap();
    let error = file
        .apply_vars(PREFIX, [variable])
        .unwrap()
        .resolve()
        .unwrap_err();
    assert_eq!(
        error.problems()[0].origin.as_deref(),
        Some("SHOP_DB_ANALYTICAL_SETTINGS_ROLE")
    );
}

#[test]
fn warnings_are_silenced_by_their_codes_wherever_they_are_stated() {
    let all = WarningCode::ALL.map(WarningCode::as_str);
    let base = Stated::base();
    let file = base
        .toml()
        .replace("[boot]\n", &format!("[boot]\nsilence = {all:?}\n"));
    let file = PoolConfig::from_toml(&file).unwrap().resolve().unwrap();
    assert_eq!(file.boot.silence.len(), all.len());
    let variable = (format!("{PREFIX}_BOOT_SILENCE"), all.join(", "));
    let environment = PoolConfig::from_vars(PREFIX, base.variables().into_iter().chain([variable]));
    assert_eq!(environment.unwrap().resolve().unwrap(), file);
    let boot: BootConfig = serde_json::from_value(serde_json::json!({ "silence": all })).unwrap();
    assert_eq!(boot, BootConfig::new().silence(WarningCode::ALL));

    let unknown =
        PoolConfig::from_toml("[boot]\nsilence = ['shared_server', 'nothing', 5]").unwrap_err();
    assert_eq!(unknown.problems().len(), 2, "{unknown}");
    assert!(
        unknown.problems()[0].problem.contains("over_isolation"),
        "{unknown}"
    );
    assert!(!unknown.to_string().contains("nothing"), "{unknown}");
}

/// Counts, most of them near their bounds.
fn count() -> impl Strategy<Value = u32> {
    prop_oneof![0..30_u32, 262_140..262_146_u32, any::<u32>()]
}

/// Limits, of every order of magnitude.
fn limit() -> impl Strategy<Value = Limit> {
    let nanos = (0..64_u32, any::<u64>()).prop_map(|(shift, n)| Duration::from_nanos(n >> shift));
    let time = prop_oneof![
        nanos,
        any::<Duration>(),
        (0..100_000_u64).prop_map(Duration::from_millis)
    ];
    prop_oneof![1 => Just(Limit::Off), 9 => time.prop_map(Limit::After)]
}

fn time() -> impl Strategy<Value = Duration> {
    limit().prop_map(|limit| match limit {
        Limit::Off => Duration::ZERO,
        Limit::After(time) => time,
    })
}

fn any_partition() -> impl Strategy<Value = PartitionConfig> {
    let counts = (
        count(),
        prop::option::of(count()),
        prop::option::of(count()),
        prop::option::of(count()),
    );
    let waits = (prop::option::of(time()), prop::option::of(time()));
    let limits = prop::collection::vec(prop::option::of(limit()), 9);
    (counts, waits, limits).prop_map(|(counts, waits, limits)| PartitionConfig {
        reserved: counts.1,
        max_waiters: counts.2,
        min_idle: counts.3,
        acquire_timeout: waits.0,
        connect_timeout: waits.1,
        statement_timeout: limits[0],
        lock_timeout: limits[1],
        idle_in_transaction_session_timeout: limits[2],
        transaction_timeout: limits[3],
        hold_warning: limits[8],
        max_hold: limits[4],
        idle_timeout: limits[5],
        max_lifetime: limits[6],
        validate_after_idle: limits[7],
        reset_session: counts.2.map(|n| n % 2 == 0),
        ..PartitionConfig::transactional(counts.0)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_password_is_printed_wherever_it_is_written(password in password()) {
        let url = format!("postgres://shop:{password}@db/shop");
        for file in files_with(&url) {
            assert_no_secret(PoolConfig::from_toml(&file));
        }
        let all = variables_with(&url);
        assert_no_secret(PoolConfig::from_vars(PREFIX, all.clone()));
        for variable in all {
            assert_no_secret(PoolConfig::from_vars(PREFIX, [variable]));
        }
    }

    #[test]
    fn the_order_of_partitions_is_kept(
        extra in prop::collection::btree_set("[a-z0-9][a-z0-9_-]{0,8}", 0..6),
        seed in any::<u64>(),
    ) {
        let taken = ["transactional", "analytical"];
        let names = extra.iter().filter(|name| !taken.contains(&name.as_str()) && !name.contains(['-']));
        let names = names.filter(|name| !["fleet", "boot", "budget"].iter().any(|table| name.starts_with(table)));
        let mut names: Vec<_> = names.map(String::as_str).chain(taken).collect();
        let turn = usize::try_from(seed % 97).unwrap() % names.len();
        names.rotate_left(turn);
        let mut stated = Stated::base();
        stated.partitions = names.iter().map(|name| {
            let kind = if *name == "transactional" { "transactional" } else { "analytical" };
            fields(&[("name", *name), ("kind", kind), ("max_connections", "2")])
        }).collect();
        let config = names.iter().fold(built(), |config, name| {
            let kind = if *name == "transactional" { Kind::Transactional } else { Kind::Analytical };
            config.partition(PartitionConfig::named(*name, kind, 2))
        });
        let settings = config.resolve().unwrap();
        let order: Vec<_> = settings.partitions.iter().map(|partition| partition.name.as_str()).collect();
        prop_assert_eq!(order, names);
        prop_assert_eq!(&stated.through_toml().unwrap(), &settings);
        prop_assert_eq!(&stated.through_variables().unwrap(), &settings);
        let json = serde_json::from_str::<PoolConfig>(&json(&stated)).unwrap();
        prop_assert_eq!(&json.resolve().unwrap(), &settings);
    }

    #[test]
    fn any_text_is_read_or_refused_but_never_panics(text in "\\PC{0,200}", at in any::<prop::sample::Index>()) {
        _ = PoolConfig::from_toml(&text).map(|config| config.resolve());
        let mut torn = Stated::base().toml();
        let at = torn.char_indices().map(|(at, _)| at).nth(at.index(torn.len())).unwrap();
        torn.insert_str(at, &text);
        _ = PoolConfig::from_toml(&torn).map(|config| config.resolve());
        _ = PoolConfig::from_toml(&torn[..at]).map(|config| config.resolve());
    }

    #[test]
    fn any_variables_are_read_or_refused_but_never_panic(
        variables in prop::collection::vec(("SHOP_DB_[A-Z_]{0,12}", "\\PC{0,30}"), 0..6),
        part in prop::sample::select(variables_with("")),
        value in "\\PC{0,30}",
    ) {
        let variables = variables.into_iter().chain([(part.0, value)]);
        _ = PoolConfig::from_vars(PREFIX, variables).map(|config| config.resolve());
    }

    #[test]
    fn what_is_accepted_cannot_be_wrong(partition in any_partition()) {
        let config = built().transactional(partition.clone()).analytical(PartitionConfig::analytical(1));
        let Ok(settings) = config.resolve() else { return Ok(()) };
        let it = &settings.partitions[0];
        prop_assert_eq!(Some(it.max_connections.get()), partition.max_connections);
        prop_assert_eq!(it.reserved, it.max_connections.get());
        prop_assert!(it.min_idle <= it.max_connections.get());
        prop_assert!(!it.acquire_timeout.is_zero() && !it.connect_timeout.is_zero());
        let limits = [it.statement_timeout, it.lock_timeout, it.idle_in_transaction_session_timeout, it.transaction_timeout];
        for limit in limits.into_iter().flatten() {
            let milliseconds = i32::try_from(limit.as_millis()).unwrap();
            prop_assert!(milliseconds > 0);
            prop_assert_eq!(limit, Duration::from_millis(milliseconds.unsigned_abs().into()));
        }
        for limit in [it.hold_warning, it.max_hold, it.idle_timeout, it.max_lifetime, it.validate_after_idle].into_iter().flatten() {
            prop_assert!(!limit.is_zero());
        }
    }
}
