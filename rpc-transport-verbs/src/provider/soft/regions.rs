//! The registered regions of one context, by local key.

use std::ptr::NonNull;

use slab::Slab;

use crate::verbs::{Access, CompletionStatus, LocalKey};

/// Regions of one context: the bits of a key that are the region's place.
const INDEX_BITS: u32 = 12;
/// Regions that one context can have.
pub(super) const MAX_REGIONS: usize = 1 << INDEX_BITS;

/// What a key stands for.
#[derive(Debug)]
pub(super) struct Region {
    key: LocalKey,
    domain: u32,
    start: usize,
    len: usize,
    access: Access,
    arena: u64,
}

/// The regions of one context.
#[derive(Debug, Default)]
pub(super) struct Regions(Slab<Region>);

impl Regions {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Enters a region of protection domain `domain`. `serial` differs from region to region in the
    /// whole process, so that the key of a region that is gone, or of another context, names none.
    pub(super) fn insert(
        &mut self,
        serial: u32,
        domain: u32,
        (start, len): (NonNull<u8>, usize),
        access: Access,
        arena: u64,
    ) -> LocalKey {
        let entry = self.0.vacant_entry();
        // The caller has seen that there are fewer than MAX_REGIONS.
        let key = LocalKey(serial << INDEX_BITS | entry.key() as u32);
        entry.insert(Region {
            key,
            domain,
            start: start.as_ptr().addr(),
            len,
            access,
            arena,
        });
        key
    }

    pub(super) fn remove(&mut self, key: LocalKey) {
        let index = key.0 as usize & (MAX_REGIONS - 1);
        if self.0.get(index).is_some_and(|region| region.key == key) {
            self.0.remove(index);
        }
    }

    /// The local protection check: the key exists, is of this protection domain, spans the bytes,
    /// and permits what is to be done. Gives the arena and the offset in it.
    #[inline]
    pub(super) fn check(
        &self,
        key: LocalKey,
        domain: u32,
        (addr, len): (NonNull<u8>, usize),
        needs: Access,
    ) -> Result<(u64, usize), CompletionStatus> {
        if len == 0 {
            // Nothing is touched, so nothing is checked.
            return Ok((0, 0));
        }
        let region = self
            .0
            .get(key.0 as usize & (MAX_REGIONS - 1))
            .filter(|region| {
                region.key == key && region.domain == domain && region.access.contains(needs)
            })
            .ok_or(CompletionStatus::LocalProtection)?;
        let offset = addr.as_ptr().addr().wrapping_sub(region.start);
        let inside = offset <= region.len && len <= region.len - offset;
        inside
            .then_some((region.arena, offset))
            .ok_or(CompletionStatus::LocalProtection)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn at(addr: usize) -> NonNull<u8> {
        NonNull::new(std::ptr::without_provenance_mut(addr)).unwrap()
    }

    #[test]
    fn each_reason_to_refuse_is_seen() {
        let mut regions = Regions::default();
        let key = regions.insert(1, 7, (at(4096), 100), Access::NONE, 9);
        let refused = Err(CompletionStatus::LocalProtection);
        assert_eq!(
            regions.check(key, 7, (at(4096), 100), Access::NONE),
            Ok((9, 0))
        );
        assert_eq!(
            regions.check(key, 7, (at(4195), 1), Access::NONE),
            Ok((9, 99))
        );
        assert_eq!(
            regions.check(key, 7, (at(4196), 1), Access::NONE),
            refused,
            "past the end"
        );
        assert_eq!(
            regions.check(key, 7, (at(4096), 101), Access::NONE),
            refused,
            "too long"
        );
        assert_eq!(
            regions.check(key, 7, (at(4095), 1), Access::NONE),
            refused,
            "before"
        );
        assert_eq!(
            regions.check(key, 8, (at(4096), 1), Access::NONE),
            refused,
            "other domain"
        );
        assert_eq!(
            regions.check(key, 7, (at(4096), 1), Access::LOCAL_WRITE),
            refused
        );
        assert_eq!(
            regions.check(LocalKey(key.0 + 1), 7, (at(4096), 1), Access::NONE),
            refused
        );
        assert_eq!(
            regions.check(LocalKey(0), 8, (at(1), 0), Access::LOCAL_WRITE),
            Ok((0, 0))
        );
        regions.remove(key);
        assert_eq!(
            regions.check(key, 7, (at(4096), 1), Access::NONE),
            refused,
            "gone"
        );
    }
}
