//! The content of payloads, and how their receivers read them.

use rpc_core::codegen::v1::bytes::Bytes;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Returns a payload of `len` bytes. No two of its cache lines are equal.
#[must_use]
pub fn payload(len: usize) -> Bytes {
    let words = (0..len.div_ceil(8)).flat_map(|word| (word as u64 | 1 << 63).to_le_bytes());
    words.take(len).collect::<Vec<u8>>().into()
}

/// Returns the sum of the first eight bytes of each cache line, as little-endian numbers.
#[inline]
#[must_use]
pub fn word_of_each_line(bytes: &[u8]) -> u64 {
    let mut lines = bytes.chunks_exact(LINE);
    let mut sum = 0_u64;
    for line in &mut lines {
        if let Some(word) = line.first_chunk() {
            sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    // The last line, if it is shorter.
    let rest = lines.remainder();
    let mut word = [0; 8];
    let len = rest.len().min(8);
    word[..len].copy_from_slice(&rest[..len]);
    sum.wrapping_add(u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_counts_once_and_a_short_one_too() {
        let mut bytes = [0; 2 * LINE + 3];
        (bytes[0], bytes[8], bytes[LINE], bytes[2 * LINE + 2]) = (1, 50, 2, 4);
        assert_eq!(word_of_each_line(&bytes), 1 + 2 + (4 << 16));
        assert_eq!(word_of_each_line(&[]), 0);
    }

    #[test]
    fn a_payload_has_its_length_and_differs_by_line() {
        let payload = payload(1000);
        assert_eq!(payload.len(), 1000);
        assert_ne!(payload[..LINE], payload[LINE..2 * LINE]);
    }
}
