//! The task that has a seat, keeps it, and gives it back. It sees to the numbered rules of the module above.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::config::{ConfigError, Settings, WhenUnavailable};
use crate::driver::{Driver, Endpoint, Rows};
use crate::error::Failure;
use crate::fleet::check::{Question, Sight};
use crate::fleet::lease::{Lease, Seat, Stage, Term};
use crate::observe::Event;
use crate::pool::boottime;
use crate::pool::seat::{Gate, Tenants};
use crate::status::Seconds;

use super::SeatHolder;
use super::line::Lines;
use super::table::{self, Table};

/// Between two looks whether the sessions of an earlier holder are gone.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How long giving a seat back may take.
const LAST_WORD_BOUND: Duration = Duration::from_secs(1);

/// Why a pool could not boot.
pub(crate) enum NotTaken {
    /// Everybody else has one.
    NoneFree {
        holders: Vec<SeatHolder>,
        waited: Duration,
    },
    /// The table, or the way to it, said no.
    Failed(Failure),
    /// Nobody wants a seat any more.
    Gone,
}

pub(crate) struct Keeper<D: Driver> {
    lines: Lines<D>,
    table: Table,
    gate: Arc<Gate>,
    tenants: Tenants<D>,
    term: Term,
    /// How long one question may take while there is no seat to be lost meanwhile.
    patience: Duration,
    /// How long to wait for the first seat.
    wait: Duration,
    when_unavailable: WhenUnavailable,
    /// What is ours, for all we know; not yet, or no longer, to be used unless `is_open`.
    held: Option<(Seat, Lease)>,
    is_open: bool,
    /// Whether the table is known to have our rows, and nothing since has let us doubt it.
    is_filled: bool,
}

impl<D: Driver> Keeper<D> {
    /// For a pool whose fleet has seats. Connects to nothing yet.
    ///
    /// # Errors
    /// What is wrong with the `url` of the seats.
    pub(crate) fn new(
        settings: &Settings,
        options: &D::Options,
        gate: Arc<Gate>,
        tenants: Tenants<D>,
    ) -> Result<Self, ConfigError> {
        let seats = settings.fleet.seats.as_ref();
        let seats = seats.expect("bug: a keeper of no seats");
        let term = Term(seats.lease);
        let lines = Lines::new(settings, options);
        Ok(Self {
            lines: lines.map_err(|problem| ConfigError::of_fields(vec![problem]))?,
            table: Table::new(seats, &settings.service, &who_we_are()),
            gate,
            tenants,
            term,
            patience: settings.boot.check_timeout,
            wait: seats.wait.unwrap_or_default(),
            when_unavailable: settings.boot.when_unavailable,
            held: None,
            is_open: false,
            is_filled: false,
        })
    }

    /// Where the table is.
    pub(crate) fn table_at(&self) -> &Endpoint {
        self.lines.table_at()
    }

    /// Has a task take a seat and keep it until the pool is closed or gone; completes when it is taken. Gives the answer to
    /// the question, if there is one: the line takes up a slot of the server in any case, and a second one might find none.
    /// `None`, too, if the pool starts without a seat.
    ///
    /// # Errors
    /// [`NotTaken`]; then there is no task.
    ///
    /// # Cancel safety
    /// The task ends with the pool, and gives the seat back.
    pub(crate) async fn start(self, question: Option<Question>) -> Result<Option<Sight>, NotTaken> {
        let (told, first) = oneshot::channel();
        tokio::spawn(self.run(question, told));
        first.await.unwrap_or(Err(NotTaken::Gone))
    }

    async fn run(
        mut self,
        question: Option<Question>,
        told: oneshot::Sender<Result<Option<Sight>, NotTaken>>,
    ) {
        let taken = match self.take_the_first().await {
            Ok(()) => self.look(question).await,
            Err(not) => Err(not),
        };
        let is_taken = taken.is_ok();
        let _ = told.send(taken);
        if is_taken {
            self.patience = self.term.0;
            self.keep().await;
        }
        self.give_back().await;
        self.gate.has_left();
    }

    async fn look(&mut self, question: Option<Question>) -> Result<Option<Sight>, NotTaken> {
        let (Some(question), true) = (question, self.is_open) else {
            return Ok(None);
        };
        let limit = self.limit();
        let seen = self.lines.first().look(&question, limit).await;
        seen.map(Some).map_err(NotTaken::Failed)
    }

