//! The command line of `calibrate`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use millpond_core::Error;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_driver::DeviceSpec;
use millpond_driver::sim::Profile;
use millpond_engine::program::{Limits, Program};
use millpond_engine::text::STANDARD_INPUT;
use millpond_measure::calibrate::check::{Check, MEMORY_TOLERANCE, Outcome, TIME_TOLERANCE};
use millpond_measure::calibrate::{self, Calibration};

use super::input::{check, is_stream, read, text};
use super::overwrite::Reads;
use super::verdict::{self, Failure, Verdict};
use super::{output, suggest};
use crate::progress::Progress;

/// Measures the time of a device's driver calls, and writes a profile for --device sim:FILE.toml
///
/// The measurement takes some seconds. It uses at most a quarter of the free device memory, and at most 6
/// GiB. With --check, the exit status is 1 in two cases: a stack fails, or the simulated device differs too
/// much from the real one. The limits are 15 % of the fastest run's driver time, and 1 % of the memory.
#[derive(Clone, Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// The device to measure; a simulated device is measured only if you name it [default: cuda:0]
    #[arg(long, short = 'd', value_name = "DEVICE", value_parser = suggest::device)]
    pub(crate) device: Option<DeviceSpec>,

    /// The file for the profile; `-` is the standard output, and then --check prints its results to the
    /// standard error
    #[arg(long, short = 'o', value_name = "FILE", required_unless_present = "profile")]
    pub(crate) out: Option<PathBuf>,

    /// A file with a profile to check with --check; no device is measured. `-` is the standard input
    #[arg(long, value_name = "FILE", conflicts_with = "out", requires = "check")]
    pub(crate) profile: Option<PathBuf>,

    /// Logs to replay on the device, and on a simulated device with the profile. The command compares the
    /// driver time and the memory of both replays. `-` is the standard input
    #[arg(long, value_name = "LOG", num_args = 1..)]
    pub(crate) check: Vec<PathBuf>,

    /// A stack to check; can be given several times [default: cuda+pool and cuda+pool:pages=off]
    #[arg(long = "stack", short = 's', value_name = "SPEC", requires = "check")]
    pub(crate) stacks: Vec<StackSpec>,

    /// How many times each stack replays a log on the device; the fastest of these runs is compared
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) runs: u8,
}

impl CalibrateArgs {
    /// Returns the file for the profile, if there is one.
    fn file(&self) -> Option<&Path> {
        self.out.as_deref().filter(|path| !is_stream(path))
    }
}

/// Measures or reads a profile, and replays logs to check the profile.
pub(crate) fn run(args: &CalibrateArgs, table: &LayerTable, mut out: impl Write) -> Result<Verdict, Failure> {
    // Errors in stacks, files and the device are reported before anything is measured.
    check(&args.stacks, table)?;
    // The stacks are also built on simulated devices, whose ordinals are not known here.
    let mut reads = Reads { device: None, ..Reads::new(&args.check, &args.stacks, args.device.as_ref()) };
    reads.profiles.extend(args.profile.as_deref());
    reads.refuse()?;
    if let Some(file) = args.file() {
        reads.refuse_output("the profile", file)?;
    }
    let spec = args.device.clone().unwrap_or(DeviceSpec::Cuda(0));
    let device =
        spec.open().map_err(|error| if args.device.is_none() { without_gpu(&error) } else { error })?;
    let known = args.profile.as_deref().map(known).transpose()?;
    let (mut programs, mut verdict) = (Vec::new(), Verdict::Fine);
    for log in &args.check {
        match read(log, Limits::default(), Progress::new(false)) {
            Ok(program) => programs.push(program),
            // If one log fails, the other logs are still compared.
            Err(error) => verdict = verdict.max(Verdict::of(Err(error.into()))),
        }
    }
    if programs.is_empty() && !args.check.is_empty() {
        return Ok(verdict);
    }
    let profile = match known {
        Some(profile) => profile,
        None => {
            args.file().map_or(Ok(()), can_be_written)?;
            let mut say = |what: &str| tracing::info!(target: "millpond::calibrate", what, "measuring");
            let calibration = calibrate::calibrate(&device, &mut say)?;
            write(&calibration, args.file(), &mut out)?;
            calibration.profile
        }
    };
    let check = Check::new(&device, &profile, table).stacks(&args.stacks).runs(args.runs.into());
    // The standard output holds only the profile, so that it can be read back.
    let checked = if args.profile.is_none() && args.file().is_none() {
        compare(&check, &programs, &spec, &mut io::stderr().lock())?
    } else {
        compare(&check, &programs, &spec, &mut out)?
    };
    Ok(verdict.max(checked))
}

