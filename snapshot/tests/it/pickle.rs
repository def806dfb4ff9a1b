//! Writes pickles of plain data, as Python does.

use std::collections::HashMap;
use std::rc::Rc;

/// A value of Python.
#[derive(Clone, Debug)]
pub(crate) enum Py {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
    List(Vec<Self>),
    Tuple(Vec<Self>),
    Dict(Vec<(&'static str, Self)>),
    /// A value with several references; it is written once.
    Shared(Rc<Self>),
}

impl From<&str> for Py {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

impl From<u64> for Py {
    fn from(number: u64) -> Self {
        Self::Int(number.into())
    }
}

/// Writes a value in one protocol, 2 to 5.
struct Writer {
    protocol: u8,
    out: Vec<u8>,
    memo: u32,
    texts: HashMap<String, u32>,
    shared: HashMap<*const Py, u32>,
}

/// Returns the pickle of a value.
pub(crate) fn pickle(value: &Py, protocol: u8) -> Vec<u8> {
    let (texts, shared) = (HashMap::new(), HashMap::new());
    let mut writer = Writer { protocol, out: vec![0x80, protocol], memo: 0, texts, shared };
    if protocol >= 4 {
        writer.out.push(0x95);
        writer.out.extend(1_000_u64.to_le_bytes());
    }
    writer.value(value);
    writer.out.push(b'.');
    writer.out
}

impl Writer {
    fn value(&mut self, value: &Py) {
        match value {
            Py::None => self.out.push(b'N'),
            Py::Bool(value) => self.out.push(if *value { 0x88 } else { 0x89 }),
            Py::Int(number) => self.int(*number),
            Py::Float(number) => {
                self.out.push(b'G');
                self.out.extend(number.to_be_bytes());
            }
            Py::Str(text) => self.text(text),
            Py::List(items) => {
                self.out.push(b']');
                self.memoize();
                // As Python does: a single item alone, others in parts of a thousand.
                for part in items.chunks(1000) {
                    if let [item] = part {
                        self.value(item);
                        self.out.push(b'a');
                    } else {
                        self.out.push(b'(');
                        part.iter().for_each(|item| self.value(item));
                        self.out.push(b'e');
                    }
                }
            }
            Py::Tuple(items) => {
                if items.len() > 3 {
                    self.out.push(b'(');
                }
                items.iter().for_each(|item| self.value(item));
                self.out.push(match items.len() {
                    0 => b')',
                    1 => 0x85,
                    2 => 0x86,
                    3 => 0x87,
                    _ => b't',
                });
                self.memoize();
            }
            Py::Dict(pairs) => {
                self.out.push(b'}');
                self.memoize();
                if let [(key, value)] = pairs.as_slice() {
                    self.text(key);
                    self.value(value);
                    self.out.push(b's');
                } else if !pairs.is_empty() {
                    self.out.push(b'(');
                    for (key, value) in pairs {
                        self.text(key);
                        self.value(value);
                    }
                    self.out.push(b'u');
                }
            }
            Py::Shared(value) => match self.shared.get(&Rc::as_ptr(value)) {
                Some(&number) => self.recall(number),
                None => {
                    self.shared.insert(Rc::as_ptr(value), self.memo);
                    self.value(value);
                }
            },
        }
    }

    fn int(&mut self, number: i128) {
        if let Ok(byte) = u8::try_from(number) {
            self.out.extend([b'K', byte]);
        } else if let Ok(half) = u16::try_from(number) {
            self.out.push(b'M');
            self.out.extend(half.to_le_bytes());
        } else if let Ok(word) = i32::try_from(number) {
            self.out.push(b'J');
            self.out.extend(word.to_le_bytes());
        } else {
            let mut bytes = number.to_le_bytes().to_vec();
            let filler = if number < 0 { 0xff } else { 0 };
            while bytes.len() > 1 && bytes.ends_with(&[filler]) && (bytes[bytes.len() - 2] ^ filler) < 0x80 {
                bytes.pop();
            }
            self.out.extend([0x8a, bytes.len() as u8]);
            self.out.extend(bytes);
        }
    }

    fn text(&mut self, text: &str) {
        if let Some(&number) = self.texts.get(text) {
            return self.recall(number);
        }
        if self.protocol >= 4 && text.len() < 256 {
            self.out.extend([0x8c, text.len() as u8]);
        } else {
            self.out.push(b'X');
            self.out.extend((text.len() as u32).to_le_bytes());
        }
        self.out.extend(text.as_bytes());
        self.texts.insert(text.to_owned(), self.memo);
        self.memoize();
    }

    fn memoize(&mut self) {
        match (self.protocol, u8::try_from(self.memo)) {
            (4.., _) => self.out.push(0x94),
            (_, Ok(number)) => self.out.extend([b'q', number]),
            _ => {
                self.out.push(b'r');
                self.out.extend(self.memo.to_le_bytes());
            }
        }
        self.memo += 1;
    }

    fn recall(&mut self, number: u32) {
        match u8::try_from(number) {
            Ok(number) => self.out.extend([b'h', number]),
            Err(_) => {
                self.out.push(b'j');
                self.out.extend(number.to_le_bytes());
            }
        }
    }
}
