//! Tests of the C interface: its functions as C and frameworks call them, its header, and programs over it.

mod bench;

mod abi;
mod cached;
mod fork;
mod framework;
mod graph_pools;
mod header;
mod programs;
mod watch;
