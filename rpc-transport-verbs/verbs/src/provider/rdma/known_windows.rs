//! The memory windows of one context: tracks their keys, since drivers do not.
//!
//! libibverbs keeps a window's key in the window. It does not lock the key and does not always
//! update it, and two threads may bind one window through two queue pairs. Therefore a thread that
//! posts requests for windows holds a lock.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::names;
use super::super::work::{Operation, WindowBinding, Work};
use super::names::WindowName;
use crate::types::{PostErrorReason, RemoteKey};

/// The bits of a key that the user chooses when binding the window. The others identify the window.
const CHOSEN: u32 = 0xff;

/// The known type 2 windows of one context.
#[derive(Debug, Default)]
pub(super) struct KnownWindows {
    /// Maps a window's identifying bits to its key if the window is not bound. Kept for Soft-RoCE
    /// only: invalidating the key of an unbound window makes its driver dereference a null pointer
    /// in the kernel (Linux 6.1, rxe_do_invalidate_mw), while other devices return an error. A
    /// peer's invalidate becomes known once its completion is polled.
    free: Option<Mutex<HashMap<u32, Option<RemoteKey>>>>,
    keys: Mutex<()>,
}

/// The known windows, with the lock held.
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
            // A poisoned lock is usable: the keys that it guards are each written in one step.
            _keys: self.keys.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Adds a type 2 window with this initial key.
    pub(super) fn add(&self, key: RemoteKey) {
        self.with_free(|free| free.insert(name_of(key), Some(key)));
    }

    /// Removes a deallocated window.
    pub(super) fn remove(&self, key: RemoteKey) {
        self.with_free(|free| free.remove(&name_of(key)));
    }

    /// Records that the key was invalidated, if it belongs to a window.
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
        // A poisoned lock is usable: the map is changed in one step.
        Some(look(
            &mut free.lock().unwrap_or_else(PoisonError::into_inner),
        ))
    }
}

impl Windows<'_> {
    /// Rejects a key that identifies another window: some drivers use its chosen bits and ignore
    /// the others.
    pub(super) fn check_key(
        &self,
        window: WindowName,
        key: RemoteKey,
    ) -> Result<(), PostErrorReason> {
        // SAFETY: the request holds the window until it has completed, and the window's key is only
        // written under the lock that `self` holds.
        let now = RemoteKey(unsafe { (*window.0.as_ptr()).rkey });
        if name_of(now) == name_of(key) {
            Ok(())
        } else {
            Err(PostErrorReason::WindowKey { key, window: now })
        }
    }

    /// Rejects the key of a window that is not bound, on devices where invalidating it would crash
    /// the kernel.
    pub(super) fn check_invalidate(&self, key: RemoteKey) -> Result<(), PostErrorReason> {
        let is_free = |free: &mut HashMap<_, _>| free.get(&name_of(key)) == Some(&Some(key));
        if self.known.with_free(is_free) == Some(true) {
            return Err(PostErrorReason::WindowNotBound { key });
        }
        Ok(())
    }

    /// Records requests that the device has accepted.
    pub(super) fn note_taken(&mut self, work: &[Work]) {
        for work in work {
            match work.operation {
                Operation::BindWindow(WindowBinding {
                    window: names::WindowName::Rdma(window),
                    key,
                    ..
                }) => {
                    // SAFETY: the request holds the window until it has completed, and `self` holds
                    // the lock under which keys are written.
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

/// Returns the identifying bits of the window that a request binds or invalidates.
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

/// Returns how many of the requests may be posted as one chain. Some drivers read a window's key
/// from the window, which is updated after each binding, so a second request for the same window
/// starts another chain.
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
