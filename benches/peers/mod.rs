//! The pools that are measured, each with connections of nothing or of a real Postgres.

#![allow(dead_code, reason = "each benchmark uses its own part of this module")]

#[path = "../../tests/support/memory/mod.rs"]
pub(crate) mod memory;
#[path = "../../tests/support/postgres/mod.rs"]
pub(crate) mod postgres;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use deadpool::managed::{Manager, Metrics, RecycleResult, Timeouts};
use partitioned_pool::config::{
    BudgetConfig, FleetCheck, FleetConfig, PartitionConfig, PoolConfig,
};
use partitioned_pool::error::AcquireError;
use partitioned_pool::{Connection, Driver, Partition, PartitionedPool, Sqlx, TokioPostgres};
use tokio_postgres::NoTls;

use memory::{Memory, Nothing};

/// Nobody waits that long: what is measured is never the timeout.
const LONG: Duration = Duration::from_secs(3600);

/// deadpool's and bb8's manager of connections of nothing.
#[derive(Debug)]
pub(crate) struct Trivial;

impl Manager for Trivial {
    type Type = Nothing;
    type Error = Infallible;

    async fn create(&self) -> Result<Nothing, Infallible> {
        Ok(Nothing)
    }

    async fn recycle(&self, _: &mut Nothing, _: &Metrics) -> RecycleResult<Infallible> {
        Ok(())
    }
}

impl bb8::ManageConnection for Trivial {
    type Connection = Nothing;
    type Error = Infallible;

    async fn connect(&self) -> Result<Nothing, Infallible> {
        Ok(Nothing)
    }

    async fn is_valid(&self, _: &mut Nothing) -> Result<(), Infallible> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Nothing) -> bool {
        false
    }
}

/// A partition of `size` connections to a server, with its pool, which must outlive it.
#[derive(Debug)]
pub(crate) struct Ours<D: Driver> {
    pub(crate) pool: PartitionedPool<D>,
}

impl<D: Driver> Ours<D> {
    async fn start(config: PoolConfig, size: u32, waiters: u32) -> Self {
        let measured = PartitionConfig::transactional(size)
            .max_waiters(waiters)
            .acquire_timeout(LONG);
        let config = config
            .transactional(measured)
            .analytical(PartitionConfig::analytical(1));
        let pool = PartitionedPool::connect(config).await;
        Self {
            pool: pool.expect("the pool starts"),
        }
    }

    pub(crate) fn partition(&self) -> Partition<D> {
        self.pool.transactional().clone()
    }
}

pub(crate) async fn ours(size: u32, waiters: u32) -> Ours<Memory> {
    Ours::start(memory::config(memory::STEADY), size, waiters).await
}

/// The same in a budget that it shares with the other partition, of which nobody borrows anything.
pub(crate) async fn ours_sharing(size: u32, waiters: u32) -> Ours<Memory> {
    let measured = PartitionConfig::transactional(size + 1).budget("main");
    let measured = measured.reserved(size).max_waiters(waiters);
    let other = PartitionConfig::analytical(2).budget("main").reserved(1);
    let config = memory::config(memory::STEADY)
        .budget(BudgetConfig::new("main", size + 2))
        .transactional(measured.acquire_timeout(LONG))
        .analytical(other);
    let pool = PartitionedPool::connect(config).await;
    Ours {
        pool: pool.expect("the pool starts"),
    }
}

pub(crate) async fn ours_on(url: &str, size: u32) -> Ours<TokioPostgres> {
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    Ours::start(PoolConfig::new("bench", url, fleet), size, 100).await
}

/// The same on sqlx.
pub(crate) async fn ours_on_sqlx(url: &str, size: u32) -> Ours<Sqlx> {
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    Ours::start(PoolConfig::new("bench", url, fleet), size, 100).await
}

pub(crate) fn deadpool(size: usize) -> deadpool::managed::Pool<Trivial> {
    let pool = deadpool::managed::Pool::builder(Trivial).max_size(size);
    pool.build().expect("the pool starts")
}

/// deadpool's way to refuse instead of waiting.
pub(crate) fn no_wait() -> Timeouts {
    Timeouts {
        wait: Some(Duration::ZERO),
        ..Timeouts::default()
    }
}

