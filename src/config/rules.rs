//! What one value must be. Each rule gives the value as a type that cannot be wrong, or the problem in words.

use std::{num::NonZeroU32, time::Duration};

use super::{
    leaf::{NAME_RULE, is_name},
    limit::Limit,
    partition::Kind,
    pooler::PoolerMode,
    settings::PoolerSettings,
    url::DatabaseUrl,
};

/// What a server accepts as `max_connections`: no more can ever be granted.
const MOST_CONNECTIONS: u32 = 262_143;

/// A longer queue is a mistake; its last caller would wait for hours.
const MOST_WAITERS: u32 = 1_000_000;

/// Ten years: a longer time is a mistake, and within it no sum of times can overflow.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// The longest timeout of a server, in milliseconds: `i32::MAX`.
const SERVER_LONGEST_MS: u128 = 2_147_483_647;

/// The bytes of an `application_name` that Postgres keeps; it cuts off the rest in silence.
const APPLICATION_NAME_BYTES: usize = 63;

/// What a seat needs of them, as `#9999.9999999999`: so many are its numbers and its epochs at most.
pub(crate) const SEAT_TAG_BYTES: usize = 16;

/// What that leaves room for.
pub(crate) const MOST_SEATS: u32 = 9_999;

/// The shortest lease: below, a hiccup of the network loses a seat. The longest: so long is a seat lost with its replica.
const LEASES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60 * 60)];

/// The bytes of a name that Postgres keeps.
const IDENTIFIER_BYTES: usize = 63;

/// A problem in words, without the name of its field.
pub(super) type Checked<T> = Result<T, String>;

/// A number of connections, or of replicas, that must be stated and is not 0.
pub(super) fn size(stated: Option<u32>, missing: &str) -> Checked<NonZeroU32> {
    let stated = connections(stated, missing)?;
    NonZeroU32::new(stated).ok_or_else(|| "is 0; it must be at least 1".to_owned())
}

/// A number of connections, or of replicas, that must be stated and may be 0.
pub(super) fn connections(stated: Option<u32>, missing: &str) -> Checked<u32> {
    match stated {
        None => Err(missing.to_owned()),
        Some(n) if n > MOST_CONNECTIONS => Err(format!(
            "{n} is more than any Postgres accepts: its max_connections is at most {MOST_CONNECTIONS}"
        )),
        Some(n) => Ok(n),
    }
}

pub(super) fn waiters(n: u32) -> Checked<u32> {
    if n > MOST_WAITERS {
        return Err(format!(
            "{n} is more than {MOST_WAITERS}: so long a queue only hides overload"
        ));
    }
    Ok(n)
}

/// A part of the connections of a partition: at most all of them.
pub(super) fn at_most_max(n: u32, max_connections: Option<u32>) -> Checked<u32> {
    match max_connections {
        Some(max) if n > max => Err(format!("{n} is above max_connections, which is {max}")),
        _ => connections(Some(n), ""),
    }
}

/// The slots guaranteed to a partition that draws from a budget of its own: all of them.
pub(super) fn reserved_alone(stated: Option<u32>, max_connections: Option<u32>) -> Checked<u32> {
    match (stated, max_connections) {
        (Some(n), Some(max)) if n < max => Err(format!(
            "{n} is below max_connections, which is {max}: name a budget to borrow the rest from, or leave \
             reserved out"
        )),
        (stated, max) => at_most_max(stated.or(max).unwrap_or_default(), max),
    }
}

/// The slots guaranteed to a partition that shares a budget: stated, and at most all that it may hold.
pub(super) fn reserved_shared(stated: Option<u32>, max_connections: Option<u32>) -> Checked<u32> {
    let missing = "state how many slots of the budget are guaranteed to this partition (0 if none); there is no \
                   default in a shared budget";
    at_most_max(stated.ok_or(missing)?, max_connections)
}

