//! Compares the model of PyTorch's allocator with the allocator itself, after each call.
//!
//! ```sh
//! cargo run -p millpond-snapshot --example beside_pytorch -- --folder FOLDER --calls 100000 [LOG...]
//! ```
//!
//! Both serve the same random calls, and the calls of each log, with several settings and devices. After each
//! call, their reserved bytes must be the same, and both or none must have failed. If they differ, the calls
//! are shrunk and printed. FOLDER has PyTorch; without it, `python3` finds PyTorch. `scripts/peers.sh` runs
//! this program.

mod calls;
mod pair;

use std::path::PathBuf;
use std::process::ExitCode;

use calls::Call;
use millpond_testkit::Rng;
use pair::{Difference, Pair};

/// The settings that random calls and logs meet: the parameters of the layer `torch`.
const SETTINGS: &[&str] = &[
    "",
    "roundup_power2_divisions=4",
    "roundup_power2_divisions=\"[16:2,64:8,>:1]\"",
    "max_split_size_mb=32",
    "max_split_size_mb=21,max_non_split_rounding_mb=40",
    "large_segment_size_mb=40,max_split_size_mb=64",
    "large_segment_size_mb=12,max_split_size_mb=32",
    "limit=70%",
    "garbage_collection_threshold=0.5,limit=80%",
    "garbage_collection_threshold=0.2,limit=60%,max_split_size_mb=32",
    "expandable_segments=True",
    "expandable_segments=True,max_split_size_mb=32",
    "expandable_segments=True,limit=70%,garbage_collection_threshold=0.6",
    "expandable_segments=True,roundup_power2_divisions=2,large_segment_size_mb=32",
];

/// The devices of the random calls. On the small ones, requests fail.
const DEVICES: [&str; 4] = ["sim:96MiB", "sim:512MiB", "sim:3GiB", "sim:40GiB"];

/// The calls of one random program.
const PROGRAM: u64 = 400;

#[derive(Default)]
struct Options {
    folder: Option<String>,
    calls: u64,
    seed: u64,
    only: Option<String>,
    logs: Vec<PathBuf>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { calls: 100_000, ..Options::default() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        let number =
            |text: String| text.replace('_', "").parse().map_err(|_| format!("`{text}` is no number"));
        match argument.as_str() {
            "--folder" => options.folder = Some(value()?),
            "--calls" => options.calls = number(value()?)?,
            "--seed" => options.seed = number(value()?)?,
            "--settings" => options.only = Some(value()?),
            _ => options.logs.push(argument.into()),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("beside_pytorch: {problem}");
            ExitCode::from(2)
        }
    }
}

/// Runs everything, and returns how many of the settings, devices and logs differ.
fn run(options: &Options) -> Result<u64, String> {
    let mut wrong = 0;
    // While this pair lives, the program around PyTorch's allocator is not compiled again.
    let _first = Pair::new("", DEVICES[0], options.folder.as_deref())?;
    let mut total = 0;
    let chosen = |settings: &&&str| options.only.as_ref().is_none_or(|only| only == **settings);
    for settings in SETTINGS.iter().filter(chosen) {
        for device in DEVICES {
            let mut pair = Pair::new(settings, device, options.folder.as_deref())?;
            let result = random(&mut pair, options);
            wrong += u64::from(!report(settings, device, &pair, result));
            total += pair.calls;
        }
        for log in &options.logs {
            let calls = calls::of_log(log)?;
            for share in [1.02, 2.0] {
                let device = format!("sim:{}", (calls.peak_live_bytes as f64 * share) as u64 + (64 << 20));
                let mut pair = Pair::new(settings, &device, options.folder.as_deref())?;
                let result = pair.run(&calls.calls).map_err(|difference| difference.to_string());
                wrong += u64::from(!report(settings, &format!("{device} {}", log.display()), &pair, result));
                total += pair.calls;
            }
        }
    }
    println!("{total} calls, {wrong} differences");
    Ok(wrong)
}

/// Runs random programs one after another, until the number of calls is reached.
fn random(pair: &mut Pair, options: &Options) -> Result<(), String> {
    for seed in options.seed.. {
        if pair.calls >= options.calls {
            break;
        }
        let calls = calls::random(&mut Rng::new(seed), PROGRAM, pair.device_bytes);
        if let Err(difference) = pair.run(&calls) {
            let text = difference.to_string();
            let (calls, again) = shrink(pair, calls, difference)?;
            let texts: Vec<String> = calls.iter().map(Call::to_string).collect();
            return Err(format!("seed {seed}: {text}\nshrunk: {again}\n  {}", texts.join("\n  ")));
        }
    }
    Ok(())
}

/// Leaves out calls as long as the rest still differs. Each try has a new process of PyTorch's allocator.
fn shrink(pair: &Pair, mut calls: Vec<Call>, found: Difference) -> Result<(Vec<Call>, Difference), String> {
    let mut size = calls.len() / 2;
    let mut last = found;
    while size > 0 {
        let mut at = 0;
        while at < calls.len() {
            let mut fewer = calls.clone();
            fewer.drain(at..(at + size).min(calls.len()));
            match pair.again()?.run(&fewer) {
                Err(difference) => {
                    fewer.truncate(difference.at + 1);
                    (calls, last) = (fewer, difference);
                }
                Ok(()) => at += size,
            }
        }
        size /= 2;
    }
    Ok((calls, last))
}

fn report(settings: &str, device: &str, pair: &Pair, result: Result<(), String>) -> bool {
    let settings = if settings.is_empty() { "default settings" } else { settings };
    let figures = format!("{} calls, {} refused, {} segments", pair.calls, pair.refused, pair.grown);
    match result {
        Ok(()) => println!("same: {settings}, {device}: {figures}"),
        Err(ref why) => println!("DIFFERENT: {settings}, {device}: {figures}: {why}"),
    }
    result.is_ok()
}
