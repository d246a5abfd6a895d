//! The promises about speed, measured: `cargo bench --bench ratios`, or with `-- --check` to fail when
//! one is not kept.
//!
//! Each figure is the ratio of two medians from one run, in which rounds of both sides alternate, so
//! that whatever else the machine does falls on both. On a busy machine with few processors, where a
//! backend runs decides more than the pool does: then keep all of it on one, with `taskset -c 0` before
//! the command and a Postgres of local binaries. `benches/acquire.rs` has the absolute figures.

mod peers;

use std::fmt;
use std::future::Future;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinSet, yield_now};

use partitioned_pool::{Connection, Partition, Sqlx};
use peers::Full;
use peers::memory::Memory;

/// A connection of sqlx's own pool.
type Pooled = sqlx::pool::PoolConnection<sqlx::Postgres>;

/// Rounds of each side.
const ROUNDS: u32 = 200;

/// What was promised of a figure.
enum Target {
    /// At most this many times the peer.
    Ratio(f64),
    /// The same, and also less than this.
    Below(Duration, f64),
    /// At most so much more than the peer.
    Extra(Duration),
    /// Nothing: it is shown.
    None,
}

/// Two sides, measured in turn.
struct Compared {
    what: String,
    ours: Duration,
    peer: (&'static str, Duration),
    target: Target,
}

impl Compared {
    fn ratio(&self) -> f64 {
        self.ours.as_secs_f64() / self.peer.1.as_secs_f64()
    }

    fn is_kept(&self) -> bool {
        match self.target {
            Target::Ratio(most) => self.ratio() <= most,
            Target::Below(limit, most) => self.ours < limit && self.ratio() <= most,
            Target::Extra(most) => self.ours <= self.peer.1 + most,
            Target::None => true,
        }
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peer, theirs) = self.peer;
        let (ours, ratio) = (self.ours, self.ratio());
        write!(
            f,
            "{:<44} {ours:>10.1?} {peer:>18} {theirs:>10.1?} {ratio:>6.2}",
            self.what
        )?;
        match self.target {
            Target::Ratio(most) => write!(f, "   <= {most:.2}")?,
            Target::Below(limit, most) => write!(f, "   <= {most:.2} and < {limit:.0?}")?,
            Target::Extra(most) => write!(f, "   <= + {most:.0?}")?,
            Target::None => {}
        }
        f.write_str(if self.is_kept() { "" } else { "   MISSED" })
    }
}

/// What the rounds of two sides took.
#[derive(Default)]
struct Rounds {
    ours: Vec<Duration>,
    theirs: Vec<Duration>,
}

enum Side {
    Ours,
    Theirs,
}

/// Both sides in each turn, and each of them first in every other.
fn in_turn(rounds: u32) -> impl Iterator<Item = Side> {
    (0..rounds).flat_map(|turn| match turn % 2 {
        0 => [Side::Ours, Side::Theirs],
        _ => [Side::Theirs, Side::Ours],
    })
}

impl Rounds {
    /// `rounds` rounds of both sides in turn, of `times` iterations each.
    async fn measure<A: Future, B: Future>(
        &mut self,
        (rounds, times): (u32, u32),
        mut ours: impl FnMut() -> A,
        mut theirs: impl FnMut() -> B,
    ) {
        round(times, &mut ours).await;
        round(times, &mut theirs).await;
        for side in in_turn(rounds) {
            match side {
                Side::Ours => self.ours.push(round(times, &mut ours).await),
                Side::Theirs => self.theirs.push(round(times, &mut theirs).await),
            }
        }
    }

    /// The same of sides that say themselves how long they took.
    async fn measure_what_they_say(
        &mut self,
        rounds: u32,
        ours: impl AsyncFn() -> Duration,
        theirs: impl AsyncFn() -> Duration,
    ) {
        ours().await;
        theirs().await;
        for side in in_turn(rounds) {
            match side {
                Side::Ours => self.ours.push(ours().await),
                Side::Theirs => self.theirs.push(theirs().await),
            }
        }
    }

    fn compared(self, what: impl Into<String>, peer: &'static str, target: Target) -> Compared {
        Compared {
            what: what.into(),
            ours: median(self.ours),
            peer: (peer, median(self.theirs)),
            target,
        }
    }
}

