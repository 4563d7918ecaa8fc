//! A chain of requests in the structs of the header.

use std::fmt;

use rdma_sys::{ibv_send_wr, ibv_sge};

/// The chain in the header's structs, kept to reuse the allocations.
#[derive(Default)]
pub(super) struct RequestLists {
    pub(super) requests: Vec<ibv_send_wr>,
    pub(super) elements: Vec<ibv_sge>,
}

impl fmt::Debug for RequestLists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestLists")
    }
}