/// Reads a profile.
fn known(path: &Path) -> Result<Profile, Error> {
    if is_stream(path) { Profile::from_toml(&text(path)?, STANDARD_INPUT) } else { Profile::from_file(path) }
}

/// Explains why a simulated device is measured only if the user names it: the profile already contains its
/// costs.
fn without_gpu(error: &Error) -> Error {
    Error::new(
        error.kind(),
        format!(
            "cuda:0 cannot be measured ({error}); to measure a simulated device, name it, as in --device \
             sim:h200"
        ),
    )
}

/// Compares the logs, and prints how far the profile differs from the device.
fn compare(
    check: &Check<'_>,
    programs: &[Program],
    spec: &DeviceSpec,
    out: &mut impl Write,
) -> Result<Verdict, Failure> {
    if programs.is_empty() {
        return Ok(Verdict::Fine);
    }
    let mut outcome = Outcome::default();
    for program in programs {
        check.log(program, &mut outcome, out)?;
        out.flush()?;
    }
    let percent = |share: f64| 100.0 * share;
    writeln!(
        out,
        "largest difference from {spec}: driver time {:.1} % (limit {} %), memory {:.2} % (limit {} %)",
        percent(outcome.worst_time),
        percent(TIME_TOLERANCE),
        percent(outcome.worst_memory),
        percent(MEMORY_TOLERANCE)
    )?;
    outcome.failures.iter().for_each(|failure| verdict::report(failure));
    Ok(if outcome.is_within_tolerance() { Verdict::Fine } else { Verdict::StackFailed })
}

/// Writes to the file, or to the standard output if there is none.
fn write(calibration: &Calibration, file: Option<&Path>, out: &mut impl Write) -> Result<(), Failure> {
    let text = calibration.to_toml();
    let Some(path) = file else { return Ok(out.write_all(text.as_bytes())?) };
    output::replace(path, |file| file.write_all(text.as_bytes()))
        .map_err(|error| unwritable(path, &error).into())
}

/// Checks that the file can be written. The check does not change the file's content.
fn can_be_written(path: &Path) -> Result<(), Error> {
    let opened = fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &io::Error) -> Error {
    Error::invalid_argument(format!("the profile cannot be written to {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::{Cli, Command};

    fn parse(line: &str) -> Result<CalibrateArgs, String> {
        let words = ["millpond-replay", "calibrate"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Some(Command::Calibrate(args)) = cli.command else { panic!("{cli:?}") };
        Ok(args)
    }

    #[test]
    fn a_profile_is_written_or_read() {
        let args = parse("--device sim:8GiB --out a.toml --check a.csv b.csv --stack cuda+pool").unwrap();
        assert_eq!(args.device, Some(DeviceSpec::SimCapacity(8 << 30)));
        assert_eq!((args.check.len(), args.stacks.len(), args.runs), (2, 1, 5));
        assert!(parse("--profile a.toml --check a.csv").unwrap().out.is_none());
        for (line, told) in [
            ("", "--out"),
            ("--profile a.toml", "--check"),
            ("--profile a.toml --check a --out b.toml", "cannot be used with"),
            ("--out a.toml --stack cuda", "--check"),
            ("--out a.toml --runs 0", "--runs"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(told), "{line}: {error}");
        }
    }
}
