//! Profiles of simulated devices.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millpond_driver::sim::Profile;

fuzz_target!(|text: &str| {
    if let Ok(profile) = Profile::from_toml(text, "file") {
        let written = profile.to_toml(|_, _| None);
        Profile::from_toml(&written, "written").expect("a profile that was written can be read");
    }
});
