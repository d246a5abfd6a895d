//! Passwords that are asked for at each connect.

use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use partitioned_pool::driver::{AskForPasswords, Endpoint, PasswordProvider};
use partitioned_pool::error::Phase;
use partitioned_pool::{AcquireError, BootError, Driver, PartitionedPool};

use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::patience::LONG;
use crate::support::tenant::{Tenant, small};

on_each_driver![
    a_password_may_change_while_connections_live,
    a_provider_that_fails_says_so_in_its_own_phase,
    a_provider_that_hangs_says_so_in_its_own_phase,
    a_provider_may_take_its_time_when_the_pool_starts
];

const MS: Duration = Duration::from_millis(1);

/// A provider whose answers the test sets.
#[derive(Clone)]
struct Vault(Arc<Mutex<Answer>>);

#[derive(Clone)]
enum Answer {
    Password(String),
    Fails(&'static str),
    Breaks,
    Hangs,
    /// The same as [`Password`](Self::Password), after so long.
    Late(Duration, String),
}

impl Vault {
    fn new(answer: Answer) -> Self {
        Self(Arc::new(Mutex::new(answer)))
    }

    fn set(&self, answer: Answer) {
        *self.0.lock().unwrap() = answer;
    }

    fn provider(&self) -> PasswordProvider {
        let vault = self.clone();
        PasswordProvider::new("vault", move |_: Endpoint| {
            let answer = vault.0.lock().unwrap().clone();
            async move {
                match answer {
                    Answer::Password(password) => Ok(password),
                    Answer::Fails(why) => Err(io::Error::new(io::ErrorKind::InvalidData, why)),
                    Answer::Breaks => Err(io::ErrorKind::ConnectionRefused.into()),
                    Answer::Hangs => pending().await,
                    Answer::Late(pause, password) => {
                        tokio::time::sleep(pause).await;
                        Ok(password)
                    }
                }
            }
        })
    }

    async fn pool<D>(&self, tenant: &Tenant) -> Result<PartitionedPool<D>, BootError>
    where
        D: Driver<Options: AskForPasswords>,
    {
        // That of the URL is not used.
        let url = tenant
            .url()
            .replace(&format!(":{}@", tenant.name), ":n0t-used@");
        let size = small(3).acquire_timeout(LONG).connect_timeout(2000 * MS);
        let builder = PartitionedPool::<D>::builder(tenant.config(size).url(url));
        builder.password_provider(self.provider()).connect().await
    }
}

async fn a_password_may_change_while_connections_live<D>(tenant: &Tenant)
where
    D: Tested + Driver<Options: AskForPasswords>,
{
    let vault = Vault::new(Answer::Password(tenant.name.clone()));
    let pool = vault.pool::<D>(tenant).await.unwrap();
    let mut old = pool.transactional().acquire().await.unwrap();
    let pid = old.ask("SELECT pg_backend_pid()").await;

    let name = &tenant.name;
    tenant
        .sql(&format!("ALTER ROLE {name} PASSWORD 'n3w'"))
        .await;
    assert_eq!(old.ask("SELECT pg_backend_pid()").await, pid);
    // The old one is refused, and not tried again.
    let refused = pool.transactional().acquire().await.unwrap_err();
    assert_eq!(refused.sqlstate(), Some("28P01"), "{refused}");
    assert_eq!(refused.phase(), Phase::Connect);

    vault.set(Answer::Password("n3w".to_owned()));
    let mut new = pool.transactional().acquire().await.unwrap();
    assert_ne!(new.ask("SELECT pg_backend_pid()").await, pid);
    assert_eq!(old.ask("SELECT pg_backend_pid()").await, pid);
}

async fn a_provider_that_fails_says_so_in_its_own_phase<D>(tenant: &Tenant)
where
    D: Tested + Driver<Options: AskForPasswords>,
{
    let vault = Vault::new(Answer::Password(tenant.name.clone()));
    let pool = vault.pool::<D>(tenant).await.unwrap();
    let _held = pool.transactional().acquire().await.unwrap();
    vault.set(Answer::Fails("sealed"));
    let AcquireError::Failed { phase, failure, .. } =
        pool.transactional().acquire().await.unwrap_err()
    else {
        panic!("it was refused otherwise");
    };
    assert_eq!(
        (phase, failure.password_provider()),
        (Phase::Password, Some("vault"))
    );
    assert_eq!(
        failure.to_string(),
        "the password provider vault failed: sealed"
    );

    // A way that is cut can come back: it is tried again, as long as the caller waits.
    vault.set(Answer::Breaks);
    let (acquired, ()) = tokio::join!(pool.transactional().acquire_by(LONG), async {
        tokio::time::sleep(100 * MS).await;
        vault.set(Answer::Password(tenant.name.clone()));
    });
    drop(acquired.unwrap());

    vault.set(Answer::Fails("sealed"));
    let BootError::Unavailable { error, .. } = vault.pool::<D>(tenant).await.unwrap_err() else {
        panic!("the boot failed otherwise");
    };
    assert_eq!(error.phase(), Phase::Password);
}

async fn a_provider_that_hangs_says_so_in_its_own_phase<D>(tenant: &Tenant)
where
    D: Tested + Driver<Options: AskForPasswords>,
{
    let vault = Vault::new(Answer::Password(tenant.name.clone()));
    let pool = vault.pool::<D>(tenant).await.unwrap();
    let _held = pool.transactional().acquire().await.unwrap();
    vault.set(Answer::Hangs);
    // A caller that has less time than the provider, and one that has more.
    for time in [100 * MS, 2500 * MS] {
        let began = Instant::now();
        let error = pool.transactional().acquire_by(time).await.unwrap_err();
        assert!(began.elapsed() >= time && began.elapsed() < LONG, "{error}");
        assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
        assert_eq!(error.phase(), Phase::Password, "{error}");
        assert_eq!(
            error.failure().unwrap().password_provider(),
            Some("vault"),
            "{error}"
        );
    }
    vault.set(Answer::Password(tenant.name.clone()));
    drop(pool.transactional().acquire_by(LONG).await.unwrap());
}

async fn a_provider_may_take_its_time_when_the_pool_starts<D>(tenant: &Tenant)
where
    D: Tested<Options: AskForPasswords>,
{
    let vault = Vault::new(Answer::Late(1_500 * MS, tenant.name.clone()));
    let size = small(1).acquire_timeout(LONG).connect_timeout(LONG);
    let builder = PartitionedPool::<D>::builder(tenant.config(size));
    let pool = builder.password_provider(vault.provider()).connect().await;
    let pool = pool.unwrap();
    let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
    let pid = held.ask("SELECT pg_backend_pid()").await;
    let slow = "SELECT pg_sleep(60)";
    tokio::select! {
        said = held.say(slow) => panic!("it ended: {said:?}"),
        () = tenant.until_running(slow) => {}
    }
    drop(held);
    // Cancelled, and not closed: what cancels is there.
    let mut next = pool.transactional().acquire_by(LONG).await.unwrap();
    assert_eq!(next.ask("SELECT pg_backend_pid()").await, pid);
}
