//! Tests the memory managers: the contract of NBEP 7, the registry, and the C functions for Numba.

mod common;

mod contract;
mod cuda_manager;
mod cupy;
mod cupy_pool;
mod gpu;
mod ipc_stacks;
mod millpond_manager;
mod numba;
mod reentrancy;
mod registry;
mod reset;
