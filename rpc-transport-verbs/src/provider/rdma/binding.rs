//! Memory windows in requests: what is known of them here, and checked, since drivers do not.
//!
//! The library keeps a window's key in the window. It neither locks it nor always writes it; and two threads
//! may bind one window through two queue pairs. So whoever posts requests of windows holds a lock.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdma_sys::{ibv_bind_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_qp, ibv_send_flags as flag};

use super::super::{self as provider, Operation, WindowBinding, Work};
use super::queue_pair::QueuePair;
use super::requests::of_same_context;
use super::shared_receive_queue::reason;
use super::windows::WindowName;
use crate::verbs::types::{PostError, PostErrorReason, RemoteKey, WrId};

/// The bits of a key that are chosen by who binds the window. The others name it.
const CHOSEN: u32 = 0xff;

/// What is known of the type 2 windows of one context.
#[derive(Debug, Default)]
pub(super) struct KnownWindows {
    /// By the bits that name them; with their keys, if they are bound to nothing. Kept for Soft-RoCE alone: to
    /// invalidate such a key has its driver follow a null pointer in the kernel (Linux 6.1,
    /// rxe_do_invalidate_mw), where other devices answer with an error. A peer's invalidate is known of once
    /// its completion has been polled.
    free: Option<Mutex<HashMap<u32, Option<RemoteKey>>>>,
    keys: Mutex<()>,
}

/// The same, under its lock.
pub(super) struct Windows<'a> {
    known: &'a KnownWindows,
    _keys: MutexGuard<'a, ()>,
}

impl KnownWindows {
    pub(super) fn new(is_soft_roce: bool) -> Self {
        Self {
            free: is_soft_roce.then(Mutex::default),
            keys: Mutex::default(),
        }
    }

    pub(super) fn lock(&self) -> Windows<'_> {
        Windows {
            known: self,
            // It guards places outside of it, each written in one step.
            _keys: self.keys.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// A type 2 window that begins with this key.
    pub(super) fn add(&self, key: RemoteKey) {
        self.with_free(|free| free.insert(name_of(key), Some(key)));
    }

    /// It is gone.
    pub(super) fn remove(&self, key: RemoteKey) {
        self.with_free(|free| free.remove(&name_of(key)));
    }

    /// The key has been taken away, if it is a window's.
    pub(super) fn note_invalidated(&self, key: RemoteKey) {
        let to = |free: &mut HashMap<_, _>| {
            free.entry(name_of(key))
                .and_modify(|free| *free = Some(key));
        };
        self.with_free(to);
    }

    fn with_free<T>(
        &self,
        look: impl FnOnce(&mut HashMap<u32, Option<RemoteKey>>) -> T,
    ) -> Option<T> {
        let free = self.free.as_ref()?;
        // Changed in one step.
        Some(look(
            &mut free.lock().unwrap_or_else(PoisonError::into_inner),
        ))
    }
}

impl Windows<'_> {
    /// Refuses a key that names another window: some drivers take its chosen bits and forget the others.
    pub(super) fn check_key(
        &self,
        window: WindowName,
        key: RemoteKey,
    ) -> Result<(), PostErrorReason> {
        // SAFETY: the window lives until the request has completed, and its key is written under the lock
        // that is held.
        let now = RemoteKey(unsafe { (*window.0.as_ptr()).rkey });
        if name_of(now) == name_of(key) {
            Ok(())
        } else {
            Err(PostErrorReason::WindowKey { key, window: now })
        }
    }

    /// Refuses the key of a window that is bound to nothing, where that would be the end of the machine.
    pub(super) fn check_invalidate(&self, key: RemoteKey) -> Result<(), PostErrorReason> {
        let is_free = |free: &mut HashMap<_, _>| free.get(&name_of(key)) == Some(&Some(key));
        if self.known.with_free(is_free) == Some(true) {
            return Err(PostErrorReason::WindowNotBound { key });
        }
        Ok(())
    }

