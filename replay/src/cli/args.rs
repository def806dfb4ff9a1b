//! The command line: each flag with its help text.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use millpond_core::stack::StackSpec;
use millpond_driver::DeviceSpec;
use millpond_engine::program::Limits;
use millpond_engine::{Options, Threads};

use super::bench::BenchArgs;
use super::busy::BusyArgs;
use super::calibrate::CalibrateArgs;
use super::color::ColorArg;
use super::explain::ExplainArgs;
use super::export::ExportArgs;
use super::fidelity::FidelityArgs;
use super::format::FormatArg;
use super::gate::GateArgs;
use super::import::ImportArgs;
use super::peer::Peer;
use super::plan::PlanArgs;
use super::progress::ProgressArgs;
use super::record::RecordArgs;
use super::report::ReportArgs;
use super::run::RunArgs;
use super::shell::{CompletionsArgs, ManArgs};
use super::suggest;
use super::top::TopArgs;
use super::tune::TuneArgs;
use crate::report::Format;

/// Replays allocation logs through stacks of GPU memory resources, and compares the stacks.
///
/// A log is a CSV file that the logging adaptor of RMM or millpond wrote. Its columns are
/// Thread,Time,Action,Pointer,Size,Stream. The file may be plain, or compressed with gzip or zstd. The
/// command also reads other files: for example PyTorch memory snapshots, torch.profiler traces, and SQLite
/// exports from Nsight Systems. `import --help` lists all formats.
///
/// A stack is a list of memory resources. Each one allocates from the resource before it, and the first one
/// (the base) allocates from the driver. No GPU is needed: on a machine without a GPU, the command replays
/// logs on a simulated NVIDIA H200.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "millpond-replay",
    version,
    after_long_help = AFTER_HELP,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub(crate) struct Cli {
    /// A command that does something other than replaying logs
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// The logs to replay; `-` is the standard input
    #[arg(value_name = "LOG", required_unless_present = "list_layers")]
    pub(crate) logs: Vec<PathBuf>,

    /// A stack to replay the logs through, with its base first, as in cuda+pool:max=8GiB; can be given
    /// several times
    ///
    /// Without this option, the command replays each log through several stacks: the standard line-up. It
    /// begins with a model of the allocator that the program used, if the log tells which one this was.
    /// --list-layers prints the layers that a stack can contain, and their parameters.
    #[arg(long = "stack", short = 's', value_name = "SPEC")]
    pub(crate) stacks: Vec<StackSpec>,

    /// An allocator of another project that also replays the logs, as it is: `torch`, or `torch=FOLDER`
    ///
    /// The caching allocator of an installed PyTorch then runs in another process, on a simulated device of
    /// the same size. FOLDER is PyTorch's environment or package; without it, `python3` must find PyTorch. If
    /// the log is a snapshot of PyTorch, its settings count, and otherwise PYTORCH_CUDA_ALLOC_CONF. A C++
    /// compiler is needed. No times are shown, because messages between the processes take most of the time.
    #[arg(long = "peer", value_name = "NAME")]
    pub(crate) peers: Vec<Peer>,

    /// The device on which the logs are replayed: a GPU (cuda:N), a simulated GPU (sim:h200, sim:h100,
    /// sim:a100, or sim:SIZE as in sim:8GiB), or sim:FILE.toml, a simulated GPU with a profile that
    /// `calibrate` wrote [default: cuda:0 if there is a GPU, else sim:h200]
    #[arg(long, short = 'd', value_name = "DEVICE", value_parser = suggest::device)]
    pub(crate) device: Option<DeviceSpec>,

    /// The format of the results
    #[arg(long, short = 'f', value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) format: FormatArg,

    /// Show all figures of all stacks, and count the driver calls by kind
    #[arg(long)]
    pub(crate) details: bool,

    /// Which threads replay the log, and in which order
    #[arg(long, short = 't', value_enum, default_value_t, value_name = "ORDER")]
    pub(crate) threads: ThreadsArg,

    /// How many times (passes) each stack replays a log; with several passes, the results show the first, the
    /// last and the fastest pass
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeat: u32,

    /// Skip rows that cannot be read, and count them. A log whose last row is incomplete is replayed without
    /// that row even if this option is absent
    #[arg(long)]
    pub(crate) skip_bad_rows: bool,

    #[command(flatten)]
    pub(super) progress: ProgressArgs,

    /// When to show colours; the environment variable NO_COLOR also turns them off
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", global = true)]
    pub(crate) color: ColorArg,

    /// Print the layers that a stack can contain, and their parameters; then exit
    #[arg(long)]
    pub(crate) list_layers: bool,
}

