//! Registered memory that peers may read and write while this process does.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::element::Element;
use super::registered_memory::RegisteredMemory;
use super::types::access::Access;
use super::types::error::{Busy, VerbsError};
use super::types::keys::RemoteMemory;
use super::types::keys::{LocalKey, RemoteKey};

/// A region whose bytes a peer may read or write at any time, by one-sided operations, as far as its
/// [`Access`] permits.
///
/// It never hands out `&[u8]` or `&mut [u8]`: another process or a device changes the bytes under any
/// reference, which the language does not permit. Bytes are copied in and out ([`read`](Self::read),
/// [`write`](Self::write)), or shared as atomic cells ([`atomic`](Self::atomic)). A copy that meets a peer's
/// write may have some bytes of before and some of after; to know when a peer is done, let it say so (a
/// SEND or a WRITE with immediate after the WRITEs: their completion makes all before them visible).
///
/// Cheap to clone: all clones are the same memory. The registration ends when the last is gone, and with
/// it every request in flight that names it and every window that was bound to it; after that, no peer
/// reads or writes through its keys.
///
/// The memory of requests on this side, too: an [`element`](Self::element) of it may be named by any
/// number of requests at a time.
#[derive(Clone)]
pub struct ExposedMemory {
    shared: Arc<RegisteredMemory>,
    access: Access,
}

impl ExposedMemory {
    pub(super) fn new(shared: RegisteredMemory, access: Access) -> Self {
        Self {
            shared: Arc::new(shared),
            access,
        }
    }

    /// Bytes registered.
    pub fn len(&self) -> usize {
        self.shared.raw.len()
    }

    /// Never: an empty region cannot be registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What was granted.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The key for work requests of this side.
    pub fn local_key(&self) -> LocalKey {
        self.shared.raw.local_key()
    }

    /// The key for work requests of peers.
    pub fn remote_key(&self) -> RemoteKey {
        self.shared.raw.remote_key()
    }

    /// What a peer has to be told to reach the bytes from `offset` on. Addresses of a
    /// [`ZERO_BASED`](Access::ZERO_BASED) region begin at 0.
    pub fn remote(&self, offset: usize) -> RemoteMemory {
        RemoteMemory {
            addr: self.base().wrapping_add(offset as u64),
            key: self.remote_key(),
        }
    }

    fn base(&self) -> u64 {
        if self.access.contains(Access::ZERO_BASED) {
            0
        } else {
            self.address()
        }
    }

    /// Address of its first byte in this process.
    pub fn address(&self) -> u64 {
        self.start().as_ptr().addr() as u64
    }

    fn start(&self) -> NonNull<u8> {
        self.shared.raw.start()
    }

    pub(super) fn raw(&self) -> &crate::provider::MemoryRegion {
        &self.shared.raw
    }

    /// The bytes of `range`, for work requests of this side.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`], as with all of what follows, if they are not inside. An element's length has
    /// 32 bits.
    pub fn element(&self, range: Range<usize>) -> Result<Element, VerbsError> {
        const CALL: &str = "ExposedMemory::element";
        self.check(CALL, &range)?;
        let len = u32::try_from(range.len()).map_err(|_| VerbsError::OutOfRange {
            call: CALL,
            parameter: "the range's length",
            value: range.len() as u64,
            min: 0,
            max: u32::MAX.into(),
        })?;
        // SAFETY: `check` saw that it is inside.
        let addr = unsafe { self.start().add(range.start) };
        Ok(Element::exposed(self.clone(), addr, len))
    }

    /// Copies bytes out, from `offset` on.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), VerbsError> {
        let cells = self.cells("ExposedMemory::read", offset, out.len())?;
        // Relaxed: what orders it after a peer's write is the completion that was polled, with the
        // ordering of whatever handed it on.
        for (byte, cell) in out.iter_mut().zip(cells) {
            *byte = cell.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// The same as a vector.
    pub fn to_vec(&self, range: Range<usize>) -> Result<Vec<u8>, VerbsError> {
        self.check("ExposedMemory::to_vec", &range)?;
        let mut bytes = vec![0; range.len()];
        self.read(range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies bytes in, from `offset` on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), VerbsError> {
        let cells = self.cells("ExposedMemory::write", offset, bytes.len())?;
        for (byte, cell) in bytes.iter().zip(cells) {
            cell.store(*byte, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The eight bytes at `offset` as an atomic number of this machine's byte order: the cell that a peer's
    /// atomics work on. Whether they are atomic with respect to this processor's is the device's to say:
    /// [`DeviceAttributes::atomic_cap`](super::DeviceAttributes::atomic_cap).
    ///
    /// # Errors
    ///
    /// [`VerbsError::Misaligned`] if the offset is not a multiple of eight.
    pub fn atomic(&self, offset: usize) -> Result<&AtomicU64, VerbsError> {
        const CALL: &str = "ExposedMemory::atomic";
        self.check(CALL, &(offset..offset.saturating_add(8)))?;
        if !offset.is_multiple_of(8) {
            return Err(VerbsError::Misaligned {
                call: CALL,
                parameter: "offset",
                value: offset as u64,
                multiple_of: 8,
            });
        }
        // SAFETY: inside (checked), aligned (a region begins at a page), and mapped and initialised for as
        // long as `self` is borrowed. This process reaches the bytes through atomics alone.
        Ok(unsafe { self.start().add(offset).cast().as_ref() })
    }

    fn cells(
        &self,
        call: &'static str,
        offset: usize,
        len: usize,
    ) -> Result<&[AtomicU8], VerbsError> {
        self.check(call, &(offset..offset.saturating_add(len)))?;
        // SAFETY: as in `atomic`; bytes need no alignment.
        Ok(unsafe { std::slice::from_raw_parts(self.start().add(offset).cast().as_ptr(), len) })
    }

    fn check(&self, call: &'static str, range: &Range<usize>) -> Result<(), VerbsError> {
        let outside = |parameter, value: usize, min: usize, max: usize| {
            let (value, min, max) = (value as u64, min as u64, max as u64);
            Err(VerbsError::OutOfRange {
                call,
                parameter,
                value,
                min,
                max,
            })
        };
        if range.start > self.len() {
            return outside("the first byte", range.start, 0, self.len());
        }
        if !(range.start..=self.len()).contains(&range.end) {
            return outside("the end", range.end, range.start, self.len());
        }
        Ok(())
    }

    /// Ends the registration (`ibv_dereg_mr`): when this returns, no peer's operation reads or writes it
    /// any more.
    ///
    /// # Errors
    ///
    /// [`Busy`], with the memory, while there are clones, requests in flight that name it, or windows that
    /// were bound to it.
    pub fn deregister(self) -> Result<(), Busy<Self>> {
        let access = self.access;
        Busy::unless_sole("dereg_mr", self.shared, |shared| Self { shared, access })
    }
}

impl fmt::Debug for ExposedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExposedMemory")
            .field("len", &self.len())
            .field("access", &self.access)
            .field("remote_key", &self.remote_key())
            .finish_non_exhaustive()
    }
}
