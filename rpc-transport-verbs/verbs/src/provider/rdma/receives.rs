//! Posts receives to a queue of either kind.

use std::mem::MaybeUninit;
use std::os::raw::c_int;
use std::ptr;

use rdma_sys::{ibv_recv_wr, ibv_sge};

use super::super::work::{ReceiveList, ReceiveWork, Sge};
use super::post_results::{index_of, reason};
use super::{BATCH, sge};
use crate::types::PostError;

/// Posts receives to a queue with a depth of `capacity`, in chains that are built on the stack;
/// `post` passes one chain to the device.
pub(super) fn post_receives(
    work: &[ReceiveWork],
    capacity: usize,
    mut post: impl FnMut(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
) -> Result<(), PostError> {
    for (batch, chunk) in work.chunks(BATCH).enumerate() {
        let mut elements = [const { MaybeUninit::<ibv_sge>::uninit() }; BATCH];
        let mut requests = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; BATCH];
        // From here until the device has read the chain, the arrays are accessed only through
        // these pointers.
        let element: *mut ibv_sge = elements.as_mut_ptr().cast();
        let first: *mut ibv_recv_wr = requests.as_mut_ptr().cast();
        for (index, work) in chunk.iter().enumerate() {
            let next = if index + 1 == chunk.len() {
                ptr::null_mut()
            } else {
                first.wrapping_add(index + 1)
            };
            // SAFETY: a chunk has at most `BATCH` requests, the length of both arrays.
            unsafe {
                element
                    .add(index)
                    .write(sge(work.addr, work.len, work.local_key));
                first.add(index).write(ibv_recv_wr {
                    wr_id: work.wr_id.to_raw(),
                    next,
                    sg_list: element.add(index),
                    num_sge: 1,
                });
            }
        }
        let mut refused = ptr::null_mut();
        let errno = post(first, &mut refused);
        if errno != 0 {
            return Err(PostError {
                taken: batch * BATCH + index_of(first, refused, chunk.len()),
                reason: reason(errno, capacity),
            });
        }
    }
    Ok(())
}

/// Posts receives of any number of elements to a queue with a depth of `capacity`, as one chain.
pub(super) fn post_receive_lists(
    work: &[ReceiveList],
    elements: &[Sge],
    capacity: usize,
    post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
) -> Result<(), PostError> {
    if work.is_empty() {
        return Ok(());
    }
    let mut raw_elements: Vec<_> = elements.iter().map(raw_element).collect();
    let first_element = raw_elements.as_mut_ptr();
    let mut requests: Vec<_> = work
        .iter()
        .map(|work| ibv_recv_wr {
            wr_id: work.wr_id.to_raw(),
            next: ptr::null_mut(),
            sg_list: first_element.wrapping_add(work.first),
            num_sge: work.count as i32,
        })
        .collect();
    let first = requests.as_mut_ptr();
    for index in 1..requests.len() {
        // SAFETY: both indexes are inside the vector, which from here on is accessed only
        // through `first`.
        unsafe { (*first.add(index - 1)).next = first.add(index) };
    }
    let mut refused = ptr::null_mut();
    let errno = post(first, &mut refused);
    if errno == 0 {
        return Ok(());
    }
    Err(PostError {
        taken: index_of(first, refused, requests.len()),
        reason: reason(errno, capacity),
    })
}

#[inline]
pub(super) fn raw_element(element: &Sge) -> ibv_sge {
    sge(element.addr, element.len, element.local_key)
}
