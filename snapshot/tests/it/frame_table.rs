//! Frames of real programs, with their kinds.
//!
//! They come from snapshots of this project, from public snapshots and crash reports, and from the sources of
//! PyTorch, CPython, transformers and Lightning.

use std::sync::LazyLock;

use millpond_snapshot::frames::{Frame, Kind};

/// The frames of `frames.tsv`.
pub(crate) static FRAMES: LazyLock<Vec<(Kind, Frame<'static>)>> = LazyLock::new(|| {
    let lines = include_str!("frames.tsv").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| parsed(line).unwrap_or_else(|| panic!("{line}"))).collect()
});

fn parsed(line: &'static str) -> Option<(Kind, Frame<'static>)> {
    let [kind, function, file, line] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
    let kind = Kind::ALL.into_iter().find(|of| of.name() == kind)?;
    Some((kind, Frame { function, file, line: line.parse().ok()? }))
}
