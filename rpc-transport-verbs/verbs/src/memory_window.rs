//! Memory windows: keys for parts of a region, cheaper to create and revoke than registrations.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::exposed_memory::ExposedMemory;
use super::protection_domain::ProtectionDomain;
use super::types::access::Access;
use super::types::busy::Busy;
use super::types::keys::RemoteKey;
use super::types::keys::RemoteMemory;
use super::types::post_error::PostErrorReason;
use super::types::verbs_error::VerbsError;
use super::types::window_type::WindowType;
use crate::provider;

/// A memory window: a separate key for some bytes of a region, with a subset of its access rights.
///
/// The region must permit binding ([`Access::MW_BIND`]); a window that lets peers write needs a
/// region with [`Access::LOCAL_WRITE`]. Every region that the window was bound to stays registered
/// until the window is dropped. Cloning is cheap: all clones are the same window.
#[derive(Clone, Debug)]
pub struct MemoryWindow {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    // First field: dropped before the regions that the window was bound to, and before the domain.
    raw: provider::MemoryWindow,
    window_type: WindowType,
    bound: Mutex<Bound>,
    _domain: Arc<provider::ProtectionDomain>,
}

#[derive(Debug)]
struct Bound {
    /// The most recent key.
    key: RemoteKey,
    regions: Vec<ExposedMemory>,
}

/// The binding of a window: a range of a region, and the access rights of peers.
#[derive(Clone, Debug)]
pub struct Binding {
    pub(super) region: ExposedMemory,
    pub(super) range: Range<usize>,
    pub(super) access: Access,
}

impl Binding {
    /// Describes the bytes of `range` with the remote rights of `access`. A request to bind a window
    /// to bytes outside of the region is rejected when it is posted.
    pub fn new(region: &ExposedMemory, range: Range<usize>, access: Access) -> Self {
        Self {
            region: region.clone(),
            range,
            access,
        }
    }

    /// Returns the description to send to a peer, once the window has this key.
    pub fn remote(&self, key: RemoteKey) -> RemoteMemory {
        RemoteMemory {
            addr: self.addr(),
            key,
        }
    }

    /// Rejects a range that is not inside the region. That is not left to the device: some bind such
    /// a window, and peers could then reach memory that was never exposed to them.
    pub(super) fn check(&self) -> Result<(), PostErrorReason> {
        let (Range { start, end }, len) = (self.range.clone(), self.region.len());
        if start <= end && end <= len {
            return Ok(());
        }
        Err(PostErrorReason::WindowRange { start, end, len })
    }

    fn addr(&self) -> u64 {
        if self.access.contains(Access::ZERO_BASED) {
            0
        } else {
            self.region.address().wrapping_add(self.range.start as u64)
        }
    }

    pub(super) fn raw(&self, window: &MemoryWindow, key: RemoteKey) -> provider::WindowBinding {
        provider::WindowBinding {
            window: window.shared.raw.name(),
            region: self.region.raw().name(),
            addr: self.region.address().wrapping_add(self.range.start as u64),
            len: self.range.len() as u64,
            access: self.access,
            key,
        }
    }
}

impl ProtectionDomain {
    /// Allocates a memory window that is not bound (`ibv_alloc_mw(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::NotSupported`] if the device has no such windows, [`VerbsError::Exhausted`] or
    /// [`VerbsError::Os`] if there are no more of them, [`VerbsError::Forked`] in a forked child.
    pub fn alloc_mw(&self, window_type: WindowType) -> Result<MemoryWindow, VerbsError> {
        MemoryWindow::new(self, window_type)
    }
}

impl MemoryWindow {
    fn new(domain: &ProtectionDomain, window_type: WindowType) -> Result<Self, VerbsError> {
        let raw = domain.raw.alloc_mw(window_type)?;
        let key = raw.first_key();
        Ok(Self {
            shared: Arc::new(Shared {
                raw,
                window_type,
                bound: Mutex::new(Bound {
                    key,
                    regions: Vec::new(),
                }),
                _domain: Arc::clone(&domain.raw),
            }),
        })
    }

    /// Returns the window's type.
    pub fn window_type(&self) -> WindowType {
        self.shared.window_type
    }

    /// Returns the most recent key: the key of the last posted binding, whether or not that binding
    /// has been executed.
    pub fn key(&self) -> RemoteKey {
        self.bound().key
    }

    /// Returns the key for the next binding: the lower eight bits are incremented
    /// (`ibv_inc_rkey(3)`), so that requests with the previous key fail.
    pub fn next_key(&self) -> RemoteKey {
        let key = self.key().0;
        RemoteKey(key & !0xff | key.wrapping_add(1) & 0xff)
    }

    /// Records a posted binding: its region must stay registered until the window is gone.
    pub(super) fn note_binding(&self, binding: &Binding, key: RemoteKey) {
        let mut bound = self.bound();
        bound.key = key;
        let is_known = |known: &ExposedMemory| known.address() == binding.region.address();
        if !bound.regions.iter().any(is_known) {
            bound.regions.push(binding.region.clone());
        }
    }

    /// Records that the window's last binding was invalidated: nothing keeps its regions registered
    /// on behalf of the window any more. The completion of the local invalidate must have been
    /// polled, and have been a success. A caller that is wrong about it exposes nothing: a device does
    /// not deregister a region to which a window is bound, and the region's memory is then kept.
    #[doc(hidden)]
    pub fn note_invalidated(&self) {
        self.bound().regions.clear();
    }

    fn bound(&self) -> std::sync::MutexGuard<'_, Bound> {
        // A poisoned lock is usable: the two fields are each changed in one step.
        self.shared
            .bound
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Deallocates the window, bound or not (`ibv_dealloc_mw(3)`). Its keys become invalid.
    ///
    /// # Errors
    ///
    /// [`Busy`], with the window, while there are clones of it or requests in flight that bind it.
    pub fn dealloc(self) -> Result<(), Busy<Self>> {
        Busy::unless_sole("dealloc_mw", self.shared, |shared| Self { shared })
    }
}
