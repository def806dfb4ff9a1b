//! Tests that the scripts empty only folders that they made.
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Makes or empties a folder as the scripts do. Returns whether that worked.
fn own_folder(folder: &Path) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let call = r#"source scripts/own-folder.sh && own_folder "$0""#;
    let status = Command::new("bash").current_dir(root).args(["-c", call]).arg(folder).status();
    status.unwrap().success()
}

#[test]
fn a_folder_of_another_keeps_its_files() {
    let other = std::env::temp_dir().join(format!("millpond-scripts-{}", std::process::id()));
    fs::create_dir(&other).unwrap();
    for name in ["MANIFEST", "COMMIT", "run.sh"] {
        fs::write(other.join(name), "another's").unwrap();
        assert!(!own_folder(&other) && other.join(name).exists(), "{name}");
    }
    assert!(!own_folder(&other.join("MANIFEST")), "a file is no folder");
    let own = other.join("own");
    assert!(own_folder(&own));
    fs::write(own.join("old"), "").unwrap();
    assert!(own_folder(&own) && !own.join("old").exists());
    fs::remove_dir_all(other).unwrap();
}
