//! A transaction that has its own connection.

use std::future::Future;
use std::ops::{Deref, DerefMut};

use ::sqlx::Error;
use ::sqlx::postgres::{PgConnection, PgTransactionManager};
use sqlx_core::transaction::TransactionManager as _;

use crate::pool::{Connection, Partition};

use super::Sqlx;
use super::session::{Known, Session};

/// A transaction with the connection that it runs on, from [`Partition::begin`].
///
/// It is an `Executor` (`sqlx::query(..).execute(&mut transaction)`) and derefs to sqlx's [`PgConnection`]
/// (`&mut *transaction`); with `sqlx::Connection` in scope, `transaction.begin()` makes a savepoint. sqlx's own `Transaction` cannot hold a
/// connection of a pool that is not sqlx's; what takes a `&mut PgConnection` takes this one.
///
/// Dropped before it was committed, it is rolled back on the server before anybody else gets the connection, wherever
/// it was left: also in the middle of a statement, of `begin` or of `commit`. A `commit` that was dropped may have
/// taken effect.
///
/// # Examples
/// ```
/// use partitioned_pool::driver_sqlx::{Transaction, sqlx};
/// use partitioned_pool::{Partition, Sqlx};
///
/// async fn pay(checkout: &Partition<Sqlx>, order: i32) -> Result<(), sqlx::Error> {
///     let mut transaction: Transaction = checkout.begin().await?;
///     sqlx::query("UPDATE orders SET paid = true WHERE id = $1").bind(order).execute(&mut transaction).await?;
///     transaction.commit().await // left out, it would be rolled back
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping a transaction rolls it back"]
pub struct Transaction {
    connection: Connection<Sqlx>,
}

impl Partition<Sqlx> {
    /// Acquires a connection, as [`acquire`](Self::acquire) does, and begins a transaction on it.
    ///
    /// # Errors
    /// What the partition says is an `Error::Io`, out of which
    /// [`acquire_error`](crate::driver_sqlx::acquire_error) gets it back; else what sqlx says.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no transaction open, whether the server has begun it or not.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::driver_sqlx::sqlx;
    /// use partitioned_pool::{Partition, Sqlx};
    ///
    /// async fn pay(checkout: &Partition<Sqlx>, order: i32) -> Result<(), sqlx::Error> {
    ///     let mut transaction = checkout.begin().await?;
    ///     sqlx::query("UPDATE orders SET paid = true WHERE id = $1")
    ///         .bind(order)
    ///         .execute(&mut *transaction)
    ///         .await?;
    ///     transaction.commit().await
    /// }
    /// ```
    #[track_caller]
    pub fn begin(&self) -> impl Future<Output = Result<Transaction, Error>> + Send {
        let acquiring = self.acquire();
        async {
            let mut connection = acquiring.await?;
            let (_, session) = connection.driver_parts();
            let known = session.known();
            PgTransactionManager::begin(session.connection_mut(), None).await?;
            if known != Known::Nothing {
                session.know(Known::Open);
            }
            Ok(Transaction { connection })
        }
    }
}

impl Transaction {
    /// Commits, and gives the connection back.
    ///
    /// As with sqlx, committing a transaction in which a statement has failed is no error, though the server rolls
    /// it back: mind the errors of the statements.
    ///
    /// # Errors
    /// What the server says, for example of a constraint that is checked now; the transaction is rolled back then.
    ///
    /// # Cancel safety
    /// Dropping the future leaves open whether it was committed.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::driver_sqlx::{Transaction, sqlx};
    ///
    /// async fn end(transaction: Transaction, is_paid: bool) -> Result<(), sqlx::Error> {
    ///     if is_paid { transaction.commit().await } else { transaction.rollback().await }
    /// }
    /// ```
    pub async fn commit(mut self) -> Result<(), Error> {
        let (session, known) = self.parts();
        PgTransactionManager::commit(session.connection_mut()).await?;
        ended(session, known);
        Ok(())
    }

    /// Rolls back, and gives the connection back.
    ///
    /// # Errors
    /// What sqlx says; the connection is closed then.
    ///
    /// # Cancel safety
    /// Dropping the future rolls back all the same.
    pub async fn rollback(mut self) -> Result<(), Error> {
        let (session, known) = self.parts();
        PgTransactionManager::rollback(session.connection_mut()).await?;
        ended(session, known);
        Ok(())
    }

    /// The connection, for what sees its statements to their ends.
    pub(super) fn connection_mut(&mut self) -> &mut Connection<Sqlx> {
        &mut self.connection
    }

    fn parts(&mut self) -> (&mut Session, Known) {
        let (_, session) = self.connection.driver_parts();
        let known = session.known();
        (session, known)
    }
}

/// If every answer was read before it ended, none is missing now.
fn ended(session: &mut Session, known: Known) {
    if known == Known::Open {
        session.know_quiet();
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}
