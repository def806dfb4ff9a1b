//! The settings of PyTorch's caching allocator.

use std::fmt;

use millpond_core::stack::Params;
use millpond_core::{ByteSize, Error, Result};

use crate::recording::Recording;

const MIB: u64 = 1 << 20;

/// The number of size ranges that can have their own divisions: below 2 MiB, below 4 MiB, …, from 32 GiB.
const INTERVALS: usize = 16;

/// PyTorch accepts a `max_split_size` only if it is larger than this number of bytes.
const LEAST_SPLIT: u64 = 20 * MIB;

/// Requests of at least this many bytes have segments of their own.
const LARGE: u64 = 10 * MIB;

/// The most steps between two powers of two.
const MOST_DIVISIONS: u64 = 64;

/// The settings of `PYTORCH_CUDA_ALLOC_CONF`, and the memory limit of the process. Sizes are in bytes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Settings {
    /// Blocks of at least this size are not split; `u64::MAX` if all blocks are split.
    pub(crate) max_split: u64,
    /// How many bytes larger than the request a block may be that is not split.
    pub(crate) max_non_split_rounding: u64,
    /// For each size range, the number of steps between two powers of two. Sizes are rounded up to a step. 0
    /// and 1 mean multiples of 512 bytes.
    pub(crate) divisions: [u64; INTERVALS],
    /// The share of the limit from which unused segments are returned to the driver; 0 if they never are.
    pub(crate) garbage_collection: f64,
    /// Whether segments can grow.
    pub(crate) is_expandable: bool,
    /// The size of a segment for requests from 1 MiB up to 10 MiB.
    pub(crate) large_segment: u64,
    /// The most bytes of all segments together; `u64::MAX` if there is no limit.
    pub(crate) limit: u64,
    /// Whether the older segment wins if two free blocks have one size; otherwise the lower address wins.
    pub(crate) is_oldest_first: bool,
    /// The most bytes at the end of a large block that are not split off.
    pub(crate) unsplit: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_split: u64::MAX,
            max_non_split_rounding: 20 * MIB,
            divisions: [0; INTERVALS],
            garbage_collection: 0.0,
            is_expandable: false,
            large_segment: 20 * MIB,
            limit: u64::MAX,
            is_oldest_first: false,
            unsplit: MIB,
        }
    }
}

impl Settings {
    /// The parameters of the layer `torch`, named like PyTorch's settings.
    pub(crate) const PARAMS: &[(&'static str, &'static str)] = &[
        (
            "max_split_size_mb",
            "blocks of this many MiB or more are not split (default: all blocks are split)",
        ),
        (
            "max_non_split_rounding_mb",
            "by how many MiB a block that is not split may exceed the request (default: \
             large_segment_size_mb)",
        ),
        (
            "roundup_power2_divisions",
            "the number of steps between two powers of two, as in 8, or by MiB, as in \"[256:1,512:2,>:8]\"; \
             sizes are rounded up to a step (default: multiples of 512 bytes)",
        ),
        (
            "garbage_collection_threshold",
            "the share of `limit` from which unused segments are freed (default: never)",
        ),
        ("expandable_segments", "True: segments can grow (default False)"),
        (
            "large_segment_size_mb",
            "the size in MiB of segments for requests from 1 MiB up to 10 MiB (default 20)",
        ),
        ("limit", "the most bytes of all segments, like set_per_process_memory_fraction (default: none)"),
        (
            "ties",
            "which of two free blocks of one size is taken: address, the one with the lower address, as in \
             PyTorch 2.11; or age, the one in the older segment, as in PyTorch 2.15 (default address)",
        ),
    ];

    /// Reads the parameters of a layer that declares these ones. The limit may be a share of the device's
    /// free memory.
    pub(crate) fn read(params: &Params<'_>, declared: &[(&str, &str)]) -> Result<(Self, Option<ByteSize>)> {
        let mut settings = Self::default();
        for (name, _) in declared.iter().filter(|(name, _)| *name != "limit") {
            if let Some(text) = params.text(name)? {
                settings
                    .set(name, text)
                    .map_err(|why| Error::invalid_stack(format!("`{name}={text}` of `torch`: {why}")))?;
            }
        }
        if settings.max_split <= settings.large_segment {
            let (split, segment) = (settings.max_split / MIB, settings.large_segment / MIB);
            return Err(Error::invalid_stack(format!(
                "`max_split_size_mb={split}` of `torch` must be larger than `large_segment_size_mb={segment}`"
            )));
        }
        let limit = params.get("limit")?;
        if settings.garbage_collection > 0.0 && limit.is_none() {
            return Err(Error::invalid_stack(
                "`garbage_collection_threshold` of `torch` is a share of `limit`, which is not given: \
                 write for example limit=80%",
            ));
        }
        Ok((settings, limit))
    }

