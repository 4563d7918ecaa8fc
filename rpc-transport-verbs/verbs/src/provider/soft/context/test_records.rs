//! [`TestRecords`]: records for the tests of this crate. They hide nothing from anybody, but whoever takes them for the
//! bytes of a link, or loses, repeats or reorders some, is found out.
//!
//! ```text
//!  0        2          2 + n     6 + n
//! ┌────────┬──────────┬─────────┐
//! │ n      │ n bytes  │ sum     │   n is 1, 2, 3, 17, 16384 and so on, and sometimes 0
//! └────────┴──────────┴─────────┘
//!  u16 BE   XOR a key  u32 BE of the plain bytes and of the number of the record
//! ```
//!
//! The end is a record without bytes and sum whose `n` is 65535.

use crate::record_layer::{BadRecord, MAX_PLAIN, Opened, RecordLayer};

/// Lengths of the records that are sealed, in turn.
const LENGTHS: [usize; 5] = [1, 2, 3, 17, MAX_PLAIN];
/// Every so many records, one follows that is for the layer alone.
const RECORDS_BETWEEN_OWN: u32 = 64;

const LEN_LEN: usize = 2;
const SUM_LEN: usize = 4;
/// The last record.
pub(crate) const END: [u8; LEN_LEN] = [0xff; LEN_LEN];

/// Both directions of a connection.
#[derive(Debug, Default)]
pub(crate) struct TestRecords {
    sealed: u32,
    opened: u32,
}

impl TestRecords {
    /// Appends one record, which may be empty.
    pub(crate) fn seal_one(&mut self, plain: &[u8], sealed: &mut Vec<u8>) {
        self.seal_one_with(
            plain.len(),
            &mut |piece| piece.copy_from_slice(plain),
            sealed,
        );
    }

    fn seal_one_with(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8]), sealed: &mut Vec<u8>) {
        // The cast is lossless: records are short.
        sealed.extend((len as u16).to_be_bytes());
        let start = sealed.len();
        sealed.resize(start + len, 0);
        let plain = &mut sealed[start..];
        fill(plain);
        let sum = sum(self.sealed, plain);
        let mut key = Key::of(self.sealed);
        for byte in plain {
            *byte ^= key.next();
        }
        sealed.extend(sum.to_be_bytes());
        self.sealed += 1;
    }
}

impl RecordLayer for TestRecords {
    fn seal_with(
        &mut self,
        mut left: usize,
        fill: &mut dyn FnMut(&mut [u8]),
        sealed: &mut Vec<u8>,
    ) -> Result<(), BadRecord> {
        while left > 0 {
            if self.sealed.is_multiple_of(RECORDS_BETWEEN_OWN) {
                self.seal_one(&[], sealed);
            }
            let len = LENGTHS[self.sealed as usize % LENGTHS.len()].min(left);
            self.seal_one_with(len, fill, sealed);
            left -= len;
        }
        Ok(())
    }

    fn seal_end(&mut self, sealed: &mut Vec<u8>) -> Result<(), BadRecord> {
        sealed.extend(END);
        Ok(())
    }

    fn open(&mut self, sealed: &mut [u8]) -> Result<Option<Opened>, BadRecord> {
        let Some(&len) = sealed.first_chunk::<LEN_LEN>() else {
            return Ok(None);
        };
        if len == END {
            return Ok(Some(Opened {
                plain: 0..0,
                len: LEN_LEN,
                is_end: true,
            }));
        }
        let plain = LEN_LEN..LEN_LEN + usize::from(u16::from_be_bytes(len));
        if plain.len() > MAX_PLAIN {
            return Err(BadRecord("a record is wrong"));
        }
        let len = plain.end + SUM_LEN;
        let Some(record) = sealed.get_mut(..len) else {
            return Ok(None);
        };
        let mut key = Key::of(self.opened);
        for byte in &mut record[plain.clone()] {
            *byte ^= key.next();
        }
        if record[plain.end..] != sum(self.opened, &record[plain.clone()]).to_be_bytes() {
            return Err(BadRecord("a record is wrong"));
        }
        self.opened += 1;
        Ok(Some(Opened {
            plain,
            len,
            is_end: false,
        }))
    }
}

/// The bytes that those of one record are changed with.
struct Key(u32);

impl Key {
    fn of(record: u32) -> Self {
        Self(record ^ 0x5eed_1e55)
    }

    fn next(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        (self.0 >> 24) as u8
    }
}

fn sum(record: u32, plain: &[u8]) -> u32 {
    let start = record.wrapping_mul(0x9e37_79b9) ^ 0x811c_9dc5;
    plain.iter().fold(start, |sum, byte| {
        (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}
