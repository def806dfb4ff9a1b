//! The wire format of protocol buffers: fields, each with a number and a value.

/// The value of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    /// Whether the message is damaged.
    is_broken: bool,
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message, is_broken: false }
    }

    /// Returns whether the last field could not be read.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let key = varint(&mut self.rest)?;
        let value = match key & 7 {
            0 => Value::Number(varint(&mut self.rest)?),
            1 => Value::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = varint(&mut self.rest)?;
                Value::Bytes(self.take(usize::try_from(length).ok()?)?)
            }
            5 => Value::Number(u32::from_le_bytes(self.take(4)?.try_into().ok()?).into()),
            _ => return None,
        };
        Some((key >> 3, value))
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() || self.is_broken {
            return None;
        }
        let field = self.field();
        self.is_broken = field.is_none();
        field
    }
}

impl<'a> Value<'a> {
    pub(super) fn number(self) -> u64 {
        if let Self::Number(number) = self { number } else { 0 }
    }

    pub(super) fn bytes(self) -> &'a [u8] {
        if let Self::Bytes(bytes) = self { bytes } else { &[] }
    }

    /// Returns the numbers of a repeated field, which may be packed.
    pub(super) fn numbers(self) -> impl Iterator<Item = u64> + use<'a> {
        let (single, mut packed) = match self {
            Self::Number(number) => (Some(number), &[][..]),
            Self::Bytes(bytes) => (None, bytes),
        };
        single.into_iter().chain(std::iter::from_fn(move || varint(&mut packed)))
    }
}

/// Reads a number of variable length.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..70).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        if shift < 64 {
            number |= u64::from(byte & 0x7f) << shift;
        }
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_up_to_the_first_damage() {
        let message = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 0, 0, 0, 0x21, 2, 0, 0, 0, 0, 0, 0, 0];
        let mut fields = Fields::new(&message);
        let all: Vec<_> = fields.by_ref().collect();
        let expected =
            [(1, Value::Number(150)), (2, Value::Bytes(b"hi")), (3, Value::Number(1)), (4, Value::Number(2))];
        assert_eq!(all, expected);
        assert!(!fields.is_broken());
        for bad in [
            &[0x12, 5, b'x'][..],
            &[0x08],
            &[0x0b],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ] {
            let mut fields = Fields::new(bad);
            assert!(fields.next().is_none() && fields.is_broken(), "{bad:?}");
        }
        assert_eq!(Value::Bytes(&[1, 0x80, 1]).numbers().collect::<Vec<_>>(), [1, 128]);
        assert_eq!(Value::Number(7).numbers().collect::<Vec<_>>(), [7]);
    }
}
