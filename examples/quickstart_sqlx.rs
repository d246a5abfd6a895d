//! The smallest service on sqlx that is worth running: `DATABASE_URL=postgres://.. cargo run --features sqlx --example quickstart_sqlx`.

use std::error::Error;
use std::time::Duration;

use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
use partitioned_pool::driver_sqlx::acquire_error;
use partitioned_pool::{PartitionedPool, Sqlx};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("DATABASE_URL")?;
    let config = PoolConfig::new("quickstart", url, FleetConfig::new(1, 1))
        .transactional(PartitionConfig::transactional(4))
        .analytical(PartitionConfig::analytical(2));
    let pool = PartitionedPool::<Sqlx>::connect(config).await?;

    // A partition is an executor.
    let answer: i32 = sqlx::query_scalar("SELECT 40 + $1")
        .bind(2)
        .fetch_one(pool.transactional())
        .await?;
    println!("the answer is {answer}");

    // Statements that belong together. Dropped, it is rolled back.
    let mut transaction = pool.transactional().begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock(42)")
        .execute(&mut transaction)
        .await?;
    transaction.commit().await?;

    // A refusal is told by type, also through sqlx's error.
    let busy = (
        pool.analytical().acquire().await?,
        pool.analytical().acquire().await?,
    );
    let refused = sqlx::query("SELECT 1").execute(pool.analytical()).await;
    let refused = refused.expect_err("both slots are held");
    println!(
        "a third report: {}",
        acquire_error(&refused).ok_or("no refusal")?
    );

    drop(busy);

    // Acquire, work and release by a deadline.
    let slow = pool
        .analytical()
        .run(Duration::from_millis(100), async |conn| {
            sqlx::query("SELECT pg_sleep(10)").execute(&mut *conn).await
        });
    println!("a slow report: {}", slow.await.unwrap_err());

    println!("{}", pool.status());
    println!("{}", pool.close(Duration::from_secs(5)).await);
    Ok(())
}
