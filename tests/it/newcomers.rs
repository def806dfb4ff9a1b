//! Tests the compiler's messages about the mistakes of newcomers, and that the short forms of calls compile.
//!
//! The programs and the messages are in `tests/newcomers/`. Messages differ between compilers, so the test
//! runs only with the compiler that `rustc.txt` there names. It builds millpond once more, so it also needs
//! `MILLPOND_NEWCOMERS`. This command writes the messages of another compiler, and its version:
//!
//! ```sh
//! MILLPOND_NEWCOMERS=1 TRYBUILD=overwrite cargo test -p millpond-tests --test it newcomers::
//! ```

use std::fs;
use std::process::Command;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/newcomers");

/// Returns the version of the compiler, as `1.95.0`.
fn rustc() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().expect("cargo found the compiler, too");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().nth(1).unwrap_or_else(|| panic!("`{text}` has no version")).to_owned()
}

#[test]
fn the_compiler_tells_newcomers_what_to_do() {
    if std::env::var_os("MILLPOND_NEWCOMERS").is_none() {
        println!("SKIPPED: MILLPOND_NEWCOMERS is not set");
        return;
    }
    let (file, rustc) = (format!("{FOLDER}/rustc.txt"), rustc());
    if std::env::var_os("TRYBUILD").is_some_and(|value| value == "overwrite") {
        fs::write(&file, format!("{rustc}\n")).expect("the folder can be written");
    }
    let version = fs::read_to_string(&file).expect("a file of the repository");
    if rustc != version.trim() {
        println!("SKIPPED: rustc {} wrote the messages, and this is {rustc}", version.trim());
        return;
    }
    let cases = trybuild::TestCases::new();
    cases.pass("newcomers/pass/*.rs");
    cases.compile_fail("newcomers/fail/*.rs");
}
