//! TLS: what is demanded, what is verified, and that nothing goes without.

use std::net::SocketAddr;
use std::time::Duration;

use partitioned_pool::error::{AcquireError, Phase};
use partitioned_pool::{BootError, PartitionedPool, TokioPostgres};
use tokio::net::lookup_host;

use crate::support::certificates::{Authority, HOST, Pair, secure};
use crate::support::driver::{Pool, Speaks as _};
use crate::support::patience::{LONG, eventually};
use crate::support::proxy::{Opening, Proxy};
use crate::support::server::on_own_servers;
use crate::support::tenant::{Tenant, small};

const ONLY_ENCRYPTED: &str = "hostssl all all all scram-sha-256";

/// The tenant's URL, for a server that is called so and has this address.
fn url(tenant: &Tenant, host: &str, at: SocketAddr, query: &str) -> String {
    let url = tenant.url_at(host, at.port());
    format!("{url}?hostaddr={}&{query}", at.ip())
}

async fn address(tenant: &Tenant) -> SocketAddr {
    let mut found = lookup_host((tenant.host(), tenant.port())).await.unwrap();
    found.next().unwrap()
}

async fn connect(tenant: &Tenant, url: String) -> Result<Pool, BootError> {
    connect_some(tenant, url, 2).await
}

async fn connect_some(tenant: &Tenant, url: String, size: u32) -> Result<Pool, BootError> {
    PartitionedPool::<TokioPostgres>::connect(tenant.config(small(size)).url(url)).await
}

/// The version of TLS that a new session speaks, or why there is none.
async fn spoken(tenant: &Tenant, host: &str, query: &str) -> Result<String, String> {
    let url = url(tenant, host, address(tenant).await, query);
    let pool = connect(tenant, url)
        .await
        .map_err(|error| error.to_string())?;
    let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
    let version = "SELECT coalesce(version, 'plain') FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let version = held.ask(version).await;
    drop(held);
    pool.close(LONG).await;
    Ok(version)
}

