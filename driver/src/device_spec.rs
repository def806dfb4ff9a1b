//! Parses a device's name from a command line.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use millpond_core::{ByteSize, DeviceId, Driver, DriverHandle, Error, Result, parse_bytes, parse_memory};
use parking_lot::Mutex;

use crate::cuda::{self, CudaDriver};
use crate::environment::{DEVICE_VARIABLE, Environment};
use crate::own;
use crate::sim::{self, Profile, SimConfig, SimDevice};

/// The name of a device on a command line: `cuda:0`, `sim:h200`, `sim:h100`, `sim:a100`, `sim:8GiB`,
/// `sim:FILE.toml`, or `own:0`. `sim:FILE.toml` names a file that contains a [profile](Profile) of a
/// simulated device. `own:0` means a driver of the program itself, which the program has
/// [registered](crate::register).
///
/// `cuda` means `cuda:0`, and `sim` means `sim:h200`. Upper and lower case mean the same, except in a path.
/// The text after `sim:` is a path if it ends in `.toml` or contains a `/`.
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
    /// A simulated H100.
    SimH100,
    /// A simulated A100.
    SimA100,
    /// A simulated H200 with this many bytes of memory.
    SimCapacity(u64),
    /// A simulated device whose [profile](Profile) is in the file with this path.
    SimProfile(PathBuf),
    /// The device with this number, for which the program has [registered](crate::register) its own driver.
    Own(u32),
    /// The [default device](Self::default_device), if it is simulated. The environment variable
    /// `MILLPOND_DEVICE` names this device. Without the variable, it is an H200. The whole process shares it.
    SimDefault,
}

/// The device of [`DeviceSpec::SimDefault`], which lives until the process ends.
static SIM_DEFAULT: Mutex<Option<Arc<SimDevice>>> = Mutex::new(None);

/// Anything below one of the driver's pages is too small to simulate; most likely a unit is missing.
const SMALLEST_SIM: u64 = 2 << 20;
/// Larger than any real device, but smaller than the address space that a simulated device reserves.
const LARGEST_SIM: u64 = 1 << 44;

impl DeviceSpec {
    /// Returns the device that a program uses if the program names none. The first rule that applies selects
    /// the device:
    ///
    /// 1. If the environment variable `MILLPOND_DEVICE` is set, for example to `cuda:1` or `sim:8GiB`, it
    ///    names the device.
    /// 2. If CUDA sees several devices, and a launcher such as `torchrun` has set `LOCAL_RANK`, the device is
    ///    the CUDA device with that number.
    /// 3. If CUDA can be used, the device is `cuda:0`.
    /// 4. Otherwise, the device is a simulated H200.
    ///
    /// If the default device is simulated, it is opened once, and all callers share it. The first call reads
    /// the environment variables. If the value of `MILLPOND_DEVICE` names no device, [`open`](Self::open)
    /// returns an error.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use millpond_driver::DeviceSpec;
    ///
    /// let [one, same] = [DeviceSpec::default_device().open()?, DeviceSpec::default_device().open()?];
    /// assert!(Arc::ptr_eq(&one, &same));
    /// # Ok::<(), millpond_core::Error>(())
    /// ```
    pub fn default_device() -> Self {
        let environment = Environment::get();
        match environment.device.as_deref().map(str::parse) {
            Some(Ok(named @ (Self::Cuda(_) | Self::Own(_)))) => named,
            Some(_) => Self::SimDefault,
            None => match cuda::device_count() {
                0 => Self::SimDefault,
                count => Self::Cuda(environment.ordinal_among(count)),
            },
        }
    }

    /// The default device, if it exists already. Only [`open`](Self::open) creates a simulated one that no
    /// caller named: a program that wants a GPU must not get it by accident.
    pub(crate) fn default_id() -> Result<Option<DeviceId>> {
        match Self::default_device() {
            Self::Cuda(ordinal) => Ok(Some(DeviceId::cuda(ordinal))),
            Self::Own(number) => Ok(Some(DeviceId::own(number))),
            spec if Environment::get().device.is_some() => Ok(Some(spec.open()?.device())),
            _ => Ok(SIM_DEFAULT.lock().as_ref().map(|device| device.device())),
        }
    }

    /// The spec that the simulated default device stands for.
    fn of_sim_default() -> Result<Self> {
        let Some(name) = &Environment::get().device else { return Ok(Self::SimH200) };
        name.parse().map_err(|error: Error| error.context(DEVICE_VARIABLE))
    }

    /// Returns whether the device is simulated.
    pub const fn is_sim(&self) -> bool {
        !matches!(self, Self::Cuda(_) | Self::Own(_))
    }

