//! Events for `tracing`: the layer notes them under its lock, and reports them after it releases the lock.

use std::fmt;
use std::time::Duration;

/// A change of plans that is reported.
#[derive(Debug)]
pub(crate) enum Note {
    /// A plan was made, with these numbers of allocations and bytes.
    Made { allocations: usize, bytes: u64, duration: Duration },
    /// What repeats has no plan.
    NotMade(String),
    /// No thread to plan in was started.
    NoThread(std::io::Error),
    /// A plan was dropped; `log` names the file of one that was not learnt.
    Dropped { why: &'static str, log: Option<String> },
    /// The program has left the plan.
    Left,
    /// The program is left alone for a while.
    Rests,
    /// The layer gave up.
    GaveUp(&'static str),
}

impl Note {
    /// Reports it. The subscriber is foreign code, and may use the stack: no lock is held.
    #[cold]
    pub(crate) fn report(self, stack: &dyn fmt::Display) {
        match self {
            Self::Made { allocations, bytes, duration } => {
                tracing::info!(
                    target: "millpond::plan", %stack, allocations, bytes, ?duration, "made a plan"
                );
            }
            Self::NotMade(why) => tracing::info!(target: "millpond::plan", %stack, why, "made no plan"),
            Self::NoThread(error) => {
                tracing::warn!(target: "millpond::plan", %stack, %error, "no thread to plan in");
            }
            Self::Dropped { why, log } => {
                tracing::info!(target: "millpond::plan", %stack, why, log, "dropped a plan");
            }
            Self::Left => tracing::info!(target: "millpond::plan", %stack, "the program has left the plan"),
            Self::Rests => {
                let why = "no part repeats; the program is not watched for a while";
                tracing::info!(target: "millpond::plan", %stack, why);
            }
            Self::GaveUp(why) => tracing::warn!(
                target: "millpond::plan", %stack, why, "the program does not repeat; upstream serves it"
            ),
        }
    }
}
