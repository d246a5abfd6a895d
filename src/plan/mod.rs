//! Sizes before a deploy: formulas, a simulator that runs the pool's own admission rule, the published
//! runs that it reproduces, and a diagnosis from figures.
//!
//! - [`formulas`]: Little's law, Erlang B, M/M/c/K, in whole nanoseconds.
//! - [`simulator`]: flows of calls over a virtual clock, through the same
//!   [`Ledger`](crate::admission::Ledger) that runs in the pool. What is simulated and what the pool does
//!   cannot drift apart.
//! - [`mod@reference`]: two published models, with every setting open, and their published figures.
//! - [`planner`]: sizes for a service, each with its reason, and what is wrong with sizes that are given.
//! - [`diagnosis`]: what is wrong with a partition, from its figures over a window, live or simulated.
//!
//! All of it is pure: no clock, no runtime, no files. The same input gives the same result on every
//! machine: logarithms and the like come from `libm`, and random numbers from a generator that is stated.

pub mod diagnosis;
mod figures;
pub mod formulas;
mod number;
pub mod planner;
pub mod reference;
pub mod simulator;

pub use figures::{Ages, Level, Refused};
