//! Finds settings of PyTorch's allocator that have no effect: the allocator did not use them, or they apply
//! to nothing in the recording.

use millpond_engine::text::{file_word, readable_bytes};

use super::explanation::Diagnosis;
use crate::peers::torch::settings::Settings;
use crate::recording::{EventKind, Recording};

/// The names under which a snapshot stores the value of the environment variable.
const VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// Returns the environment variable that the program used, and its value, if the file has it.
fn used(recording: &Recording) -> Option<(&'static str, &str)> {
    VARIABLES.into_iter().find_map(|name| {
        let mut settings = recording.settings().iter();
        let (_, text) = settings.find(|(known, text)| known == name && !text.is_empty())?;
        Some((name, text.as_str()))
    })
}

/// Returns the environment variable that the program used, or else the variable that all versions read.
pub(super) fn variable(recording: &Recording) -> &'static str {
    used(recording).map_or(VARIABLES[0], |(name, _)| name)
}

/// Returns the value of the environment variable.
pub(super) fn text(recording: &Recording) -> &str {
    used(recording).map_or("", |(_, text)| text)
}

/// Returns the names of the settings in the environment variable that `is_wanted` accepts.
pub(super) fn named(recording: &Recording, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let pairs = pairs(text(recording)).into_iter();
    pairs.map(|(name, _)| name).filter(|name| is_wanted(name)).map(str::to_owned).collect()
}

/// Returns the settings that have no effect, each with the reason.
pub(super) fn without_effect(recording: &Recording) -> Option<Diagnosis> {
    let has = |name: &str| recording.settings().iter().find(|(known, _)| known == name);
    let (variable, text) = used(recording)?;
    let taken = Settings::of(recording).ok()?;
    let mut evidence = Vec::new();
    for (name, value) in pairs(text) {
        let mut asked = Settings::default();
        let known = has(effective(name)).is_some();
        if asked.set(name, value).is_err() || !known {
            continue; // an unknown setting, or one that a snapshot does not store
        }
        if !is_taken(name, &asked, &taken) {
            evidence.push(format!(
                "`{name}:{value}` was in the environment, but the allocator has another value"
            ));
        } else if let Some(why) = idle(recording, name, &taken) {
            evidence.push(format!("`{name}:{value}` changed nothing: {why}"));
        }
    }
    let mut fixes = vec![
        "set the environment variable before Python starts: PyTorch reads it only once".to_owned(),
        format!("run `millpond-replay tune {}` to find settings that help", file_word(recording.file())),
    ];
    if variable != VARIABLES[0] {
        // https://github.com/pytorch/pytorch/issues/183387
        fixes.insert(1, format!("PyTorch 2.9 ignores settings in {variable}: use {}", VARIABLES[0]));
    }
    (!evidence.is_empty()).then(|| Diagnosis {
        code: "settings_without_effect",
        what: "some settings of the allocator have no effect".to_owned(),
        evidence,
        holders: Vec::new(),
        fixes,
    })
}

/// Splits the value of the environment variable into settings.
fn pairs(text: &str) -> Vec<(&str, &str)> {
    let mut depth = 0_i32;
    let parts = text.split(|char| {
        depth += i32::from(char == '[') - i32::from(char == ']');
        char == ',' && depth <= 0
    });
    parts.filter_map(|part| part.split_once(':')).map(|(name, value)| (name.trim(), value.trim())).collect()
}

/// Returns the name under which the allocator reports a setting.
fn effective(name: &str) -> &str {
    if name == "max_split_size_mb" { "max_split_size" } else { name }
}

fn is_taken(name: &str, asked: &Settings, taken: &Settings) -> bool {
    match name {
        "max_split_size_mb" => asked.max_split == taken.max_split,
        "garbage_collection_threshold" => (asked.garbage_collection - taken.garbage_collection).abs() < 1e-6,
        "expandable_segments" => asked.is_expandable == taken.is_expandable,
        "roundup_power2_divisions" => {
            (0..asked.divisions.len()).all(|at| asked.divisions[at].max(1) == taken.divisions[at].max(1))
        }
        _ => true,
    }
}

/// Explains why a setting that the allocator used changed nothing in the recording.
fn idle(recording: &Recording, name: &str, taken: &Settings) -> Option<String> {
    let requests = || recording.events().filter(|event| event.kind == EventKind::Allocate);
    match name {
        "max_split_size_mb" => {
            let segments = recording.events().filter(|event| event.kind == EventKind::SegmentAllocate);
            let largest = segments.map(|event| event.bytes).max()?;
            let bytes = readable_bytes;
            (largest < taken.max_split).then(|| {
                format!("the largest segment has {}, less than {}", bytes(largest), bytes(taken.max_split))
            })
        }
        "roundup_power2_divisions" => {
            let usual = Settings::default();
            let is_idle = requests().all(|event| usual.rounded(event.bytes) == taken.rounded(event.bytes));
            is_idle.then(|| "without this setting, every request is rounded to the same size".to_owned())
        }
        "expandable_segments" => {
            let mut kinds = recording.events().map(|event| event.kind);
            let is_idle = taken.is_expandable && kinds.any(|kind| kind == EventKind::SegmentAllocate);
            let grows = recording.events().any(|event| event.kind == EventKind::SegmentMap);
            (is_idle && !grows).then(|| "all segments have a fixed size".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_the_variable_is_taken_apart() {
        assert_eq!(
            pairs("a:1, roundup_power2_divisions:[256:1,>:8],b:2"),
            [("a", "1"), ("roundup_power2_divisions", "[256:1,>:8]"), ("b", "2")]
        );
        assert!(pairs("nothing").is_empty());
    }
}
