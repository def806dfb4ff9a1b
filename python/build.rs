//! Builds libmillpond and the replay binary into the package, and copies the headers for `get_include()` and
//! the bridge to RMM.
//!
//! Only maturin and pip, which set `PYO3_BUILD_EXTENSION_MODULE`, build all this. A plain `cargo build` makes
//! the extension module alone.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=PYO3_BUILD_EXTENSION_MODULE");
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("PYO3_BUILD_EXTENSION_MODULE").is_none() {
        return;
    }
    // The crates that libmillpond and the binary are built from.
    let members =
        "adaptors capi core driver engine measure plan planning plugin replay resources run snapshot";
    for member in members.split(' ') {
        println!("cargo::rerun-if-changed=../{member}/src");
    }
    let of_cargo = |name: &str| PathBuf::from(std::env::var_os(name).expect("Cargo sets it"));
    let (root, target) = (of_cargo("CARGO_MANIFEST_DIR"), of_cargo("TARGET"));
    println!("cargo::rerun-if-changed=../capi/include");
    // A separate target folder, because the outer Cargo holds the lock of the workspace's own folder.
    let built = of_cargo("OUT_DIR").join("package");
    let status = Command::new(of_cargo("CARGO"))
        .current_dir(root.join(".."))
        .args(["build", "--release", "--locked", "-p", "millpond-capi", "-p", "millpond-replay"])
        .args(["-p", "millpond-run", "--target"])
        .arg(&target)
        .arg("--target-dir")
        .arg(&built)
        .env_remove("PYO3_BUILD_EXTENSION_MODULE")
        .status();
    let status = status.expect("Cargo can be run");
    assert!(status.success(), "libmillpond cannot be built");
    let built = built.join(target).join("release");
    copy(&built.join("libmillpond_c.so"), &root.join("millpond/libmillpond.so"));
    copy(&built.join("millpond-replay"), &root.join("millpond/millpond-replay"));
    copy(&built.join("libmillpond_run.so"), &root.join("millpond/libmillpond_run.so"));
    for header in
        ["millpond.h", "millpond/millpond.hpp", "millpond/memory_resource.hpp", "millpond/thrust.hpp"]
    {
        let to = root.join("millpond/include").join(header);
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("the folder can be made");
        copy(&root.join("../capi/include").join(header), &to);
    }
}

/// Replaces a file. A process that has loaded the old file keeps it.
fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_file(to);
    if let Err(error) = std::fs::copy(from, to) {
        panic!("{} cannot be copied to {}: {error}", from.display(), to.display());
    }
}
