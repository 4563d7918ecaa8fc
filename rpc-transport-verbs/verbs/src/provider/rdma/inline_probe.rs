//! Finds the longest message that a device sends inline, which no call reports.

use std::ptr;
use std::sync::Arc;

use rdma_sys::{ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type};

use super::completion_queue::CompletionQueue;
use super::handle::Handle;
use super::log_leak;
use super::memory::ProtectionDomain;

/// Inline lengths to try, since no call reports what a device supports. The layers above never
/// request more, and a larger length would enlarge every send queue entry.
const INLINE_LENGTHS: [u32; 5] = [512, 256, 128, 64, 32];

/// Finds the longest inline message by trying: it creates and destroys a queue pair for each length
/// until one is granted. Returns 0 if none is, or if no queue can be created.
pub(super) fn probe_inline(handle: &Arc<Handle>) -> usize {
    let (Ok(domain), Ok(queue)) = (
        ProtectionDomain::alloc(handle),
        CompletionQueue::create(handle, 1, None),
    ) else {
        return 0;
    };
    let granted = INLINE_LENGTHS.into_iter().find_map(|length| {
        let mut wanted = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            srq: ptr::null_mut(),
            cap: ibv_qp_cap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: length,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: the domain and the queue are alive until the end of this function, and of this
        // context.
        let raw = unsafe { (handle.library.ibv_create_qp)(domain.raw(), &mut wanted) };
        if raw.is_null() {
            return None;
        }
        // SAFETY: the queue pair was created above, and nothing else uses it.
        let returned = unsafe { (handle.library.ibv_destroy_qp)(raw) };
        log_leak("destroy_qp", returned);
        Some(wanted.cap.max_inline_data as usize)
    });
    granted.unwrap_or(0)
}
