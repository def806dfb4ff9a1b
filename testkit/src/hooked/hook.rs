//! A place in a driver where a test runs a closure.

use parking_lot::Mutex;

/// The closure to run at one place, if any.
#[derive(Default)]
pub(super) struct Hook(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Hook {
    pub(super) fn set(&self, hook: impl FnOnce() + Send + 'static) {
        let old = self.0.lock().replace(Box::new(hook));
        assert!(old.is_none(), "the hook set here earlier has not run yet");
    }

    /// Runs the closure without the lock, because it may reach this place again or set the next closure.
    pub(super) fn run(&self) {
        let hook = self.0.lock().take();
        if let Some(hook) = hook {
            hook();
        }
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.lock().is_some()
    }
}
