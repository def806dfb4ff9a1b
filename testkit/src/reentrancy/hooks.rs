//! The hooks of the process that lead to the probe of the thread: for misuse, and for events.

use std::sync::Arc;

use millpond_core::misuse::{Hook, Misuse, set_hook};
use parking_lot::Mutex;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::probe::Probe;
use crate::misuse_recorder;

/// The hook of before, for threads without a probe.
static OTHERS: Mutex<Option<Hook>> = Mutex::new(None);

/// Installs the hook for misuse, unless it is there. The recorder's is below it, and so never replaces it.
pub(super) fn install() {
    misuse_recorder::install();
    static OURS: Mutex<Option<Hook>> = Mutex::new(None);
    let mut ours = OURS.lock();
    let hook = ours.get_or_insert_with(|| Arc::new(report));
    let before = set_hook(Some(Arc::clone(hook))).filter(|before| !Arc::ptr_eq(before, hook));
    if before.is_some() {
        *OTHERS.lock() = before;
    }
}

fn report(misuse: &Misuse) {
    if let Some(probe) = Probe::of_thread() {
        return probe.call_rare("the misuse hook");
    }
    let others = OTHERS.lock().clone();
    match others {
        Some(hook) => hook(misuse),
        None => assert!(std::thread::panicking(), "{misuse}"),
    }
}

/// Calls the probe of the thread at each event.
pub(super) struct ProbeSubscriber;

impl Subscriber for ProbeSubscriber {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if let Some(probe) = Probe::of_thread() {
            probe.call_rare(&format!("an event of {}", event.metadata().target()));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
