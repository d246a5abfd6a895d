//! Seats on a real server: who may connect, and what becomes of who may not any more.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use partitioned_pool::config::{
    BootConfig, FleetCheck, FleetConfig, Kind, Limit, PartitionConfig, PoolConfig, SeatsConfig,
    WhenUnavailable,
};
use partitioned_pool::error::Reason;
use partitioned_pool::fleet::{FleetReport, Scope, Warning};
use partitioned_pool::observe::{Event, Observer, PartitionObserver};
use partitioned_pool::{BootError, NotReady, PartitionedPool};
use tokio_postgres::{Client, Config, NoTls};

use crate::support::driver::{Speaks, Tested, on_each_driver};
use crate::support::patience::{LONG, eventually, within};
use crate::support::proxy::Fault;
use crate::support::seats::{say, seat, seated, table};
use crate::support::server::on_own_servers;
use crate::support::tenant::{Tenant, small};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Short enough for a test, and long enough for a loaded machine.
const LEASE: Duration = Duration::from_secs(5);

fn seats(count: u32) -> SeatsConfig {
    SeatsConfig::new(count).lease(LEASE).wait(Limit::Off)
}

async fn connected<D: Tested>(config: PoolConfig) -> PartitionedPool<D> {
    PartitionedPool::connect(config).await.unwrap()
}

/// A session of the tenant that is none of a pool's, under whatever name.
async fn session(tenant: &Tenant, name: &str) -> Client {
    let mut config: Config = tenant.url().parse().unwrap();
    let (client, connection) = config.application_name(name).connect(NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    client
}

async fn is_refused_for_want_of_a_seat<D: Tested>(pool: &PartitionedPool<D>) -> bool {
    match pool.transactional().acquire_by(LONG).await {
        Ok(_) => false,
        Err(error) => error
            .rejection()
            .is_some_and(|r| r.reason == Reason::NoSeat),
    }
}

async fn admits<D: Tested>(pool: &PartitionedPool<D>) -> bool {
    match pool.transactional().acquire_by(LONG).await {
        Ok(mut held) => held.say("SELECT 1").await.is_ok(),
        Err(_) => false,
    }
}

async fn every_session_carries_its_seat_and_closing_gives_it_back<D: Tested>(tenant: &Tenant) {
    table(tenant).await;
    let pool = connected::<D>(seated(tenant, seats(1))).await;
    assert_eq!(seat(tenant, 1).await, (1, true, false));
    let held = pool.status().seat.unwrap();
    assert_eq!((held.seat, held.epoch), (Some(1), Some(1)));
    assert!(held.admits_for <= LEASE && !held.admits_for.is_zero());
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(pool.transactional().acquire_by(LONG).await.unwrap());
    }
    let name = held[0].ask("SHOW application_name").await;
    assert_eq!(name, format!("{}/transactional#1.1", tenant.name));
    // Three, the first of the other partition, the line, and what the driver keeps beside.
    assert_eq!(
        tenant.count("application_name LIKE '%#1.1'").await,
        5 + D::BESIDE
    );
    assert_eq!(tenant.backends().await, 5 + D::BESIDE);

    let refused = PartitionedPool::<D>::connect(seated(tenant, seats(1))).await;
    let refused = refused.unwrap_err();
    let text = refused.to_string();
    println!("{text}");
    let BootError::NoSeat { holders, .. } = &refused else {
        panic!("{text}")
    };
    assert_eq!(
        (holders.len(), holders[0].seat, holders[0].epoch),
        (1, 1, 1)
    );
    assert!(
        holders[0]
            .holder
            .contains(&format!("/{}/", std::process::id()))
    );
    assert!(
        holders[0].left <= LEASE && text.contains(&holders[0].holder),
        "{text}"
    );
    assert!(text.contains("fleet.seats.count") && !text.contains(&format!(":{}", tenant.name)));

    drop(held);
    assert!(pool.close(LONG).await.is_drained());
    assert_eq!(seat(tenant, 1).await, (1, false, false));
    assert!(
        pool.transactional()
            .acquire()
            .await
            .unwrap_err()
            .is_closed()
    );
    let next = connected::<D>(seated(tenant, seats(1))).await;
    assert_eq!(seat(tenant, 1).await, (2, true, false));
    // Nobody closes it, so its connections go first, and then its seat.
    drop(next);
    eventually("the seat is given back", async || !seat(tenant, 1).await.1).await;
    tenant.until_gone().await;
}

