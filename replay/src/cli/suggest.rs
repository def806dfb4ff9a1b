//! Suggests an existing name for a name that does not exist.

use std::path::{Path, PathBuf};

use millpond_core::Error;
use millpond_driver::DeviceSpec;
use millpond_measure::bench::Workload;

/// The least similarity of two names, from 0 to 1. clap uses the same value.
const ALIKE: f64 = 0.7;

/// The least similarity of two file names, which often share their ending.
const ALIKE_FILES: f64 = 0.9;

/// The most files of a folder that are compared with a name.
const MOST_NEIGHBOURS: usize = 10_000;

/// The devices that have a fixed name.
const DEVICES: [&str; 4] = ["cuda:0", "sim:h200", "sim:h100", "sim:a100"];

/// Returns the known name that is most similar, if its similarity suffices.
fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_above(ALIKE, name, known)
}

fn nearest_above<'a>(least: f64, name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let shares = known.into_iter().map(|known| (strsim::jaro(name, known), known));
    let near = shares.filter(|(share, known)| *share > least && *known != name);
    near.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, known)| known)
}

/// If a file does not exist, returns a sentence about the subcommand that the user probably meant.
pub(super) fn of_file(path: &Path, command: &clap::Command) -> Option<String> {
    let name = path.to_str().filter(|name| !name.contains(['/', '\\', '.']))?;
    if path.exists() {
        return None;
    }
    let known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    if known.contains(&name) {
        return Some(format!("there is no such file; the command `{name}` must come first"));
    }
    nearest(name, known.iter().copied()).map(|name| {
        format!("there is no such file, but there is a command with a similar name: did you mean `{name}`?")
    })
}

/// Returns the error for a name that is not a subcommand.
pub(super) fn no_command(name: &str, command: &clap::Command) -> Error {
    let known: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    let meant = nearest(name, known.iter().copied());
    let meant = meant.map_or(String::new(), |meant| format!("; did you mean `{meant}`?"));
    Error::invalid_argument(format!("there is no command `{name}`, only {}{meant}", known.join(", ")))
}

/// If nothing is at this path, returns an error that suggests a file with a similar name in the same folder.
/// If there is no such file, returns no error, because opening the path fails with its own error.
pub(super) fn existing(path: &Path) -> Result<(), Error> {
    let meant = if path.exists() { None } else { neighbour(path) };
    meant.map_or(Ok(()), |meant| {
        let (path, meant) = (path.display(), meant.display());
        Err(Error::invalid_argument(format!("{path}: there is no such file; did you mean `{meant}`?")))
    })
}

/// Returns the path in the same folder whose name is most similar.
fn neighbour(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).ok()?.take(MOST_NEIGHBOURS).flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable(); // makes the choice between equally similar names stable
    let names = || names.iter().map(String::as_str);
    let without_ending =
        || names().find(|known| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')));
    let meant = nearest_above(ALIKE_FILES, name, names()).or_else(without_ending);
    meant.map(|meant| path.with_file_name(meant))
}

/// Parses a device; the error suggests the device that the user probably meant.
pub(super) fn device(text: &str) -> Result<DeviceSpec, String> {
    let device = text.parse().map_err(|error: Error| match meant_device(text.trim()) {
        Some(name) => format!("did you mean `{name}`? {}", error.message()),
        None => error.message().to_owned(),
    })?;
    if let DeviceSpec::SimProfile(path) = &device {
        existing(path).map_err(|error| error.message().to_owned())?;
    }
    Ok(device)
}

/// Returns the device that the user probably meant.
fn meant_device(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let likely = [
        format!("sim:{text}"),  // h200, 8GiB, a profile
        format!("cuda:{text}"), // 0
        format!("{text}GiB"),   // sim:8
    ];
    // Logs contain `sim:0`, which is the ordinal of a simulated device.
    let likely = if lower == "sim:0" {
        Some(DeviceSpec::SimH200)
    } else if text.contains('/') && !lower.ends_with(".toml") {
        None // a device file, not a profile
    } else {
        likely.iter().find_map(|text| text.parse().ok())
    };
    let likely = likely.map(|device| device.to_string());
    likely.or_else(|| nearest(&lower, DEVICES).map(str::to_owned))
}

/// Parses a workload; the error suggests the workload that the user probably meant.
pub(super) fn workload(text: &str) -> Result<Workload, String> {
    text.parse().map_err(|error: String| match nearest(text, Workload::ALL.map(Workload::name)) {
        Some(name) => format!("did you mean `{name}`? {error}"),
        None => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_by_a_likely_mistake_and_not_by_another_word() {
        let known = ["pool", "plan", "explain", "cuda_async"];
        for (wrong, right) in [("pol", "pool"), ("explian", "explain"), ("cuda_asnyc", "cuda_async")] {
            assert_eq!(nearest(wrong, known), Some(right));
        }
        assert_eq!(nearest("quantum", known), None);
        assert_eq!(nearest("pool", ["pool"]), None);
    }

    #[test]
    fn a_missing_file_is_told_with_its_neighbour_of_nearly_that_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("snapshot.pickle"), "").unwrap();
        let of = |name: &str| existing(&folder.path().join(name)).map_err(|error| error.to_string());
        assert!(of("snapshto.pickle").unwrap_err().contains("snapshot.pickle`?"));
        assert!(of("snapshot").unwrap_err().contains("snapshot.pickle`?"));
        assert_eq!((of("snapshot.pickle"), of("log.csv"), of("snap")), (Ok(()), Ok(()), Ok(())));
        assert_eq!((of("none/snapshto.pickle"), of("..")), (Ok(()), Ok(())));
    }

    #[test]
    fn a_device_that_does_not_exist_is_told_with_the_one_that_it_probably_means() {
        for (wrong, right) in [
            ("sim:0", "sim:h200"),
            ("h200", "sim:h200"),
            ("H200", "sim:h200"),
            ("h100", "sim:h100"),
            ("a100", "sim:a100"),
            ("sim:h20", "sim:h200"),
            ("sim:80", "sim:80GiB"),
            ("80GiB", "sim:80GiB"),
            ("My/H100.toml", "sim:My/H100.toml"),
            ("1", "cuda:1"),
            ("gpu:0", "cuda:0"),
        ] {
            let error = device(wrong).unwrap_err();
            assert!(error.contains(&format!("did you mean `{right}`?")), "{wrong}: {error}");
            assert!(error.contains("write cuda:0, sim:h200, sim:h100"), "{error}");
        }
        for unknown in ["quantum", "/dev/nvidia0"] {
            assert!(!device(unknown).unwrap_err().contains("did you mean"));
        }
    }

    #[test]
    fn a_path_is_no_mistaken_command() {
        let command = clap::Command::new("program").subcommand(clap::Command::new("explain"));
        let of = |name: &str| of_file(Path::new(name), &command);
        assert_eq!((of("./explian"), of("explian.csv"), of("log")), (None, None, None));
        assert!(of("explian").unwrap().contains("did you mean `explain`?"));
        assert!(of("explain").unwrap().contains("must come first"));
    }
}
