//! Keeps a run from overwriting the logs, the profiles and the plans that it reads, and its own outputs.

use std::path::{Path, PathBuf};

use millpond_adaptors::logging::default_file_name;
use millpond_core::stack::{FilePath, FilePlace, StackSpec};
use millpond_core::{DeviceId, Error, Result};
use millpond_driver::DeviceSpec;

/// The parameters that name a file which the layer writes.
const WRITTEN: [(&str, &str); 2] = [("logging", "file"), ("arena", "dump_log_on_failure")];

/// The parameters that name a file which the layer reads.
const READ: [(&str, &str); 1] = [("plan", "file")];

/// What a run reads, and the stacks that it builds.
pub(crate) struct Reads<'a> {
    /// The logs.
    pub(crate) logs: &'a [PathBuf],
    /// The profiles of simulated devices.
    pub(crate) profiles: Vec<&'a Path>,
    pub(crate) stacks: &'a [StackSpec],
    /// The device of the stacks, if it is a single one whose number is known before.
    pub(crate) device: Option<DeviceId>,
}

impl<'a> Reads<'a> {
    /// What a run of stacks on a device reads.
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

    /// Refuses stacks that would overwrite a file that is read, or that this run has written.
    ///
    /// # Errors
    /// The file, and another one to name instead.
    pub(crate) fn refuse(&self) -> Result<()> {
        let mut written: Vec<(&StackSpec, PathBuf)> = Vec::new();
        for stack in self.stacks {
            for file in self.outputs(stack)? {
                let shown = file.display();
                let fail = |why: String| {
                    let advice = "give it a file of its own, as in logging:file=replay.csv";
                    Err(Error::invalid_argument(format!(
                        "the stack {stack} would write to {shown}, {why}; {advice}"
                    )))
                };
                if let Some(what) = self.read_from(&file)? {
                    return fail(format!("which is {what}, and destroy it"));
                }
                if let Some((other, _)) = written.iter().find(|(_, other)| FilePlace::is_same(other, &file)) {
                    return fail(format!("where {other} writes its own"));
                }
                if self.logs.len() > 1 && FilePlace::of(&file).is_file() {
                    let why = "anew for each log that is replayed, so that only the last would be left";
                    return Err(Error::invalid_argument(format!(
                        "the stack {stack} would write to {shown} {why}; replay one log at a time"
                    )));
                }
                written.push((stack, file));
            }
        }
        Ok(())
    }

    /// Refuses a file for `written`, as in `the profile`, that is read, or that a stack writes.
    ///
    /// # Errors
    /// The file.
    pub(crate) fn refuse_output(&self, written: &str, file: &Path) -> Result<()> {
        if let Some(what) = self.read_from(file)? {
            return Err(destroys(written, file, what));
        }
        for stack in self.stacks {
            if self.outputs(stack)?.iter().any(|log| FilePlace::is_same(log, file)) {
                let shown = file.display();
                return Err(Error::invalid_argument(format!(
                    "{written} would be written to {shown}, where {stack} writes its log; choose another file"
                )));
            }
        }
        Ok(())
    }

    /// The kind of input that the run reads from this file, if it reads it.
    fn read_from(&self, file: &Path) -> Result<Option<&'static str>> {
        let is_file = |read: &Path| FilePlace::is_same(read, file);
        if self.logs.iter().any(|log| is_file(input(log))) {
            return Ok(Some("a log to read"));
        }
        if self.profiles.iter().any(|profile| is_file(profile)) {
            return Ok(Some("a profile to read"));
        }
        for stack in self.stacks {
            if self.files(stack, &READ)?.iter().any(|plan| is_file(plan)) {
                return Ok(Some("a plan to read"));
            }
        }
        Ok(None)
    }

    /// The files that the layers of a stack write.
    fn outputs(&self, stack: &StackSpec) -> Result<Vec<PathBuf>> {
        let mut files = self.files(stack, &WRITTEN)?;
        let logs = stack.all_layers().into_iter().filter(|layer| layer.name == "logging");
        let unnamed = logs.filter(|layer| layer.param("file").is_none()).count();
        // Without the variable either, building the stack fails with an error.
        if let (1.., Ok(file)) = (unnamed, default_file_name()) {
            let file = FilePath::new(file).resolve(self.device)?;
            files.extend(std::iter::repeat_n(file, unnamed));
        }
        Ok(files)
    }

    /// The files that the layers of a stack name in these parameters, as the layers will find them.
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

/// Refuses a file for an imported log that is the file to import.
///
/// # Errors
/// The file.
pub(crate) fn refuse_import(output: &Path, file: &Path) -> Result<()> {
    if FilePlace::is_same(input(file), output) {
        return Err(destroys("the log", output, "the file to import"));
    }
    Ok(())
}

/// Refuses two outputs of one run that are one file.
///
/// # Errors
/// The file.
pub(crate) fn refuse_twice(files: &[&Path]) -> Result<()> {
    for (index, file) in files.iter().enumerate() {
        if files[..index].iter().any(|other| FilePlace::is_same(file, other)) {
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

/// The file of the standard input, if it is one.
fn input(log: &Path) -> &Path {
    if log == Path::new("-") { Path::new("/dev/stdin") } else { log }
}
