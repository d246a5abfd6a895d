//! The parameters of a connection text that the driver does not read itself: taken out of it, or refused by name.
//!
//! Both forms are read, `postgres://..?key=value&..` and `key=value ..`, as tokio-postgres reads them. No error
//! repeats anything that may be a part of a password.

use std::collections::BTreeMap;
use std::ops::Range;

use percent_encoding::percent_decode_str;

/// What is done with a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// tokio-postgres reads it,
    Driver,
    /// under another name.
    DriverAs(&'static str),
    /// We read it.
    Ours,
    /// It is left out: why is in `docs/connection-parameters.md`.
    Ignored,
    /// These values ask for what is done anyway. Others are refused: why.
    Only(&'static [&'static str], &'static str),
    /// It is refused: what to do instead.
    Refused(&'static str),
}

use Fate::{Driver, DriverAs, Ignored, Only, Ours, Refused};

/// Every parameter that libpq 18 knows, and what tokio-postgres calls otherwise.
const FATES: [(&str, Fate); 52] = [
    ("host", Driver),
    ("hostaddr", Driver),
    ("port", Driver),
    ("dbname", Driver),
    ("user", Driver),
    ("password", Driver),
    ("options", Driver),
    ("application_name", Driver),
    ("connect_timeout", Driver),
    ("tcp_user_timeout", Driver),
    ("keepalives", Driver),
    ("keepalives_idle", Driver),
    ("keepalives_interval", Driver),
    ("keepalives_count", DriverAs("keepalives_retries")),
    ("keepalives_retries", Driver),
    ("target_session_attrs", Driver),
    ("load_balance_hosts", Driver),
    ("channel_binding", Driver),
    ("sslmode", Ours),
    ("sslnegotiation", Ours),
    ("sslrootcert", Ours),
    ("sslcert", Ours),
    ("sslkey", Ours),
    ("sslcertmode", Ours),
    ("sslcrl", Ours),
    ("sslsni", Ours),
    ("ssl_min_protocol_version", Ours),
    ("ssl_max_protocol_version", Ours),
    ("fallback_application_name", Ignored),
    (
        "client_encoding",
        Only(
            &["UTF8", "utf8", "UTF-8", "utf-8", "auto"],
            "it is always UTF8",
        ),
    ),
    (
        "gssencmode",
        Only(
            &["disable", "prefer"],
            "GSSAPI is not spoken; use sslmode for encryption",
        ),
    ),
    (
        "replication",
        Only(
            &["false", "off", "no", "0"],
            "a pool's connections are no replication connections",
        ),
    ),
    (
        "sslcompression",
        Only(&["0"], "TLS is not compressed, which would leak secrets"),
    ),
    (
        "min_protocol_version",
        Only(&["3.0"], "version 3.0 of the protocol is spoken"),
    ),
    (
        "max_protocol_version",
        Only(
            &["3.0", "3.2", "latest"],
            "version 3.0 of the protocol is spoken",
        ),
    ),
    (
        "passfile",
        Refused("give the password in the url or by a password provider"),
    ),
    ("service", Refused("write its parameters into the url")),
    ("servicefile", Refused("write its parameters into the url")),
    (
        "require_auth",
        Refused("use channel_binding=require, which lets only SCRAM pass, or sslmode=verify-full"),
    ),
    (
        "requirepeer",
        Refused("let only the server write to the folder of the socket"),
    ),
    (
        "sslpassword",
        Refused("use a key that is not encrypted, in a file that only the service can read"),
    ),
    ("sslcrldir", Refused("use sslcrl, a file")),
    (
        "sslkeylogfile",
        Refused("secrets of a session are not written down"),
    ),
    ("scram_client_key", Refused("use a password")),
    ("scram_server_key", Refused("use a password")),
    ("krbsrvname", Refused("GSSAPI is not spoken")),
    ("gsslib", Refused("GSSAPI is not spoken")),
    ("gssdelegation", Refused("GSSAPI is not spoken")),
    ("oauth_issuer", Refused(OAUTH)),
    ("oauth_client_id", Refused(OAUTH)),
    ("oauth_client_secret", Refused(OAUTH)),
    ("oauth_scope", Refused(OAUTH)),
];

const OAUTH: &str =
    "OAuth is not spoken; a password provider can give tokens that the server takes as passwords";

pub(super) const AMBIGUOUS: &str =
    "is ambiguous: a special character in the password (an @ is %40) must be percent-encoded";

/// What we read ourselves, by name. An empty value is none.
pub(super) type Taken = BTreeMap<&'static str, String>;

/// The text for tokio-postgres, and what was taken out of it.
///
/// # Errors
/// What cannot be read, is unknown, or is not done here.
pub(super) fn split(text: &str) -> Result<(String, Taken), String> {
    let schemes = ["postgres://", "postgresql://"];
    match schemes.iter().find(|scheme| text.starts_with(**scheme)) {
        Some(scheme) => of_url(text, scheme.len()),
        None => of_pairs(text),
    }
}

fn of_url(text: &str, scheme: usize) -> Result<(String, Taken), String> {
    let rest = &text[scheme..];
    let tail = rest.find(['/', '?']).unwrap_or(rest.len());
    if rest.matches('@').count() > 1 || rest[tail..].contains('@') {
        return Err(AMBIGUOUS.to_owned());
    }
    let Some((before, query)) = text.split_once('?') else {
        return Ok((text.to_owned(), Taken::new()));
    };
    let mut sieve = Sieve::default();
    let mut kept = Vec::new();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').ok_or_else(unreadable)?;
        let key = decoded(key)?;
        match sieve.sift(&key, &decoded(value)?)? {
            Some(name) if name != key => kept.push(format!("{name}={value}")),
            Some(_) => kept.push(part.to_owned()),
            None => {}
        }
    }
    let query = kept.join("&");
    let mark = if query.is_empty() { "" } else { "?" };
    Ok((format!("{before}{mark}{query}"), sieve.taken))
}

