//! Compares a size of the device that the user gives with the file.

use millpond_core::format_bytes;
use millpond_engine::text::{file_word, option_bytes};

use super::explanation::Explanation;

/// The nominal size of a device, such as 24 GiB, differs from the size that the driver reports by at most
/// this share.
const MOST_NOMINAL: f64 = 0.1;

impl Explanation {
    /// Checks whether a size of the device in bytes is possible: whether it agrees with the size in the file,
    /// and is not less than the memory that the program had. A nominal size agrees, such as 80 GiB for a
    /// device with 79.1 GiB.
    ///
    /// ```
    /// use millpond_snapshot::{explain, import};
    /// let csv = "id,lower,upper,size\na,0,10,4194304\n";
    /// let recording = import::read("example", csv.as_bytes(), &import::Options::default())?;
    /// let explanation = explain::explain(&recording, None);
    /// assert!(explanation.check_device_bytes(8 << 20).is_ok());
    /// let error = explanation.check_device_bytes(2 << 20).unwrap_err();
    /// assert!(error.starts_with("a device with 2MiB contradicts the file: 4MiB were live at one time"));
    /// # Ok::<(), millpond_engine::log::LogError>(())
    /// ```
    ///
    /// # Errors
    /// The size contradicts the file. The error is a sentence with the figures.
    pub fn check_device_bytes(&self, device_bytes: u64) -> Result<(), String> {
        let given = format_bytes(device_bytes);
        if let Some(recorded) = self.recorded_device_bytes {
            let difference = recorded.abs_diff(device_bytes) as f64;
            return match difference <= MOST_NOMINAL * recorded as f64 {
                true => Ok(()),
                false => Err(format!(
                    "a device with {given} contradicts the file, whose device has {}; omit the size",
                    format_bytes(recorded)
                )),
            };
        }
        match self.least_device_bytes() {
            Some((least, why)) if least > device_bytes => Err(format!(
                "a device with {given} contradicts the file: {why}; give the size of the device on which the \
                 program ran, or none. `millpond-replay plan {} --capacity {}` says whether the program fits \
                 into another device",
                file_word(&self.file),
                option_bytes(device_bytes)
            )),
            _ => Ok(()),
        }
    }

    /// Returns the fewest bytes that the device must have had, with the reason. Returns `None` if the file
    /// contradicts itself, so that it proves nothing.
    fn least_device_bytes(&self) -> Option<(u64, String)> {
        if self.contradicts_itself {
            return None;
        }
        let available = self.sums.available_bytes.map(|bytes| {
            let at = "at a failed request, the allocator had or could take";
            (bytes, format!("{at} {}", format_bytes(bytes)))
        });
        let live = self.sums.peak_live_bytes;
        let live = (live, format!("{} were live at one time", format_bytes(live)));
        let reserved = self.sums.peak_reserved_bytes;
        let reserved =
            reserved.map(|bytes| (bytes, format!("{} were reserved at one time", format_bytes(bytes))));
        // If two numbers are equal, the shorter reason counts.
        available.into_iter().chain(reserved).chain([live]).max_by_key(|(bytes, _)| *bytes)
    }
}
