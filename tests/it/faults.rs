//! Faults of servers and networks, with figures: how late callers have their answer, how soon work flows again,
//! how often connecting is tried, and which failures wait while others are told at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use partitioned_pool::config::{BootConfig, PartitionConfig, WhenUnavailable};
use partitioned_pool::error::{AcquireError, Failure, Phase};
use partitioned_pool::{BootError, Connection, PartitionedPool, TokioPostgres};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_postgres::{Client, NoTls};

use crate::support::attempts::{Attempts, most_attempts};
use crate::support::patience::{LONG, eventually, within};
use crate::support::proxy::Fault;
use crate::support::server::{on_each_version, on_own_servers};
use crate::support::tenant::{Pool, Tenant, small, until_at_rest};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Far below the 30 s for which a connection lingers whose end was not seen.
const SOON: Duration = Duration::from_secs(10);

/// What cannot pass is told long before a deadline; on a loaded machine, too.
const AT_ONCE: Duration = Duration::from_secs(2);

async fn works(pool: &Pool) {
    let held = pool.transactional().acquire_by(LONG).await.unwrap();
    held.simple_query("SELECT 1").await.unwrap();
}

async fn acquire_all(pool: &Pool, connections: u32) -> Vec<Connection<TokioPostgres>> {
    let mut held = Vec::new();
    for _ in 0..connections {
        held.push(pool.transactional().acquire_by(LONG).await.unwrap());
    }
    held
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// Median, 99th percentile and worst.
struct Times(Vec<Duration>);

impl Times {
    fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    fn percentile(&self, percent: usize) -> Duration {
        self.0[(self.0.len() * percent).div_ceil(100).max(1) - 1]
    }

    fn worst(&self) -> Duration {
        self.percentile(100)
    }

    fn print(&self, what: &str) {
        let [p50, p99, worst] = [50, 99, 100].map(|percent| millis(self.percentile(percent)));
        println!(
            "{what}: p50 {p50}, p99 {p99}, worst {worst}, of {}",
            self.0.len()
        );
    }
}

/// Work that goes on through an outage, and when it succeeded.
struct Callers {
    tasks: JoinSet<()>,
    succeeded: Arc<Mutex<Vec<Instant>>>,
}

impl Callers {
    fn start(pool: &Pool, callers: u32) -> Self {
        let succeeded = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            let (pool, succeeded) = (pool.clone(), Arc::clone(&succeeded));
            tasks.spawn(async move {
                loop {
                    let work = async |held: &mut Connection<TokioPostgres>| {
                        held.simple_query("SELECT 1").await
                    };
                    if pool.transactional().run(500 * MS, work).await.is_ok() {
                        succeeded.lock().unwrap().push(Instant::now());
                    }
                    tokio::time::sleep(2 * MS).await;
                }
            });
        }
        Self { tasks, succeeded }
    }

    fn since(&self, instant: Instant) -> Option<Instant> {
        let succeeded = self.succeeded.lock().unwrap();
        succeeded.iter().copied().find(|at| *at > instant)
    }

    async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// The first moment at which the server takes a new session, and how long that took.
async fn first_readiness(url: &str) -> (Instant, Duration) {
    loop {
        let began = Instant::now();
        let connecting = tokio_postgres::connect(url, NoTls);
        if let Ok(Ok((client, connection))) = tokio::time::timeout(SECOND, connecting).await {
            let connection = tokio::spawn(connection);
            let answered = client.simple_query("SELECT 1").await;
            drop(client);
            let _ = connection.await;
            if answered.is_ok() {
                return (Instant::now(), began.elapsed());
            }
        }
        tokio::time::sleep(2 * MS).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_work_flows_within_two_seconds_and_the_attempts_were_bounded() {
    const SIZE: u32 = 4;
    on_own_servers(&[], async |server, tenant| {
        let attempts = Attempts::default();
        let config = tenant.config(small(SIZE).min_idle(3));
        let builder = PartitionedPool::<TokioPostgres>::builder(config);
        let pool = builder.observer(attempts.clone()).connect().await.unwrap();
        let callers = Callers::start(&pool, 6);
        let began = Instant::now();
        server.stop().await.unwrap();
        let down = Instant::now();
        tokio::time::sleep(3 * SECOND).await;
        let url = tenant.url();
        let ready = tokio::spawn(async move { first_readiness(&url).await });
        server.start().await.unwrap();
        let (ready, connecting) = ready.await.unwrap();
        let flows = async || callers.since(ready).is_some();
        within(SOON, "work flows again", flows).await;
        let after = callers.since(ready).unwrap() - ready;
        let (outage, failed) = (attempts.lasted(), attempts.failed());
        assert!(outage <= ready - began + after);
        let most = most_attempts(outage, SIZE);
        println!(
            "restart, down for {}: work flows {} after the first readiness; {failed} attempts, at most {most}",
            millis(ready - down),
            millis(after)
        );
        // A loaded machine needs longer to connect at all.
        assert!(after < 2 * SECOND + connecting, "{after:?}");
        assert!((1..=most).contains(&failed), "{failed} of {most}");

        callers.stop().await;
        let back = async || pool.transactional().status().idle >= 3;
        within(SOON, "min_idle is back", back).await;
        until_at_rest(pool.transactional()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_known_dead_is_never_handed_out_and_min_idle_comes_back_by_itself() {
    on_each_version(async |tenant| {
        let pool = tenant
            .pool::<TokioPostgres>(small(6).min_idle(4).acquire_timeout(LONG))
            .await;
        for round in 0..8 {
            // Those that were ended count as idle until the pool looks at them.
            let full = async || {
                tenant.transactional_backends().await >= 4
                    && pool.transactional().status().idle >= 4
            };
            let back = within(SOON, "min_idle is back", full).await;
            println!("min_idle is back after {}", millis(back));
            drop(acquire_all(&pool, 6).await);
            tenant.terminate_all().await;
            tenant.until_gone().await;
            // By then the end of each connection has come to us.
            tokio::time::sleep(300 * MS).await;
            if round % 2 == 1 {
                for held in acquire_all(&pool, 6).await {
                    held.simple_query("SELECT 1").await.unwrap();
                }
            }
        }
        until_at_rest(pool.transactional()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_killed_again_and_again_cost_typed_failures_and_no_slot() {
    on_each_version(async |tenant| {
        let pool = tenant
            .pool::<TokioPostgres>(small(4).acquire_timeout(LONG))
            .await;
        let mut calls = JoinSet::new();
        for _ in 0..4 {
            let pool = pool.clone();
            calls.spawn(async move {
                let mut failed = Vec::new();
                for _ in 0..30 {
                    let held = pool.transactional().acquire_by(LONG).await.unwrap();
                    failed.extend(held.simple_query("SELECT pg_sleep(0.005)").await.err());
                }
                failed
            });
        }
        let mut failed = Vec::new();
        while !calls.is_empty() {
            tenant.terminate_all().await;
            let next = tokio::time::timeout(50 * MS, calls.join_next()).await;
            failed.extend(next.ok().flatten().into_iter().flat_map(Result::unwrap));
        }
        for error in &failed {
            let code = error.code().map(tokio_postgres::error::SqlState::code);
            assert!(code == Some("57P01") || code.is_none(), "{error:?}");
        }
        println!(
            "killed again and again: {} of 120 calls failed",
            failed.len()
        );
        assert!(!failed.is_empty());
        until_at_rest(pool.transactional()).await;
        // The last of the killings may still be on its way to a session that is idle by now.
        eventually("it works again", async || {
            let held = pool.transactional().acquire_by(LONG).await.unwrap();
            held.simple_query("SELECT 1").await.is_ok()
        })
        .await;
    })
    .await;
}

/// How much later than their limit calls have their answer.
#[derive(Default)]
struct Lateness {
    calls: Vec<Duration>,
    /// The same, less what the worst of the timers beside them was late: a loaded machine makes everyone late.
    beyond_timers: Vec<Duration>,
}

impl Lateness {
    /// Makes so many calls at once that must fail.
    async fn measure(&mut self, pool: &Pool, callers: u32, limit: Duration) {
        let mut calls = JoinSet::new();
        for _ in 0..callers {
            let began = Instant::now();
            let timer = tokio::spawn(async move {
                tokio::time::sleep(limit).await;
                began.elapsed().saturating_sub(limit)
            });
            let pool = pool.clone();
            calls.spawn(async move { (late_by(&pool, limit).await, timer.await.unwrap()) });
        }
        let (calls, timers): (Vec<_>, Vec<_>) = calls.join_all().await.into_iter().unzip();
        let machine = timers.into_iter().max().unwrap();
        let beyond = calls.iter().map(|late| late.saturating_sub(machine));
        self.beyond_timers.extend(beyond);
        self.calls.extend(calls);
    }

    /// Holds the figures against those that the project promises.
    fn check(self, what: &str) {
        let (calls, beyond) = (Times::new(self.calls), Times::new(self.beyond_timers));
        calls.print(&format!("{what}, after the deadline"));
        beyond.print(&format!("{what}, after the timers"));
        assert!(beyond.percentile(99) <= 50 * MS, "{what}");
        assert!(beyond.worst() <= 250 * MS, "{what}");
    }
}

async fn late_by(pool: &Pool, limit: Duration) -> Duration {
    let began = Instant::now();
    let work = async |held: &mut Connection<TokioPostgres>| held.simple_query("SELECT 1").await;
    let error = pool.transactional().run(limit, work).await.unwrap_err();
    let late = began.elapsed().saturating_sub(limit);
    let acquiring = matches!(&error, partitioned_pool::RunError::Acquire(_));
    assert_eq!(error.never_began(), acquiring);
    late
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_swallows_packets_makes_nobody_late_and_keeps_no_slot_once_it_heals() {
    const SIZE: u32 = 25;
    const ROUNDS: u32 = 3;
    on_own_servers(&[("max_connections", "100")], async |server, tenant| {
        let proxy = tenant.proxy().await;
        let partition = small(SIZE)
            .max_waiters(SIZE)
            .validate_after_idle(200 * MS)
            .acquire_timeout(LONG);
        let pool = tenant.pool_by::<TokioPostgres>(&proxy, partition).await;
        let (mut working, mut queued) = (Lateness::default(), Lateness::default());
        let (mut validating, mut connecting) = (Lateness::default(), Lateness::default());
        for _ in 0..ROUNDS {
            // To log in keeps a thread of the runtime busy for long: the other version waits.
            let _turn = TURN.lock().await;
            // In their work; then behind slots that do not come back.
            drop(acquire_all(&pool, SIZE).await);
            proxy.set(Fault::Pause);
            working.measure(&pool, SIZE, 150 * MS).await;
            queued.measure(&pool, SIZE, 150 * MS).await;
            heal(&pool, &proxy).await;

            // While their connection is looked at.
            drop(acquire_all(&pool, SIZE).await);
            tokio::time::sleep(250 * MS).await;
            proxy.set(Fault::Pause);
            validating.measure(&pool, SIZE, 150 * MS).await;
            heal(&pool, &proxy).await;

            // While one is opened.
            tenant.terminate_all().await;
            tenant.until_gone().await;
            tokio::time::sleep(50 * MS).await;
            proxy.set(Fault::Pause);
            connecting.measure(&pool, SIZE, 150 * MS).await;
            heal(&pool, &proxy).await;
        }
        let version = server.major();
        working.check(&format!("{version}: stalled in their work"));
        queued.check(&format!("{version}: stalled in the queue"));
        validating.check(&format!("{version}: stalled in validation"));
        connecting.check(&format!("{version}: stalled in connecting"));
    })
    .await;
}

/// Lets everything pass again, and waits until every slot is free.
async fn heal(pool: &Pool, proxy: &crate::support::proxy::Proxy) {
    let stuck = pool.transactional().status();
    proxy.set(Fault::None);
    let at_rest = async || {
        let status = pool.transactional().status();
        status.in_use + status.waiting == 0 && status.connections() == status.idle
    };
    let back = within(SOON, "every slot is back", at_rest).await;
    println!(
        "healed: {} connections on their way back and {} ghosts are gone after {}",
        stuck.returning + stuck.closing,
        stuck.ghosts,
        millis(back)
    );
    works(pool).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_a_stall_has_made_ghosts_are_gone_soon_after_it() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let pool = tenant
            .pool_by::<TokioPostgres>(&proxy, small(3).acquire_timeout(LONG))
            .await;
        for fault in [Fault::None, Fault::Reset] {
            let held = acquire_all(&pool, 3).await;
            proxy.set(Fault::Pause);
            for held in &held {
                let query = held.simple_query("SELECT pg_sleep(60)");
                assert!(tokio::time::timeout(20 * MS, query).await.is_err());
            }
            drop(held);
            let ghosts = async || pool.transactional().status().ghosts == 3;
            eventually("they are ghosts", ghosts).await;
            if fault == Fault::Reset {
                proxy.set(fault);
                tokio::time::sleep(50 * MS).await;
            }
            heal(&pool, &proxy).await;
        }
        assert!(tenant.transactional_backends().await <= 3);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_hold_on_a_slow_network_and_what_it_brings_is_clean() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let pool = tenant
            .pool_by::<TokioPostgres>(&proxy, small(4).acquire_timeout(LONG))
            .await;
        drop(acquire_all(&pool, 4).await);
        proxy.set(Fault::Delay(100 * MS));
        let mut late = Lateness::default();
        for _ in 0..5 {
            late.measure(&pool, 4, 60 * MS).await;
            until_at_rest(pool.transactional()).await;
        }
        late.check("slow network");
        proxy.set(Fault::None);
        for held in acquire_all(&pool, 4).await {
            held.simple_query("SELECT 1").await.unwrap();
        }
        tenant.until_idle().await;
    })
    .await;
}

/// A name that no resolver has (RFC 6761).
const NOWHERE: &str = "db.nowhere.invalid";

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_not_resolve_is_a_typed_failure_that_can_pass_and_hangs_nobody() {
    on_each_version(async |tenant| {
        let lost = |boot| {
            let partition = small(2).connect_timeout(SECOND).acquire_timeout(SECOND);
            let url = tenant.url_at(NOWHERE, tenant.port());
            tenant.config(partition).url(url).boot(boot)
        };
        let began = Instant::now();
        let error = Pool::connect(lost(BootConfig::new())).await.unwrap_err();
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        assert!(error.to_string().contains(NOWHERE), "{error}");
        assert!(!matches!(error, BootError::Config(_)), "{error}");

        let start = BootConfig::new().when_unavailable(WhenUnavailable::Start);
        let pool = Pool::connect(lost(start)).await.unwrap();
        for _ in 0..3 {
            let began = Instant::now();
            let error = pool.transactional().acquire().await.unwrap_err();
            assert!(began.elapsed() < SECOND + AT_ONCE, "{:?}", began.elapsed());
            assert!(error.is_timeout() && !error.is_rejection(), "{error}");
            assert_eq!((error.phase(), error.sqlstate()), (Phase::Connect, None));
            assert!(error.failure().unwrap().is_transient(), "{error}");
        }

        // Beside one that does, it only costs time.
        let (name, host, port) = (&tenant.name, tenant.host(), tenant.port());
        let both = format!("postgres://{name}:{name}@{NOWHERE}:{port},{host}:{port}/postgres");
        let config = tenant.config(small(1).acquire_timeout(LONG).connect_timeout(LONG));
        works(&Pool::connect(config.url(both)).await.unwrap()).await;
    })
    .await;
}

/// Sessions of the tenant until its server has no more for it.
async fn fill_server(tenant: &Tenant) -> Vec<Client> {
    let mut sessions = Vec::new();
    loop {
        match tokio_postgres::connect(&tenant.url(), NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                sessions.push(client);
            }
            Err(error) => {
                assert_eq!(error.code().unwrap().code(), "53300", "{error}");
                return sessions;
            }
        }
    }
}

fn is_full(error: &AcquireError) -> bool {
    error.is_timeout()
        && error.phase() == Phase::Connect
        && error
            .failure()
            .is_some_and(Failure::is_too_many_connections)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_full_for_a_while_costs_a_caller_with_time_only_time() {
    let few = [
        ("max_connections", "12"),
        ("superuser_reserved_connections", "3"),
    ];
    on_own_servers(&few, async |_, tenant| {
        let pool = tenant
            .pool::<TokioPostgres>(small(4).acquire_timeout(LONG))
            .await;
        let held = pool.transactional().acquire().await.unwrap();
        let mut others = fill_server(tenant).await;
        let began = Instant::now();
        let hasty = pool.transactional().acquire_by(2 * SECOND).await;
        let error = hasty.unwrap_err();
        assert!(is_full(&error), "{error}");
        assert!(began.elapsed() >= 2 * SECOND, "it was tried until the end");

        let patient = pool.transactional().acquire_by(LONG);
        let leave = async {
            tokio::time::sleep(700 * MS).await;
            others.pop();
            Instant::now()
        };
        let (second, left) =
            tokio::join!(async { (patient.await.unwrap(), Instant::now()) }, leave);
        println!(
            "a connection {} after there was room",
            millis(second.1 - left)
        );
        assert!(second.1 - left < SOON);
        second.0.simple_query("SELECT 1").await.unwrap();
        held.simple_query("SELECT 1").await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_at_its_limit_is_told_by_its_sqlstate_and_served_once_the_limit_is_raised() {
    on_each_version(async |tenant| {
        let name = &tenant.name;
        let pool = tenant
            .pool::<TokioPostgres>(small(2).acquire_timeout(LONG))
            .await;
        let held = pool.transactional().acquire().await.unwrap();
        tenant
            .sql(&format!("ALTER ROLE {name} CONNECTION LIMIT 1"))
            .await;
        let error = pool
            .transactional()
            .acquire_by(2 * SECOND)
            .await
            .unwrap_err();
        assert!(is_full(&error), "{error}");
        tenant
            .sql(&format!("ALTER ROLE {name} CONNECTION LIMIT -1"))
            .await;
        works(&pool).await;
        drop(held);
    })
    .await;
}

/// How a server refuses that is not there yet.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// As Postgres does before its recovery is done.
    StartingUp,
    /// As a proxy or pooler does whose own server is not there.
    HangingUp,
}

impl Refusal {
    fn sqlstate(self) -> Option<&'static str> {
        matches!(self, Self::StartingUp).then_some("57P03")
    }

    async fn say(self, mut client: TcpStream) {
        let mut startup = [0; 1024];
        let heard = client.read(&mut startup).await;
        if heard.is_err() || self.sqlstate().is_none() {
            return;
        }
        // The question for TLS is answered also by a server that starts up.
        if heard.is_ok_and(|length| length == 8) {
            client.write_all(b"N").await.ok();
            let _ = client.read(&mut startup).await.map(drop);
        }
        let fields = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
        let length = u32::try_from(fields.len() + 4).unwrap();
        let mut message = vec![b'E'];
        message.extend(length.to_be_bytes());
        message.extend(fields);
        client.write_all(&message).await.ok();
    }
}

/// Stands before a server, and refuses in its name.
struct Starting {
    url: String,
    is_starting: Arc<AtomicBool>,
    refused: Arc<AtomicU64>,
    listening: AbortHandle,
}

impl Starting {
    async fn before(tenant: &Tenant, refusal: Refusal) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = (tenant.host(), tenant.port());
        let is_starting = Arc::new(AtomicBool::new(false));
        let refused = Arc::new(AtomicU64::new(0));
        let (starting, count) = (Arc::clone(&is_starting), Arc::clone(&refused));
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if starting.load(Ordering::SeqCst) {
                    count.fetch_add(1, Ordering::SeqCst);
                    tokio::spawn(refusal.say(client));
                } else {
                    tokio::spawn(relay(client, server.clone()));
                }
            }
        });
        Self {
            url: tenant.url_at("127.0.0.1", port),
            is_starting,
            refused,
            listening: listening.abort_handle(),
        }
    }

    fn set(&self, is_starting: bool) {
        self.is_starting.store(is_starting, Ordering::SeqCst);
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn relay(mut client: TcpStream, server: (String, u16)) {
    if let Ok(mut server) = TcpStream::connect(server).await {
        copy_bidirectional(&mut client, &mut server).await.ok();
    }
}

async fn is_waited_for(tenant: &Tenant, refusal: Refusal) {
    let server = Starting::before(tenant, refusal).await;
    let config = tenant.config(small(4).acquire_timeout(LONG));
    let pool = Pool::connect(config.url(server.url.as_str()))
        .await
        .unwrap();
    let held = pool.transactional().acquire().await.unwrap();
    server.set(true);
    let began = Instant::now();
    let error = pool.transactional().acquire_by(SECOND).await.unwrap_err();
    assert!(
        error.is_timeout() && error.phase() == Phase::Connect,
        "{error}"
    );
    assert_eq!(error.sqlstate(), refusal.sqlstate(), "{error}");
    assert!(error.failure().unwrap().is_transient(), "{error}");

    let mut patient = JoinSet::new();
    for _ in 0..3 {
        let pool = pool.clone();
        patient.spawn(async move { pool.transactional().acquire_by(LONG).await.unwrap() });
    }
    tokio::time::sleep(SECOND).await;
    server.set(false);
    let ready = Instant::now();
    let served = patient.join_all().await;
    let refused = server.refused.load(Ordering::SeqCst);
    let most = most_attempts(began.elapsed(), 4);
    println!(
        "{refusal:?}: three are served {} after it was over; {refused} attempts, at most {most}",
        millis(ready.elapsed())
    );
    assert!(ready.elapsed() < SOON);
    assert!((2..=most).contains(&refused), "{refused} of {most}");
    drop((held, served));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_up_is_waited_for_within_the_deadline() {
    on_each_version(async |tenant| is_waited_for(tenant, Refusal::StartingUp).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_up_is_waited_for_within_the_deadline() {
    on_each_version(async |tenant| is_waited_for(tenant, Refusal::HangingUp).await).await;
}

/// Makes logging in impossible while the pool runs; how, and how to undo it.
const REFUSED_LOGINS: [(&str, &str, &str); 2] = [
    ("PASSWORD 'another'", "PASSWORD '{}'", "28P01"),
    ("NOLOGIN", "LOGIN", "28000"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_login_fails_at_once_and_what_is_open_lives_on() {
    on_each_version(async |tenant| {
        let name = &tenant.name;
        let pool = tenant
            .pool::<TokioPostgres>(small(3).acquire_timeout(LONG))
            .await;
        for (refuse, allow, sqlstate) in REFUSED_LOGINS {
            let held = acquire_all(&pool, 1).await.remove(0);
            // So that nothing else is idle.
            let idle = acquire_all(&pool, pool.transactional().status().idle).await;
            tenant.sql(&format!("ALTER ROLE {name} {refuse}")).await;
            for _ in 0..3 {
                let began = Instant::now();
                let error = pool.transactional().acquire_by(LONG).await.unwrap_err();
                assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
                let is_failed = matches!(&error, AcquireError::Failed { .. });
                assert!(is_failed && error.phase() == Phase::Connect, "{error}");
                assert_eq!(error.sqlstate(), Some(sqlstate), "{error}");
                assert!(error.failure().unwrap().is_refused_login());
                assert!(!error.to_string().contains(&format!("{name}:{name}")));
            }
            held.simple_query("SELECT 1").await.unwrap();
            drop((held, idle));
            works(&pool).await;
            let allow = allow.replace("{}", name);
            tenant.sql(&format!("ALTER ROLE {name} {allow}")).await;
            for held in acquire_all(&pool, 3).await {
                held.simple_query("SELECT 1").await.unwrap();
            }
            tenant.terminate_all().await;
            tenant.until_gone().await;
            tokio::time::sleep(300 * MS).await;
        }
    })
    .await;
}

/// A partition of this size, in which no query ends but by us.
fn patient(size: u32) -> PartitionConfig {
    small(size)
        .statement_timeout(10 * LONG)
        .acquire_timeout(LONG)
}

const SLEEP: &str = "SELECT pg_sleep(60)";

/// What is measured in milliseconds is measured on one server after the other.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn running(tenant: &Tenant) -> i64 {
    tenant
        .count(&format!("state = 'active' AND query = '{SLEEP}'"))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_a_query_of_a_minute_costs_the_next_caller_milliseconds() {
    on_each_version(async |tenant| {
        let _turn = TURN.lock().await;
        let pool = tenant.pool::<TokioPostgres>(patient(1)).await;
        let (mut times, mut plain) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            let held = pool.transactional().acquire().await.unwrap();
            let query = tokio::spawn(async move { held.simple_query(SLEEP).await.is_ok() });
            tenant.until_running(SLEEP).await;
            query.abort();
            let left = Instant::now();
            let next = pool.transactional().acquire().await.unwrap();
            times.push(left.elapsed());
            assert_eq!(running(tenant).await, 0, "the query is gone");
            let began = Instant::now();
            next.simple_query("SELECT 1").await.unwrap();
            plain.push(began.elapsed());
        }
        let (times, plain) = (Times::new(times), Times::new(plain));
        times.print("the slot of a query of 60 s serves the next caller after");
        plain.print("a plain round trip beside that");
        // 5 ms and 25 ms are for a machine where nothing else runs; here others do.
        for (percent, most) in [(50, 20 * MS), (99, 100 * MS)] {
            assert!(times.percentile(percent) <= most + plain.worst());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_who_leave_at_once_have_their_slots_back_together() {
    on_own_servers(&[], async |_, tenant| {
        let _turn = TURN.lock().await;
        let pool = tenant.pool::<TokioPostgres>(patient(50)).await;
        let mut times = Vec::new();
        for _ in 0..5 {
            let mut queries = JoinSet::new();
            for held in acquire_all(&pool, 50).await {
                queries.spawn(async move { held.simple_query(SLEEP).await.is_ok() });
            }
            within(LONG, "all run", async || running(tenant).await == 50).await;
            let left = Instant::now();
            queries.abort_all();
            // On a machine on which it takes seconds, some are closed rather than kept.
            let at_rest = async || {
                let status = pool.transactional().status();
                status.in_use == 0 && status.connections() == status.idle
            };
            within(SOON, "every slot is back", at_rest).await;
            times.push(left.elapsed());
            let closed = 50 - pool.transactional().status().idle;
            if closed > 0 {
                println!("{closed} of fifty connections were closed");
            }
            assert_eq!(running(tenant).await, 0, "the queries are gone");
        }
        let times = Times::new(times);
        times.print("fifty who leave at once have their slots back after");
        // 250 ms are for a machine where nothing else runs; here others do.
        assert!(times.percentile(50) <= SECOND, "{:?}", times.0);
    })
    .await;
}