pub(crate) fn deadpool_on(url: &str, size: usize) -> deadpool_postgres::Pool {
    let config = url.parse().expect("the url is right");
    let manager = deadpool_postgres::Manager::new(config, NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(size);
    pool.build().expect("the pool starts")
}

pub(crate) async fn bb8(size: u32) -> bb8::Pool<Trivial> {
    let pool = bb8::Pool::builder().max_size(size).build(Trivial).await;
    pool.expect("the pool starts")
}

pub(crate) type Bb8Postgres = bb8::Pool<bb8_postgres::PostgresConnectionManager<NoTls>>;

/// Without bb8's round trip before each use, which neither we nor deadpool make.
pub(crate) async fn bb8_on(url: &str, size: u32) -> Bb8Postgres {
    let config = url.parse().expect("the url is right");
    let manager = bb8_postgres::PostgresConnectionManager::new(config, NoTls);
    let pool = bb8::Pool::builder().max_size(size).test_on_check_out(false);
    pool.build(manager).await.expect("the pool starts")
}

/// Without sqlx's round trip before each use, which neither we nor deadpool make.
pub(crate) async fn sqlx_on(url: &str, size: u32) -> sqlx::PgPool {
    sqlx_testing(url, size, false).await
}

/// With it, which is sqlx's default, or without.
pub(crate) async fn sqlx_testing(url: &str, size: u32, test_before_acquire: bool) -> sqlx::PgPool {
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(size)
        .test_before_acquire(test_before_acquire);
    pool.connect(url).await.expect("the pool starts")
}

pub(crate) async fn select_one_ours(partition: &Partition<TokioPostgres>) -> i32 {
    let connection = partition.acquire().await.expect("a connection");
    let statement = connection.prepare_cached("SELECT 1").await.expect("SQL");
    let row = connection.query_one(&statement, &[]).await.expect("a row");
    row.get(0)
}

pub(crate) async fn select_one_deadpool(pool: &deadpool_postgres::Pool) -> i32 {
    let connection = pool.get().await.expect("a connection");
    let statement = connection.prepare_cached("SELECT 1").await.expect("SQL");
    let row = connection.query_one(&statement, &[]).await.expect("a row");
    row.get(0)
}

/// bb8-postgres keeps no statements: this one was prepared on the pool's one connection before.
pub(crate) async fn select_one_bb8(pool: &Bb8Postgres, on_it: &tokio_postgres::Statement) -> i32 {
    let connection = pool.get().await.expect("a connection");
    let row = connection.query_one(on_it, &[]).await.expect("a row");
    row.get(0)
}

pub(crate) async fn prepare_bb8(pool: &Bb8Postgres) -> tokio_postgres::Statement {
    let connection = pool.get().await.expect("a connection");
    connection.prepare("SELECT 1").await.expect("SQL")
}

pub(crate) async fn select_one_sqlx(pool: &sqlx::PgPool) -> i32 {
    let mut connection = pool.acquire().await.expect("a connection");
    let one = sqlx::query_scalar("SELECT 1").fetch_one(&mut *connection);
    one.await.expect("a row")
}

/// The same through whatever is an executor: a partition or a `PgPool`.
pub(crate) async fn select_one_by(executor: impl sqlx::PgExecutor<'_>) -> i32 {
    let one = sqlx::query_scalar("SELECT 1").fetch_one(executor);
    one.await.expect("a row")
}

/// How long it takes from the drop of a connection that was used until the only slot is held again.
pub(crate) async fn usable_again<H>(
    acquire: impl AsyncFn() -> H,
    use_it: impl AsyncFn(&mut H) -> i32,
) -> Duration {
    let mut held = acquire().await;
    use_it(&mut held).await;
    let left = Instant::now();
    drop(held);
    let _again = acquire().await;
    left.elapsed()
}

/// The Postgres of the tests.
pub(crate) async fn server() -> postgres::Postgres {
    let server = postgres::start(postgres::Want::default()).await;
    let server = server.unwrap_or_else(|error| panic!("{error}"));
    eprintln!("{}", server.describe());
    server
}

/// A call under way.
type Call = Pin<Box<dyn Future<Output = Result<Connection<Memory>, AcquireError>> + Send>>;

/// A partition whose only slot is taken and whose queue is full.
pub(crate) struct Full {
    ours: Ours<Memory>,
    _taken: Connection<Memory>,
    _waiters: Vec<Call>,
}

impl Full {
    pub(crate) async fn with_waiters(count: u32) -> Self {
        let ours = ours(1, count).await;
        let taken = ours.partition().acquire().await.expect("the slot is free");
        let waiters = (0..count).map(|_| waiting(ours.partition())).collect();
        assert_eq!(ours.partition().status().waiting, count);
        Self {
            ours,
            _taken: taken,
            _waiters: waiters,
        }
    }

    pub(crate) fn partition(&self) -> Partition<Memory> {
        self.ours.partition()
    }
}

/// A call that has been polled once and is in the queue.
fn waiting(partition: Partition<Memory>) -> Call {
    let mut call = Box::pin(async move { partition.acquire().await });
    let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Pending), "the call waits");
    call
}
