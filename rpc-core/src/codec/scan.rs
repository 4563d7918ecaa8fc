//! [`Scan`]: counts the bytes that a message takes on the heap, before prost decodes it; or the work that
//! it takes to decode, before a poller does.
//!
//! A scan visits fields in the order of prost and accepts at least what prost accepts. Where it
//! finds an encoding malformed, prost fails too, and has allocated no more than was counted.
//!
//! # Messages without generated code
//!
//! The types of their fields are not known. A value with a length may be a message, and is counted
//! as one if its bytes are the encoding of one, with the fields in it: for [`ELEMENT_LEN`] if its
//! field has occurred before, so that it is an element, and for [`FIRST_LEN`] otherwise. Other values
//! count for the `String` or `Vec` that holds them. This is an estimate: it refuses encodings of
//! which most are tags, and does not know how large a Rust type is: elements of 2,560 bytes take ten
//! times what was counted. So less is allowed than for types that are known. Nor does it see entries
//! of maps with a wire type that is not theirs, which prost before 0.14.6 decodes all the same.

use std::mem;

use super::budget::{Allowance, ELEMENT_LEN, MOVED_LEN, Work};
use super::reader::{Reader, count_packed};

/// The size that is assumed for the first message of a field: most are not elements, and take nothing
/// on the heap.
const FIRST_LEN: usize = 64;

/// More levels than prost decodes.
const MAX_DEPTH: u32 = 110;

/// The reason that a [`Scan`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The bytes are not an encoded message.
    Malformed,
    /// The message would take more than its budget, of memory or of work.
    OverBudget,
}

/// Passes one field: takes it from the scan, and what it places on the heap from the budget. The
/// argument is the field's number.
pub(super) type ScanField = fn(u32, &mut Scan<'_>) -> Result<(), Stop>;

/// An encoded message whose fields are visited in order.
///
/// `rest` ends with the outermost message. Like prost, a nested message may extend past the end of
/// the message that contains it until that message ends.
#[derive(Debug)]
pub struct Scan<'a> {
    rest: &'a [u8],
    budget: usize,
    /// The work that may still be done.
    work: u64,
    /// The length from which fields of type `Bytes` are not copied.
    share_from: usize,
    depth: u32,
    /// The key of the current field.
    number: u32,
    wire_type: u8,
    /// How many fields of unknown types may still be visited. A field is visited again if a value
    /// before it could be a message that extends past its own end.
    visits: usize,
    /// The fields of unknown types that have occurred in the current message, by the last six bits of
    /// their numbers.
    seen: u64,
}

/// Returns true if a message whose fields `scan_field` passes is over its budget. False if it is
/// malformed: decoding returns that error.
pub(super) fn is_over_budget(bytes: &[u8], allowance: Allowance, scan_field: ScanField) -> bool {
    let mut scan = Scan::new(bytes, allowance.budget(bytes.len()));
    scan.fields_until(0, scan_field) == Err(Stop::OverBudget)
}

/// Returns true if a message whose fields `scan_field` passes takes more work to decode than `most`. The
/// scan stops there, so it takes little itself.
pub(super) fn takes_long(
    bytes: &[u8],
    share_from: usize,
    most: u64,
    scan_field: ScanField,
) -> bool {
    let mut scan = Scan {
        work: most,
        share_from,
        ..Scan::new(bytes, usize::MAX)
    };
    scan.fields_until(0, scan_field) == Err(Stop::OverBudget)
}

/// Returns what a message without generated code takes on the heap. `None` if it is malformed.
pub(super) fn decoded_len_of_any(bytes: &[u8]) -> Option<usize> {
    let mut scan = Scan::new(bytes, usize::MAX);
    scan.fields_until(0, scan_any).ok()?;
    Some(usize::MAX - scan.budget)
}

