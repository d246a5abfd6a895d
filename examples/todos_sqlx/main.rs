//! What becomes of a small program on `PgPool`: docs/from-pgpool.md has the diff.

use futures_util::TryStreamExt;
use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
use partitioned_pool::{PartitionedPool, Sqlx};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL")?;
    let config = PoolConfig::new("todos", url, FleetConfig::new(1, 1))
        .transactional(PartitionConfig::transactional(15))
        .analytical(PartitionConfig::analytical(5));
    let pool = PartitionedPool::<Sqlx>::connect(config).await?;
    let (checkout, reports) = (pool.transactional(), pool.analytical());

    sqlx::migrate!("examples/todos_sqlx/migrations")
        .run(&mut *checkout.acquire().await?)
        .await?;

    let insert = sqlx::query_scalar("INSERT INTO todos (description) VALUES ($1) RETURNING id");
    let id: i64 = insert.bind("move over").fetch_one(checkout).await?;

    let mut tx = checkout.begin().await?;
    sqlx::query("UPDATE todos SET done = TRUE WHERE id = $1")
        .bind(id)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;

    let all = sqlx::query_as::<_, (i64, String, bool)>("SELECT id, description, done FROM todos");
    let mut todos = all.fetch(reports);
    while let Some((id, description, done)) = todos.try_next().await? {
        println!("- [{}] {id}: {description}", if done { "x" } else { " " });
    }
    Ok(())
}
