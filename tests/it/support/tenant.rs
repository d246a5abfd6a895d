//! A role and a schema of its own for each test, and what the server says of it.

use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use partitioned_pool::config::{FleetCheck, FleetConfig, PartitionConfig, PoolConfig};
use partitioned_pool::{Driver, Partition, PartitionedPool};
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, Error as PgError, NoTls};

use super::patience::{LONG, eventually};
use super::proxy::Proxy;

/// A partition that opens nothing before it must.
pub(crate) fn small(max_connections: u32) -> PartitionConfig {
    PartitionConfig::transactional(max_connections).min_idle(0)
}

/// A role and a schema of the same name, which is also that of the service. A database of its own takes half a
/// second, so a tenant has one only if it asks.
pub(crate) struct Tenant {
    /// The name of role, schema and service.
    pub(crate) name: String,
    /// A session of the server's owner.
    pub(crate) admin: Client,
    owner: Config,
}

impl Tenant {
    /// A new one on the server of which this is the owner's URL.
    pub(crate) async fn new(owner: &str) -> Self {
        Self::try_new(owner).await.unwrap()
    }

    /// The same, for whoever wants to say that there is none.
    ///
    /// # Errors
    /// The server cannot be reached or does not let its owner in, or not over TCP.
    pub(crate) async fn try_new(owner: &str) -> Result<Self, Box<dyn Error>> {
        let owner: Config = owner.parse()?;
        if let Some(Host::Unix(folder)) = owner.get_hosts().first() {
            return Err(format!("a server is needed over TCP, not at {}", folder.display()).into());
        }
        let name = format!("t{:016x}", RandomState::new().hash_one(std::process::id()));
        let admin = connect(&owner).await?;
        let role = format!("CREATE ROLE {name} LOGIN PASSWORD '{name}'");
        let schema = format!("CREATE SCHEMA {name} AUTHORIZATION {name}");
        admin.batch_execute(&role).await?;
        admin.batch_execute(&schema).await?;
        Ok(Self { name, admin, owner })
    }

    /// Makes a database, and gives its URL.
    pub(crate) async fn own_database(&self) -> String {
        let name = &self.name;
        self.sql(&format!("CREATE DATABASE {name} OWNER {name}"))
            .await;
        let (host, port) = (self.host(), self.port());
        format!("postgres://{name}:{name}@{host}:{port}/{name}")
    }

    /// Ends the sessions that are left, and removes all that the tenant has.
    pub(crate) async fn leave(&self) {
        self.try_leave().await.unwrap();
    }

    /// The same, for whoever wants to say that it failed.
    pub(crate) async fn try_leave(&self) -> Result<(), PgError> {
        let name = &self.name;
        self.try_terminate_all().await?;
        for sql in [
            format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"),
            format!("DROP OWNED BY {name} CASCADE"),
            format!("DROP ROLE {name}"),
        ] {
            self.admin.batch_execute(&sql).await?;
        }
        Ok(())
    }

    /// The same tenant with a new session of the server's owner, after a restart.
    pub(crate) async fn again(&self) -> Self {
        Self {
            name: self.name.clone(),
            admin: self.another_admin().await.unwrap(),
            owner: self.owner.clone(),
        }
    }

    /// A further session of the server's owner.
    pub(crate) async fn another_admin(&self) -> Result<Client, PgError> {
        connect(&self.owner).await
    }

