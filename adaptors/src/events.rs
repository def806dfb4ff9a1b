//! A subscriber for tests that records the text of every event.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Records the text of every event: one line for each field, with the event's target.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<String>>);

impl Events {
    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

impl Subscriber for Events {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        let target = event.metadata().target();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            self.0.lock().unwrap().push_str(&format!("{target} {field}={value:?}\n"));
        });
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
