//! An hour that passes in a minute: checkout and reporting on twenty connections of a real Postgres, with fixed
//! bulkheads, with one shared pool, and with reserved minimums and borrowing; on an ordinary day, and on one on
//! which reports take twenty times as long. The calls are the same in all of them, and the simulator says
//! beforehand what will come of them:
//!
//! `cargo run --release --example lending`
//!
//! It is an error when the server ever has more connections than the capacity, when a partition below its
//! reservation waits for more than the opening or re-dressing of one connection, or when checkout loses a call
//! in the incident although what is reserved to it covers its load.

mod args;
#[path = "../support/calls.rs"]
mod calls;
mod figures;
mod hour;
mod json;
#[path = "../support/output.rs"]
mod output;
mod picture;
mod plan;
#[path = "../../tests/support/postgres/mod.rs"]
mod postgres;
mod report;
mod script;
#[path = "../support/testbed.rs"]
mod support;
#[path = "../../src/bin/partitioned-pool/svg.rs"]
mod svg;
mod verdict;
#[path = "../support/watch.rs"]
mod watch;
#[path = "../../src/bin/partitioned-pool/words.rs"]
mod words;

use std::error::Error;
use std::process::ExitCode;

use args::{Command, Options};
use figures::Figures;
use output::{Json, Line, write};
use plan::{Day, Layout, Plan};
use postgres::{Postgres, Want};
use report::Table;
use script::Script;
use support::tenant::Tenant;

type Findings = Result<Vec<String>, Box<dyn Error>>;

#[tokio::main]
async fn main() -> ExitCode {
    let done = match args::parse(std::env::args().skip(1)) {
        Ok(Command::Play(options)) => play(&options).await,
        Ok(Command::Help) => {
            print!("{}", args::HELP);
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprintln!("{problem}; --help shows what there is");
            return ExitCode::from(2);
        }
    };
    output::exit(done)
}

async fn play(options: &Options) -> Findings {
    let plan = if options.quick {
        Plan::QUICK
    } else {
        Plan::FULL
    };
    let seeds = (options.seed..).take(options.runs.try_into()?);
    let scripts = seeds.map(|seed| Script::draw(seed, plan));
    let scripts = scripts.collect::<Result<Vec<_>, _>>()?;
    let server = postgres::start(Want::default()).await?;
    eprintln!("{}", server.describe());
    let tenant = Tenant::new(server.url()).await;
    let figures = all(&server, &tenant, &scripts).await;
    tenant.leave().await;
    tell(options, plan, &figures?, server.version())
}

/// Every layout on every day.
async fn all(
    server: &Postgres,
    tenant: &Tenant,
    scripts: &[Script],
) -> Result<Vec<Figures>, Box<dyn Error>> {
    let mut line = Line::default();
    let mut figures = Vec::new();
    for (day, layout) in Day::ALL
        .iter()
        .flat_map(|day| Layout::ALL.map(|layout| (*day, layout)))
    {
        let mut hours = Vec::new();
        for script in scripts {
            line.show(&format!("{day}, {layout}, seed {}", script.seed));
            hours.push(hour::play(server, tenant, script, (layout, day)).await?);
        }
        figures.push(Figures { layout, day, hours });
    }
    line.end();
    Ok(figures)
}

fn tell(options: &Options, plan: Plan, figures: &[Figures], version: &str) -> Findings {
    write(&options.svg, &picture::svg(figures, plan, version))?;
    match &options.json {
        Some(Json::Stdout) => println!("{}", json::json(figures)),
        Some(Json::File(file)) => write(file, &(json::json(figures) + "\n"))?,
        None => {}
    }
    let findings = verdict::judge(figures);
    let verdict = match findings.as_slice() {
        [] => "Every promise was kept.",
        _ => "Not as it must be; see below.",
    };
    let text = format!(
        "\n{}\n{verdict} The picture: {}\n",
        Table { figures, plan },
        options.svg.display()
    );
    if options.json == Some(Json::Stdout) {
        eprint!("{text}");
    } else {
        print!("{text}");
    }
    Ok(findings.iter().map(ToString::to_string).collect())
}
