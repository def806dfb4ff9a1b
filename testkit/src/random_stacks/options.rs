//! The options of the layers in random stacks.

use crate::Rng;

/// A layer's options, each with the values to draw from.
type Options = &'static [(&'static str, &'static [&'static str])];

/// The stacks that may stand in parentheses.
const OTHERS: &[&str] = &["(cuda)", "(cuda+pool)", "(managed)", "(cuda_async)", "(cuda+pool+tracking)"];

/// Plans that start with requests which many programs make.
const PLANS: &[&str] = &[
    concat!("\"", env!("CARGO_MANIFEST_DIR"), "/plans/equal_256.plan\""),
    concat!("\"", env!("CARGO_MANIFEST_DIR"), "/plans/equal_1024.plan\""),
];

/// Options that a layer requires.
const REQUIRED: &[(&str, &str)] = &[
    ("budget", "name"),
    ("budget", "limit"),
    ("limiting", "limit"),
    ("fallback", "to"),
    ("logging", "file"),
    ("sam_headroom", "headroom"),
    ("plan", "file"),
];

/// Options in every stack, because their defaults vary from run to run.
const ALWAYS: &[(&str, &str)] = &[("retry", "timeout")];

/// Options in no stack. They name files of other runs, name a program's own writer, limit hangs, which the
/// watchdog does already, need a second budget, or refuse requests during captures.
const NEVER: &[(&str, &str)] = &[
    ("logging", "to"),
    ("arena", "dump_log_on_failure"),
    ("thread_safe", "patience"),
    ("budget", "parent"),
    ("budget", "guaranteed"),
    ("budget", "wait"),
    ("budget", "zero"),
];

const DRAWN: &[(&str, Options)] = &[
    ("cuda", &[]),
    ("managed", &[]),
    ("pinned_host", &[]),
    ("host", &[]),
    ("system", &[]),
    ("sam_headroom", &[("headroom", &["4MiB", "1MiB"])]),
    (
        "cuda_async",
        &[
            ("initial", &["10%", "2MiB"]),
            ("release_threshold", &["0B", "4MiB"]),
            ("max", &["75%", "24MiB"]),
            ("reuse", &["own", "follow", "opportunistic", "internal", "follow/internal"]),
            ("handles", &["none", "fd"]),
            ("hw_decompress", &["auto", "off"]),
        ],
    ),
    ("cuda_async_view", &[("pool", &["default", "current"])]),
    ("cuda_async_managed", &[]),
    (
        "cuda_async_pinned",
        &[
            ("numa", &["0"]),
            ("initial", &["2MiB"]),
            ("release_threshold", &["0B", "4MiB"]),
            ("max", &["24MiB", "64MiB"]),
            ("reuse", &["own", "follow", "opportunistic", "internal"]),
            ("handles", &["none", "fd"]),
        ],
    ),
    (
        "pool",
        &[
            ("initial", &["1MiB", "10%", "0B"]),
            ("max", &["50%", "75%", "24MiB"]),
            ("pages", &["auto", "off", "off", "on"]),
            ("decay", &["off", "100ms", "10s"]),
            ("peers", &["auto", "none"]),
            ("share", &["none", "fd"]),
            ("reuse", &["own", "ordered", "completed", "waited", "ordered/completed"]),
        ],
    ),
    ("arena", &[("size", &["20%", "4MiB"]), ("max", &["60%", "24MiB"])]),
    (
        "fixed_size",
        &[("block_size", &["64KiB", "1MiB", "4MiB"]), ("blocks", &["4", "16"]), ("preallocate", &["0", "4"])],
    ),
    (
        "binning",
        &[
            ("min", &["10", "12"]),
            ("max", &["16", "18"]),
            ("bins", &["4KiB/64KiB/1MiB", "none", "64KiB/1MiB(cuda+pool)"]),
        ],
    ),
    ("capture_scopes", &[]),
    ("plan", &[("file", PLANS)]),
    ("aligned", &[("alignment", &["512", "4KiB", "64KiB"]), ("threshold", &["0", "64KiB"])]),
    ("budget", &[("name", &["job"]), ("limit", &["50%", "100%", "16MiB"]), ("priority", &["1"])]),
    ("fallback", &[("to", OTHERS)]),
    ("limiting", &[("limit", &["50%", "100%", "16MiB"])]),
    (
        "logging",
        &[
            ("file", &["/dev/null"]),
            ("columns", &["rmm", "extended"]),
            ("flush", &["row", "async", "buffered"]),
        ],
    ),
    ("prefetch", &[]),
    ("recording", &[("events", &["16", "1000"]), ("stacks", &["off", "allocations"])]),
    ("retry", &[("timeout", &["1us"])]),
    ("statistics", &[]),
    ("thread_safe", &[]),
    ("tracking", &[("stacks", &["off"])]),
];

fn options_of(layer: &str) -> Options {
    DRAWN.iter().find(|(name, _)| *name == layer).map_or(&[], |(_, options)| options)
}

/// A layer's text with random options.
pub(super) fn text(layer: &str, rng: &mut Rng) -> String {
    let mut text = layer.to_owned();
    let mut separator = ':';
    for (option, values) in options_of(layer) {
        let key = (layer, *option);
        let is_given = REQUIRED.contains(&key) || ALWAYS.contains(&key) || rng.percent(25);
        // Bins get their sizes in only one of two ways.
        let is_excluded = layer == "binning" && *option == "bins" && text.contains(':');
        if is_given && !is_excluded {
            let value = rng.pick(values).copied().unwrap_or_default();
            text += &format!("{separator}{option}={value}");
            separator = ',';
        }
    }
    text
}

/// Whether the layer and its option are drawn, or left out on purpose.
pub(super) fn is_drawn(layer: &str, option: Option<&str>) -> bool {
    let known = DRAWN.iter().any(|(name, _)| *name == layer);
    let has = |option: &str| options_of(layer).iter().any(|(name, _)| *name == option);
    known && option.is_none_or(|option| has(option) || NEVER.contains(&(layer, option)))
}
