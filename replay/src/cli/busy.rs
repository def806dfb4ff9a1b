//! The command line of `busy`.

use std::path::PathBuf;

use clap::Args;
use millpond_driver::DeviceSpec;
use millpond_engine::program::Limits;
use millpond_measure::busy::{Capacity, Host, Kernels, Settings, Subject};

use super::format::FormatArg;
use super::progress::ProgressArgs;
use super::suggest;

/// Replays logs with kernels running: each allocation launches a kernel
///
/// A freed block stays in use until the kernels that were launched before the free have finished. If another
/// stream reuses the block, that stream waits, and the wait costs time. `busy` shows this cost for each
/// stack. It prints the time until all streams finish, the device memory that the stack uses, and the waits.
/// For comparison, `busy` also runs the kernels without an allocator, and computes the least memory with
/// which no stream waits. The documentation of millpond_measure::busy explains the method and the JSON.
#[derive(Clone, Debug, Args)]
pub(crate) struct BusyArgs {
    /// The logs to replay; `-` is the standard input
    #[arg(value_name = "LOG", required = true)]
    pub(crate) logs: Vec<PathBuf>,

    /// A stack of memory resources to run, with its base first, or `async` for cuMemAllocAsync; can be given
    /// several times [default: cuda+pool, cuda+pool:reuse=own, async]
    #[arg(long = "stack", short = 's', value_name = "SPEC")]
    pub(crate) stacks: Vec<Subject>,

    /// The device on which to run: a GPU (cuda:N), a simulated GPU (sim:h200, sim:h100, sim:a100,
    /// sim:SIZE), or sim:FILE.toml, a simulated GPU with a profile that `calibrate` wrote [default: cuda:0 if
    /// there is a GPU, else sim:h200]
    #[arg(long, short = 'd', value_name = "DEVICE", value_parser = suggest::device)]
    pub(crate) device: Option<DeviceSpec>,

    /// The ranges of the kernels' random durations, in microseconds [default: 5..25,10..100]
    #[arg(long, short = 'k', value_name = "LO..HI,…", value_delimiter = ',')]
    pub(crate) kernels: Vec<Kernels>,

    /// How far the host (the CPU) runs ahead of the device: with `ahead`, the host never waits for kernels;
    /// with `level`, at most 4 kernels of each stream are unfinished; with `sync`, the host waits for each
    /// kernel [default: all]
    #[arg(long, value_name = "HOST,…", value_delimiter = ',')]
    pub(crate) host: Vec<Host>,

    /// The time that the host takes for an allocation and a kernel launch on a simulated device, in
    /// microseconds
    #[arg(long = "host-us", value_name = "N", default_value = "4", value_parser = nanoseconds,
          allow_negative_numbers = true)]
    pub(crate) host_ns: u64,

    /// How many times each stack replays a log
    #[arg(long, short = 'n', value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) passes: u32,

    /// Replay only the first N operations of each log
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) first: Option<u64>,

    /// The device memory that is left to each stack: a size, as in 3GiB, or a percentage of the log's peak of
    /// live bytes, as in 120%. With this option, `busy` counts failed allocations and goes on
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true)]
    pub(crate) capacity: Option<Capacity>,

    /// The seed of the random durations; the same seed gives the same durations
    #[arg(long, default_value_t = 42, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seed: u64,

    /// The format of the results
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) format: FormatArg,

    /// Skip rows that cannot be read, and count them. A log whose last row is incomplete is replayed without
    /// that row even if this option is absent
    #[arg(long)]
    pub(crate) skip_bad_rows: bool,

    #[command(flatten)]
    pub(super) progress: ProgressArgs,
}

impl BusyArgs {
    pub(crate) fn limits(&self) -> Limits {
        Limits::default().skip_bad_rows(self.skip_bad_rows)
    }

    pub(crate) fn settings(&self) -> Settings {
        let or =
            |given: &[Kernels], default: &[Kernels]| if given.is_empty() { default } else { given }.to_vec();
        let named = |text: &&str| text.parse::<Subject>().ok();
        let subjects = match self.stacks.as_slice() {
            // The texts are constants, and a test parses each of them.
            [] => Subject::DEFAULT.iter().filter_map(named).collect(),
            stacks => stacks.to_vec(),
        };
        Settings::new(self.device.clone().unwrap_or_else(DeviceSpec::default_device), subjects)
            .kernels(or(&self.kernels, &[Kernels::SHORT, Kernels::LONG]))
            .hosts(if self.host.is_empty() { Host::ALL.to_vec() } else { self.host.clone() })
            .host_ns(self.host_ns)
            .passes(self.passes)
            .seed(self.seed)
            .first(self.first)
            .capacity(self.capacity)
    }
}

/// Reads microseconds such as 4.5.
fn nanoseconds(text: &str) -> Result<u64, String> {
    match text.trim().parse::<f64>() {
        Ok(us) if (0.0..=1e6).contains(&us) => Ok((us * 1000.0).round() as u64),
        _ => Err("write a number of microseconds from 0 to 1000000, as in 4.5".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::args::{Cli, Command};

    fn parse(line: &str) -> Result<BusyArgs, String> {
        let words = ["millpond-replay", "busy"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Some(Command::Busy(args)) = cli.command else { panic!("{cli:?}") };
        Ok(args)
    }

    #[test]
    fn everything_but_the_log_has_a_default() {
        let settings = parse("log.csv").unwrap().settings();
        let subjects: Vec<String> = settings.subjects.iter().map(ToString::to_string).collect();
        assert_eq!(subjects, Subject::DEFAULT);
        assert_eq!(settings.kernels, [Kernels::SHORT, Kernels::LONG]);
        assert_eq!(settings.hosts, Host::ALL);
        assert_eq!((settings.host_ns, settings.passes, settings.seed), (4000, 3, 42));
        assert_eq!((settings.first, settings.device), (None, DeviceSpec::default_device()));
        assert_eq!(settings.capacity, None);
        assert!(parse("").unwrap_err().contains("<LOG>"));
    }

    #[test]
    fn lists_are_read() {
        let shares = parse("a --capacity 120%").unwrap().settings().capacity;
        assert_eq!(shares, Some(Capacity::PercentOfLive(120.0)));
        let line = "a b -s async -s cuda+pool -k 1..2,10..100 --host sync,ahead --first 9 --host-us 4.5 -n 5";
        let args = parse(line).unwrap();
        let settings = args.settings();
        assert_eq!((args.logs.len(), &settings.subjects[0]), (2, &Subject::Async));
        assert_eq!(settings.kernels[0], Kernels { shortest_ns: 1000, longest_ns: 2000 });
        assert_eq!(settings.hosts, [Host::Sync, Host::Ahead]);
        assert_eq!((settings.first, settings.host_ns, settings.passes), (Some(9), 4500, 5));
    }

    #[test]
    fn mistakes_are_told() {
        for (line, told) in [
            ("a -k 10", "as in 10..100"),
            ("a --host behind", "ahead, level, sync"),
            ("a -s cuda++pool", "a layer's name is missing"),
            ("a --seed 0", "seed"),
            ("a --host-us -1", "as in 4.5"),
            ("a --host-us x", "as in 4.5"),
            ("a --passes 0", "passes"),
            ("a -f xml", "json"),
            ("a --capacity 0%", "as in 120%"),
            ("a --capacity -1", "negative"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(told), "{line}: {error}");
        }
    }
}