async fn compare<A: Future, B: Future>(
    what: &str,
    times: u32,
    ours: impl FnMut() -> A,
    (peer, theirs): (&'static str, impl FnMut() -> B),
    target: Target,
) -> Compared {
    let mut rounds = Rounds::default();
    rounds.measure((ROUNDS, times), ours, theirs).await;
    rounds.compared(what, peer, target)
}

async fn round<A: Future>(times: u32, side: &mut impl FnMut() -> A) -> Duration {
    let started = Instant::now();
    for _ in 0..times {
        std::hint::black_box(side().await);
    }
    started.elapsed() / times
}

fn median(mut rounds: Vec<Duration>) -> Duration {
    rounds.sort_unstable();
    rounds[rounds.len() / 2]
}

async fn uncontended() -> Vec<Compared> {
    let ours = peers::ours(4, 0).await;
    let (partition, deadpool, bb8) = (ours.partition(), peers::deadpool(4), peers::bb8(4).await);
    let what = "acquire + return";
    let get = || async { drop(partition.acquire().await.expect("free")) };
    let deadpool = || async { drop(deadpool.get().await.expect("free")) };
    let bb8 = || async { drop(bb8.get().await.expect("free")) };
    vec![
        compare(what, 1_000, get, ("deadpool", deadpool), Target::Ratio(1.0)).await,
        compare(what, 1_000, get, ("bb8", bb8), Target::None).await,
    ]
}

/// Each of 8 tasks acquires `times` times and keeps what it has over one turn of the others.
async fn crowd<P, F, G>(pool: &P, times: u32, get: G)
where
    P: Clone + Send + 'static,
    F: Future<Output: Send> + Send,
    G: Fn(P) -> F + Copy + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let pool = pool.clone();
        tasks.spawn(async move {
            for _ in 0..times {
                let held = get(pool.clone()).await;
                yield_now().await;
                drop(held);
            }
        });
    }
    tasks.join_all().await;
}

async fn crowded() -> Vec<Compared> {
    let ours = peers::ours(4, 8).await;
    let (partition, deadpool, bb8) = (ours.partition(), peers::deadpool(4), peers::bb8(4).await);
    let what = "8 tasks on 4 slots, 50 times each";
    let get = || {
        crowd(&partition, 50, |p| async move {
            p.acquire().await.expect("waits")
        })
    };
    let deadpool = || {
        crowd(
            &deadpool,
            50,
            |p| async move { p.get().await.expect("waits") },
        )
    };
    let bb8 = || {
        crowd(
            &bb8,
            50,
            |p| async move { p.get_owned().await.expect("waits") },
        )
    };
    vec![
        compare(what, 3, get, ("deadpool", deadpool), Target::None).await,
        compare(what, 3, get, ("bb8", bb8), Target::None).await,
    ]
}

/// What it costs to be able to borrow, for who does not.
async fn sharing() -> Compared {
    let (shared, fixed) = (peers::ours_sharing(4, 0).await, peers::ours(4, 0).await);
    let (shared, fixed) = (shared.partition(), fixed.partition());
    let get = |p: Partition<Memory>| {
        move || {
            let p = p.clone();
            async move { drop(p.acquire().await.expect("free")) }
        }
    };
    let what = "acquire + return, a shared budget";
    let target = Target::Extra(Duration::from_nanos(30));
    compare(
        what,
        1_000,
        get(shared),
        ("a fixed one", get(fixed)),
        target,
    )
    .await
}

async fn rejections() -> Vec<Compared> {
    const MICROSECOND: Duration = Duration::from_micros(1);
    let (empty, long) = (
        Full::with_waiters(0).await,
        Full::with_waiters(10_000).await,
    );
    let (empty, long) = (empty.partition(), long.partition());
    let deadpool = peers::deadpool(1);
    let _taken = deadpool.get().await.expect("free");
    let no_wait = peers::no_wait();
    let refused = |p: Partition<Memory>| {
        move || {
            let p = p.clone();
            async move { p.acquire().await.expect_err("full") }
        }
    };
    let timed_out = || async { deadpool.timeout_get(&no_wait).await.expect_err("full") };
    let peer = ("deadpool, wait 0", timed_out);
    let few = ("ours, 0 waiters", refused(empty.clone()));
    vec![
        compare(
            "rejection, 0 waiters",
            1_000,
            refused(empty),
            peer,
            Target::Below(MICROSECOND, f64::INFINITY),
        )
        .await,
        compare(
            "rejection, 10,000 waiters",
            1_000,
            refused(long),
            few,
            Target::Below(MICROSECOND, 1.5),
        )
        .await,
    ]
}

/// In several parts, each with connections of its own: where the system puts a backend process
/// decides how fast it answers, and that luck must fall on both sides.
async fn select_one(url: &str, runtime: &str) -> Vec<Compared> {
    const PARTS: u32 = 16;
    let (mut deadpools, mut bb8s, mut sqlxs) =
        (Rounds::default(), Rounds::default(), Rounds::default());
    for _ in 0..PARTS {
        let ours = peers::ours_on(url, 1).await;
        let (partition, deadpool) = (ours.partition(), peers::deadpool_on(url, 1));
        let (bb8, sqlx) = (peers::bb8_on(url, 1).await, peers::sqlx_on(url, 1).await);
        let prepared = peers::prepare_bb8(&bb8).await;
        let get = || peers::select_one_ours(&partition);
        let deadpool = || peers::select_one_deadpool(&deadpool);
        let bb8 = || peers::select_one_bb8(&bb8, &prepared);
        let sqlx = || peers::select_one_sqlx(&sqlx);
        deadpools.measure((60, 20), get, deadpool).await;
        bb8s.measure((10, 20), get, bb8).await;
        sqlxs.measure((10, 20), get, sqlx).await;
        ours.pool.close(Duration::from_secs(5)).await;
    }
    let what = format!("acquire + SELECT 1 + return, {runtime}");
    vec![
        deadpools.compared(&what, "deadpool-postgres", Target::Ratio(1.03)),
        bb8s.compared(&what, "bb8-postgres", Target::None),
        sqlxs.compared(&what, "sqlx", Target::None),
    ]
}

