//! `partitioned-pool fleet check`.

use clap::Args;
use partitioned_pool::fleet::FleetReport;
use serde_json::Value;

use super::input::Input;
use crate::output::{Answer, Stop};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    input: Input,
    /// Prints one JSON object instead of a text.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &Options) -> Result<Answer, Stop> {
    let offline = options.input.is_offline();
    let report = options.input.check()?.report;
    let fits = report.fits();
    Ok(match options.json {
        true => Answer::of(json(&report, offline)?, fits),
        false => Answer::of(text(&report, offline), fits),
    })
}

/// For a terminal.
pub(super) fn text(report: &FleetReport, offline: bool) -> String {
    let asked = match offline {
        true => "\nThe limits are as stated; no server was asked.\n",
        false => "",
    };
    format!("{report}{asked}")
}

fn json(report: &FleetReport, offline: bool) -> Result<Value, Stop> {
    let mut json = serde_json::to_value(report).map_err(Stop::new)?;
    json["offline"] = offline.into();
    Ok(json)
}
