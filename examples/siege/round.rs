//! One round of one siege.

use std::error::Error;
use std::time::Duration;

use partitioned_pool::PartitionedPool;
use partitioned_pool::config::{FleetCheck, FleetConfig, PartitionConfig, PoolConfig};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::figures::{Outage, Round, Steadiness, Stretch};
use crate::neighbour::{Callers, Manners, Neighbour};
use crate::plan::{ACQUIRE, Baseline, MAX_HOLD, Plan, SETTLE, SIZE, Siege, WAITERS};
use crate::postgres::{self, Choice, Kind, Postgres, Want};
use crate::side::{Driven, Maker, Side};
use crate::steady::Steady;
use crate::support::attempts::Attempts;
use crate::support::proxy::{Fault, Proxy};
use crate::support::tenant::Tenant;
use crate::watch::{Seen, Watch};

type Failed = Box<dyn Error>;

/// Between two phases of a round.
const BREATH: Duration = Duration::from_millis(300);
/// Between two times that all backends of the neighbour are terminated.
const KILL: Duration = Duration::from_millis(100);
/// The regular look at who holds too long comes once a second; those who do are taken away 100 ms apart; and a
/// moment for what follows.
const LOOK: Duration = Duration::from_millis(2_500);
/// How long a pool may take to close.
const CLOSE: Duration = Duration::from_secs(5);
/// How long the callers wait who come when a siege is over.
const PATIENCE: Duration = Duration::from_secs(5);

/// The servers, and the roles on them.
pub(crate) struct Ground {
    server: Postgres,
    tenant: Tenant,
    /// For the neighbour whose server is restarted.
    other: Option<(Postgres, Tenant)>,
}

impl Ground {
    /// Starts one server, and a second one if it is to be restarted.
    pub(crate) async fn find(with_another: bool) -> Result<Self, Failed> {
        let server = postgres::start(Want::default()).await?;
        let tenant = settle_on(&server).await?;
        let other = match with_another {
            true => Some(another().await?),
            false => None,
        };
        Ok(Self {
            server,
            tenant,
            other,
        })
    }

    /// The servers in words.
    pub(crate) fn describe(&self) -> String {
        let other = self.other.as_ref();
        let other = other.map_or(String::new(), |(server, _)| {
            format!("\nto be restarted: {}", server.describe())
        });
        self.server.describe() + &other
    }

    /// The version of the server.
    pub(crate) fn version(&self) -> &str {
        self.server.version()
    }

    /// The role of the calls.
    pub(crate) fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// A watch over all connections of the role.
    pub(crate) fn watch(&self) -> Watch {
        Watch::start(self.server.url(), &self.tenant.name)
    }

    /// Removes what was made on a server that stays.
    ///
    /// # Errors
    /// It is still there.
    pub(crate) async fn leave(self) -> Result<(), Failed> {
        Ok(self.tenant.try_leave().await?)
    }

    /// Both roles, where there are two.
    fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        let other = self.other.iter().map(|(_, tenant)| tenant);
        std::iter::once(&self.tenant).chain(other)
    }

    /// Sessions of which the servers say this.
    async fn count(&self, condition: &str) -> Result<u32, Failed> {
        let sql =
            format!("SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND {condition}");
        let mut sum = 0;
        for tenant in self.tenants() {
            // The session from before a restart is gone.
            let admin = tenant.another_admin().await?;
            let count: i64 = admin.query_one(&sql, &[&tenant.name]).await?.get(0);
            sum += u32::try_from(count)?;
        }
        Ok(sum)
    }

    /// Connections that are still there after some patience.
    async fn left(&self) -> Result<u32, Failed> {
        let until = Instant::now() + CLOSE;
        loop {
            match self.count("true").await? {
                left if left == 0 || Instant::now() > until => return Ok(left),
                _ => sleep(BREATH).await,
            }
        }
    }
}

/// A server of ours: one that the user named is not ours to restart.
async fn another() -> Result<(Postgres, Tenant), Failed> {
    let found = Choice::from_env()?;
    let choice = Choice {
        url: None,
        only: found.only.filter(|only| *only != Kind::Url),
        ..found
    };
    let server = postgres::start_as(&choice, &Want::default()).await?;
    let tenant = settle_on(&server).await?;
    Ok((server, tenant))
}

