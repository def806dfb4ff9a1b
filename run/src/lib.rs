//! Records and limits the device memory of programs that are not changed.
//!
//! `millpond-replay run` puts this library in front of the driver, with `LD_PRELOAD`. A program reaches the
//! driver by `dlsym`, by `cuGetProcAddress`, or because it is linked to the driver. In all three cases, the
//! program gets this library's functions, which call the driver. Programs that never use CUDA notice nothing.
//!
//! | module | contents |
//! |---|---|
//! | `functions` | the functions that programs get instead of the driver's, and `cuGetProcAddress` |
//! | `dlsym` | `dlsym` for the whole process |
//! | `link` | finds glibc's `dlsym` and the driver's functions |
//! | `calls` | the work of these functions around a call of the driver |
//! | `budget` | sums of bytes, and the limit |
//! | `blocks` | the live blocks and the mappings of a process |
//! | `record` | the file of the recording |
//! | `stacks` | call stacks of native code and of Python |
//! | `serving` | stacks of millpond that serve the program |
//! | `watched` | the process for `millpond-replay top` |
//! | `device` | questions to the driver: the current device, its free memory |
//!
//! # Rules
//! - A wrong argument reaches the driver unchanged, and the driver answers.
//! - No lock of this library is held during a call of the driver, or of the dynamic linker.
//! - A child of `fork` passes all calls on, because the driver does not work there.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod blocks;
mod budget;
mod calls;
mod code;
mod device;
mod dlsym;
mod entry;
mod functions;
mod link;
mod process;
mod record;
mod serving;
mod settings;
mod stacks;
mod watched;
