//! What a test says to a server, over whichever driver: so that one text is run over all of them.

use std::error::Error;
use std::fmt;
use std::future::Future;

use partitioned_pool::{Connection, Driver, PartitionedPool, TokioPostgres};
use tokio_postgres::SimpleQueryMessage;

/// For what concerns this driver alone.
pub(crate) type Pool = PartitionedPool<TokioPostgres>;

/// A row, as text.
pub(crate) type Row = Vec<Option<String>>;

/// What went wrong, as far as it is the same for every driver.
#[derive(Debug)]
pub(crate) struct Wrong {
    code: Option<String>,
    closed: bool,
    said: String,
}

impl Wrong {
    /// The server's SQLSTATE, if the server answered.
    pub(crate) fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// Whether the connection has ended, in the words of the driver.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

/// A driver that is tested.
pub(crate) trait Tested: Driver<Client: Send> {
    /// The connections that a pool with one role on one server keeps beside its budgets.
    const BESIDE: i64;
    /// How its errors say that there is no way to the server.
    const NO_WAY: &str;
    /// Whether it takes a connection text of `key=value` pairs.
    const READS_PAIRS: bool;

    /// Says `sql`, which may be several statements, and gives the rows.
    fn say(
        held: &mut Connection<Self>,
        sql: &str,
    ) -> impl Future<Output = Result<Vec<Row>, Wrong>> + Send;

    /// Says `sql` to the driver's own client, as a service would in `on_connect`; a failure is the driver's own error.
    fn say_to(
        client: &mut Self::Client,
        sql: &str,
    ) -> impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send;

    /// Says `sql` as a prepared statement that the connection keeps, with one parameter of type float8.
    fn say_prepared(
        held: &mut Connection<Self>,
        sql: &'static str,
        parameter: f64,
    ) -> impl Future<Output = Result<(), Wrong>> + Send;

    /// Says `sql` to the driver's own client, with one parameter of type text.
    fn bind(
        client: &mut Self::Client,
        sql: &'static str,
        parameter: &str,
    ) -> impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send;
}

impl Tested for TokioPostgres {
    const BESIDE: i64 = 0;
    const NO_WAY: &str = "error connecting";
    const READS_PAIRS: bool = true;

    async fn say(held: &mut Connection<Self>, sql: &str) -> Result<Vec<Row>, Wrong> {
        let row = |message| match message {
            SimpleQueryMessage::Row(row) => {
                let column = |at| row.get(at).map(str::to_owned);
                Some((0..row.len()).map(column).collect())
            }
            _ => None,
        };
        let messages = held.simple_query(sql).await?;
        Ok(messages.into_iter().filter_map(row).collect())
    }

    async fn say_to(
        client: &mut Self::Client,
        sql: &str,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(client.batch_execute(sql).await?)
    }

    async fn say_prepared(
        held: &mut Connection<Self>,
        sql: &'static str,
        parameter: f64,
    ) -> Result<(), Wrong> {
        let statement = held.prepare_cached(sql).await?;
        held.query(&statement, &[&parameter]).await?;
        Ok(())
    }

    async fn bind(
        client: &mut Self::Client,
        sql: &'static str,
        parameter: &str,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        client.query(sql, &[&parameter]).await?;
        Ok(())
    }
}

impl From<tokio_postgres::Error> for Wrong {
    fn from(error: tokio_postgres::Error) -> Self {
        Self {
            code: error.code().map(|code| code.code().to_owned()),
            closed: error.is_closed(),
            said: error.to_string(),
        }
    }
}

#[cfg(feature = "sqlx")]
mod on_sqlx {
    use std::error::Error as StdError;

    use partitioned_pool::{Connection, Sqlx};
    use sqlx::{AssertSqlSafe, Error, Row as _, ValueRef as _};

    use super::{Row, Tested, Wrong};

