//! Catches panics of the program's code, and returns their texts.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls the program's code, and catches its panic, which is not the caller's fault. Leaks the payload,
/// because its drop also runs code of the program.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(mem::forget).ok()
}

/// Returns the text of a panic. Leaks a payload of another type, because its drop also runs code of the
/// program.
pub(crate) fn text_of(payload: Box<dyn Any + Send>) -> String {
    let payload = match payload.downcast::<&'static str>() {
        Ok(text) => return (*text).to_owned(),
        Err(payload) => payload,
    };
    payload.downcast::<String>().map_or_else(
        |payload| {
            mem::forget(payload);
            "a panic without a message".to_owned()
        },
        |text| *text,
    )
}