    /// Within the bounds that the owner has set for a seat to come free, and for a database to come up.
    async fn take_the_first(&mut self) -> Result<(), NotTaken> {
        let started = Instant::now();
        loop {
            if self.gate.is_leaving() {
                return Err(NotTaken::Gone);
            }
            let had = self.try_to_have().await;
            let waited = started.elapsed();
            match had {
                Ok(true) => return Ok(()),
                Ok(false) if waited >= self.wait => return Err(self.none_free(waited).await),
                Ok(false) => {}
                // Those who have a seat may take up all that the server, or a wall in it, lets in.
                Err(failure) if failure.is_too_many_connections() && waited < self.wait => {
                    tracing::debug!(%failure, "no way to ask for a seat");
                }
                Err(failure) if !failure.is_transient() => return Err(NotTaken::Failed(failure)),
                Err(failure) => match self.when_unavailable {
                    WhenUnavailable::Start => {
                        tracing::warn!(%failure, "starting without a seat: nothing is admitted until there is one");
                        return Ok(());
                    }
                    WhenUnavailable::Wait(bound) if waited < bound => {
                        tracing::warn!(%failure, "waiting for the database of the seats");
                    }
                    _ => return Err(NotTaken::Failed(failure)),
                },
            }
            // Whoever has no seat takes up no slot of the server while it waits.
            self.lines.hang_up();
            self.rest(jittered(self.term.renewal())).await;
        }
    }

    async fn none_free(&mut self, waited: Duration) -> NotTaken {
        match self.ask(&self.table.who()).await {
            Ok(rows) => NotTaken::NoneFree {
                holders: table::holders(&rows),
                waited,
            },
            Err(failure) => NotTaken::Failed(failure),
        }
    }

    async fn keep(&mut self) {
        while !self.gate.is_leaving() {
            match self.held {
                Some((seat, lease)) if self.is_open => self.keep_seat(seat, lease).await,
                _ => self.seek_seat().await,
            }
        }
    }

    async fn keep_seat(&mut self, seat: Seat, lease: Lease) {
        let now = boottime::now();
        match lease.stage(now) {
            Stage::Fresh => self.rest(lease.renew_at() - now).await,
            Stage::Over => self.lose(seat, "it could not be renewed in time"),
            Stage::Due | Stage::Doubtful => match self.renew().await {
                Ok(true) => self.end_stragglers(seat).await,
                Ok(false) => self.lose(seat, "somebody else has taken it"),
                Err(failure) => {
                    let left = Seconds(lease.admits_until().saturating_sub(now));
                    tracing::warn!(%seat, %failure, %left, "the seat could not be renewed; trying again");
                    let until_cut = lease.cut_at().saturating_sub(boottime::now());
                    self.rest(jittered(self.term.pause()).min(until_cut)).await;
                }
            },
        }
    }

    async fn seek_seat(&mut self) {
        match self.try_to_have().await {
            Ok(true) => {}
            Ok(false) => {
                tracing::debug!("no seat is free");
                self.rest(jittered(self.term.renewal())).await;
            }
            Err(failure) => {
                tracing::debug!(%failure, "no seat could be taken");
                self.rest(jittered(self.term.pause())).await;
            }
        }
    }

    /// One try: what was ours, else what is free. `false` if nothing is.
    async fn try_to_have(&mut self) -> Result<bool, Failure> {
        if !self.is_filled {
            self.ask(&self.table.fill()).await?;
            self.is_filled = true;
        }
        if self.renew().await? || self.take().await? {
            return self.move_in().await;
        }
        // Everybody else has one; or somebody has made the table anew.
        self.is_filled = false;
        Ok(false)
    }

    async fn take(&mut self) -> Result<bool, Failure> {
        let sent = boottime::now();
        let rows = self.ask(&self.table.take()).await?;
        let Some(seat) = table::taken(&rows) else {
            return Ok(false);
        };
        let unreadable = || Failure::new(None, "a seat came back in an unknown form");
        self.held = Some((seat.ok_or_else(unreadable)?, Lease::new(sent, self.term)));
        Ok(true)
    }