async fn who_waits_for_a_seat_has_no_connection_meanwhile<D: Tested>(tenant: &Tenant) {
    table(tenant).await;
    let first = connected::<D>(seated(tenant, seats(1))).await;
    let backends = tenant.backends().await;
    let waiting = seated(tenant, seats(1).wait(LONG));
    let waiting = tokio::spawn(PartitionedPool::<D>::connect(waiting));
    let mut most = 0;
    let asked = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1";
    let began = Instant::now();
    while began.elapsed() < SECOND {
        let row = tenant
            .admin
            .query_one(asked, &[&tenant.name])
            .await
            .unwrap();
        most = most.max(row.get(0));
    }
    assert!(
        !waiting.is_finished() && most <= backends + 1,
        "{most} of {backends}"
    );
    first.close(LONG).await;
    let second = waiting.await.unwrap().unwrap();
    assert_eq!(seat(tenant, 1).await, (2, true, false));
    assert!(admits(&second).await);

    let began = Instant::now();
    let bounded = seated(tenant, seats(1).wait(700 * MS));
    let refused = PartitionedPool::<D>::connect(bounded).await.unwrap_err();
    assert!(matches!(refused, BootError::NoSeat { waited, .. } if waited >= 700 * MS));
    assert!(began.elapsed() >= 700 * MS);
}

