//! The process's hooks for misuse and events, which call the thread's probe.

use std::sync::Arc;

use millpond_core::misuse::{Hook, Misuse, set_hook};
use parking_lot::Mutex;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::probe::Probe;
use crate::misuse_recorder;

/// The previous hook, for threads without a probe.
static OTHERS: Mutex<Option<Hook>> = Mutex::new(None);

/// Installs the misuse hook, unless it is installed. The recorder's hook is installed first, so it never
/// replaces this one.
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

/// Calls the thread's probe at each event.
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
