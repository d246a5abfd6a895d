//! From what was stated to what is: every check, every default, every problem at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    time::Duration,
};

use super::{
    PoolConfig,
    boot::{BootConfig, DEFAULT_CHECK_TIMEOUT, WhenUnavailable, Word},
    defaults::Defaults,
    error::{ConfigError, Problem, printable},
    fleet::{ExternalPool, FleetConfig},
    leaf::{Named, POOLER, is_name},
    limit::Limit,
    partition::{ANALYTICAL, Kind, PartitionConfig, TRANSACTIONAL},
    pooler::{PoolerConfig, PoolerMode},
    rules::{self, Checked},
    seats::{DEFAULT_LEASE, DEFAULT_TABLE, SeatsConfig},
    session::{self, SessionConfig},
    settings::{
        BootSettings, ExternalSettings, FleetSettings, PartitionSettings, PoolerSettings,
        SeatsSettings, Settings,
    },
    sharing,
    url::DatabaseUrl,
};

const STATE_URL: &str =
    "counts only where a url is stated: state it beside the url that leads to the pooler";

const STATE_SIZE: &str = "state max_connections; there is no default size";

impl PoolConfig {
    /// Checks the whole configuration and fills in the [`Defaults`].
    ///
    /// # Errors
    /// Everything that is wrong, at once: what must be stated and is not (`service`, a URL, `max_replicas`,
    /// `surge`, `max_connections` of `transactional` and `analytical`), values out of their range, timeouts of 0,
    /// names that are not unique or break the rule, an `application_name` that Postgres would cut off, and budgets
    /// that their partitions cannot share: see [`BudgetConfig`](super::BudgetConfig).
    ///
    /// # Examples
    /// ```
    /// use partitioned_pool::config::{FleetConfig, PartitionConfig, PoolConfig};
    ///
    /// let error = PoolConfig::new("shop", "postgres://shop@db/shop", FleetConfig::new(3, 1))
    ///     .transactional(PartitionConfig::transactional(20))
    ///     .resolve()
    ///     .unwrap_err();
    /// assert_eq!(error.problems()[0].field, "partition.analytical.max_connections");
    /// ```
    pub fn resolve(&self) -> Result<Settings, ConfigError> {
        let mut check = Check {
            config: self,
            common_pooler: None,
            problems: self.misplaced.clone(),
        };
        let (service, fleet, boot) = (
            check.service(),
            check.fleet(&self.fleet),
            check.boot(&self.boot),
        );
        check.common_pooler = check.pooler_of_the_pool();
        let stated = sharing::stated(&mut check, &self.budgets);
        let partitions = check.partitions();
        let budgets = sharing::budgets(&mut check, &stated, &self.partitions, &partitions);
        check.seats_behind_a_pooler(&partitions);
        let settings = Settings {
            service,
            fleet,
            boot,
            partitions,
            budgets,
        };
        ConfigError::check(check.problems)?;
        Ok(settings)
    }
}

/// The checks, with the problems found so far. After a problem, a check goes on with some other value: it is
/// never seen, because `resolve` then ends with the problems.
pub(super) struct Check<'a> {
    config: &'a PoolConfig,
    common_pooler: Option<PoolerSettings>,
    problems: Vec<Problem>,
}

