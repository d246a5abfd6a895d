//! One stated value, and how it gets into a configuration.
//!
//! A file and the environment are both read as a list of statements: a field and a value. Each is read by serde
//! on its own, as a struct with this one field, and laid over what was stated before. So every wrong statement is
//! reported and not only the first, the names of the fields are written down once (in the structs), and no
//! message repeats a value, which may be a secret in the wrong place.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, IntoDeserializer, value::MapDeserializer},
    forward_to_deserialize_any,
};

use super::pooler::PoolerConfig;

/// A part of the configuration that can be stated field by field.
pub(super) trait Overlay: for<'de> Deserialize<'de> {
    /// Takes over each field that `over` states.
    fn overlay(&mut self, over: Self);

    /// The pooler within this part, as the table [`POOLER`]; from here on it counts as stated.
    fn pooler(&mut self) -> Option<&mut PoolerConfig> {
        None
    }

    /// Takes over the field called `key`.
    fn set(&mut self, key: &str, value: Leaf<'_>) -> Result<(), LeafError> {
        self.set_field(key, value)
    }

    /// The same, for a field of the struct itself.
    fn set_field(&mut self, key: &str, value: Leaf<'_>) -> Result<(), LeafError> {
        let one = MapDeserializer::new(std::iter::once((key, value)));
        self.overlay(Self::deserialize(one)?);
        Ok(())
    }
}

/// The only table that can be stated within several others.
pub(super) const POOLER: &str = "pooler";

/// A part of which there can be several, each with a name of its own.
pub(super) trait Named: Overlay + Default {
    /// The field that holds them all.
    const LIST: &'static str;

    /// A key whose value is a table, of which each entry is a statement of its own: `<table>.<name>`. Default: none.
    const TABLE: Option<&'static str> = None;

    /// The name, if one is stated.
    fn name(&self) -> Option<&str>;

    /// The field of this one, the `index`th of its list. A name that breaks the rule is not repeated.
    fn path(&self, index: usize) -> String {
        match self.name() {
            Some(name) if is_name(name) => format!("{}.{name}", Self::LIST),
            _ => format!("{}[{}]", Self::LIST, index + 1),
        }
    }
}

/// The rule for names, in words.
pub(super) const NAME_RULE: &str =
    "a name is made of a-z, 0-9, _ and -, and has 1 to 32 characters";

/// The rule for names.
pub(super) fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    (1..=32).contains(&name.len()) && name.chars().all(allowed)
}

/// For `#[serde(deserialize_with)]`: a name of something else. One that breaks the rule may be a secret in the wrong
/// place, and is not taken in.
pub(super) fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(deserializer)?;
    if is_name(&name) {
        return Ok(Some(name));
    }
    Err(de::Error::custom(format_args!(
        "cannot be used: {NAME_RULE}"
    )))
}

/// Takes `new` over, if it is stated.
pub(super) fn replace<T>(old: &mut Option<T>, new: Option<T>) {
    if new.is_some() {
        *old = new;
    }
}

/// The names of the fields of a struct, as serde knows them.
pub(super) fn fields_of<T: for<'de> Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    let stopped = T::deserialize(FieldNames(&mut fields));
    debug_assert!(
        stopped.is_err(),
        "bug: the names are all that there is to read"
    );
    fields
}

