//! Publishes keys and queue pairs for peers that execute READs themselves: see
//! [`Published`](crate::provider::soft::shared::published).
//!
//! What is published follows the tables that the context's lock guards, in the same step: a key is
//! published after it was entered, and withdrawn before the verb that ends it returns. A READ that
//! overlaps the withdrawal may have copied bytes that were written afterwards. Its requester looks
//! at the key again after the copy, and the READ fails.

use super::core::Core;
use super::link::Link;
use super::memory::Memory;
use super::regions::{NO_ARENA, Region};
use super::window_table::Bound;
use crate::provider::soft::shared::published::{PublishedKey, PublishedQueuePair};
use crate::types::{Access, LocalKey, QpType, RemoteKey};

impl Region {
    /// Returns the region's own key, if it permits READs.
    fn published(&self) -> Option<PublishedKey> {
        let is_zero_based = self.access.contains(Access::ZERO_BASED);
        self.access
            .contains(Access::REMOTE_READ)
            .then_some(PublishedKey {
                key: self.remote_key,
                domain: self.domain,
                only_through: None,
                arena: self.arena,
                offset: self.in_arena(0) as u64,
                start: if is_zero_based { 0 } else { self.address() },
                len: self.len() as u64,
            })
    }

    /// Returns the key of a window of protection domain `domain` that is bound to the region, if it
    /// permits READs.
    pub(super) fn published_window(
        &self,
        key: RemoteKey,
        domain: u32,
        bound: &Bound,
    ) -> Option<PublishedKey> {
        let start = match bound.access.contains(Access::ZERO_BASED) {
            true => 0,
            false => self.address().wrapping_add(bound.offset),
        };
        let is_shared = self.arena != NO_ARENA;
        (is_shared && bound.access.contains(Access::REMOTE_READ)).then_some(PublishedKey {
            key,
            domain,
            only_through: bound.only_through,
            arena: self.arena,
            offset: self.in_arena(bound.offset as usize) as u64,
            start,
            len: bound.len,
        })
    }
}

impl Memory {
    /// Publishes the key of a region that was just added.
    pub(crate) fn publish_region(&self, key: LocalKey) {
        let region = self.regions.by_local_key(key);
        if let Some(key) = region.and_then(Region::published) {
            self.notes.published.publish_key(&key);
        }
    }

    /// Removes a region, and withdraws its key and those of the windows that are bound to it.
    pub(crate) fn remove_region(&mut self, key: LocalKey) {
        let Some(region) = self.regions.by_local_key(key) else {
            return;
        };
        let published = &self.notes.published;
        if region.published().is_some() {
            published.withdraw_key(region.remote_key);
        }
        // Windows of lent memory are not published, and each piece of a message lends some: they are
        // not searched for among all windows each time.
        if region.arena != NO_ARENA {
            for (_, window) in &self.windows.0 {
                if window.bound.is_some_and(|bound| bound.region == key) {
                    published.withdraw_key(window.key);
                }
            }
        }
        self.regions.remove(key);
    }
}

impl Memory {
    /// Publishes whether READs may be executed through a queue pair. Call this after its state, its
    /// attributes or its link have changed.
    pub(crate) fn publish_queue_pair(&self, core: &Core, link: &Link) {
        if core.qp_type != QpType::ReliableConnection {
            return;
        }
        let access = core.attributes.access.unwrap_or_default();
        let depth = core.attributes.max_dest_rd_atomic.unwrap_or(0);
        let is_readable = core.receives_now()
            && matches!(link, Link::Rings(_))
            && access.contains(Access::REMOTE_READ)
            && depth > 0;
        let remote = core.attributes.dest_qp_num.filter(|_| is_readable);
        let queue_pair = remote.map(|remote| PublishedQueuePair {
            number: core.number,
            remote,
            domain: core.domain,
            depth,
        });
        let published = &self.notes.published;
        published.publish_queue_pair(core.index as usize, queue_pair);
    }
}