impl Check<'_> {
    pub(super) fn accept<T>(&mut self, field: &str, checked: Checked<T>) -> Option<T> {
        checked.map_err(|problem| self.report(field, problem)).ok()
    }

    pub(super) fn report(&mut self, field: &str, problem: impl Into<String>) {
        let mut problem = Problem::new(field, problem);
        problem.origin = self.config.origins.find(field);
        self.problems.push(problem);
    }

    fn service(&mut self) -> String {
        let names = self
            .config
            .partitions
            .iter()
            .filter_map(Named::name)
            .filter(|name| is_name(name));
        let always = [TRANSACTIONAL, ANALYTICAL];
        let service = rules::service(
            self.config.service.as_deref(),
            always.into_iter().chain(names),
            self.config.fleet.seats.is_some(),
        );
        let service = self.accept("service", service).unwrap_or_default();
        self.common_url();
        service
    }

    fn common_url(&mut self) {
        let partitions = &self.config.partitions;
        match &self.config.url {
            Some(url) => _ = self.accept("url", rules::url(url)),
            None if !partitions.is_empty()
                && partitions.iter().all(|partition| partition.url.is_some()) => {}
            None => self.report(
                "url",
                "state the connection URL, here or for each partition",
            ),
        }
    }

    /// The pooler of the pool, which counts where its URL does.
    fn pooler_of_the_pool(&mut self) -> Option<PoolerSettings> {
        let pooler = self.config.pooler.as_ref()?;
        if self.config.url.is_none() {
            self.report(POOLER, STATE_URL);
        }
        Some(self.pooler(pooler, POOLER))
    }

    fn pooler(&mut self, pooler: &PoolerConfig, path: &str) -> PoolerSettings {
        let PoolerConfig {
            mode,
            max_client_conn,
            default_pool_size,
            max_db_connections,
        } = pooler;
        let field = |name: &str| format!("{path}.{name}");
        let mode = mode.ok_or_else(|| "state \"session\" or \"transaction\"".to_owned());
        let mode = self.accept(&field("mode"), mode);
        let clients = rules::size(
            *max_client_conn,
            "state the client connections that it takes; there is no default",
        );
        let clients = self.accept(&field("max_client_conn"), clients);
        let size = rules::pool_size(mode, *default_pool_size);
        let most = rules::pool_limit(mode, *max_db_connections);
        PoolerSettings {
            mode: mode.unwrap_or(PoolerMode::Session),
            max_client_conn: clients.unwrap_or(NonZeroU32::MIN),
            default_pool_size: self.accept(&field("default_pool_size"), size).flatten(),
            max_db_connections: self.accept(&field("max_db_connections"), most).flatten(),
        }
    }

    fn fleet(&mut self, fleet: &FleetConfig) -> FleetSettings {
        let FleetConfig {
            max_replicas,
            surge,
            reserve,
            external,
            mode,
            seats,
        } = fleet;
        let replicas = rules::size(
            *max_replicas,
            "state the most replicas that can run; there is no default",
        );
        let missing =
            "state how many more replicas run during a deploy (0 if none); there is no default";
        FleetSettings {
            max_replicas: self
                .accept("fleet.max_replicas", replicas)
                .unwrap_or(NonZeroU32::MIN),
            surge: self
                .accept("fleet.surge", rules::connections(*surge, missing))
                .unwrap_or_default(),
            reserve: self
                .accept("fleet.reserve", rules::connections(reserve.or(Some(0)), ""))
                .unwrap_or_default(),
            external: self.external_pools(external),
            mode: mode.unwrap_or_default(),
            seats: seats.as_ref().map(|seats| self.seats(seats)),
        }
    }

    fn seats(&mut self, seats: &SeatsConfig) -> SeatsSettings {
        let SeatsConfig {
            count,
            lease,
            wait,
            table,
            url,
        } = seats;
        let lease = rules::lease(lease.unwrap_or(DEFAULT_LEASE));
        let lease = self.accept("fleet.seats.lease", lease).unwrap_or_default();
        let wait = rules::client_limit(wait.unwrap_or(Limit::After(lease * 2)));
        let table = rules::table(table.as_deref().unwrap_or(DEFAULT_TABLE));
        let count = self.accept("fleet.seats.count", rules::seats(*count));
        SeatsSettings {
            count: count.unwrap_or(NonZeroU32::MIN),
            lease,
            wait: match lease.is_zero() {
                true => None,
                false => self.accept("fleet.seats.wait", wait).flatten(),
            },
            table: self.accept("fleet.seats.table", table).unwrap_or_default(),
            url: self.seats_url(url.as_ref()),
        }
    }

    /// The sessions of a seat are known by their names, which behind a transaction pooler belong to nobody.
    fn seats_behind_a_pooler(&mut self, partitions: &[PartitionSettings]) {
        let pooled = partitions
            .iter()
            .find(|partition| !partition.has_sessions());
        if let Some(PartitionSettings { name, .. }) =
            pooled.filter(|_| self.config.fleet.seats.is_some())
        {
            let problem = format!(
                "do not go with a pooler in transaction mode, as before the partition {name}: its server connections \
                 are nobody's own. Let its limits bound the fleet, or connect to Postgres directly"
            );
            self.report("fleet.seats", problem);
        }
    }

    /// Its own, that of the pool, or that of `transactional`.
    fn seats_url(&mut self, own: Option<&DatabaseUrl>) -> DatabaseUrl {
        own.and_then(|url| self.accept("fleet.seats.url", rules::url(url)));
        let mut partitions = self.config.partitions.iter();
        let transactional = partitions.find(|p| p.name() == Some(TRANSACTIONAL));
        let url = own
            .or(self.config.url.as_ref())
            .or_else(|| transactional?.url.as_ref());
        url.cloned().unwrap_or_else(|| DatabaseUrl::from(""))
    }

    fn external_pools(&mut self, pools: &[ExternalPool]) -> Vec<ExternalSettings> {
        self.unique(pools);
        pools
            .iter()
            .enumerate()
            .map(|(index, pool)| self.external(pool, &pool.path(index)))
            .collect()
    }

    fn external(&mut self, pool: &ExternalPool, path: &str) -> ExternalSettings {
        let ExternalPool {
            name,
            size,
            role,
            database,
        } = pool;
        let field = |name: &str| format!("{path}.{name}");
        let size = rules::size(*size, "state how many connections it has in each replica");
        ExternalSettings {
            name: self
                .accept(&field("name"), rules::name(name.as_deref()))
                .unwrap_or_default(),
            size: self.accept(&field("size"), size).unwrap_or(NonZeroU32::MIN),
            role: self
                .accept(&field("role"), rules::identifier(role.as_deref()))
                .flatten(),
            database: self
                .accept(&field("database"), rules::identifier(database.as_deref()))
                .flatten(),
        }
    }

    fn boot(&mut self, boot: &BootConfig) -> BootSettings {
        let timeout = rules::wait(boot.check_timeout.unwrap_or(DEFAULT_CHECK_TIMEOUT));
        BootSettings {
            when_unavailable: self.when_unavailable(boot),
            check_timeout: self
                .accept("boot.check_timeout", timeout)
                .unwrap_or_default(),
            silence: boot.silence.iter().flatten().copied().collect(),
        }
    }

    fn when_unavailable(&mut self, boot: &BootConfig) -> WhenUnavailable {
        let bound = boot.wait.map(rules::wait);
        match (boot.when_unavailable.unwrap_or_default(), bound) {
            (Word::Fail, None) => WhenUnavailable::Fail,
            (Word::Start, None) => WhenUnavailable::Start,
            (Word::Wait, Some(bound)) => {
                WhenUnavailable::Wait(self.accept("boot.wait", bound).unwrap_or_default())
            }
            (Word::Wait, None) => {
                self.report(
                    "boot.wait",
                    "state how long to wait at most, such as \"30s\"",
                );
                WhenUnavailable::Fail
            }
            (Word::Fail | Word::Start, Some(_)) => {
                self.report(
                    "boot.wait",
                    "counts only with when_unavailable = \"wait\"; state that, or leave this out",
                );
                WhenUnavailable::Fail
            }
        }
    }

    fn partitions(&mut self) -> Vec<PartitionSettings> {
        let partitions = &self.config.partitions;
        self.unique(partitions);
        for always in [TRANSACTIONAL, ANALYTICAL] {
            if !partitions
                .iter()
                .any(|partition| partition.name() == Some(always))
            {
                self.report(&format!("partition.{always}.max_connections"), STATE_SIZE);
            }
        }
        let indexed = partitions.iter().enumerate();
        indexed
            .map(|(index, partition)| self.partition(partition, &partition.path(index)))
            .collect()
    }

    fn partition(&mut self, partition: &PartitionConfig, path: &str) -> PartitionSettings {
        let mut of = Fields { check: self, path };
        let name = of
            .accept("name", rules::name(partition.name()))
            .unwrap_or_default();
        let kind = rules::kind(partition.name(), partition.kind);
        let kind = of.accept("kind", kind).unwrap_or(Kind::Transactional);
        let size = rules::size(partition.max_connections, STATE_SIZE);
        let size = of.accept("max_connections", size);
        let own = partition;
        let other = Defaults::of(kind);
        let reserved = of.reserved(own, size);
        let pooler = of.pooler(own);
        let reset_session = own.reset_session.unwrap_or(other.reset_session);
        let reset_session = rules::reset_session(reset_session, pooler.as_ref());
        PartitionSettings {
            kind,
            url: of.url(own.url.as_ref()),
            pooler,
            application_name: of.application_name(&name),
            name,
            max_connections: size.unwrap_or(NonZeroU32::MIN),
            reserved: reserved.unwrap_or_default(),
            max_waiters: of.max_waiters(own.max_waiters, other, size),
            acquire_timeout: of.wait(
                "acquire_timeout",
                own.acquire_timeout,
                other.acquire_timeout,
            ),
            connect_timeout: of.wait(
                "connect_timeout",
                own.connect_timeout,
                other.connect_timeout,
            ),
            statement_timeout: of.server(
                "statement_timeout",
                own.statement_timeout,
                other.statement_timeout,
            ),
            lock_timeout: of.server("lock_timeout", own.lock_timeout, other.lock_timeout),
            idle_in_transaction_session_timeout: of.server(
                "idle_in_transaction_session_timeout",
                own.idle_in_transaction_session_timeout,
                other.idle_in_transaction_session_timeout,
            ),
            transaction_timeout: of.server(
                "transaction_timeout",
                own.transaction_timeout,
                other.transaction_timeout,
            ),
            hold_warning: of.client("hold_warning", own.hold_warning, other.hold_warning),
            max_hold: of.client("max_hold", own.max_hold, other.max_hold),
            idle_timeout: of.client("idle_timeout", own.idle_timeout, other.idle_timeout),
            max_lifetime: of.client("max_lifetime", own.max_lifetime, other.max_lifetime),
            min_idle: of.min_idle(own, other, size, reserved),
            validate_after_idle: of.client(
                "validate_after_idle",
                own.validate_after_idle,
                other.validate_after_idle,
            ),
            reset_session: of
                .accept("reset_session", reset_session)
                .unwrap_or_default(),
            caller_deadline: own
                .caller_deadline
                .and_then(|deadline| of.accept("caller_deadline", rules::wait(deadline))),
            session_settings: of.session_settings(&own.settings),
        }
    }

    /// A name twice is a problem of its own; names that break the rule are reported apart.
    pub(super) fn unique<T: Named>(&mut self, list: &[T]) {
        let mut seen = BTreeSet::new();
        let mut reported = BTreeSet::new();
        for (index, item) in list.iter().enumerate() {
            let name = item.name().filter(|name| is_name(name));
            if name.is_some_and(|name| !seen.insert(name) && reported.insert(name)) {
                self.report(
                    &item.path(index),
                    "is stated more than once; names are unique",
                );
            }
        }
    }
}