/// The commands, except replaying logs.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    Bench(BenchArgs),
    Busy(BusyArgs),
    Calibrate(CalibrateArgs),
    Completions(CompletionsArgs),
    Explain(ExplainArgs),
    Export(ExportArgs),
    Fidelity(FidelityArgs),
    Gate(GateArgs),
    Import(ImportArgs),
    Man(ManArgs),
    Plan(PlanArgs),
    Record(RecordArgs),
    Report(ReportArgs),
    Run(RunArgs),
    Top(TopArgs),
    Tune(TuneArgs),
}

const AFTER_HELP: &str = "\
Examples:
  millpond-replay app.csv.gz
      replay the log through several stacks (the standard line-up), on the GPU if there is one
  millpond-replay app.csv --stack cuda+pool --stack cuda+pool:max=20GiB+binning --device sim:24GiB
      find out whether the job that wrote the log fits on a 24 GiB card
  millpond-replay logs/*.csv.zst --format json | jq -r '.stacks[] | [.spec, .reserved_over_live_first] | @tsv'
      print one JSON object per log, each on its own line; the documentation of millpond_replay::report
      explains the fields
  millpond-replay bench --quick
      measure the cost of allocations on synthetic workloads, and compare with mimalloc; this needs no log
  millpond-replay busy app.csv.gz --stack cuda+pool
      launch a kernel with each allocation, and show the cost of reusing blocks of other streams
  millpond-replay calibrate --out my.toml --check app.csv.gz
      measure the GPU, write my.toml for `--device sim:my.toml`, and compare replays of a log on both devices
  millpond-replay import snapshot.pickle --output log.csv.gz
      print the contents of a PyTorch memory snapshot and the data that it lacks, and write it as a log
  millpond-replay explain snapshot.pickle
      show what uses the memory, why requests failed, and how to need less memory
  millpond-replay tune snapshot.pickle
      find the settings of PyTorch's allocator with which the program needs the least memory
  millpond-replay report snapshot.pickle -o report.html
      show the explanation, with charts, in one HTML page
  millpond-replay gate snapshot.pickle --budget budget.toml
      fail a build if the program's memory is over the budget; --write creates the budget
  millpond-replay top 4213
      watch the memory of a running program that was started with MILLPOND_WATCH=1
  millpond-replay record pytorch
      print the lines to add to a PyTorch program so that it writes a memory snapshot
  millpond-replay ./bench
      replay a log whose name (`bench`) is also the name of a command

Figures:
  peak live     the most bytes that the log had live at one time, with the requests that failed when the log
                was written
  peak taken    the most bytes that a stack had allocated from the driver at one time, with the same requests;
                with --repeat and --details, in the first pass (in which the stack grows) and, without these
                requests, in the last pass
  taken / live  peak taken divided by peak live; no allocator that serves every request can be below 1
  ns/op         time per operation of the log, spent in the stack and in the driver; driver time is virtual
                on a simulated device; with --repeat, in the first pass and in the fastest pass
  driver calls  the number of driver calls; with --repeat, in the first pass and in the fastest pass

With --details:
  taken / apart (only for logs with several streams) peak taken divided by the least memory that an allocator
                needs if its streams share no memory
  failures      allocations that failed; `failed then, served now` counts the log's rows `allocate failure`
                that the stack serves

Exit status:
  0  every stack named with --stack served every row; without --stack, one stack that served every row is
     enough
  1  a stack could not be built, or refused an invalid free; a stack named with --stack did not serve a row,
     or without --stack, no stack served every row (also if a row `allocate failure` fails again);
     `calibrate --check` found the simulated device too different from the real one; `gate` found the memory
     over its budget; `plan` or `tune` found no solution that is sure to fit into --capacity; `plan` wrote no
     plan because the pool needs less memory without the plan
  2  a log, a stack's text, the device or the command line is wrong; a stack would overwrite a log; or an
     output cannot be written

Environment:
  MILLPOND_LOG    selects the diagnostics on the standard error, as in `debug` or `millpond=trace`
  MILLPOND_WATCH  lets `top` watch this process; if it names a folder, `top` looks for programs there
  NO_COLOR        turns colours off if it is not empty; CLICOLOR_FORCE=1 turns them on without a terminal";

/// The values of `--threads`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
pub(crate) enum ThreadsArg {
    /// One thread for each thread of the log; only one of them runs at a time, strictly in the log's order
    AsLogged,
    /// One thread for each thread of the log; all run at the same time, and a block is freed only after its
    /// allocation
    Free,
    /// A single thread, in the log's order
    #[default]
    #[value(name = "1")]
    One,
}

impl From<ThreadsArg> for Threads {
    fn from(threads: ThreadsArg) -> Self {
        match threads {
            ThreadsArg::AsLogged => Self::AsLogged,
            ThreadsArg::Free => Self::Free,
            ThreadsArg::One => Self::One,
        }
    }
}

impl Cli {
    /// Returns the limits for reading logs.
    pub(crate) fn limits(&self) -> Limits {
        Limits::default().skip_bad_rows(self.skip_bad_rows)
    }

    /// Returns the format of the results. Only the table format has a variant with details.
    pub(crate) fn format(&self) -> Format {
        match Format::from(self.format) {
            Format::Table if self.details => Format::Details,
            format => format,
        }
    }

    /// Returns the options of the replay.
    pub(crate) fn options(&self) -> Options {
        Options::default().threads(self.threads.into()).passes(self.repeat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, String> {
        let words = std::iter::once("millpond-replay").chain(line.split_whitespace());
        Cli::try_parse_from(words).map_err(|error| error.to_string())
    }

    #[test]
    fn definitions_hold_together() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn logs() {
        assert_eq!(parse("a.csv b.csv").unwrap().logs.len(), 2);
        assert!(parse("").unwrap_err().contains("<LOG>"));
    }

    #[test]
    fn bench_is_a_command_and_a_path_to_a_file_of_that_name_is_a_log() {
        assert!(matches!(parse("bench --quick").unwrap().command, Some(Command::Bench(_))));
        let cli = parse("./bench").unwrap();
        assert!(cli.command.is_none() && cli.logs == [PathBuf::from("./bench")]);
        assert_eq!(parse("--skip-bad-rows bench").unwrap().logs.len(), 1);
    }

    #[test]
    fn stack_and_device_say_what_is_wrong_with_their_text() {
        let cli = parse("a --stack cuda -s cuda+pool:max=1GiB -d sim:8GiB").unwrap();
        assert_eq!(cli.stacks[1].to_string(), "cuda+pool:max=1GiB");
        assert_eq!(cli.device, Some(DeviceSpec::SimCapacity(8 << 30)));
        assert!(parse("a --stack cuda++pool").unwrap_err().contains("a layer's name is missing"));
        assert!(parse("a --device gpu").unwrap_err().contains("write cuda:0"));
        assert_eq!(parse("a").unwrap().device, None);
    }

    #[test]
    fn threads_and_repeat() {
        let options = parse("a").unwrap().options();
        assert_eq!((options.threads, options.passes), (Threads::One, 1));
        assert_eq!(parse("a --threads as-logged").unwrap().options().threads, Threads::AsLogged);
        assert_eq!(parse("a --threads free").unwrap().options().threads, Threads::Free);
        assert_eq!(parse("a --repeat 2").unwrap().options().passes, 2);
        assert!(parse("a --repeat 0").is_err());
        assert!(parse("a --threads 2").unwrap_err().contains("as-logged"));
    }

    #[test]
    fn format() {
        assert_eq!(parse("a").unwrap().format(), Format::Table);
        assert_eq!(parse("a --format json").unwrap().format(), Format::Json);
        assert_eq!(parse("a -f csv").unwrap().format(), Format::Csv);
        assert_eq!(parse("a --details").unwrap().format(), Format::Details);
        assert_eq!(parse("a --details -f json").unwrap().format(), Format::Json);
    }

    #[test]
    fn skip_bad_rows_and_list_layers() {
        assert!(!parse("a").unwrap().limits().skip_bad_rows);
        assert!(parse("a --skip-bad-rows").unwrap().limits().skip_bad_rows);
        assert!(parse("--list-layers").unwrap().list_layers);
    }
}
