//! Tests the library and `millpond-replay run` with programs that are not changed.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod bench;
mod programs;
mod python;
