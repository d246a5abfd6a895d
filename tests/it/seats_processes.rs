//! Seats among real processes: killed, stopped, continued, and a server that restarts under them. Each is this very
//! binary again, as one replica of a fleet.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use partitioned_pool::config::{
    BootConfig, FleetCheck, FleetConfig, PartitionConfig, PoolConfig, SeatsConfig, WhenUnavailable,
};
use partitioned_pool::error::Reason;
use partitioned_pool::{AcquireError, Partition, PartitionedPool, TokioPostgres};
use tokio::task::AbortHandle;
use tokio_postgres::Row;

use crate::support::driver::Pool;
use crate::support::patience::{LONG, eventually, within};
use crate::support::seats::{seat, seated, table};
use crate::support::server::{on_each_version, on_own_servers};
use crate::support::tenant::{Tenant, small};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(6);

/// Of each replica: three and one.
const BUDGET: i64 = 4;

const URL: &str = "PARTITIONED_POOL_TEST_REPLICA_URL";
const SERVICE: &str = "PARTITIONED_POOL_TEST_REPLICA_SERVICE";
const SEATS: &str = "PARTITIONED_POOL_TEST_REPLICA_SEATS";
const HOLDS: &str = "PARTITIONED_POOL_TEST_REPLICA_HOLDS";

fn micros() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_micros()
}

