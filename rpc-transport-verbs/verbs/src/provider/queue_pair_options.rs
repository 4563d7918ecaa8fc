//! The parameters of a new queue pair, without the objects that it is connected to.

use crate::types::{ExtendedConfig, QpType};

/// The type, sizes and flags of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePairOptions {
    pub(crate) qp_type: QpType,
    pub(crate) max_send_wr: usize,
    pub(crate) max_recv_wr: usize,
    pub(crate) max_send_sge: usize,
    pub(crate) max_recv_sge: usize,
    pub(crate) max_inline_data: usize,
    pub(crate) sq_sig_all: bool,
    pub(crate) extended: ExtendedConfig,
}
