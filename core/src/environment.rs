//! Reads environment variables of the process. An empty variable counts as unset. A program that has more
//! rights than its caller reads none.

use std::ffi::{OsStr, OsString};

/// Returns the value of an environment variable; `None` if the variable is unset, empty, or only white space.
///
/// A container or a job description can often empty a variable, but cannot unset it. So an empty variable
/// counts as unset.
///
/// On Linux, each variable counts as unset if the program has more rights than its caller, as with the
/// set-user-ID bit. Otherwise the caller could choose files that the program overwrites, and libraries that
/// it loads.
pub fn variable(name: impl AsRef<OsStr>) -> Option<OsString> {
    if has_more_rights_than_its_caller() {
        return None;
    }
    std::env::var_os(name).and_then(set)
}

#[cfg(target_os = "linux")]
fn has_more_rights_than_its_caller() -> bool {
    // SAFETY: the call only reads the list that the kernel gave to the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(not(target_os = "linux"))]
fn has_more_rights_than_its_caller() -> bool {
    false
}

/// Applies the rule of [`variable`] to a value from another source: returns `None` if the value is empty.
pub fn set(value: OsString) -> Option<OsString> {
    let is_blank = value.to_str().is_some_and(|text| text.trim().is_empty());
    (!is_blank).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_counts_as_unset() {
        for (value, expected) in [("", None), (" \t", None), ("cuda", Some("cuda")), (" a", Some(" a"))] {
            assert_eq!(set(value.into()), expected.map(Into::into), "{value:?}");
        }
        assert_eq!(variable("MILLPOND_TEST_THAT_NOBODY_SETS"), None);
        assert!(variable("PATH").is_some());
    }

    /// Starts this test again, as a program with the set-group-ID bit of another group of this user. The
    /// program has the variable, but does not read it.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_program_with_more_rights_than_its_caller_reads_no_variable() {
        use std::os::unix::fs::{PermissionsExt, chown};
        use std::process::Command;

        const NAME: &str = "MILLPOND_TEST_OF_A_CALLER";
        if std::env::var_os(NAME).is_some() {
            // SAFETY: the calls read numbers of this process.
            let has_rights = unsafe { libc::getegid() != libc::getgid() };
            assert_eq!(variable(NAME).is_none(), has_rights);
            return println!("read: {:?}", variable(NAME));
        }
        let mut groups = [0; 64];
        // SAFETY: the calls write at most 64 groups, and read the numbers of this process.
        let (count, own, is_root) =
            unsafe { (libc::getgroups(64, groups.as_mut_ptr()), libc::getegid(), libc::geteuid() == 0) };
        let mut others = groups.iter().copied().take(count.max(0) as usize).chain(is_root.then_some(1));
        let Some(other) = others.find(|group| *group != own) else {
            return println!("SKIPPED: this user has one group");
        };
        let program = std::env::temp_dir().join(format!("millpond-setgid-{}", std::process::id()));
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        chown(&program, None, Some(other)).unwrap();
        let read = |mode| {
            std::fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
            let test = "environment::tests::a_program_with_more_rights_than_its_caller_reads_no_variable";
            let mut command = Command::new(&program);
            let output = command.args(["--exact", test, "--nocapture"]).env(NAME, "set").output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let (plain, with_rights) = (read(0o755), read(0o2755));
        std::fs::remove_file(&program).unwrap();
        assert!(plain.contains("read: Some"), "{plain}");
        if with_rights.contains("read: Some") {
            return println!("SKIPPED: the folder for temporary files is mounted without such bits");
        }
        assert!(with_rights.contains("read: None"), "{with_rights}");
    }
}
