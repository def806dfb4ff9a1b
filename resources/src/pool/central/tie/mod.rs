//! Ties the pool to the model of stream order: both take the same steps, and must agree after each.
//!
//! [`rig`] lets a real pool take the steps of a small model, over the simulated device. The comparison visits
//! every state of the checker, and takes every step of the model there in the pool, too. It compares the
//! answer (whether the step was possible) and all beliefs.
//!
//! In programs, a [`follow::Follower`] takes each step of a pool in a large model. [`programs`] interrupts
//! the pool's driver calls, and [`stacks`] follows every pool of every stack.

pub(super) mod calls;
mod compare;
pub(super) mod follow;
mod large;
mod programs;
mod rig;
mod seen;
mod stacks;
mod tests;
mod world;