/// The server connections of a pooler for each role and database, which are a limit in session mode.
pub(super) fn pool_size(
    mode: Option<PoolerMode>,
    stated: Option<u32>,
) -> Checked<Option<NonZeroU32>> {
    match mode {
        Some(PoolerMode::Session) => {
            let missing = "state the server connections for each role and database: in session mode each client \
                           needs one";
            size(stated, missing).map(Some)
        }
        mode => pool_limit(mode, stated),
    }
}

/// A limit of a pooler that may be absent, and counts in session mode.
pub(super) fn pool_limit(
    mode: Option<PoolerMode>,
    stated: Option<u32>,
) -> Checked<Option<NonZeroU32>> {
    match (mode, stated) {
        (_, None) => Ok(None),
        (Some(PoolerMode::Transaction), Some(_)) => Err(
            "counts only with mode = \"session\": in transaction mode clients share server connections; leave this out"
                .to_owned(),
        ),
        (_, stated) => size(stated, "").map(Some),
    }
}

/// Session state is freed where there are sessions.
pub(super) fn reset_session(reset: bool, pooler: Option<&PoolerSettings>) -> Checked<bool> {
    let has_sessions = pooler.is_none_or(|pooler| pooler.mode != PoolerMode::Transaction);
    if reset && !has_sessions {
        return Err(
            "there is no session to reset behind a transaction pooler, and the reset would hit whoever comes next; \
             leave this out"
                .to_owned(),
        );
    }
    Ok(reset)
}

/// A wait that is always bounded.
pub(super) fn wait(time: Duration) -> Checked<Duration> {
    if time.is_zero() {
        return Err(
            "is 0, but every wait is bounded and takes some time; state it, such as \"1s\""
                .to_owned(),
        );
    }
    not_absurd(time)
}

/// A limit that is kept on the client's side.
pub(super) fn client_limit(limit: Limit) -> Checked<Option<Duration>> {
    match limit {
        Limit::Off => Ok(None),
        Limit::After(time) if time.is_zero() => {
            Err("is 0, which is no time at all; write \"off\" if you mean no limit".to_owned())
        }
        Limit::After(time) => not_absurd(time).map(Some),
    }
}

/// A limit that is kept by the server, which counts in whole milliseconds.
pub(super) fn server_limit(limit: Limit) -> Checked<Option<Duration>> {
    match limit {
        Limit::Off => Ok(None),
        Limit::After(time) if time.is_zero() => {
            Err("0 means for ever in Postgres; write \"off\" if you mean no limit".to_owned())
        }
        Limit::After(time) => whole_milliseconds(time).map(Some),
    }
}

fn whole_milliseconds(time: Duration) -> Checked<Duration> {
    let text = Limit::After(time);
    if !time.subsec_nanos().is_multiple_of(1_000_000) {
        return Err(format!(
            "{text} is not a whole number of milliseconds, in which Postgres counts"
        ));
    }
    if time.as_millis() > SERVER_LONGEST_MS {
        return Err(format!(
            "{text} is above {SERVER_LONGEST_MS} ms (24.8 days), the longest that Postgres takes; write \"off\" if \
             you mean no limit"
        ));
    }
    Ok(time)
}

fn not_absurd(time: Duration) -> Checked<Duration> {
    if time > LONGEST {
        return Err(format!("{} is longer than ten years", Limit::After(time)));
    }
    Ok(time)
}

/// The name of a partition, a budget or an external pool.
pub(super) fn name(stated: Option<&str>) -> Checked<String> {
    match stated {
        None => Err(format!("is missing; {NAME_RULE}")),
        Some(name) if is_name(name) => Ok(name.to_owned()),
        Some(_) => Err(format!("cannot be used: {NAME_RULE}")),
    }
}