    /// The device has taken these requests.
    pub(super) fn note_taken(&mut self, work: &[Work]) {
        for work in work {
            match work.operation {
                Operation::BindWindow(WindowBinding {
                    window: provider::WindowName::Rdma(window),
                    key,
                    ..
                }) => {
                    // SAFETY: as in `check_key`.
                    unsafe { (*window.0.as_ptr()).rkey = key.0 };
                    let bound = |free: &mut HashMap<_, _>| {
                        free.entry(name_of(key)).and_modify(|free| *free = None);
                    };
                    self.known.with_free(bound);
                }
                Operation::LocalInvalidate(key) => self.known.note_invalidated(key),
                _ => {}
            }
        }
    }
}

fn name_of(key: RemoteKey) -> u32 {
    key.0 & !CHOSEN
}

/// The name of the window that a request binds, or takes the key away from.
fn touched(work: &Work) -> Option<u32> {
    match work.operation {
        Operation::BindWindow(WindowBinding { key, .. }) | Operation::LocalInvalidate(key) => {
            Some(name_of(key))
        }
        _ => None,
    }
}

pub(super) fn touches_window(work: &Work) -> bool {
    touched(work).is_some()
}

/// How many of these can be posted as one list. Some drivers read the key that a window has from the window,
/// where it has to be written after each binding: so a window that is touched again begins another list.
pub(super) fn touched_once(work: &[Work]) -> usize {
    let mut windows = Vec::new();
    for (index, work) in work.iter().enumerate() {
        if let Some(window) = touched(work) {
            if windows.contains(&window) {
                return index;
            }
            windows.push(window);
        }
    }
    work.len()
}

pub(super) fn bind_info(
    qp: NonNull<ibv_qp>,
    binding: &WindowBinding,
) -> Result<(WindowName, ibv_mw_bind_info), PostErrorReason> {
    let (object_of_window, object_of_region) = ("the memory window", "the region");
    let provider::WindowName::Rdma(window) = binding.window else {
        let object = object_of_window;
        return Err(PostErrorReason::ForeignObject { object });
    };
    let provider::RegionName::Rdma(region) = binding.region else {
        let object = object_of_region;
        return Err(PostErrorReason::ForeignObject { object });
    };
    // SAFETY: both live until the request has completed; their contexts never change.
    let (of_window, of_region) =
        unsafe { ((*window.0.as_ptr()).context, (*region.0.as_ptr()).context) };
    of_same_context(qp, of_window, object_of_window)?;
    of_same_context(qp, of_region, object_of_region)?;
    // SAFETY: as above, of their domains; the queue pair is alive.
    let [of_qp, of_window, of_region] = unsafe {
        [
            (*qp.as_ptr()).pd,
            (*window.0.as_ptr()).pd,
            (*region.0.as_ptr()).pd,
        ]
    };
    for (domain, object) in [(of_window, object_of_window), (of_region, object_of_region)] {
        if domain != of_qp {
            return Err(PostErrorReason::OtherDomain { object });
        }
    }
    let bind_info = ibv_mw_bind_info {
        mr: region.0.as_ptr(),
        addr: binding.addr,
        length: binding.len,
        mw_access_flags: binding.access.bits(),
    };
    Ok((window, bind_info))
}

impl QueuePair {
    pub(crate) fn bind_mw(
        &mut self,
        wr_id: WrId,
        binding: WindowBinding,
        signaled: bool,
    ) -> Result<RemoteKey, PostError> {
        let refuse = |reason| PostError { taken: 0, reason };
        let raw = self.ready_to_send().map_err(refuse)?;
        let (window, bind_info) = bind_info(raw, &binding).map_err(refuse)?;
        let mut bind = ibv_mw_bind {
            wr_id: wr_id.to_raw(),
            send_flags: if signaled {
                flag::IBV_SEND_SIGNALED.0
            } else {
                0
            },
            bind_info,
        };
        let _windows = self.domain.handle.windows.lock();
        // SAFETY: the queue pair is alive, and so are window and region until the request has completed; all
        // are of one context.
        let errno = unsafe { ibv_bind_mw(raw.as_ptr(), window.0.as_ptr(), &mut bind) };
        if errno != 0 {
            return Err(refuse(reason(errno, self.capabilities.max_send_wr)));
        }
        // SAFETY: alive, and read under the lock of keys. The library has written the new one.
        Ok(RemoteKey(unsafe { (*window.0.as_ptr()).rkey }))
    }
}
