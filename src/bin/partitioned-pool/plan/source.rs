//! Where a description comes from, and messages that name its lines.

use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};

use partitioned_pool::plan::reference::{TenWorkers, TwoFlows};
use partitioned_pool::plan::simulator::{InvalidCsv, InvalidScenario};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, Error};

use super::describe::Description;
use super::file::File;
use crate::output::{self, Stop};

/// The text of a description, its name, and the folder of the files that it names.
pub(super) struct Source {
    name: String,
    folder: PathBuf,
    text: String,
}

/// What a description is of.
pub(super) enum Model {
    Flows(Box<Description>),
    TenWorkers(TenWorkers),
    TwoFlows(TwoFlows),
}

const MODELS: &str = "\"flows\", \"ten_workers\" or \"two_flows\"";

impl Source {
    /// `-` is standard input; files that it names are then looked for where the command runs.
    pub(super) fn read(file: &Path) -> Result<Self, Stop> {
        let text = output::read(file)?;
        let name = match file.to_str() {
            Some("-") => "standard input".to_owned(),
            _ => file.display().to_string(),
        };
        let folder = file.parent().unwrap_or(Path::new("")).to_owned();
        Ok(Self { name, folder, text })
    }

    /// What it describes.
    pub(super) fn model(&self) -> Result<Model, Stop> {
        let table = DeTable::parse(&self.text);
        let mut table = table.map_err(|error| self.wrong(&error))?;
        let model = table.get_mut().remove("model");
        match model.as_ref().map(|model| (model.get_ref(), model.span())) {
            None => self.flows(table),
            Some((DeValue::String(name), span)) => match name.as_ref() {
                "flows" => self.flows(table),
                "ten_workers" => self.convert(table).map(Model::TenWorkers),
                "two_flows" => self.convert(table).map(Model::TwoFlows),
                _ => Err(self.at(&span, format!("model must be {MODELS}"))),
            },
            Some((_, span)) => Err(self.at(&span, format!("model must be {MODELS}"))),
        }
    }

    fn flows(&self, table: Spanned<DeTable<'_>>) -> Result<Model, Stop> {
        let file: File = self.convert(table)?;
        let description = Description::new(self, file)?;
        Ok(Model::Flows(Box::new(description)))
    }

    fn convert<T: for<'de> Deserialize<'de>>(
        &self,
        table: Spanned<DeTable<'_>>,
    ) -> Result<T, Stop> {
        let read = T::deserialize(Deserializer::from(table));
        read.map_err(|error| self.wrong(&error))
    }

    fn wrong(&self, error: &Error) -> Stop {
        let span = error.span().unwrap_or(0..0);
        let message = plain(&error.message().replace('\n', ", "));
        match self.key(&span).filter(|key| !message.contains(key)) {
            Some(key) => self.at(&span, format!("{key}: {message}")),
            None => self.at(&span, message),
        }
    }

    /// The key of the line, where a value is what is wrong.
    fn key(&self, span: &Range<usize>) -> Option<&str> {
        let before = self.text.get(..span.start)?;
        let line = before.rsplit('\n').next()?;
        let key = line.split_once('=')?.0.trim();
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        (!key.is_empty() && key.chars().all(plain)).then_some(key)
    }

    /// A problem with what stands here.
    pub(super) fn at(&self, span: &Range<usize>, problem: impl Display) -> Stop {
        let before = self.text.get(..span.start).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        Stop(format!("{} line {line}: {problem}", self.name))
    }

    /// A problem with the value of a key, or with one entry of its list; with the whole, if it is not stated.
    pub(super) fn at_key(&self, key: &str, entry: Option<usize>, problem: impl Display) -> Stop {
        let table = DeTable::parse(&self.text).ok();
        let value = table.as_ref().and_then(|table| table.get_ref().get(key));
        let span = value.map(|value| match (value.get_ref(), entry) {
            (DeValue::Array(list), Some(n)) => list.get(n).map_or(value.span(), Spanned::span),
            _ => value.span(),
        });
        match span {
            Some(span) => self.at(&span, problem),
            None => self.whole(problem),
        }
    }

    /// A day that cannot be run.
    pub(super) fn scenario(&self, error: &InvalidScenario) -> Stop {
        match error {
            InvalidScenario::Step(_) => self.at_key("step", None, error),
            InvalidScenario::Length(_) => self.at_key("length", None, error),
            _ => self.whole(error),
        }
    }

    /// A problem with the whole.
    pub(super) fn whole(&self, problem: impl Display) -> Stop {
        Stop(format!("{}: {problem}", self.name))
    }

    /// What is in another file, beside this one.
    pub(super) fn beside<T>(
        &self,
        name: &str,
        at: &Range<usize>,
        parse: impl FnOnce(&str) -> Result<T, InvalidCsv>,
    ) -> Result<T, Stop> {
        let file = self.folder.join(name);
        let text = output::read(&file).map_err(|Stop(problem)| self.at(at, problem))?;
        parse(&text).map_err(|error| self.at(at, format!("{} {error}", file.display())))
    }
}

/// serde's words for what people write, in ours.
fn plain(message: &str) -> String {
    let message = message.replace("unknown field", "unknown key");
    let known = message.replace(", expected one of ", "; known here are ");
    let known = match known.contains("unknown key") {
        true => known.replace(", expected ", "; known here is "),
        false => message,
    };
    known.replace("missing field", "missing key")
}