async fn settle_on(server: &Postgres) -> Result<Tenant, Failed> {
    let tenant = Tenant::try_new(server.url()).await?;
    let name = &tenant.name;
    let table =
        format!("CREATE TABLE {name}.told (t text); ALTER TABLE {name}.told OWNER TO {name}");
    tenant.admin.batch_execute(&table).await?;
    Ok(tenant)
}

/// What else happens to the neighbour than its callers.
enum Trouble<'a> {
    None,
    Kill(&'a Tenant),
    CutOff(&'a Proxy),
    Restart(&'a Postgres),
}

impl Trouble<'_> {
    /// Makes trouble for so long; a restart may take longer.
    async fn make(&self, lasts: Duration) -> Result<(), Failed> {
        match self {
            Self::None => sleep(lasts).await,
            Self::Kill(tenant) => match timeout(lasts, kill(tenant)).await {
                Ok(ended) => ended?,
                Err(_elapsed) => {}
            },
            Self::CutOff(proxy) => {
                proxy.set(Fault::Pause);
                sleep(lasts).await;
                proxy.set(Fault::None);
            }
            Self::Restart(server) => {
                let end = Instant::now() + lasts;
                sleep(lasts / 4).await;
                server.restart().await?;
                sleep_until(end).await;
            }
        }
        Ok(())
    }
}

/// Ends only by an error.
async fn kill(tenant: &Tenant) -> Result<(), tokio_postgres::Error> {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE usename = $1 AND application_name LIKE '%/analytical'";
    let statement = tenant.admin.prepare(sql).await?;
    loop {
        tenant.admin.execute(&statement, &[&tenant.name]).await?;
        sleep(KILL).await;
    }
}

/// Both sides of the wall, and what is done to one of them.
struct Field<'a, D: Driven> {
    ground: &'a Ground,
    plan: &'a Plan,
    steady: Side<D>,
    neighbour: Neighbour<D>,
    trouble: Trouble<'a>,
}

/// One round of a siege of partitions.
pub(crate) async fn besiege<D: Driven>(
    ground: &Ground,
    siege: Siege,
    plan: &Plan,
) -> Result<Round, Failed> {
    let tenant = &ground.tenant;
    let proxy = tenant.proxy().await;
    let (url, trouble) = match (siege, &ground.other) {
        (Siege::CutOff, _) => (tenant.url_by(&proxy), Trouble::CutOff(&proxy)),
        (Siege::Killed, _) => (tenant.url(), Trouble::Kill(tenant)),
        (Siege::Restarted, Some((server, other))) => (other.url(), Trouble::Restart(server)),
        _ => (tenant.url(), Trouble::None),
    };
    let attempts = Attempts::default();
    let pool = partitions::<D>(tenant, siege, url, &attempts).await?;
    let field = Field {
        ground,
        plan,
        steady: Side::Partition(pool.transactional().clone()),
        neighbour: Neighbour::new(Side::Partition(pool.analytical().clone()), siege),
        trouble,
    };
    let round = field.round().await;
    let report = pool.close(CLOSE).await;
    if !report.is_drained() {
        return Err(format!("the pool does not close: {report}").into());
    }
    let left = ground.left().await?;
    let outage = (siege == Siege::Restarted).then(|| Outage::of(&attempts));
    Ok(Round {
        left,
        outage,
        ..round?
    })
}

async fn partitions<D: Driven>(
    tenant: &Tenant,
    siege: Siege,
    url: String,
    attempts: &Attempts,
) -> Result<PartitionedPool<D>, Failed> {
    let neighbour = PartitionConfig::analytical(SIZE)
        .url(url)
        .max_waiters(WAITERS)
        .acquire_timeout(ACQUIRE);
    let neighbour = match siege {
        Siege::Leaking => neighbour.max_hold(MAX_HOLD),
        _ => neighbour,
    };
    let fleet = FleetConfig::new(1, 0).mode(FleetCheck::Off);
    let config = PoolConfig::new(&tenant.name, tenant.url(), fleet)
        .transactional(PartitionConfig::transactional(SIZE))
        .analytical(neighbour);
    let builder = PartitionedPool::builder(config).observer(attempts.clone());
    Ok(builder.connect().await?)
}