    /// Returns the text of the layer with these settings. If they collect garbage, the limit is the whole
    /// device, because a recording does not contain the process's limit.
    pub(crate) fn stack(&self) -> String {
        let needs_limit = self.garbage_collection > 0.0 && self.limit == u64::MAX;
        format!("{self}{}", if needs_limit { ",limit=100%" } else { "" })
    }

    /// Returns the settings as the value of `PYTORCH_CUDA_ALLOC_CONF`; `None` if all are PyTorch's defaults.
    pub(crate) fn environment(&self) -> Option<String> {
        let named = self.named().into_iter().filter(|(name, _)| !["limit", "ties"].contains(name));
        let texts: Vec<String> = named.map(|(name, value)| format!("{name}:{value}")).collect();
        (!texts.is_empty()).then(|| texts.join(","))
    }

    /// Returns the settings that differ from PyTorch's defaults.
    fn named(&self) -> Vec<(&'static str, String)> {
        let usual = Self::default();
        let mut named = Vec::new();
        let mut name = |name, value: &dyn fmt::Display| named.push((name, value.to_string()));
        if self.is_expandable {
            name("expandable_segments", &"True");
        }
        if self.max_split != usual.max_split {
            name("max_split_size_mb", &(self.max_split / MIB));
        }
        if self.max_non_split_rounding != self.large_segment {
            name("max_non_split_rounding_mb", &(self.max_non_split_rounding / MIB));
        }
        if self.divisions.iter().any(|divisions| *divisions != self.divisions[0]) {
            let sizes = (0..INTERVALS).map(|at| format!("{}:{}", 1 << at, self.divisions[at].max(1)));
            name("roundup_power2_divisions", &format_args!("[{}]", sizes.collect::<Vec<_>>().join(",")));
        } else if self.divisions[0] > 0 {
            name("roundup_power2_divisions", &self.divisions[0]);
        }
        if self.garbage_collection > 0.0 {
            name("garbage_collection_threshold", &self.garbage_collection);
        }
        if self.large_segment != usual.large_segment {
            name("large_segment_size_mb", &(self.large_segment / MIB));
        }
        if self.limit != usual.limit {
            name("limit", &ByteSize::Bytes(self.limit));
        }
        if self.is_oldest_first {
            name("ties", &"age");
        }
        named
    }

    /// Returns the settings in a recording of PyTorch. Missing settings get PyTorch's defaults.
    ///
    /// # Errors
    /// Returns a sentence about a value that cannot be read.
    pub(crate) fn of(recording: &Recording) -> std::result::Result<Self, String> {
        let mut settings = Self::default();
        for (name, value) in recording.settings() {
            let number = || {
                value
                    .parse::<i64>()
                    .map_err(|_| format!("`{name}` is `{value}`, which is not a whole number"))
            };
            match name.as_str() {
                "max_split_size" => {
                    settings.max_split = u64::try_from(number()?).unwrap_or(u64::MAX);
                    if settings.max_split <= LEAST_SPLIT {
                        return Err(format!(
                            "`{name}` is {value} bytes, but PyTorch accepts only values above 20 MiB; \
                             correct it"
                        ));
                    }
                }
                "expandable_segments" => settings.is_expandable = value == "True",
                "garbage_collection_threshold" => settings.set(name, value)?,
                "roundup_power2_divisions" => settings.set_table(value)?,
                _ => {}
            }
        }
        Ok(settings)
    }

