//! What the pool costs on the wire when nothing is wrong.

use partitioned_pool::TokioPostgres;

use crate::support::proxy::{Proxy, Traffic};
use crate::support::server::on_each_version;
use crate::support::tenant::{Pool, small};

const CALLS: usize = 50;

async fn ours(pool: &Pool) {
    let connection = pool.transactional().acquire().await.unwrap();
    let statement = connection.prepare_cached("SELECT 1").await.unwrap();
    connection.query_one(&statement, &[]).await.unwrap();
}

async fn plain(pool: &deadpool_postgres::Pool) {
    let connection = pool.get().await.unwrap();
    let statement = connection.prepare_cached("SELECT 1").await.unwrap();
    connection.query_one(&statement, &[]).await.unwrap();
}

/// What calls cost after a first one, which connects and prepares.
async fn cost(proxy: &Proxy, call: impl AsyncFn()) -> Traffic {
    call().await;
    let before = proxy.traffic();
    for _ in 0..CALLS {
        call().await;
    }
    proxy.traffic().since(before)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ordinary_path_sends_not_one_message_more_than_plain_deadpool_does() {
    on_each_version(async |tenant| {
        let proxy = tenant.proxy().await;
        let pool = tenant.pool_by::<TokioPostgres>(&proxy, small(1)).await;
        let ours = cost(&proxy, async || ours(&pool).await).await;

        let proxy = tenant.proxy().await;
        let config: tokio_postgres::Config = tenant.url_by(&proxy).parse().unwrap();
        let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
        let pool = deadpool_postgres::Pool::builder(manager)
            .max_size(1)
            .build()
            .unwrap();
        let plain = cost(&proxy, async || plain(&pool).await).await;

        assert_eq!(ours, plain);
        assert_eq!(ours.round_trips, CALLS as u64);
    })
    .await;
}
