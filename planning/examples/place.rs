//! Shows how to plan logs: prints blocks, bound, height, ratio, hardness and seconds for each log.
//!
//! ```text
//! place [seconds=N] [seed=N] [threads=N] [streams | syncs=N] FILE...
//! ```
//!
//! A file is an unpacked CSV log of RMM, or minimalloc's CSV; `-` reads one of these from standard input.
//! `training:N` is a made-up program of N blocks. With `streams`, streams share no address. With `syncs=N`,
//! they share one only after a wait for the device, as if the host waited every N lines.

use std::collections::HashMap;
use std::error::Error;
use std::io::Read;
use std::time::{Duration, Instant};

use millpond_planning::{Block, MinimallocCsv, Options, Order, Problem, plan, synthetic, validate};

/// The alignment of a log's blocks in bytes, as in PyTorch and CUDA.
const ALIGNMENT: u64 = 512;

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Options::default();
    let mut syncs = None;
    println!("| log | blocks | bound | height | ratio | hardness | s |");
    println!("|---|---|---|---|---|---|---|");
    for argument in std::env::args().skip(1) {
        match argument.split_once('=') {
            Some(("seconds", seconds)) => options.time = Duration::from_secs_f64(seconds.parse()?),
            Some(("seed", seed)) => options.seed = seed.parse()?,
            Some(("threads", threads)) => options.threads = threads.parse()?,
            Some(("syncs", lines)) => syncs = Some(lines.parse()?),
            _ if argument == "streams" => syncs = Some(u64::MAX),
            _ => {
                let problem = read(&argument, syncs)?;
                let start = Instant::now();
                let plan = plan(&problem, &options);
                let seconds = start.elapsed().as_secs_f64();
                let height = validate(&problem, &plan.offsets)?;
                assert_eq!(height, plan.height, "the validator measured another height");
                let name = argument.rsplit('/').next().unwrap_or(&argument);
                let (blocks, bound, ratio) = (problem.blocks().len(), plan.bound, plan.ratio());
                let hardness = plan.bounds.hardness();
                println!(
                    "| {name} | {blocks} | {bound} | {height} | {ratio:.5} | {hardness:.3} | {seconds:.2} |"
                );
            }
        }
    }
    Ok(())
}

fn read(name: &str, syncs: Option<u64>) -> Result<Problem, Box<dyn Error>> {
    let blocks = if let Some(count) = name.strip_prefix("training:") {
        synthetic::training(count.parse()?, 1)
    } else {
        let mut text = String::new();
        if name == "-" {
            std::io::stdin().read_to_string(&mut text)?;
        } else {
            text = std::fs::read_to_string(name)?;
        }
        if !text.starts_with("Thread,") {
            return Ok(MinimallocCsv::parse(&text)?.problem()?);
        }
        rmm(&text)?
    };
    let Some(lines) = syncs else { return Ok(Problem::new(blocks, ALIGNMENT)?) };
    let end = blocks.iter().map(|block| block.death).max().unwrap_or(0);
    let waits = (1..=end / lines.max(1)).map(|wait| Order::Device { at: wait * lines });
    Ok(Problem::stream_safe(blocks, ALIGNMENT, waits.collect())?)
}

/// Returns the blocks from RMM's columns Thread, Time, Action, Pointer, Size and Stream. Positions are lines.
fn rmm(text: &str) -> Result<Vec<Block>, Box<dyn Error>> {
    let mut live: HashMap<String, usize> = HashMap::new();
    let mut blocks: Vec<Block> = Vec::new();
    let end = text.lines().count() as u64;
    for (birth, row) in (1..).zip(csv::Reader::from_reader(text.as_bytes()).deserialize()) {
        let [_, _, action, pointer, size, stream]: [String; 6] = row?;
        match action.as_str() {
            "allocate" => {
                let stream = u64::from_str_radix(stream.trim_start_matches("0x"), 16)?;
                live.insert(pointer, blocks.len());
                blocks.push(Block { birth, death: end, size: size.parse()?, stream });
            }
            "free" => {
                if let Some(block) = live.remove(&pointer) {
                    blocks[block].death = birth;
                }
            }
            _ => {}
        }
    }
    Ok(blocks)
}
