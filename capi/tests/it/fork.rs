//! A forked child leaves its parent's blocks alone, whichever locks other threads held at the fork.
#![cfg(unix)]

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use millpond_c::device::{millpond_device_free, millpond_device_open, millpond_device_ordinal};
use millpond_c::framework::{millpond_free, millpond_malloc};
use millpond_c::status::Status;
use millpond_testkit::own_process;

const ROUNDS: usize = 100;

#[test]
fn a_forked_child_frees_copies_of_objects() {
    own_process::run(|| {
        let is_over = AtomicBool::new(false);
        // SAFETY: all arguments are valid. The child makes the tested calls and ends; an alarm ends it if it
        // would wait forever.
        unsafe {
            std::env::set_var("CUDA_VISIBLE_DEVICES", ""); // nothing reads the variable meanwhile
            let mut device = null_mut();
            assert_eq!(millpond_device_open(c"sim:64MiB".as_ptr(), &raw mut device), Status::Ok);
            let number = millpond_device_ordinal(device);
            let take = || [(); 16].map(|()| millpond_malloc(1024, number, null_mut()).addr());
            let give = |blocks: [usize; 16]| {
                let blocks = blocks.map(std::ptr::without_provenance_mut);
                blocks.into_iter().for_each(|block| millpond_free(block, 0, 0, null_mut()));
            };
            let blocks = take();
            let is_well = |round: &usize| {
                let child = libc::fork();
                if child == 0 {
                    libc::alarm(20);
                    give(blocks);
                    let has_memory =
                        *round == ROUNDS - 1 && !millpond_malloc(1, number, null_mut()).is_null();
                    libc::_exit(i32::from(has_memory));
                }
                let mut status = 0;
                child > 0 && libc::waitpid(child, &raw mut status, 0) == child && status == 0
            };
            let failed = std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        while !is_over.load(Ordering::Relaxed) {
                            give(take());
                        }
                    });
                }
                let failed = (0..ROUNDS).find(|round| !is_well(round));
                is_over.store(true, Ordering::Relaxed);
                failed
            });
            assert_eq!(failed, None, "a child did not end, or got memory");
            give(blocks);
            millpond_device_free(device);
        }
    });
}
