//! Shows how to ask whether a problem fits into a capacity: prints the answer and the best plan for each of
//! minimalloc's problems.
//!
//! ```text
//! minimalloc CAPACITY SECONDS FILE...
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use millpond_planning::{Fit, MinimallocCsv, Options, bounds, fits, plan, validate};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [capacity, seconds, files @ ..] = &arguments[..] else {
        return Err("usage: minimalloc CAPACITY SECONDS FILE...".into());
    };
    let capacity = capacity.parse()?;
    let options = Options::default().time(Duration::from_secs_f64(seconds.parse()?));
    println!("| problem | buffers | load | fits {capacity} | s | planned | ratio | s |");
    println!("|---|---|---|---|---|---|---|---|");
    for file in files {
        let problem = MinimallocCsv::parse(&std::fs::read_to_string(file)?)?.problem()?;
        let start = Instant::now();
        let answer = match fits(&problem, capacity, &options) {
            Fit::Fits(plan) => {
                assert!(
                    validate(&problem, &plan.offsets)? <= capacity,
                    "the validator found a higher placement"
                );
                "yes"
            }
            Fit::Impossible { .. } => "no",
            Fit::Unknown(_) => "unknown",
        };
        let answered = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let plan = plan(&problem, &options);
        let planned = start.elapsed().as_secs_f64();
        let height = validate(&problem, &plan.offsets)?;
        let name = file.rsplit('/').next().unwrap_or(file);
        let (buffers, load) = (problem.blocks().len(), bounds(&problem).bytes);
        let fit = format!("{answer} | {answered:.2}");
        let best = format!("{height} | {:.5} | {planned:.2}", plan.ratio());
        println!("| {name} | {buffers} | {load} | {fit} | {best} |");
    }
    Ok(())
}
