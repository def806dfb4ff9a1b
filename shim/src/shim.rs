//! Opens the library, so that the libraries which a process opens later call this program.

use std::path::{Path, PathBuf};

use crate::entry::EntryPoints;
use crate::error::problem;

/// The opened library, whose exports call this program's functions.
#[derive(Debug)]
pub struct Shim {
    _library: libloading::os::unix::Library,
}

impl Shim {
    /// The file name of the library.
    pub const FILE: &str = "libmillpond_shim.so";

    /// Opens the library for all libraries that this process opens later, and lets its exports call the
    /// functions of a table, such as [`EntryPoints::OWN`] of this program.
    ///
    /// # Errors
    /// If the file cannot be opened, or if another version of this crate built it.
    pub fn open(file: &Path, table: &'static EntryPoints) -> Result<Self, String> {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        let failed = |error| problem(file, &error);
        // SAFETY: the library is built from this crate, and opening it runs no code of ours.
        let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_GLOBAL) }.map_err(failed)?;
        type Install = unsafe extern "C" fn(*const EntryPoints) -> bool;
        // SAFETY: the library exports this function with this type.
        let install = unsafe { library.get::<Install>("millpond_shim_install") }.map_err(failed)?;
        // SAFETY: the table lives as long as the process.
        if unsafe { install(table) } {
            return Ok(Self { _library: library });
        }
        Err(format!("{}: another version of millpond-shim built this library", file.display()))
    }

    /// Opens the library that Cargo built next to this program.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn next_to_program(table: &'static EntryPoints) -> Result<Self, String> {
        Self::open(&Self::file_next_to_program()?, table)
    }

    /// Finds the library that Cargo built next to this program.
    ///
    /// # Errors
    /// If the library is not there.
    pub fn file_next_to_program() -> Result<PathBuf, String> {
        let program = std::env::current_exe().map_err(|error| format!("this program's file: {error}"))?;
        let folders = program.ancestors().skip(1).take(2);
        let found = folders.map(|folder| folder.join(Self::FILE)).find(|file| file.exists());
        found.ok_or_else(|| format!("{} is not next to {}", Self::FILE, program.display()))
    }
}
