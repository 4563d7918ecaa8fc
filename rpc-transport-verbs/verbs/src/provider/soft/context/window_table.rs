//! The memory windows of one context, by key.

use slab::Slab;

use crate::provider::soft::shared::published::{WINDOW_INDEX_BITS, window_index};
use crate::types::{Access, LocalKey, QpNum, RemoteKey, WindowType};

/// Maximum number of windows of one context.
pub(crate) const MAX_WINDOWS: usize = 1 << WINDOW_INDEX_BITS;

/// The windows of one context.
#[derive(Debug, Default)]
pub(crate) struct Windows(pub(super) Slab<Window>);

#[derive(Debug)]
pub(super) struct Window {
    /// The latest key; its lower bits change with each binding.
    pub(super) key: RemoteKey,
    pub(super) domain: u32,
    pub(super) window_type: WindowType,
    pub(super) bound: Option<Bound>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) region: LocalKey,
    /// Bytes from the start of the region to the window.
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) access: Access,
    /// For type 2: the only queue pair through which the window can be used.
    pub(super) only_through: Option<QpNum>,
}

impl Windows {
    #[inline]
    pub(super) fn get(&self, key: RemoteKey) -> Option<&Window> {
        let window = self.0.get(window_index(key))?;
        (window.key == key).then_some(window)
    }

    /// Returns whether a window is bound to the region.
    #[cfg(feature = "shim")]
    pub(crate) fn has_bound_to(&self, region: LocalKey) -> bool {
        let is_bound_to =
            |window: &Window| window.bound.is_some_and(|bound| bound.region == region);
        self.0.iter().any(|(_, window)| is_bound_to(window))
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: RemoteKey) -> Option<&mut Window> {
        let window = self.0.get_mut(window_index(key))?;
        (window.key == key).then_some(window)
    }
}
