//! The registered regions of one context, indexed by local and remote key.

use std::ptr::NonNull;

use slab::Slab;

use crate::provider::soft::shared::published::{REGION_INDEX_BITS, WINDOW_BIT, region_index};
use crate::provider::work::Sge;
use crate::types::{Access, CompletionStatus, LocalKey, RemoteKey};

/// Maximum number of regions of one context.
pub(crate) const MAX_REGIONS: usize = 1 << REGION_INDEX_BITS;

/// The arena of a region that is in none: peers in shared memory do not map it.
pub(crate) const NO_ARENA: u64 = u64::MAX;

/// A registered region.
#[derive(Debug)]
pub(crate) struct Region {
    key: LocalKey,
    /// Shares only the region's index with the local key.
    pub(crate) remote_key: RemoteKey,
    pub(crate) domain: u32,
    start: NonNull<u8>,
    len: usize,
    pub(crate) access: Access,
    pub(super) arena: u64,
    /// Where the region begins in its arena. Regions of memory that this crate allocates are whole
    /// arenas.
    #[cfg(feature = "shim")]
    in_arena: usize,
}

// SAFETY: the address belongs to registered memory and is the same from every thread; only the
// holder of the context's lock dereferences it.
unsafe impl Send for Region {}

/// The regions of one context.
#[derive(Debug, Default)]
pub(crate) struct Regions(Slab<Region>);

impl Regions {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a region of protection domain `domain`. `serial` differs from region to region in the
    /// whole process, so that a key of a deregistered region, or of another context, is invalid.
    pub(crate) fn insert(
        &mut self,
        serial: u32,
        domain: u32,
        (start, len): (NonNull<u8>, usize),
        access: Access,
        arena: u64,
    ) -> (LocalKey, RemoteKey) {
        let entry = self.0.vacant_entry();
        // The cast is lossless: the caller has checked that there are fewer than MAX_REGIONS.
        let index = entry.key() as u32;
        let key = LocalKey(serial << REGION_INDEX_BITS | index);
        // Differs from the local key, so that a request that confuses the two is rejected.
        let remote_key = RemoteKey((!serial << REGION_INDEX_BITS | index) & !WINDOW_BIT);
        entry.insert(Region {
            key,
            remote_key,
            domain,
            start,
            len,
            access,
            arena,
            #[cfg(feature = "shim")]
            in_arena: 0,
        });
        (key, remote_key)
    }

    /// Says that the region with this key, which was just added, begins so many bytes after its
    /// arena.
    #[cfg(feature = "shim")]
    pub(crate) fn set_offset_in_arena(&mut self, key: LocalKey, offset: usize) {
        if let Some(region) = self.0.get_mut(region_index(key.0)) {
            region.in_arena = offset;
        }
    }

    pub(crate) fn by_local_key(&self, key: LocalKey) -> Option<&Region> {
        self.0
            .get(region_index(key.0))
            .filter(|region| region.key == key)
    }

    pub(crate) fn by_remote_key(&self, key: RemoteKey) -> Option<&Region> {
        self.0
            .get(region_index(key.0))
            .filter(|region| region.remote_key == key)
    }

    pub(crate) fn remove(&mut self, key: LocalKey) {
        let index = region_index(key.0);
        if self.0.get(index).is_some_and(|region| region.key == key) {
            self.0.remove(index);
        }
    }

    /// Makes the local protection check: the key exists, belongs to this protection domain, spans
    /// the bytes, and permits the access. Returns the arena and the offset in it.
    pub(crate) fn check(
        &self,
        key: LocalKey,
        domain: u32,
        (addr, len): (NonNull<u8>, usize),
        needs: Access,
    ) -> Result<(u64, usize), CompletionStatus> {
        if len == 0 {
            // Zero bytes touch nothing, so nothing is checked.
            return Ok((0, 0));
        }
        self.find(key, domain, (addr, len), needs)
            .ok_or(CompletionStatus::LocalProtection)
    }

    /// Makes the same check for at least one byte. Returns `None` if it fails.
    #[inline(always)]
    pub(crate) fn find(
        &self,
        key: LocalKey,
        domain: u32,
        (addr, len): (NonNull<u8>, usize),
        needs: Access,
    ) -> Option<(u64, usize)> {
        let region = self.0.get(region_index(key.0))?;
        let offset = addr
            .as_ptr()
            .addr()
            .wrapping_sub(region.start.as_ptr().addr());
        let is_permitted = region.key == key
            && region.domain == domain
            && region.access.contains(needs)
            && offset <= region.len
            && len <= region.len - offset;
        is_permitted.then_some((region.arena, region.in_arena(offset)))
    }

    /// Makes the local protection check for every element of a request.
    pub(crate) fn check_all(
        &self,
        elements: &[Sge],
        domain: u32,
        needs: Access,
    ) -> Result<(), CompletionStatus> {
        for element in elements {
            let bytes = (element.addr, element.len as usize);
            self.check(element.local_key, domain, bytes, needs)?;
        }
        Ok(())
    }
}

impl Region {
    /// Converts a remote address into an offset in the region. The address counts from the region's
    /// first byte if the region is zero-based, and is an address of this process otherwise.
    pub(crate) fn offset_of(&self, addr: u64, is_zero_based: bool) -> u64 {
        if is_zero_based {
            addr
        } else {
            addr.wrapping_sub(self.address())
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Converts an offset in the region into one in its arena.
    #[inline(always)]
    pub(super) fn in_arena(&self, offset: usize) -> usize {
        #[cfg(feature = "shim")]
        return self.in_arena + offset;
        #[cfg(not(feature = "shim"))]
        offset
    }

    /// Returns the address of the region's first byte, as peers know it.
    pub(crate) fn address(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// Returns a pointer to the `len` bytes at `offset`, if they are inside the region.
    pub(crate) fn bytes(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let whole = self.len as u64;
        // SAFETY: the offset is used only after the check that the range is inside the region,
        // which stays mapped while it is in the table.
        (offset <= whole && len <= whole - offset)
            .then(|| unsafe { self.start.add(offset as usize) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(addr: usize) -> NonNull<u8> {
        NonNull::new(std::ptr::without_provenance_mut(addr)).unwrap()
    }

    #[test]
    fn each_reason_to_refuse_is_seen() {
        let mut regions = Regions::default();
        let (key, _) = regions.insert(1, 7, (at(4096), 100), Access::NONE, 9);
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
