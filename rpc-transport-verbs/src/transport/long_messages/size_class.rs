//! The lengths of blocks and chunks.

/// The shortest block.
const MIN_BLOCK_LEN: usize = 8 * 1024;

/// The most bytes, without those of `FIELDS_LEN`, of a chunk that several blocks share.
const MAX_SHARED_LEN: usize = 4 << 20;

/// Blocks that a chunk of short blocks has. Registering a chunk costs system calls, and more with
/// each peer.
const BLOCKS_PER_CHUNK: usize = 16;

/// The shortest chunk, for the same reason.
const MIN_CHUNK_LEN: usize = 256 * 1024;

/// Part of the limit that a chunk of several blocks may take, so that several lengths of messages
/// fit beside each other.
const SHARE_OF_LIMIT: u64 = 16;

/// Bytes that a block of more than `MAX_PIECE_BLOCK` bytes has in addition to a round number:
/// payloads often have round lengths, and the fields around them take a few bytes more.
const FIELDS_LEN: usize = 4096;

/// The longest block whose length is a power of two. The pieces that are copied on the software
/// device have up to this many bytes, and no fields around them.
const MAX_PIECE_BLOCK: usize = 64 * 1024;

/// Returns the length of the block for a message of `len` bytes: a power of two up to 64 KiB, then
/// a power of two up to 4 MiB and 4 KiB more. Beyond that, an eighth of a power of two divides the
/// length without these 4 KiB: 5, 6, 7, 8, 10, 12, 14, 16 MiB and so on.
pub(crate) fn block_len(len: usize) -> usize {
    if len <= MAX_PIECE_BLOCK {
        return len.max(MIN_BLOCK_LEN).next_power_of_two();
    }
    let payload = len - FIELDS_LEN;
    let round = match payload <= MAX_SHARED_LEN {
        true => payload.next_power_of_two(),
        false => payload.next_multiple_of(payload.next_power_of_two() / 8),
    };
    round + FIELDS_LEN
}

/// Returns true if blocks of this length may share their chunks, as far as the limit allows.
pub(super) fn shares_chunk(block_len: usize) -> bool {
    block_len <= MAX_SHARED_LEN + FIELDS_LEN
}

/// Returns the number of blocks of this length in one chunk, if `limit` bytes may be registered.
pub(super) fn blocks_per_chunk(block_len: usize, limit: u64) -> usize {
    let longest = MAX_SHARED_LEN + BLOCKS_PER_CHUNK * FIELDS_LEN;
    let wanted = (block_len * BLOCKS_PER_CHUNK).clamp(MIN_CHUNK_LEN, longest);
    let share = usize::try_from(limit / SHARE_OF_LIMIT).unwrap_or(usize::MAX);
    (wanted.min(share) / block_len).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lengths_suit_round_payloads_with_a_few_bytes_around_them() {
        const MIB: usize = 1 << 20;
        for (len, block) in [
            (0, 8 << 10),
            (1, 8 << 10),
            (8 << 10, 8 << 10),
            ((8 << 10) + 1, 16 << 10),
            (64 << 10, 64 << 10),
            ((64 << 10) + 1, 68 << 10),
            (MIB + 50, MIB + 4096),
            (4 * MIB + 50, 4 * MIB + 4096),
            (4 * MIB + 4097, 5 * MIB + 4096),
            (8 * MIB + 50, 8 * MIB + 4096),
            (65 * MIB, 80 * MIB + 4096),
            (2048 * MIB, 2048 * MIB + 4096),
        ] {
            assert_eq!(block_len(len), block, "{len}");
        }
    }

    #[test]
    fn chunks_have_256_kib_to_4_mib_unless_the_limit_is_low() {
        let chunk = |block: usize, limit| block * blocks_per_chunk(block, limit);
        let limit = 256 << 20;
        assert_eq!(chunk(8 << 10, limit), 256 << 10);
        assert_eq!(chunk(64 << 10, limit), 1 << 20);
        assert_eq!(chunk(1 << 20, limit), 4 << 20);
        assert_eq!(chunk(4 << 20, limit), 4 << 20);
        assert_eq!(chunk(64 << 20, limit), 64 << 20);
        assert_eq!(chunk(8 << 10, 1 << 20), 64 << 10);
        assert_eq!(chunk(8 << 10, 0), 8 << 10);
    }

    proptest! {
        #[test]
        fn a_block_is_long_enough_and_wastes_less_than_half(len in 1usize..1 << 31) {
            let block = block_len(len);
            prop_assert!(block >= len);
            prop_assert!(block == 8 << 10 || block < 2 * len);
            prop_assert!(len <= 4 << 20 || block - len <= len / 4);
            // A longer message never gets a shorter block.
            prop_assert!(block_len(len - 1) <= block);
            prop_assert_eq!(block_len(block), block, "the lengths are fixed points");
        }
    }
}
