//! `millpond-replay calibrate`: its flags, and what it does with them.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::verdict::{Failure, Verdict};
use crate::calibrate::check::{Check, Outcome};
use crate::calibrate::{self, Calibration};
use crate::log::LogReader;
use crate::program::{Limits, Program};
use clap::Args;
use millpond_core::Error;
use millpond_core::stack::{LayerTable, StackSpec};
use millpond_driver::DeviceSpec;
use millpond_driver::sim::Profile;

/// Measures what a device's driver calls cost, and writes a profile that --device sim:FILE.toml reads
///
/// Takes some seconds, and up to 6 GiB of device memory or a quarter of what is free.
#[derive(Clone, Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// The device to measure [default: cuda:0 if there is a GPU, else sim:h200]
    #[arg(long, short = 'd', value_name = "DEVICE")]
    pub(crate) device: Option<DeviceSpec>,

    /// Write the profile to this file; `-` is the standard output
    #[arg(long, short = 'o', value_name = "FILE", required_unless_present = "profile")]
    pub(crate) out: Option<PathBuf>,

    /// Measure nothing: check this profile instead
    #[arg(long, value_name = "FILE", conflicts_with = "out", requires = "check")]
    pub(crate) profile: Option<PathBuf>,

    /// Replay these logs on the device and on a simulated one with the profile, and compare driver time and
    /// memory
    #[arg(long, value_name = "LOG", num_args = 1..)]
    pub(crate) check: Vec<PathBuf>,

    /// A stack to check; may be given several times [default: cuda+pool and cuda+pool:pages=off]
    #[arg(long = "stack", short = 's', value_name = "SPEC", requires = "check")]
    pub(crate) stacks: Vec<StackSpec>,

    /// How often a log goes through each stack on the device; the median is compared
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) runs: u8,
}

/// Measures or reads a profile, and compares logs.
pub(crate) fn run(args: &CalibrateArgs, table: &LayerTable, mut out: impl Write) -> Result<Verdict, Failure> {
    let spec = args.device.clone().unwrap_or_else(DeviceSpec::default_device);
    let device = spec.open()?;
    let profile = match &args.profile {
        Some(path) => Profile::from_file(path)?,
        None => {
            let mut say = |what: &str| tracing::info!(target: "millpond::calibrate", what, "measuring");
            let calibration = calibrate::calibrate(&device, &mut say)?;
            let path = args.out.as_deref().unwrap_or(Path::new("-"));
            write(&calibration, path, &mut out)?;
            calibration.profile
        }
    };
    let check =
        Check { device: &device, profile: &profile, stacks: &args.stacks, runs: args.runs.into(), table };
    let mut outcome = Outcome::default();
    for path in &args.check {
        let program = LogReader::open(path).map_err(crate::Error::from)?;
        let program = Program::read(program, Limits::default())?;
        check.log(&program, &mut outcome, &mut out)?;
        out.flush()?;
    }
    if !args.check.is_empty() {
        let Outcome { worst_time, worst_memory } = outcome;
        writeln!(
            out,
            "farthest from {spec}: driver time {:.1} %, memory {:.2} %",
            100.0 * worst_time,
            100.0 * worst_memory
        )?;
    }
    Ok(Verdict::Fine)
}

fn write(calibration: &Calibration, path: &Path, out: &mut impl Write) -> Result<(), Failure> {
    let text = calibration.to_toml();
    if path == Path::new("-") {
        return Ok(out.write_all(text.as_bytes())?);
    }
    std::fs::write(path, text).map_err(|error| {
        let name = path.display();
        Error::invalid_argument(format!("the profile cannot be written to {name}: {error}")).into()
    })
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