    /// Reads the table in a snapshot, such as `1:0,2:4,…`. Each entry is a size in MiB, and its number of
    /// steps.
    fn set_table(&mut self, text: &str) -> std::result::Result<(), String> {
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let wrong = || {
                format!(
                    "`roundup_power2_divisions` has `{pair}`, which is not of the form SIZE:STEPS, such as \
                     256:8"
                )
            };
            let (size, divisions) = pair.split_once(':').ok_or_else(wrong)?;
            let size: u64 = size.parse().map_err(|_| wrong())?;
            let at = size.checked_ilog2().ok_or_else(wrong)? as usize;
            let divisions: u64 = divisions.parse().map_err(|_| wrong())?;
            if divisions != 0 && !are_divisions(divisions) {
                return Err(wrong());
            }
            *self.divisions.get_mut(at).ok_or_else(wrong)? = divisions;
        }
        Ok(())
    }

    /// Sets one setting of PyTorch's environment variable.
    pub(crate) fn set(&mut self, name: &str, text: &str) -> std::result::Result<(), String> {
        let number = || text.parse::<u64>().map_err(|_| "it must be a whole number".to_owned());
        let mib = || number()?.checked_mul(MIB).ok_or_else(|| "no device has so much memory".to_owned());
        match name {
            "max_split_size_mb" => {
                self.max_split = mib()?;
                if self.max_split <= LEAST_SPLIT {
                    return Err("PyTorch accepts only values above 20 MiB".to_owned());
                }
            }
            "max_non_split_rounding_mb" => {
                self.max_non_split_rounding = mib()?;
                if self.max_non_split_rounding < LEAST_SPLIT {
                    return Err("PyTorch accepts only 20 MiB or more".to_owned());
                }
            }
            "large_segment_size_mb" => {
                // Without a value of its own, the other setting follows this one.
                let follows = self.max_non_split_rounding == self.large_segment;
                self.large_segment = mib()?;
                if self.large_segment <= LARGE {
                    return Err("PyTorch accepts only values above 10 MiB".to_owned());
                }
                if follows {
                    self.max_non_split_rounding = self.large_segment;
                }
            }
            "garbage_collection_threshold" => {
                let share: f64 =
                    text.parse().map_err(|_| "it must be a number between 0 and 1".to_owned())?;
                if !(0.0..1.0).contains(&share) {
                    return Err("it must be a number between 0 and 1".to_owned());
                }
                self.garbage_collection = share;
            }
            "expandable_segments" => {
                self.is_expandable = match text {
                    "True" => true,
                    "False" => false,
                    _ => return Err("it must be True or False".to_owned()),
                }
            }
            "ties" => {
                self.is_oldest_first = match text {
                    "age" => true,
                    "address" => false,
                    _ => return Err("it must be address or age".to_owned()),
                }
            }
            _ => self.set_divisions(text)?,
        }
        Ok(())
    }

    /// Reads `4`, which applies to all sizes, or a list such as `[256:1,512:2,>:8]`: 1 up to 256 MiB, …, 8
    /// above the last size.
    fn set_divisions(&mut self, text: &str) -> std::result::Result<(), String> {
        let wrong = || {
            format!(
                "`{text}` is neither a power of two up to {MOST_DIVISIONS} nor a list such as \
                 [256:1,512:2,>:8]"
            )
        };
        let power = |text: &str| {
            text.trim().parse::<u64>().ok().filter(|number| number.is_power_of_two()).ok_or_else(wrong)
        };
        let divisions_of =
            |text: &str| power(text).ok().filter(|number| are_divisions(*number)).ok_or_else(wrong);
        let Some(list) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) else {
            self.divisions = [divisions_of(text)?; INTERVALS];
            return Ok(());
        };
        let mut last = None;
        for pair in list.split(',') {
            let (size, divisions) = pair.split_once(':').ok_or_else(wrong)?;
            let divisions = divisions_of(divisions)?;
            if size.trim() == ">" {
                self.divisions[last.map_or(0, |at: usize| at + 1)..].fill(divisions);
                continue;
            }
            let at = (power(size)?.ilog2() as usize).min(INTERVALS - 1);
            match last {
                None => self.divisions[..=at].fill(divisions),
                Some(_) => self.divisions[at] = divisions,
            }
            last = Some(at);
        }
        Ok(())
    }

    /// Returns the rounded size of a request.
    pub(crate) fn rounded(&self, bytes: u64) -> u64 {
        let bytes = bytes.max(1);
        let interval = bytes.ilog2().saturating_sub(20).min(INTERVALS as u32 - 1);
        let divisions = self.divisions[interval as usize];
        if divisions > 1 && bytes > 512 * divisions {
            if bytes.is_power_of_two() {
                return bytes;
            }
            let floor = 1_u64 << bytes.ilog2();
            return match floor >> divisions.ilog2() {
                0 => floor << 1,
                step => bytes.checked_next_multiple_of(step).unwrap_or(u64::MAX),
            };
        }
        bytes.checked_next_multiple_of(512).unwrap_or(u64::MAX)
    }

    /// Returns the size of the segment for a request with this rounded size.
    pub(crate) fn segment(&self, rounded: u64) -> u64 {
        match rounded {
            ..=MIB => 2 * MIB,
            _ if rounded < LARGE => self.large_segment,
            _ => rounded.checked_next_multiple_of(2 * MIB).unwrap_or(u64::MAX),
        }
    }
}