/// Checks each of `(host, query, what is said)`.
async fn check(tenant: &Tenant, expected: &[(&str, &str, Result<&str, &str>)]) {
    for (host, query, expected) in expected {
        let found = spoken(tenant, host, query).await;
        match (&found, expected) {
            (Ok(version), Ok(expected)) => assert_eq!(version, expected, "{host} {query}"),
            (Err(said), Err(expected)) => {
                assert!(said.contains(expected), "{host} {query}: {said}");
            }
            _ => panic!("{host} {query}: {found:?}, not {expected:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_judged_as_the_url_demands() {
    on_own_servers(&[], async |_, tenant| {
        let (ca, stranger) = (Authority::called("CA"), Authority::new());
        let namesake = Authority::called("CA");
        secure(tenant, &ca.for_server(), &ca, ONLY_ENCRYPTED).await;
        let with = |mode: &str, ca: &Authority| {
            format!("sslmode={mode}&sslrootcert={}", ca.file().display())
        };
        let revoking = |it| {
            format!(
                "{}&sslcrl={}",
                with("verify-full", &ca),
                ca.revoking(it).display()
            )
        };
        let (tls, other) = (Ok("TLSv1.3"), "other.test");
        let unknown = Err("is signed by none of the CAs that are known");
        check(
            tenant,
            &[
                (HOST, "sslmode=disable", Err("SQLSTATE 28000")),
                (other, "", tls),
                (other, "sslmode=prefer", tls),
                (other, "sslmode=allow", tls),
                (other, "sslmode=require", tls),
                (other, &with("require", &ca), tls),
                (other, &with("require", &stranger), unknown),
                (other, &with("verify-ca", &ca), tls),
                (other, &with("verify-ca", &stranger), unknown),
                (HOST, &with("verify-full", &ca), tls),
                ("127.0.0.1", &with("verify-full", &ca), tls),
                (other, &with("verify-full", &ca), Err("is for another host")),
                (HOST, &with("verify-full", &namesake), unknown),
                (HOST, &with("verify-full", &stranger), unknown),
                (HOST, "sslmode=verify-full", Err("platform")),
                (HOST, "sslrootcert=system", Err("platform")),
                (HOST, &revoking(false), tls),
                (HOST, &revoking(true), Err("is revoked")),
                // As with libpq: what cannot be trusted is no TLS, and `prefer` then goes without.
                (
                    HOST,
                    &with("prefer", &stranger),
                    Err("before that, error performing TLS"),
                ),
                (HOST, "sslmode=require&sslsni=0", tls),
                (
                    HOST,
                    "sslmode=require&ssl_max_protocol_version=TLSv1.2",
                    Ok("TLSv1.2"),
                ),
                (
                    HOST,
                    "sslmode=require&ssl_min_protocol_version=TLSv1.3",
                    tls,
                ),
            ],
        )
        .await;
        secure(tenant, &ca.expired(), &ca, ONLY_ENCRYPTED).await;
        check(
            tenant,
            &[
                (HOST, &with("verify-full", &ca), Err("has expired")),
                (other, &with("verify-ca", &ca), Err("has expired")),
                (HOST, "sslmode=require", tls),
            ],
        )
        .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_s_own_certificate_is_its_ca_only_if_it_is_marked_as_none() {
    on_own_servers(&[], async |_, tenant| {
        let ca = Authority::new();
        let folder = tempfile::tempdir().unwrap();
        let with = |mode: &str, pair: &Pair| {
            let (certificate, _) = pair.write(folder.path());
            format!("sslmode={mode}&sslrootcert={}", certificate.display())
        };
        let (tls, other) = (Ok("TLSv1.3"), "other.test");
        let own = Pair::self_signed(false);
        secure(tenant, &own, &ca, ONLY_ENCRYPTED).await;
        let elsewhere = Err("is for another host");
        check(
            tenant,
            &[
                (HOST, &with("verify-full", &own), tls),
                (other, &with("verify-ca", &own), tls),
                (other, &with("verify-full", &own), elsewhere),
            ],
        )
        .await;

        let itself = Err("its certificate is itself given as a CA");
        for pair in [Pair::self_signed(true), ca.for_server()] {
            secure(tenant, &pair, &ca, ONLY_ENCRYPTED).await;
            check(
                tenant,
                &[
                    (HOST, &with("verify-full", &pair), itself),
                    (HOST, &with("verify-ca", &pair), itself),
                    (HOST, &with("require", &pair), itself),
                    (HOST, "sslmode=require", tls),
                ],
            )
            .await;
        }
        let marked = ca.marked_as_ca();
        secure(tenant, &marked, &ca, ONLY_ENCRYPTED).await;
        let by_ca = format!("sslmode=verify-full&sslrootcert={}", ca.file().display());
        check(tenant, &[(HOST, &by_ca, Err("is marked as a CA"))]).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_cannot_be_trusted_fails_at_once() {
    on_own_servers(&[], async |_, tenant| {
        let (ca, stranger) = (Authority::new(), Authority::new());
        let rules = "host all all all scram-sha-256";
        secure(tenant, &ca.for_server(), &ca, rules).await;
        let strict = format!(
            "sslmode=verify-full&sslrootcert={}",
            stranger.file().display()
        );
        let error = connect(tenant, url(tenant, HOST, address(tenant).await, &strict)).await;
        let BootError::Unavailable { error, .. } = error.unwrap_err() else {
            panic!("the boot failed otherwise");
        };
        let AcquireError::Failed {
            phase: Phase::Connect,
            failure,
            ..
        } = *error
        else {
            panic!("{error}");
        };
        assert!(!failure.is_transient(), "{failure}");
        // Where both is welcome, `allow` begins without, and `prefer` goes without what it cannot trust.
        let trusting = format!("sslmode=prefer&sslrootcert={}", stranger.file().display());
        let expected = [
            (HOST, "sslmode=allow", Ok("plain")),
            (HOST, trusting.as_str(), Ok("plain")),
            (HOST, "sslmode=disable", Ok("plain")),
            (HOST, "", Ok("TLSv1.3")),
        ];
        check(tenant, &expected).await;
        // And where TLS is not welcome, `prefer` comes without.
        let rules = "hostssl all all all reject\nhostnossl all all all scram-sha-256";
        secure(tenant, &ca.for_server(), &ca, rules).await;
        let expected = [
            (HOST, "", Ok("plain")),
            (HOST, "sslmode=require", Err("SQLSTATE 28000")),
            (HOST, "channel_binding=require", Err("SQLSTATE 28000")),
        ];
        check(tenant, &expected).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_bound_to_the_line_it_is_proved_over() {
    on_own_servers(&[], async |server, tenant| {
        let ca = Authority::new();
        secure(tenant, &ca.for_server(), &ca, ONLY_ENCRYPTED).await;
        let tls = Ok("TLSv1.3");
        let direct = "sslmode=require&sslnegotiation=direct";
        let direct_is = match server.major() >= 17 {
            true => tls,
            false => Err("error performing TLS handshake"),
        };
        let expected = [
            (HOST, "sslmode=require&channel_binding=require", tls),
            (HOST, "channel_binding=require", tls),
            (HOST, "sslmode=require&channel_binding=disable", tls),
            (HOST, direct, direct_is),
        ];
        check(tenant, &expected).await;
        // A server that wants the password itself proves nothing.
        secure(
            tenant,
            &ca.for_server(),
            &ca,
            "hostssl all all all password",
        )
        .await;
        let expected = [
            (HOST, "sslmode=require", tls),
            (
                HOST,
                "channel_binding=require",
                Err("server did not use channel binding"),
            ),
        ];
        check(tenant, &expected).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_must_show_a_certificate_shows_it_and_it_may_be_renewed() {
    on_own_servers(&[], async |_, tenant| {
        let (ca, stranger) = (Authority::new(), Authority::new());
        let rules = "hostssl all all all scram-sha-256 clientcert=verify-full";
        secure(tenant, &ca.for_server(), &ca, rules).await;
        let folder = tempfile::tempdir().unwrap();
        let shown = |pair: Pair| {
            let (certificate, key) = pair.write(folder.path());
            let (certificate, key) = (certificate.display(), key.display());
            format!("sslmode=require&sslcert={certificate}&sslkey={key}")
        };
        check(tenant, &[(HOST, "sslmode=require", Err("SQLSTATE 28000"))]).await;
        let foreign = shown(stranger.for_role(&tenant.name));
        check(tenant, &[(HOST, &foreign, Err("alert"))]).await;
        let another_s = shown(ca.for_role("somebody"));
        // The server calls it a wrong password.
        check(tenant, &[(HOST, &another_s, Err("SQLSTATE 28P01"))]).await;
        let own = shown(ca.for_role(&tenant.name));
        let hidden = format!("{own}&sslcertmode=disable");
        let expected = [
            (HOST, own.as_str(), Ok("TLSv1.3")),
            (HOST, &hidden, Err("SQLSTATE 28000")),
        ];
        check(tenant, &expected).await;

        let pool = connect(tenant, url(tenant, HOST, address(tenant).await, &own))
            .await
            .unwrap();
        let held = pool.transactional().acquire_by(LONG).await.unwrap();
        let renewed = shown(ca.for_role("somebody"));
        assert_eq!(renewed, own, "the files have the same names");
        let refused = pool.transactional().acquire_by(LONG).await.unwrap_err();
        assert_eq!(refused.sqlstate(), Some("28P01"), "{refused}");
        shown(ca.for_role(&tenant.name));
        drop(pool.transactional().acquire_by(LONG).await.unwrap());
        drop(held);
    })
    .await;
}

/// The pid of a connection whose caller leaves in the middle of a query.
async fn leave(tenant: &Tenant, pool: &Pool) -> i32 {
    let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
    let pid = held.ask("SELECT pg_backend_pid()").await.parse().unwrap();
    let left = tokio::select! {
        said = held.say("SELECT pg_sleep(60)") => said.is_ok(),
        () = tenant.until_running("SELECT pg_sleep(60)") => true,
    };
    assert!(left);
    pid
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_request_takes_the_way_of_its_connection_or_none() {
    on_own_servers(&[], async |_, tenant| {
        let ca = Authority::new();
        secure(
            tenant,
            &ca.for_server(),
            &ca,
            "host all all all scram-sha-256",
        )
        .await;
        let strict = format!("sslmode=verify-full&sslrootcert={}", ca.file().display());
        for (query, opening) in [
            (strict.as_str(), Opening::AsksForTls),
            ("", Opening::AsksForTls),
            ("sslmode=disable", Opening::Cancel),
        ] {
            let proxy = tenant.proxy().await;
            let url = url(tenant, HOST, proxy.address(), query);
            let pool = connect_some(tenant, url, 1).await.unwrap();
            let before = proxy.openings().len();
            let pid = leave(tenant, &pool).await;
            let mut next = pool.transactional().acquire_by(LONG).await.unwrap();
            assert_eq!(next.ask("SELECT pg_backend_pid()").await, pid.to_string());
            let cancels = &proxy.openings()[before..];
            let only = !cancels.is_empty() && cancels.iter().all(|it| *it == opening);
            assert!(only, "{query}: {cancels:?}");
        }
        a_cancel_is_not_sent_in_the_open(tenant, "sslmode=require").await;
        a_cancel_is_not_sent_in_the_open(tenant, "sslmode=prefer").await;
    })
    .await;
}

/// Somebody in between says that there is no TLS after all.
async fn a_cancel_is_not_sent_in_the_open(tenant: &Tenant, query: &str) {
    let proxy: Proxy = tenant.proxy().await;
    let pool = connect(tenant, url(tenant, HOST, proxy.address(), query))
        .await
        .unwrap();
    let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
    assert_eq!(
        held.ask("SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            .await,
        "true"
    );
    drop(held);
    proxy.refuse_tls();
    let before = proxy.openings().len();
    leave(tenant, &pool).await;
    eventually("a cancel was tried", async || {
        proxy.openings().len() > before
    })
    .await;
    // The connection cannot be made quiet, so it is given up: it is not handed on as it is.
    eventually("it is given up", async || {
        let status = pool.transactional().status();
        status.in_use + status.returning + status.idle == 0
    })
    .await;
    let tried = &proxy.openings()[before..];
    assert!(!tried.contains(&Opening::Cancel), "{tried:?}");
    tenant.terminate_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_stalls_has_its_share_of_the_time_and_the_next_is_tried() {
    on_own_servers(&[], async |_, tenant| {
        let ca = Authority::new();
        secure(tenant, &ca.for_server(), &ca, ONLY_ENCRYPTED).await;
        for answer in ["", "S"] {
            let stalling = crate::unencrypted::Stalling::start(answer).await;
            let at = address(tenant).await;
            let name = &tenant.name;
            let url = format!(
                "postgres://{name}:{name}@stalls.test:{},{HOST}:{}/postgres?hostaddr={},{}&sslmode=verify-full&sslrootcert={}",
                stalling.address().port(), at.port(), stalling.address().ip(), at.ip(), ca.file().display()
            );
            let timeout = Duration::from_secs(6);
            let config = tenant.config(small(1).connect_timeout(timeout).acquire_timeout(LONG));
            let pool = PartitionedPool::<TokioPostgres>::connect(config.url(url)).await.unwrap();
            drop(pool.transactional().acquire_by(LONG).await.unwrap());
        }
    })
    .await;
}

#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread")]
async fn the_feature_gives_tls_to_sqlx_too() {
    use partitioned_pool::Sqlx;

    on_own_servers(&[], async |_, tenant| {
        let (ca, stranger) = (Authority::new(), Authority::new());
        secure(tenant, &ca.for_server(), &ca, ONLY_ENCRYPTED).await;
        let url = |ca: &Authority| {
            format!(
                "{}?sslmode=verify-full&sslrootcert={}",
                tenant.url(),
                ca.file().display()
            )
        };
        let config = tenant.config(small(1)).url(url(&stranger));
        let refused = Box::pin(PartitionedPool::<Sqlx>::connect(config));
        let said = refused.await.unwrap_err().to_string();
        assert!(said.contains("certificate"), "{said}");
        let config = tenant.config(small(1)).url(url(&ca));
        let pool = Box::pin(PartitionedPool::<Sqlx>::connect(config));
        let pool = pool.await.unwrap();
        let mut held = pool.transactional().acquire_by(LONG).await.unwrap();
        assert_eq!(
            held.ask("SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
                .await,
            "true"
        );
    })
    .await;
}
