//! Tests that `millpond-replay top` sees the resources that programs make through the C interface.
#![cfg(unix)]

use std::ffi::c_void;
use std::ptr::null_mut;

use millpond_c::callback::{millpond_resource_callback, millpond_resource_failure_callback};
use millpond_c::device::millpond_device_open;
use millpond_c::registry::millpond_set_per_device_resource;
use millpond_c::resource::{millpond_resource_free, millpond_resource_layer, millpond_resource_new};
use millpond_c::status::Status;
use millpond_core::watch;
use millpond_testkit::own_process;

fn texts() -> Vec<String> {
    watch::program_memory().stacks.into_iter().map(|of| of.report.stack).collect()
}

extern "C" fn allocate(_: *mut c_void, _: u64, _: u64, _: *mut c_void) -> *mut c_void {
    null_mut()
}

extern "C" fn deallocate(_: *mut c_void, _: *mut c_void, _: u64, _: u64, _: *mut c_void) {}

extern "C" fn handle(_: *mut c_void, _: u64) -> bool {
    false
}

#[test]
fn resources_of_c_are_watched_until_their_handles_end() {
    own_process::run(|| {
        let folder = std::env::temp_dir().join(format!("millpond-test-capi-{}", std::process::id()));
        // SAFETY: no thread reads the environment now, and all arguments are valid.
        unsafe {
            std::env::set_var(watch::VARIABLE, &folder);
            let (mut device, mut base, mut pool) = (null_mut(), null_mut(), null_mut());
            assert_eq!(millpond_device_open(c"sim:64MiB".as_ptr(), &raw mut device), Status::Ok);
            assert_eq!(millpond_resource_new(device, c"cuda".as_ptr(), &raw mut base), Status::Ok);
            assert_eq!(millpond_resource_layer(base, c"pool".as_ptr(), &raw mut pool), Status::Ok);
            assert_eq!(texts(), ["cuda+pool"]);
            let (mut own, mut handled) = (null_mut(), null_mut());
            let made = millpond_resource_callback(
                device,
                Some(allocate),
                Some(deallocate),
                null_mut(),
                None,
                &raw mut own,
            );
            assert_eq!(made, Status::Ok);
            let made =
                millpond_resource_failure_callback(pool, Some(handle), null_mut(), None, &raw mut handled);
            assert_eq!(made, Status::Ok);
            assert_eq!(texts(), ["callback", "cuda+pool+failure_callback"]);
            assert_eq!(millpond_set_per_device_resource(own, null_mut()), Status::Ok);
            [base, pool, own, handled].into_iter().for_each(|resource| millpond_resource_free(resource));
            assert_eq!(texts(), ["callback"], "it is still the default of its device");
        }
        let _ = std::fs::remove_dir_all(folder);
    });
}
