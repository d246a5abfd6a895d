//! The published `two_dependencies`, on the real pool and a real server: who runs, who waits, who is rejected, in
//! the published order and words.
//!
//! Payments stall on a lock of the server, until it is released. The catalog is healthy.

use partitioned_pool::config::{FleetCheck, FleetConfig, Kind, PartitionConfig, PoolConfig};
use partitioned_pool::error::{Reason, RunError};
use partitioned_pool::plan::reference::PUBLISHED;
use partitioned_pool::{AcquireError, Partition, PartitionedPool};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::driver::{Speaks as _, Tested, Wrong, on_each_driver};
use crate::support::patience::{LONG, eventually};
use crate::support::tenant::{Tenant, until_at_rest};

on_each_driver![
    in_one_partition_both_dependencies_fall_together,
    in_partitions_of_their_own_only_the_stalled_one_falls,
    with_a_queue_everything_happens_in_the_published_order,
];

type Outcome = Result<(), RunError<Wrong>>;

fn published(run: &str) -> Value {
    let all: Value = serde_json::from_str(PUBLISHED).unwrap();
    all["two_dependencies"][run].clone()
}

async fn pool<D: Tested>(tenant: &Tenant, partitions: &[(&str, u32, u32)]) -> PartitionedPool<D> {
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    let config = PoolConfig::new(&tenant.name, tenant.url(), fleet)
        .transactional(PartitionConfig::transactional(1).min_idle(0))
        .analytical(PartitionConfig::analytical(1));
    let named = |&(name, slots, queue): &(&str, u32, u32)| {
        PartitionConfig::named(name, Kind::Transactional, slots)
            .max_waiters(queue)
            .acquire_timeout(LONG)
            .lock_timeout(LONG)
            .statement_timeout(LONG)
            .min_idle(0)
    };
    let config = partitions
        .iter()
        .map(named)
        .fold(config, PoolConfig::partition);
    PartitionedPool::<D>::connect(config).await.unwrap()
}

/// What stalls a payment: a lock that another session has.
struct Stall<'a> {
    tenant: &'a Tenant,
    key: i32,
}

impl<'a> Stall<'a> {
    async fn new(tenant: &'a Tenant, key: i32) -> Self {
        let stall = Self { tenant, key };
        tenant
            .sql(&format!("SELECT pg_advisory_lock({})", stall.lock()))
            .await;
        stall
    }

    async fn release(self) {
        self.tenant
            .sql(&format!("SELECT pg_advisory_unlock({})", self.lock()))
            .await;
    }

    /// Its own: tenants share a database.
    fn lock(&self) -> String {
        format!("hashtext('{}'), {}", self.tenant.name, self.key)
    }

    /// Stalls, and then succeeds.
    fn statement(&self) -> String {
        format!("SELECT pg_advisory_xact_lock_shared({})", self.lock())
    }

    /// Stalls, and then fails.
    fn failing(&self) -> String {
        let wait = self.statement().replace("SELECT", "PERFORM");
        format!("DO $$ BEGIN {wait}; RAISE EXCEPTION 'declined'; END $$")
    }

    /// Waits until so many stall.
    async fn until_stalled(&self, count: i64) {
        let stalled = "wait_event_type = 'Lock' AND wait_event = 'advisory'";
        eventually("payments stall", async || {
            self.tenant.count(stalled).await == count
        })
        .await;
    }
}

fn start<D: Tested>(partition: &Partition<D>, sql: String) -> JoinHandle<Outcome> {
    let partition = partition.clone();
    tokio::spawn(async move {
        partition
            .run(LONG, async |conn| conn.say(&sql).await.map(drop))
            .await
    })
}

/// A call of a healthy dependency, or of a stalled one that finds no room.
async fn call<D: Tested>(partition: &Partition<D>) -> String {
    match partition
        .run(LONG, async |conn| conn.say("SELECT 1").await.map(drop))
        .await
    {
        Ok(()) => "ok".to_owned(),
        Err(RunError::Acquire(error)) => rejected(&error),
        Err(error) => panic!("{error}"),
    }
}