fn are_divisions(number: u64) -> bool {
    number.is_power_of_two() && number <= MOST_DIVISIONS
}

/// Prints the parameters of the layer that differ from PyTorch's defaults.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("torch")?;
        for (at, (name, value)) in self.named().into_iter().enumerate() {
            let separator = if at == 0 { ':' } else { ',' };
            match value.starts_with('[') {
                true => write!(f, "{separator}{name}=\"{value}\"")?,
                false => write!(f, "{separator}{name}={value}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, text: &str) -> Settings {
        let mut settings = Settings::default();
        settings.set(name, text).unwrap();
        settings
    }

    #[test]
    fn sizes_are_rounded_as_pytorch_rounds_them() {
        let usual = Settings::default();
        assert_eq!([0, 1, 512, 513, 1000].map(|bytes| usual.rounded(bytes)), [512, 512, 512, 1024, 1024]);
        // 1200 KiB lies between 1 and 2 MiB, where four divisions are steps of 256 KiB.
        let four = with("roundup_power2_divisions", "4");
        assert_eq!(four.rounded(1200 << 10), 1280 << 10);
        assert_eq!(four.rounded(1 << 20), 1 << 20);
        assert_eq!(four.rounded(2000), 2048);
        assert_eq!(four.rounded(2049), 2560);
        let list = with("roundup_power2_divisions", "[256:1,512:2,1024:4,>:8]");
        assert_eq!(list.divisions[..12], [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8]);
        assert_eq!(list.rounded((300 << 20) + 1), (300 << 20) + 512);
        assert_eq!(list.rounded(600 << 20), 768 << 20);
    }

    #[test]
    fn segments_are_of_two_or_twenty_mib_or_as_large_as_the_request() {
        let usual = Settings::default();
        let mib = |tenths: u64| tenths * MIB / 10;
        assert_eq!(
            [10, 11, 99, 100, 205].map(|tenths| usual.segment(mib(tenths)) / MIB),
            [2, 20, 20, 10, 22]
        );
    }

    #[test]
    fn settings_are_printed_as_the_layer_reads_them() {
        assert_eq!(Settings::default().to_string(), "torch");
        assert_eq!(with("max_split_size_mb", "128").to_string(), "torch:max_split_size_mb=128");
        let mut list = with("roundup_power2_divisions", "[256:1,512:2,>:8]");
        let text = list.to_string();
        let again = text.split_once('"').unwrap().1.trim_end_matches('"');
        list.set_divisions("1").unwrap();
        list.set_divisions(again).unwrap();
        assert_eq!(list.to_string(), text);
        for (name, text) in [
            ("max_split_size_mb", "20"),
            ("max_split_size_mb", "x"),
            ("max_non_split_rounding_mb", "19"),
            ("garbage_collection_threshold", "1"),
            ("expandable_segments", "true"),
            ("ties", "size"),
            ("roundup_power2_divisions", "3"),
            ("roundup_power2_divisions", "128"),
            ("roundup_power2_divisions", "1152921504606846976"),
            ("roundup_power2_divisions", "[256:1152921504606846976,>:1]"),
            ("roundup_power2_divisions", "[256]"),
        ] {
            assert!(Settings::default().set(name, text).is_err(), "{name}={text}");
        }
        for (table, is_read) in [("1:0,2:64", true), ("1:1152921504606846976", false), ("1:3", false)] {
            assert_eq!(Settings::default().set_table(table).is_ok(), is_read, "{table}");
        }
    }
}
