//! The fuzz targets.

mod budget;
mod capi;
mod html;
mod minimalloc;
mod nsys;
mod pickle;
mod plan;
mod pprof;
mod profile;
mod rmm_csv;
mod stack;
mod text;
mod trace;
mod watch;

/// The targets by name.
pub(crate) const TARGETS: [(&str, fn(&[u8])); 14] = [
    ("budget", budget::run),
    ("capi", capi::run),
    ("html", html::run),
    ("minimalloc", minimalloc::run),
    ("nsys", nsys::run),
    ("pickle", pickle::run),
    ("plan", plan::run),
    ("pprof", pprof::run),
    ("profile", profile::run),
    ("rmm_csv", rmm_csv::run),
    ("stack", stack::run),
    ("text", text::run),
    ("trace", trace::run),
    ("watch", watch::run),
];