fn decoded(text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    Ok(decoded.map_err(|_| unreadable())?.into_owned())
}

fn of_pairs(text: &str) -> Result<(String, Taken), String> {
    let mut sieve = Sieve::default();
    let mut kept = Vec::new();
    let mut at = 0;
    while let Some(pair) = Pair::next(text, at).ok_or_else(unreadable)? {
        at = pair.value_at.end;
        if let Some(name) = sieve.sift(pair.key, &pair.value)? {
            kept.push(format!("{name}={}", &text[pair.value_at]));
        }
    }
    Ok((kept.join(" "), sieve.taken))
}

/// One `key=value`, and where its value stands.
struct Pair<'a> {
    key: &'a str,
    value: String,
    value_at: Range<usize>,
}

impl<'a> Pair<'a> {
    /// The next one from `at` on; `Some(None)` at the end of the text, `None` if it is none.
    fn next(text: &'a str, at: usize) -> Option<Option<Self>> {
        let key_at = at + (text[at..].len() - text[at..].trim_start().len());
        if key_at == text.len() {
            return Some(None);
        }
        let key = text[key_at..]
            .split(|c: char| c.is_whitespace() || c == '=')
            .next()?;
        if key.is_empty() {
            return None;
        }
        let after = text[key_at + key.len()..].trim_start().strip_prefix('=')?;
        let value_at = text.len() - after.trim_start().len();
        let (value, end) = value(text, value_at)?;
        let value_at = value_at..end;
        Some(Some(Self {
            key,
            value,
            value_at,
        }))
    }
}

/// The value that begins at `at`, plain or in quotes, without its escapes; and where it ends.
fn value(text: &str, at: usize) -> Option<(String, usize)> {
    let quoted = text[at..].starts_with('\'');
    let start = at + usize::from(quoted);
    let mut value = String::new();
    let mut letters = text[start..].char_indices();
    while let Some((offset, letter)) = letters.next() {
        match letter {
            '\\' => value.extend(letters.next().map(|(_, escaped)| escaped)),
            '\'' if quoted => return Some((value, start + offset + 1)),
            _ if !quoted && letter.is_whitespace() => return Some((value, start + offset)),
            _ => value.push(letter),
        }
    }
    (!quoted && !value.is_empty()).then_some((value, text.len()))
}

/// Decides of each parameter in turn.
#[derive(Default)]
struct Sieve {
    taken: Taken,
    /// A password has come: what follows may be a part of it, and is not repeated.
    may_be_secret: bool,
}

impl Sieve {
    /// The name under which the driver is to read it, if it is.
    fn sift(&mut self, key: &str, value: &str) -> Result<Option<&'static str>, String> {
        let Some(&(name, fate)) = FATES.iter().find(|(name, _)| *name == key) else {
            return Err(self.unknown(key));
        };
        self.may_be_secret |= name.contains("password") || name.contains("secret");
        match fate {
            Driver => return Ok(Some(name)),
            DriverAs(other) => return Ok(Some(other)),
            Ours if value.is_empty() => {}
            Ours => drop(self.taken.insert(name, value.to_owned())),
            Ignored => {}
            Only(values, _) if value.is_empty() || values.contains(&value) => {}
            Only(values, why) => {
                let values = values.join(" or ");
                return Err(format!("has a {name} that is not {values}: {why}"));
            }
            Refused(instead) => {
                return Err(format!("has {name}, which is not supported: {instead}"));
            }
        }
        Ok(None)
    }

    fn unknown(&self, key: &str) -> String {
        let is_word = !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let named = match is_word && key.len() <= 30 && !self.may_be_secret {
            true => format!("an unknown parameter, {key}"),
            false => "an unknown parameter".to_owned(),
        };
        let done = |fate| matches!(fate, Driver | DriverAs(_) | Ours);
        let known = FATES.iter().filter(|(_, fate)| done(*fate));
        let known: Vec<_> = known.map(|(name, _)| *name).collect();
        format!(
            "has {named}; known are {}. A special character in the password must be percent-encoded",
            known.join(", ")
        )
    }
}

