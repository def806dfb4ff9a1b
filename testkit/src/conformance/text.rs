//! Checks the text that a resource prints.

use millpond_core::stack::StackSpec;

use super::Outcome::{self, Passed, Skipped};
use super::context::Context;

bodies![prints_the_text_of_its_stack, debug_says_something, the_upstream_prints_a_beginning];

const NOT_TEXT: &str = "the subject is not built from text; see Subject::from_text";

fn prints_the_text_of_its_stack(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    let text = resource.to_string();
    let spec: StackSpec = text.parse().unwrap_or_else(|error| panic!("`{text}`: {error}"));
    assert_eq!(spec.to_string(), text, "the text is not in its canonical form");
    let Some(table) = &context.subject.table else { return Skipped(NOT_TEXT) };
    drop(resource);
    let rebuilt = spec.build(table, &context.driver).unwrap_or_else(|error| panic!("`{text}`: {error}"));
    assert_eq!(rebuilt.to_string(), text, "the resource built from the text prints a different text");
    Passed
}

fn debug_says_something(context: &Context<'_>) -> Outcome {
    let resource = context.build();
    assert!(format!("{:?}", resource.inner()).len() > 3);
    Passed
}

fn the_upstream_prints_a_beginning(context: &Context<'_>) -> Outcome {
    use millpond_core::DeviceMemoryResource;
    let resource = context.build();
    let text = resource.to_string();
    if let Some(upstream) = resource.inner().upstream() {
        let below = upstream.to_string();
        assert!(text.starts_with(&format!("{below}+")), "`{text}` does not begin with `{below}+`");
    }
    Passed
}
