//! The range of the kernels' random durations. All durations in the range are equally likely.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// The range for the random durations of kernels, which are uniform.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[expect(clippy::exhaustive_structs, reason = "a range has two ends")]
pub struct Kernels {
    /// The shortest duration in nanoseconds; at least 1000.
    pub shortest_ns: u32,
    /// The longest duration in nanoseconds; at most one second.
    pub longest_ns: u32,
}

impl Kernels {
    /// Short durations: 5 to 25 µs.
    pub const SHORT: Self = Self { shortest_ns: 5_000, longest_ns: 25_000 };
    /// Longer durations: 10 to 100 µs.
    pub const LONG: Self = Self { shortest_ns: 10_000, longest_ns: 100_000 };
}

impl fmt::Display for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{} µs", self.shortest_ns / 1000, self.longest_ns / 1000)
    }
}

/// Reads text such as `10..100`, in whole microseconds.
impl FromStr for Kernels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const MOST_US: u32 = 1_000_000;
        let range = || {
            let (shortest, longest) = text.split_once("..")?;
            let [shortest, longest] = [shortest, longest].map(|part| part.trim().parse::<u32>().ok());
            shortest.zip(longest)
        };
        match range() {
            Some((shortest, longest)) if shortest >= 1 && shortest <= longest && longest <= MOST_US => {
                Ok(Self { shortest_ns: shortest * 1000, longest_ns: longest * 1000 })
            }
            _ => Err(format!(
                "`{text}` is not a range of durations; write the shortest and the longest in whole \
                 microseconds from 1 to {MOST_US}, as in 10..100"
            )),
        }
    }
}

/// A source of random numbers: xorshift (Marsaglia 2003), 13-7-17. `log.hpp` in `benches/peers` has the same
/// source.
#[derive(Clone, Debug)]
pub(super) struct Durations {
    state: u64,
    of: Kernels,
}

impl Durations {
    /// Returns the source for `seed`. The seed 0 would give only the number 0, so it is replaced with 1.
    pub(super) fn new(of: Kernels, seed: u64) -> Self {
        Self { state: seed.max(1), of }
    }

    /// Returns the duration of the next kernel, in nanoseconds.
    pub(super) fn draw(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let Kernels { shortest_ns, longest_ns } = self.of;
        shortest_ns + (self.state % u64::from(longest_ns - shortest_ns + 1)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_is_read_and_printed() {
        assert_eq!("10..100".parse(), Ok(Kernels::LONG));
        assert_eq!(" 5 .. 25 ".parse(), Ok(Kernels::SHORT));
        assert_eq!(Kernels::LONG.to_string(), "10..100 µs");
        assert!("7..7".parse::<Kernels>().is_ok());
        for wrong in ["", "10", "10..", "0..5", "9..8", "1..1000001", "1.5..3", "-1..3"] {
            assert!(wrong.parse::<Kernels>().unwrap_err().contains("as in 10..100"), "{wrong}");
        }
    }

    #[test]
    fn durations_are_uniform_over_the_range_and_a_matter_of_the_seed() {
        let draw = |seed| {
            let mut durations = Durations::new(Kernels::LONG, seed);
            (0..9000).map(move |_| durations.draw()).collect::<Vec<_>>()
        };
        assert_eq!(draw(42), draw(42));
        assert_ne!(draw(42), draw(43));
        let mut tenths = [0_u32; 9];
        for ns in draw(42) {
            assert!((10_000..=100_000).contains(&ns));
            tenths[((ns - 10_000) / 10_000).min(8) as usize] += 1;
        }
        // 1000 are expected in each, with a standard deviation of 30.
        assert!(tenths.iter().all(|count| (850..1150).contains(count)), "{tenths:?}");
    }

    #[test]
    fn one_length_is_a_range_too_and_no_seed_is_stuck() {
        let only = Kernels { shortest_ns: 3000, longest_ns: 3000 };
        assert_eq!(Durations::new(only, 0).draw(), 3000);
        assert_ne!(Durations::new(Kernels::LONG, 0).draw(), 10_000);
    }
}