pub(super) fn unreadable() -> String {
    "is neither postgres://USER:PASSWORD@HOST:PORT/DATABASE nor key=value pairs; \
    a special character in the password must be percent-encoded"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use crate::parameters_page::rows;

    use super::*;

    fn taken(pairs: &[(&'static str, &str)]) -> Taken {
        pairs
            .iter()
            .map(|(key, value)| (*key, (*value).to_owned()))
            .collect()
    }

    #[test]
    fn the_docs_tell_the_fate_of_each_parameter_and_of_no_other() {
        let documented = rows();
        for (name, fate) in FATES {
            // tokio-postgres's own name for one of libpq's.
            if name == "keepalives_retries" {
                continue;
            }
            let row = documented.iter().find(|row| row[0] == name);
            let [_, _, told, _] = row.unwrap_or_else(|| panic!("{name} is not documented"));
            let expected = match fate {
                Driver if name == "application_name" => "left out",
                Ours if name == "sslcertmode" => "left out",
                Driver | DriverAs(_) | Ours => "taken",
                Ignored | Only(..) => "left out",
                Refused(_) => "refused",
            };
            assert_eq!(*told, expected, "{name}");
        }
        assert_eq!(documented.len(), FATES.len() - 1);
    }

    #[test]
    fn what_we_read_is_taken_out_and_the_rest_stays_as_it_was() {
        let ours = taken(&[("sslmode", "verify-full"), ("sslrootcert", "/etc/a b.pem")]);
        for (text, rest) in [
            (
                "postgres://app:x%40@a:1,b/shop?sslmode=verify-full&options=-c%20a%3Db&sslrootcert=%2Fetc/a%20b.pem",
                "postgres://app:x%40@a:1,b/shop?options=-c%20a%3Db",
            ),
            (
                "postgresql://a?sslrootcert=/etc/a b.pem&sslmode=prefer&sslmode=verify-full",
                "postgresql://a",
            ),
            (
                "host = a  sslmode=verify-full password='it\\'s = b' sslrootcert='/etc/a b.pem' user=app",
                "host=a password='it\\'s = b' user=app",
            ),
            ("sslrootcert=/etc/a\\ b.pem sslmode=verify-full", ""),
        ] {
            assert_eq!(split(text), Ok((rest.to_owned(), ours.clone())), "{text}");
        }
    }

    #[test]
    fn libpq_s_name_for_the_count_of_keepalives_is_understood() {
        let (rest, _) = split("postgres://app@a?keepalives_count=4").unwrap();
        assert_eq!(rest, "postgres://app@a?keepalives_retries=4");
        let (rest, _) = split("host=a keepalives_count = '4'").unwrap();
        assert_eq!(rest, "host=a keepalives_retries='4'");
    }

    #[test]
    fn an_unknown_parameter_is_named_unless_it_may_be_a_part_of_a_password() {
        for (text, named) in [
            ("postgres://app@db/shop?sslmod=require", true),
            ("host=db sslmod=require", true),
            ("postgres://app@db/shop?password=x&sslmod=y", false),
            ("host=db password=x sslmod=y", false),
            ("host=db SSLMOD=y", false),
        ] {
            let problem = split(text).unwrap_err();
            assert_eq!(problem.contains("parameter, sslmod;"), named, "{problem}");
            assert!(problem.contains("unknown parameter"), "{problem}");
        }
    }

    #[test]
    fn what_is_no_connection_text_is_refused() {
        for text in [
            "host",
            "host=",
            "host='a",
            "=a",
            "postgres://a?b",
            "postgres://a?sslmode=%ff",
        ] {
            assert_eq!(split(text), Err(unreadable()), "{text}");
        }
        for text in [
            "postgres://a:b@c@d",
            "postgres://db?password=p@w",
            "postgres://a/b@c",
        ] {
            assert_eq!(split(text), Err(AMBIGUOUS.to_owned()), "{text}");
        }
    }
}
