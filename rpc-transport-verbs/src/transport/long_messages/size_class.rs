//! The lengths of blocks and chunks.

/// The shortest block.
const MIN_BLOCK_LEN: usize = 8 * 1024;

/// The longest block that shares its chunk with others.
const MAX_SHARED_LEN: usize = 4 << 20;

/// Blocks that a chunk of short blocks has. Registering a chunk costs system calls, and more with
/// each peer.
const BLOCKS_PER_CHUNK: usize = 16;

/// The shortest chunk, for the same reason.
const MIN_CHUNK_LEN: usize = 256 * 1024;

/// Part of the limit that a chunk of several blocks may take, so that several lengths of messages
/// fit beside each other.
const SHARE_OF_LIMIT: u64 = 16;

/// Returns the length of the block for a message of `len` bytes: a power of two up to 4 MiB, and
/// above it a power of two or one of the three quarters between two of them.
pub(super) fn block_len(len: usize) -> usize {
    if len <= MAX_SHARED_LEN {
        return len.max(MIN_BLOCK_LEN).next_power_of_two();
    }
    // At least 2 MiB, so blocks of this length are whole huge pages.
    let quarter = (len - 1).next_power_of_two().max(2 * MAX_SHARED_LEN) / 8;
    len.next_multiple_of(quarter)
}

/// Returns true if blocks of this length share their chunks.
pub(super) fn shares_chunk(block_len: usize) -> bool {
    block_len <= MAX_SHARED_LEN
}

/// Returns the number of blocks of this length in one chunk, if `limit` bytes may be registered.
pub(super) fn blocks_per_chunk(block_len: usize, limit: u64) -> usize {
    let wanted = (block_len * BLOCKS_PER_CHUNK).clamp(MIN_CHUNK_LEN, MAX_SHARED_LEN);
    let share = usize::try_from(limit / SHARE_OF_LIMIT).unwrap_or(usize::MAX);
    (wanted.min(share) / block_len).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lengths_are_powers_of_two_up_to_4_mib_and_quarters_above() {
        const MIB: usize = 1 << 20;
        for (len, block) in [
            (0, 8 << 10),
            (1, 8 << 10),
            (8 << 10, 8 << 10),
            ((8 << 10) + 1, 16 << 10),
            (4 * MIB, 4 * MIB),
            (4 * MIB + 1, 5 * MIB),
            (8 * MIB, 8 * MIB),
            (8 * MIB + 1, 10 * MIB),
            (65 * MIB, 80 * MIB),
            (2048 * MIB, 2048 * MIB),
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
