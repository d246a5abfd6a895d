//! What becomes of a small program on deadpool-postgres: docs/from-deadpool-postgres.md has the diff.

use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
use partitioned_pool::{PartitionedPool, TokioPostgres};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")?;
    let config = PoolConfig::new("todos", url, FleetConfig::new(1, 1))
        .transactional(PartitionConfig::transactional(15))
        .analytical(PartitionConfig::analytical(5));
    let pool = PartitionedPool::<TokioPostgres>::connect(config).await?;

    let mut client = pool.transactional().acquire().await?;
    let transaction = client.transaction().await?;
    let insert = transaction
        .prepare_cached("INSERT INTO todos (description) VALUES ($1) RETURNING id")
        .await?;
    let id: i64 = transaction
        .query_one(&insert, &[&"move over"])
        .await?
        .get(0);
    transaction.commit().await?;
    drop(client);

    let client = pool.analytical().acquire().await?;
    for row in client
        .query("SELECT description FROM todos WHERE id = $1", &[&id])
        .await?
    {
        println!("- {}", row.get::<_, String>(0));
    }
    Ok(())
}