    /// Returns the profile of a simulated device; `None` for other devices.
    ///
    /// # Errors
    /// [`InvalidArgument`](millpond_core::ErrorKind::InvalidArgument) for the default device, if the
    /// environment variable `MILLPOND_DEVICE` does not name a device. The errors of [`Profile::from_file`]
    /// for a profile in a file.
    pub fn profile(&self) -> Result<Option<Profile>> {
        Ok(Some(match self {
            Self::Cuda(_) | Self::Own(_) => return Ok(None),
            Self::SimH200 => Profile::h200(),
            Self::SimH100 => Profile::h100(),
            Self::SimA100 => Profile::a100(),
            Self::SimCapacity(bytes) => Profile::with_capacity(*bytes),
            Self::SimProfile(path) => Profile::from_file(path)?,
            Self::SimDefault => return Self::of_sim_default()?.profile(),
        }))
    }

    /// Returns the driver of the device. For a CUDA device and for the [default
    /// device](Self::default_device), each call returns the same driver. For any other simulated device, each
    /// call creates a new device. The new device lives until its last handle is dropped.
    ///
    /// # Errors
    /// The errors of [`CudaDriver::open`] for a CUDA device, and of [`profile`](Self::profile) for a
    /// simulated device. [`NoDevice`](millpond_core::ErrorKind::NoDevice) if the program has not
    /// [registered](crate::register) a driver for its own device.
    pub fn open(&self) -> Result<DriverHandle> {
        let found = self.find()?;
        // The same driver, but a CUDA device gets its context.
        if let Self::Cuda(ordinal) = self { Ok(CudaDriver::open(*ordinal)?) } else { Ok(found) }
    }

    /// Returns the same driver as [`open`](Self::open), without creating the context of a CUDA device. The
    /// first call that works on the device creates the context, as for [`CudaDriver::find`].
    ///
    /// # Errors
    /// The errors of [`open`](Self::open), except the error that the driver refuses to create the context.
    pub fn find(&self) -> Result<DriverHandle> {
        match self {
            Self::Cuda(ordinal) => return Ok(CudaDriver::find(*ordinal)?),
            Self::Own(number) => return own::find(DeviceId::own(*number)),
            _ => {}
        }
        if *self != Self::SimDefault {
            return self.open_new();
        }
        let mut shared = SIM_DEFAULT.lock();
        let device = match shared.as_ref() {
            Some(device) => device,
            None => {
                let profile = self.profile()?.ok_or_else(|| self.without_profile())?;
                shared.insert(SimDevice::new(SimConfig::new(profile)))
            }
        };
        // After a reset of its context, a new driver serves the same device.
        Ok(sim::find(device.device()).unwrap_or_else(|| Arc::clone(device)))
    }

    /// Returns the driver of the device, like [`open`](Self::open). But if the device is simulated, each call
    /// creates a new device, even for the default device. Measurements use this method, so that two
    /// measurements do not share memory.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn open_new(&self) -> Result<DriverHandle> {
        match (self, self.profile()?) {
            (_, Some(profile)) => Ok(SimDevice::new(SimConfig::new(profile))),
            (Self::Cuda(ordinal), None) => Ok(CudaDriver::open(*ordinal)?),
            (Self::Own(number), None) => own::find(DeviceId::own(*number)),
            (_, None) => Err(self.without_profile()),
        }
    }

    fn without_profile(&self) -> Error {
        Error::invalid_argument(format!("{self} has no driver"))
    }
}

