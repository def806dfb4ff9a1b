//! The command line of `bench`.

use clap::{Args, ValueEnum};
use millpond_core::stack::StackSpec;
use millpond_driver::DeviceSpec;
use millpond_measure::bench::{Format, Settings, Workload};

use super::progress::ProgressArgs;
use super::suggest;
use crate::lineup;

/// Measures the cost of allocations on synthetic workloads, and compares the stacks with mimalloc
///
/// A stack is a list of memory resources, in which each resource allocates from the one before it. A step of
/// a workload allocates one block and frees one block. mimalloc, an allocator of CPU memory, runs the same
/// steps. Its time is a lower bound for the bookkeeping of an allocator. The documentation of
/// millpond_measure::bench explains the workloads, the method and the JSON.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchArgs {
    /// A stack to measure, with its base first, as in cuda+pool:max=8GiB; can be given several times
    /// [default: the pools of the standard line-up]
    #[arg(long = "stack", short = 's', value_name = "SPEC")]
    pub(crate) stacks: Vec<StackSpec>,

    /// The device on which to measure: a GPU (cuda:N), a simulated GPU (sim:h200, sim:h100, sim:a100,
    /// sim:SIZE), or sim:FILE.toml, a simulated GPU with a profile that `calibrate` wrote [default: cuda:0 if
    /// there is a GPU, else sim:h200]
    ///
    /// A simulated device gets as much memory as a workload needs. On a GPU, a workload that does not fit is
    /// skipped.
    #[arg(long, short = 'd', value_name = "DEVICE", value_parser = suggest::device)]
    pub(crate) device: Option<DeviceSpec>,

    /// The numbers of threads for workloads with several threads [default: 1,2,4,8,16, with --quick 2]
    #[arg(long, short = 't', value_name = "N,…", value_delimiter = ',', value_parser = thread_count)]
    pub(crate) threads: Vec<usize>,

    /// The workloads to run: pair, churn, churn_large, streams, fragmented, threads_own_stream,
    /// threads_one_stream, cross_thread_free [default: all]
    #[arg(long = "workload", short = 'w', value_name = "NAME", num_args = 1.., value_delimiter = ',',
          value_parser = suggest::workload)]
    pub(crate) workloads: Vec<Workload>,

    /// The format of the results
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) format: BenchFormatArg,

    /// Run fewer steps: with the default stacks, the run ends within 30 seconds, and the figures are rough
    #[arg(long, short = 'q')]
    pub(crate) quick: bool,

    /// The seed of random sizes and choices; the same seed makes the same workloads
    #[arg(long, default_value_t = 42, value_name = "N")]
    pub(crate) seed: u64,

    #[command(flatten)]
    pub(super) progress: ProgressArgs,
}

/// The values of `bench --format`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
pub(crate) enum BenchFormatArg {
    /// A table for people
    #[default]
    Table,
    /// One JSON object
    Json,
}

impl From<BenchFormatArg> for Format {
    fn from(format: BenchFormatArg) -> Self {
        match format {
            BenchFormatArg::Table => Self::Table,
            BenchFormatArg::Json => Self::Json,
        }
    }
}

impl BenchArgs {
    pub(crate) fn settings(&self) -> Settings {
        let device = self.device.clone().unwrap_or_else(DeviceSpec::default_device);
        let stacks = if self.stacks.is_empty() { lineup::pools() } else { self.stacks.clone() };
        Settings::new(device, stacks)
            .workloads(self.workloads.clone())
            .threads(self.threads.clone())
            .seed(self.seed)
            .quick(self.quick)
    }
}

/// The largest number of threads that the option accepts. A larger number is taken for a mistake.
const MOST_THREADS: usize = 1024;

fn thread_count(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(count @ 1..=MOST_THREADS) => Ok(count),
        _ => Err(format!("write numbers from 1 to {MOST_THREADS}, as in 1,4,16")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::args::{Cli, Command};
    use super::*;

    fn parse(line: &str) -> Result<BenchArgs, String> {
        let words = ["millpond-replay", "bench"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Some(Command::Bench(args)) = cli.command else { panic!("{cli:?}") };
        Ok(args)
    }

    #[test]
    fn everything_has_a_default() {
        let settings = parse("").unwrap().settings();
        assert_eq!(settings.stacks, lineup::pools());
        assert!(settings.workloads.is_empty() && settings.threads.is_empty());
        assert_eq!((settings.seed, settings.quick), (42, false));
        assert_eq!(settings.device, DeviceSpec::default_device());
    }

    #[test]
    fn lists_are_read() {
        let args = parse("-t 1,16 -w pair churn_large -s cuda -s cuda+pool -f json --seed 7 -q").unwrap();
        assert_eq!(args.threads, [1, 16]);
        assert_eq!(args.workloads, [Workload::Pair, Workload::ChurnLarge]);
        assert_eq!((args.stacks.len(), args.seed, args.quick), (2, 7, true));
        assert_eq!(Format::from(args.format), Format::Json);
        assert_eq!(Format::from(parse("").unwrap().format), Format::Table);
    }

    #[test]
    fn mistakes_are_told() {
        for (line, told) in [
            ("-t 0", "from 1 to 1024"),
            ("-t 4,x", "from 1 to 1024"),
            ("-w pairs", "threads_own_stream"),
            ("-f csv", "json"),
            ("log.csv", "log.csv"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(told), "{line}: {error}");
        }
    }
}
