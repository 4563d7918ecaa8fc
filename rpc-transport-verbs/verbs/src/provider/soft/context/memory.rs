//! The memory of one context that its queue pairs access: regions and windows, the binding of windows,
//! and the check of all remote accesses.

use std::ptr::NonNull;

use super::regions::Regions;
use super::window_table::{Bound, MAX_WINDOWS, Window, Windows};
use crate::provider::soft::capacities::{exhausted, index32};
use crate::provider::soft::names::WindowName;
use crate::provider::soft::shared::published::{
    ContextNotes, TAG_BITS, WINDOW_BIT, WINDOW_INDEX_BITS,
};
use crate::provider::soft::shared::wake::Mapped;
use crate::provider::work::WindowBinding;
#[cfg(feature = "test-util")]
use crate::types::WindowFault;
use crate::types::{
    Access, CompletionStatus, QpNum, RemoteKey, RemoteMemory, VerbsError, WindowType,
};

/// The registered memory of one context.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) regions: Regions,
    pub(crate) windows: Windows,
    /// Where the keys stand that permit READs.
    pub(super) notes: Mapped<ContextNotes>,
    #[cfg(feature = "test-util")]
    pub(super) window_fault: WindowFault,
    /// Windows that were allocated so far, and bindings that were carried out.
    #[cfg(feature = "test-util")]
    pub(super) windows_given: usize,
    #[cfg(feature = "test-util")]
    pub(super) windows_bound: usize,
}

/// A remote access to memory of this context, and the queue pair that received the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteRequest {
    pub(crate) memory: RemoteMemory,
    pub(crate) len: u64,
    pub(crate) needs: Access,
    /// Protection domain and number of the queue pair that received the request.
    pub(crate) domain: u32,
    pub(crate) qp_num: QpNum,
}

impl Memory {
    pub(crate) fn new(
        notes: Mapped<ContextNotes>,
        #[cfg(feature = "test-util")] window_fault: WindowFault,
    ) -> Self {
        Self {
            regions: Regions::default(),
            windows: Windows::default(),
            notes,
            #[cfg(feature = "test-util")]
            window_fault,
            #[cfg(feature = "test-util")]
            windows_given: 0,
            #[cfg(feature = "test-util")]
            windows_bound: 0,
        }
    }

    pub(crate) fn alloc_window(
        &mut self,
        serial: u32,
        domain: u32,
        window_type: WindowType,
    ) -> Result<(WindowName, RemoteKey), VerbsError> {
        #[cfg(feature = "test-util")]
        {
            let exist = self.windows.0.len();
            let refuses = match self.window_fault {
                WindowFault::RefusedAfter(given) => self.windows_given == given,
                WindowFault::AtMost(most) => exist >= most,
                _ => false,
            };
            if refuses {
                return Err(exhausted("alloc_mw", "memory windows", exist));
            }
            self.windows_given += 1;
        }
        let windows = &mut self.windows.0;
        if windows.len() == MAX_WINDOWS {
            return Err(exhausted("alloc_mw", "memory windows", MAX_WINDOWS));
        }
        let entry = windows.vacant_entry();
        let qp_index = index32(entry.key());
        let key = WINDOW_BIT | serial << (TAG_BITS + WINDOW_INDEX_BITS) | qp_index << TAG_BITS;
        let key = RemoteKey(key);
        entry.insert(Window {
            key,
            domain,
            window_type,
            bound: None,
        });
        Ok((qp_index, key))
    }

    pub(crate) fn dealloc_window(&mut self, qp_index: WindowName) {
        if let Some(window) = self.windows.0.try_remove(qp_index as usize) {
            self.notes.published.withdraw_key(window.key);
        }
    }

