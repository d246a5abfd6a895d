//! The table of the seats, as a test sees it.

use partitioned_pool::config::{FleetCheck, FleetConfig, PoolConfig, SeatsConfig};
use partitioned_pool::fleet::SEATS_TABLE;

use super::patience::LONG;
use super::tenant::{Tenant, small};

/// Makes the table in the tenant's schema, and lets the tenant use it.
pub(crate) async fn table(tenant: &Tenant) {
    let name = &tenant.name;
    tenant
        .sql(&format!(
            "SET search_path TO {name}; {SEATS_TABLE}; RESET search_path; \
             GRANT SELECT, INSERT, UPDATE ON {name}.partitioned_pool_seats TO {name}"
        ))
        .await;
}

/// A pool of a fleet with these seats, unchecked: three connections and one more, and one for its seat.
pub(crate) fn seated(tenant: &Tenant, seats: SeatsConfig) -> PoolConfig {
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off).seats(seats);
    tenant.config_for(fleet, small(3).acquire_timeout(LONG))
}

/// Says something to the table.
pub(crate) async fn say(tenant: &Tenant, sql: &str) {
    let name = &tenant.name;
    let sql = sql.replace("seats", &format!("{name}.partitioned_pool_seats"));
    tenant.sql(&sql).await;
}

/// What the table says of a seat: its epoch, whether it is held, and whether it has expired.
pub(crate) async fn seat(tenant: &Tenant, number: i32) -> (i64, bool, bool) {
    let name = &tenant.name;
    let sql = format!(
        "SELECT epoch, holder IS NOT NULL, coalesce(expires_at <= clock_timestamp(), false) \
         FROM {name}.partitioned_pool_seats WHERE fleet = '{name}' AND seat = {number}"
    );
    let row = tenant.admin.query_one(&sql, &[]).await.unwrap();
    (row.get(0), row.get(1), row.get(2))
}
