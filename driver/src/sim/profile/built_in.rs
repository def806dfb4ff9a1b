//! The profiles that need no file.

use std::sync::LazyLock;

use super::{Profile, h100, h200};

const GIB: u64 = 1 << 30;

impl Profile {
    /// Returns the profile of an H200. The file `driver/profiles/h200.toml` contains the same profile.
    pub fn h200() -> Self {
        static H200: LazyLock<Profile> = LazyLock::new(h200::profile);
        H200.clone()
    }

    /// Returns the profile of an H100 with 80 GB. The file `driver/profiles/h100.toml` contains the same
    /// profile.
    pub fn h100() -> Self {
        static H100: LazyLock<Profile> = LazyLock::new(h100::profile);
        H100.clone()
    }

    /// Returns the profile of an A100 with 80 GB. The costs of an A100 were not measured, so the profile
    /// contains the costs of an H200. The name of the profile says so.
    pub fn a100() -> Self {
        let name = "simulated A100 (call costs not measured: an H200's)".to_owned();
        Self::h200().standing_in_for(name, 79 * GIB, 108, (8, 0))
    }

    /// Returns the profile of an H200 with another capacity in bytes.
    pub fn with_capacity(bytes: u64) -> Self {
        Self::h200().resized(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CallKind;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_built_in_profiles_have_what_a_pool_calls() {
        for profile in [Profile::h100(), Profile::h200()] {
            for kind in CallKind::ALL {
                let name = kind.name();
                let needed = ["mem_alloc", "mem_free", "mem_create", "mem_map", "mem_unmap", "event_record"];
                assert!(!needed.contains(&name) || profile.call_ns(kind).is_some(), "{name}");
            }
            assert!(profile.mem_create_ns(2 * MIB) > 1000);
            assert!(profile.mem_alloc_ns(256, 0) < profile.mem_alloc_ns(256, 2 * MIB));
            assert!(profile.mem_free_ns(64 * MIB, 64 * MIB) < profile.mem_free_ns(4 * GIB, 4 * GIB));
            assert_eq!((profile.multiprocessors(), profile.compute_capability()), (132, (9, 0)));
        }
    }

    #[test]
    fn a_profile_that_was_not_measured_says_so() {
        assert!(Profile::h200().is_measured() && Profile::h100().is_measured());
        assert!(!Profile::a100().is_measured());
        assert!(Profile::a100().name().contains("not measured"));
        assert_eq!(Profile::with_capacity(123).capacity(), 123);
    }
}
