//! The command line.

use std::path::PathBuf;

use crate::output::Json;

/// Where the picture goes when nobody says.
const SVG: &str = "target/lending.svg";

pub(crate) const HELP: &str = "\
Checkout and reporting on twenty connections, for an hour that passes in a minute, on a real Postgres: with fixed
bulkheads, with one shared pool, and with reserved minimums and borrowing; on an ordinary day, and with an incident.

Usage: cargo run --release --example lending -- [OPTIONS]

  --quick         hours of four seconds; about half a minute in all
  --seed N        where the random numbers begin, default 1: the same seed makes the same calls
  --runs N        so many hours of each layout and day, each with a seed of its own, one after the other; default 1
  --svg FILE      where the picture goes; default target/lending.svg
  --json FILE     writes the figures as one JSON object; - is standard output, which then holds nothing else
  --help          this text

The server: PARTITIONED_POOL_PG_URL names one that may be written to; without it a container is started by
Testcontainers (PARTITIONED_POOL_PG_IMAGE, default postgres:17), or else local server binaries.
PARTITIONED_POOL_PG_SOURCE=url|docker|local allows only one of them.

Exit code: 0 every promise was kept; 1 one was not, or the run cannot tell; 2 it could not be run.
";

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Play(Options),
}

/// How it is to be run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) seed: u64,
    /// At least one.
    pub(crate) runs: u32,
    pub(crate) svg: PathBuf,
    pub(crate) json: Option<Json>,
}

/// Reads the arguments, without the program's name.
///
/// # Errors
/// One sentence that names the argument.
pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Command, String> {
    let mut arguments = arguments.into_iter();
    let mut options = Options {
        quick: false,
        seed: 1,
        runs: 1,
        svg: SVG.into(),
        json: None,
    };
    while let Some(argument) = arguments.next() {
        let (flag, value) = match argument.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (argument.as_str(), None),
        };
        let mut needed = |what: &str| {
            let value = value.clone().or_else(|| arguments.next());
            let value = value.filter(|v| !v.is_empty() && !v.starts_with("--"));
            value.ok_or_else(|| format!("{flag} needs {what}"))
        };
        match flag {
            "--quick" if value.is_none() => options.quick = true,
            "--seed" => options.seed = number(flag, &needed("a number")?)?,
            "--runs" => options.runs = runs(&needed("a number")?)?,
            "--svg" => options.svg = needed("a file")?.into(),
            "--json" => options.json = Some(Json::to(needed("a file")?)),
            "--help" | "-h" if value.is_none() => return Ok(Command::Help),
            _ => return Err(format!("unknown argument: {argument}")),
        }
    }
    Ok(Command::Play(options))
}

fn number<N: std::str::FromStr>(flag: &str, text: &str) -> Result<N, String> {
    text.parse()
        .map_err(|_| format!("{flag} needs a number, not {text}"))
}

fn runs(text: &str) -> Result<u32, String> {
    let runs = number("--runs", text)?;
    (runs > 0)
        .then_some(runs)
        .ok_or_else(|| "--runs needs at least 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn every_option_is_read() {
        let options = Options {
            quick: true,
            seed: 7,
            runs: 3,
            svg: "a.svg".into(),
            json: Some(Json::Stdout),
        };
        assert_eq!(
            read("--quick --seed 7 --runs=3 --svg=a.svg --json -"),
            Ok(Command::Play(options))
        );
        assert_eq!(read("--quick --help"), Ok(Command::Help));
    }

    #[test]
    fn what_is_not_known_is_named() {
        assert_eq!(read("--fast"), Err("unknown argument: --fast".into()));
        assert_eq!(read("--seed x"), Err("--seed needs a number, not x".into()));
        assert_eq!(read("--runs 0"), Err("--runs needs at least 1".into()));
        assert_eq!(read("--svg"), Err("--svg needs a file".into()));
    }
}