/// Passes a field of unknown type.
pub(super) fn scan_any(_: u32, fields: &mut Scan<'_>) -> Result<(), Stop> {
    fields.visits = fields.visits.checked_sub(1).ok_or(Stop::OverBudget)?;
    match fields.wire_type {
        2 => fields.scan_any_delimited(),
        3 => {
            let len = fields.see_message();
            fields.charge(len)?;
            fields.scan_nested(scan_any)
        }
        _ => fields.skip(),
    }
}

impl<'a> Scan<'a> {
    fn new(bytes: &'a [u8], budget: usize) -> Self {
        Self {
            rest: bytes,
            budget,
            work: u64::MAX,
            share_from: 0,
            depth: MAX_DEPTH,
            number: 0,
            wire_type: 0,
            visits: bytes.len().saturating_mul(4).saturating_add(1024),
            seen: 0,
        }
    }

    pub(super) fn wire_type(&self) -> u8 {
        self.wire_type
    }

    /// Takes what a value places on the heap from the budget.
    pub(super) fn charge(&mut self, size: usize) -> Result<(), Stop> {
        self.budget = self.budget.checked_sub(size).ok_or(Stop::OverBudget)?;
        self.work(Work::PLACED, size)
    }

    /// Takes the work for `count` of something from the budget.
    fn work(&mut self, work: Work, count: usize) -> Result<(), Stop> {
        let work = work.of(count);
        self.work = self.work.checked_sub(work).ok_or(Stop::OverBudget)?;
        Ok(())
    }

    /// Passes a field that places nothing on the heap besides its own bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is malformed.
    pub fn skip(&mut self) -> Result<(), Stop> {
        match self.wire_type {
            0 => self.take_varint().map(drop),
            1 => self.advance(8),
            2 => {
                let len = self.take_len()?;
                if len < self.share_from {
                    self.work(Work::ALLOCATED, 1)?;
                    self.work(Work::COPIED, len)?;
                }
                self.advance(len)
            }
            3 => self.scan_nested(|_, fields| fields.skip()),
            5 => self.advance(4),
            _ => Err(Stop::Malformed),
        }
    }

    /// Passes a value with a length that is copied however long it is. `work` is that for a byte.
    pub(super) fn scan_copied(&mut self, work: Work) -> Result<(), Stop> {
        if self.wire_type == 2 {
            let len = self.rest.len();
            self.rest = self.rest_after_len()?;
            self.work(Work::ALLOCATED, 1)?;
            return self.work(work, len - self.rest.len());
        }
        self.skip()
    }

    /// Passes a message or a group, of which `wire_type` is the type of encoding. prost fails at any
    /// other.
    pub(super) fn scan_message(
        &mut self,
        wire_type: u8,
        size: usize,
        scan_field: ScanField,
    ) -> Result<(), Stop> {
        self.work(Work::MOVED, size)?;
        match self.wire_type == wire_type {
            true => self.scan_nested(scan_field),
            false => Err(Stop::Malformed),
        }
    }

    /// Passes an entry of a map. prost takes it for a message whatever its wire type is.
    pub(super) fn scan_entry(&mut self, scan_field: ScanField) -> Result<(), Stop> {
        self.wire_type = 2;
        self.work(Work::HASHED, 1)?;
        self.scan_nested(scan_field)
    }

    /// Passes the fields of a message or a group.
    fn scan_nested(&mut self, scan_field: ScanField) -> Result<(), Stop> {
        let (number, depth) = (self.number, self.depth);
        self.depth = depth.checked_sub(1).ok_or(Stop::Malformed)?;
        match self.wire_type {
            2 => {
                let end = self.rest_after_len()?.len();
                self.fields_until(end, scan_field)?;
            }
            3 => {
                let seen = mem::take(&mut self.seen);
                loop {
                    self.take_key()?;
                    if self.wire_type == 4 {
                        break;
                    }
                    scan_field(self.number, self)?;
                }
                if self.number != number {
                    return Err(Stop::Malformed);
                }
                self.seen = seen;
            }
            _ => self.skip()?,
        }
        self.depth = depth;
        Ok(())
    }

