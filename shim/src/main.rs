//! The judge of other projects' allocators on the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use millpond_shim::{Allocator, EntryPoints, Judge, Plant, Shim};

const USAGE: &str = "\
Runs random programs over allocators of other projects, on a simulated device that checks stream order.

Usage: millpond-judge [OPTIONS] LIBRARY...

Arguments:
  LIBRARY...         shared libraries with the functions of shim/judge/allocator.h

Options:
  --operations N     stop after N operations [default: 1000000]
  --seed N           run only the program of this seed (MILLPOND_SEED does the same)
  --first-seed N     run the programs from this seed on [default: 0]
  --workers N        run N programs at the same time [default: the number of cores]
  --scale N          make devices and requests N times as large [default: 1]
  --races N          then let eight threads race over the allocator N times [default: 4]
  --plant FAULT      plant a fault under the allocator, which must then be found: waits (a stream does not
                     wait for events), queries (each event seems done), or synchronisations (a thread does
                     not wait for streams)
  --no-captures      capture no graphs, and open no scopes for them
  --keep-streams     destroy no stream before a program's end
  --one-thread       use the default streams of one thread only

The last three options look past a fault that is known already.

The exit code is 0 if every allocator passes, 1 if a program breaks a rule, and 2 if a library cannot be used.
";

/// The command line's options.
struct Options {
    judge: Judge,
    plant: Option<Plant>,
    libraries: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match options(&arguments).and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("millpond-judge: {problem}");
            ExitCode::from(2)
        }
    }
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut judge = Judge::new(1_000_000);
    let (mut libraries, mut plant) = (Vec::new(), None);
    let mut seed = millpond_core::environment::variable("MILLPOND_SEED")
        .map(|text| number("MILLPOND_SEED", text.to_str()))
        .transpose()?;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--plant" {
            plant = Some(arguments.next().ok_or("--plant needs a fault")?.parse()?);
            continue;
        }
        let mut value = || number(argument, arguments.next().map(String::as_str));
        match argument.as_str() {
            "--no-captures" => judge.captures = false,
            "--keep-streams" => judge.destroys = false,
            "--one-thread" => judge.threads = false,
            "--scale" => judge.scale = value()?,
            "--races" => judge.races = value()?,
            "--operations" => judge.operations = value()?,
            "--seed" => seed = Some(value()?),
            "--first-seed" => judge.seeds.start = value()?,
            "--workers" => judge.workers = value()? as usize,
            _ if argument.starts_with('-') => return Err(format!("no option {argument}; try --help")),
            _ => libraries.push(PathBuf::from(argument)),
        }
    }
    if let Some(seed) = seed {
        judge.seeds = seed..seed.saturating_add(1);
    }
    if libraries.is_empty() {
        return Err("name a library; try --help".to_owned());
    }
    Ok(Options { judge, plant, libraries })
}

/// Reads a number; as in Rust, `_` may stand between digits.
fn number(name: &str, text: Option<&str>) -> Result<u64, String> {
    let text = text.ok_or_else(|| format!("{name} needs a number"))?;
    text.replace('_', "").parse().map_err(|_| format!("{name} needs a number, and {text} is none"))
}

/// Judges every library; returns whether all passed.
fn run(options: &Options) -> Result<bool, String> {
    let _shim = Shim::next_to_program(options.plant.map_or(EntryPoints::OWN, Plant::entry_points))?;
    let mut all_passed = true;
    for library in &options.libraries {
        let verdict = options.judge.judge(&Allocator::open(library)?);
        println!("{verdict}");
        all_passed &= verdict.result.is_ok();
    }
    Ok(all_passed)
}
