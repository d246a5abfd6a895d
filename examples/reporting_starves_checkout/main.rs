//! Fifty slow reports start at once. With one pool for all, checkout fails although nothing of its own is wrong;
//! with a partition for each, it does not notice. On a real Postgres, measured, and an error when it is not so:
//!
//! `cargo run --release --example reporting_starves_checkout`
//!
//! The README's picture is that of a run with `--svg examples/reporting_starves_checkout/scenario.svg`.

mod args;
#[path = "../../tests/support/postgres/mod.rs"]
mod postgres;
mod scenario;

use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use args::{Command, Json, Options};
use scenario::plan::Plan;
use scenario::progress::Progress;
use scenario::report::Table;
use scenario::verdict::{Finding, judge};
use scenario::{json, picture};

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
    match perform(&options).await {
        Ok(findings) if findings.is_empty() => ExitCode::SUCCESS,
        Ok(findings) => {
            findings.iter().for_each(|finding| eprintln!("{finding}"));
            ExitCode::from(1)
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

async fn perform(options: &Options) -> Result<Vec<Finding>, Box<dyn Error>> {
    let plan = if options.quick {
        Plan::QUICK
    } else {
        Plan::FULL
    };
    let server = postgres::start(scenario::want()).await?;
    eprintln!("{}", server.describe());
    let mut line = Line::default();
    let ran = scenario::run(&server, &plan, |progress| line.show(progress)).await;
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
    let verdict = match findings.as_slice() {
        [] => "Isolation held.",
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

fn write(file: &Path, text: &str) -> Result<(), String> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let made = std::fs::create_dir_all(folder);
    let written = made.and_then(|()| std::fs::write(file, text));
    written.map_err(|error| format!("{} cannot be written: {error}", file.display()))
}

/// Progress on standard error: one line that changes on a terminal, and one line each elsewhere.
#[derive(Default)]
struct Line {
    shown: bool,
}

impl Line {
    fn show(&mut self, progress: &Progress) {
        let mut stderr = io::stderr();
        // Nobody needs a run to stop because its progress cannot be shown.
        let _ = if stderr.is_terminal() {
            self.shown = true;
            write!(stderr, "\r\x1b[K{progress}").and_then(|()| stderr.flush())
        } else {
            writeln!(stderr, "{progress}")
        };
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprintln!();
        }
    }
}
