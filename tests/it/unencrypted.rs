//! Servers that speak no TLS, and servers that say nothing at all.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use partitioned_pool::config::FleetConfig;
use partitioned_pool::config::{PartitionConfig, PoolConfig};
use partitioned_pool::error::{AcquireError, Phase};
use partitioned_pool::{BootError, PartitionedPool, TokioPostgres};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::support::driver::Speaks as _;
use crate::support::patience::LONG;
use crate::support::server::on_each_version;
use crate::support::tenant::{Tenant, small};

/// A server that takes connections, answers the first message with this, and then says nothing more.
pub(crate) struct Stalling {
    address: SocketAddr,
    listening: AbortHandle,
}

impl Stalling {
    pub(crate) async fn start(answer: &'static str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let listening = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut heard = [0; 1 << 10];
                    let _ = socket.read(&mut heard).await;
                    let _ = socket.write_all(answer.as_bytes()).await;
                    while socket.read(&mut heard).await.is_ok_and(|read| read > 0) {}
                });
            }
        });
        Self {
            address,
            listening: listening.abort_handle(),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Stalling {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn failed(config: PoolConfig) -> AcquireError {
    match PartitionedPool::<TokioPostgres>::connect(config)
        .await
        .unwrap_err()
    {
        BootError::Unavailable { error, .. } => *error,
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_timeout_covers_the_question_for_tls_the_handshake_and_the_login() {
    // Without the feature nobody asks, and all three are the login.
    for answer in ["", "S", "N"] {
        let stalling = Stalling::start(answer).await;
        let url = format!("postgres://app@{}/shop", stalling.address());
        let limit = Duration::from_millis(300);
        let patient = PartitionConfig::transactional(1)
            .min_idle(0)
            .connect_timeout(limit)
            .acquire_timeout(LONG);
        let config = PoolConfig::new("shop", url, FleetConfig::new(1, 0))
            .transactional(patient)
            .analytical(PartitionConfig::analytical(1));
        let began = Instant::now();
        let error = failed(config).await;
        assert!(
            began.elapsed() >= limit && began.elapsed() < LONG,
            "{answer:?}: {error}"
        );
        assert_eq!(error.phase(), Phase::Connect);
        let said = error.to_string();
        assert!(
            said.contains("no answer within 300 ms (connect_timeout)"),
            "{answer:?}: {said}"
        );
    }
}

/// A way that is cut in the middle can come back, whatever was said before.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_up_in_the_handshake_may_come_back() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("postgres://app@{}/shop", listener.local_addr().unwrap());
    let listening = tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut heard = [0; 1 << 10];
            // Whoever asks is told yes; what comes next is not answered.
            if socket
                .read(&mut heard)
                .await
                .is_ok_and(|length| length == 8)
            {
                socket.write_all(b"S").await.ok();
                let _ = socket.read(&mut heard).await.map(drop);
            }
        }
    });
    let config = PoolConfig::new("shop", url, FleetConfig::new(1, 0))
        .transactional(small(1))
        .analytical(PartitionConfig::analytical(1));
    let error = failed(config).await;
    assert!(error.failure().unwrap().is_transient(), "{error}");
    listening.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_gone_to_only_if_the_url_says_so() {
    on_each_version(async |tenant: &Tenant| {
        for query in [
            "",
            "?sslmode=prefer",
            "?sslmode=allow",
            "?sslmode=disable",
            "?gssencmode=prefer",
        ] {
            let config = tenant.config(small(1)).url(tenant.url() + query);
            let pool = PartitionedPool::<TokioPostgres>::connect(config)
                .await
                .unwrap();
            let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
            assert_eq!(held.ask("SELECT 1").await, "1");
        }
        for query in [
            "sslmode=require",
            "sslmode=verify-full",
            "channel_binding=require",
        ] {
            let config = tenant
                .config(small(1))
                .url(format!("{}?{query}", tenant.url()));
            let said = match PartitionedPool::<TokioPostgres>::connect(config)
                .await
                .unwrap_err()
            {
                BootError::Unavailable { error, .. } => {
                    assert!(!error.failure().unwrap().is_transient(), "{query}: {error}");
                    error.to_string()
                }
                // Without the feature, it is known before anything is connected.
                other => other.to_string(),
            };
            let expected = ["speaks no TLS, and the url demands it", "feature `tls`"];
            assert!(
                expected.iter().any(|it| said.contains(it)),
                "{query}: {said}"
            );
        }
    })
    .await;
}