/// On sqlx, beside sqlx's own pool with and without its round trip before each use: the acquire and the way back
/// alone, and with a statement in between.
async fn on_sqlx(url: &str) -> Vec<Compared> {
    const PARTS: u32 = 8;
    let mut rows = Vec::new();
    for (peer, ping, most) in [
        ("sqlx, with ping", true, 0.05),
        ("sqlx, no ping", false, 0.1),
    ] {
        let (mut checkouts, mut selects) = (Rounds::default(), Rounds::default());
        for _ in 0..PARTS {
            let ours = peers::ours_on_sqlx(url, 1).await;
            let partition = ours.partition();
            let pool = peers::sqlx_testing(url, 1, ping).await;
            let acquire = || async { drop(partition.acquire().await.expect("a connection")) };
            let theirs = || async { drop(pool.acquire().await.expect("a connection")) };
            checkouts.measure((20, 100), acquire, theirs).await;
            let select = || peers::select_one_by(&partition);
            selects
                .measure((20, 20), select, || peers::select_one_by(&pool))
                .await;
            ours.pool.close(Duration::from_secs(5)).await;
            pool.close().await;
        }
        rows.push(checkouts.compared("sqlx: acquire + return", peer, Target::Ratio(most)));
        rows.push(selects.compared("sqlx: SELECT 1 by the executor", peer, Target::Ratio(1.0)));
    }
    rows
}

/// From the drop of a connection until its slot serves the next, on one slot: after use as an executor, and after use
/// of the `PgConnection` itself, of which nothing is known.
async fn usable_again(url: &str) -> Vec<Compared> {
    const PARTS: u32 = 8;
    let (mut seen, mut raw) = (Rounds::default(), Rounds::default());
    for _ in 0..PARTS {
        let ours = peers::ours_on_sqlx(url, 1).await;
        let partition = ours.partition();
        let pool = peers::sqlx_testing(url, 1, false).await;
        let acquire = async || partition.acquire().await.expect("a connection");
        let ours_seen = async || {
            let use_it = async |held: &mut Connection<Sqlx>| peers::select_one_by(held).await;
            peers::usable_again(&acquire, use_it).await
        };
        let ours_raw = async || {
            let use_it =
                async |held: &mut Connection<Sqlx>| peers::select_one_by(&mut **held).await;
            peers::usable_again(&acquire, use_it).await
        };
        let theirs = async || {
            let acquire = async || pool.acquire().await.expect("a connection");
            let use_it = async |held: &mut Pooled| peers::select_one_by(&mut **held).await;
            peers::usable_again(acquire, use_it).await
        };
        seen.measure_what_they_say(200, ours_seen, theirs).await;
        raw.measure_what_they_say(200, ours_raw, theirs).await;
        ours.pool.close(Duration::from_secs(5)).await;
        pool.close().await;
    }
    let target = || Target::Ratio(1.0);
    let peer = "sqlx, no ping";
    vec![
        seen.compared("sqlx: usable again, by the executor", peer, target()),
        raw.compared("sqlx: usable again, by PgConnection", peer, target()),
    ]
}

/// As a service does it: from a task on a worker thread.
async fn in_a_task(url: String) -> Vec<Compared> {
    let measured = tokio::spawn(async move { select_one(&url, "many threads").await });
    measured.await.expect("no panic")
}

fn multi_thread() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let built = builder.worker_threads(2).enable_all().build();
    built.expect("a runtime")
}

fn current_thread() -> Runtime {
    let built = Builder::new_current_thread().enable_all().build();
    built.expect("a runtime")
}

fn main() -> ExitCode {
    let check = std::env::args().any(|argument| argument == "--check");
    let (one, many) = (current_thread(), multi_thread());
    println!(
        "{:<44} {:>10} {:>18} {:>10} {:>6}   target",
        "medians", "ours", "peer", "peer's", "ratio"
    );
    let show = |rows: Vec<Compared>| {
        rows.iter().for_each(|row| println!("{row}"));
        rows.iter().all(Compared::is_kept)
    };
    let mut kept = show(one.block_on(uncontended()));
    kept &= show(vec![one.block_on(sharing())]);
    kept &= show(many.block_on(crowded()));
    kept &= show(one.block_on(rejections()));
    let server = many.block_on(peers::server());
    kept &= show(one.block_on(select_one(server.url(), "one thread")));
    kept &= show(many.block_on(in_a_task(server.url().to_owned())));
    let url = server.url().to_owned();
    kept &= show(many.block_on(async move {
        let measured = tokio::spawn(async move { on_sqlx(&url).await });
        measured.await.expect("no panic")
    }));
    kept &= show(one.block_on(usable_again(server.url())));
    // A caller outside of every worker, such as `main` itself, has its answer while a worker may still be
    // polling the connection's task. Until that poll has ended, the backend is not known quiet, and the
    // next query wakes a worker that has gone to sleep.
    kept &= show(many.block_on(select_one(server.url(), "block_on")));
    drop(server);
    if check && !kept {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
