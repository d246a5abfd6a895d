//! What is known of each connection, wherever it is: who has it, and whether it is being taken away.

use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use crate::admission::HoldId;
use crate::driver::Leash;

/// What is known of one.
#[derive(Default)]
struct Known {
    /// `None` while it is being opened, and for a driver that has none.
    leash: Option<Arc<dyn Leash>>,
    /// The hold of the caller that has it.
    held_by: Option<HoldId>,
    /// It is being taken away, or was, from a hold that had lasted this long.
    taken: Option<Duration>,
    /// Its backend is known gone, though a late owner still has it: it counts no more.
    gone: bool,
}

/// All connections that are being opened or open.
pub(super) struct Registry(Slab<Known>);

impl Registry {
    pub(super) fn new() -> Self {
        Self(Slab::new())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// One more, about which nothing is known.
    pub(super) fn insert(&mut self) -> usize {
        self.0.insert(Known::default())
    }

    /// Forgets one: whether it counted until now, and what it could be taken away by.
    pub(super) fn remove(&mut self, key: usize) -> (bool, Option<Arc<dyn Leash>>) {
        let known = self.0.remove(key);
        (!known.gone, known.leash)
    }

    /// It was opened.
    pub(super) fn opened(&mut self, key: usize, leash: Option<Arc<dyn Leash>>) {
        self.0[key].leash = leash;
    }

    /// A caller has it.
    #[inline]
    pub(super) fn is_held(&mut self, key: usize, by: HoldId) {
        self.0[key].held_by = Some(by);
    }

    /// No caller has it; `false` if it counts no more.
    #[inline]
    pub(super) fn is_left(&mut self, key: usize) -> bool {
        let known = &mut self.0[key];
        if known.gone {
            return false;
        }
        known.held_by = None;
        true
    }

    /// Takes the connection of a hold away from it, which has lasted for `age`: what it takes to do so,
    /// unless the hold has ended or somebody is at it already.
    pub(super) fn take_away(&mut self, from: HoldId, age: Duration) -> Option<Arc<dyn Leash>> {
        let known = self.of(from)?;
        let leash = known.leash.clone().filter(|_| known.taken.is_none())?;
        known.taken = Some(age);
        Some(leash)
    }

    /// The backend of a connection that was taken away from a hold is gone. `true` if its late owner
    /// still has it.
    pub(super) fn taken_is_gone(&mut self, from: HoldId) -> bool {
        let Some(known) = self.of(from).filter(|known| known.taken.is_some()) else {
            return false;
        };
        known.held_by = None;
        known.gone = true;
        true
    }

    /// Whether it was taken away, after a hold of which length, and whether its backend is gone.
    #[inline]
    pub(super) fn taken(&self, key: usize) -> Option<(Duration, bool)> {
        let known = &self.0[key];
        known.taken.map(|age| (age, known.gone))
    }

    /// The backend of the connection that a hold has.
    pub(super) fn backend_pid(&self, of: HoldId) -> Option<i32> {
        let mut all = self.0.iter().map(|(_, known)| known);
        let known = all.find(|known| known.held_by == Some(of))?;
        known.leash.as_ref()?.backend_pid()
    }

    fn of(&mut self, hold: HoldId) -> Option<&mut Known> {
        let mut all = self.0.iter_mut().map(|(_, known)| known);
        all.find(|known| known.held_by == Some(hold))
    }
}
