//! Reads the name of a device from a command line.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use millpond_core::{ByteSize, DriverHandle, Error, Result, parse_bytes};

use crate::cuda::{self, CudaDriver};
use crate::sim::{Profile, SimConfig, SimDevice};

/// A device as a command line names it: `cuda:0`, `sim:h200`, `sim:a100`, `sim:8GiB`, or `sim:FILE.toml` for
/// a [profile](Profile) in a file.
///
/// `cuda` is `cuda:0`, and `sim` is `sim:h200`. Upper and lower case are the same, but in a path. A path
/// ends in `.toml` or has a `/`.
///
/// ```
/// use millpond_driver::DeviceSpec;
///
/// let spec: DeviceSpec = "sim:8GiB".parse()?;
/// assert_eq!(spec, DeviceSpec::SimCapacity(8 << 30));
/// assert_eq!(spec.to_string(), "sim:8GiB");
/// assert_eq!(spec.open()?.mem_get_info()?.total, 8 << 30);
/// # Ok::<(), millpond_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum DeviceSpec {
    /// The CUDA device with this ordinal.
    Cuda(u32),
    /// A simulated H200.
    SimH200,
    /// A simulated A100.
    SimA100,
    /// A simulated H200 with this many bytes of memory.
    SimCapacity(u64),
    /// A simulated device with the [profile](Profile) in this file.
    SimProfile(PathBuf),
}

/// Below one page of the driver's there is nothing to simulate: a forgotten unit, most likely.
const SMALLEST_SIM: u64 = 2 << 20;
/// Above any device there is, and still below the address space that a simulated device reserves.
const LARGEST_SIM: u64 = 1 << 44;

impl DeviceSpec {
    /// `cuda:0` where CUDA can be used, else `sim:h200`.
    pub fn default_device() -> Self {
        if cuda::availability().is_ok() { Self::Cuda(0) } else { Self::SimH200 }
    }

    /// Whether the device is simulated.
    pub const fn is_sim(&self) -> bool {
        !matches!(self, Self::Cuda(_))
    }

    /// The profile of a simulated device; `None` for a CUDA device.
    ///
    /// # Errors
    /// Those of [`Profile::from_file`].
    pub fn profile(&self) -> Result<Option<Profile>> {
        Ok(Some(match self {
            Self::Cuda(_) => return Ok(None),
            Self::SimH200 => Profile::h200(),
            Self::SimA100 => Profile::a100(),
            Self::SimCapacity(bytes) => Profile::with_capacity(*bytes),
            Self::SimProfile(path) => Profile::from_file(path)?,
        }))
    }

