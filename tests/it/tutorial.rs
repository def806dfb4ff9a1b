//! Tests that the program of the tutorial prints the lines that the tutorial shows.

use millpond::containers::{DeviceBuffer, Stream};
use millpond::driver::{DeviceSpec, StreamFlags};
use millpond::stack::StackSpec;
use millpond::{AnyResource, DeviceMemoryResourceExt, Result};
use millpond_testkit::own_process;

const PAGE: &str = include_str!("../../docs/book/src/tutorial.md");
const MIB: u64 = 1 << 20;

/// The page's function `job`, which returns the text that the page's program prints.
fn job(stack: &str) -> Result<String> {
    let device = "sim:512MiB".parse::<DeviceSpec>()?.open()?;
    let stack: AnyResource = stack.parse::<StackSpec>()?.build(&millpond::layers(), &device)?;
    let stream = Stream::new(device, StreamFlags::NON_BLOCKING)?;
    let mut results = Vec::new();
    for _ in 0..60 {
        results.push(DeviceBuffer::new(6 * MIB, &stream, stack.clone())?);
    }
    let _kept: Vec<_> = results.into_iter().step_by(2).collect();
    let large = DeviceBuffer::new(200 * MIB, &stream, stack.clone())?;
    Ok(format!("{} bytes at {}\n{}", large.len(), large.as_ptr(), stack.memory_report()))
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The page's outputs of the program; each has the pieces between its lines `…`.
fn shown() -> Vec<Vec<String>> {
    let outputs = PAGE.split("$ MILLPOND_DEVICE=sim:512MiB cargo run --quiet\n").skip(1);
    let output = |text: &str| text.split("```").next().unwrap_or_default().split('…').map(words).collect();
    outputs.map(output).collect()
}

/// A new process names the devices and places the blocks as the page shows.
#[test]
fn the_program_prints_what_the_page_shows() {
    own_process::run(|| {
        let failed = job("cuda+pool:pages=off").unwrap_err().to_string();
        let served = job("cuda+pool").unwrap().replace("sim:1", "sim:0");
        let printed = [words(&failed), words(&served)];
        let shown = shown();
        assert_eq!(shown.len(), printed.len());
        for (printed, pieces) in printed.iter().zip(shown) {
            for piece in pieces {
                assert!(printed.contains(&piece), "the page shows `{piece}`; printed is `{printed}`");
            }
        }
    });
}
