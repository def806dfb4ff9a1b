//! Keeps a run from overwriting its own outputs, and the logs, profiles and plans that it reads.

use std::path::{Path, PathBuf};

use millpond_adaptors::logging::default_file_name;
use millpond_core::stack::{FilePath, FilePlace, StackSpec};
use millpond_core::{DeviceId, Error, Result};
use millpond_driver::DeviceSpec;

use super::input::{is_stream, refuse_two_readers};

/// The parameters that name a file for the layer to write.
const WRITTEN: [(&str, &str); 2] = [("logging", "file"), ("arena", "dump_log_on_failure")];

/// The parameters that name a file for the layer to read.
const READ: [(&str, &str); 1] = [("plan", "file")];

/// The files that a run reads, and the stacks that it builds.
pub(crate) struct Reads<'a> {
    /// The paths of the logs.
    pub(crate) logs: &'a [PathBuf],
    /// The profiles of simulated devices.
    pub(crate) profiles: Vec<&'a Path>,
    pub(crate) stacks: &'a [StackSpec],
    /// The device of the stacks, if it is one device whose ordinal is known in advance.
    pub(crate) device: Option<DeviceId>,
}

impl<'a> Reads<'a> {
    /// Returns the files that a run of stacks on a device reads.
    pub(crate) fn new(logs: &'a [PathBuf], stacks: &'a [StackSpec], device: Option<&'a DeviceSpec>) -> Self {
        let number = match device.map_or_else(DeviceSpec::default_device, DeviceSpec::clone) {
            DeviceSpec::Cuda(ordinal) => Some(DeviceId::cuda(ordinal)),
            _ => None,
        };
        let profile = match device {
            Some(DeviceSpec::SimProfile(file)) => Some(file.as_path()),
            _ => None,
        };
        Self { logs, profiles: profile.into_iter().collect(), stacks, device: number }
    }

    /// Returns an error if a stack would overwrite a file that the run reads, or the output of another stack,
    /// and if the run would read the standard input twice.
    ///
    /// # Errors
    /// The error names the file, and suggests another file.
    pub(crate) fn refuse(&self) -> Result<()> {
        refuse_two_readers(self.logs.iter().map(PathBuf::as_path).chain(self.profiles.iter().copied()))?;
        let mut written: Vec<(&StackSpec, PathBuf)> = Vec::new();
        for stack in self.stacks {
            for file in self.outputs(stack)? {
                let shown = file.display();
                let fail = |why: String| {
                    let advice = "give each output its own file, as in logging:file=replay.csv";
                    Err(Error::invalid_argument(format!(
                        "the stack {stack} would write to {shown}, {why}; {advice}"
                    )))
                };
                if let Some(what) = self.read_from(&file)? {
                    return fail(format!("overwriting {what}"));
                }
                if let Some((other, _)) = written.iter().find(|(_, other)| FilePlace::is_same(other, &file)) {
                    return fail(format!("but {other} also writes to this file"));
                }
                if self.logs.len() > 1 && FilePlace::of(&file).is_file() {
                    let why = "for each input log, so only the result of the last log would remain";
                    return Err(Error::invalid_argument(format!(
                        "the stack {stack} would overwrite {shown} {why}; replay one log at a time"
                    )));
                }
                written.push((stack, file));
            }
        }
        Ok(())
    }

    /// Returns an error if the run reads this file, or if a stack writes to it. `written` names the output,
    /// as in `the profile`.
    ///
    /// # Errors
    /// The error names the file.
    pub(crate) fn refuse_output(&self, written: &str, file: &Path) -> Result<()> {
        if is_stream(file) {
            return Ok(());
        }
        if let Some(what) = self.read_from(file)? {
            return Err(destroys(written, file, what));
        }
        for stack in self.stacks {
            if self.outputs(stack)?.iter().any(|log| FilePlace::is_same(log, file)) {
                let shown = file.display();
                return Err(Error::invalid_argument(format!(
                    "{written} and the log of {stack} would both be written to {shown}; choose another file"
                )));
            }
        }
        Ok(())
    }

    /// Returns the kind of input that the run reads from this file, if any.
    fn read_from(&self, file: &Path) -> Result<Option<&'static str>> {
        let is_file = |read: &Path| FilePlace::is_same(read, file);
        if self.logs.iter().any(|log| is_file(input(log))) {
            return Ok(Some("a log that this run reads"));
        }
        if self.profiles.iter().any(|profile| is_file(profile)) {
            return Ok(Some("a profile that this run reads"));
        }
        for stack in self.stacks {
            if self.files(stack, &READ)?.iter().any(|plan| is_file(plan)) {
                return Ok(Some("a plan that this run reads"));
            }
        }
        Ok(None)
    }

    /// Returns the files that the layers of a stack write.
    fn outputs(&self, stack: &StackSpec) -> Result<Vec<PathBuf>> {
        let mut files = self.files(stack, &WRITTEN)?;
        let logs = stack.all_layers().into_iter().filter(|layer| layer.name == "logging");
        let unnamed = logs.filter(|layer| layer.param("file").is_none()).count();
        // If the environment variable is missing, too, building the stack fails with an error.
        if let (1.., Ok(file)) = (unnamed, default_file_name()) {
            let file = FilePath::new(file).resolve(self.device)?;
            files.extend(std::iter::repeat_n(file, unnamed));
        }
        Ok(files)
    }

    /// Returns the files that the layers of a stack name in these parameters. The paths are resolved as the
    /// layers resolve them.
    fn files(&self, stack: &StackSpec, known: &[(&str, &str)]) -> Result<Vec<PathBuf>> {
        let layers = stack.all_layers().into_iter();
        let named = layers.flat_map(|layer| {
            let of_layer = known.iter().filter(|(name, _)| layer.name == *name);
            of_layer.filter_map(|(_, key)| layer.param(key)?.as_text())
        });
        let path = |text: &str| FilePath::new(text).resolve(self.device);
        let resolved: Result<_> = named.map(path).collect();
        resolved.map_err(|error| error.context(format_args!("the stack {stack}")))
    }
}

/// Returns an error if an imported log would overwrite the imported file.
///
/// # Errors
/// The error names the file.
pub(crate) fn refuse_import(output: &Path, file: &Path) -> Result<()> {
    if !is_stream(output) && FilePlace::is_same(input(file), output) {
        return Err(destroys("the log", output, "the imported file"));
    }
    Ok(())
}

/// Returns an error if two outputs of one run are the same file.
///
/// # Errors
/// The error names the file.
pub(crate) fn refuse_twice(files: &[&Path]) -> Result<()> {
    for (index, file) in files.iter().enumerate() {
        if files[..index].iter().any(|other| FilePlace::is_same(file, other)) {
            let shown = file.display();
            let why = format!("{shown} is named twice; give each output its own file");
            return Err(Error::invalid_argument(why));
        }
    }
    Ok(())
}

fn destroys(written: &str, file: &Path, what: &str) -> Error {
    let shown = file.display();
    Error::invalid_argument(format!(
        "{written} would be written to {shown}, overwriting {what}; choose another file"
    ))
}

/// Returns the path of a log; for `-`, the path of the standard input.
fn input(log: &Path) -> &Path {
    if is_stream(log) { Path::new("/dev/stdin") } else { log }
}