/// The same siege of two plain pools of the same sizes.
pub(crate) async fn besiege_plain<D: Driven>(
    ground: &Ground,
    siege: Siege,
    maker: Maker,
    plan: &Plan,
) -> Result<Round, Failed> {
    let url = ground.tenant.url();
    let side = |name| Side::<D>::plain(maker, &url, name);
    let (steady, neighbour) = (side("plain/steady")?, side("plain/neighbour")?);
    let field = Field {
        ground,
        plan,
        steady: steady.clone(),
        neighbour: Neighbour::new(neighbour.clone(), siege),
        trouble: Trouble::None,
    };
    let round = field.round().await;
    // Their queries would go on for long.
    ground.tenant.try_terminate_all().await?;
    steady.close(BREATH).await;
    neighbour.close(BREATH).await;
    ground.tenant.try_terminate_all().await?;
    ground.left().await?;
    round
}

impl<D: Driven> Field<'_, D> {
    async fn round(&self) -> Result<Round, Failed> {
        let ground = self.ground;
        let watch = ground.watch();
        let another = match (self.neighbour.siege, &ground.other) {
            (Siege::Restarted, Some((server, tenant))) => {
                Some(Watch::start(server.url(), &tenant.name))
            }
            _ => None,
        };
        let steady = Steady::start(&self.steady);
        sleep(self.plan.warm_up).await;
        let baseline = self.baseline().await;
        let callers = Callers::start(&self.neighbour, Manners::Bad);
        let from = Instant::now();
        let trouble = self.trouble.make(self.plan.siege).await;
        let to = Instant::now();
        let neighbour = callers.leave().await;
        let calls = steady.stop().await;
        trouble?;
        let (orphans_after, in_use_after) = self.left_behind(to).await?;
        let usable = self.usable().await;
        self.neighbour.give_back();
        let (seen, looks_a_second) = both(&watch, another.as_ref());
        Ok(Round {
            baseline: Steadiness::of(&calls, baseline),
            steady: Steadiness::of(&calls, Stretch { from, to }),
            neighbour,
            seen,
            looks_a_second,
            in_use_after,
            orphans_after,
            usable,
            left: 0,
            outage: None,
        })
    }

    async fn baseline(&self) -> Stretch {
        let siege = self.neighbour.siege;
        let behaved = siege.baseline() == Baseline::Behaved;
        let callers = behaved.then(|| Callers::start(&self.neighbour, Manners::Good));
        sleep(BREATH).await;
        let from = Instant::now();
        sleep(self.plan.baseline).await;
        let to = Instant::now();
        if let Some(callers) = callers {
            callers.leave().await;
            sleep(BREATH).await;
        }
        Stretch { from, to }
    }

    /// Queries that still run, and slots that are still taken, a second after the end. Where max_hold takes them
    /// away, the slots are counted when it must have done so, with their owners still holding on.
    async fn left_behind(&self, end: Instant) -> Result<(u32, u32), Failed> {
        sleep_until(end + SETTLE).await;
        let since = "state <> 'idle' AND state_change < now() - interval '500 ms'";
        let orphans = self.ground.count(since).await?;
        if self.neighbour.siege == Siege::Leaking {
            sleep_until(end + MAX_HOLD + LOOK).await;
        }
        Ok((orphans, self.neighbour.side.taken()))
    }

    async fn usable(&self) -> Option<Duration> {
        let began = Instant::now();
        let mut callers = JoinSet::new();
        for _ in 0..SIZE {
            let side = self.neighbour.side.clone();
            callers.spawn(async move { side.sleep(Duration::from_millis(1), PATIENCE).await });
        }
        let answers = callers.join_all().await;
        let ok = |outcome| outcome == crate::calls::Outcome::Ok;
        answers.into_iter().all(ok).then(|| began.elapsed())
    }
}

/// What was seen on both servers: the most of each, though they need not have come together. The other is not
/// looked at while it is down, so its looks are not held against it.
fn both(watch: &Watch, another: Option<&Watch>) -> (Seen, f64) {
    let (mut seen, looks) = watch.seen();
    let other = another.map(|another| another.seen().0);
    seen.most += other.map_or(0, |other| other.most);
    seen.control += other.map_or(0, |other| other.control);
    (seen, looks)
}
