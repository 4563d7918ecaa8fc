//! The results of posting a chain: the index and the reason of a rejected request.

use std::os::raw::c_int;
use std::ptr::NonNull;

use rdma_sys::{ibv_context, ibv_qp};

use crate::types::PostErrorReason;

/// Returns the index of the rejected request in a chain. Some drivers do not report it although
/// they have already accepted the whole chain. The whole chain then counts as posted, because its
/// memory must not be touched before the end of the queue.
pub(super) fn index_of<T>(first: *const T, refused: *const T, count: usize) -> usize {
    let offset = refused.addr().wrapping_sub(first.addr()) / size_of::<T>();
    if refused.is_null() {
        count
    } else {
        offset.min(count)
    }
}

/// Converts a driver's error. A full queue is `ENOMEM` in most drivers and -1 in mlx4's; other
/// errors are kept.
pub(super) fn reason(errno: c_int, capacity: usize) -> PostErrorReason {
    if errno == -1 {
        return PostErrorReason::QueueFull { capacity };
    }
    let errno = errno.saturating_abs();
    if errno == rustix::io::Errno::NOMEM.raw_os_error() {
        PostErrorReason::QueueFull { capacity }
    } else {
        PostErrorReason::Refused { errno }
    }
}

/// Rejects objects of other providers, devices and contexts: a driver would treat them as its own.
#[inline]
pub(super) fn of_same_context(
    qp: NonNull<ibv_qp>,
    context: *mut ibv_context,
    object: &'static str,
) -> Result<(), PostErrorReason> {
    // SAFETY: the queue pair is alive while its owner posts, and its context never changes.
    if unsafe { (*qp.as_ptr()).context } == context {
        Ok(())
    } else {
        Err(PostErrorReason::ForeignObject { object })
    }
}
