//! The ten lines: `DATABASE_URL=postgres://USER@HOST/DATABASE cargo run --example quickstart`.

use std::time::Duration;

use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
use partitioned_pool::{PartitionedPool, TokioPostgres};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://shop:secret@localhost/shop")?;

    let config = PoolConfig::new("shop", url, FleetConfig::new(3, 1).reserve(5))
        .transactional(PartitionConfig::transactional(15))
        .analytical(PartitionConfig::analytical(5));
    let pool = PartitionedPool::<TokioPostgres>::connect(config).await?;

    // Checkout: short, and with a deadline for all of it.
    let sum = pool
        .transactional()
        .run(Duration::from_secs(1), async |conn| {
            let statement = conn.prepare_cached("SELECT $1::INT + 1").await?;
            let row = conn.query_one(&statement, &[&41]).await?;
            Ok::<i32, tokio_postgres::Error>(row.get(0))
        })
        .await?;
    println!("checkout says {sum}");

    // Reports: their own connections; beyond those, refused at once.
    let mut reports = Vec::new();
    let report = loop {
        match pool.analytical().acquire().await {
            Ok(connection) => reports.push(connection),
            Err(error) => break error,
        }
    };
    println!("{} reports run; the next: {report}", reports.len());
    println!("{}", pool.status());

    drop(reports);
    println!("{}", pool.close(Duration::from_secs(5)).await);
    Ok(())
}
