//! A `PgPool` for a library that insists on one of its own.

use ::sqlx::postgres::{PgPool, PgPoolOptions};
use ::sqlx::{AssertSqlSafe, raw_sql};

use crate::pool::{Partition, PartitionedPool};
use crate::session::dress;

use super::{Sqlx, service};

/// Why no `PgPool` was made.
///
/// # Examples
/// ```
/// use partitioned_pool::driver_sqlx::{ExternalPoolError, sqlx::PgPool};
/// use partitioned_pool::{PartitionedPool, Sqlx};
///
/// /// Where the fleet has no such pool, the library goes without.
/// fn jobs(pool: &PartitionedPool<Sqlx>) -> Result<Option<PgPool>, ExternalPoolError> {
///     match pool.external_pool("jobs", pool.analytical()) {
///         Err(ExternalPoolError::Undeclared { .. }) => Ok(None),
///         found => found.map(Some),
///     }
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalPoolError {
    /// It is not in the configuration, so the fleet check does not count it.
    #[error("no pool {name} is declared in fleet.external, so the fleet check does not count it")]
    Undeclared {
        /// Its name.
        name: String,
    },
    /// Its password would have to be asked for at each connect, which a `PgPool` cannot do.
    #[error("the pool {name} cannot ask a password provider: a PgPool has one password for good")]
    PasswordProvider {
        /// Its name.
        name: String,
    },
    /// It is declared to connect as another role, or to another database, than the partition does.
    #[error("the pool {name} is declared for {declared}, and the partition leads to {found}")]
    Elsewhere {
        /// Its name.
        name: String,
        /// The role or database that was declared.
        declared: String,
        /// That of the partition.
        found: String,
    },
}

impl PartitionedPool<Sqlx> {
    /// A `PgPool` for a library that insists on one of its own, such as a job queue or a session store.
    ///
    /// `name` is that of a pool in the configuration's
    /// [`fleet.external`](crate::config::ExternalPool): it has the size that is declared there, so that the fleet
    /// check has counted it. Everything else is as with the partition `like`: where it leads to, the session
    /// limits and settings, `acquire_timeout`, `idle_timeout` and `max_lifetime`. The server knows it as `<service>/<name>`.
    /// The hook of [`Builder::on_connect`](crate::Builder::on_connect) is **not** run on its connections.
    ///
    /// It is sqlx's own pool, with sqlx's own promises: none of this crate's. It connects to nothing yet, and is not
    /// closed with this pool.
    ///
    /// # Errors
    /// [`ExternalPoolError`]: it is not declared, or for another role or database.
    ///
    /// # Panics
    /// Outside of a tokio runtime, as sqlx does.
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::config::{ExternalPool, FleetConfig, PartitionConfig, PoolConfig};
    /// use partitioned_pool::{PartitionedPool, Sqlx};
    ///
    /// async fn start(url: String) -> Result<(), Box<dyn std::error::Error>> {
    ///     let fleet = FleetConfig::new(3, 1).external(ExternalPool::new("jobs", 4));
    ///     let config = PoolConfig::new("shop", url, fleet)
    ///         .transactional(PartitionConfig::transactional(20))
    ///         .analytical(PartitionConfig::analytical(10));
    ///     let pool = PartitionedPool::<Sqlx>::connect(config).await?;
    ///     let jobs = pool.external_pool("jobs", pool.analytical())?;
    ///     // JobQueue::new(jobs)
    /// #   drop(jobs);
    ///     Ok(())
    /// }
    /// ```
    pub fn external_pool(
        &self,
        name: &str,
        like: &Partition<Sqlx>,
    ) -> Result<PgPool, ExternalPoolError> {
        let known = self.external().iter().find(|pool| pool.name == name);
        let Some(declared) = known else {
            let name = name.to_owned();
            return Err(ExternalPoolError::Undeclared { name });
        };
        if like.driver().login.passwords.are_asked_for() {
            let name = name.to_owned();
            return Err(ExternalPoolError::PasswordProvider { name });
        }
        let endpoint = like.endpoint();
        for (declared, found) in [
            (&declared.role, &endpoint.user),
            (&declared.database, &endpoint.database),
        ] {
            if let Some(declared) = declared.as_ref().filter(|declared| *declared != found) {
                return Err(ExternalPoolError::Elsewhere {
                    name: name.to_owned(),
                    declared: declared.clone(),
                    found: found.clone(),
                });
            }
        }
        Ok(lazy(name, declared.size.get(), like))
    }
}

fn lazy(name: &str, size: u32, like: &Partition<Sqlx>) -> PgPool {
    let mut settings = like.settings().clone();
    settings.application_name = format!("{}/{name}", service(&settings));
    settings.application_name.truncate(63);
    let options = like.driver().login.options.clone();
    let options = options.application_name(&settings.application_name);
    PgPoolOptions::new()
        .max_connections(size)
        .acquire_timeout(settings.acquire_timeout)
        .idle_timeout(settings.idle_timeout)
        .max_lifetime(settings.max_lifetime)
        .after_connect(move |connection, _| {
            let version = connection.server_version_num().unwrap_or(0);
            let dressing = raw_sql(AssertSqlSafe(dress(&settings, version)));
            Box::pin(async move { dressing.execute(connection).await.map(drop) })
        })
        .connect_lazy_with(options)
}
