//! Is a pooler in between, and in which mode?
//!
//! That one is there, a driver finds when it connects ([`UndeclaredPooler`]). Its mode shows between two
//! connections: a backend that serves the one and then the other is nobody's own.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::timeout;

use crate::config::{PartitionSettings, PoolerMode, PoolerSettings};
use crate::driver::Driver;
use crate::error::{Failure, UndeclaredPooler};
use crate::pool::{Connection, Partition};

use super::error::{BootError, NotInForce};
use super::sessions;

/// So often two connections are looked at in turn. Once is enough where nobody else uses the pooler.
const LOOKS: u32 = 3;

/// The longest that the other connection waits for a backend. In session mode it waits where as many are in use as
/// the pooler may open.
const OTHER_BOUND: Duration = Duration::from_secs(1);

/// Which backend answers. A pid alone comes back, and another server has the same ones.
const BACKEND: &str = "SELECT pid, backend_start FROM pg_stat_get_activity(pg_backend_pid())";

/// The mode of the pooler between us and the server, from two connections to it. If there is none, it is a session's.
///
/// It asks `one` twice, has `other` hold a transaction, and asks `one` again. A pooler that deals backends out in
/// turn shows itself in the first, one that deals out the last that came back in the second, and both show in the third.
async fn mode<D: Driver>(
    driver: &D,
    one: &mut D::Type,
    other: &mut D::Type,
) -> Result<PoolerMode, Failure> {
    for _ in 0..LOOKS {
        let before = [backend(driver, one).await?, backend(driver, one).await?];
        let held = timeout(OTHER_BOUND, hold(driver, other)).await;
        let Ok(held) = held else {
            // It waits for a backend, while `one` has had its own back: nothing more can be learnt.
            return Ok(of_backends(&before, None));
        };
        let looked = while_held(driver, one, before, held).await;
        driver.query(other, "ROLLBACK").await?;
        if looked? == PoolerMode::Transaction {
            return Ok(PoolerMode::Transaction);
        }
    }
    Ok(PoolerMode::Session)
}

/// Looks again while the other connection holds its backend. If that is ours, ours is not to be had.
async fn while_held<D: Driver>(
    driver: &D,
    one: &mut D::Type,
    [first, second]: [Backend; 2],
    held: Result<Backend, Failure>,
) -> Result<PoolerMode, Failure> {
    let held = held?;
    if [&first, &second].contains(&&held) {
        return Ok(PoolerMode::Transaction);
    }
    let after = backend(driver, one).await?;
    Ok(of_backends(&[first, second, after], Some(held)))
}

/// A backend, as the server names it.
type Backend = Vec<Option<String>>;

async fn backend<D: Driver>(driver: &D, session: &mut D::Type) -> Result<Backend, Failure> {
    named(driver.query(session, BACKEND).await?.pop())
}

/// Has a connection open a transaction, in which its backend is its own in any mode.
async fn hold<D: Driver>(driver: &D, session: &mut D::Type) -> Result<Backend, Failure> {
    let sql = format!("BEGIN; {BACKEND}");
    named(driver.query(session, &sql).await?.pop())
}

fn named(row: Option<Backend>) -> Result<Backend, Failure> {
    row.ok_or_else(|| Failure::new(None, "the server did not say which backend it is"))
}

/// What the backends of one connection say, and the one that another connection has.
fn of_backends(own: &[Backend], others: Option<Backend>) -> PoolerMode {
    let changed = own.iter().any(|backend| *backend != own[0]);
    let shared = others.is_some_and(|others| own.contains(&others));
    match changed || shared {
        true => PoolerMode::Transaction,
        false => PoolerMode::Session,
    }
}

/// Whether a pooler that is stated to be in session mode is not: looked at over a second connection of the partition,
/// if it may have one.
pub(super) async fn is_no_session<D: Driver>(
    partition: &Partition<D>,
    connection: &mut Connection<D>,
    limit: Duration,
) -> Result<bool, Failure> {
    let settings = partition.settings();
    let stated = settings.pooler.as_ref().map(|pooler| pooler.mode);
    if stated != Some(PoolerMode::Session) || settings.max_connections == NonZeroU32::MIN {
        return Ok(false);
    }
    // In session mode, a pooler whose server connections are all in use lets us wait.
    let Ok(mut other) = partition.first(OTHER_BOUND.min(limit)).await else {
        return Ok(false);
    };
    let (driver, one) = connection.driver_parts();
    let (_, other) = other.driver_parts();
    Ok(mode(driver, one, other).await? == PoolerMode::Transaction)
}

/// What there is to say of a pooler that is not stated. The pool does not start, so what is needed for it is
/// connected beside the pool, for the moment.
pub(super) async fn undeclared<D: Driver>(
    partition: &Partition<D>,
    options: &D::Options,
    found: &UndeclaredPooler,
    limit: Duration,
) -> BootError {
    let looked = async {
        match found.mode {
            Some(mode) => Some((mode, Vec::new())),
            None => diagnose::<D>(partition.settings(), options).await.ok(),
        }
    };
    let looked = timeout(limit, looked).await.ok().flatten();
    let (mode, limits) = looked.map_or((None, Vec::new()), |(mode, limits)| (Some(mode), limits));
    BootError::Pooler {
        partition: partition.name().to_owned(),
        endpoint: Box::new(partition.endpoint().clone()),
        stated: None,
        found: mode,
        limits,
    }
}

/// The mode, and the limits that are not in force where nothing can be set.
async fn diagnose<D: Driver>(
    settings: &PartitionSettings,
    options: &D::Options,
) -> Result<(PoolerMode, Vec<NotInForce>), String> {
    let mut settings = settings.clone();
    // So nothing is set: it would stay with whoever is served next.
    settings.pooler = Some(PoolerSettings {
        mode: PoolerMode::Transaction,
        max_client_conn: NonZeroU32::MAX,
        default_pool_size: None,
        max_db_connections: None,
    });
    let driver = D::new(&settings, options, &[])?;
    let told = |error| D::failure(error).to_string();
    let mut one = driver.create().await.map_err(told)?;
    let mut other = match driver.create().await {
        Ok(other) => other,
        Err(error) => {
            driver.close(one).await;
            return Err(told(error));
        }
    };
    let looked = async {
        let mode = mode(&driver, &mut one, &mut other).await?;
        let limits = match mode {
            PoolerMode::Session => Vec::new(),
            PoolerMode::Transaction => sessions::look(&driver, &mut one, &settings).await?.limits,
        };
        Ok((mode, limits))
    };
    let looked: Result<_, Failure> = looked.await;
    driver.close(other).await;
    driver.close(one).await;
    looked.map_err(|failure| failure.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(own: &[&str], others: Option<&str>) -> PoolerMode {
        let named = |name: &str| vec![Some(name.to_owned())];
        let own: Vec<Backend> = own.iter().copied().map(named).collect();
        of_backends(&own, others.map(named))
    }

    #[test]
    fn a_backend_is_its_connections_own_until_it_changes_or_serves_another() {
        assert_eq!(of(&["a", "a", "a"], Some("b")), PoolerMode::Session);
        assert_eq!(of(&["a", "a"], None), PoolerMode::Session);
        assert_eq!(of(&["a", "b", "a"], Some("c")), PoolerMode::Transaction);
        assert_eq!(of(&["a", "a", "b"], Some("c")), PoolerMode::Transaction);
        assert_eq!(of(&["a", "a", "b"], Some("a")), PoolerMode::Transaction);
        assert_eq!(of(&["a", "b"], None), PoolerMode::Transaction);
    }
}
