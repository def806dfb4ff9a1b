//! Shares physical memory with other processes, which are simulated within one. A file descriptor names the
//! memory, and an import returns another handle to it.
//!
//! In CUDA, the descriptor keeps the memory. Here it does not: after the last handle is released and the last
//! mapping is gone, an import fails.

use millpond_core::driver::PhysicalHandle;

use crate::sim::model::answer::{Answer, Refusal};
use crate::sim::model::ipc::{check_owner, owner};
use crate::sim::state::State;

impl State {
    pub(crate) fn mem_export(&mut self, handle: PhysicalHandle) -> Answer<i32> {
        let (first, physical) = self.vmm.held(handle)?;
        if !physical.props.share_fd {
            return Err(Refusal::invalid_value("the memory was not created for sharing"));
        }
        files::write([MAGIC, owner(self.openings.device), first.0])
    }

    pub(crate) fn mem_import(&mut self, fd: i32) -> Answer<PhysicalHandle> {
        let device = self.openings.device;
        let [magic, from, first] = files::read(fd)?;
        if magic == MAGIC {
            check_owner(from)?;
        }
        if magic != MAGIC || from != owner(device) {
            return Err(Refusal::invalid_value(format!(
                "file descriptor {fd} does not name physical memory of {device}"
            )));
        }
        let handle = self.vmm.hold_again(PhysicalHandle(first));
        let handle = handle.ok_or_else(|| Refusal::invalid_value("the memory was released"))?;
        self.note(handle.0);
        Ok(handle)
    }
}

const MAGIC: u64 = u64::from_le_bytes(*b"millphys");

/// A descriptor refers to an unnamed file, which describes the memory.
#[cfg(unix)]
pub(super) mod files {
    use std::fs::{File, OpenOptions};
    use std::os::fd::{BorrowedFd, IntoRawFd};
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU64, Ordering};

    use crate::sim::model::answer::{Answer, Refusal};

    const WORDS: usize = 3;

    pub(crate) fn write(words: [u64; WORDS]) -> Answer<i32> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("millpond-sim-{}-{number}", std::process::id()));
        let make = || {
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
            std::fs::remove_file(&path)?;
            file.write_all_at(&words.map(u64::to_le_bytes).concat(), 0)?;
            Ok(file.into_raw_fd())
        };
        make().map_err(|error: std::io::Error| {
            Refusal::not_supported(format!("cannot create the temporary file for shared memory: {error}"))
        })
    }

    pub(crate) fn read(fd: i32) -> Answer<[u64; WORDS]> {
        let read = || {
            if fd < 0 {
                return Err(std::io::ErrorKind::InvalidInput.into());
            }
            // SAFETY: the descriptor is used for one call, which fails if no such descriptor is open.
            let file: File = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?.into();
            let mut bytes = [0; WORDS * 8];
            file.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|error: std::io::Error| Refusal::invalid_value(error.to_string()))?;
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        Ok(words)
    }
}

#[cfg(not(unix))]
pub(super) mod files {
    use crate::sim::model::answer::{Answer, Refusal};

    pub(crate) fn write(_words: [u64; 3]) -> Answer<i32> {
        Err(Refusal::not_supported("this system has no file descriptors"))
    }

    pub(crate) fn read(_fd: i32) -> Answer<[u64; 3]> {
        Err(Refusal::not_supported("this system has no file descriptors"))
    }
}
