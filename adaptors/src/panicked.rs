//! What a panic of the program's code said.

use std::any::Any;
use std::mem;

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
