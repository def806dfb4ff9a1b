//! Paths of files in a stack's text, and the names in braces that a path may hold.
//!
//! A path may hold any bytes. Four names in braces stand for something else:
//!
//! | in a path | stands for |
//! |---|---|
//! | `{pid}` | the number of the process |
//! | `{rank}` | the number of the process in its job, as its launcher sets it; 0 without a launcher |
//! | `{device}` | the number of the device |
//! | `{x2b}` | the byte with this hexadecimal number, here `+` |
//!
//! Any other text in braces stays as it is. To name a file `{pid}`, write `{x7b}pid}`. Text holds only
//! Unicode, so a byte of a path that is not UTF-8 is printed as such a number.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::{DeviceId, Error, Result};

/// The environment variables from which a process reads its rank, its number within a job. The variables are
/// tried in this order. They come from torchrun, Open MPI, PMIx, MPICH, MVAPICH and Slurm. The last variable
/// is the rank within one host.
pub const RANK_VARIABLES: [&str; 7] = [
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
    "LOCAL_RANK",
];

/// The path of a file, as a program or the text of a stack gives it. [`resolve`](Self::resolve) replaces
/// these names in braces:
/// - `{pid}`: the number of the process;
/// - `{rank}`: the number of the process in its job ([`RANK_VARIABLES`]); 0 if no launcher has set a rank;
/// - `{device}`: the number of the device;
/// - `{x2b}`: the byte with the hexadecimal number 2b, which is `+`.
///
/// Any other text in braces stays unchanged.
///
/// ```
/// use millpond_core::stack::FilePath;
/// let log = FilePath::new("logs/run.{pid}.csv");
/// assert_eq!(log.to_text()?, "logs/run.{pid}.csv");
/// let path = log.resolve(None)?;
/// assert_eq!(path.to_str().unwrap(), format!("logs/run.{}.csv", std::process::id()));
/// assert_eq!(FilePath::new("a{x}b{x7b}pid}").resolve(None)?.to_str().unwrap(), "a{x}b{pid}");
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FilePath(OsString);

/// A name in braces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Name {
    Process,
    Rank,
    Device,
    Byte(u8),
}

impl Name {
    /// Returns the name at the start of `text`, and its length including the braces.
    fn at_start(text: &[u8]) -> Option<(Self, usize)> {
        let inner = text.strip_prefix(b"{")?;
        let length = inner.iter().take(8).position(|byte| *byte == b'}')?;
        let name = match &inner[..length] {
            b"pid" => Self::Process,
            b"rank" => Self::Rank,
            b"device" => Self::Device,
            [b'x', high, low] => Self::Byte(hexadecimal(*high)? << 4 | hexadecimal(*low)?),
            _ => return None,
        };
        Some((name, length + 2))
    }
}

fn hexadecimal(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

impl FilePath {
    /// Creates a path in which [`resolve`](Self::resolve) replaces the names in braces.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into().into_os_string())
    }

    /// Creates a path that [`resolve`](Self::resolve) returns unchanged, even if `path` contains a name such
    /// as `{pid}`.
    ///
    /// # Errors
    /// The errors of [`to_text`](Self::to_text).
    pub fn literal(path: &Path) -> Result<Self> {
        let bytes = bytes_of(path.as_os_str())?;
        let mut escaped = Vec::with_capacity(bytes.len());
        for (at, byte) in bytes.iter().enumerate() {
            match Name::at_start(&bytes[at..]) {
                Some(_) => escaped.extend_from_slice(b"{x7b}"),
                None => escaped.push(*byte),
            }
        }
        Ok(Self(os_string_of(escaped)?))
    }

    /// Returns the path with its names in braces, as it was given.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// Returns the path as a value for the text of a stack, without quotes. A byte that is not UTF-8 is
    /// written as a hexadecimal number in braces, like `{xff}`.
    ///
    /// # Errors
    /// On a system other than Unix, [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the path is not
    /// Unicode text.
    pub fn to_text(&self) -> Result<String> {
        Ok(text_of_bytes(&bytes_of(&self.0)?))
    }

    /// Returns the path with all names in braces replaced. `{device}` becomes the number of the argument
    /// `device`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the path is empty, contains a zero byte, or
    /// is `-`, which names a standard stream in other programs.
    /// The same error if the path contains `{device}` and `device` is `None`.
    pub fn resolve(&self, device: Option<DeviceId>) -> Result<PathBuf> {
        self.resolve_with(device, &|name| crate::environment::variable(name))
    }

    fn resolve_with(
        &self,
        device: Option<DeviceId>,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<PathBuf> {
        let bytes = bytes_of(&self.0)?;
        let mut resolved = Vec::with_capacity(bytes.len());
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            let Some((name, length)) = Name::at_start(&bytes[at..]) else {
                resolved.push(*byte);
                at += 1;
                continue;
            };
            match name {
                Name::Process => resolved.extend(std::process::id().to_string().bytes()),
                Name::Rank => resolved.extend(rank(variable).to_string().bytes()),
                Name::Device => {
                    let device = device.ok_or_else(|| {
                        Error::invalid_argument(format!(
                            "`{}` contains {{device}}, but this file belongs to no device; leave {{device}} \
                             out",
                            self.as_path().display()
                        ))
                    })?;
                    resolved.extend(device.ordinal().to_string().bytes());
                }
                Name::Byte(byte) => resolved.push(byte),
            }
            at += length;
        }
        if resolved.is_empty() || resolved.contains(&0) {
            let why = if resolved.is_empty() { "a path is empty" } else { "a path has a zero byte" };
            return Err(Error::invalid_argument(format!("{why}; name a file, for example log.csv")));
        }
        if resolved == b"-" {
            let why = "`-` names no file, and a layer uses no standard stream; a file of this name is `./-`";
            return Err(Error::invalid_argument(why));
        }
        Ok(PathBuf::from(os_string_of(resolved)?))
    }
}

