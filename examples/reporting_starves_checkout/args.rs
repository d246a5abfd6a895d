//! The command line.

use std::path::PathBuf;

use crate::drivers::Driven;
use crate::output::Json;
use crate::scenario::variant::{Reports, Variant};

/// Where the picture goes when nobody says.
const SVG: &str = "target/reporting_starves_checkout.svg";

pub(crate) const HELP: &str = "\
Reports starve checkout, on a real Postgres: first with one pool for both, then with a partition for each.

Usage: cargo run --release --example reporting_starves_checkout -- [OPTIONS]

  --quick         the same within 20 s, with shorter reports; without, two minutes
  --reports KIND  sleep (the default): they take connections and nothing else; or scan: they aggregate a table of a
                  million rows, and take the server's processors as well
  --standby       reports of the partition run on a streaming standby, made by pg_basebackup; of a server that is
                  started here, so that both run on one machine
  --driver NAME   tokio-postgres (the default) or sqlx, which needs `--features sqlx`: the partitions, and the one pool
  --svg FILE      where the picture goes; default target/reporting_starves_checkout.svg
  --json FILE     writes the figures as one JSON object; - is standard output, which then holds nothing else
  --help          this text

The server: PARTITIONED_POOL_PG_URL names one that may be written to; without it a container is started by
Testcontainers (PARTITIONED_POOL_PG_IMAGE, default postgres:17), or else local server binaries.
PARTITIONED_POOL_PG_SOURCE=url|docker|local allows only one of them.

Exit code: 0 isolation held; 1 it did not, or the run shows nothing; 2 it could not be run. Of reports that scan the
latencies are told and not judged: what is judged is that no report had a slot of checkout's.
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
    pub(crate) variant: Variant,
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
        variant: Variant::default(),
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
            "--reports" => options.variant.reports = Reports::named(&needed("a kind")?)?,
            "--standby" if value.is_none() => options.variant.standby = true,
            "--driver" => options.driver = Driven::named(&needed("a name")?)?,
            "--svg" => options.svg = needed("a file")?.into(),
            "--json" => options.json = Some(Json::to(needed("a file")?)),
            "--help" | "-h" if value.is_none() => return Ok(Command::Help),
            _ => return Err(format!("unknown argument: {argument}")),
        }
    }
    Ok(Command::Run(options))
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
            variant: Variant {
                reports: Reports::Scan,
                standby: true,
            },
            driver: Driven::Sqlx,
            svg: "a.svg".into(),
            json: Some(Json::File("b.json".into())),
        };
        assert_eq!(
            read("--quick --reports scan --standby --driver sqlx --svg a.svg --json=b.json"),
            Ok(Command::Run(options))
        );
        let Ok(Command::Run(options)) = read("--json -") else {
            panic!("it runs")
        };
        assert_eq!(options.json, Some(Json::Stdout));
        assert_eq!(options.variant, Variant::default());
        assert_eq!(options.svg, PathBuf::from(SVG));
    }

    #[test]
    fn what_is_not_known_is_named() {
        assert_eq!(read("--fast"), Err("unknown argument: --fast".into()));
        assert_eq!(read("--quick=1"), Err("unknown argument: --quick=1".into()));
        assert_eq!(
            read("--standby=1"),
            Err("unknown argument: --standby=1".into())
        );
        assert_eq!(
            read("--reports join"),
            Err("--reports: sleep or scan, not join".into())
        );
        assert_eq!(read("--svg"), Err("--svg needs a file".into()));
        assert_eq!(read("--json --quick"), Err("--json needs a file".into()));
        assert_eq!(read("--quick -h"), Ok(Command::Help));
    }
}