/// The checks of one partition, each of which names its field.
struct Fields<'c, 'a> {
    check: &'c mut Check<'a>,
    path: &'c str,
}

impl Fields<'_, '_> {
    fn accept<T>(&mut self, field: &str, checked: Checked<T>) -> Option<T> {
        self.check
            .accept(&format!("{}.{field}", self.path), checked)
    }

    fn url(&mut self, own: Option<&DatabaseUrl>) -> DatabaseUrl {
        own.and_then(|url| self.accept("url", rules::url(url)));
        let url = own.or(self.check.config.url.as_ref());
        url.cloned().unwrap_or_else(|| DatabaseUrl::from(""))
    }

    fn pooler(&mut self, own: &PartitionConfig) -> Option<PoolerSettings> {
        match (&own.url, &own.pooler) {
            (Some(_), pooler) => {
                let path = format!("{}.{POOLER}", self.path);
                pooler
                    .as_ref()
                    .map(|pooler| self.check.pooler(pooler, &path))
            }
            (None, Some(_)) => {
                self.accept::<()>(POOLER, Err(STATE_URL.to_owned()));
                None
            }
            (None, None) => self.check.common_pooler.clone(),
        }
    }

    fn application_name(&self, name: &str) -> String {
        let service = self.check.config.service.as_deref();
        rules::application_name(service.unwrap_or_default(), name)
    }