fn rejected(error: &AcquireError) -> String {
    let rejection = error.rejection().unwrap_or_else(|| panic!("{error}"));
    assert_eq!(rejection.reason, Reason::QueueFull);
    format!("rejected by {}", rejection.partition)
}

/// The two partitions may be the same one.
async fn without_a_queue<D: Tested>(
    tenant: &Tenant,
    payments: &Partition<D>,
    catalog: &Partition<D>,
) -> Value {
    let stall = Stall::new(tenant, 1).await;
    let first = start(payments, stall.statement());
    let second = start(payments, stall.statement());
    stall.until_stalled(2).await;
    let (payment_3, catalog) = (call(payments).await, call(catalog).await);
    assert!(!first.is_finished() && !second.is_finished());
    stall.release().await;
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    json!({
        "payment_3": payment_3,
        "catalog": catalog,
        "payment_1": "ok after release",
        "payment_2": "ok after release",
    })
}

async fn in_one_partition_both_dependencies_fall_together<D: Tested>(tenant: &Tenant) {
    let pool = pool::<D>(tenant, &[("shared", 2, 0)]).await;
    let shared = pool.partition("shared").unwrap();
    let run = without_a_queue(tenant, shared, shared).await;
    assert_eq!(run, published("shared"));
}

async fn in_partitions_of_their_own_only_the_stalled_one_falls<D: Tested>(tenant: &Tenant) {
    let pool = pool::<D>(tenant, &[("payments", 2, 0), ("catalog", 2, 0)]).await;
    let partition = |name| pool.partition(name).unwrap();
    let run = without_a_queue(tenant, partition("payments"), partition("catalog")).await;
    assert_eq!(run, published("separate"));
}

/// What runs and what waits, as the published sequence writes it.
fn load<D: Tested>(partition: &Partition<D>) -> String {
    let status = partition.status();
    format!("running {}, queued {}", status.in_use, status.waiting)
}

async fn with_a_queue<D: Tested>(
    tenant: &Tenant,
    payments: &Partition<D>,
    catalog: &Partition<D>,
) -> Vec<String> {
    let (stall, failure) = (Stall::new(tenant, 1).await, Stall::new(tenant, 2).await);
    let mut sequence = Vec::new();
    let pay_1 = start(payments, stall.statement());
    stall.until_stalled(1).await;
    let pay_2 = start(payments, failure.failing());
    stall.until_stalled(2).await;
    let pay_3 = start(payments, stall.statement());
    eventually("pay-3 waits", async || payments.status().waiting == 1).await;
    assert_eq!(call(payments).await, "rejected by payments");
    let load_then = load(payments);
    sequence.push(format!(
        "pay-1, pay-2 run, pay-3 waits, pay-4 rejected ({load_then})"
    ));
    sequence.push(format!("catalog-1 {}", call(catalog).await));

    failure.release().await;
    let failed = pay_2.await.unwrap().unwrap_err();
    assert!(failed.work().is_some(), "{failed}");
    // Two stall again: pay-1, and the one that had waited.
    stall.until_stalled(2).await;
    assert_eq!(load(payments), "running 2, queued 0");
    assert!(!pay_1.is_finished() && !pay_3.is_finished());
    sequence.push("pay-2 fails: its slot goes to pay-3".to_owned());

    stall.release().await;
    pay_3.await.unwrap().unwrap();
    pay_1.await.unwrap().unwrap();
    sequence.push("pay-3 ok, pay-1 ok".to_owned());
    until_at_rest(payments).await;
    sequence.push(load(payments));
    sequence.push(format!("pay-5 {}", call(payments).await));
    sequence
}

async fn with_a_queue_everything_happens_in_the_published_order<D: Tested>(tenant: &Tenant) {
    let published = published("queued");
    let size = |name: &str, of: &str| {
        let count = published[name][of].as_u64().unwrap();
        u32::try_from(count).unwrap()
    };
    let sized =
        ["payments", "catalog"].map(|name| (name, size(name, "slots"), size(name, "queue")));
    let pool = pool::<D>(tenant, &sized).await;
    let partition = |name| pool.partition(name).unwrap();
    let run = with_a_queue(tenant, partition("payments"), partition("catalog")).await;
    assert_eq!(json!(run), published["sequence"]);
}
