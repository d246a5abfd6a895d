//! What the pool costs on the wire when nothing is wrong.

use crate::support::driver::{Tested, on_each_driver};
use crate::support::tenant::{Tenant, small, until_at_rest};

on_each_driver![the_ordinary_path_sends_nothing_beside_the_callers_statement];

const CALLS: u64 = 50;

async fn the_ordinary_path_sends_nothing_beside_the_callers_statement<D: Tested>(tenant: &Tenant) {
    let proxy = tenant.proxy().await;
    let pool = tenant.pool_by::<D>(&proxy, small(1)).await;
    let call = async || {
        let mut held = pool.transactional().acquire().await.unwrap();
        let asked = D::say_prepared(&mut held, "SELECT $1::float8", 1.0);
        asked.await.unwrap();
        drop(held);
        until_at_rest(pool.transactional()).await;
    };
    // The first one prepares the statement.
    call().await;
    let before = proxy.traffic();
    for _ in 0..CALLS {
        call().await;
    }
    assert_eq!(proxy.traffic().since(before).round_trips, CALLS);
}
