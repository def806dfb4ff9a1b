//! The table of entry points, and the exported functions, which call through it.
#![allow(non_snake_case, reason = "the functions have CUDA's names")]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::abi::{
    AccessDesc, DeviceProperties, FabricInfo, HostFunction, Location, Opaque, PhysicalProp,
    PointerAttributes, PoolProps, ProcessInfo,
};
use crate::calls::{
    Driving, DrivingPerThread, Handle, Runtime, RuntimePerThread, captures, contexts, copies, device, host,
    memory, nvml, order, pools, sharing, vmm,
};
use crate::table::{Symbol, entry_points};
use crate::unsupported;

/// Exports an entry point, which calls the function in the installed table.
macro_rules! export {
    ($name:ident ($($argument:ident: $kind:ty),*) $result:ty) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the table's function has this entry point's contract, so the caller keeps it.
            unsafe { (installed().$name)($($argument),*) }
        }
    };
}

/// Makes each entry point of the table below: its place in [`EntryPoints`], our own function behind it, the
/// export, and its symbol.
macro_rules! make {
    ($(
        $module:ident::$function:ident $arguments:tt -> $result:ty:
        $($name:ident $(by $api:ident)? $(since $since:literal)?),+;
    )*) => {
        /// A function for each entry point.
        ///
        /// The exports of the library call through a table. [`EntryPoints::OWN`] has the functions of this
        /// crate, which work on the calling thread's driver.
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        #[non_exhaustive]
        pub struct EntryPoints {
            /// The size of the table in bytes, by which a library knows a table of its own version.
            pub bytes: usize,
            $($(
                #[doc = concat!("`", stringify!($name), "` of CUDA.")]
                pub $name: unsafe extern "C" fn $arguments -> $result,
            )+)*
        }

        impl EntryPoints {
            /// The functions of this crate.
            pub const OWN: &Self = &Self {
                bytes: size_of::<Self>(),
                $($($name: $module::$function $(::<$api>)?,)+)*
            };
        }

        $($(export! { $name $arguments $result })+)*

        /// The exported functions of CUDA.
        pub(crate) fn all_symbols() -> impl Iterator<Item = Symbol> + Clone {
            let all: &[Symbol] = &[$($(Symbol {
                name: stringify!($name),
                since: 0 $(+ $since)?,
                address: || $name as *const c_void,
            },)+)*];
            all.iter().chain(unsupported::SYMBOLS).copied()
        }
    };
}

entry_points!(make);

/// The table behind this library's exports; null means this library's own.
static INSTALLED: AtomicPtr<EntryPoints> = AtomicPtr::new(std::ptr::null_mut());

fn installed() -> &'static EntryPoints {
    // SAFETY: `millpond_shim_install` stores only tables that live as long as the process.
    unsafe { INSTALLED.load(Ordering::Acquire).as_ref() }.unwrap_or(EntryPoints::OWN)
}

/// Puts another table behind the exports. Returns whether the table has this library's version.
///
/// # Safety
/// `table` is null or points to a table that lives as long as the process.
#[unsafe(no_mangle)]
unsafe extern "C" fn millpond_shim_install(table: *const EntryPoints) -> bool {
    // SAFETY: the caller guarantees that the table is valid.
    let fits = unsafe { table.as_ref() }.is_none_or(|table| table.bytes == size_of::<EntryPoints>());
    if fits {
        INSTALLED.store(table.cast_mut(), Ordering::Release);
    }
    fits
}

/// Finds the driver's functions by name. The functions are in the list that they search.
mod symbols {
    use std::ffi::{CStr, c_char, c_int, c_void};
    use std::ptr::null_mut;

    use millpond_core::DriverError;

    use super::{Symbol, all_symbols};
    use crate::calls::device::VERSION;
    use crate::calls::{Api, Driving, Runtime};
    use crate::error::{place, refusal};

    /// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`, and all flags.
    const PER_THREAD: u64 = 2;
    const ALL_FLAGS: u64 = 3;

    /// `CUdriverProcAddressQueryResult`.
    const FOUND: c_int = 0;
    const NOT_FOUND: c_int = 1;
    const VERSION_TOO_LOW: c_int = 2;

    /// A function's name without its suffixes, its version, and whether handle 0 is the thread's own stream.
    fn parts(name: &str) -> (&str, u32, bool) {
        let plain = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds"));
        let (rest, per_thread) = plain.map_or((name, false), |plain| (plain, true));
        let versioned =
            rest.rsplit_once("_v").and_then(|(base, version)| Some((base, version.parse().ok()?)));
        let (base, version) = versioned.unwrap_or((rest, 1));
        (base, version, per_thread)
    }

    /// The newest function with this base name that CUDA had in a version, and the status of the search.
    fn find(name: &str, cuda_version: c_int, flags: u64) -> (Option<Symbol>, c_int) {
        let named =
            all_symbols().filter(|symbol| symbol.name.starts_with("cu") && !symbol.name.starts_with("cuda"));
        let known = || named.clone().filter(|symbol| parts(symbol.name).0 == name);
        let fits = |symbol: &Symbol| {
            i64::from(symbol.since) <= i64::from(cuda_version)
                && (flags & PER_THREAD != 0 || !parts(symbol.name).2)
        };
        let newest = known().filter(fits).max_by_key(|symbol| {
            let (_, version, per_thread) = parts(symbol.name);
            (per_thread, version)
        });
        let status = match newest {
            Some(_) => FOUND,
            None if known().next().is_some() => VERSION_TOO_LOW,
            None => NOT_FOUND,
        };
        (newest, status)
    }

    /// The function in the newest version of CUDA that is exported here.
    pub(crate) unsafe extern "C" fn get_newest(
        name: *const c_char,
        address: *mut *mut c_void,
        flags: u64,
        status: *mut c_int,
    ) -> c_int {
        // SAFETY: the caller's promises are the same.
        unsafe { get_address::<Runtime>(name, address, VERSION, flags, status) }
    }

    pub(crate) unsafe extern "C" fn get_address_v1(
        name: *const c_char,
        address: *mut *mut c_void,
        cuda_version: c_int,
        flags: u64,
    ) -> c_int {
        let mut status = FOUND;
        // SAFETY: the caller's promises are the same.
        match unsafe { get_address::<Driving>(name, address, cuda_version, flags, &raw mut status) } {
            0 if status != FOUND => DriverError::NOT_FOUND,
            code => code,
        }
    }

    pub(crate) unsafe extern "C" fn get_address<A: Api>(
        name: *const c_char,
        address: *mut *mut c_void,
        cuda_version: c_int,
        flags: u64,
        status: *mut c_int,
    ) -> c_int {
        let search = || {
            // SAFETY: CUDA's contract for the arguments.
            let address = unsafe { place(address) }?;
            if name.is_null() || flags > ALL_FLAGS {
                return Err(refusal(DriverError::INVALID_VALUE));
            }
            // SAFETY: the name is not null, and CUDA's contract makes it a text.
            let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
            let (found, how) = find(name, cuda_version, flags);
            address.write(found.map_or(null_mut(), |symbol| (symbol.address)().cast_mut()));
            // SAFETY: CUDA's contract for the arguments.
            if let Ok(status) = unsafe { place(status) } {
                status.write(how);
            }
            Ok(())
        };
        A::code(search())
    }
}