    /// Binds a window, as requested on queue pair `qp_num`.
    pub(crate) fn bind_window(
        &mut self,
        binding: &WindowBinding,
        domain: u32,
        qp_num: QpNum,
    ) -> Result<(), CompletionStatus> {
        let refused = CompletionStatus::MemoryWindowBind;
        let (Some(qp_index), Some(region_key)) =
            (binding.window.of_soft(), binding.region.of_soft())
        else {
            return Err(refused);
        };
        let region = self.regions.by_local_key(region_key);
        let window = self.windows.0.get_mut(qp_index as usize);
        let (Some(region), Some(window)) = (region, window) else {
            return Err(refused);
        };
        let same_domain = region.domain == domain && window.domain == domain;
        let is_type_2 = window.window_type == WindowType::Type2;
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let is_writable =
            !binding.access.intersects(writes) || region.access.contains(Access::LOCAL_WRITE);
        // A binding's address is an address of this process, even if the region's own key is
        // zero-based.
        let offset = region.offset_of(binding.addr, false);
        let upper = !((1 << TAG_BITS) - 1);
        let is_permitted = same_domain
            && region.access.contains(Access::MW_BIND)
            && is_writable
            && region.bytes(offset, binding.len).is_some()
            && binding.key.0 & upper == window.key.0 & upper;
        let is_free = window.bound.is_none() && binding.len > 0;
        let may_be_zero_based = is_type_2 || !binding.access.contains(Access::ZERO_BASED);
        if !is_permitted || !may_be_zero_based || (is_type_2 && !is_free) {
            return Err(refused);
        }
        #[allow(unused_mut, reason = "faults are injected with test-util only")]
        let mut bound = (binding.len > 0).then_some(Bound {
            region: region_key,
            offset,
            len: binding.len,
            access: binding.access,
            only_through: is_type_2.then_some(qp_num),
        });
        #[cfg(feature = "test-util")]
        match (self.window_fault, &mut bound) {
            (WindowFault::UnbindableAfter(count), _) if count <= self.windows_bound => {
                crate::hooks::note_unbindable();
                return Err(refused);
            }
            (WindowFault::Wide, Some(bound)) => {
                (bound.offset, bound.len) = (0, region.len() as u64);
            }
            (WindowFault::Shared, Some(bound)) => bound.only_through = None,
            _ => {}
        }
        #[cfg(feature = "test-util")]
        {
            self.windows_bound += 1;
        }
        window.key = binding.key;
        window.bound = bound;
        let published = &self.notes.published;
        match bound.and_then(|bound| region.published_window(binding.key, domain, &bound)) {
            Some(key) => published.publish_key(&key),
            // The window may have had another binding, if it is of type 1.
            None => published.withdraw_key(binding.key),
        }
        Ok(())
    }

    /// Invalidates the key of a type 2 window, as requested through queue pair `qp_num`.
    pub(crate) fn invalidate(
        &mut self,
        key: RemoteKey,
        domain: u32,
        qp_num: QpNum,
    ) -> Result<(), CompletionStatus> {
        let refused = CompletionStatus::RemoteAccess;
        let window = self.windows.get_mut(key).ok_or(refused)?;
        let is_bound_by = |bound: Bound| bound.only_through == Some(qp_num);
        let is_permitted = window.domain == domain
            && window.window_type == WindowType::Type2
            && window.bound.is_some_and(is_bound_by);
        if !is_permitted {
            return Err(refused);
        }
        #[cfg(feature = "test-util")]
        if self.window_fault == WindowFault::Kept {
            return Ok(());
        }
        window.bound = None;
        self.notes.published.withdraw_key(key);
        Ok(())
    }

    /// Checks a remote access: the key exists, belongs to the queue pair's protection domain, spans
    /// all of the bytes, and permits the access. Returns a pointer to the bytes if so. Call this
    /// before any byte is touched, and not for zero bytes.
    pub(crate) fn check_remote(&self, request: &RemoteRequest) -> Option<NonNull<u8>> {
        let RemoteRequest {
            memory,
            len,
            needs,
            domain,
            qp_num,
        } = *request;
        if memory.key.0 & WINDOW_BIT == 0 {
            let region = self.regions.by_remote_key(memory.key)?;
            let is_zero_based = region.access.contains(Access::ZERO_BASED);
            let offset = region.offset_of(memory.addr, is_zero_based);
            let is_permitted = region.domain == domain && region.access.contains(needs);
            return region.bytes(offset, len).filter(|_| is_permitted);
        }
        let window = self.windows.get(memory.key)?;
        let bound = window.bound?;
        let region = self.regions.by_local_key(bound.region)?;
        let start = region.address().wrapping_add(bound.offset);
        let offset = if bound.access.contains(Access::ZERO_BASED) {
            memory.addr
        } else {
            memory.addr.wrapping_sub(start)
        };
        let is_permitted = window.domain == domain
            && bound.access.contains(needs)
            && bound.only_through.is_none_or(|only| only == qp_num)
            && offset <= bound.len
            && len <= bound.len - offset;
        if !is_permitted {
            return None;
        }
        region.bytes(bound.offset + offset, len)
    }
}
