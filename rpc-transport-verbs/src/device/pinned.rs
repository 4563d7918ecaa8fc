//! Measures the memory that a device pins for the queues of one connection.
//!
//! The kernel counts it against the limit of locked memory, like the slots. No call reports it, and it
//! depends on the provider: a card pins the queues, and Soft-RoCE has them in the kernel.

/// Queue pairs that are created. Other threads may register memory meanwhile, and the first queue pair
/// may also take a page that later ones share, so the number in the middle counts.
const CREATIONS: usize = 3;

/// Returns the bytes by which each creation increases what `pinned` returns. What `create` returns is
/// dropped before the next one.
pub(super) fn pinned_by<T, E>(
    mut create: impl FnMut() -> Result<T, E>,
    mut pinned: impl FnMut() -> u64,
) -> Result<u64, E> {
    let mut increases = [0; CREATIONS];
    for increase in &mut increases {
        let before = pinned();
        let created = create()?;
        *increase = pinned().saturating_sub(before);
        drop(created);
    }
    increases.sort_unstable();
    Ok(increases[CREATIONS / 2])
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Bytes that are pinned while it exists.
    struct Queues<'a>(&'a Cell<u64>, u64);

    impl Drop for Queues<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() - self.1);
        }
    }

    #[test]
    fn what_other_threads_pin_meanwhile_does_not_count() {
        // The third registers 1 MiB elsewhere, or deregisters it.
        for others in [
            [0_i64, 0, 0],
            [4096, 0, 0],
            [0, 0, 1 << 20],
            [0, -(1 << 20), 0],
        ] {
            let pinned = Cell::new(64_u64 << 20);
            let mut others = others.into_iter();
            let create = || {
                pinned.set(pinned.get() + (128 << 10));
                pinned.set(pinned.get().wrapping_add_signed(others.next().unwrap()));
                Ok::<_, ()>(Queues(&pinned, 128 << 10))
            };
            assert_eq!(pinned_by(create, || pinned.get()), Ok(128 << 10));
        }
    }

    #[test]
    fn a_queue_pair_that_cannot_be_created_is_an_error() {
        assert_eq!(pinned_by(|| Err::<(), _>("ENOMEM"), || 0), Err("ENOMEM"));
    }
}
