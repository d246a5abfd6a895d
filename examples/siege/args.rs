//! The command line.

use std::path::PathBuf;

use crate::drivers::Driven;
use crate::output::Json;
use crate::plan::Siege;

/// Where the picture goes when nobody says.
const SVG: &str = "target/siege.svg";

pub(crate) const HELP: &str = "\
A partition runs steady work while its neighbour is besieged in nine ways, on a real Postgres.

Usage: cargo run --release --example siege -- [OPTIONS]

  --quick         one shorter round of each siege; without, three rounds and the median of their p99
  --only NAME     one siege: saturated, slow, leaking, cut_off, killed, restarted, stormed, panicking or untidy
  --driver NAME   of the partitions: tokio-postgres (the default) or sqlx, which needs `--features sqlx`
  --svg FILE      where the picture goes; default target/siege.svg
  --json FILE     writes the figures as one JSON object; - is standard output, which then holds nothing else
  --leavings N    instead of the sieges: N callers leave at random moments in seven kinds of work
  --help          this text

The server: PARTITIONED_POOL_PG_URL names one that may be written to; without it a container is started by
Testcontainers (PARTITIONED_POOL_PG_IMAGE, default postgres:17), or else local server binaries.
PARTITIONED_POOL_PG_SOURCE=url|docker|local allows only one of them. The siege `restarted` starts one more.

Exit code: 0 every promise was kept; 1 one was not, or the run cannot tell; 2 it could not be run.
";

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Run(Options),
}

/// How it is to be run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) only: Option<Siege>,
    /// Instead of the sieges, so many callers leave.
    pub(crate) leavings: Option<u32>,
    pub(crate) driver: Driven,
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
        only: None,
        leavings: None,
        driver: Driven::TokioPostgres,
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
            "--only" => options.only = Some(siege(&needed("the name of a siege")?)?),
            "--driver" => options.driver = Driven::named(&needed("a name")?)?,
            "--svg" => options.svg = needed("a file")?.into(),
            "--json" => options.json = Some(Json::to(needed("a file")?)),
            "--leavings" => options.leavings = Some(count(&needed("a number")?)?),
            "--help" | "-h" if value.is_none() => return Ok(Command::Help),
            _ => return Err(format!("unknown argument: {argument}")),
        }
    }
    Ok(Command::Run(options))
}

fn siege(name: &str) -> Result<Siege, String> {
    Siege::named(name).ok_or_else(|| format!("--only: there is no siege {name}"))
}

fn count(number: &str) -> Result<u32, String> {
    let count = number.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| format!("--leavings needs a number above 0, not {number}"))
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
            only: Some(Siege::CutOff),
            leavings: Some(20_000),
            driver: Driven::Sqlx,
            svg: "a.svg".into(),
            json: Some(Json::Stdout),
        };
        assert_eq!(
            read("--quick --only cut_off --leavings 20000 --driver=sqlx --svg=a.svg --json -"),
            Ok(Command::Run(options))
        );
        assert_eq!(read("--quick --help"), Ok(Command::Help));
    }

    #[test]
    fn what_is_not_known_is_named() {
        assert_eq!(read("--fast"), Err("unknown argument: --fast".into()));
        assert_eq!(
            read("--only flood"),
            Err("--only: there is no siege flood".into())
        );
        assert_eq!(
            read("--leavings 0"),
            Err("--leavings needs a number above 0, not 0".into())
        );
        assert_eq!(read("--svg"), Err("--svg needs a file".into()));
    }
}
