//! Fifty slow reports start at once. With one pool for all, checkout fails although nothing of its own is wrong;
//! with a partition for each, it does not notice. On a real Postgres, measured, and an error when it is not so:
//!
//! `cargo run --release --example reporting_starves_checkout`
//!
//! These reports sleep. With `-- --reports scan` they scan, and it shows what a partition does not isolate; with
//! `-- --standby` they run on a standby.
//!
//! The README's picture is that of a run with `--svg examples/reporting_starves_checkout/scenario.svg`.

#![cfg_attr(
    not(any(feature = "tokio-postgres", feature = "sqlx")),
    allow(
        dead_code,
        unused_macros,
        reason = "a build without any driver can only say so"
    )
)]

mod args;
#[path = "../support/drivers.rs"]
mod drivers;
#[path = "../support/output.rs"]
mod output;
#[path = "../../tests/support/postgres/mod.rs"]
mod postgres;
mod scenario;

use std::error::Error;
use std::process::ExitCode;

use args::{Command, Options};
use drivers::{Missing, over};
use output::{Json, Line, write};
use scenario::layout::Driven;
use scenario::plan::Plan;
use scenario::report::Table;
use scenario::variant::Reports;
use scenario::verdict::{Finding, judge};
use scenario::{json, picture};

type Findings = Result<Vec<Finding>, Box<dyn Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    let options = match args::parse(std::env::args().skip(1)) {
        Ok(Command::Run(options)) => options,
        Ok(Command::Help) => {
            print!("{}", args::HELP);
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprintln!("{problem}; --help shows what there is");
            return ExitCode::from(2);
        }
    };
    let done: Result<Findings, Missing> = over!(options.driver, perform(&options));
    output::exit(done.unwrap_or_else(|missing| Err(missing.into())))
}

async fn perform<D: Driven>(options: &Options) -> Findings {
    let plan = if options.quick {
        Plan::QUICK
    } else {
        Plan::FULL
    };
    let server = postgres::start(scenario::want()).await?;
    eprintln!("{}\nover {}", server.describe(), options.driver);
    let mut line = Line::default();
    let tell = |progress: &_| line.show(progress);
    let ran = scenario::run::<D>(&server, options.variant, &plan, tell).await;
    line.end();
    drop(server);
    let experiment = ran?;
    write(&options.svg, &picture::svg(&experiment))?;
    match &options.json {
        Some(Json::Stdout) => println!("{}", json::json(&experiment)),
        Some(Json::File(file)) => write(file, &(json::json(&experiment) + "\n"))?,
        None => {}
    }
    let findings = judge(&experiment);
    let verdict = match (findings.as_slice(), options.variant.reports) {
        ([], Reports::Sleep) => "Isolation held.",
        ([], Reports::Scan) => "Isolation of connections held; the CPU is shared.",
        _ => "Not as it must be; see below.",
    };
    let picture = options.svg.display();
    let text = format!(
        "\n{}\n\n{verdict} The picture: {picture}\n",
        Table(&experiment)
    );
    if options.json == Some(Json::Stdout) {
        eprint!("{text}");
    } else {
        print!("{text}");
    }
    Ok(findings)
}
