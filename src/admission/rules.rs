//! What the owner decides about a budget before the first call: capacity, classes, order.

pub use crate::config::HandOver;

/// A class of a budget: its position in [`Rules::classes`].
///
/// # Examples
/// ```
/// use partitioned_pool::admission::ClassId;
///
/// assert_eq!(ClassId::new(1).index(), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(pub(super) usize);

impl ClassId {
    /// The class at `index` of [`Rules::classes`].
    #[must_use]
    pub const fn new(index: usize) -> Self {
        Self(index)
    }

    /// Its position in [`Rules::classes`].
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0
    }
}

/// The limits of one class.
///
/// # Examples
/// ```
/// use partitioned_pool::admission::ClassRules;
///
/// assert_eq!(ClassRules::fixed(20, 40), ClassRules { reserved: 20, max: 20, queue: 40 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassRules {
    /// Slots that are guaranteed to this class and never lent to another.
    pub reserved: u32,
    /// The most slots that this class may hold.
    pub max: u32,
    /// The most callers that may wait. With 0, a caller that finds no slot is refused at once.
    pub queue: u32,
}

impl ClassRules {
    /// A fixed bulkhead: `size` slots, all of them reserved.
    #[must_use]
    pub const fn fixed(size: u32, queue: u32) -> Self {
        Self {
            reserved: size,
            max: size,
            queue,
        }
    }
}

/// Capacity, classes and hand-over of one budget.
///
/// # Examples
/// ```
/// use partitioned_pool::admission::{ClassRules, HandOver, Ledger, Rules};
///
/// let rules = Rules {
///     capacity: 30,
///     classes: vec![
///         ClassRules { reserved: 12, max: 25, queue: 50 },
///         ClassRules { reserved: 0, max: 10, queue: 0 },
///     ],
///     hand_over: HandOver::OldestFirst,
/// };
/// assert!(Ledger::<()>::new(rules).is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Slots of the budget.
    pub capacity: u32,
    /// Its classes. Their order is that of [`HandOver::DeclaredOrder`].
    pub classes: Vec<ClassRules>,
    /// Which class is looked at first when a slot comes free.
    pub hand_over: HandOver,
}

impl Rules {
    /// A budget with one class that may hold all of it.
    #[must_use]
    pub fn fixed(size: u32, queue: u32) -> Self {
        Self {
            capacity: size,
            classes: vec![ClassRules::fixed(size, queue)],
            hand_over: HandOver::default(),
        }
    }

    pub(super) fn check(&self) -> Result<(), InvalidRules> {
        if self.classes.is_empty() {
            return Err(InvalidRules::NoClass);
        }
        for (class, rules) in self.classes.iter().enumerate() {
            let (reserved, max) = (rules.reserved, rules.max);
            if max == 0 {
                return Err(InvalidRules::NoSlots { class });
            }
            if reserved > max {
                return Err(InvalidRules::ReservedAboveMax {
                    class,
                    reserved,
                    max,
                });
            }
            if max > self.capacity {
                return Err(InvalidRules::MaxAboveCapacity {
                    class,
                    max,
                    capacity: self.capacity,
                });
            }
        }
        let reserved = self.classes.iter().map(|c| u64::from(c.reserved)).sum();
        if reserved > u64::from(self.capacity) {
            return Err(InvalidRules::Overcommitted {
                reserved,
                capacity: self.capacity,
            });
        }
        let out = self.classes.iter().position(|c| c.reserved == 0);
        match out.filter(|_| reserved == u64::from(self.capacity)) {
            Some(class) => Err(InvalidRules::NothingLeft {
                class,
                capacity: self.capacity,
            }),
            None => Ok(()),
        }
    }
}

/// [`Rules`] that no ledger can keep.
///
/// # Examples
/// ```
/// use partitioned_pool::admission::{ClassRules, InvalidRules, Ledger, Rules};
///
/// let mut rules = Rules::fixed(10, 0);
/// rules.classes.push(ClassRules::fixed(1, 0));
/// let error = Ledger::<()>::new(rules).unwrap_err();
/// assert_eq!(error, InvalidRules::Overcommitted { reserved: 11, capacity: 10 });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRules {
    /// There is no class.
    #[error("a budget needs at least one class")]
    NoClass,
    /// A class could never hold a slot.
    #[error("class {class}: max must be at least 1")]
    NoSlots {
        /// Position of the class.
        class: usize,
    },
    /// A class reserves more than it may hold.
    #[error("class {class}: reserved {reserved} is above max {max}")]
    ReservedAboveMax {
        /// Position of the class.
        class: usize,
        /// Its `reserved`.
        reserved: u32,
        /// Its `max`.
        max: u32,
    },
    /// A class may hold more than there is.
    #[error("class {class}: max {max} is above the budget's capacity {capacity}")]
    MaxAboveCapacity {
        /// Position of the class.
        class: usize,
        /// Its `max`.
        max: u32,
        /// The budget's capacity.
        capacity: u32,
    },
    /// More is reserved than there is.
    #[error("the classes reserve {reserved} slots together; the budget has {capacity}")]
    Overcommitted {
        /// The sum of all `reserved`.
        reserved: u64,
        /// The budget's capacity.
        capacity: u32,
    },
    /// A class reserves nothing, and the others reserve all there is: its callers would wait for
    /// ever.
    #[error("class {class}: reserves nothing, and the others reserve all {capacity} slots")]
    NothingLeft {
        /// Position of the class.
        class: usize,
        /// The budget's capacity.
        capacity: u32,
    },
}