/// The kind of the partition of this name.
pub(super) fn kind(name: Option<&str>, stated: Option<Kind>) -> Checked<Kind> {
    match (name.and_then(Kind::of_name), stated) {
        (Some(implied), Some(stated)) if implied != stated => Err(format!(
            "the partition of this name is always {}; leave kind out",
            implied.as_str()
        )),
        (Some(kind), _) | (None, Some(kind)) => Ok(kind),
        (None, None) => {
            Err("state \"transactional\" or \"analytical\": it chooses the defaults".to_owned())
        }
    }
}

/// The name of the service, in front of those of its partitions.
pub(super) fn service<'a>(
    stated: Option<&str>,
    partitions: impl Iterator<Item = &'a str>,
    has_seats: bool,
) -> Checked<String> {
    let service = stated.unwrap_or_default();
    if service.is_empty() {
        return Err(
            "state the name of the service; the database shows sessions as <service>/<partition>"
                .to_owned(),
        );
    }
    if !service.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err("must be printable ASCII: it is part of application_name".to_owned());
    }
    if service.contains('/') {
        return Err(
            "must not hold a \"/\", which stands between service and partition in application_name"
                .to_owned(),
        );
    }
    fits_with_every_partition(service, partitions, has_seats)?;
    Ok(service.to_owned())
}

fn fits_with_every_partition<'a>(
    service: &str,
    partitions: impl Iterator<Item = &'a str>,
    has_seats: bool,
) -> Checked<()> {
    let longest = partitions.max_by_key(|name| name.len()).unwrap_or_default();
    let bytes = application_name(service, longest).len();
    let (room, why) = match has_seats {
        true => (
            APPLICATION_NAME_BYTES - SEAT_TAG_BYTES,
            ", and the number of a seat takes 16 of them",
        ),
        false => (APPLICATION_NAME_BYTES, ""),
    };
    if bytes <= room {
        return Ok(());
    }
    Err(format!(
        "application_name, which is <service>/<partition>, has {bytes} bytes with the partition \"{longest}\"; \
         Postgres cuts it off at {APPLICATION_NAME_BYTES}{why}: shorten the service or the partition by {}",
        bytes - room
    ))
}

pub(super) fn application_name(service: &str, partition: &str) -> String {
    format!("{service}/{partition}")
}

/// A connection text that is not empty; whether it can be parsed is for the driver to say.
pub(super) fn url(stated: &DatabaseUrl) -> Checked<()> {
    if stated.expose().trim().is_empty() {
        return Err("is empty; write postgres://user:password@host:5432/database".to_owned());
    }
    Ok(())
}

/// A role or a database.
pub(super) fn identifier(stated: Option<&str>) -> Checked<Option<String>> {
    match stated {
        Some("") => Err("is empty; leave it out if it is not known".to_owned()),
        stated => Ok(stated.map(str::to_owned)),
    }
}

/// The number of seats, which must be stated.
pub(super) fn seats(stated: Option<u32>) -> Checked<NonZeroU32> {
    let count = size(
        stated,
        "state how many replicas may have connections; there is no default",
    )?;
    if count.get() > MOST_SEATS {
        return Err(format!("{count} is more than {MOST_SEATS}, the most seats"));
    }
    Ok(count)
}

/// How long a seat stays taken.
pub(super) fn lease(time: Duration) -> Checked<Duration> {
    let [shortest, longest] = LEASES;
    if !(shortest..=longest).contains(&time) {
        return Err("must be from 1s to 1h".to_owned());
    }
    whole_milliseconds(time)
}

/// A table, with or without its schema, that needs no quotes.
pub(super) fn table(stated: &str) -> Checked<String> {
    let plain = |name: &str| {
        let rest = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        let first = |b: &u8| b.is_ascii_lowercase() || *b == b'_';
        name.len() <= IDENTIFIER_BYTES
            && name.as_bytes().first().is_some_and(first)
            && name.bytes().all(rest)
    };
    let parts = stated.split('.');
    if parts.clone().count() <= 2 && parts.into_iter().all(plain) {
        return Ok(stated.to_owned());
    }
    Err("is no table or schema.table of a-z, 0-9 and _".to_owned())
}
