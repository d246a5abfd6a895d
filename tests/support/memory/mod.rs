//! A driver without a database: its connections are made of nothing, and do what their URL says.
//!
//! Shared by `#[path]`, for benchmarks that measure the pool and not a server, and for tests that need
//! a server to do what a real one does once a year. The database name of the URL is what it does:
//! `memory://steady` always works, `memory://mute` never answers a check.

#![allow(
    dead_code,
    reason = "each test and benchmark binary uses its own part of this module"
)]

use std::convert::Infallible;
use std::future::pending;

use deadpool::managed::{Manager, Metrics, RecycleResult};
use partitioned_pool::Driver;
use partitioned_pool::config::{FleetCheck, FleetConfig, PartitionSettings, PoolConfig};
use partitioned_pool::driver::{End, Endpoint, Readiness, Rows};
use partitioned_pool::error::Failure;

/// The URL of a server that always works.
pub(crate) const STEADY: &str = "memory://steady";

/// The URL of another server that always works.
pub(crate) const ELSEWHERE: &str = "elsewhere://steady";

/// The URL of a server that accepts connections and answers no check of them.
pub(crate) const MUTE: &str = "memory://mute";

/// A driver whose connections are made of nothing.
#[derive(Debug)]
pub(crate) struct Memory {
    endpoint: Endpoint,
    mute: bool,
}

/// A connection to nowhere.
#[derive(Debug)]
pub(crate) struct Nothing;

/// The configuration of a pool on it; no fleet is checked, since there is no server to ask.
pub(crate) fn config(url: &str) -> PoolConfig {
    PoolConfig::new("memory", url, FleetConfig::new(1, 0).mode(FleetCheck::Off))
}

impl Manager for Memory {
    type Type = Nothing;
    type Error = Infallible;

    async fn create(&self) -> Result<Nothing, Infallible> {
        Ok(Nothing)
    }

    async fn recycle(&self, _: &mut Nothing, _: &Metrics) -> RecycleResult<Infallible> {
        if self.mute {
            pending::<()>().await;
        }
        Ok(())
    }
}

impl Driver for Memory {
    type Client = Nothing;
    type Options = ();

    fn new(settings: &PartitionSettings, (): &(), _: &[Self]) -> Result<Self, String> {
        let url = settings.url.expose();
        let all = [STEADY, MUTE, ELSEWHERE];
        let Some((hosts, database)) = url.split_once("://").filter(|_| all.contains(&url)) else {
            return Err(format!("is none of {all:?}"));
        };
        let endpoint = Endpoint {
            hosts: hosts.to_owned(),
            user: "nobody".to_owned(),
            database: database.to_owned(),
        };
        Ok(Self {
            endpoint,
            mute: url == MUTE,
        })
    }

    fn tag(&self, _: &str) {}

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn can_dress(&self, other: &Self) -> bool {
        self.endpoint == other.endpoint
    }

    #[inline]
    fn client(connection: &Nothing) -> &Nothing {
        connection
    }

    #[inline]
    fn client_mut(connection: &mut Nothing) -> &mut Nothing {
        connection
    }

    #[inline]
    fn readiness(_: &Nothing) -> Readiness {
        Readiness::Quiet
    }

    async fn settle(&self, _: &mut Nothing) -> Readiness {
        Readiness::Quiet
    }

    async fn reset(&self, _: &mut Nothing) -> Readiness {
        Readiness::Quiet
    }

    async fn close(&self, _: Nothing) -> End {
        End::Seen
    }

    async fn query(&self, _: &mut Nothing, _: &str) -> Result<Rows, Failure> {
        Ok(Rows::new())
    }

    fn failure(error: Infallible) -> Failure {
        match error {}
    }
}
