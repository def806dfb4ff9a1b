//! Tests of containers with cudarc: on a GPU, and against a stand-in for libcuda.

mod containers_gpu;
mod cuda_buffer;
mod cuda_streams;
mod cuda_streams_fake;
mod cudarc_fake;
