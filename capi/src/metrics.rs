//! The memory of stacks for Prometheus and OpenTelemetry.

use std::ffi::c_char;
use std::sync::LazyLock;

use millpond_core::Error;
use millpond_metrics::Metrics;

use crate::resource::{Resource, json, with_resource};
use crate::status::{Status, guarded_here, put_text, text_of};

static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

/// Shows a stack in metrics under a name, for as long as the stack lives. Metrics keep no stack alive. If the
/// stack already has a name, this call renames it. If another stack of the device has this name, that stack
/// loses it. The default resource of each device has the name `default` without this call. The figures of a
/// resource that several stacks share appear once, with the names of all these stacks: `etl + train`. Fails
/// if the name is empty or `default` or contains ` + `, or if the stack keeps no figures, like `cuda`; then
/// add the layer `statistics`.
///
/// # Safety
/// `resource` is a handle from this library; `name` is a string that ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_metrics_register(resource: *const Resource, name: *const c_char) -> Status {
    with_resource(resource, |resource| {
        // SAFETY: the caller's promise.
        METRICS.register(resource, unsafe { text_of(name, "the name of the stack") }?)
    })
}

/// Writes all metrics as text for Prometheus, in the OpenMetrics format 1.0. Free the text with
/// `millpond_string_free`.
///
/// # Safety
/// `text` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_metrics_text(text: *mut *mut c_char) -> Status {
    // SAFETY: the caller's promise.
    guarded_here(|| unsafe { put_text(text, &METRICS.render()) })
}

/// Writes metrics as JSON: a list of objects with `name`, `prometheus_name`, `kind`, `unit`, `help` and
/// `samples`. `name` is the OpenTelemetry name of one metric, for example `millpond.memory.live`, or null for
/// all metrics. Free the text with `millpond_string_free`.
///
/// # Safety
/// `name` is null, or a string that ends in NUL; `text` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn millpond_metrics_json(name: *const c_char, text: *mut *mut c_char) -> Status {
    guarded_here(|| {
        let families = if name.is_null() {
            METRICS.families()
        } else {
            // SAFETY: the caller's promise.
            let name = unsafe { text_of(name, "the name of the metric") }?;
            let unknown = || Error::invalid_argument(format!("there is no metric `{name}`"));
            vec![METRICS.family(name).ok_or_else(unknown)?]
        };
        // SAFETY: the caller's promise.
        unsafe { put_text(text, &json(&families)?) }
    })
}