    /// The device's driver. A CUDA device gives the same each time, a simulated one a new device each time,
    /// which lives as long as the handle.
    ///
    /// # Errors
    /// Those of [`CudaDriver::open`], and for a profile in a file those of [`Profile::from_file`]; none for
    /// another simulated device.
    pub fn open(&self) -> Result<DriverHandle> {
        match (self, self.profile()?) {
            (_, Some(profile)) => Ok(SimDevice::new(SimConfig::new(profile))),
            (Self::Cuda(ordinal), None) => Ok(CudaDriver::open(*ordinal)?),
            (_, None) => Err(Error::invalid_argument(format!("{self} has no driver"))),
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fail = |why: &str| {
            Error::invalid_argument(format!(
                "`{text}` is not a device: {why}; write cuda:0, sim:h200, sim:a100, a size such as sim:8GiB, \
                 or sim:FILE.toml with a profile"
            ))
        };
        if let Some((kind, path)) = text.trim().split_once(':')
            && kind.trim().eq_ignore_ascii_case("sim")
            && is_path(path.trim())
        {
            return Ok(Self::SimProfile(path.trim().into()));
        }
        let lower = text.trim().to_ascii_lowercase();
        let (kind, which) = match lower.split_once(':') {
            Some((kind, which)) => (kind, Some(which.trim())),
            None => (lower.as_str(), None),
        };
        match (kind.trim(), which) {
            ("cuda", None) => Ok(Self::Cuda(0)),
            ("cuda", Some(ordinal)) => {
                let ordinal = ordinal.parse().map_err(|_| fail("the device's number is missing or wrong"))?;
                Ok(Self::Cuda(ordinal))
            }
            ("sim", None | Some("h200")) => Ok(Self::SimH200),
            ("sim", Some("a100")) => Ok(Self::SimA100),
            ("sim", Some(size)) => {
                let bytes = parse_bytes(size)
                    .map_err(|_| fail("there is no simulated device of that name or size"))?;
                match bytes {
                    ..SMALLEST_SIM => Err(fail("a simulated device has at least 2 MiB")),
                    SMALLEST_SIM..=LARGEST_SIM => Ok(Self::SimCapacity(bytes)),
                    _ => Err(fail("a simulated device has at most 16 TiB")),
                }
            }
            _ => Err(fail("the kind before the colon is neither `cuda` nor `sim`")),
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::SimH200 => f.write_str("sim:h200"),
            Self::SimA100 => f.write_str("sim:a100"),
            Self::SimCapacity(bytes) => write!(f, "sim:{}", ByteSize::Bytes(*bytes)),
            Self::SimProfile(path) => write!(f, "sim:{}", path.display()),
        }
    }
}

fn is_path(text: &str) -> bool {
    text.contains('/') || Path::new(text).extension().is_some_and(|end| end.eq_ignore_ascii_case("toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_printed() {
        for (text, spec, printed) in [
            ("cuda", DeviceSpec::Cuda(0), "cuda:0"),
            ("cuda:3", DeviceSpec::Cuda(3), "cuda:3"),
            ("sim", DeviceSpec::SimH200, "sim:h200"),
            ("SIM:H200", DeviceSpec::SimH200, "sim:h200"),
            (" sim:a100 ", DeviceSpec::SimA100, "sim:a100"),
            ("sim:8GiB", DeviceSpec::SimCapacity(8 << 30), "sim:8GiB"),
            ("sim:0.5GB", DeviceSpec::SimCapacity(500_000_000), "sim:500000000"),
            ("sim:2097152", DeviceSpec::SimCapacity(2 << 20), "sim:2MiB"),
            ("Sim: My/H100.TOML", DeviceSpec::SimProfile("My/H100.TOML".into()), "sim:My/H100.TOML"),
            ("sim:/a", DeviceSpec::SimProfile("/a".into()), "sim:/a"),
        ] {
            assert_eq!(text.parse::<DeviceSpec>().unwrap(), spec, "{text}");
            assert_eq!(spec.to_string(), printed);
            assert_eq!(printed.parse::<DeviceSpec>().unwrap(), spec, "{printed}");
        }
    }

    #[test]
    fn a_wrong_device_is_an_error_that_says_what_is_right() {
        for (text, why) in [
            ("", "neither"),
            ("gpu:0", "neither"),
            ("0", "neither"),
            ("cuda:", "number"),
            ("cuda:-1", "number"),
            ("cuda:4294967296", "number"),
            ("cuda:0:1", "number"),
            ("sim:", "name or size"),
            ("sim:h100", "name or size"),
            ("sim:-8GiB", "name or size"),
            ("sim:0", "at least"),
            ("sim:8", "at least"),
            ("sim:2097151", "at least"),
            ("sim:17TiB", "at most"),
            ("sim:16EiB", "name or size"),
        ] {
            let error = text.parse::<DeviceSpec>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.contains("sim:8GiB") && error.contains("cuda:0"), "{error}");
        }
    }

    #[test]
    fn a_simulated_device_has_the_size_asked_for() {
        for bytes in [SMALLEST_SIM, 64 << 20, LARGEST_SIM] {
            let driver = DeviceSpec::SimCapacity(bytes).open().unwrap();
            assert_eq!(driver.mem_get_info().unwrap().total, bytes);
            assert!(driver.device().is_sim());
            // SAFETY: the pointer came from this driver and is not used again.
            unsafe { driver.mem_free(driver.mem_alloc(bytes / 2).unwrap()) }.unwrap();
        }
    }

    #[test]
    fn a_profile_that_cannot_be_read_is_an_error_that_names_it() {
        let spec: DeviceSpec = "sim:/nowhere/h100.toml".parse().unwrap();
        let Err(error) = spec.open().map(|driver| driver.name()) else { panic!("it was opened") };
        assert!(error.to_string().contains("/nowhere/h100.toml"), "{error}");
    }

    #[test]
    fn the_default_device_opens() {
        let spec = DeviceSpec::default_device();
        assert_eq!(spec.is_sim(), cuda::device_count() == 0);
        assert_eq!(spec.open().unwrap().device().is_sim(), spec.is_sim());
    }
}
