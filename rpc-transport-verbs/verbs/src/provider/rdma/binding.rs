//! Binds memory windows (`ibv_bind_mw(3)`), and checks the requests that do.

use std::ptr::NonNull;

use rdma_sys::{ibv_bind_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_qp, ibv_send_flags as flag};

use super::super::names;
use super::super::work::WindowBinding;
use super::names::WindowName;
use super::post_results::{of_same_context, reason};
use super::queue_pair::QueuePair;
use crate::types::{PostError, PostErrorReason, RemoteKey, WrId};

pub(super) fn bind_info(
    qp: NonNull<ibv_qp>,
    binding: &WindowBinding,
) -> Result<(WindowName, ibv_mw_bind_info), PostErrorReason> {
    let (object_of_window, object_of_region) = ("the memory window", "the region");
    let names::WindowName::Rdma(window) = binding.window else {
        let object = object_of_window;
        return Err(PostErrorReason::ForeignObject { object });
    };
    let names::RegionName::Rdma(region) = binding.region else {
        let object = object_of_region;
        return Err(PostErrorReason::ForeignObject { object });
    };
    // SAFETY: the request holds window and region until it has completed, and their contexts never
    // change.
    let (of_window, of_region) =
        unsafe { ((*window.0.as_ptr()).context, (*region.0.as_ptr()).context) };
    of_same_context(qp, of_window, object_of_window)?;
    of_same_context(qp, of_region, object_of_region)?;
    // SAFETY: window and region live until the request has completed, the queue pair is alive, and
    // the domain of each never changes.
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
        // SAFETY: the queue pair is alive while `self` holds it; window and region live until the
        // request has completed; all are of one context (checked in `bind_info`).
        let errno = unsafe { ibv_bind_mw(raw.as_ptr(), window.0.as_ptr(), &mut bind) };
        if errno != 0 {
            return Err(refuse(reason(errno, self.capabilities.max_send_wr)));
        }
        // SAFETY: the window is alive, and its key is read under the lock of keys. The library has
        // written the new key.
        Ok(RemoteKey(unsafe { (*window.0.as_ptr()).rkey }))
    }
}