/// The value of one field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Leaf<'a> {
    /// Text of no type of its own (a variable): the field says what it is.
    Untyped(&'a str),
    /// A string.
    Text(&'a str),
    /// A whole number; `None` if it is beyond 64 bits.
    Integer(Option<i64>),
    /// A number with a fraction, as it was written.
    Fraction(&'a str),
    /// `true` or `false`.
    Flag(bool),
    /// Anything that no field takes, by its name.
    Other(&'static str),
}

impl Leaf<'_> {
    fn unexpected<V>(self, expected: &dyn de::Expected) -> Result<V, LeafError> {
        let found = match self {
            Self::Untyped(_) | Self::Text(_) => "text",
            Self::Integer(_) => "a number",
            Self::Fraction(_) => "a number with a fraction",
            Self::Flag(_) => "a boolean",
            Self::Other(name) => name,
        };
        Err(de::Error::invalid_type(
            de::Unexpected::Other(found),
            expected,
        ))
    }

    fn count(self) -> Result<u32, LeafError> {
        let number = match self {
            Self::Untyped(text) => text.parse().ok(),
            Self::Integer(number) => number.and_then(|number| number.try_into().ok()),
            Self::Text(_) | Self::Fraction(_) | Self::Flag(_) | Self::Other(_) => {
                return self.unexpected(&"a whole number without quotes");
            }
        };
        number.ok_or_else(|| {
            de::Error::custom(format_args!(
                "expected a whole number from 0 to {}",
                u32::MAX
            ))
        })
    }

    /// The value of a setting, as Postgres reads it.
    pub(super) fn setting(self) -> Result<String, LeafError> {
        match self {
            Self::Untyped(text) | Self::Text(text) | Self::Fraction(text) => Ok(text.to_owned()),
            Self::Integer(Some(number)) => Ok(number.to_string()),
            Self::Flag(flag) => Ok(if flag { "on" } else { "off" }.to_owned()),
            Self::Integer(None) | Self::Other(_) => self.unexpected(&"text, a number or a boolean"),
        }
    }

    fn flag(self) -> Result<bool, LeafError> {
        match self {
            Self::Flag(flag) => Ok(flag),
            Self::Untyped("true") => Ok(true),
            Self::Untyped("false") => Ok(false),
            Self::Untyped(_) => Err(de::Error::custom("expected true or false")),
            Self::Text(_) | Self::Integer(_) | Self::Fraction(_) | Self::Other(_) => {
                self.unexpected(&"true or false without quotes")
            }
        }
    }
}

impl<'de> Deserializer<'de> for Leaf<'_> {
    type Error = LeafError;

    fn deserialize_any<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, LeafError> {
        match self {
            Self::Untyped(text) | Self::Text(text) => visitor.visit_str(text),
            Self::Integer(_) | Self::Fraction(_) | Self::Flag(_) | Self::Other(_) => {
                self.unexpected(&visitor)
            }
        }
    }

    fn deserialize_u32<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, LeafError> {
        visitor.visit_u32(self.count()?)
    }

    fn deserialize_bool<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, LeafError> {
        visitor.visit_bool(self.flag()?)
    }

    fn deserialize_option<V: de::Visitor<'de>>(self, visitor: V) -> Result<V::Value, LeafError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: de::Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, LeafError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: de::Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, LeafError> {
        match self {
            Self::Untyped(text) | Self::Text(text) => visitor.visit_enum(text.into_deserializer()),
            Self::Integer(_) | Self::Fraction(_) | Self::Flag(_) | Self::Other(_) => {
                self.unexpected(&one_of(variants).as_str())
            }
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

impl IntoDeserializer<'_, LeafError> for Leaf<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Why a value does not fit its field: never with the value in it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct LeafError(String);

impl de::Error for LeafError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }

    fn invalid_type(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        match found {
            de::Unexpected::Other(found) => Self(format!("expected {expected}, found {found}")),
            _ => Self(format!("expected {expected}")),
        }
    }

    fn invalid_value(_: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self(format!("expected {expected}"))
    }

    fn unknown_variant(_: &str, variants: &'static [&'static str]) -> Self {
        Self(format!("expected {}", one_of(variants)))
    }

    fn unknown_field(_: &str, fields: &'static [&'static str]) -> Self {
        Self(format!("unknown key; known here are {}", fields.join(", ")))
    }
}

fn one_of(variants: &[&str]) -> String {
    format!("\"{}\"", variants.join("\" or \""))
}

/// Reads nothing but the names that a struct asks for.
struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = LeafError;

    fn deserialize_any<V: de::Visitor<'de>>(self, _: V) -> Result<V::Value, LeafError> {
        Err(de::Error::custom("not a struct"))
    }

    fn deserialize_struct<V: de::Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, LeafError> {
        *self.0 = fields;
        Err(de::Error::custom("only the names were asked for"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        text: Option<String>,
        count: Option<u32>,
    }

    impl Overlay for Sample {
        fn overlay(&mut self, over: Self) {
            replace(&mut self.text, over.text);
            replace(&mut self.count, over.count);
        }
    }

    fn refusal(key: &str, value: Leaf<'_>) -> String {
        Sample::default().set(key, value).unwrap_err().to_string()
    }

    #[test]
    fn the_field_says_what_untyped_text_is() {
        let mut sample = Sample::default();
        sample.set("text", Leaf::Untyped("20")).unwrap();
        sample.set("count", Leaf::Untyped("20")).unwrap();
        assert_eq!(
            sample,
            Sample {
                text: Some("20".into()),
                count: Some(20)
            }
        );
    }

    #[test]
    fn the_names_are_those_of_the_struct() {
        assert_eq!(fields_of::<Sample>(), ["text", "count"]);
    }

    #[test]
    fn a_refusal_says_what_was_expected_and_never_the_value() {
        assert_eq!(
            refusal("count", Leaf::Text("s3cret")),
            "expected a whole number without quotes, found text"
        );
        for value in [
            Leaf::Untyped("s3cret"),
            Leaf::Integer(Some(-1)),
            Leaf::Integer(None),
        ] {
            assert_eq!(
                refusal("count", value),
                "expected a whole number from 0 to 4294967295"
            );
        }
        assert_eq!(
            refusal("text", Leaf::Integer(Some(5))),
            "expected a string, found a number"
        );
        assert_eq!(
            refusal("text", Leaf::Other("an array")),
            "expected a string, found an array"
        );
        assert_eq!(
            refusal("tekst", Leaf::Text("s3cret")),
            "unknown key; known here are text, count"
        );
    }
}