/// Those who have the seats may have every connection that the role is granted.
async fn who_waits_for_a_seat_behind_a_wall_waits<D: Tested>(tenant: &Tenant) {
    table(tenant).await;
    let first = connected::<D>(seated(tenant, seats(1))).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(first.transactional().acquire_by(LONG).await.unwrap());
    }
    let (name, all) = (&tenant.name, tenant.backends().await);
    tenant
        .sql(&format!("ALTER ROLE {name} CONNECTION LIMIT {all}"))
        .await;
    session_is_refused(tenant).await;
    let waits = seated(tenant, seats(1).wait(LONG));
    let waiting = tokio::spawn(PartitionedPool::<D>::connect(waits));
    let bounded = seated(tenant, seats(1).wait(2 * LEASE));
    let began = Instant::now();
    let refused = PartitionedPool::<D>::connect(bounded).await.unwrap_err();
    assert!(
        matches!(refused, BootError::SeatsFailed { .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("53300"), "{refused}");
    assert!(began.elapsed() >= 2 * LEASE && !waiting.is_finished());
    drop(held);
    first.close(LONG).await;
    let second = waiting.await.unwrap().unwrap();
    assert!(admits(&second).await);
}

async fn session_is_refused(tenant: &Tenant) {
    let config: Config = tenant.url().parse().unwrap();
    assert!(config.connect(NoTls).await.is_err());
}

async fn a_lost_seat_admits_nothing_takes_away_what_is_held_and_is_had_again<D: Tested>(
    tenant: &Tenant,
) {
    table(tenant).await;
    let pool = connected::<D>(seated(tenant, seats(1))).await;
    let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
    held.say("BEGIN").await.unwrap();
    let idle = pool.transactional().acquire_by(LONG).await.unwrap();
    let third = pool.transactional().acquire_by(LONG).await.unwrap();
    drop(idle);
    let fourth = pool.transactional().acquire_by(LONG).await.unwrap();
    let waiter = tokio::spawn({
        let partition = pool.transactional().clone();
        async move { partition.acquire_by(LONG).await.map(drop) }
    });
    eventually("somebody waits", async || {
        pool.transactional().status().waiting == 1
    })
    .await;

    let taken = "UPDATE seats SET epoch = epoch + 1, holder = 'somebody else', \
        expires_at = clock_timestamp() + interval '1 hour'";
    say(tenant, taken).await;
    let refused = waiter.await.unwrap().unwrap_err();
    let rejection = refused.rejection().unwrap();
    assert_eq!(rejection.reason, Reason::NoSeat, "{refused}");
    assert!(rejection.retry_after.is_some() && rejection.waited > Duration::ZERO);
    assert!(refused.to_string().contains("holds no seat"), "{refused}");
    assert!(is_refused_for_want_of_a_seat(&pool).await);
    let refused = pool.analytical().try_acquire().await.unwrap_err();
    assert_eq!(refused.rejection().unwrap().reason, Reason::NoSeat);
    eventually("what was held was taken away", async || {
        held.taken_after().is_some()
    })
    .await;
    // Over sqlx it is the server that ends it.
    let ended = loop {
        if let Err(ended) = held.say("SELECT 1").await {
            break ended;
        }
    };
    assert!(ended.is_closed(), "{ended}");
    drop((held, third, fourth));
    // The line goes on asking.
    let left = async || tenant.count("application_name NOT LIKE '%/seats%'").await <= D::BESIDE;
    eventually("its sessions are gone", left).await;
    let status = pool.status();
    assert_eq!(status.seat.unwrap().seat, None, "{status}");

    say(tenant, "UPDATE seats SET expires_at = clock_timestamp()").await;
    eventually("it has a seat again", async || admits(&pool).await).await;
    assert_eq!(seat(tenant, 1).await, (3, true, false));
    assert_eq!(
        tenant
            .count("application_name LIKE '%/transactional#1.3'")
            .await,
        1
    );
}

async fn without_a_seat_no_partition_is_ready<D: Tested>(tenant: &Tenant) {
    table(tenant).await;
    let pool = connected::<D>(seated(tenant, seats(1))).await;
    assert!(admits(&pool).await && pool.ready(LONG).await.is_ready());
    let taken = "UPDATE seats SET epoch = epoch + 1, holder = 'somebody else', \
        expires_at = clock_timestamp() + interval '1 hour'";
    say(tenant, taken).await;
    within(LONG, "it refuses", async || {
        is_refused_for_want_of_a_seat(&pool).await
    })
    .await;
    let health = pool.ready(LONG).await;
    for partition in &health.partitions {
        assert!(
            matches!(partition.not_ready, Some(NotReady::NoSeat)),
            "{health}"
        );
    }
    assert!(health.to_string().contains("holds no seat"), "{health}");
    say(tenant, "UPDATE seats SET expires_at = clock_timestamp()").await;
    eventually("it is ready again", async || {
        pool.ready(LONG).await.is_ready()
    })
    .await;
}

/// By a restore, or a migration that went wrong.
async fn a_table_that_is_lost_and_made_again_has_seats_whose_sessions_are_no_strangers<
    D: Tested,
>(
    tenant: &Tenant,
) {
    table(tenant).await;
    let pool = connected::<D>(seated(tenant, seats(1))).await;
    say(tenant, "DROP TABLE seats").await;
    within(LONG, "it refuses", async || {
        is_refused_for_want_of_a_seat(&pool).await
    })
    .await;
    table(tenant).await;
    eventually("it has a seat again", async || admits(&pool).await).await;
    let (epoch, held, _) = seat(tenant, 1).await;
    assert!(held && epoch > 1, "epoch {epoch}");

    pool.close(LONG).await;

    // The holder of its time, who has noticed nothing.
    let name = format!("{}/transactional#1.41", tenant.name);
    let holder = session(tenant, &name).await;
    say(tenant, "DROP TABLE seats").await;
    table(tenant).await;
    let next = connected::<D>(seated(tenant, seats(2))).await;
    assert_eq!(seat(tenant, 1).await, (42, true, false));
    assert_eq!(seat(tenant, 2).await, (0, false, false));
    holder.batch_execute("SELECT 1").await.unwrap_err();
    assert!(admits(&next).await);
}

/// A role that only reads, and that does not wait for the disk: the seats write all the same, and wait.
async fn the_settings_of_partitions_and_roles_are_not_those_of_the_seats<D: Tested>(
    tenant: &Tenant,
) {
    table(tenant).await;
    let name = &tenant.name;
    for setting in [
        "default_transaction_read_only = on",
        "synchronous_commit = off",
    ] {
        tenant
            .sql(&format!("ALTER ROLE {name} SET {setting}"))
            .await;
    }
    let tells = "CREATE TABLE {0}.told (t text); \
        CREATE FUNCTION {0}.tell() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN \
        INSERT INTO {0}.told VALUES (concat_ws(', ', current_setting('transaction_isolation'), \
        current_setting('synchronous_commit'))); RETURN new; END $$; \
        CREATE TRIGGER tell BEFORE UPDATE ON {0}.partitioned_pool_seats \
        FOR EACH ROW EXECUTE FUNCTION {0}.tell()";
    tenant.sql(&tells.replace("{0}", name)).await;
    let reads = small(3)
        .setting("default_transaction_isolation", "serializable")
        .setting("default_transaction_read_only", "on");
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off).seats(seats(1));
    let pool = connected::<D>(tenant.config_for(fleet, reads)).await;
    assert!(admits(&pool).await);
    pool.close(LONG).await;
    assert_eq!(seat(tenant, 1).await, (1, false, false));
    let sql = format!("SELECT DISTINCT t FROM {name}.told");
    let told = tenant.admin.query(&sql, &[]).await.unwrap();
    let told: Vec<String> = told.iter().map(|row| row.get(0)).collect();
    assert_eq!(told, ["read committed, on"]);
}

