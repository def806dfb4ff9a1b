//! Keeps a run from overwriting the logs and the profiles that it reads, and its own outputs.

use std::fs;
use std::path::{Path, PathBuf};

use millpond_adaptors::logging::default_file_name;
use millpond_core::Error;
use millpond_core::stack::StackSpec;
use millpond_driver::DeviceSpec;

/// Refuses stacks whose `logging` would overwrite a log or a profile that is read, or a log that this run has
/// written.
///
/// # Errors
/// The file, and another one to name instead.
pub(crate) fn refuse(logs: &[PathBuf], profiles: &[&Path], stacks: &[StackSpec]) -> Result<(), Error> {
    let mut written: Vec<(&StackSpec, PathBuf)> = Vec::new();
    for stack in stacks {
        for file in outputs(stack) {
            let shown = file.display();
            let fail = |why: String| {
                let advice = "give it a file of its own, as in logging:file=replay.csv";
                Err(Error::invalid_argument(format!(
                    "the stack {stack} would write its log to {shown}, {why}; {advice}"
                )))
            };
            if logs.iter().any(|log| is_same(input(log), &file)) {
                return fail("which is a log to replay, and destroy it".to_owned());
            }
            if profiles.iter().any(|profile| is_same(profile, &file)) {
                return fail("which is a profile to read, and destroy it".to_owned());
            }
            if let Some((other, _)) = written.iter().find(|(_, other)| is_same(other, &file)) {
                return fail(format!("where {other} writes its own"));
            }
            // A device or a pipe does not count as the same as itself.
            if logs.len() > 1 && is_same(&file, &file) {
                let why = "anew for each log that is replayed, so that only the last would be left";
                return Err(Error::invalid_argument(format!(
                    "the stack {stack} would write its log to {shown} {why}; replay one log at a time"
                )));
            }
            written.push((stack, file));
        }
    }
    Ok(())
}

/// Refuses a file for `written`, as in `the profile`, that is a log or a profile to read, or that a stack's
/// `logging` writes.
///
/// # Errors
/// The file.
pub(crate) fn refuse_output(
    written: &str,
    file: &Path,
    logs: &[PathBuf],
    profiles: &[&Path],
    stacks: &[StackSpec],
) -> Result<(), Error> {
    let shown = file.display();
    let fail = |what: &str| Err(destroys(written, file, what));
    if logs.iter().any(|log| is_same(input(log), file)) {
        return fail("a log to read");
    }
    if profiles.iter().any(|profile| is_same(profile, file)) {
        return fail("the profile of the device");
    }
    match stacks.iter().find(|stack| outputs(stack).any(|log| is_same(&log, file))) {
        Some(stack) => Err(Error::invalid_argument(format!(
            "{written} would be written to {shown}, where {stack} writes its log; choose another file"
        ))),
        None => Ok(()),
    }
}

/// Refuses a file for an imported log that is the file to import.
///
/// # Errors
/// The file.
pub(crate) fn refuse_import(output: &Path, file: &Path) -> Result<(), Error> {
    if is_same(input(file), output) {
        return Err(destroys("the log", output, "the file to import"));
    }
    Ok(())
}

/// Refuses two outputs of one run that are one file.
///
/// # Errors
/// The file.
pub(crate) fn refuse_twice(files: &[&Path]) -> Result<(), Error> {
    for (index, file) in files.iter().enumerate() {
        if files[..index].iter().any(|other| is_same(file, other)) {
            let shown = file.display();
            let why = format!("{shown} is named twice; give each output a file of its own");
            return Err(Error::invalid_argument(why));
        }
    }
    Ok(())
}

fn destroys(written: &str, file: &Path, what: &str) -> Error {
    let shown = file.display();
    Error::invalid_argument(format!(
        "{written} would be written to {shown}, which is {what}, and destroy it; choose another file"
    ))
}

/// The file that a simulated device's profile is read from.
pub(crate) fn profile(device: Option<&DeviceSpec>) -> Option<&Path> {
    if let Some(DeviceSpec::SimProfile(file)) = device { Some(file) } else { None }
}

/// The files that a stack's `logging` layers write. A layer without one is skipped: building it fails with an
/// error.
fn outputs(stack: &StackSpec) -> impl Iterator<Item = PathBuf> {
    stack.all_layers().into_iter().filter(|layer| layer.name == "logging").filter_map(|layer| {
        let file = layer.param("file").and_then(|file| file.as_text());
        file.map(PathBuf::from).or_else(|| default_file_name().ok())
    })
}

/// The file of the standard input, if it is one.
fn input(log: &Path) -> &Path {
    if log == Path::new("-") { Path::new("/dev/stdin") } else { log }
}

/// Whether both are one file, after following links. Devices and pipes do not count: nothing in them is
/// overwritten.
fn is_same(a: &Path, b: &Path) -> bool {
    is_same_existing(a, b) || canonical(a).is_some_and(|a| canonical(b) == Some(a))
}

#[cfg(unix)]
fn is_same_existing(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id =
        |path| fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|data| (data.dev(), data.ino()));
    id(a).is_some_and(|a| id(b) == Some(a))
}

#[cfg(not(unix))]
fn is_same_existing(_: &Path, _: &Path) -> bool {
    false
}

/// The path without links, also if the file does not exist yet; `None` if it is not a file.
fn canonical(path: &Path) -> Option<PathBuf> {
    if let Ok(data) = fs::metadata(path) {
        return if data.is_file() { fs::canonicalize(path).ok() } else { None };
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(fs::canonicalize(folder).ok()?.join(path.file_name()?))
}
