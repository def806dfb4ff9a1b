//! Profiles of simulated devices.

use millpond_driver::sim::Profile;

pub(super) fn run(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Ok(profile) = Profile::from_toml(text, "file") {
        let written = profile.to_toml(|_, _| None);
        Profile::from_toml(&written, "written").expect("a profile that was written can be read");
    }
}
