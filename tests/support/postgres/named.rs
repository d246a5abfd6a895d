//! The server that the user named.

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::source::{Choice, Source, Why};
use super::{Found, Keeper};

/// Reads the URL. What the parser says of a bad one may hold a part of it, so it is not passed on.
pub(super) fn find(choice: &Choice) -> Result<Found, Why> {
    let Some(url) = &choice.url else {
        return Err(Why::Absent("it is not set".to_owned()));
    };
    let config: Config = url.parse().map_err(|_| unreadable("it cannot be read"))?;
    let Some(host) = config.get_hosts().first().map(name) else {
        return Err(unreadable("it names no host"));
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let database = config
        .get_dbname()
        .or(config.get_user())
        .unwrap_or("postgres")
        .to_owned();
    Ok(Found {
        keeper: Keeper::Named,
        source: Source::Url {
            host,
            port,
            database,
        },
        config,
        url: url.clone(),
    })
}

fn unreadable(what: &str) -> Why {
    Why::Failed(format!(
        "{what}; it must look like postgres://user:password@host:5432/database"
    ))
}

fn name(host: &Host) -> String {
    match host {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(folder) => folder.display().to_string(),
    }
}
