//! The network that fails on demand and the roles, as the tests have them.

#![allow(dead_code, reason = "each example needs a part of what the tests do")]

#[path = "../../tests/it/support/attempts.rs"]
pub(crate) mod attempts;
#[path = "../../tests/it/support/patience.rs"]
pub(crate) mod patience;
#[path = "../../tests/it/support/proxy.rs"]
pub(crate) mod proxy;
#[path = "../../tests/it/support/tenant.rs"]
pub(crate) mod tenant;
