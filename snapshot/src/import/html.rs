//! Finds the snapshot in a web page that PyTorch's viewer wrote. The page contains the snapshot as base64.

use std::io::{self, Read};

use super::bytes::Bytes;

/// A quotation mark and then these characters start the base64 of a pickle of protocol 2 to 5.
const START: &[u8] = b"gA";

/// Returns a reader of the pickle in a page. Returns `None` if the page contains no pickle.
///
/// # Errors
/// The page cannot be read.
pub(super) fn pickle<'a>(page: impl Read + 'a) -> io::Result<Option<impl Read + 'a>> {
    let mut page = Bytes::new(Box::new(page));
    // The last four bytes that were read: a quotation mark and three digits.
    let mut last = [0; 4];
    while let Some(byte) = page.next()? {
        last = [last[1], last[2], last[3], byte];
        let is_start = matches!(last[0], b'"' | b'\'' | b'`') && &last[1..3] == START;
        if is_start && (b'I'..=b'X').contains(&last[3]) {
            let digits = last[1..4].try_into().unwrap_or([0; 3]);
            return Ok(Some(Base64 { page, start: digits, taken: 0, group: [0; 3], left: 0 }));
        }
    }
    Ok(None)
}

/// The decoded bytes of base64, up to the first character that is not a base64 digit.
struct Base64<'a> {
    page: Bytes<'a>,
    /// The digits that were read while the start was searched.
    start: [u8; 3],
    taken: usize,
    /// The last group of decoded bytes. The bytes that remain are at its end.
    group: [u8; 3],
    left: usize,
}

impl Base64<'_> {
    /// Returns the value of the next digit; `None` at the end.
    fn digit(&mut self) -> io::Result<Option<u8>> {
        let byte = if let Some(&byte) = self.start.get(self.taken) {
            self.taken += 1;
            byte
        } else {
            // JSON may write `/` as `\/`.
            match self.page.next()? {
                Some(b'\\') => self.page.next()?.unwrap_or(b'"'),
                other => other.unwrap_or(b'"'),
            }
        };
        Ok(match byte {
            b'A'..=b'Z' => Some(byte - b'A'),
            b'a'..=b'z' => Some(byte - b'a' + 26),
            b'0'..=b'9' => Some(byte - b'0' + 52),
            b'+' | b'-' => Some(62),
            b'/' | b'_' => Some(63),
            _ => None,
        })
    }

    /// Decodes the next group of four digits. At the end, the group may have fewer digits.
    fn next_group(&mut self) -> io::Result<()> {
        let (mut bits, mut digits) = (0_u32, 0);
        while digits < 4
            && let Some(digit) = self.digit()?
        {
            bits = bits << 6 | u32::from(digit);
            digits += 1;
        }
        self.left = match digits {
            4 => 3,
            3 => 2,
            2 => 1,
            _ => 0,
        };
        let [_, group @ ..] = (bits << (6 * (4 - digits))).to_be_bytes();
        // Move the remaining bytes to the end.
        self.group = group;
        self.group.rotate_right(3 - self.left);
        if digits < 4 {
            self.start = [b'"'; 3]; // nothing comes after the end
            self.taken = 0;
        }
        Ok(())
    }
}

impl Read for Base64<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut count = 0;
        for byte in into {
            if self.left == 0 {
                self.next_group()?;
            }
            if self.left == 0 {
                break;
            }
            *byte = self.group[3 - self.left];
            self.left -= 1;
            count += 1;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(page: &str) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        pickle(page.as_bytes()).unwrap()?.read_to_end(&mut bytes).unwrap();
        Some(bytes)
    }

    #[test]
    fn the_pickle_in_a_page_is_found_and_decoded() {
        let page = |base64: &str| format!("<html> gASV \"x\" [{{\"base64\": \"{base64}\"}}]</html>");
        assert_eq!(read(&page("gASVAAE=")).unwrap(), [0x80, 4, 0x95, 0, 1]);
        assert_eq!(read(&page("gASVAA==")).unwrap(), [0x80, 4, 0x95, 0]);
        assert_eq!(read(&page("gAJ9/w8\\/")).unwrap(), [0x80, 2, 0x7d, 0xff, 0x0f, 0x3f]);
        assert_eq!(read(&page("gAX/")).unwrap(), [0x80, 5, 0xff]);
        assert_eq!(read("<html>gASV \"gAZZ\"</html>"), None);
        assert_eq!(read(&page("gA")), None);
    }

    #[test]
    fn a_page_that_is_cut_off_gives_the_bytes_before() {
        assert_eq!(read("<html>\"gASVAAAAB").unwrap(), [0x80, 4, 0x95, 0, 0, 0]);
    }
}
