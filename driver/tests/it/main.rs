//! Tests of the drivers: CUDA's, on a GPU and against a stand-in for libcuda, and the simulated device.

#[cfg(target_os = "linux")]
mod gpu;
#[cfg(target_os = "linux")]
mod stand_in;

mod captures;
mod cuda_absent;
mod cuda_calls;
mod cuda_device;
mod cuda_fake;
mod cuda_stream;
mod cuda_touch;
mod cuda_waits;
mod sim_captures;
mod sim_driver;
mod sim_machine;
mod sim_model;
mod sim_order;
mod sim_plain;
mod sim_pools;
mod sim_profile;
mod sim_reset;
mod sim_schedule;
