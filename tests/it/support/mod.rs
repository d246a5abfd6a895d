//! What the tests of the pool share: servers, a tenant for each test, a network that fails on demand.

pub(crate) mod attempts;
pub(crate) mod driver;
pub(crate) mod patience;
pub(crate) mod proxy;
pub(crate) mod sampler;
pub(crate) mod seats;
pub(crate) mod server;
pub(crate) mod tenant;
