//! What the tests of the pool share: servers, a tenant for each test, a pooler, a network that fails on demand.

pub(crate) mod attempts;
#[cfg(feature = "tls")]
pub(crate) mod certificates;
pub(crate) mod driver;
pub(crate) mod log;
pub(crate) mod patience;
pub(crate) mod pgbouncer;
pub(crate) mod proxy;
pub(crate) mod sampler;
pub(crate) mod seats;
pub(crate) mod server;
pub(crate) mod tenant;
