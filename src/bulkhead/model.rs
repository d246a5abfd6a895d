//! Every interleaving of the waiting floor, by a model checker.
