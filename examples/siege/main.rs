//! One partition runs steady work while its neighbour is besieged: saturated, slowed, leaked, cut off, killed,
//! restarted, left in the middle of things, panicked in, left untidy. On a real Postgres, measured, and an error
//! when the steady partition notices, a slot or a query stays behind, or the budget is exceeded:
//!
//! `cargo run --release --example siege`
//!
//! The sieges that differ most are beside it on plain pools of the same sizes. With `--leavings 20000` so many
//! callers leave at random moments, and it is told how soon their connections are of use again.

#![cfg_attr(
    not(any(feature = "tokio-postgres", feature = "sqlx")),
    allow(
        dead_code,
        unused_macros,
        reason = "a build without any driver can only say so"
    )
)]

mod args;
#[path = "../support/calls.rs"]
mod calls;
#[path = "../support/drivers.rs"]
mod drivers;
mod figures;
mod json;
mod leavings;
#[path = "../../tests/support/leavings/mod.rs"]
mod leavings_of_callers;
mod neighbour;
#[path = "../support/output.rs"]
mod output;
mod picture;
#[path = "../support/plain.rs"]
mod plain;
mod plan;
#[path = "../../tests/support/postgres/mod.rs"]
mod postgres;
mod report;
mod round;
mod side;
mod steady;
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
use drivers::{Missing, over};
use figures::Figures;
use output::{Json, Line, write};
use plan::{Plan, Siege};
use report::Table;
use round::{Ground, besiege, besiege_plain};
use side::{Driven, Maker};

type Findings = Result<Vec<String>, Box<dyn Error>>;

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
    let done: Result<Findings, Missing> = over!(options.driver, run(&options));
    output::exit(done.unwrap_or_else(|missing| Err(missing.into())))
}

async fn run<D: Driven>(options: &Options) -> Findings {
    match options.leavings {
        Some(wanted) => leave::<D>(options, wanted).await,
        None => sieges::<D>(options).await,
    }
}

async fn leave<D: Driven>(options: &Options, wanted: u32) -> Findings {
    let ground = Ground::find(false).await?;
    eprintln!("{}\nover {}", ground.describe(), options.driver);
    let left = leavings::run::<D>(&ground, wanted).await;
    let gone = ground.leave().await;
    let left = left?;
    gone?;
    println!("{left}");
    Ok(left.findings())
}

async fn sieges<D: Driven>(options: &Options) -> Findings {
    let plan = if options.quick {
        Plan::QUICK
    } else {
        Plan::FULL
    };
    let chosen = |siege: &Siege| options.only.is_none_or(|only| only == *siege);
    let sieges: Vec<_> = Siege::ALL.into_iter().filter(chosen).collect();
    let ground = Ground::find(sieges.contains(&Siege::Restarted)).await?;
    eprintln!("{}\nover {}", ground.describe(), options.driver);
    let ran = all::<D>(&ground, &sieges, &plan).await;
    let version = ground.version().to_owned();
    let gone = ground.leave().await;
    let (sieges, beside) = ran?;
    gone?;
    tell(options, &sieges, &beside, &version)
}

/// All sieges of the partitions, and those of the plain pools.
async fn all<D: Driven>(
    ground: &Ground,
    sieges: &[Siege],
    plan: &Plan,
) -> Result<(Vec<Figures>, Vec<Figures>), Box<dyn Error>> {
    let mut line = Line::default();
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for &siege in sieges {
        let mut rounds = Vec::new();
        for number in 1..=plan.rounds {
            line.show(&format!("{siege}, round {number} of {}", plan.rounds));
            rounds.push(besiege::<D>(ground, siege, plan).await?);
        }
        ours.push(Figures::new(siege, Maker::Partitions, rounds));
    }
    let beside = sieges.iter().filter(|siege| Siege::BESIDE.contains(siege));
    for (&siege, maker) in beside.flat_map(|siege| Maker::PEERS.map(|maker| (siege, maker))) {
        line.show(&format!("{siege}, plain {maker}"));
        let round = besiege_plain::<D>(ground, siege, maker, plan).await?;
        plain.push(Figures::new(siege, maker, vec![round]));
    }
    line.end();
    Ok((ours, plain))
}

fn tell(options: &Options, sieges: &[Figures], beside: &[Figures], version: &str) -> Findings {
    write(&options.svg, &picture::svg(sieges, beside, version))?;
    match &options.json {
        Some(Json::Stdout) => println!("{}", json::json(sieges)),
        Some(Json::File(file)) => write(file, &(json::json(sieges) + "\n"))?,
        None => {}
    }
    let findings: Vec<_> = sieges.iter().flat_map(verdict::judge).collect();
    let verdict = match findings.as_slice() {
        [] => "Every promise was kept.",
        _ => "Not as it must be; see below.",
    };
    let text = format!(
        "\n{}\n{verdict} The picture: {}\n",
        Table { sieges, beside },
        options.svg.display()
    );
    if options.json == Some(Json::Stdout) {
        eprint!("{text}");
    } else {
        print!("{text}");
    }
    Ok(findings.iter().map(ToString::to_string).collect())
}
