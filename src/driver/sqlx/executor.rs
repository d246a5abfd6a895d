//! Partitions and connections as sqlx's executors.
//!
//! What goes through here is seen to its end, so that the connection is known to be quiet without asking.

use std::future::Future;
use std::ops::DerefMut;
use std::pin::{Pin, pin};

use ::sqlx::error::BoxDynError;
use ::sqlx::postgres::{PgArguments, PgConnection, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use ::sqlx::{Connection as _, Describe, Either, Error, Execute, Executor, Postgres, SqlStr};
use async_stream::try_stream;
use futures_util::{Stream, TryStreamExt as _};

use crate::pool::{Connection, Partition};

use super::session::{Known, Session, is_an_end};
use super::transaction::Transaction;
use super::{Sqlx, sqlstate};

type Answer<'e, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'e>>;
type Answers<'e> =
    Pin<Box<dyn Stream<Item = Result<Either<PgQueryResult, PgRow>, Error>> + Send + 'e>>;

/// A session while a statement goes over it. Dropped early, nothing is known of it.
struct Run<'a> {
    session: &'a mut Session,
    /// What is known of it when the statement has ended.
    then: Known,
}

impl<'a> Run<'a> {
    fn new(connection: &'a mut Connection<Sqlx>, sql: &str) -> Self {
        let (_, session) = connection.driver_parts();
        let then = known_after(session.known(), sql);
        Self { session, then }
    }

    fn connection(&mut self) -> &mut PgConnection {
        self.session.connection_mut()
    }

    /// The statement has ended, and so well that every answer was read.
    fn ended(self) {
        match self.then {
            Known::Quiet(_) => self.session.know_quiet(),
            then => self.session.know(then),
        }
    }

    /// The statement has failed. If the server says so, it also says that it is ready again: that is on its way already.
    async fn failed(mut self, error: Error) -> Error {
        if is_an_end(&error) {
            self.session.fails(&error);
        } else if sqlstate(&error).is_some() && self.connection().flush().await.is_ok() {
            self.ended();
        }
        error
    }

    async fn end<T>(self, outcome: Result<T, Error>) -> Result<T, Error> {
        match outcome {
            Ok(done) => {
                self.ended();
                Ok(done)
            }
            Err(error) => Err(self.failed(error).await),
        }
    }
}

/// The words that a transaction begins with, and those that may end one.
const BEGIN: [&str; 2] = ["begin", "start"];
const END: [&str; 5] = ["commit", "end", "rollback", "abort", "prepare"];

/// What is known when this text has been seen to its end.
fn known_after(known: Known, sql: &str) -> Known {
    let word = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '$') || !c.is_ascii());
    let words = || sql.split(word).filter(|word| !word.is_empty());
    let is = |of: &[&str], word: &str| of.iter().any(|it| word.eq_ignore_ascii_case(it));
    let begins = || words().next().is_some_and(|first| is(&BEGIN, first));
    let may_end = || words().any(|word| is(&END, word));
    let may_begin = || words().any(|word| is(&BEGIN, word));
    match known {
        Known::Quiet(_) if begins() && !may_end() => Known::Begun,
        Known::Begun if may_end() => Known::Nothing,
        _ if may_begin() => Known::Nothing,
        _ => known,
    }
}

/// A query, taken apart: its text must be looked at before it is sent.
struct Taken {
    sql: SqlStr,
    arguments: Option<PgArguments>,
    statement: Option<PgStatement>,
    persistent: bool,
}

impl Taken {
    fn new<'q>(mut query: impl Execute<'q, Postgres>) -> Result<Self, Error> {
        Ok(Self {
            arguments: query.take_arguments().map_err(Error::Encode)?,
            statement: query.statement().cloned(),
            persistent: query.persistent(),
            sql: query.sql(),
        })
    }
}

impl Execute<'_, Postgres> for Taken {
    fn sql(self) -> SqlStr {
        self.sql
    }

    fn statement(&self) -> Option<&PgStatement> {
        self.statement.as_ref()
    }

    fn take_arguments(&mut self) -> Result<Option<PgArguments>, BoxDynError> {
        Ok(self.arguments.take())
    }

    fn persistent(&self) -> bool {
        self.persistent
    }
}

