//! Two published models of bulkheads, run through the ledger of the pool.
//!
//! [`TenWorkers`] asks what reserving and borrowing do in an incident; [`TwoFlows`] asks what a split
//! costs on an ordinary day and saves in a slowdown. Their defaults are the published settings, and give
//! the published figures, [`PUBLISHED`], to the digit. Every setting is a field, and can be read from a
//! file with serde.
//!
//! # Examples
//! ```
//! use partitioned_pool::plan::reference::TenWorkers;
//!
//! // One shared pool of ten: slow searches leave one payment in six.
//! let shared = TenWorkers::shared().run()?;
//! assert_eq!(format!("{:.1}", shared.flows[1].started_percent()), "15.8");
//! // Six workers that are payments' own: every one of them is served.
//! let fixed = TenWorkers::fixed(4).run()?;
//! assert_eq!(fixed.flows[1].refused.total(), 0);
//! # Ok::<(), partitioned_pool::plan::reference::InvalidModel>(())
//! ```

mod invalid;
mod lehmer;
mod ten_workers;
mod two_flows;

pub use invalid::InvalidModel;
pub use ten_workers::{TenWorkers, WorkerClass};
pub use two_flows::{BurstyFlow, BurstyRun, Day, Layout, Rescued, TwoFlows};

/// The published figures with the rules of their models, as JSON.
pub const PUBLISHED: &str = include_str!("published.json");