/// Each server and role has a line of its own.
async fn a_server_that_hangs_keeps_nobody_from_ending_earlier_sessions_elsewhere<D: Tested>(
    tenant: &Tenant,
) {
    table(tenant).await;
    let (name, other) = (&tenant.name, format!("{}o", tenant.name));
    tenant
        .sql(&format!("CREATE ROLE {other} LOGIN PASSWORD '{name}'"))
        .await;
    let of_other = tenant
        .url()
        .replace(&format!("//{name}:"), &format!("//{other}:"));
    say(
        tenant,
        &format!("INSERT INTO seats VALUES ('{name}', 1, 7, 'gone', now(), now())"),
    )
    .await;
    let proxy = tenant.proxy().await;
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    let config = PoolConfig::new(name, tenant.url(), fleet.seats(seats(1)))
        .transactional(small(2))
        .analytical(PartitionConfig::analytical(1).url(tenant.url_by(&proxy)))
        .partition(PartitionConfig::named("batch", Kind::Analytical, 1).url(of_other.as_str()));
    let pool = connected::<D>(config).await;
    proxy.set(Fault::Pause);
    let mut config: Config = of_other.parse().unwrap();
    let config = config.application_name(format!("{name}/batch#1.7"));
    let (late, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    within(LONG, "a straggler is ended", async || {
        late.batch_execute("SELECT 1").await.is_err()
    })
    .await;
    assert!(admits(&pool).await);
    assert_eq!(seat(tenant, 1).await, (8, true, false));
    proxy.set(Fault::None);
    pool.close(LONG).await;
    let gone = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{other}'");
    eventually("its sessions are gone", async || {
        let row = tenant.admin.query_one(&gone, &[]).await.unwrap();
        row.get::<_, i64>(0) == 0
    })
    .await;
    tenant.sql(&format!("DROP ROLE {other}")).await;
}

async fn whoever_takes_a_seat_ends_the_sessions_of_earlier_holders_first<D: Tested>(
    tenant: &Tenant,
) {
    table(tenant).await;
    let name = &tenant.name;
    let held = format!(
        "INSERT INTO seats VALUES ('{name}', 1, 7, 'gone', clock_timestamp(), clock_timestamp())"
    );
    say(tenant, &held).await;
    let mut earlier = Vec::new();
    for name in [
        format!("{name}/transactional#1.7"),
        format!("{name}/seats#1.6"),
        format!("{name}/control#1.7"),
    ] {
        earlier.push(session(tenant, &name).await);
    }
    earlier[0]
        .batch_execute("BEGIN; CREATE TABLE half_done ()")
        .await
        .unwrap();
    let mut others = Vec::new();
    for name in [
        format!("{name}/transactional#2.7"),
        format!("{name}/transactional#11.7"),
        format!("{name}/transactional#1.70"),
        format!("other{name}/transactional#1.7"),
        format!("{name}/transactional"),
        "psql".to_owned(),
    ] {
        others.push(session(tenant, &name).await);
    }
    let pool = connected::<D>(seated(tenant, seats(1))).await;
    assert_eq!(seat(tenant, 1).await, (8, true, false));
    assert_eq!(
        tenant
            .count("application_name ~ '#1[.][67]$' AND application_name LIKE usename || '/%'")
            .await,
        0
    );
    for one in &earlier {
        one.batch_execute("SELECT 1").await.unwrap_err();
    }
    // It was logging in when the seat was taken, and nobody could see it.
    let late = session(tenant, &format!("{name}/transactional#1.7")).await;
    within(LONG, "a straggler is ended", async || {
        late.batch_execute("SELECT 1").await.is_err()
    })
    .await;
    for one in &others {
        one.batch_execute("SELECT 1").await.unwrap();
    }
    assert!(admits(&pool).await);
}

/// A partition with a role of its own: nobody needs the right to end the sessions of another role.
async fn the_sessions_of_each_role_are_ended_as_that_role<D: Tested>(tenant: &Tenant) {
    table(tenant).await;
    let (name, other) = (&tenant.name, format!("{}o", tenant.name));
    tenant
        .sql(&format!("CREATE ROLE {other} LOGIN PASSWORD '{name}'"))
        .await;
    let url = tenant
        .url()
        .replace(&format!("//{name}:"), &format!("//{other}:"));
    say(
        tenant,
        &format!("INSERT INTO seats VALUES ('{name}', 1, 7, 'gone', now(), now())"),
    )
    .await;
    let mut config: Config = url.parse().unwrap();
    let (earlier, connection) = config
        .application_name(format!("{name}/analytical#1.7"))
        .connect(NoTls)
        .await
        .unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let analytical = PartitionConfig::analytical(1).url(url.as_str());
    let fleet = FleetConfig::new(1, 0).reserve(1).seats(seats(1));
    let config = PoolConfig::new(name, tenant.url(), fleet)
        .transactional(small(2))
        .analytical(analytical);
    let pool = connected::<D>(config).await;
    earlier.batch_execute("SELECT 1").await.unwrap_err();
    let of_other = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE usename = '{other}' AND application_name LIKE '%#1.8'"
    );
    let counted: i64 = tenant.admin.query_one(&of_other, &[]).await.unwrap().get(0);
    // The first of its partition, a line, and what the driver keeps beside for each role.
    assert_eq!(counted, 2 + D::BESIDE);
    assert!(tenant.count("application_name LIKE '%/seats#1.8'").await == 1);
    let needed = u64::try_from(2 + 1 + 2 * (1 + D::BESIDE) + 1).unwrap();
    assert_eq!(pool.fleet_report().unwrap().needed(), Some(needed));
    assert!(pool.close(LONG).await.is_drained());
    let gone = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{other}'");
    eventually("its sessions are gone", async || {
        tenant
            .admin
            .query_one(&gone, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
    })
    .await;
    tenant.sql(&format!("DROP ROLE {other}")).await;
}

/// What an observer hears of seats, of whatever partition.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Observer for Heard {
    fn partition(&self, _: &str) -> Box<dyn PartitionObserver> {
        Box::new(self.clone())
    }
}

