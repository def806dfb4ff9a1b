//! Hears millpond's `tracing` events in a test.

use std::sync::OnceLock;

use tracing::Dispatch;
use tracing::subscriber::{DefaultGuard, NoSubscriber};

/// Makes a subscriber the current thread's default until the returned guard is dropped.
///
/// `tracing`'s own `set_default` can miss events in a test program: with a single subscriber in the process,
/// `tracing` asks the default subscriber of the first thread that reaches an event. Another test's thread may
/// be the first. It has no subscriber, and so `tracing` turns the event off for all threads. This function
/// keeps two other subscribers, so `tracing` asks all subscribers.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use tracing_subscriber::prelude::*;
///
/// #[derive(Clone, Default)]
/// struct Heard(Arc<Mutex<Vec<&'static str>>>);
///
/// impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Heard {
///     fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
///         self.0.lock().unwrap().push(event.metadata().target());
///     }
/// }
///
/// let heard = Heard::default();
/// let guard = millpond_testkit::events::hear(tracing_subscriber::registry().with(heard.clone()));
/// tracing::warn!(target: "my_adaptor", "a block was never freed");
/// drop(guard);
/// assert_eq!(*heard.0.lock().unwrap(), ["my_adaptor"]);
/// ```
#[must_use = "the subscriber hears nothing after the guard is dropped"]
pub fn hear(subscriber: impl Into<Dispatch>) -> DefaultGuard {
    static OTHERS: OnceLock<[Dispatch; 2]> = OnceLock::new();
    OTHERS.get_or_init(|| [(); 2].map(|()| Dispatch::new(NoSubscriber::new())));
    tracing::dispatcher::set_default(&subscriber.into())
}

/// Runs `body` while a subscriber is the current thread's default, as with [`hear`].
pub fn heard_by<T>(subscriber: impl Into<Dispatch>, body: impl FnOnce() -> T) -> T {
    let _guard = hear(subscriber);
    body()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tracing::span::{Attributes, Id, Record};

    use super::*;

    struct Counts(Arc<AtomicU64>);

    impl tracing::Subscriber for Counts {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target() == "testkit::events"
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn an_event_is_heard_although_a_thread_without_a_subscriber_reached_it_first() {
        let happen = || tracing::warn!(target: "testkit::events", "an event");
        let count = Arc::new(AtomicU64::new(0));
        heard_by(Counts(Arc::clone(&count)), || {
            std::thread::spawn(happen).join().expect("an event does not panic");
            happen();
        });
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
