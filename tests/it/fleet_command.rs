//! `partitioned-pool fleet`, as people and pipelines run it.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
use partitioned_pool::fleet::{Login, Wall};
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error, NoTls};

use crate::cli::{BINARY, json, refused, shown_in_the_readme, stdout};
use crate::support::patience::{LONG, eventually};
use crate::support::server::on_each_version;
use crate::support::tenant::Tenant;

/// Four replicas of 20 + 10, of which one is the surge.
const FLEET: [&str; 8] = [
    "--partition",
    "transactional=20",
    "--partition",
    "analytical=10",
    "--max-replicas",
    "3",
    "--surge",
    "1",
];

const SECRET: &str = "hunter2";

fn fleet<S: AsRef<OsStr>>(command: &str, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut run = Command::new(BINARY);
    run.arg("fleet").arg(command).args(arguments);
    run.current_dir(env!("CARGO_MANIFEST_DIR"));
    for variable in ["DATABASE_URL", "PGPASSWORD"] {
        run.env_remove(variable);
    }
    run
}

/// The check of [`FLEET`] with these arguments.
fn check(arguments: &[&str]) -> Command {
    fleet("check", FLEET.iter().chain(arguments))
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

/// Refused in one line that says this, soon, and without the secret.
#[track_caller]
fn says(command: &mut Command, words: &[&str]) -> String {
    let began = Instant::now();
    let line = refused(&run(command));
    assert!(began.elapsed() < LONG, "{:?}: {line}", began.elapsed());
    assert!(!line.contains(SECRET), "{line}");
    for word in words {
        assert!(line.contains(word), "no {word:?} in: {line}");
    }
    line
}

fn file(text: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

fn with_config(command: &str, text: &str, arguments: &[&str]) -> (Command, NamedTempFile) {
    let file = file(text);
    let mut run = fleet(command, ["--config"]);
    run.arg(file.path()).args(arguments);
    (run, file)
}

/// A service at this url, with what else there is to state.
fn service(url: &str, more: &str) -> String {
    format!(
        r#"
service = "shop"
url = "{url}"
{more}
[fleet]
max_replicas = 3
surge = 1
reserve = 5
[[partition]]
name = "transactional"
max_connections = 20
[[partition]]
name = "analytical"
max_connections = 10
"#
    )
}

const NOWHERE: &str = "postgres://app:hunter2@127.0.0.1:1/shop";

#[test]
fn a_fleet_that_fits_and_one_that_does_not_differ_in_the_exit_code() {
    let offline = |max: &str| run(&mut check(&["--offline", "--max-connections", max]));
    let text = stdout(&offline("123"), 0);
    assert!(text.starts_with("fleet check: fits\n"), "{text}");
    assert!(text.contains("no server was asked"), "{text}");
    let text = stdout(&offline("122"), 1);
    let told = "fleet check: does not fit, 1 too many on the-server:5432\n";
    assert!(text.starts_with(told), "{text}");
    assert!(
        text.contains("Largest fleet that fits: 2 replicas"),
        "{text}"
    );
}

#[test]
fn the_readme_shows_what_is_printed() {
    let config = ["--config", "examples/fleet_check.toml"];
    let limits = ["--offline", "--max-connections", "80"];
    let text = stdout(&run(&mut fleet("check", config.iter().chain(&limits))), 1);
    let shown = shown_in_the_readme("fleet check");
    assert!(shown.lines().count() > 6 && text.contains(&shown), "{text}");
}

#[test]
fn every_limit_that_is_stated_counts() {
    for (limits, granted, kind) in [
        (&["--max-connections", "100"][..], 97, "server"),
        (
            &["--max-connections", "100", "--superuser-reserved", "10"],
            90,
            "server",
        ),
        (
            &["--max-connections", "100", "--reserved", "5"],
            92,
            "server",
        ),
        (
            &[
                "--max-connections",
                "100",
                "--reserved",
                "5",
                "--server-version",
                "15",
            ],
            97,
            "server",
        ),
        (
            &["--max-connections", "500", "--role-limit", "60"],
            60,
            "role",
        ),
        (
            &["--max-connections", "500", "--database-limit", "70"],
            70,
            "database",
        ),
    ] {
        let arguments = [&["--json", "--offline"], limits].concat();
        let json = json(&run(&mut check(&arguments)), 1);
        assert_eq!(json["granted"], granted, "{limits:?}");
        assert_eq!(json["needed"], 120, "{limits:?}");
        assert_eq!(json["binding"]["scope"]["kind"], kind, "{limits:?}");
        assert_eq!(
            (&json["fits"], &json["offline"]),
            (&false.into(), &true.into())
        );
        let fleets = granted / 30 - 1;
        assert_eq!(json["largest_fleet"], fleets, "{limits:?}");
    }
}

#[test]
fn everything_beside_the_partitions_counts() {
    let limits = ["--json", "--offline", "--max-connections", "500"];
    let needed = |more: &[&str]| {
        let arguments = [&limits, more].concat();
        json(&run(&mut check(&arguments)), 0)["needed"].clone()
    };
    assert_eq!(
        needed(&["--external", "jobs=4", "--external", "mail=1"]),
        4 * 35
    );
    assert_eq!(needed(&["--reserve", "7"]), 4 * 30 + 7);
    assert_eq!(needed(&["--control", "1"]), 4 * 31);
}

#[test]
fn a_configuration_is_checked_offline_too_with_its_variables() {
    let offline = ["--json", "--offline", "--max-connections", "200"];
    let needed = |command: &mut Command| json(&run(command), 0)["needed"].clone();
    let (mut command, _file) = with_config("check", &service(NOWHERE, ""), &offline);
    assert_eq!(needed(&mut command), 4 * 30 + 5);
    command.args(["--env-prefix", "SHOP_DB"]);
    command.env("SHOP_DB_FLEET_SURGE", "2");
    assert_eq!(needed(&mut command), 5 * 30 + 5);

    let mut command = fleet("check", ["--env-prefix", "SHOP_DB"].iter().chain(&offline));
    for (variable, value) in [
        ("SERVICE", "shop"),
        ("URL", NOWHERE),
        ("FLEET_MAX_REPLICAS", "2"),
        ("FLEET_SURGE", "0"),
        ("TRANSACTIONAL_MAX_CONNECTIONS", "3"),
        ("ANALYTICAL_MAX_CONNECTIONS", "2"),
    ] {
        command.env(format!("SHOP_DB_{variable}"), value);
    }
    assert_eq!(needed(&mut command), 10);
}

#[test]
fn a_server_of_two_partitions_is_told_from_another_by_its_host_if_nobody_is_asked() {
    let text = service(NOWHERE, "") + "url = \"postgres://app@standby/shop\"\n";
    let offline = ["--json", "--offline", "--max-connections", "100"];
    let (mut command, _file) = with_config("check", &text, &offline);
    let json = json(&run(&mut command), 0);
    let needed = |n: usize| json["servers"][n]["constraints"][0]["needed"].clone();
    assert_eq!((needed(0), needed(1)), (85.into(), 45.into()));
}

#[test]
fn a_configuration_that_is_wrong_is_refused_in_one_line() {
    let good = service(NOWHERE, "");
    for (text, words) in [
        (
            service(NOWHERE, "speed = 3"),
            &["speed", "line 4", "unknown"][..],
        ),
        (
            good.replace("= 20", "= -20"),
            &["partition.transactional.max_connections", "whole number"],
        ),
        (
            good.replace("= 20", "= 0"),
            &["partition.transactional.max_connections", "at least 1"],
        ),
        (
            good.replace("\"analytical\"", "\"transactional\""),
            &["more than once", "partition.analytical"],
        ),
        (
            good.replace("surge = 1", ""),
            &["fleet.surge", "state how many more replicas"],
        ),
        (
            good.replace("surge = 1", "surge = 'hunter2'"),
            &["fleet.surge", "line 7"],
        ),
        (
            good.replace("service =", "service"),
            &["not TOML", "line 2"],
        ),
        (
            good.replace(":hunter2@", ":hunter2@x@"),
            &["url", "percent-encoded"],
        ),
        (
            good.replace("[fleet]", "[boot]\ncheck_timeout = \"0s\"\n[fleet]"),
            &["boot.check_timeout", "is 0"],
        ),
    ] {
        let (mut command, _file) = with_config("check", &text, &[]);
        says(&mut command, words);
    }
    says(
        &mut fleet("check", ["--config", "no-such-file.toml"]),
        &["no-such-file.toml", "cannot be read"],
    );
    let (mut command, _file) = with_config("check", &good, &["--env-prefix", "SHOP_DB"]);
    command.env("SHOP_DB_URLL", SECRET);
    says(&mut command, &["SHOP_DB_URLL"]);
}

#[test]
fn what_is_missing_or_does_not_go_together_is_refused_in_one_line() {
    let flags = |arguments: &[&str]| fleet("check", arguments);
    let without = |flag: &str| {
        let pairs = FLEET.chunks(2);
        let pairs = pairs.filter(|pair| pair[0] != flag && pair[1] != flag);
        let rest: Vec<_> = pairs.flatten().chain(&["--url", NOWHERE]).collect();
        fleet("check", rest)
    };
    let missing = "must be stated";
    let conflict = "cannot go with";
    for (mut command, words) in [
        (
            flags(&[]),
            &["--partition", "--max-replicas", "--surge", missing][..],
        ),
        (without("--surge"), &["--surge", missing]),
        (without("--max-replicas"), &["--max-replicas", missing]),
        (without("analytical=10"), &["--partition analytical=SIZE"]),
        (
            flags(&["--config", "a", "--partition", "a=1"]),
            &["--config", conflict, "--partition"],
        ),
        (
            flags(&["--config", "a", "--url", NOWHERE]),
            &["--config", conflict, "--url"],
        ),
        (
            flags(&["--env-prefix", "A", "--surge", "1"]),
            &["--env-prefix", conflict, "--surge"],
        ),
        (check(&[]), &["--url", "DATABASE_URL"]),
        (check(&["--offline"]), &["--max-connections", missing]),
        (
            check(&["--max-connections", "100"]),
            &["--offline", missing],
        ),
        (fleet("grow", [SECRET]), &["no such command"]),
    ] {
        says(&mut command, words);
    }
}

#[test]
fn a_value_that_is_wrong_is_refused_in_one_line_that_does_not_repeat_it() {
    for (arguments, words) in [
        (
            ["--partition", "analytical=5"],
            &["partition.analytical", "more than once"][..],
        ),
        (
            ["--partition", "a=-5"],
            &["--partition", "whole number from 1"],
        ),
        (
            ["--partition", "a=0"],
            &["partition.a.max_connections", "at least 1"],
        ),
        (["--partition", "A=1"], &["partition", "a-z"]),
        (["--partition", SECRET], &["--partition", "NAME=SIZE"]),
        (["--external", "jobs=hunter2"], &["--external", "NAME=SIZE"]),
        (["--reserve", "-5"], &["--reserve", "whole number"]),
        (["--reserve", SECRET], &["--reserve", "whole number"]),
        (["--timeout", "3"], &["--timeout", "such as 5s"]),
        (["--timeout", "0s"], &["--timeout", "above 0"]),
        (["--json", SECRET], &["an argument is not known"]),
        (["--json", "--hunter2=1"], &["an argument is not known"]),
    ] {
        let url = ["--url", NOWHERE];
        says(&mut check(&[&url[..], &arguments].concat()), words);
    }
    for (url, told) in [
        ("postgres://app:hunter2@x@db/shop", "percent-encoded"),
        (SECRET, "postgres://USER:PASSWORD@HOST"),
    ] {
        says(&mut check(&["--url", url]), &["url", told]);
    }
}

#[test]
fn a_server_that_hangs_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!(
        "postgres://app:hunter2@{}/shop",
        listener.local_addr().unwrap()
    );
    let began = Instant::now();
    says(
        &mut check(&["--url", &url, "--timeout", "400ms"]),
        &["transactional", "to do: check the url"],
    );
    assert!(began.elapsed() >= Duration::from_millis(300));

    let boot = "boot.check_timeout = \"400ms\"";
    let (mut command, _file) = with_config("check", &service(&url, boot), &[]);
    says(&mut command, &["transactional", "to do: check the url"]);

    let wait = "boot = { when_unavailable = \"wait\", wait = \"1h\" }";
    let (mut command, _file) = with_config("check", &service(&url, wait), &["--timeout", "1s"]);
    says(&mut command, &[]);
}

#[test]
fn a_server_that_is_not_there_is_told_with_what_to_do() {
    says(
        &mut check(&["--url", NOWHERE]),
        &[
            "refused",
            "shop on 127.0.0.1:1 as app",
            "to do: check the url",
        ],
    );
    let url = "postgres://app:hunter2@nowhere.invalid/shop";
    says(
        &mut check(&["--url", url]),
        &["nowhere.invalid:5432", "to do: check the url"],
    );
}

#[test]
fn a_service_that_may_start_unchecked_is_checked_nevertheless() {
    let text = service(NOWHERE, "boot = { when_unavailable = \"start\" }");
    let text = text.replace("[fleet]", "[fleet]\nmode = \"off\"");
    let (mut command, _file) = with_config("check", &text, &[]);
    says(&mut command, &["refused", "to do: check the url"]);
}

/// The variable `max_connections` of the server, for an ordinary role.
async fn granted(tenant: &Tenant) -> i64 {
    let shown = "SELECT current_setting('max_connections')::int8 \
        - current_setting('superuser_reserved_connections')::int8 \
        - coalesce(current_setting('reserved_connections', true), '0')::int8";
    tenant.admin.query_one(shown, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_asked_for_what_it_grants() {
    on_each_version(async |tenant| {
        let granted = granted(tenant).await;
        let found = json(&run(&mut check(&["--json", "--url", &tenant.url()])), 1);
        assert_eq!(found["granted"], granted);
        assert_eq!(found["needed"], 120);
        assert_eq!(found["offline"], false);
        let (mut command, _file) = with_config(
            "check",
            &service(NOWHERE, ""),
            &["--json", "--env-prefix", "SHOP_DB"],
        );
        command
            .env("SHOP_DB_URL", tenant.url())
            .env("SHOP_DB_FLEET_SURGE", "0");
        let found = json(&run(&mut command), 0);
        assert_eq!(
            (&found["granted"], &found["needed"]),
            (&granted.into(), &95.into())
        );
        let text = stdout(
            &run(&mut check(&["--url", &tenant.url(), "--reserve", "3"])),
            1,
        );
        assert!(!text.contains(&format!(":{}", tenant.name)), "{text}");
        tenant.until_gone().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_may_come_from_the_environment() {
    on_each_version(async |tenant| {
        let open = tenant.url().replace(&format!(":{}@", tenant.name), "@");
        let mut command = check(&[]);
        command
            .env("DATABASE_URL", &open)
            .env("PGPASSWORD", &tenant.name);
        let found = stdout(&run(&mut command), 1);
        assert!(found.contains("does not fit"), "{found}");
        command.env("PGPASSWORD", SECRET);
        says(
            &mut command,
            &["28P01", "to do: check the user and the password in the url"],
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_connect_and_one_without_a_slot_are_told_apart() {
    on_each_version(async |tenant| {
        let url = tenant.own_database().await;
        let name = &tenant.name;
        let closed = format!(
            "ALTER DATABASE {name} OWNER TO postgres; REVOKE CONNECT ON DATABASE {name} FROM PUBLIC"
        );
        for statement in closed.split("; ") {
            tenant.sql(statement).await;
        }
        says(
            &mut check(&["--url", &url]),
            &["42501", "to do: grant the role CONNECT on the database"],
        );

        tenant
            .sql(&format!("ALTER ROLE {name} CONNECTION LIMIT 0"))
            .await;
        let full = stdout(&run(&mut check(&["--url", &tenant.url()])), 1);
        assert!(full.contains("too many connections for role"), "{full}");
    })
    .await;
}

/// Roles that a wall has made, which go when the test is done.
async fn remove(tenant: &Tenant, roles: &[String]) {
    for role in roles {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
        tenant.admin.query(end, &[role]).await.unwrap();
        let gone = async || {
            let left = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1";
            tenant
                .admin
                .query_one(left, &[role])
                .await
                .unwrap()
                .get::<_, i64>(0)
                == 0
        };
        eventually("the sessions of the role are gone", gone).await;
        tenant
            .sql(&format!("DROP ROLE \"{}\"", role.replace('"', "\"\"")))
            .await;
    }
}

async fn login(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// A service whose partitions have a role each, after the wall.
fn behind_the_wall(tenant: &Tenant, roles: &[String], replicas: u32) -> String {
    let url = |role: &String| {
        let url = tenant.url();
        url.replace(&format!("//{}:", tenant.name), &format!("//{role}:"))
    };
    let text = service(&url(&roles[0]), "")
        .replace("max_replicas = 3", &format!("max_replicas = {replicas}"));
    let text = text
        .replace("= 20", "= 4\nstatement_timeout = \"200ms\"")
        .replace("= 10", "= 2");
    format!("{text}url = \"{}\"\n", url(&roles[1]))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wall_is_what_binds_and_postgres_keeps_it() {
    on_each_version(async |tenant| {
        let name = &tenant.name;
        let roles = ["transactional", "analytical"].map(|partition| format!("{name}_{partition}"));
        // Before the wall both partitions log in as the tenant.
        let before = behind_the_wall(tenant, &[name.clone(), name.clone()], 1);
        let (mut command, _file) = with_config("sql", &before, &["--role-per-partition"]);
        let sql = stdout(&run(&mut command), 0);
        assert!(!sql.to_lowercase().contains("password '"), "{sql}");
        for _twice in 0..2 {
            tenant.sql(&sql).await;
        }
        for role in &roles {
            tenant
                .sql(&format!("ALTER ROLE {role} PASSWORD '{name}'"))
                .await;
        }
        the_wall_binds(tenant, &roles);
        the_wall_holds(tenant, &roles).await;
        the_wall_has_the_limits_of_its_version(tenant, &roles[0]).await;
        remove(tenant, &roles).await;
    })
    .await;
}

/// The plan of the wall fits exactly; with one replica more the wall is what refuses it, and can be moved.
fn the_wall_binds(tenant: &Tenant, roles: &[String]) {
    let (mut command, _file) =
        with_config("check", &behind_the_wall(tenant, roles, 1), &["--json"]);
    let found = json(&run(&mut command), 0);
    let binding = &found["binding"];
    assert_eq!(
        binding["scope"],
        serde_json::json!({ "kind": "role", "name": roles[0] })
    );
    assert_eq!(
        (&binding["needed"], &binding["granted"]),
        (&8.into(), &8.into())
    );
    let constraints = found["servers"][0]["constraints"].as_array().unwrap();
    let of_reports = |c: &&Value| c["scope"]["name"] == *roles[1];
    let reports = constraints.iter().find(of_reports).unwrap();
    assert_eq!(
        (&reports["needed"], &reports["granted"]),
        (&4.into(), &4.into())
    );

    let larger = behind_the_wall(tenant, roles, 2);
    let (mut command, _file) = with_config("check", &larger, &[]);
    let text = stdout(&run(&mut command), 1);
    assert!(text.contains("does not fit, 4 too many"), "{text}");
    let (mut command, _file) = with_config("sql", &larger, &[]);
    let sql = stdout(&run(&mut command), 0);
    assert!(
        sql.contains(&format!("ALTER ROLE \"{}\" CONNECTION LIMIT 12;", roles[0])),
        "{sql}"
    );
}

/// A client of the role that is no pool of ours: it gets no connection beyond the limit, and no statement beyond its
/// timeout.
async fn the_wall_holds(tenant: &Tenant, roles: &[String]) {
    let url = tenant
        .url()
        .replace(&format!("//{}:", tenant.name), &format!("//{}:", roles[1]));
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(login(&url).await.unwrap());
    }
    let refused = login(&url).await.expect_err("a fifth is not let in");
    assert_eq!(refused.code(), Some(&SqlState::TOO_MANY_CONNECTIONS));
    let url = url.replace(&roles[1], &roles[0]);
    let other = login(&url).await.expect("the neighbour has its own limit");
    let late = other
        .batch_execute("SELECT pg_sleep(60)")
        .await
        .unwrap_err();
    assert_eq!(late.code(), Some(&SqlState::QUERY_CANCELED));
    let said = late.as_db_error().unwrap().message();
    assert!(said.contains("statement timeout"), "{said}");
}

async fn the_wall_has_the_limits_of_its_version(tenant: &Tenant, role: &str) {
    let sql = "SELECT unnest(setconfig) FROM pg_db_role_setting JOIN pg_roles r ON r.oid = setrole \
        WHERE rolname = $1 AND setdatabase = 0";
    let rows = tenant.admin.query(sql, &[&role]).await.unwrap();
    let set: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let version: i32 = tenant
        .admin
        .query_one("SELECT current_setting('server_version_num')::int4", &[])
        .await
        .unwrap()
        .get(0);
    let has = |name: &str| set.iter().any(|setting| setting.starts_with(name));
    for limit in [
        "statement_timeout=200",
        "lock_timeout=1000",
        "idle_in_transaction_session_timeout=5000",
        "client_connection_check_interval=",
    ] {
        assert!(has(limit), "no {limit} in {set:?}");
    }
    assert_eq!(
        has("transaction_timeout=30000"),
        version >= 170_000,
        "{set:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_may_be_called_anything() {
    on_each_version(async |tenant| {
        let fleet = FleetConfig::new(1, 0);
        let config = PoolConfig::new("shop", "postgres://app@db/shop", fleet)
            .transactional(PartitionConfig::transactional(3))
            .analytical(PartitionConfig::analytical(2));
        let roles = ["a\"b'c\\d $wall$ %", "line\nbreak; \u{e9} --"]
            .map(|odd| format!("{}{odd}", tenant.name));
        let logins = roles
            .each_ref()
            .map(|role| Login::new("db:5432", role, "shop"));
        let wall = Wall::of(&config.resolve().unwrap(), &logins)
            .unwrap()
            .to_string();
        tenant.sql("SET standard_conforming_strings = off").await;
        tenant.sql(&wall).await;
        tenant.sql("SET standard_conforming_strings = on").await;
        tenant.sql(&wall).await;
        for (role, limit) in roles.iter().zip([3, 2]) {
            let sql = "SELECT rolconnlimit FROM pg_roles WHERE rolname = $1";
            let found: i32 = tenant.admin.query_one(sql, &[role]).await.unwrap().get(0);
            assert_eq!(found, limit, "{role}");
        }
        remove(tenant, &roles).await;
    })
    .await;
}

#[test]
fn what_does_not_fit_is_a_comment() {
    let limits = ["--offline", "--max-connections", "50", "--url", NOWHERE];
    let mut command = fleet("sql", FLEET.iter().chain(&limits));
    let text = stdout(&run(&mut command), 1);
    let all_comments = text
        .lines()
        .all(|line| line.is_empty() || line.starts_with("--"));
    assert!(
        all_comments && text.contains("Nothing is written"),
        "{text}"
    );
    assert!(!text.contains(SECRET), "{text}");
}

#[test]
fn a_pooler_in_between_is_no_reason_not_to_write_the_wall() {
    let offline = ["--offline", "--max-connections", "200"];
    let session = "[pooler]\nmode = 'session'\nmax_client_conn = 500\ndefault_pool_size = 120";
    let (mut command, _file) = with_config("sql", &service(NOWHERE, session), &offline);
    let sql = stdout(&run(&mut command), 0);
    assert!(
        sql.contains(r#"ALTER ROLE "app" CONNECTION LIMIT 120;"#),
        "{sql}"
    );
    let transaction = "[pooler]\nmode = 'transaction'\nmax_client_conn = 500";
    let (mut command, _file) = with_config("sql", &service(NOWHERE, transaction), &offline);
    let sql = stdout(&run(&mut command), 0);
    let left_out = "-- Not limited here: partition transactional, whose server connections";
    assert!(sql.contains(left_out), "{sql}");

    let few = session.replace("max_client_conn = 500", "max_client_conn = 100");
    let (mut command, _file) = with_config("sql", &service(NOWHERE, &few), &offline);
    let sql = stdout(&run(&mut command), 1);
    assert!(sql.contains("Nothing is written"), "{sql}");
}

#[test]
fn sql_is_refused_where_a_limit_would_be_a_guess() {
    let offline = ["--offline", "--max-connections", "500"];
    let sql = |more: &[&str]| fleet("sql", FLEET.iter().chain(&offline).chain(more));
    says(&mut sql(&[]), &["state the role", "--url"]);
    says(
        &mut sql(&["--url", NOWHERE, "--partition", "batch=1"]),
        &["batch", "--config"],
    );
    let more = [
        "--url",
        NOWHERE,
        "--external",
        "jobs=4",
        "--role-per-partition",
    ];
    says(&mut sql(&more), &["jobs", "fleet.external"]);
}

/// What a line of the manifest says: the first of this key.
fn stated<'a>(manifest: &'a str, key: &str) -> &'a str {
    let lines = manifest.lines().map(str::trim);
    let mut values = lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
    let value = values.next().unwrap_or_else(|| panic!("no {key}"));
    value.split('#').next().unwrap().trim().trim_matches('"')
}

/// The block under `pool.toml: |`.
fn pool_toml(manifest: &str) -> String {
    let block = manifest.split("  pool.toml: |\n").nth(1).unwrap();
    let block = block
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("    "));
    block
        .map(|line| line.trim_start_matches("    ").to_owned() + "\n")
        .collect()
}

#[test]
fn the_manifest_its_page_and_the_command_agree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(root.join("examples/kubernetes/shop.yaml")).unwrap();
    let page = fs::read_to_string(root.join("docs/fleet-check.md")).unwrap();
    let number = |key: &str| stated(&manifest, key).parse::<u64>().unwrap();
    let replicas = number("maxReplicas");
    let percent: u64 = stated(&manifest, "maxSurge")
        .strip_suffix('%')
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(stated(&manifest, "maxUnavailable"), "0");
    assert!(number("minReadySeconds") >= number("terminationGracePeriodSeconds"));
    // A wave that starts, and one that ends.
    let surge = 2 * (replicas * percent).div_ceil(100);

    let config = pool_toml(&manifest);
    let arguments = ["--json", "--offline", "--max-connections", "200"];
    let (mut command, _file) = with_config("check", &config, &arguments);
    command
        .args(["--env-prefix", "SHOP_DB"])
        .env("SHOP_DB_URL", NOWHERE);
    let found = json(&run(&mut command), 0);
    assert_eq!(
        (&found["max_replicas"], &found["surge"]),
        (&replicas.into(), &surge.into())
    );
    let needed = found["needed"].as_u64().unwrap();
    let reserve = found["reserve"].as_u64().unwrap();
    let each = (needed - reserve) / (replicas + surge);
    let sum = format!("({replicas} + {surge}) x {each} + {reserve} = {needed}");
    assert!(page.contains(&sum) && manifest.contains(&sum), "{sum}");
    let asked =
        "partitioned-pool, fleet, check, --config, /etc/shop/pool.toml, --env-prefix, SHOP_DB";
    assert!(manifest.contains(asked));
}
