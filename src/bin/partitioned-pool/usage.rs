//! What is wrong with the arguments, in one line. No value is repeated: it may be a secret in the wrong place.

use std::error::Error as _;

use clap::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::output::{Answer, Stop};

const HELP: &str = "see --help";

/// Help and version are answers; everything else is a reason to stop.
pub(crate) fn told(error: &Error) -> Result<Answer, Stop> {
    if !error.use_stderr() {
        return Ok(Answer::of(error.render(), true));
    }
    let argument = of(error, ContextKind::InvalidArg);
    Err(Stop(match error.kind() {
        ErrorKind::MissingRequiredArgument => format!("{argument} must be stated; {HELP}"),
        ErrorKind::ArgumentConflict => {
            let other = of(error, ContextKind::PriorArg);
            format!("{argument} cannot go with {other}; leave one of them out")
        }
        ErrorKind::UnknownArgument => format!("{} is not known here; {HELP}", flag(&argument)),
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let why = error.source().map_or(HELP.to_owned(), ToString::to_string);
            format!("{argument} has no usable value: {why}")
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand => {
            format!("a command is missing; {HELP}")
        }
        ErrorKind::InvalidSubcommand => format!("there is no such command; {HELP}"),
        ErrorKind::InvalidUtf8 => "an argument is not UTF-8".to_owned(),
        kind if argument.is_empty() => format!("{kind}; {HELP}"),
        kind => format!("{argument}: {kind}; {HELP}"),
    }))
}

/// What the error says under this heading.
fn of(error: &Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(all)) => all.join(", "),
        _ => String::new(),
    }
}

/// The name of a flag; nothing of anything else.
fn flag(argument: &str) -> &str {
    let name = argument.split('=').next().unwrap_or_default();
    let is_flag = name.starts_with("--") && name.len() <= 40;
    let plain = |c: char| c.is_ascii_lowercase() || c == '-';
    match is_flag && name.chars().all(plain) {
        true => name,
        false => "an argument",
    }
}