    /// Passes packed values of `size` bytes each, which have the wire type `of_values` unless they
    /// are packed.
    pub(super) fn scan_packed(&mut self, of_values: u8, size: usize) -> Result<(), Stop> {
        let len = self.take_len()?;
        // Counted before the bytes are looked at.
        let work = match of_values {
            1 | 5 => Work::PACKED_FIXED,
            _ => Work::PACKED_VARINTS,
        };
        self.work(work, len)?;
        let count = count_packed(&self.rest[..len], of_values);
        // The budget has one byte for each encoded byte already.
        self.charge(count.saturating_mul(size).saturating_sub(len))?;
        self.advance(len)
    }

    /// Notes that the current field occurs, and returns the size that is assumed for its value if
    /// that is a message.
    fn see_message(&mut self) -> usize {
        let bit = 1 << (self.number % u64::BITS);
        let is_first = self.seen & bit == 0;
        self.seen |= bit;
        match is_first {
            true => FIRST_LEN,
            false => ELEMENT_LEN,
        }
    }

    /// Passes a value with a length that is a message if it can be one.
    fn scan_any_delimited(&mut self) -> Result<(), Stop> {
        let len = self.see_message();
        let before = self.rest.len();
        let after = self.rest_after_len()?;
        let (budget, depth, seen) = (self.budget, self.depth, self.seen);
        let result = match depth.checked_sub(1) {
            Some(depth) => {
                self.depth = depth;
                self.fields_until(after.len(), scan_any)
            }
            None => Err(Stop::Malformed),
        };
        match result {
            Ok(()) => {
                self.charge(len)?;
                self.work(Work::MOVED, MOVED_LEN)?;
            }
            // If it is a message after all, prost fails here. What it has allocated until then was
            // within the budget.
            Err(Stop::Malformed) => {
                self.budget = budget;
                self.charge(size_of::<String>())?;
                self.work(Work::ALLOCATED, 1)?;
                // It may be packed.
                self.work(Work::PACKED_VARINTS, before - after.len())?;
            }
            Err(Stop::OverBudget) => return Err(Stop::OverBudget),
        }
        (self.rest, self.depth, self.seen) = (after, depth, seen);
        Ok(())
    }

    /// Passes all fields up to the place at which `end` bytes are left.
    fn fields_until(&mut self, end: usize, scan_field: ScanField) -> Result<(), Stop> {
        let seen = mem::take(&mut self.seen);
        while self.rest.len() > end {
            self.take_key()?;
            scan_field(self.number, self)?;
        }
        self.seen = seen;
        match self.rest.len() == end {
            true => Ok(()),
            false => Err(Stop::Malformed),
        }
    }

    fn take_key(&mut self) -> Result<(), Stop> {
        self.work(Work::FIELD, 1)?;
        let key = u32::try_from(self.take_varint()?).map_err(|_| Stop::Malformed)?;
        (self.number, self.wire_type) = (key >> 3, key as u8 & 7);
        match self.number == 0 || self.wire_type > 5 {
            true => Err(Stop::Malformed),
            false => Ok(()),
        }
    }

    fn take_varint(&mut self) -> Result<u64, Stop> {
        let mut reader = Reader::new(self.rest, 0);
        let value = reader.take_varint().ok_or(Stop::Malformed)?;
        self.rest = reader.bytes();
        Ok(value)
    }

    /// Takes a length. As many bytes are left.
    fn take_len(&mut self) -> Result<usize, Stop> {
        let len = usize::try_from(self.take_varint()?).map_err(|_| Stop::Malformed)?;
        match len <= self.rest.len() {
            true => Ok(len),
            false => Err(Stop::Malformed),
        }
    }

    /// Takes a length, and returns what follows as many bytes.
    fn rest_after_len(&mut self) -> Result<&'a [u8], Stop> {
        let len = self.take_len()?;
        Ok(&self.rest[len..])
    }

    fn advance(&mut self, len: usize) -> Result<(), Stop> {
        self.rest = self.rest.get(len..).ok_or(Stop::Malformed)?;
        Ok(())
    }
}
