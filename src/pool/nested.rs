//! Nested acquires: a task that holds a connection and wants another one of the same budget can wait for itself. In
//! debug builds it is known which task holds what; release builds keep nothing and look at nothing.

#[cfg(debug_assertions)]
pub(super) use watched::Tasks;

#[cfg(not(debug_assertions))]
pub(super) use unwatched::Tasks;

#[cfg(debug_assertions)]
mod watched {
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::thread::{self, ThreadId};

    use tokio::task;

    use crate::admission::HoldId;

    /// Who acquires: a task, or what runs on a thread outside of one, as a `main` does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Who {
        Task(task::Id),
        Thread(ThreadId),
    }

    impl Who {
        fn here() -> Self {
            task::try_id().map_or_else(|| Self::Thread(thread::current().id()), Self::Task)
        }
    }

    /// The holds of a budget, by who acquired them; oldest first.
    #[derive(Debug, Default)]
    pub(in crate::pool) struct Tasks(Mutex<Vec<(Who, HoldId)>>);

    impl Tasks {
        fn held(&self) -> MutexGuard<'_, Vec<(Who, HoldId)>> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// The present task has acquired a connection.
        pub(in crate::pool) fn acquired(&self, hold: Option<HoldId>) {
            let who = Who::here();
            self.held().extend(hold.map(|hold| (who, hold)));
        }

        /// It was given back, by whomever.
        pub(in crate::pool) fn given_back(&self, hold: Option<HoldId>) {
            self.held().retain(|(_, held)| Some(*held) != hold);
        }

        /// What the present task has acquired first, and not given back.
        pub(in crate::pool) fn own(&self) -> Option<HoldId> {
            let here = Who::here();
            let held = self.held();
            held.iter()
                .find(|(who, _)| *who == here)
                .map(|(_, hold)| *hold)
        }
    }
}

#[cfg(not(debug_assertions))]
mod unwatched {
    use crate::admission::HoldId;

    #[derive(Debug, Default)]
    pub(in crate::pool) struct Tasks;

    impl Tasks {
        #[inline(always)]
        pub(in crate::pool) fn acquired(&self, _: Option<HoldId>) {}

        #[inline(always)]
        pub(in crate::pool) fn given_back(&self, _: Option<HoldId>) {}

        #[inline(always)]
        pub(in crate::pool) fn own(&self) -> Option<HoldId> {
            None
        }
    }
}