    pub(crate) fn host(&self) -> String {
        match &self.owner.get_hosts()[0] {
            Host::Tcp(host) => host.clone(),
            Host::Unix(folder) => panic!("the tests need TCP, not {}", folder.display()),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.owner.get_ports()[0]
    }

    /// The tenant's URL.
    pub(crate) fn url(&self) -> String {
        self.url_at(&self.host(), self.port())
    }

    /// The tenant's URL at another address.
    pub(crate) fn url_at(&self, host: &str, port: u16) -> String {
        let (name, database) = (&self.name, self.owner.get_dbname().unwrap_or("postgres"));
        format!("postgres://{name}:{name}@{host}:{port}/{database}")
    }

    /// The tenant's URL through a proxy.
    pub(crate) fn url_by(&self, proxy: &Proxy) -> String {
        let address: SocketAddr = proxy.address();
        self.url_at(&address.ip().to_string(), address.port())
    }

    /// A proxy before the server.
    pub(crate) async fn proxy(&self) -> Proxy {
        Proxy::start(&self.host(), self.port()).await
    }

    /// A pool of this partition and an analytical one with one connection, unchecked.
    pub(crate) fn config(&self, transactional: PartitionConfig) -> PoolConfig {
        self.config_for(FleetConfig::new(1, 0).mode(FleetCheck::Off), transactional)
    }

    pub(crate) fn config_for(
        &self,
        fleet: FleetConfig,
        transactional: PartitionConfig,
    ) -> PoolConfig {
        PoolConfig::new(&self.name, self.url(), fleet)
            .transactional(transactional)
            .analytical(PartitionConfig::analytical(1))
    }

    /// [`config`](Self::config), connected.
    pub(crate) async fn pool<D: Driver>(
        &self,
        transactional: PartitionConfig,
    ) -> PartitionedPool<D> {
        let config = self.config(transactional);
        PartitionedPool::connect(config).await.unwrap()
    }

    /// The same through a proxy.
    pub(crate) async fn pool_by<D: Driver>(
        &self,
        proxy: &Proxy,
        transactional: PartitionConfig,
    ) -> PartitionedPool<D> {
        let config = self.config(transactional).url(self.url_by(proxy));
        PartitionedPool::connect(config).await.unwrap()
    }

    pub(crate) async fn sql(&self, sql: &str) {
        self.admin.batch_execute(sql).await.unwrap();
    }

    /// Backends of the tenant's sessions.
    pub(crate) async fn backends(&self) -> i64 {
        self.count("true").await
    }

    /// Backends of the tenant's transactional partition.
    pub(crate) async fn transactional_backends(&self) -> i64 {
        self.count("application_name LIKE '%/transactional'").await
    }

    /// Sessions of the tenant of which the server says this.
    pub(crate) async fn count(&self, condition: &str) -> i64 {
        let sql =
            format!("SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND {condition}");
        self.admin
            .query_one(&sql, &[&self.name])
            .await
            .unwrap()
            .get(0)
    }

    /// Waits until a session of the tenant runs a statement that begins like this.
    pub(crate) async fn until_running(&self, statement: &str) {
        let condition = format!("state = 'active' AND query LIKE '{statement}%'");
        let running = async || self.count(&condition).await > 0;
        eventually(&format!("{statement} runs"), running).await;
    }

    /// Waits until no session of the tenant runs anything or has a transaction open.
    pub(crate) async fn until_idle(&self) {
        eventually("every session is idle", async || {
            self.count("state <> 'idle'").await == 0
        })
        .await;
    }

    /// Waits until no session of the tenant is left.
    pub(crate) async fn until_gone(&self) {
        eventually("every backend is gone", async || self.backends().await == 0).await;
    }

    /// Ends every session of the tenant.
    pub(crate) async fn terminate_all(&self) {
        self.try_terminate_all().await.unwrap();
    }

    /// The same, for whoever wants to say that it failed.
    pub(crate) async fn try_terminate_all(&self) -> Result<(), PgError> {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1";
        self.admin.query(sql, &[&self.name]).await.map(drop)
    }
}

/// Waits until nobody holds, waits, opens, returns or closes anything.
pub(crate) async fn until_at_rest<D: Driver>(partition: &Partition<D>) {
    let began = Instant::now();
    loop {
        let status = partition.status();
        if status.in_use + status.waiting == 0 && status.connections() == status.idle {
            return;
        }
        assert!(began.elapsed() < LONG, "not at rest: {status}");
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

async fn connect(config: &Config) -> Result<Client, PgError> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}
