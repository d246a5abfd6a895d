//! Asking a server what it is, and waiting until it can say so.

use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls};

use super::source::causes;

/// One attempt may take this long: a server on this machine answers in milliseconds, a named one may be far.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Starting may take this long: initdb on a busy machine takes seconds, and nobody should wait for minutes.
const READY: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(25);

/// What the server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) version: String,
    pub(super) major: u32,
    pub(super) max_connections: u32,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    #[error(transparent)]
    Postgres(#[from] tokio_postgres::Error),
    #[error("no answer within {ATTEMPT:?}")]
    Silent,
}

impl ProbeError {
    /// Whether a server that is just starting answers like this: nobody listens yet, or "starting up".
    fn may_pass(&self) -> bool {
        match self {
            Self::Silent => true,
            Self::Postgres(error) => error
                .code()
                .is_none_or(|code| *code == SqlState::CANNOT_CONNECT_NOW),
        }
    }
}

async fn connect(config: &Config) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    // It ends when the client is dropped.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// Asks once.
pub(super) async fn once(config: &Config) -> Result<Facts, ProbeError> {
    tokio::time::timeout(ATTEMPT, ask(config))
        .await
        .map_err(|_| ProbeError::Silent)?
        .map_err(ProbeError::from)
}

async fn ask(config: &Config) -> Result<Facts, tokio_postgres::Error> {
    let figures = "SELECT current_setting('server_version'), current_setting('server_version_num')::bigint, \
        current_setting('max_connections')::bigint";
    let row = connect(config).await?.query_one(figures, &[]).await?;
    let version: String = row.get(0);
    let number = |column| {
        u32::try_from(row.get::<_, i64>(column))
            .expect("bug: Postgres counts in int4, never below 0")
    };
    Ok(Facts {
        // "17.12 (Debian 17.12-1.pgdg13+1)" says where it was packed, too.
        version: version.split(' ').next().unwrap_or_default().to_owned(),
        major: number(1) / 10_000,
        max_connections: number(2),
    })
}

/// Asks until the server answers. `ended` tells, when the server is gone for good, what it said last.
pub(super) async fn until_ready(
    config: &Config,
    ended: impl AsyncFn() -> Option<String>,
) -> Result<Facts, String> {
    let began = Instant::now();
    loop {
        let error = match once(config).await {
            Ok(facts) => return Ok(facts),
            Err(error) => error,
        };
        if !error.may_pass() {
            return Err(causes(&error));
        }
        if let Some(last_words) = ended().await {
            return Err(format!(
                "the server ended while it was starting: {last_words}"
            ));
        }
        if began.elapsed() > READY {
            return Err(format!(
                "the server did not answer within {READY:?}: {}",
                causes(&error)
            ));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The wanted settings that are not in force, each as a sentence.
pub(super) async fn differences(
    config: &Config,
    wanted: &[(String, String)],
) -> Result<Vec<String>, super::Why> {
    let compare = async {
        let client = connect(config).await?;
        let mut differences = Vec::new();
        for (key, value) in wanted {
            let same = "SELECT current_setting($1, true), current_setting($1, true) IS NOT DISTINCT FROM $2";
            let row = client.query_one(same, &[key, value]).await?;
            let actual: Option<String> = row.get(0);
            if !row.get::<_, bool>(1) {
                differences.push(format!(
                    "{key} is {} and not {value}",
                    actual.as_deref().unwrap_or("unknown to it")
                ));
            }
        }
        Ok::<_, tokio_postgres::Error>(differences)
    };
    let compared = tokio::time::timeout(ATTEMPT, compare)
        .await
        .map_err(|_| ProbeError::Silent);
    compared
        .and_then(|result| result.map_err(ProbeError::from))
        .map_err(|error| super::Why::Failed(causes(&error)))
}
