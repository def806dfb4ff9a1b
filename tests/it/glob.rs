//! Tests that a program which imports everything from millpond keeps its own names.

use std::fmt;

use millpond::*;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Number(u32);

#[derive(Debug)]
struct Odd;

impl fmt::Display for Odd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("odd")
    }
}

impl std::error::Error for Odd {}

fn half(number: u32) -> Result<u32, Odd> {
    if number.is_multiple_of(2) { Result::Ok(number / 2) } else { Err(Odd) }
}

fn boxed(number: u32) -> Result<u32, Box<dyn std::error::Error>> {
    Ok(half(number)?)
}

fn with_core(numbers: &[u32]) -> core::result::Result<u32, core::num::ParseIntError> {
    let sizes = core::mem::size_of::<u64>() as u32 + numbers.iter().find(|n| **n == 8).copied().unwrap_or(0);
    core::iter::once("7").map(str::parse::<u32>).sum::<core::result::Result<u32, _>>().map(|sum| sum + sizes)
}

fn millponds(bytes: u64) -> Result<Layout> {
    Layout::with_alignment(bytes, 512)
}

#[test]
fn issue_29_a_glob_import_hides_nothing_of_the_programs() {
    assert_eq!(half(8).unwrap(), 4);
    assert_eq!(boxed(7).unwrap_err().to_string(), "odd");
    assert_eq!(with_core(&[8]).unwrap(), 23);
    assert_eq!(millponds(1).unwrap().alignment(), 512);
    assert_eq!(Number::default(), Number(0));
    let text: String = format!("{:?}", vec![Some(Number(1)), Option::None]);
    assert_eq!(text, "[Some(Number(1)), None]");
    let range = core::ops::Range { start: 1, end: 3 };
    assert_eq!(range.map(|at| at.to_string()).collect::<Vec<_>>().concat(), "12");
}