/// All that a query answers, over a connection that is given back in the end.
fn answers<'e>(
    mut connection: impl DerefMut<Target = Connection<Sqlx>> + Send + 'e,
    query: Taken,
) -> impl Stream<Item = Result<Either<PgQueryResult, PgRow>, Error>> + Send + 'e {
    try_stream! {
        let mut run = Run::new(&mut connection, query.sql.as_str());
        let mut answers = run.connection().fetch_many(query);
        let error = loop {
            match answers.try_next().await {
                Ok(Some(answer)) => yield answer,
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        drop(answers);
        match error {
            None => run.ended(),
            Some(error) => Err(run.failed(error).await)?,
        }
    }
}

async fn optional(connection: &mut Connection<Sqlx>, query: Taken) -> Result<Option<PgRow>, Error> {
    let mut run = Run::new(connection, query.sql.as_str());
    let outcome = run.connection().fetch_optional(query).await;
    run.end(outcome).await
}

async fn prepare(
    connection: &mut Connection<Sqlx>,
    sql: SqlStr,
    parameters: &[PgTypeInfo],
) -> Result<PgStatement, Error> {
    let mut run = Run::new(connection, "");
    let outcome = run.connection().prepare_with(sql, parameters).await;
    run.end(outcome).await
}

async fn describe(
    connection: &mut Connection<Sqlx>,
    sql: SqlStr,
) -> Result<Describe<Postgres>, Error> {
    let mut run = Run::new(connection, "");
    let outcome = run.connection().describe(sql).await;
    run.end(outcome).await
}

/// Each statement acquires a connection, within the partition's `acquire_timeout`, and gives it back when it has
/// ended: without a round trip, mostly (see the [module](super)). Statements that belong together go over one
/// connection: [`acquire`](Partition::acquire) it, or [`begin`](Partition::begin) a transaction.
///
/// # Errors
/// What the partition says is an [`Error::Io`], out of which [`acquire_error`](super::acquire_error) gets it back.
///
/// # Cancel safety
/// A statement whose future or stream is dropped is cancelled on the server, as always.
impl<'p> Executor<'p> for &'p Partition<Sqlx> {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> Answers<'e>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let query = Taken::new(query);
        Box::pin(try_stream! {
            let query = query?;
            let mut connection = self.acquire().await?;
            let mut answers = pin!(answers(&mut connection, query));
            while let Some(answer) = answers.try_next().await? {
                yield answer;
            }
        })
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> Answer<'e, Option<PgRow>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let query = Taken::new(query);
        Box::pin(async move { optional(&mut self.acquire().await?, query?).await })
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> Answer<'e, PgStatement>
    where
        'p: 'e,
    {
        Box::pin(async move { prepare(&mut self.acquire().await?, sql, parameters).await })
    }

    fn describe<'e>(self, sql: SqlStr) -> Answer<'e, Describe<Postgres>>
    where
        'p: 'e,
    {
        Box::pin(async move { describe(&mut self.acquire().await?, sql).await })
    }
}

/// As `&mut *connection`, but what goes through here was seen to its end, so that a connection that was only used so
/// comes back without a round trip.
impl<'c> Executor<'c> for &'c mut Connection<Sqlx> {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> Answers<'e>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let query = Taken::new(query);
        Box::pin(try_stream! {
            let query = query?;
            let mut answers = pin!(answers(self, query));
            while let Some(answer) = answers.try_next().await? {
                yield answer;
            }
        })
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> Answer<'e, Option<PgRow>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let query = Taken::new(query);
        Box::pin(async move { optional(self, query?).await })
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> Answer<'e, PgStatement>
    where
        'c: 'e,
    {
        Box::pin(prepare(self, sql, parameters))
    }

    fn describe<'e>(self, sql: SqlStr) -> Answer<'e, Describe<Postgres>>
    where
        'c: 'e,
    {
        Box::pin(describe(self, sql))
    }
}

/// As `&mut *transaction`, but what goes through here was seen to its end, so that a transaction that was only used
/// so, and then committed or rolled back, comes back without a round trip.
impl<'c> Executor<'c> for &'c mut Transaction {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> Answers<'e>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        self.connection_mut().fetch_many(query)
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> Answer<'e, Option<PgRow>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        self.connection_mut().fetch_optional(query)
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [PgTypeInfo]) -> Answer<'e, PgStatement>
    where
        'c: 'e,
    {
        self.connection_mut().prepare_with(sql, parameters)
    }

    fn describe<'e>(self, sql: SqlStr) -> Answer<'e, Describe<Postgres>>
    where
        'c: 'e,
    {
        self.connection_mut().describe(sql)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Known = Known::Quiet(7);

    #[test]
    fn a_text_that_begins_a_transaction_and_does_not_end_it_is_known_by_its_words() {
        for sql in [
            "BEGIN",
            "begin;",
            " ;;BEGIN; SELECT 1",
            "START TRANSACTION READ ONLY",
        ] {
            assert_eq!(known_after(QUIET, sql), Known::Begun, "{sql}");
        }
        for sql in ["SELECT 1", "INSERT INTO shifts VALUES ('x')"] {
            assert_eq!(known_after(Known::Begun, sql), Known::Begun, "{sql}");
        }
        for sql in [
            "COMMIT",
            "rollback to a",
            "SELECT CASE WHEN a THEN 1 END",
            "begin; commit",
        ] {
            assert_eq!(known_after(Known::Begun, sql), Known::Nothing, "{sql}");
        }
    }

    #[test]
    fn a_text_that_may_open_a_transaction_leaves_nothing_known() {
        for sql in [
            "/* x */Begin ISOLATION LEVEL SERIALIZABLE",
            "-- x\nSTART TRANSACTION",
            "SELECT 1;begin",
            "BEGIN; SELECT 1; COMMIT",
            "BEGIN; COMMIT AND CHAIN",
            "DO $$ BEGIN PERFORM 1; END $$",
        ] {
            assert_eq!(known_after(QUIET, sql), Known::Nothing, "{sql}");
            assert_eq!(known_after(Known::Open, sql), Known::Nothing, "{sql}");
        }
    }

    #[test]
    fn what_a_text_cannot_have_changed_stays_known() {
        for sql in [
            "SELECT start_time, beginning FROM shifts",
            "SELECT restart, $begin, \u{e9}begin FROM runs",
            "UPDATE stock SET left_over = $1",
            "COMMIT",
            "",
        ] {
            for known in [QUIET, Known::Open, Known::Nothing, Known::Gone] {
                assert_eq!(known_after(known, sql), known, "{sql}");
            }
        }
    }
}