/// A replica, as the test sees it.
struct Replica {
    child: Child,
    input: Option<ChildStdin>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Replica {
    fn start(tenant: &Tenant, seats: u32, holds: bool) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args([
                "seats_processes::is_a_replica_of_a_fleet",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env(URL, tenant.url())
            .env(SERVICE, &tenant.name)
            .env(SEATS, seats.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if holds {
            command.env(HOLDS, "yes");
        }
        let mut child = command.spawn().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let (lines, heard) = (
            BufReader::new(child.stdout.take().unwrap()),
            Arc::clone(&said),
        );
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                heard
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
            }
        });
        Self {
            input: child.stdin.take(),
            child,
            said,
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([format!("-{signal}"), self.pid().to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    fn has_said(&self, word: &str) -> bool {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.iter().any(|line| line == word)
    }

    /// How often it said `word` of a call that began at `since` or later.
    fn calls(&self, word: &str, since: u128) -> usize {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let began = |line: &String| line.strip_prefix(word)?.trim().parse::<u128>().ok();
        said.iter()
            .filter_map(began)
            .filter(|began| *began >= since)
            .count()
    }

    async fn close(mut self) {
        let mut input = self.input.take().unwrap();
        writeln!(input, "close").unwrap();
        eventually("it has closed", async || self.has_said("closed")).await;
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the replicas write down what they have run, and as who.
async fn notes(tenant: &Tenant) {
    let name = &tenant.name;
    for sql in [
        "CREATE TABLE ran (pid int, name text, at timestamptz DEFAULT clock_timestamp())",
        "CREATE TABLE work (pid int)",
    ] {
        tenant
            .sql(&format!(
                "SET search_path TO {name}; {sql}; RESET search_path"
            ))
            .await;
    }
    tenant
        .sql(&format!(
            "GRANT ALL ON ALL TABLES IN SCHEMA {name} TO {name}"
        ))
        .await;
}

async fn number(tenant: &Tenant, sql: &str) -> i64 {
    let sql = sql.replace("@", &format!("{}.", tenant.name));
    tenant.admin.query_one(&sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_stopped_for_longer_than_its_seat_admits_nothing_when_it_goes_on() {
    on_each_version(async |tenant| {
        table(tenant).await;
        notes(tenant).await;
        let stopped = Replica::start(tenant, 1, true);
        eventually("it works and holds", async || {
            // And is not in the middle of connecting.
            stopped.has_said("holding")
                && stopped.calls("got", 0) > 10
                && tenant
                    .count("application_name LIKE '%/transactional#1.1'")
                    .await
                    == 3
        })
        .await;
        assert_eq!(seat(tenant, 1).await, (1, true, false));
        stopped.signal("STOP");
        let next = seated(tenant, SeatsConfig::new(1).lease(LEASE).wait(2 * LONG));
        let next = Pool::connect(next).await.unwrap();
        let taken = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let taken = number(tenant, taken).await;
        assert_eq!(seat(tenant, 1).await, (2, true, false));
        assert_eq!(tenant.count("application_name LIKE '%#1.1'").await, 0);
        assert_eq!(number(tenant, "SELECT count(*) FROM @work").await, 0);
        assert!(!stopped.has_said("hold ended"), "it was not stopped");

        let went_on = micros();
        stopped.signal("CONT");
        eventually("it asks in vain", async || {
            stopped.calls("no_seat", went_on) > 100
        })
        .await;
        eventually("its hold has ended", async || {
            stopped.has_said("hold ended")
        })
        .await;
        let watched = Instant::now();
        while watched.elapsed() < LEASE {
            let held = next.transactional().acquire_by(LONG).await.unwrap();
            held.simple_query("SELECT 1").await.unwrap();
            let strangers =
                "application_name LIKE '%/transactional%' AND application_name NOT LIKE '%#1.2'";
            assert_eq!(tenant.count(strangers).await, 0);
            tokio::time::sleep(5 * MS).await;
        }
        assert_eq!(
            stopped.calls("got", went_on),
            0,
            "it was given a connection without a seat"
        );
        let late = format!(
            "SELECT count(*) FROM @ran WHERE name LIKE '%#1.1' \
             AND (extract(epoch FROM at) * 1000000)::bigint >= {taken}"
        );
        assert_eq!(number(tenant, &late).await, 0);
        assert_eq!(number(tenant, "SELECT count(*) FROM @work").await, 0);

        next.close(LONG).await;
        let free = micros();
        eventually("it has a seat again", async || {
            stopped.calls("got", free) > 10
        })
        .await;
        assert_eq!(seat(tenant, 1).await, (3, true, false));
        eventually("it runs as the third", async || {
            number(tenant, "SELECT count(*) FROM @ran WHERE name LIKE '%#1.3'").await > 0
        })
        .await;
        stopped.close().await;
        assert_eq!(seat(tenant, 1).await, (3, false, false));
        tenant.until_gone().await;
    })
    .await;
}

/// Counts the sessions of a fleet, as often as it can, also over a restart of the server.
struct Watch {
    seen: Arc<Mutex<Seen>>,
    watching: AbortHandle,
}

/// The most that were seen at once.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    samples: u64,
    /// Of partitions.
    sessions: i64,
    /// Of partitions, with the tag of one seat.
    of_a_seat: i64,
    /// Of partitions, without a tag.
    untagged: i64,
    /// Of keepers.
    lines: i64,
}

impl Watch {
    fn start(tenant: Tenant) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let watching = tokio::spawn(watch(tenant, Arc::clone(&seen)));
        Self {
            seen,
            watching: watching.abort_handle(),
        }
    }

    fn seen(&self) -> Seen {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn note(seen: &mut Seen, row: &Row) {
    *seen = Seen {
        samples: seen.samples + 1,
        sessions: seen.sessions.max(row.get(0)),
        of_a_seat: seen.of_a_seat.max(row.get(1)),
        untagged: seen.untagged.max(row.get(2)),
        lines: seen.lines.max(row.get(3)),
    };
}

async fn watch(tenant: Tenant, seen: Arc<Mutex<Seen>>) {
    let sql = "SELECT coalesce(sum(n) FILTER (WHERE NOT line), 0)::bigint, \
        coalesce(max(n) FILTER (WHERE NOT line AND seat IS NOT NULL), 0)::bigint, \
        coalesce(sum(n) FILTER (WHERE NOT line AND seat IS NULL), 0)::bigint, \
        coalesce(sum(n) FILTER (WHERE line), 0)::bigint FROM ( \
        SELECT substring(application_name FROM '#([0-9]+)[.][0-9]+$') AS seat, \
        application_name LIKE '%/seats%' AS line, count(*) AS n \
        FROM pg_stat_activity WHERE usename = $1 GROUP BY 1, 2) s";
    loop {
        let Ok(admin) = tenant.another_admin().await else {
            tokio::time::sleep(10 * MS).await;
            continue;
        };
        while let Ok(row) = admin.query_one(sql, &[&tenant.name]).await {
            note(
                &mut seen.lock().unwrap_or_else(PoisonError::into_inner),
                &row,
            );
            tokio::time::sleep(2 * MS).await;
        }
    }
}

/// How many seats are held by one of these processes and have been used as it since then, by the server's clock.
async fn in_use(tenant: &Tenant, replicas: &[Replica], since: &str) -> i64 {
    let pids: Vec<_> = replicas.iter().map(|one| one.pid().to_string()).collect();
    let sql = format!(
        "SELECT count(*) FROM @partitioned_pool_seats s WHERE split_part(holder, '/', 2) IN ('{}') \
         AND expires_at > clock_timestamp() AND EXISTS (SELECT FROM @ran WHERE at > '{since}' \
         AND pid::text = split_part(holder, '/', 2) AND name LIKE '%#' || s.seat || '.' || s.epoch)",
        pids.join("', '")
    );
    number(tenant, &sql).await
}

async fn now(tenant: &Tenant) -> String {
    let row = tenant
        .admin
        .query_one("SELECT clock_timestamp()::text", &[])
        .await;
    row.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn twelve_processes_and_eight_seats_never_have_more_than_eight_budgets_and_use_every_seat() {
    const EIGHT: i64 = 8;
    on_own_servers(&[("max_connections", "100")], async |server, tenant| {
        table(tenant).await;
        notes(tenant).await;
        let watch = Watch::start(tenant.again().await);
        let began = Instant::now();
        let mut replicas: Vec<_> = (0..12).map(|_| Replica::start(tenant, 8, false)).collect();
        let start = now(tenant).await;
        let patience = 3 * LONG;
        within(patience, "every seat is in use", async || {
            in_use(tenant, &replicas, &start).await == EIGHT
        })
        .await;
        println!("all in use after {:?}", began.elapsed());

        let sql = format!("SELECT split_part(holder, '/', 2) FROM {}.partitioned_pool_seats LIMIT 4", tenant.name);
        let rows = tenant.admin.query(&sql, &[]).await.unwrap();
        let killed: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        // Dropping one is a SIGKILL.
        replicas.retain(|one| !killed.contains(&one.pid().to_string()));
        assert_eq!(replicas.len(), 8);
        let killed = Instant::now();
        replicas.extend((0..4).map(|_| Replica::start(tenant, 8, false)));
        tokio::time::sleep(SECOND).await;
        server.restart().await.unwrap();
        let tenant = tenant.again().await;
        let (restarted, up) = (killed.elapsed(), Instant::now());
        let restart = now(&tenant).await;
        within(patience, "every seat is in use again", async || {
            in_use(&tenant, &replicas, &restart).await == EIGHT
        })
        .await;
        println!(
            "every seat in use again {:?} after the kill, {:?} after the server was up again (at {restarted:?})",
            killed.elapsed(),
            up.elapsed()
        );
        tokio::time::sleep(3 * SECOND).await;
        let seen = watch.seen();
        println!("{seen:?}");
        assert!(seen.samples > 50, "{seen:?}");
        assert!((EIGHT..=EIGHT * BUDGET).contains(&seen.sessions), "{seen:?}");
        assert!((1..=BUDGET).contains(&seen.of_a_seat), "{seen:?}");
        assert_eq!(seen.untagged, 0, "{seen:?}");
        assert!(seen.lines <= 16, "{seen:?}");
    })
    .await;
}

#[tokio::test]
#[ignore = "a replica, which the tests start"]
async fn is_a_replica_of_a_fleet() {
    let url = env::var(URL).expect("this is started by other tests");
    let seats = env::var(SEATS).unwrap().parse().unwrap();
    let seats = SeatsConfig::new(seats).lease(LEASE).wait(6 * LONG);
    let fleet = FleetConfig::new(12, 4).mode(FleetCheck::Off).seats(seats);
    let boot = BootConfig::new().when_unavailable(WhenUnavailable::Wait(6 * LONG));
    let config = PoolConfig::new(env::var(SERVICE).unwrap(), url, fleet)
        .boot(boot)
        .transactional(small(3))
        .analytical(PartitionConfig::analytical(1));
    // As an orchestrator does: what fails is started again.
    let pool = loop {
        match PartitionedPool::<TokioPostgres>::connect(config.clone()).await {
            Ok(pool) => break pool,
            Err(error) => println!("{error}"),
        }
    };
    println!("\nbooted");
    if env::var(HOLDS).is_ok() {
        tokio::spawn(hold(pool.analytical().clone()));
        tokio::spawn(ask_for_nothing(pool.transactional().clone()));
    } else {
        tokio::spawn(work(pool.analytical().clone()));
        tokio::spawn(work(pool.transactional().clone()));
    }
    for _ in 0..2 {
        tokio::spawn(work(pool.transactional().clone()));
    }
    let input = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        line
    });
    if input.await.unwrap().trim() == "close" {
        pool.close(LONG).await;
        println!("closed");
    }
    // Nobody reads what the test runner would say.
    std::process::exit(0);
}

fn tell(word: &str, began: u128) {
    println!("{word} {began}");
}

fn tell_if_refused(error: &AcquireError, began: u128) {
    if error
        .rejection()
        .is_some_and(|r| r.reason == Reason::NoSeat)
    {
        tell("no_seat", began);
    }
}

/// Writes down that it has run, again and again.
async fn work(partition: Partition<TokioPostgres>) {
    let note = format!(
        "INSERT INTO ran SELECT {}, current_setting('application_name')",
        std::process::id()
    );
    loop {
        let began = micros();
        match partition.acquire_by(LONG).await {
            Ok(held) => {
                if held.batch_execute(&note).await.is_ok() {
                    tell("got", began);
                }
            }
            Err(error) => tell_if_refused(&error, began),
        }
        tokio::time::sleep(50 * MS).await;
    }
}

/// Does nothing but ask, for a quarter of the time: when it is stopped then, it goes on in the middle of that, before
/// any timer has its turn. It tells at most once a millisecond.
async fn ask_for_nothing(partition: Partition<TokioPostgres>) {
    let mut told = 0;
    loop {
        let began = micros();
        let answer = partition.try_acquire().await;
        if began > told + 1000 {
            match answer {
                Ok(_) => tell("got", began),
                Err(error) => tell_if_refused(&error, began),
            }
            tokio::time::sleep(3 * MS).await;
            told = micros();
        }
    }
}

/// Holds a connection in the middle of a transaction for as long as it can.
async fn hold(partition: Partition<TokioPostgres>) {
    let held = partition.acquire_by(LONG).await.unwrap();
    let begun = format!("BEGIN; INSERT INTO work VALUES ({})", std::process::id());
    held.batch_execute(&begun).await.unwrap();
    println!("holding");
    while held.batch_execute("SELECT 1").await.is_ok() {
        tokio::time::sleep(20 * MS).await;
    }
    let committed = held.batch_execute("COMMIT").await;
    println!(
        "{}",
        if committed.is_ok() {
            "committed"
        } else {
            "hold ended"
        }
    );
}