impl FromStr for DeviceSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let fail = |why: &str| {
            Error::invalid_argument(format!(
                "`{text}` is not a device: {why}; write cuda:0, sim:h200, sim:h100, sim:a100, a size such as \
                 sim:8GiB, sim:FILE.toml with a profile, or own:0 for the program's own driver"
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
                let number =
                    ordinal.parse().ok().filter(|number| DeviceId::cuda(*number).ordinal() == *number);
                number.map(Self::Cuda).ok_or_else(|| fail("the device's number is missing or invalid"))
            }
            ("own", Some(number)) => {
                let number = number.parse().ok().filter(|number| DeviceId::own(*number).ordinal() == *number);
                number.map(Self::Own).ok_or_else(|| fail("the number after `own:` is invalid"))
            }
            ("sim", None | Some("h200")) => Ok(Self::SimH200),
            ("sim", Some("h100")) => Ok(Self::SimH100),
            ("sim", Some("a100")) => Ok(Self::SimA100),
            ("sim", Some(size)) => {
                let bytes =
                    parse_bytes(size).map_err(|_| fail("no simulated device has that name or size"))?;
                let meant = parse_memory(size).map_or_else(|error| format!("; {error}"), |_| String::new());
                match bytes {
                    ..SMALLEST_SIM => Err(fail(&format!("a simulated device has at least 2 MiB{meant}"))),
                    SMALLEST_SIM..=LARGEST_SIM => Ok(Self::SimCapacity(bytes)),
                    _ => Err(fail("a simulated device has at most 16 TiB")),
                }
            }
            _ => Err(fail("the kind before the colon must be `cuda`, `sim` or `own`")),
        }
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Own(number) => write!(f, "own:{number}"),
            Self::SimH200 => f.write_str("sim:h200"),
            Self::SimH100 => f.write_str("sim:h100"),
            Self::SimA100 => f.write_str("sim:a100"),
            Self::SimCapacity(bytes) => write!(f, "sim:{}", ByteSize::Bytes(*bytes)),
            Self::SimProfile(path) => write!(f, "sim:{}", path.display()),
            Self::SimDefault => f.write_str(Environment::get().device.as_deref().unwrap_or("sim:h200")),
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
            ("own:3", DeviceSpec::Own(3), "own:3"),
            ("sim", DeviceSpec::SimH200, "sim:h200"),
            ("SIM:H200", DeviceSpec::SimH200, "sim:h200"),
            ("sim:H100", DeviceSpec::SimH100, "sim:h100"),
            (" sim:a100 ", DeviceSpec::SimA100, "sim:a100"),
            ("sim:8GiB", DeviceSpec::SimCapacity(8 << 30), "sim:8GiB"),
            ("sim:0.5GB", DeviceSpec::SimCapacity(500_000_000), "sim:500MB"),
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
            ("", "must be `cuda`, `sim` or `own`"),
            ("gpu:0", "must be `cuda`, `sim` or `own`"),
            ("0", "must be `cuda`, `sim` or `own`"),
            ("own:", "number"),
            ("cuda:", "number"),
            ("cuda:-1", "number"),
            ("cuda:2147483648", "number"),
            ("cuda:4294967296", "number"),
            ("cuda:0:1", "number"),
            ("sim:", "name or size"),
            ("sim:b200", "name or size"),
            ("sim:-8GiB", "name or size"),
            ("sim:0", "at least"),
            ("sim:8", "at least"),
            ("sim:8", "did you mean 8GiB?"),
            ("sim:512", "did you mean 512MiB?"),
            ("sim:2097151", "at least"),
            ("sim:17TiB", "at most"),
            ("sim:16EiB", "name or size"),
        ] {
            let error = text.parse::<DeviceSpec>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(["cuda:0", "sim:8GiB", "own:0"].iter().all(|form| error.contains(form)), "{error}");
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

    /// A percentage of the free memory is rounded down to whole blocks of 256 bytes.
    #[test]
    fn a_percentage_of_free_memory_is_in_whole_blocks() {
        let driver = DeviceSpec::SimCapacity(64 << 20).open().unwrap();
        let free = driver.mem_get_info().unwrap().free;
        for percent in [33.0, 12.5, 0.1] {
            let (bytes, exact) =
                (ByteSize::PercentOfFree(percent).resolve(&*driver).unwrap(), free as f64 * percent / 100.0);
            assert!(bytes % 256 == 0 && bytes as f64 <= exact && exact < bytes as f64 + 256.0, "{percent}%");
        }
    }

    #[test]
    fn a_profile_that_cannot_be_read_is_an_error_that_names_it() {
        let spec: DeviceSpec = "sim:/nowhere/h100.toml".parse().unwrap();
        let Err(error) = spec.open().map(|driver| driver.name()) else { panic!("it was opened") };
        assert!(error.to_string().contains("/nowhere/h100.toml"), "{error}");
    }

    #[test]
    fn the_default_device_is_one_device() {
        let spec = DeviceSpec::default_device();
        let [one, same] = [spec.open().unwrap(), DeviceSpec::default_device().open().unwrap()];
        assert!(Arc::ptr_eq(&one, &same) && one.device() == same.device());
        assert_eq!(one.device().is_sim(), spec.is_sim());
        assert_eq!(crate::open(one.device()).unwrap().device(), one.device());
        if spec.is_sim() {
            let bytes = 64 << 20;
            let before = same.mem_get_info().unwrap().free;
            let ptr = one.mem_alloc(bytes).unwrap();
            assert_eq!(same.mem_get_info().unwrap().free, before - bytes, "one device has one memory");
            // SAFETY: the pointer came from this driver and is not used again.
            unsafe { one.mem_free(ptr) }.unwrap();
            let apart = spec.open_new().unwrap();
            assert_ne!(apart.device(), one.device());
            assert_ne!(spec, DeviceSpec::SimH200, "a named device is a new one");
        }
    }
}
