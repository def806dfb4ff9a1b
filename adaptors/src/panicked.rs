//! Panics of the program's code that must end here, and what they said.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes a call of the program's code whose panic is not the caller's: it ends here. Its payload is leaked:
/// its drop is code of the program, too.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(mem::forget).ok()
}

/// The text of a panic. A payload of another type is leaked: its drop is code of the program, too.
pub(crate) fn text_of(payload: Box<dyn Any + Send>) -> String {
    let payload = match payload.downcast::<&'static str>() {
        Ok(text) => return (*text).to_owned(),
        Err(payload) => payload,
    };
    payload.downcast::<String>().map_or_else(
        |payload| {
            mem::forget(payload);
            "without a text".to_owned()
        },
        |text| *text,
    )
}