    /// `false` if there is nothing to renew, or no longer.
    async fn renew(&mut self) -> Result<bool, Failure> {
        let Some((seat, _)) = self.held else {
            return Ok(false);
        };
        let sent = boottime::now();
        let rows = self.ask(&self.table.renew(seat)).await?;
        if rows.is_empty() {
            self.held = None;
            return Ok(false);
        }
        let lease = Lease::new(sent, self.term);
        self.held = Some((seat, lease));
        if self.is_open {
            self.gate.extend(lease.admits_until());
        }
        Ok(true)
    }

    /// From the taking to the first admission (4).
    async fn move_in(&mut self) -> Result<bool, Failure> {
        let started = Instant::now();
        while let Some((seat, lease)) = self.held {
            if self.gate.is_leaving() {
                return Ok(false);
            }
            if lease.stage(boottime::now()) != Stage::Fresh && !self.renew().await? {
                return Ok(false);
            }
            self.lines.tag(&seat.tag(), self.limit()).await;
            let there = self.lines.end_earlier(seat, self.limit()).await?;
            let (_, lease) = self.held.expect("bug: it was renewed");
            if there == 0 && lease.stage(boottime::now()) < Stage::Doubtful {
                self.open(seat, lease);
                return Ok(true);
            }
            if started.elapsed() > self.term.0 {
                let text = format!("{there} sessions of an earlier holder of {seat} do not end");
                return Err(Failure::lost(text));
            }
            self.rest(LOOK_AGAIN).await;
        }
        Ok(false)
    }

    fn open(&mut self, seat: Seat, lease: Lease) {
        self.tenants.tag(&seat.tag());
        self.gate.open(seat, lease.admits_until());
        self.is_open = true;
        tracing::info!(seat = seat.number, epoch = seat.epoch, "a seat was taken");
        self.tenants.tell(&Event::SeatTaken {
            seat: seat.number,
            epoch: seat.epoch,
        });
    }

    /// Nothing is admitted from now on, and what is held is cut (6).
    fn lose(&mut self, seat: Seat, why: &str) {
        self.gate.shut();
        self.is_open = false;
        self.lines.name("");
        let cut = self.tenants.cut();
        let Seat { number, epoch } = seat;
        tracing::warn!(seat = number, epoch, cut, "the seat is lost: {why}");
        self.tenants.tell(&Event::SeatLost {
            seat: number,
            epoch,
        });
    }

    /// Those that were logging in when the seat was taken (5).
    async fn end_stragglers(&mut self, seat: Seat) {
        match self.lines.end_earlier(seat, self.limit()).await {
            Ok(0) => {}
            Ok(ended) => tracing::warn!(%seat, ended, "sessions of an earlier holder were ended"),
            Err(failure) => {
                tracing::debug!(%seat, %failure, "earlier holders could not be looked for");
            }
        }
    }

    /// Whoever closes right after a restart of the server still has the line of before: then once more, over a new one. To
    /// say it twice changes nothing.
    async fn give_back(&mut self) {
        let Some((seat, _)) = self.held.take() else {
            return;
        };
        let (sql, began) = (self.table.give_back(seat), Instant::now());
        let line = self.lines.first();
        let mut said = line.ask(&sql, LAST_WORD_BOUND).await;
        if said.as_ref().is_err_and(Failure::is_transient) {
            let left = LAST_WORD_BOUND.saturating_sub(began.elapsed());
            said = line.ask(&sql, left).await;
        }
        if let Err(failure) = said {
            tracing::warn!(%seat, %failure, "the seat could not be given back; it expires");
        }
    }

    async fn ask(&mut self, sql: &str) -> Result<Rows, Failure> {
        let limit = self.limit();
        self.lines.first().ask(sql, limit).await
    }

    /// How long one question may take: no longer than until what is held must be cut.
    fn limit(&self) -> Duration {
        match self.held {
            Some((_, lease)) if self.is_open => {
                let until_cut = lease.cut_at().saturating_sub(boottime::now());
                self.term.renewal().min(until_cut)
            }
            _ => self.patience,
        }
    }

    /// Sleeps, unless the seat is to be given back.
    async fn rest(&mut self, pause: Duration) {
        tokio::select! {
            () = sleep(pause) => {}
            () = self.gate.leaving() => {}
        }
    }
}

/// Up to half of a pause is taken off, so that those who wait for the same do not ask all at once.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// Host, process, and a word that nobody else has: a container's process often has the number 1.
fn who_we_are() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    let word: String = (0..8).map(|_| fastrand::lowercase()).collect();
    format!("{host}/{}/{word}", std::process::id())
}