    impl Tested for Sqlx {
        const BESIDE: i64 = 1;
        const NO_WAY: &str = "refused";
        const READS_PAIRS: bool = false;

        async fn say(held: &mut Connection<Self>, sql: &str) -> Result<Vec<Row>, Wrong> {
            let said = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
            let rows = said.fetch_all(&mut **held).await?;
            let column = |row: &sqlx::postgres::PgRow, at| {
                let value = row.try_get_raw(at).unwrap();
                (!value.is_null()).then(|| value.as_str().unwrap().to_owned())
            };
            let columns = |row| (0..sqlx::Row::len(row)).map(|at| column(row, at)).collect();
            Ok(rows.iter().map(columns).collect())
        }

        async fn say_to(
            client: &mut Self::Client,
            sql: &str,
        ) -> Result<(), Box<dyn StdError + Send + Sync>> {
            let said = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
            said.execute(client).await?;
            Ok(())
        }

        async fn say_prepared(
            held: &mut Connection<Self>,
            sql: &'static str,
            parameter: f64,
        ) -> Result<(), Wrong> {
            // Unlike the others as an executor, which is seen to its end.
            sqlx::query(sql).bind(parameter).execute(held).await?;
            Ok(())
        }

        async fn bind(
            client: &mut Self::Client,
            sql: &'static str,
            parameter: &str,
        ) -> Result<(), Box<dyn StdError + Send + Sync>> {
            sqlx::query(sql).bind(parameter).execute(client).await?;
            Ok(())
        }
    }

    impl From<Error> for Wrong {
        fn from(error: Error) -> Self {
            let code = error.as_database_error().and_then(|it| it.code());
            let code = code.map(std::borrow::Cow::into_owned);
            // sqlx has no word for it: the server's last one, or nothing to read and write to any more.
            let closed = code.as_deref() == Some("57P01") || matches!(error, Error::Io(_));
            Self {
                code: code.filter(|_| !closed),
                closed,
                said: error.to_string(),
            }
        }
    }
}

/// The same, in the order in which one says it.
pub(crate) trait Speaks {
    type Driver: Tested;

    fn say(&mut self, sql: &str) -> impl Future<Output = Result<Vec<Row>, Wrong>> + Send;

    /// The first row of what must be answered.
    fn row(&mut self, sql: &str) -> impl Future<Output = Row> + Send;

    /// Its first column.
    fn ask(&mut self, sql: &str) -> impl Future<Output = String> + Send;
}

impl<D: Tested> Speaks for Connection<D> {
    type Driver = D;

    async fn say(&mut self, sql: &str) -> Result<Vec<Row>, Wrong> {
        D::say(self, sql).await
    }

    async fn row(&mut self, sql: &str) -> Row {
        D::say(self, sql).await.unwrap().swap_remove(0)
    }

    async fn ask(&mut self, sql: &str) -> String {
        self.row(sql).await.swap_remove(0).unwrap()
    }
}

/// Makes tests of functions that are written for every driver: each is run over each driver, on each version of
/// the server; what is `alone` finds servers of its own.
macro_rules! on_each_driver {
    ($($name:ident),* $(,)? $(; alone: $($alone:ident),*)?) => {
        mod on_tokio_postgres {
            $($(#[tokio::test(flavor = "multi_thread")]
            async fn $alone() {
                super::$alone::<partitioned_pool::TokioPostgres>().await;
            })*)?
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let test = super::$name::<partitioned_pool::TokioPostgres>;
                crate::support::server::on_each_version(test).await;
            })*
        }
        #[cfg(feature = "sqlx")]
        mod on_sqlx {
            $($(#[tokio::test(flavor = "multi_thread")]
            async fn $alone() {
                super::$alone::<partitioned_pool::Sqlx>().await;
            })*)?
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let test = super::$name::<partitioned_pool::Sqlx>;
                crate::support::server::on_each_version(test).await;
            })*
        }
    };
}
pub(crate) use on_each_driver;
