//! Exposed memory: registered memory that peers may access concurrently with this process.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::protection_domain::ProtectionDomain;
use super::registered_memory::RegisteredMemory;
use super::types::access::Access;
use super::types::busy::Busy;
use super::types::keys::RemoteMemory;
use super::types::keys::{LocalKey, RemoteKey};
use super::types::verbs_error::VerbsError;

/// A region whose bytes a peer may read or write at any time by one-sided operations, within the
/// rights of its [`Access`].
///
/// It never hands out `&[u8]` or `&mut [u8]`: a peer or a device would change the bytes behind the
/// reference, which Rust does not permit. Bytes are copied in and out ([`read`](Self::read),
/// [`write`](Self::write)) or shared as atomic cells ([`atomic`](Self::atomic)). A copy that
/// overlaps in time with a peer's write may contain old and new bytes. To learn when a peer is
/// done, have it send a message (a SEND or a WRITE with immediate) after its WRITEs: the completion
/// of that message makes all earlier WRITEs visible.
///
/// Cloning is cheap: all clones are the same memory. The registration ends when all clones, all
/// requests in flight that name the memory, and all windows that were bound to it are gone. After
/// that, no peer can read or write through its keys.
///
/// Local requests may use it as well: any number of requests may name an [`element`](Self::element)
/// of it at the same time.
#[derive(Clone)]
pub struct ExposedMemory {
    shared: Arc<RegisteredMemory>,
    access: Access,
}

impl ProtectionDomain {
    /// Allocates and registers memory that peers may access with the rights of `access`: by the
    /// region's own key, or through memory windows ([`Access::MW_BIND`]).
    ///
    /// # Errors
    ///
    /// [`VerbsError::RemoteWithoutLocalWrite`] if `access` has `REMOTE_WRITE` or `REMOTE_ATOMIC`
    /// without `LOCAL_WRITE`; otherwise as for [`register`](Self::register).
    pub fn expose(&self, len: usize, access: Access) -> Result<ExposedMemory, VerbsError> {
        Ok(ExposedMemory::new(self.reg_mr(len, access)?, access))
    }
}

impl ExposedMemory {
    pub(super) fn new(shared: RegisteredMemory, access: Access) -> Self {
        Self {
            shared: Arc::new(shared),
            access,
        }
    }

    /// Returns the registered length in bytes.
    pub fn len(&self) -> usize {
        self.shared.raw.len()
    }

    /// Returns false: an empty region cannot be registered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the access rights.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the key for local work requests.
    pub fn local_key(&self) -> LocalKey {
        self.shared.raw.local_key()
    }

    /// Returns the key for work requests of peers.
    pub fn remote_key(&self) -> RemoteKey {
        self.shared.raw.remote_key()
    }

    /// Returns the description that a peer needs to access the bytes from `offset` on. Addresses of
    /// a [`ZERO_BASED`](Access::ZERO_BASED) region begin at 0.
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

    /// Returns the address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.start().as_ptr().addr() as u64
    }

    #[inline]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.shared.raw.start()
    }

    pub(super) fn raw(&self) -> &crate::provider::MemoryRegion {
        &self.shared.raw
    }

    /// Copies bytes from `offset` on into `out`.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if the bytes are not all inside the region.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), VerbsError> {
        let cells = self.cells("ExposedMemory::read", offset, out.len())?;
        // Relaxed: the read is ordered after a peer's write by polling the completion, and by the
        // synchronization with which the polling thread passed it on.
        for (byte, cell) in out.iter_mut().zip(cells) {
            *byte = cell.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies the bytes of `range` into a vector.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if the range is not inside the region.
    pub fn to_vec(&self, range: Range<usize>) -> Result<Vec<u8>, VerbsError> {
        self.check("ExposedMemory::to_vec", &range)?;
        let mut bytes = vec![0; range.len()];
        self.read(range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies `bytes` into the region from `offset` on.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if they do not fit into the region.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), VerbsError> {
        let cells = self.cells("ExposedMemory::write", offset, bytes.len())?;
        for (byte, cell) in bytes.iter().zip(cells) {
            cell.store(*byte, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the eight bytes at `offset` as an atomic integer in native byte order: the cell on
    /// which a peer's atomics operate. The device determines whether its atomics are atomic with
    /// respect to this processor's: see
    /// [`DeviceAttributes::atomic_cap`](super::DeviceAttributes::atomic_cap).
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] if the bytes are not inside the region,
    /// [`VerbsError::Misaligned`] if `offset` is not a multiple of eight.
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
        // SAFETY: the bytes are inside the region (checked above), aligned (a region begins at a
        // page, and the offset is a multiple of eight), and mapped and initialized for as long as
        // `self` is borrowed. This process accesses them through atomics only.
        Ok(unsafe { self.start().add(offset).cast().as_ref() })
    }

    fn cells(
        &self,
        call: &'static str,
        offset: usize,
        len: usize,
    ) -> Result<&[AtomicU8], VerbsError> {
        self.check(call, &(offset..offset.saturating_add(len)))?;
        // SAFETY: the bytes are inside the region, mapped and initialized for as long as `self` is
        // borrowed, and accessed through atomics only, as in `atomic`; single bytes need no
        // alignment.
        Ok(unsafe { std::slice::from_raw_parts(self.start().add(offset).cast().as_ptr(), len) })
    }

    pub(super) fn check(&self, call: &'static str, range: &Range<usize>) -> Result<(), VerbsError> {
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

    /// Deregisters the memory (`ibv_dereg_mr(3)`). Once this returns, no peer's operation reads or
    /// writes it.
    ///
    /// # Errors
    ///
    /// [`Busy`], with the memory, while there are clones of it, requests in flight that name it, or
    /// windows that were bound to it.
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
