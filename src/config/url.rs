//! The connection text, kept out of every log.

use std::fmt;

use serde::Deserialize;

const REDACTED: &str = "<redacted connection string>";

/// How to reach a server: a URL (`postgres://app:...@db:5432/shop`) or libpq's `key=value` form.
///
/// The text may hold a password, so neither `Debug` nor `Display` prints it: of a URL whose parts are plain
/// beyond doubt they print scheme, user, host, port and database, and of anything else nothing. Only
/// [`expose`](Self::expose) gives the text away.
///
/// Whether the text can be parsed is for the driver to say, when the pool is built.
///
/// # Examples
/// ```
/// use partitioned_pool::config::DatabaseUrl;
///
/// let url = DatabaseUrl::from("postgres://app:s3cret@db.internal:5432/shop?sslmode=require");
/// assert_eq!(url.to_string(), "postgres://app@db.internal:5432/shop");
/// assert_eq!(DatabaseUrl::from("host=db password=s3cret").to_string(), "<redacted connection string>");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(transparent)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// The whole text, password and all, for the driver. Do not print it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for DatabaseUrl {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for DatabaseUrl {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&public_part(&self.0).unwrap_or_else(|| REDACTED.to_owned()))
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

/// Scheme, user, hosts, ports and database of a URL that splits in only one way; `None` if there is any doubt.
///
/// A password that was not percent-encoded may hold any of the characters that split a URL. So at most one
/// `@` is accepted, before the first `/`, `?` or `#`; and each printed part holds only harmless characters.
fn public_part(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let known = scheme == "postgres" || scheme == "postgresql";
    if !known || rest.contains(char::is_whitespace) || rest.matches('@').count() > 1 {
        return None;
    }
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if tail.contains('@') {
        return None;
    }
    let (credentials, hosts) = authority.split_once('@').unwrap_or(("", authority));
    let plain = hosts.split(',').all(is_plain_host);
    let (user, database) = (user_of(credentials)?, database_of(tail)?);
    plain.then(|| format!("{scheme}://{user}{hosts}{database}"))
}

fn user_of(credentials: &str) -> Option<String> {
    let user = credentials.split(':').next()?;
    is_plain(user).then(|| {
        if user.is_empty() {
            String::new()
        } else {
            format!("{user}@")
        }
    })
}

fn database_of(tail: &str) -> Option<&str> {
    let path = tail.split('?').next()?;
    is_plain(path.strip_prefix('/').unwrap_or(path)).then_some(path)
}

fn is_plain_host(text: &str) -> bool {
    let (host, port) = text.rsplit_once(':').unwrap_or((text, ""));
    is_plain(host) && port.len() <= 5 && port.chars().all(|c| c.is_ascii_digit())
}

fn is_plain(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_plain_url_prints_without_its_password() {
        for (text, printed) in [
            (
                "postgres://app:pw@db:5432/shop",
                "postgres://app@db:5432/shop",
            ),
            (
                "postgresql://app@db/shop?password=pw",
                "postgresql://app@db/shop",
            ),
            ("postgres://:pw@db", "postgres://db"),
            ("postgres://localhost", "postgres://localhost"),
            (
                "postgres://app:pw@a:5432,b:5433/shop",
                "postgres://app@a:5432,b:5433/shop",
            ),
            ("postgres://app:p%40w%2F@db/", "postgres://app@db/"),
        ] {
            assert_eq!(DatabaseUrl::from(text).to_string(), printed, "{text}");
        }
    }

    #[test]
    fn whatever_may_split_in_two_ways_is_redacted_whole() {
        for text in [
            "",
            "host=db password=pw",
            "postgres://app:p@w@db/shop",
            "postgres://app:p/w@db/shop",
            "postgres://app:p?w@db/shop",
            "postgres://app:p#w@db/shop",
            "postgres://app:p w@db/shop",
            "postgres://app:pw",
            "postgres://db/shop?password=p@w",
            "postgres://db/shop;password=pw",
            "postgres://a%70p:pw@db/shop",
            "mysql://app:pw@db/shop",
        ] {
            assert_eq!(DatabaseUrl::from(text).to_string(), REDACTED, "{text}");
        }
    }

    /// A password in three marked parts, with anything between them.
    fn password() -> impl Strategy<Value = String> {
        let glue = || {
            prop_oneof![
                "[@/?#:%&= ,.;'\"\\\\]{0,3}",
                "\\PC{0,6}",
                Just("%40".to_owned())
            ]
        };
        (glue(), glue(), glue(), glue())
            .prop_map(|(a, b, c, d)| format!("{a}S3CR{b}S3CR{c}S3CR{d}"))
    }

    proptest! {
        #[test]
        fn no_part_of_a_password_is_ever_printed(password in password()) {
            for text in [
                format!("postgres://app:{password}@db.internal:5432/shop"),
                format!("postgres://app:{password}@db.internal:5432/shop?sslmode=require"),
                format!("postgresql://:{password}@db"),
                format!("postgres://db/shop?password={password}"),
                format!("postgres://app@db?user=x&password={password}&sslmode=disable"),
                format!("host=db user=app password='{password}'"),
                format!("{password}://{password}"),
            ] {
                let url = DatabaseUrl::from(text.as_str());
                prop_assert!(!format!("{url} {url:?} {url:#?}").contains("S3CR"), "{}", url);
                prop_assert_eq!(url.expose(), text);
            }
        }

        #[test]
        fn any_text_can_be_printed(text in "\\PC*") {
            let url = DatabaseUrl::from(text);
            prop_assert!(!url.to_string().is_empty());
        }
    }
}
