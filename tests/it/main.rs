//! Tests every stack: the contract, faults, order programs, captures; and the mistakes that these must find.

mod subjects;

mod beside_captures;
mod capture_programs;
mod capture_scopes;
mod captures;
mod contract;
mod fault_operations;
mod faults;
mod fork;
mod glob;
mod interleavings;
mod memory_map;
mod memory_report;
mod memory_snapshot;
mod misuse;
mod museum;
mod newcomers;
mod order;
mod out_of_memory;
mod reentrancy;
mod same_peak;
mod scripts;
mod soak;
mod tutorial;
mod watch;
