//! Runs the opcodes of a pickle that make plain data. Refuses all other opcodes.

use crate::blocks::Blocks;
use crate::budget::Budget;
use crate::import::bytes::Bytes;
use crate::import::refusal::Refusal;

use super::refused::{self, name};
use super::values::{Value, Values};

/// The longest text, in bytes.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// The most bytes of a whole number; an unsigned 64-bit number takes 9 in a snapshot's pickle.
const MAX_NUMBER_BYTES: usize = 16;

/// The most lists, dictionaries and tuples that are open inside each other.
const MAX_DEPTH: usize = 1000;

/// The most memo indices that a file may skip at once.
const MAX_GAP: usize = 1 << 16;

/// The state of reading a pickle.
struct Machine<'a, 'b> {
    input: &'b mut Bytes<'a>,
    budget: &'b mut Budget,
    values: Values,
    stack: Blocks<Value>,
    /// The heights of the stack at the open marks.
    marks: Vec<usize>,
    memo: Blocks<Value>,
    /// The bytes of the last text.
    scratch: Vec<u8>,
    /// The current opcode, and its position.
    opcode: u8,
    offset: u64,
}

type Done<T = ()> = Result<T, Refusal>;

/// Reads a pickle of plain data: numbers, texts, lists, dictionaries and tuples. It imports, calls and builds
/// nothing, whatever the file asks for.
///
/// # Errors
/// A sentence with the opcode and its position: the pickle asks for more than plain data, is truncated or
/// damaged, or exceeds a limit.
pub(super) fn run(input: &mut Bytes<'_>, budget: &mut Budget) -> Result<(Values, Value), Refusal> {
    let mut machine = Machine {
        input,
        budget,
        values: Values::new(),
        stack: Blocks::new(),
        marks: Vec::new(),
        memo: Blocks::new(),
        scratch: Vec::new(),
        opcode: 0,
        offset: 0,
    };
    machine.header()?;
    let value = machine.body()?;
    let Machine { budget, values, stack, memo, .. } = machine;
    stack.free(budget);
    memo.free(budget);
    Ok((values, value))
}

impl Machine<'_, '_> {
    fn header(&mut self) -> Done {
        self.start_opcode()?;
        let protocol = self.u8()?;
        if self.opcode != 0x80 || !(2..=5).contains(&protocol) {
            return self.refuse(&format!(
                "a pickle of protocol {protocol} is not supported; write it with pickle.dump(snapshot, file, \
                 protocol=4)"
            ));
        }
        Ok(())
    }

    fn body(&mut self) -> Done<Value> {
        loop {
            self.start_opcode()?;
            match self.opcode {
                b'.' => return self.stop(),
                b'(' => self.mark()?,
                0x80 => drop(self.u8()?),
                0x95 => drop(self.u64()?),
                _ => {
                    let is_known = self.scalar()? || self.text_or_memo()? || self.collection()?;
                    if !is_known {
                        return Err(self.other());
                    }
                }
            }
        }
    }

