//! What a server says without being asked: notices and notifications.

use std::time::Duration;

use partitioned_pool::driver_tokio_postgres::{Heard, MESSAGES_KEPT, Messages};
use tokio::time::timeout;
use tokio_postgres::AsyncMessage;

use crate::support::driver::Pool;
use crate::support::patience::LONG;
use crate::support::server::on_each_version;
use crate::support::tenant::{Tenant, small, until_at_rest};

/// Nothing comes of its own accord; long enough for what is on its way.
const QUIET: Duration = Duration::from_millis(300);

async fn heard(messages: &mut Messages<'_>) -> String {
    let heard = timeout(LONG, messages.recv())
        .await
        .expect("somebody speaks");
    match heard.expect("the connection lives") {
        Heard::Message(AsyncMessage::Notice(notice)) => format!("notice {}", notice.message()),
        Heard::Message(AsyncMessage::Notification(news)) => {
            format!("{} {}", news.channel(), news.payload())
        }
        Heard::Message(other) => panic!("{other:?}"),
        Heard::Missed(missed) => format!("missed {missed}"),
    }
}

async fn notify(tenant: &Tenant, payload: &str) {
    let sql = format!("SELECT pg_notify('{}', '{payload}')", tenant.name);
    tenant.sql(&sql).await;
}

const RAISE: &str = "DO $$ BEGIN RAISE NOTICE 'look'; END $$";

#[tokio::test(flavor = "multi_thread")]
async fn a_held_connection_hears_notices_and_notifications_while_it_works() {
    on_each_version(async |tenant| {
        let pool: Pool = tenant.pool(small(1)).await;
        let held = pool.transactional().acquire().await.unwrap();
        let mut messages = held.messages();
        held.batch_execute(&format!("LISTEN {}", tenant.name))
            .await
            .unwrap();
        held.batch_execute(RAISE).await.unwrap();
        notify(tenant, "first").await;
        assert_eq!(heard(&mut messages).await, "notice look");
        assert_eq!(heard(&mut messages).await, format!("{} first", tenant.name));
        assert!(timeout(QUIET, messages.recv()).await.is_err());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_heard_of_what_was_said_to_another_owner() {
    on_each_version(async |tenant| {
        let pool: Pool = tenant.pool(small(1)).await;
        let held = pool.transactional().acquire().await.unwrap();
        held.batch_execute(RAISE).await.unwrap();
        drop(held.messages());
        held.batch_execute(RAISE).await.unwrap();
        drop(held);
        let held = pool.transactional().acquire().await.unwrap();
        let mut messages = held.messages();
        assert!(timeout(QUIET, messages.recv()).await.is_err());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_connection_is_a_listener_until_it_ends() {
    on_each_version(async |tenant| {
        let pool: Pool = tenant.pool(small(2)).await;
        let listener = pool.transactional().acquire().await.unwrap().detach();
        let mut messages = listener.messages();
        let mut another = listener.messages();
        listener
            .batch_execute(&format!("LISTEN {}", tenant.name))
            .await
            .unwrap();
        notify(tenant, "to both").await;
        for messages in [&mut messages, &mut another] {
            assert_eq!(heard(messages).await, format!("{} to both", tenant.name));
        }
        tenant.terminate_all().await;
        assert!(
            timeout(LONG, messages.recv())
                .await
                .expect("it ends")
                .is_none()
        );
        assert!(listener.messages().recv().await.is_none());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_listen_in_time_is_told_how_many_it_has_missed() {
    on_each_version(async |tenant| {
        let pool: Pool = tenant.pool(small(1)).await;
        let held = pool.transactional().acquire().await.unwrap();
        let mut messages = held.messages();
        let more = 10;
        let sql = format!(
            "DO $$ BEGIN FOR i IN 1..{} LOOP RAISE NOTICE '%', i; END LOOP; END $$",
            MESSAGES_KEPT + more
        );
        held.batch_execute(&sql).await.unwrap();
        assert_eq!(heard(&mut messages).await, format!("missed {more}"));
        assert_eq!(heard(&mut messages).await, format!("notice {}", more + 1));
        drop(messages);
        drop(held);
        until_at_rest(pool.transactional()).await;
        assert_eq!(pool.transactional().status().idle, 1, "it came back quiet");
    })
    .await;
}
