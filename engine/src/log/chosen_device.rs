//! The rule by which all commands choose the rows of one device in a log of several.

use crate::text::number_of;
use millpond_core::DeviceId;

/// Takes the rows of one device: the requested one, or else the device of the first row.
///
/// ```
/// use millpond_core::DeviceId;
/// use millpond_engine::log::ChosenDevice;
/// let mut chosen = ChosenDevice::new(None);
/// assert!(chosen.takes(Some(DeviceId::cuda(1))) && !chosen.takes(Some(DeviceId::cuda(0))));
/// assert_eq!((chosen.id(), chosen.left_out()), (Some(DeviceId::cuda(1)), 1));
/// ```
#[derive(Clone, Copy, Default, Debug)]
pub struct ChosenDevice {
    /// The requested ordinal.
    wanted: Option<u32>,
    /// The device whose rows are taken. A simulated device may have the same ordinal as a real one.
    id: Option<DeviceId>,
    left_out: u64,
}

impl ChosenDevice {
    /// Chooses the device with this ordinal; `None` chooses the device of the first row.
    pub fn new(wanted: Option<u32>) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Returns whether a row of this device is taken. Rows without a device always are.
    pub fn takes(&mut self, device: Option<DeviceId>) -> bool {
        let Some(device) = device else { return true };
        let is_wanted = self.wanted.is_none_or(|wanted| device.ordinal() == wanted);
        let is_taken = is_wanted && *self.id.get_or_insert(device) == device;
        self.left_out += u64::from(!is_taken);
        is_taken
    }

    /// Returns the device whose rows are taken, if a row named it.
    pub fn id(&self) -> Option<DeviceId> {
        self.id
    }

    /// Returns how many rows of other devices there were.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns a sentence about a number of rows of other devices.
    pub fn sentence(left_out: u64) -> String {
        format!(
            "{} of other devices left out; `import --device N --output LOG.csv` writes the rows of device N",
            number_of(left_out, "row")
        )
    }
}
