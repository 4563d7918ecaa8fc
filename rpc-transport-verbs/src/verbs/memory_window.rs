//! Memory windows: keys for parts of a region, which come and go quicker than registrations.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::exposed_memory::ExposedMemory;
use super::protection_domain::ProtectionDomain;
use super::types::access::Access;
use super::types::error::{Busy, PostErrorReason, VerbsError};
use super::types::keys::RemoteKey;
use super::types::keys::RemoteMemory;
use super::types::window_type::WindowType;
use crate::provider;

/// A memory window: a key of its own for some bytes of a region, with some of its rights.
///
/// The region has to permit it ([`Access::MW_BIND`]), and what lets peers write needs a region with
/// [`Access::LOCAL_WRITE`]. A window keeps every region that it was bound to registered, until it is
/// dropped. Cheap to clone: all clones are the same window.
#[derive(Clone, Debug)]
pub struct MemoryWindow {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    // First: windows go before the regions that they were bound to, and before their domain.
    raw: provider::MemoryWindow,
    window_type: WindowType,
    bound: Mutex<Bound>,
    _domain: Arc<provider::ProtectionDomain>,
}

#[derive(Debug)]
struct Bound {
    /// The latest key.
    key: RemoteKey,
    regions: Vec<ExposedMemory>,
}

/// What a window is bound to: some bytes of a region, and what peers may do with them.
#[derive(Clone, Debug)]
pub struct Binding {
    pub(super) region: ExposedMemory,
    pub(super) range: Range<usize>,
    pub(super) access: Access,
}

impl Binding {
    /// The bytes of `range`, with the remote rights of `access`. Whether they are inside of the region is
    /// the device's to check, when the request is carried out.
    pub fn new(region: &ExposedMemory, range: Range<usize>, access: Access) -> Self {
        Self {
            region: region.clone(),
            range,
            access,
        }
    }

    /// What a peer has to be told, once the window has this key.
    pub fn remote(&self, key: RemoteKey) -> RemoteMemory {
        RemoteMemory {
            addr: self.addr(),
            key,
        }
    }

    /// A range that ends before it begins is nobody's wish.
    pub(super) fn check(&self) -> Result<(), PostErrorReason> {
        let Range { start, end } = self.range;
        if start <= end {
            return Ok(());
        }
        Err(PostErrorReason::InvertedRange { start, end })
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
            len: self.range.end.saturating_sub(self.range.start) as u64,
            access: self.access,
            key,
        }
    }
}

impl MemoryWindow {
    pub(super) fn new(
        domain: &ProtectionDomain,
        window_type: WindowType,
    ) -> Result<Self, VerbsError> {
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

    /// Which kind it is.
    pub fn window_type(&self) -> WindowType {
        self.shared.window_type
    }

    /// Its latest key: of the binding that was posted last, whether it has been carried out or not.
    pub fn key(&self) -> RemoteKey {
        self.bound().key
    }

    /// The key to bind it with next: the lower eight bits are one more (`ibv_inc_rkey`), so that the
    /// last one's holders are refused.
    pub fn next_key(&self) -> RemoteKey {
        let key = self.key().0;
        RemoteKey(key & !0xff | key.wrapping_add(1) & 0xff)
    }

    /// A binding was posted: until the window is gone, its region has to stay.
    pub(super) fn note_binding(&self, binding: &Binding, key: RemoteKey) {
        let mut bound = self.bound();
        bound.key = key;
        let is_known = |known: &ExposedMemory| known.address() == binding.region.address();
        if !bound.regions.iter().any(is_known) {
            bound.regions.push(binding.region.clone());
        }
    }

    fn bound(&self) -> std::sync::MutexGuard<'_, Bound> {
        // Two fields, each changed in one step.
        self.shared
            .bound
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it (`ibv_dealloc_mw`), bound or not: its keys are worth nothing after that.
    ///
    /// # Errors
    ///
    /// [`Busy`], with the window, while there are clones, or requests in flight that bind it.
    pub fn dealloc(self) -> Result<(), Busy<Self>> {
        Busy::unless_sole("dealloc_mw", self.shared, |shared| Self { shared })
    }
}
