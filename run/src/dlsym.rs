//! `dlsym` for the whole process.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;

use crate::functions::ENTRIES;
use crate::link::{Dlsym, is_of_driver, real_dlsym};

/// The answer to a call of `dlsym`: an address, or null and the function that answers instead.
#[repr(C)]
struct Answer {
    address: *mut c_void,
    next: Dlsym,
}

/// `dlsym` for the whole process.
///
/// glibc's function looks at its return address, to learn which library calls it. So this function jumps to
/// it, and the return address stays the program's.
///
/// # Safety
/// As for `dlsym`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8", // calls need an aligned stack
        "call {answer}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "jmp rdx",
        "2:",
        "ret",
        answer = sym answer,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x29, x30, [sp, #-32]!",
        "stp x0, x1, [sp, #16]",
        "bl {answer}",
        "mov x9, x0",
        "mov x10, x1",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        "cbnz x9, 2f",
        "br x10",
        "2:",
        "mov x0, x9",
        "ret",
        answer = sym answer,
    );
}

/// Answers a call of `dlsym`.
unsafe extern "C" fn answer(handle: *mut c_void, name: *const c_char) -> Answer {
    let next = real_dlsym();
    let none = Answer { address: null_mut(), next };
    // The libraries after the caller's: glibc's function knows the caller.
    if name.is_null() || handle == libc::RTLD_NEXT {
        return none;
    }
    // SAFETY: the caller passes a C string.
    let name = unsafe { CStr::from_ptr(name) };
    // Most symbols of a process do not belong to the driver.
    if !name.to_bytes().starts_with(b"cu") {
        return none;
    }
    let Some(entry) = ENTRIES.iter().find(|entry| entry.symbol == name) else { return none };
    // SAFETY: these are the caller's arguments.
    let real = unsafe { next(handle, name.as_ptr()) };
    // Another library may have functions with these names, for example one that counts calls.
    if real.is_null() || real == entry.ours() || !is_of_driver(real) {
        return none;
    }
    entry.keep(real);
    Answer { address: entry.ours(), next }
}