/// Returns the number of this process in its job; 0 without a launcher.
fn rank(variable: &dyn Fn(&str) -> Option<OsString>) -> u64 {
    let mut numbers = RANK_VARIABLES.iter().filter_map(|name| variable(name)?.to_str()?.trim().parse().ok());
    numbers.next().unwrap_or(0)
}

/// Converts the bytes of the environment or of a path to text: bytes that are not UTF-8 become names in
/// braces.
pub(super) fn text_of_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("{{x{byte:02x}}}")));
    }
    text
}

/// Converts text of the environment as [`text_of_bytes`] does.
pub(super) fn text_of_os(text: &OsStr) -> String {
    bytes_of(text).map_or_else(|_| text.to_string_lossy().into_owned(), |bytes| text_of_bytes(&bytes))
}

#[cfg(unix)]
fn bytes_of(path: &OsStr) -> Result<Cow<'_, [u8]>> {
    use std::os::unix::ffi::OsStrExt;
    Ok(Cow::Borrowed(path.as_bytes()))
}

#[cfg(not(unix))]
fn bytes_of(path: &OsStr) -> Result<Cow<'_, [u8]>> {
    path.to_str().map(|path| Cow::Borrowed(path.as_bytes())).ok_or_else(|| {
        Error::invalid_argument(format!("`{}` is not Unicode text; choose another path", path.display()))
    })
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "other systems refuse some bytes")]
fn os_string_of(bytes: Vec<u8>) -> Result<OsString> {
    use std::os::unix::ffi::OsStringExt;
    Ok(OsString::from_vec(bytes))
}

#[cfg(not(unix))]
fn os_string_of(bytes: Vec<u8>) -> Result<OsString> {
    String::from_utf8(bytes).map(OsString::from).map_err(|_| {
        Error::invalid_argument("paths on this system are Unicode text; leave out the bytes in braces")
    })
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};

    use super::*;
    use crate::stack::tests::Random;

    fn path(bytes: &[u8]) -> PathBuf {
        PathBuf::from(OsString::from_vec(bytes.to_vec()))
    }

    fn resolved(text: &str, variables: &[(&str, &str)]) -> PathBuf {
        let variable = |wanted: &str| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| OsString::from(value))
        };
        FilePath::new(text).resolve_with(None, &variable).unwrap()
    }

    #[test]
    fn the_launcher_numbers_the_processes_of_a_job() {
        assert_eq!(resolved("log.{rank}.csv", &[]), path(b"log.0.csv"));
        for name in RANK_VARIABLES {
            assert_eq!(resolved("log.{rank}.csv", &[(name, " 3\n")]), path(b"log.3.csv"), "{name}");
        }
        assert_eq!(resolved("{rank}", &[("LOCAL_RANK", "1"), ("RANK", "9")]), path(b"9"));
        assert_eq!(resolved("{rank}", &[("RANK", "../../etc"), ("SLURM_PROCID", "7")]), path(b"7"));
    }

    #[test]
    fn only_known_names_in_braces_are_replaced() {
        for same in
            ["{}", "{x}", "{PID}", "{pid", "pid}", "{ pid }", "{x1}", "{xgg}", "{x123}", "{{}}", "a{b"]
        {
            assert_eq!(resolved(same, &[]), Path::new(same));
        }
        let process = std::process::id();
        assert_eq!(resolved("{{pid}}", &[]), PathBuf::from(format!("{{{process}}}")));
        assert_eq!(resolved("{x7b}pid}{x2B}", &[]), path(b"{pid}+"));
        assert_eq!(resolved("{xff}", &[]), path(b"\xff"));
        assert!(FilePath::new("{device}").resolve(None).is_err());
        assert!(FilePath::new("").resolve(None).is_err());
        assert!(FilePath::new("a{x00}").resolve(None).is_err());
    }

    /// Random bytes of a path, most of them from the grammar of names in braces.
    fn random_path(random: &mut Random) -> PathBuf {
        let parts: [&[u8]; 12] = [
            b"{",
            b"}",
            b"{pid}",
            b"{x7b}",
            b"{xff}",
            b"x",
            b"pid}",
            b"\xff",
            b"\xc3",
            "ü".as_bytes(),
            b" ",
            b"+,()\"",
        ];
        let mut bytes = vec![b'a'];
        for _ in 0..random.below(10) {
            match random.below(3) {
                0 => bytes.push(1 + random.below(255) as u8),
                _ => bytes.extend_from_slice(parts[random.below(parts.len())]),
            }
        }
        path(&bytes)
    }

    #[test]
    fn a_literal_path_resolves_to_itself_also_through_text() {
        let mut random = Random(29);
        for _ in 0..50_000 {
            let wanted = random_path(&mut random);
            let literal = FilePath::literal(&wanted).unwrap();
            assert_eq!(literal.resolve(None).unwrap(), wanted, "{:?}", wanted.as_os_str().as_bytes());
            let read = FilePath::new(literal.to_text().unwrap());
            assert_eq!(read.resolve(None).unwrap(), wanted, "{}", literal.to_text().unwrap());
        }
    }

    /// A path with names keeps its meaning when it goes through text.
    #[test]
    fn a_path_means_the_same_as_text() {
        let mut random = Random(30);
        for _ in 0..50_000 {
            let given = FilePath::new(random_path(&mut random));
            let text = given.to_text().unwrap();
            let read = FilePath::new(text.clone());
            assert_eq!(read.resolve(None).ok(), given.resolve(None).ok(), "`{text}`");
            assert_eq!(read.to_text().unwrap(), text);
        }
    }
}
