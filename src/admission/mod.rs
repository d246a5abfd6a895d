//! The admission rule: who gets a slot, who waits, and who is refused.
//!
//! Everything here is pure: it takes `now` as a [`Duration`](std::time::Duration) since an origin of
//! the caller's choice, reads no clock, and knows no driver and no runtime. The pool drives it through
//! [`Bulkhead`](crate::bulkhead::Bulkhead), the [simulator](crate::plan::simulator) the very same code
//! over a virtual clock.

mod estimate;
mod holds;
mod ledger;
mod queue;
mod rules;
mod totals;

pub use ledger::{
    Admission, Cause, Figures, Grant, Hold, HoldId, Ledger, Patience, Refusal, Ticket,
};
pub use rules::{ClassId, ClassRules, HandOver, InvalidRules, Rules};
pub use totals::Totals;
