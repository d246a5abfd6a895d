//! Does the fleet fit its database? For a pipeline or an init container:
//!
//! `cargo run --example fleet_check -- examples/fleet_check.toml` reads a file, which variables such as
//! `SHOP_DB_URL` override; without a file, everything is in variables (see `PoolConfig::from_env`).
//! Exit code: 0 it fits, 1 it does not, 2 it could not be checked.

use std::process::ExitCode;

use partitioned_pool::config::{ConfigError, PoolConfig};
use partitioned_pool::{PartitionedPool, TokioPostgres};

const PREFIX: &str = "SHOP_DB";

fn config() -> Result<PoolConfig, ConfigError> {
    match std::env::args_os().nth(1) {
        Some(file) => PoolConfig::from_toml_file(file)?.apply_env(PREFIX),
        None => PoolConfig::from_env(PREFIX),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let config = match config() {
        Ok(config) => config,
        Err(error) => return not_checked(error),
    };
    match PartitionedPool::<TokioPostgres>::check(config).await {
        Ok(report) => {
            println!("{report}");
            ExitCode::from(u8::from(!report.fits()))
        }
        Err(error) => not_checked(error),
    }
}

fn not_checked(error: impl std::fmt::Display) -> ExitCode {
    eprintln!("the fleet could not be checked:\n{error}");
    ExitCode::from(2)
}