    /// Runs an opcode for a number, a truth value or `None`. Returns whether the opcode is such an opcode.
    #[inline]
    fn scalar(&mut self) -> Done<bool> {
        match self.opcode {
            b'N' => self.push(Value::NONE)?,
            0x88 => self.push(Value::bool(true))?,
            0x89 => self.push(Value::bool(false))?,
            b'K' => self.whole(1)?,
            b'M' => self.whole(2)?,
            b'J' => {
                let bytes = self.array()?;
                self.int(i32::from_le_bytes(bytes).into())?;
            }
            0x8a => {
                let len = self.u8()?;
                self.long(len.into())?;
            }
            0x8b => {
                let len = self.u32()?;
                self.long(u64::from(len))?;
            }
            b'G' => {
                let bytes = self.array()?;
                let value = self.values.float(f64::from_be_bytes(bytes), self.budget)?;
                self.push(value)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Runs an opcode for a text or the memo. Returns whether the opcode is such an opcode.
    #[inline]
    fn text_or_memo(&mut self) -> Done<bool> {
        match self.opcode {
            // Texts, and bytes, which PyTorch does not write.
            0x8c | b'C' => {
                let len = self.u8()?;
                self.text(len.into())?;
            }
            b'X' | b'B' => {
                let len = self.u32()?;
                self.text(len.into())?;
            }
            0x8d | 0x8e | 0x96 => {
                let len = self.u64()?;
                self.text(len)?;
            }
            0x94 => self.remember(self.memo.len())?,
            b'q' => {
                let number = self.u8()?;
                self.remember(number.into())?;
            }
            b'r' => {
                let number = self.u32()?;
                self.remember(number as usize)?;
            }
            b'h' => {
                let number = self.u8()?;
                self.recall(number.into())?;
            }
            b'j' => {
                let number = self.u32()?;
                self.recall(number as usize)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Runs an opcode for a list, a tuple or a dictionary. Returns whether the opcode is such an opcode.
    #[inline]
    fn collection(&mut self) -> Done<bool> {
        match self.opcode {
            b']' => {
                let list = self.values.empty_list(self.budget)?;
                self.push(list)?;
            }
            b')' => self.collect(0)?,
            0x85 => self.collect(1)?,
            0x86 => self.collect(2)?,
            0x87 => self.collect(3)?,
            b't' | b'l' => {
                let len = self.stack.len() - self.close()?;
                self.collect(len)?;
            }
            b'}' => {
                let dict = self.values.empty_dict(self.budget)?;
                self.push(dict)?;
            }
            b'd' => {
                let from = self.close()?;
                let dict = self.values.empty_dict(self.budget)?;
                self.set_items(dict, from)?;
                self.push(dict)?;
            }
            b'a' => {
                let from = self.below(1)?;
                self.append(from)?;
            }
            b'e' => {
                let from = self.close()?;
                self.append(from)?;
            }
            b's' => {
                let from = self.below(2)?;
                self.set(from)?;
            }
            b'u' => {
                let from = self.close()?;
                self.set(from)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn start_opcode(&mut self) -> Done {
        self.offset = self.input.offset();
        self.opcode = match self.input.next()? {
            Some(opcode) => opcode,
            None => return Err(self.cut_off()),
        };
        Ok(())
    }

    fn stop(&mut self) -> Done<Value> {
        match (self.marks.len(), self.stack.len(), self.stack.pop()) {
            (0, 1, Some(value)) => Ok(value),
            (_, height, _) => {
                self.refuse(&format!("the pickle ends with {height} values on its stack instead of one"))
            }
        }
    }

    #[inline]
    fn push(&mut self, value: Value) -> Done {
        self.stack.push(value, self.budget)?;
        Ok(())
    }

    fn int(&mut self, value: i64) -> Done {
        let value = self.values.int(value, self.budget)?;
        self.push(value)
    }

    /// Reads an unsigned number of `len` bytes.
    fn whole(&mut self, len: usize) -> Done {
        let mut bytes = [0; 8];
        self.fill(&mut bytes[..len])?;
        self.int(i64::from_le_bytes(bytes))
    }

    /// Reads a signed number of `len` bytes.
    fn long(&mut self, len: u64) -> Done {
        if len > MAX_NUMBER_BYTES as u64 {
            return self.refuse(&format!("a whole number of {len} bytes is longer than any address or size"));
        }
        let len = len as usize;
        let mut bytes = [0; MAX_NUMBER_BYTES];
        self.fill(&mut bytes[..len])?;
        let is_negative = len > 0 && bytes[len - 1] & 0x80 != 0;
        bytes[len..].fill(if is_negative { 0xff } else { 0 });
        let value = i128::from_le_bytes(bytes);
        match (i64::try_from(value), u64::try_from(value)) {
            (Ok(value), _) => self.int(value),
            (_, Ok(value)) => {
                let value = self.values.unsigned(value, self.budget)?;
                self.push(value)
            }
            _ => self.refuse(&format!("the number {value} does not fit into 64 bits")),
        }
    }

    fn text(&mut self, len: u64) -> Done {
        if len > MAX_TEXT_BYTES as u64 {
            return self.refuse(&format!(
                "a text of {len} bytes is longer than 1 MiB, which is the most that is read"
            ));
        }
        let len = len as usize;
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(len, 0);
        self.fill(&mut scratch)?;
        let value = self.values.text(&String::from_utf8_lossy(&scratch), self.budget)?;
        self.scratch = scratch;
        self.push(value)
    }

    fn mark(&mut self) -> Done {
        if self.marks.len() >= MAX_DEPTH {
            return self.refuse(&format!("more than {MAX_DEPTH} collections are nested in each other"));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Removes the last mark, and returns the height of the stack at that mark.
    fn close(&mut self) -> Done<usize> {
        match self.marks.pop() {
            Some(height) => Ok(height),
            None => self.refuse("the pickle closes a collection that it never opened"),
        }
    }

    /// Returns the height of the stack below its last `count` values.
    fn below(&mut self, count: usize) -> Done<usize> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(count) {
            Some(height) if height >= floor => Ok(height),
            _ => self.refuse("the pickle's stack has too few values"),
        }
    }

    /// Replaces the last values of the stack with a list of these values.
    fn collect(&mut self, count: usize) -> Done {
        let from = self.below(count)?;
        let list = self.values.empty_list(self.budget)?;
        self.values.extend_list(list, &self.stack, from, self.budget)?;
        self.stack.truncate(from);
        self.push(list)
    }

    /// Returns the value at height `from - 1`.
    fn owner(&mut self, from: usize) -> Done<Value> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match from.checked_sub(1) {
            Some(at) if at >= floor => Ok(self.stack.at(at)),
            _ => self.refuse("the pickle's stack has no list or dictionary here"),
        }
    }

    fn append(&mut self, from: usize) -> Done {
        let list = self.owner(from)?;
        if !list.is_list() {
            return self.refuse("the value is not a list");
        }
        self.values.extend_list(list, &self.stack, from, self.budget)?;
        self.stack.truncate(from);
        Ok(())
    }

    fn set(&mut self, from: usize) -> Done {
        let dict = self.owner(from)?;
        if !dict.is_dict() {
            return self.refuse("the value is not a dictionary");
        }
        self.set_items(dict, from)
    }

    fn set_items(&mut self, dict: Value, from: usize) -> Done {
        if !(self.stack.len() - from).is_multiple_of(2) {
            return self.refuse("a key has no value");
        }
        self.values.extend_dict(dict, &self.stack, from, self.budget)?;
        self.stack.truncate(from);
        Ok(())
    }

    fn remember(&mut self, number: usize) -> Done {
        let from = self.below(1)?;
        let value = self.stack.at(from);
        if number > self.memo.len() + MAX_GAP {
            return self.refuse(&format!(
                "the pickle stores a value at index {number} of its memo, far above the previous index"
            ));
        }
        while self.memo.len() <= number {
            self.memo.push(Value::ABSENT, self.budget)?;
        }
        *self.memo.of_mut(number) = value;
        Ok(())
    }

    fn recall(&mut self, number: usize) -> Done {
        match self.memo.get(number).filter(|value| *value != Value::ABSENT) {
            Some(value) => self.push(value),
            None => self
                .refuse(&format!("the pickle refers to value {number} of its memo, which it never stored")),
        }
    }

    fn u8(&mut self) -> Done<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Done<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Done<u64> {
        self.array().map(u64::from_le_bytes)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Done<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    #[inline]
    fn fill(&mut self, into: &mut [u8]) -> Done {
        if self.input.take(into)? == into.len() { Ok(()) } else { Err(self.cut_off()) }
    }

    #[cold]
    fn cut_off(&self) -> Refusal {
        let at = self.input.offset();
        Refusal::new(format!("the pickle ends early, at byte {at}: the file is truncated; copy it again"))
    }

    #[cold]
    fn refuse<T>(&self, why: &str) -> Done<T> {
        let (opcode, offset) = (name(self.opcode), self.offset);
        Err(Refusal::new(format!("{why} (opcode {opcode} at byte {offset}): refused")))
    }

    /// Returns the refusal of an opcode that does more than make plain data.
    #[cold]
    fn other(&mut self) -> Refusal {
        let above = |down: usize| {
            let at = self.stack.len().checked_sub(down)?;
            Some(refused::shown(self.values.as_text(self.stack.at(at))?))
        };
        let wants = match self.opcode {
            b'c' | b'i' => refused::global(self.input).map(|global| format!("to import {global}")),
            0x93 => above(2)
                .zip(above(1))
                .map(|(module, name)| format!("to import {module}.{name}"))
                .or_else(|| refused::wish(0x93)),
            opcode => refused::wish(opcode),
        };
        let (opcode, offset) = (name(self.opcode), self.offset);
        match wants {
            Some(wants) => Refusal::new(format!(
                "this file asks {wants} (opcode {opcode} at byte {offset}), which is refused; a snapshot \
                 never needs this; do not open the file with pickle.load either, unless you trust it"
            )),
            None => Refusal::new(format!(
                "opcode {opcode} at byte {offset} is not used in snapshots: refused; is this a complete \
                 snapshot?"
            )),
        }
    }
}
