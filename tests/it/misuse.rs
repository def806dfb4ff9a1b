//! Makes the usual mistakes with memory, and checks the exact text of each message.
//!
//! Each entry of the tables in `tests/it/misuse/` is a program: its mistake and the expected text. A text
//! names the mistake and the remedy. Names replace devices, streams and addresses: `DEVICE` and `PEER`, `A`
//! and `B`, `P` for the pointer that the program is about.
#![cfg(unix)]

mod bench;
mod blocks;
mod containers;
mod memory_pools;
mod plugin;
mod stacks;

use std::collections::BTreeSet;

use bench::{Bench, Program};

const FAMILIES: [(&str, &[Program]); 12] = [
    ("pools", blocks::POOLS),
    ("arenas, blocks of one size, bins", blocks::DIVIDERS),
    ("memory of the driver and of the host", blocks::BASES),
    ("cuda_async", blocks::CUDA_ASYNC),
    ("adaptors", blocks::ADAPTORS),
    ("requests", blocks::REQUESTS),
    ("captures and lost devices", containers::CAPTURES),
    ("containers", containers::CONTAINERS),
    ("pools of the driver, and other processes", memory_pools::PROGRAMS),
    ("the plug-in", plugin::PROGRAMS),
    ("stacks as text", stacks::STACKS),
    ("registry and devices", stacks::REGISTRY),
];

#[test]
fn every_mistake_is_told_what_to_do_in_these_words() {
    let mut wrong = Vec::new();
    let (mut mistakes, mut texts) = (BTreeSet::new(), BTreeSet::new());
    for (family, programs) in FAMILIES {
        println!("{family}: {} programs", programs.len());
        for program in programs {
            let bench = Bench::new();
            let told = bench.normalised((program.run)(&bench));
            if told != program.says {
                wrong.push(format!(
                    "{family}: {}\n  is told: {told}\n  not:     {}",
                    program.mistake, program.says
                ));
            }
            assert!(mistakes.insert(program.mistake), "{} appears twice", program.mistake);
            texts.insert(told);
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    println!("{} programs with a mistake, {} texts", mistakes.len(), texts.len());
    assert!(mistakes.len() >= 60, "only {} programs", mistakes.len());
}
