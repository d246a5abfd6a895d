//! What the owner states about the sessions of a partition: settings by their names in Postgres.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, de};

use super::{
    leaf::{Leaf, LeafError},
    rules::Checked,
};

/// The key of the table in a partition, and what stands between it and the name in a variable.
pub(super) const TABLE: &str = "settings";

/// A name of Postgres is cut off at this many bytes, and an extension's has a dot.
const NAME_BYTES: usize = 63;

/// Settings by name, as they were stated; names are in lower case, as Postgres does not tell cases apart.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SessionConfig(BTreeMap<String, String>);

impl SessionConfig {
    pub(super) fn insert(&mut self, name: &str, value: String) {
        self.0.insert(name.to_ascii_lowercase(), value);
    }

    /// Takes over one setting that was read.
    pub(super) fn set(&mut self, name: &str, value: Leaf<'_>) -> Result<(), LeafError> {
        self.insert(name, value.setting()?);
        Ok(())
    }

    /// Takes over each setting that `over` states.
    pub(super) fn overlay(&mut self, over: Self) {
        self.0.extend(over.0);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl<'de> Deserialize<'de> for SessionConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;

        impl<'de> de::Visitor<'de> for Table {
            type Value = SessionConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of settings, such as { work_mem = \"64MB\" }")
            }

            fn visit_map<A: de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<SessionConfig, A::Error> {
                let mut settings = SessionConfig::default();
                while let Some((name, Text(value))) = map.next_entry::<String, Text>()? {
                    settings.insert(&name, value);
                }
                Ok(settings)
            }
        }
        deserializer.deserialize_map(Table)
    }
}

/// A value as Postgres reads it, from text, a number or a boolean.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Scalar;

        impl de::Visitor<'_> for Scalar {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text, a number or a boolean")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.to_owned()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }

            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Text, E> {
                Ok(Text(if flag { "on" } else { "off" }.to_owned()))
            }
        }
        deserializer.deserialize_any(Scalar)
    }
}

/// The setting, if it is one that the owner may state here. Whether the server knows it, and takes the value, is
/// for the server to say.
pub(super) fn checked(name: &str, value: &str) -> Checked<(String, String)> {
    if !is_name(name) {
        return Err(
            "cannot be used: a setting is named as in Postgres, such as work_mem or pg_trgm.word_similarity_threshold"
                .to_owned(),
        );
    }
    if value.contains('\0') {
        return Err("holds a zero byte, which no setting of Postgres can".to_owned());
    }
    match belongs_elsewhere(name) {
        Some(instead) => Err(instead.to_owned()),
        None => Ok((name.to_owned(), value.to_owned())),
    }
}

/// Letters, digits, `_` and `$`, in parts with a dot between.
fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let mut chars = part.chars();
        let begins = chars
            .next()
            .is_some_and(|c| c.is_ascii_lowercase() || c == '_');
        begins
            && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '$'))
    };
    name.len() <= NAME_BYTES && name.split('.').all(is_part)
}

/// What to do instead, for a setting that the pool or its drivers keep themselves.
fn belongs_elsewhere(name: &str) -> Option<&'static str> {
    Some(match name {
        "statement_timeout"
        | "lock_timeout"
        | "idle_in_transaction_session_timeout"
        | "transaction_timeout" => {
            "is a limit with a default of its own: state it as the field of the partition with this name"
        }
        "application_name" => {
            "is <service>/<partition>: state service and the partition's name; the fleet check knows sessions by it"
        }
        "client_connection_check_interval"
        | "tcp_keepalives_idle"
        | "tcp_keepalives_interval"
        | "tcp_keepalives_count" => {
            "is set by the pool, so that a backend ends whose client is gone; leave it out"
        }
        "role" | "session_authorization" => {
            "would make another role of the sessions than the one that was counted: log in as that role, by a url"
        }
        "client_encoding" => "is UTF8: the drivers speak nothing else; leave it out",
        "transaction_read_only" | "transaction_isolation" | "transaction_deferrable" => {
            "ends with its transaction: state default_transaction_read_only, _isolation or _deferrable"
        }
        _ => return None,
    })
}
