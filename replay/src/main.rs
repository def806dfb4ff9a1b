//! `millpond-replay`: replays allocation logs through stacks of memory resources and compares the stacks.

use std::process::ExitCode;

use millpond_replay::{cli, compare};

fn main() -> ExitCode {
    cli::main(&compare::layers())
}
