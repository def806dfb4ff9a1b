//! Sets the library's name for the dynamic linker.

fn main() {
    // The version of the ABI. It changes when programs that were linked earlier would break.
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmillpond.so.0");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
