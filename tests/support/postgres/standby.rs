//! A streaming standby of a server that was started here, made by `pg_basebackup`.

use tokio_postgres::NoTls;

use super::source::{Choice, Source, Why, causes};
use super::{Keeper, Postgres, Want, docker, local};

/// Why there is no standby.
#[derive(Debug, thiserror::Error)]
#[error("no standby of {server}: {reason}")]
pub(crate) struct NoStandby {
    server: String,
    reason: String,
}

/// Has the server let whoever knows the password follow it. The hosts of its own file may be loopback only.
const LINE: &str = "host replication all all scram-sha-256";

impl Postgres {
    /// A standby of this server, by the same means: it has the same databases, roles and password, can be read, and
    /// follows what is written here. It is told `want.settings`; of `max_connections` it needs at
    /// least those of this server, which it has by default. Dropping it ends it; this server does not mind.
    ///
    /// # Errors
    /// A server that the user named is not ours to copy; an engine, or `pg_basebackup`, that fails.
    pub(crate) async fn standby(&self, want: Want) -> Result<Self, NoStandby> {
        let started = self.start_standby(want).await;
        started.map_err(|why| NoStandby {
            server: self.source.to_string(),
            reason: why.to_string(),
        })
    }

    async fn start_standby(&self, want: Want) -> Result<Self, Why> {
        let own = Want::default().setting("max_connections", self.max_connections());
        let want = Want {
            settings: [own.settings, want.settings].concat(),
            ..want
        };
        let password = self.config.get_password().unwrap_or_default();
        let password = String::from_utf8_lossy(password).into_owned();
        let found = match (&self.keeper, &self.source) {
            (Keeper::Container(primary), Source::Docker { image, .. }) => {
                let choice = Choice::from_env().map_err(|error| Why::Failed(error.to_string()))?;
                self.let_in().await.map_err(|e| Why::Failed(causes(&e)))?;
                docker::standby(primary, image, &password, &choice, &want).await?
            }
            (Keeper::Cluster(_), Source::Local { folder, port, .. }) => {
                local::standby(*port, folder.clone(), &password, &want).await?
            }
            _ => {
                let reason = "it is not ours; this needs the source docker or local";
                return Err(Why::Absent(reason.to_owned()));
            }
        };
        found.answering().await
    }

    async fn let_in(&self) -> Result<(), tokio_postgres::Error> {
        let (client, connection) = self.config.connect(NoTls).await?;
        tokio::spawn(async move { drop(connection.await) });
        let file: String = client.query_one("SHOW hba_file", &[]).await?.get(0);
        let sql =
            format!("COPY (SELECT '{LINE}') TO PROGRAM 'cat >> {file}'; SELECT pg_reload_conf()");
        client.batch_execute(&sql).await
    }
}