impl PartitionObserver for Heard {
    fn on(&self, event: &Event<'_>) {
        let heard = match event {
            Event::SeatTaken { seat, epoch } => format!("taken {seat}.{epoch}"),
            Event::SeatLost { seat, epoch } => format!("lost {seat}.{epoch}"),
            _ => return,
        };
        self.0.lock().unwrap().push(heard);
    }
}

async fn an_observer_hears_in_each_partition_of_every_change<D: Tested>(tenant: &Tenant) {
    table(tenant).await;
    let heard = Heard::default();
    let pool = PartitionedPool::<D>::builder(seated(tenant, seats(1)));
    let pool = pool.observer(heard.clone()).connect().await.unwrap();
    say(
        tenant,
        "UPDATE seats SET holder = 'somebody else', epoch = 2, expires_at = now()",
    )
    .await;
    let words = async || heard.0.lock().unwrap().join(", ");
    let all = "taken 1.1, taken 1.1, lost 1.1, lost 1.1, taken 1.3, taken 1.3";
    eventually("it is lost and had again", async || words().await == all).await;
    let status = pool.status().to_string();
    assert!(status.contains("seat 1, epoch 3, held for "), "{status}");
    drop(pool);
}

async fn two_fleets_in_one_database_have_seats_of_their_own<D: Tested>(tenant: &Tenant) {
    table(tenant).await;
    let other = |fleet: &str| {
        let name = format!("{fleet}{}", tenant.name);
        let fleet = FleetConfig::new(1, 0).seats(seats(1)).mode(FleetCheck::Off);
        PoolConfig::new(name, tenant.url(), fleet)
            .transactional(small(2))
            .analytical(PartitionConfig::analytical(1))
    };
    let first = connected::<D>(other("a")).await;
    let second = connected::<D>(other("b")).await;
    for _ in 0..2 {
        assert!(admits(&first).await && admits(&second).await);
        tokio::time::sleep(LEASE / 2).await;
    }
    let held = async || {
        let sql = format!(
            "SELECT count(*) FROM {}.partitioned_pool_seats WHERE seat = 1 AND epoch = 1 AND holder IS NOT NULL",
            tenant.name
        );
        tenant
            .admin
            .query_one(&sql, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
    };
    assert_eq!(held().await, 2);
    first.close(LONG).await;
    assert_eq!(held().await, 1);
    assert!(admits(&second).await);
}

async fn what_is_cut_off_stops_before_its_seat_can_be_taken<D: Tested>(tenant: &Tenant) {
    table(tenant).await;
    let proxy = tenant.proxy().await;
    let config = seated(tenant, seats(1)).url(tenant.url_by(&proxy));
    let cut_off = connected::<D>(config).await;
    let mut held = cut_off.transactional().acquire_by(LONG).await.unwrap();
    held.say("BEGIN; SELECT 1").await.unwrap();
    proxy.set(Fault::Pause);
    // It asks the table, and not its own clock, whether the seat could be taken when it stopped.
    within(LONG, "it refuses", async || {
        is_refused_for_want_of_a_seat(&cut_off).await
    })
    .await;
    let when_refused = seat(tenant, 1).await;
    within(LONG, "it has taken away", async || {
        held.taken_after().is_some()
    })
    .await;
    let when_taken_away = seat(tenant, 1).await;
    println!("when it refused: {when_refused:?}; when it took away: {when_taken_away:?}");
    assert_eq!(when_refused, (1, true, false));

    let next = connected::<D>(seated(tenant, seats(1).wait(LONG))).await;
    assert_eq!(seat(tenant, 1).await, (2, true, false));
    assert_eq!(tenant.count("application_name LIKE '%#1.1'").await, 0);
    proxy.set(Fault::None);
    drop(held);
    for _ in 0..20 {
        assert!(is_refused_for_want_of_a_seat(&cut_off).await);
        tokio::time::sleep(20 * MS).await;
    }
    assert!(admits(&next).await);
    next.close(LONG).await;
    eventually("it has a seat again", async || admits(&cut_off).await).await;
    assert_eq!(seat(tenant, 1).await, (3, true, false));
}

async fn a_table_that_is_missing_or_not_ours_is_a_boot_error_that_says_what_to_do<D: Tested>(
    tenant: &Tenant,
) {
    let said = async || {
        let boot = PartitionedPool::<D>::connect(seated(tenant, seats(1))).await;
        let error = boot.unwrap_err();
        assert!(matches!(error, BootError::SeatsFailed { .. }), "{error}");
        let text = error.to_string();
        println!("{text}");
        assert!(
            !text.contains(&format!(":{}", tenant.name)),
            "a secret in {text}"
        );
        text
    };
    let text = said().await;
    for word in [
        "partitioned_pool_seats",
        "migrations/0001_seats.sql",
        "GRANT SELECT",
        "42P01",
    ] {
        assert!(text.contains(word), "no {word} in {text}");
    }
    table(tenant).await;
    // It does nothing the second time.
    table(tenant).await;
    say(
        tenant,
        &format!("REVOKE UPDATE ON seats FROM {}", tenant.name),
    )
    .await;
    let text = said().await;
    let grant = format!(
        "GRANT SELECT, INSERT, UPDATE ON partitioned_pool_seats TO {}",
        tenant.name
    );
    assert!(text.contains(&grant) && text.contains("42501"), "{text}");
    tenant.until_gone().await;
}

async fn a_role_that_only_the_seats_use_is_counted_with_its_own_limits<D: Tested>(tenant: &Tenant) {
    table(tenant).await;
    let name = &tenant.name;
    let sql = format!(
        "CREATE ROLE {name}_keeper LOGIN PASSWORD '{name}' CONNECTION LIMIT 2; \
         ALTER ROLE {name}_keeper SET search_path TO {name}; GRANT USAGE ON SCHEMA {name} TO {name}_keeper; \
         GRANT SELECT, INSERT, UPDATE ON {name}.partitioned_pool_seats TO {name}_keeper"
    );
    tenant.sql(&sql).await;
    // By another address, so that the partitions do not see its server: it turns out to be theirs.
    let proxy = tenant.proxy().await;
    let as_keeper = |url: String| url.replacen(name, &format!("{name}_keeper"), 1);
    for url in [as_keeper(tenant.url()), as_keeper(tenant.url_by(&proxy))] {
        let config = |count| {
            let seats = seats(count).url(url.as_str());
            let fleet = FleetConfig::new(2, 0).reserve(5).seats(seats);
            tenant.config_for(fleet, small(3))
        };
        // Three, one, the line for the role of the partitions, and that of the keeper.
        let replica = u64::try_from(3 + 1 + 1 + 1 + D::BESIDE).unwrap();
        let keeper = Scope::Role {
            name: format!("{name}_keeper"),
        };
        let counted = |report: &FleetReport, count: u64| {
            let [server] = report.servers() else {
                panic!("{report}")
            };
            assert_eq!(
                server.constraints[0].needed,
                count * replica + 5,
                "{report}"
            );
            let of_keeper = server.constraints.iter().find(|c| c.scope == keeper);
            let of_keeper = of_keeper.unwrap_or_else(|| panic!("{report}"));
            assert_eq!(
                (of_keeper.needed, of_keeper.granted),
                (count, 2),
                "{report}"
            );
        };
        let report = PartitionedPool::<D>::check(config(3)).await.unwrap();
        counted(&report, 3);
        assert!(!report.fits(), "{report}");
        let told = report.to_string();
        assert!(told.contains("needed  = 3 seats x (1 control)"), "{told}");
        let pool = connected::<D>(config(2)).await;
        counted(pool.fleet_report().unwrap(), 2);
        assert!(admits(&pool).await);
        assert!(pool.close(LONG).await.is_drained());
        eventually("the keeper has left", async || {
            let sql =
                format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{name}_keeper'");
            tenant
                .admin
                .query_one(&sql, &[])
                .await
                .unwrap()
                .get::<_, i64>(0)
                == 0
        })
        .await;
    }
    tenant
        .sql(&format!("DROP OWNED BY {name}_keeper CASCADE"))
        .await;
    tenant.sql(&format!("DROP ROLE {name}_keeper")).await;
}

async fn fewer_seats_than_replicas_are_told_and_seats_are_what_is_counted<D: Tested>(
    tenant: &Tenant,
) {
    table(tenant).await;
    let config = |count| {
        let fleet = FleetConfig::new(10, 2).reserve(5).seats(seats(count));
        tenant.config_for(fleet, small(3))
    };
    let few = |report: &FleetReport| {
        let few = |w: &Warning| {
            matches!(
                w,
                Warning::FewerSeats {
                    seats: 8,
                    replicas: 12
                }
            )
        };
        report.warnings().iter().any(few)
    };
    let report = PartitionedPool::<D>::check(config(8)).await.unwrap();
    let line = 1;
    let replica = u64::try_from(3 + 1 + line + D::BESIDE).unwrap();
    assert_eq!(
        (report.needed(), report.seats()),
        (Some(8 * replica + 5), Some(8))
    );
    assert!(
        few(&report) && report.to_string().contains("8 seats for 12 replicas"),
        "{report}"
    );
    let report = PartitionedPool::<D>::check(config(12)).await.unwrap();
    assert!(!few(&report), "{report}");
    // Nobody has taken one to find that out.
    assert_eq!(
        tenant
            .admin
            .query_one(
                &format!(
                    "SELECT count(*) FROM {}.partitioned_pool_seats",
                    tenant.name
                ),
                &[]
            )
            .await
            .unwrap()
            .get::<_, i64>(0),
        0
    );

    let refused = PartitionedPool::<D>::connect(config(60)).await.unwrap_err();
    let BootError::DoesNotFit(report) = &refused else {
        panic!("{refused}")
    };
    let most = report.largest_fleet().unwrap();
    assert!(
        refused
            .to_string()
            .contains(&format!("Most seats that fit: {most}.")),
        "{refused}"
    );
    // Who did not boot has given it back.
    assert_eq!(seat(tenant, 1).await, (1, false, false));
    let pool = connected::<D>(config(most)).await;
    assert!(pool.fleet_report().unwrap().fits());
}

async fn a_server_that_is_full_renews_and_one_that_restarts_keeps_seats<D: Tested>() {
    on_own_servers(&[("max_connections", "14")], async |server, tenant| {
        table(tenant).await;
        let pool = connected::<D>(seated(tenant, seats(1))).await;
        let mut taken = Vec::new();
        let url: Config = tenant.url().parse().unwrap();
        while let Ok((client, connection)) = url.connect(NoTls).await {
            tokio::spawn(async move { drop(connection.await) });
            taken.push(client);
        }
        assert!(!taken.is_empty());
        let began = Instant::now();
        while began.elapsed() < 2 * LEASE {
            assert!(admits(&pool).await);
            assert_eq!(seat(tenant, 1).await, (1, true, false));
            tokio::time::sleep(50 * MS).await;
        }
        drop(taken);
        server.restart().await.unwrap();
        let tenant = tenant.again().await;
        eventually("it admits again", async || admits(&pool).await).await;
        let (epoch, held, expired) = seat(&tenant, 1).await;
        println!("after the restart: epoch {epoch}");
        assert!(held && !expired);
        // Only if the restart has lasted for longer than the lease was it lost; nobody else wanted it.
        assert_eq!(epoch, 1);
        pool.close(LONG).await;
        assert!(!seat(&tenant, 1).await.1);
    })
    .await;
}

/// Its only line is too good to be thrown away for that: on a full server there is no other.
async fn a_renewal_that_waits_for_a_lock_on_a_full_server_does_not_cost_the_seat<D: Tested>() {
    on_own_servers(&[("max_connections", "14")], async |_, tenant| {
        table(tenant).await;
        let pool = connected::<D>(seated(tenant, seats(1))).await;
        let mut locks = tenant.another_admin().await.unwrap();
        // Whatever slot comes free is somebody else's at once.
        let url: Config = tenant.url().parse().unwrap();
        let hungry = tokio::spawn(async move {
            let mut taken = Vec::new();
            loop {
                match url.connect(NoTls).await {
                    Ok((client, connection)) => {
                        tokio::spawn(async move { drop(connection.await) });
                        taken.push(client);
                    }
                    Err(_) => tokio::time::sleep(5 * MS).await,
                }
            }
        });
        // Three slots are kept for superusers, and two of these are here.
        eventually("the server is full", async || tenant.backends().await == 9).await;
        let lock = locks.transaction().await.unwrap();
        let sql = format!(
            "SELECT FROM {}.partitioned_pool_seats FOR UPDATE",
            tenant.name
        );
        lock.execute(&sql, &[]).await.unwrap();
        tokio::time::sleep(LEASE / 2).await;
        lock.rollback().await.unwrap();
        let began = Instant::now();
        while began.elapsed() < LEASE {
            assert!(admits(&pool).await);
            assert_eq!(seat(tenant, 1).await, (1, true, false));
            tokio::time::sleep(50 * MS).await;
        }
        hungry.abort();
    })
    .await;
}

async fn a_database_that_is_not_there_is_failed_awaited_or_done_without<D: Tested>() {
    on_own_servers(&[], async |server, tenant| {
        table(tenant).await;
        server.stop().await.unwrap();
        let boots = |when| seated(tenant, seats(1)).boot(BootConfig::new().when_unavailable(when));
        let refused = PartitionedPool::<D>::connect(boots(WhenUnavailable::Fail)).await;
        assert!(matches!(refused, Err(BootError::SeatsFailed { .. })));
        let without = connected::<D>(boots(WhenUnavailable::Start)).await;
        assert!(is_refused_for_want_of_a_seat(&without).await);
        server.start().await.unwrap();
        eventually("it has a seat", async || admits(&without).await).await;
        without.close(LONG).await;
        let waits = connected::<D>(boots(WhenUnavailable::Wait(LONG))).await;
        assert!(admits(&waits).await);
    })
    .await;
}

on_each_driver!(
    every_session_carries_its_seat_and_closing_gives_it_back,
    who_waits_for_a_seat_has_no_connection_meanwhile,
    who_waits_for_a_seat_behind_a_wall_waits,
    a_lost_seat_admits_nothing_takes_away_what_is_held_and_is_had_again,
    without_a_seat_no_partition_is_ready,
    a_table_that_is_lost_and_made_again_has_seats_whose_sessions_are_no_strangers,
    the_settings_of_partitions_and_roles_are_not_those_of_the_seats,
    a_server_that_hangs_keeps_nobody_from_ending_earlier_sessions_elsewhere,
    whoever_takes_a_seat_ends_the_sessions_of_earlier_holders_first,
    the_sessions_of_each_role_are_ended_as_that_role,
    an_observer_hears_in_each_partition_of_every_change,
    two_fleets_in_one_database_have_seats_of_their_own,
    what_is_cut_off_stops_before_its_seat_can_be_taken,
    a_table_that_is_missing_or_not_ours_is_a_boot_error_that_says_what_to_do,
    a_role_that_only_the_seats_use_is_counted_with_its_own_limits,
    fewer_seats_than_replicas_are_told_and_seats_are_what_is_counted;
    alone: a_server_that_is_full_renews_and_one_that_restarts_keeps_seats,
    a_renewal_that_waits_for_a_lock_on_a_full_server_does_not_cost_the_seat, a_database_that_is_not_there_is_failed_awaited_or_done_without
);
