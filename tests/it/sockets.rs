//! Sockets in the file system: a server that is reached over one, and what is demanded of it in vain.

use partitioned_pool::{BootError, PartitionedPool};

use crate::postgres::{self, Choice, Kind, Postgres, Want};
use crate::support::driver::{Speaks as _, Tested, on_each_driver};
use crate::support::patience::LONG;
use crate::support::tenant::{Tenant, small};

on_each_driver![
    ; alone: a_socket_is_gone_over_unless_tls_is_demanded,
    what_runs_over_a_socket_is_cancelled_over_it
];

/// A server whose socket we can reach: of local binaries, whatever their version. None, said aloud, where there are none.
async fn local() -> Option<(Postgres, Tenant)> {
    let choice = Choice {
        only: Some(Kind::Local),
        ..Choice::from_env().unwrap()
    };
    match postgres::start_as(&choice, &Want::default()).await {
        Ok(server) => {
            let tenant = Tenant::new(server.url()).await;
            Some((server, tenant))
        }
        Err(error) => {
            eprintln!("SKIPPED: no server of which the socket can be reached: {error}");
            None
        }
    }
}

/// The tenant's URL by the server's socket, with these parameters.
async fn url(tenant: &Tenant, query: &str) -> String {
    let folder = "SHOW unix_socket_directories";
    let folder: String = tenant.admin.query_one(folder, &[]).await.unwrap().get(0);
    let (name, port) = (&tenant.name, tenant.port());
    let host = folder.replace('/', "%2F");
    format!("postgres://{name}:{name}@{host}:{port}/postgres{query}")
}

async fn connect<D: Tested>(tenant: &Tenant, query: &str) -> Result<PartitionedPool<D>, BootError> {
    let config = tenant.config(small(1)).url(url(tenant, query).await);
    PartitionedPool::connect(config).await
}

async fn a_socket_is_gone_over_unless_tls_is_demanded<D: Tested>() {
    let Some((_server, tenant)) = local().await else {
        return;
    };
    for query in ["", "?sslmode=disable", "?sslmode=allow", "?sslmode=prefer"] {
        let pool = connect::<D>(&tenant, query).await.unwrap();
        let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
        let sql = "SELECT coalesce(host(inet_client_addr()), 'a socket') || ', ' || ssl \
            FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        assert_eq!(held.ask(sql).await, "a socket, false", "{query}");
        drop(held);
        assert!(pool.close(LONG).await.is_drained());
    }
    for query in [
        "?sslmode=require",
        "?sslmode=verify-full",
        "?sslmode=verify-ca&sslrootcert=/etc/ca.pem",
    ] {
        let refused = connect::<D>(&tenant, query).await.unwrap_err();
        assert!(matches!(refused, BootError::Config(_)), "{refused}");
        let told = "demands TLS, and a socket in the file system has none";
        assert!(refused.to_string().contains(told), "{query}: {refused}");
    }
    assert_eq!(tenant.backends().await, 0);
}

async fn what_runs_over_a_socket_is_cancelled_over_it<D: Tested>() {
    let Some((_server, tenant)) = local().await else {
        return;
    };
    let pool = connect::<D>(&tenant, "").await.unwrap();
    let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
    let pid = held.ask("SELECT pg_backend_pid()").await;
    tokio::select! {
        said = held.say("SELECT pg_sleep(60)") => panic!("{:?}", said.err()),
        () = tenant.until_running("SELECT pg_sleep(60)") => drop(held),
    }
    let mut next = pool.transactional().acquire_by(LONG).await.unwrap();
    assert_eq!(next.ask("SELECT pg_backend_pid()").await, pid);
}