    fn reserved(&mut self, own: &PartitionConfig, size: Option<NonZeroU32>) -> Option<u32> {
        let size = size.map(NonZeroU32::get);
        let reserved = match own.budget {
            Some(_) => rules::reserved_shared(own.reserved, size),
            None => rules::reserved_alone(own.reserved, size),
        };
        self.accept("reserved", reserved)
    }

    fn max_waiters(&mut self, own: Option<u32>, other: &Defaults, size: Option<NonZeroU32>) -> u32 {
        let default = size.map(|size| other.max_waiters(size.get()));
        let waiters = rules::waiters(own.or(default).unwrap_or_default());
        self.accept("max_waiters", waiters).unwrap_or_default()
    }

    /// Filling must never take what another partition could borrow, unless the owner wants that.
    fn min_idle(
        &mut self,
        own: &PartitionConfig,
        other: &Defaults,
        size: Option<NonZeroU32>,
        reserved: Option<u32>,
    ) -> u32 {
        let size = size.map(NonZeroU32::get);
        let default = size.map(|size| other.min_idle(size).min(reserved.unwrap_or_default()));
        let min_idle = rules::at_most_max(own.min_idle.or(default).unwrap_or_default(), size);
        self.accept("min_idle", min_idle).unwrap_or_default()
    }

    fn session_settings(&mut self, own: &SessionConfig) -> BTreeMap<String, String> {
        let mut settings = BTreeMap::new();
        for (name, value) in own.iter() {
            let field = format!("{}.{}", session::TABLE, printable(name));
            settings.extend(self.accept(&field, session::checked(name, value)));
        }
        settings
    }

    fn wait(&mut self, field: &str, own: Option<Duration>, other: Duration) -> Duration {
        self.accept(field, rules::wait(own.unwrap_or(other)))
            .unwrap_or_default()
    }

    fn server(&mut self, field: &str, own: Option<Limit>, other: Limit) -> Option<Duration> {
        self.accept(field, rules::server_limit(own.unwrap_or(other)))
            .flatten()
    }

    fn client(&mut self, field: &str, own: Option<Limit>, other: Limit) -> Option<Duration> {
        self.accept(field, rules::client_limit(own.unwrap_or(other)))
            .flatten()
    }
}
