//! What the partitions of one budget share: the slots, the connections, and the news of their ends.

use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};

use tokio::sync::Notify;

use crate::admission::{ClassId, ClassRules, Rules};
use crate::bulkhead::Bulkhead;
use crate::config::{BudgetSettings, PartitionSettings};
use crate::driver::Driver;
use crate::status::BudgetStatus;

use super::core::{ConnectionOf, Core};
use super::nested::Tasks;
use super::store::{ClassOfStore, Place, Store};

pub(super) struct Budget<D: Driver> {
    settings: BudgetSettings,
    bulkhead: Bulkhead<Store<ConnectionOf<D>>>,
    /// By class. They keep the budget, not the other way round.
    members: OnceLock<Vec<Weak<Core<D>>>>,
    /// Told when a connection is known gone.
    emptying: Notify,
    /// Which task holds what, in debug builds.
    pub(super) tasks: Tasks,
}

/// A partition that is about to be a class of a budget.
pub(super) type Member<'a, D> = (&'a PartitionSettings, &'a D);

impl<D: Driver> Budget<D> {
    pub(super) fn new(settings: BudgetSettings, members: &[Member<'_, D>]) -> Self {
        let capacity = settings.capacity.get();
        let rules = Rules {
            capacity,
            classes: members.iter().map(|(of, _)| class_rules(of)).collect(),
            hand_over: settings.hand_over,
        };
        let classes = members.iter().map(|member| ClassOfStore {
            reserved: member.0.reserved,
            max: member.0.max_connections.get(),
            wardrobe: wardrobe(member, members),
        });
        let bulkhead = Bulkhead::new(rules, Store::new(capacity, classes))
            .expect("bug: the settings of a budget were checked");
        Self {
            settings,
            bulkhead,
            members: OnceLock::new(),
            emptying: Notify::new(),
            tasks: Tasks::default(),
        }
    }

    /// Makes its partitions known to each other.
    pub(super) fn introduce(&self, members: Vec<Weak<Core<D>>>) {
        // Set once, by the one that makes the pool.
        let _ = self.members.set(members);
    }

    pub(super) fn bulkhead(&self) -> &Bulkhead<Store<ConnectionOf<D>>> {
        &self.bulkhead
    }

    pub(super) fn name(&self) -> &str {
        &self.settings.name
    }

    /// What it looks like now; `None` if there is nothing to share.
    pub(super) fn status(&self) -> Option<BudgetStatus> {
        let is_shared = self.settings.partitions.len() > 1;
        is_shared.then(|| BudgetStatus {
            name: self.settings.name.clone(),
            capacity: self.capacity(),
            held: self.bulkhead.used(),
            connections: self.bulkhead.with_stock(|s| s.total()),
        })
    }

    pub(super) fn capacity(&self) -> u32 {
        self.settings.capacity.get()
    }

    /// The partition of this class, unless it is gone.
    pub(super) fn member(&self, class: ClassId) -> Option<Arc<Core<D>>> {
        self.members.get()?.get(class.index())?.upgrade()
    }

    /// Gives up a place.
    pub(super) fn give_up(&self, place: Place) {
        drop(self.bulkhead.with_stock(|s| s.gone(place)));
        self.one_less();
    }

    /// A connection is known gone.
    pub(super) fn one_less(&self) {
        self.emptying.notify_waiters();
    }

    /// Completes when the last connection of a closed budget is known gone, or has left the pool.
    pub(super) async fn emptied(&self) {
        loop {
            let mut changed = pin!(self.emptying.notified());
            changed.as_mut().enable();
            if self.bulkhead.with_stock(|s| s.total() == s.detached()) {
                return;
            }
            changed.await;
        }
    }
}

fn class_rules(of: &PartitionSettings) -> ClassRules {
    ClassRules {
        reserved: of.reserved,
        max: of.max_connections.get(),
        queue: of.max_waiters,
    }
}

/// The first of `members` whose connections this one can dress.
fn wardrobe<D: Driver>(member: &Member<'_, D>, members: &[Member<'_, D>]) -> usize {
    let can_dress = |other: &Member<'_, D>| member.1.can_dress(other.1);
    let first = members.iter().position(can_dress);
    first.expect("bug: a driver cannot dress its own connections")
}
