//! The lengths, lists of elements and places with which every byte of a message is checked.

use std::ops::Range;
use std::time::Instant;

use verbline_verbs::{Element, ExposedMemory, Mtu, RemoteMemory, WorkRequest};

use super::device::{Device, Kind};
use super::seed::Random;
use super::verbs_side::HANG;

/// Number of bytes before, between and behind the places of a message, which nothing may change.
pub(crate) const GUARD: usize = 64;
/// What they are filled with.
const FILL: u8 = 0xa5;
/// Lengths at which `soft` and `tcp` go another way: inline data, copies, slots of the ring, packets,
/// pages, stages and pieces of responses.
const TURNS: [usize; 17] = [
    64,
    128,
    228,
    240,
    256,
    1024,
    2048,
    3072,
    4096,
    8192,
    12_288,
    16_384,
    65_536,
    131_072,
    262_144,
    524_288,
    1 << 20,
];

/// Returns lengths at which a device may change its way, each with its neighbours, ascending. Few
/// and short ones on an emulated processor.
pub(crate) fn lengths(device: &Device) -> Vec<usize> {
    if device.kind != Kind::Soft {
        let packet = Mtu::Bytes1024.bytes() as usize;
        let few = [1, 8, 64, packet, 3 * packet];
        return few.iter().flat_map(|len| len - 1..=len + 1).collect();
    }
    let mut lengths: Vec<_> = (0..=17).collect();
    lengths.extend(TURNS.iter().flat_map(|len| len - 1..=len + 1));
    lengths
}

/// Returns ways to cut a message into at most four elements.
pub(crate) fn cuts(len: usize, random: &mut Random) -> Vec<Vec<usize>> {
    let mut cuts = vec![vec![len]];
    if len > 1 {
        let mut ends: Vec<_> = (0..3).map(|_| random.below(len + 1)).collect();
        ends.sort_unstable();
        let parts = [ends[0], ends[1] - ends[0], ends[2] - ends[1], len - ends[2]];
        cuts.push(parts.to_vec());
    }
    // One of these is enough for long messages: their ends are those of the random parts, too.
    if (2..=16_385).contains(&len) {
        cuts.extend([vec![1, len - 1], vec![len - 1, 1], vec![0, len, 0]]);
    }
    cuts
}

/// A way for bytes to go from one end to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Send,
    SendWithImm,
    Write,
    WriteWithImm,
    Read,
}

impl Way {
    /// Returns the request of these elements, which name the place of the bytes at the end that
    /// posts it. `remote` is the place at the other end, if the way has one.
    pub(crate) fn request(
        self,
        local: Vec<Element>,
        remote: RemoteMemory,
        imm: u32,
    ) -> WorkRequest {
        match self {
            Self::Send => WorkRequest::send(local),
            Self::SendWithImm => WorkRequest::send_with_imm(local, imm),
            Self::Write => WorkRequest::write(local, remote),
            Self::WriteWithImm => WorkRequest::write_with_imm(local, remote, imm),
            Self::Read => WorkRequest::read(local, remote),
        }
    }
}

/// Returns bytes of which no two near windows are equal.
pub(crate) fn message(len: usize, random: &mut Random) -> Vec<u8> {
    let salt = random.below(256);
    let byte = |at: usize| (at * 131 + at / 251 + salt) as u8;
    (0..len).map(byte).collect()
}

/// The places of a message's parts in a region, with guards around each.
pub(crate) struct Places<'a> {
    memory: &'a ExposedMemory,
    parts: Vec<Range<usize>>,
}

impl<'a> Places<'a> {
    /// Returns places of parts of these lengths. The first guard begins at `at`.
    pub(crate) fn new(memory: &'a ExposedMemory, at: usize, cut: &[usize]) -> Self {
        let mut start = at;
        let place = |len: &usize| {
            start += GUARD;
            let part = start..start + len;
            start = part.end;
            part
        };
        let parts = cut.iter().map(place).collect();
        Self { memory, parts }
    }

    /// Returns the places with all guards.
    fn whole(&self) -> Range<usize> {
        let last = self.parts.last().expect("a part");
        self.parts[0].start - GUARD..last.end + GUARD
    }

    pub(crate) fn elements(&self) -> Vec<Element> {
        let parts = self.parts.iter();
        parts
            .map(|part| self.memory.element(part.clone()).unwrap())
            .collect()
    }

    pub(crate) fn remote(&self) -> RemoteMemory {
        self.memory.remote(self.parts[0].start)
    }

    /// Returns what the places hold with this message in them, guards included.
    fn with(&self, message: &[u8]) -> Vec<u8> {
        let whole = self.whole();
        let mut bytes = vec![FILL; whole.len()];
        let mut rest = message;
        for part in &self.parts {
            let here;
            (here, rest) = rest.split_at(part.len());
            bytes[part.start - whole.start..part.end - whole.start].copy_from_slice(here);
        }
        bytes
    }

    /// Writes the message into the places.
    pub(crate) fn put(&self, message: &[u8]) {
        let bytes = self.with(message);
        self.memory.write(self.whole().start, &bytes).unwrap();
    }

    /// Fills the places like the guards.
    pub(crate) fn clear(&self) {
        let bytes = vec![FILL; self.whole().len()];
        self.memory.write(self.whole().start, &bytes).unwrap();
    }

    /// Checks that the places hold the message, and nothing else was written. The data of a WRITE
    /// may become visible a little later than its completion.
    pub(crate) fn check(&self, message: &[u8], what: &str) {
        let expected = self.with(message);
        let start = Instant::now();
        loop {
            let found = self.memory.to_vec(self.whole()).unwrap();
            if found == expected {
                return;
            }
            let differs = |at: &usize| found[*at] != expected[*at];
            let at = (0..found.len()).find(differs).expect("they differ");
            assert!(
                start.elapsed() < HANG && what.starts_with("Write "),
                "{what}: byte {at} of {} is {:#x}, not {:#x}",
                found.len(),
                found[at],
                expected[at]
            );
            std::thread::yield_now();
        }
    }

    /// Checks that nothing around the places was written.
    pub(crate) fn check_guards(&self, what: &str) {
        let whole = self.whole();
        let bytes = self.memory.to_vec(whole.clone()).unwrap();
        for (at, byte) in bytes.into_iter().enumerate() {
            let is_guard = !(self.parts.iter()).any(|part| part.contains(&(whole.start + at)));
            assert!(!is_guard || byte == FILL, "{what}: byte {at} is {byte:#x}");
        }
    }
}
