//! Exports of Nsight Systems: databases of SQLite, which are read from a file.

use millpond_snapshot::import::{self, Options};

pub(super) fn run(bytes: &[u8]) {
    let Ok(folder) = tempfile::tempdir() else { return };
    let path = folder.path().join("export.sqlite");
    if std::fs::write(&path, [&b"SQLite format 3\0"[..], bytes].concat()).is_err() {
        return;
    }
    if let Ok(recording) = import::open(&path, &Options::default()) {
        crate::recording::check(&recording);
    }
}
