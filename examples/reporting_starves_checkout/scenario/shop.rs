//! The shop: its schema, and what a checkout and a report do in it.

use std::time::Duration;

use deadpool_postgres::ClientWrapper;
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio_postgres::{Client, Error, NoTls};

use super::calls::Said;
use super::plain::Plain;
use super::plan::CALL;
use super::variant::Reports;

const SCHEMA: &str = include_str!("shop.sql");
const HISTORY: &str = include_str!("history.sql");
/// So that no report has to do what is left over from the making of its table.
const SETTLE: &str = "VACUUM (ANALYZE) reporting_starves_checkout.history";
const ITEMS: u32 = 10_000;

const TAKE: &str = "UPDATE reporting_starves_checkout.item SET stock = stock - $2 \
    WHERE id = $1 RETURNING cents";
const PLACE: &str = "WITH placed AS (
        INSERT INTO reporting_starves_checkout.orders (customer) VALUES ($1) RETURNING id
    )
    INSERT INTO reporting_starves_checkout.order_line (order_id, item_id, quantity, cents)
    SELECT id, $2, $3, $4 FROM placed";
/// What is left of the call's time, which began with the transaction. A negative sleep is none.
const TAKE_TIME: &str =
    "SELECT pg_sleep($1 - extract(epoch FROM clock_timestamp() - transaction_timestamp())::float8)";

/// How the statement of a report begins, by which it is known in pg_stat_activity.
pub(super) const REPORT: &str = "/* report */";
const SLEEP: &str = "/* report */ \
    SELECT count(*), pg_sleep($1) FROM reporting_starves_checkout.order_line";
/// The table in a hundred parts, one after the other, until the time is over. A part takes milliseconds, so that a
/// report ends soon after its time also where fifty of them share two processors; and it lasts as long on every machine.
const SCAN: &str = "/* report */ \
    WITH RECURSIVE part(number) AS (
        SELECT 0
        UNION ALL
        SELECT number + 1 FROM part WHERE clock_timestamp() < statement_timestamp() + make_interval(secs => $1)
    )
    SELECT sum(sales)::bigint, sum(cents), max(customers)
    FROM part CROSS JOIN LATERAL (
        SELECT count(*) AS sales, sum(quantity * cents) AS cents, count(DISTINCT customer) AS customers
        FROM reporting_starves_checkout.history
        WHERE id > number % 100 * 10000 AND id <= (number % 100 + 1) * 10000
    ) AS total";

/// A connection of its own, and the schema.
pub(super) struct Shop {
    owner: Client,
}

impl Shop {
    /// Makes the schema, with what these reports need.
    pub(super) async fn open(url: &str, reports: Reports) -> Result<Self, Error> {
        let owner = connect(url).await?;
        owner.batch_execute(SCHEMA).await?;
        if reports == Reports::Scan {
            owner.batch_execute(HISTORY).await?;
            owner.batch_execute(SETTLE).await?;
        }
        Ok(Self { owner })
    }

    /// Removes the schema.
    pub(super) async fn remove(self) -> Result<(), Error> {
        self.owner
            .batch_execute("DROP SCHEMA reporting_starves_checkout CASCADE")
            .await
    }
}

/// A connection outside of every pool; it ends when the client is dropped.
pub(super) async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// What callers of the shop say to the server, over whichever driver.
pub(crate) trait Customer: Sized {
    type Error: Said + Send;
    /// The plain pool of such clients.
    type Pool: Plain<Client = Self>;

    /// One checkout: takes the item from the stock, places the order with its line, and commits. From its begin
    /// to its commit the database is busy with it for [`CALL`].
    fn checkout(&mut self, number: u32) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// One report; returns how many rows it has read.
    fn report(
        &mut self,
        kind: Reports,
        lasts: Duration,
    ) -> impl Future<Output = Result<u64, Self::Error>> + Send;
}

/// The item that a checkout takes, and how many of it.
fn wanted(number: u32) -> (i64, i64) {
    (i64::from(number % ITEMS) + 1, 1)
}

fn sql(kind: Reports) -> &'static str {
    match kind {
        Reports::Sleep => SLEEP,
        Reports::Scan => SCAN,
    }
}

fn rows(count: i64) -> u64 {
    u64::try_from(count).expect("bug: a count is not below 0")
}

impl Customer for ClientWrapper {
    type Error = Error;
    type Pool = deadpool_postgres::Pool;

    async fn checkout(&mut self, number: u32) -> Result<(), Error> {
        let (item, quantity) = wanted(number);
        let transaction = self.transaction().await?;
        let take = transaction.prepare_cached(TAKE).await?;
        let cents: i64 = transaction
            .query_one(&take, &[&item, &quantity])
            .await?
            .get(0);
        let place = transaction.prepare_cached(PLACE).await?;
        let customer = i64::from(number);
        transaction
            .execute(&place, &[&customer, &item, &quantity, &cents])
            .await?;
        let take_time = transaction.prepare_cached(TAKE_TIME).await?;
        transaction
            .execute(&take_time, &[&CALL.as_secs_f64()])
            .await?;
        transaction.commit().await
    }

    async fn report(&mut self, kind: Reports, lasts: Duration) -> Result<u64, Error> {
        let report = self.query_one(sql(kind), &[&lasts.as_secs_f64()]).await?;
        Ok(rows(report.get(0)))
    }
}

impl Customer for PgConnection {
    type Error = sqlx::Error;
    type Pool = PgPool;

    async fn checkout(&mut self, number: u32) -> Result<(), sqlx::Error> {
        let (item, quantity) = wanted(number);
        let mut transaction = self.begin().await?;
        let take = sqlx::query_scalar(TAKE).bind(item).bind(quantity);
        let cents: i64 = take.fetch_one(&mut *transaction).await?;
        let place = sqlx::query(PLACE).bind(i64::from(number)).bind(item);
        let place = place.bind(quantity).bind(cents);
        place.execute(&mut *transaction).await?;
        let take_time = sqlx::query(TAKE_TIME).bind(CALL.as_secs_f64());
        take_time.execute(&mut *transaction).await?;
        transaction.commit().await
    }

    async fn report(&mut self, kind: Reports, lasts: Duration) -> Result<u64, sqlx::Error> {
        let report = sqlx::query_scalar(sql(kind)).bind(lasts.as_secs_f64());
        report.fetch_one(self).await.map(rows)
    }
}
