//! Inline sends that wait for the doorbell: prepared work requests, of which a send changes only
//! the id, the flags, the length and the bytes.

use std::fmt;
use std::ptr::{self, NonNull};

use rdma_sys::{ibv_post_send, ibv_qp, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};

use super::post_results::{index_of, reason};
use crate::provider::work::InlineError;
use crate::types::WrId;

/// Maximum number of sends that wait for one doorbell.
const CHAIN_LEN: usize = 8;

/// The chain of one queue pair.
pub(super) struct InlineChain {
    requests: Box<[ibv_send_wr]>,
    elements: Box<[ibv_sge]>,
    /// The bytes of each request, `stride` apart.
    bytes: Box<[u8]>,
    stride: usize,
    /// Number of requests that wait.
    len: usize,
    /// Depth of the send queue, for errors.
    capacity: usize,
}

// SAFETY: the requests contain pointers only to the chain's own boxed arrays, which do not move
// with it and live as long as it does. They are used only by `post`, which has exclusive access.
unsafe impl Send for InlineChain {}
// SAFETY: a shared chain permits no access to the requests.
unsafe impl Sync for InlineChain {}

impl InlineChain {
    /// Prepares the chain of a queue pair that sends at most `max_inline` bytes inline.
    pub(super) fn new(max_inline: usize, capacity: usize) -> Self {
        let element = ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        Self {
            requests: (0..CHAIN_LEN).map(|_| prepared_request()).collect(),
            elements: vec![element; CHAIN_LEN].into_boxed_slice(),
            bytes: vec![0; CHAIN_LEN * max_inline].into_boxed_slice(),
            stride: max_inline,
            len: 0,
            capacity,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == CHAIN_LEN
    }

    /// Appends a send. The chain is not full, and `bytes` are at most as long as the queue pair
    /// sends inline.
    #[inline]
    pub(super) fn push(&mut self, wr_id: WrId, bytes: &[u8], signaled: bool) {
        let index = self.len;
        let copy = &mut self.bytes[index * self.stride..][..bytes.len()];
        copy.copy_from_slice(bytes);
        let element = &mut self.elements[index];
        element.addr = copy.as_ptr().addr() as u64;
        // Cannot truncate: inline sends are short.
        element.length = bytes.len() as u32;
        let mut flags = ibv_send_flags::IBV_SEND_INLINE.0;
        if signaled {
            flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        let request = &mut self.requests[index];
        request.wr_id = wr_id.to_raw();
        request.send_flags = flags;
        self.len += 1;
    }

    /// Removes all sends and returns their number.
    pub(super) fn clear(&mut self) -> usize {
        std::mem::take(&mut self.len)
    }

    /// Posts the waiting sends, of which there is at least one, with one doorbell.
    ///
    /// # Safety
    ///
    /// `raw` must be a queue pair that is alive, with the `max_inline` that the chain was made for.
    pub(super) unsafe fn post(&mut self, raw: NonNull<ibv_qp>) -> Result<(), InlineError> {
        let count = self.clear();
        // From here until the device has read the chain, the arrays are accessed only through
        // these pointers.
        let element: *mut ibv_sge = self.elements.as_mut_ptr();
        let first: *mut ibv_send_wr = self.requests.as_mut_ptr();
        for index in 0..count {
            let next = if index + 1 == count {
                ptr::null_mut()
            } else {
                first.wrapping_add(index + 1)
            };
            // SAFETY: both arrays have `CHAIN_LEN` elements, and `count` is at most that.
            unsafe {
                (*first.add(index)).sg_list = element.add(index);
                (*first.add(index)).next = next;
            }
        }
        let mut refused = ptr::null_mut();
        // SAFETY: the caller guarantees that the queue pair is alive, and the chain is complete and
        // null-terminated. The device reads its bytes, which are inline, only during the call.
        let errno = unsafe { ibv_post_send(raw.as_ptr(), first, &mut refused) };
        if errno == 0 {
            return Ok(());
        }
        Err(InlineError {
            rejected: count - index_of(first, refused, count),
            reason: reason(errno, self.capacity),
        })
    }
}

/// Returns a plain send of one element.
fn prepared_request() -> ibv_send_wr {
    // SAFETY: a struct of numbers, pointers and unions of them, for which all zeros is a valid
    // value. The unions stay zero: a plain send has no immediate, remote address or window.
    let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
    request.num_sge = 1;
    request.opcode = ibv_wr_opcode::IBV_WR_SEND;
    request
}

impl fmt::Debug for InlineChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InlineChain({})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::raw::c_int;

    use rdma_sys::ibv_context;

    use super::*;
    use crate::types::PostErrorReason;

    const MAX_INLINE: usize = 16;
    const EINVAL: c_int = 22;

    /// One request as the driver saw it: its id, whether it is signaled, and its bytes.
    type Seen = (u64, bool, Vec<u8>);

    thread_local! {
        static DOORBELLS: RefCell<Vec<Vec<Seen>>> = const { RefCell::new(Vec::new()) };
        /// The id of the request that the driver rejects.
        static REJECTED: RefCell<Option<u64>> = const { RefCell::new(None) };
    }

    /// A driver that records the chains.
    ///
    /// # Safety
    ///
    /// As for `ibv_post_send`: `first` is a chain that ends with null, its requests and their
    /// elements are alive and describe initialized bytes, and `refused` can be written, all until
    /// this returns.
    unsafe extern "C" fn record(
        _: *mut ibv_qp,
        first: *mut ibv_send_wr,
        refused: *mut *mut ibv_send_wr,
    ) -> c_int {
        let mut chain = Vec::new();
        let mut request = first;
        let mut returned = 0;
        while !request.is_null() {
            // SAFETY: the chain under test is complete, and its memory alive during the call.
            unsafe {
                let raw = &*request;
                if REJECTED.with_borrow(|id| *id == Some(raw.wr_id)) {
                    refused.write(request);
                    returned = EINVAL;
                    break;
                }
                assert_eq!((raw.num_sge, raw.opcode), (1, ibv_wr_opcode::IBV_WR_SEND));
                let flags = raw.send_flags;
                assert_ne!(flags & ibv_send_flags::IBV_SEND_INLINE.0, 0);
                let element = &*raw.sg_list;
                let bytes = ptr::with_exposed_provenance::<u8>(element.addr as usize);
                let bytes = std::slice::from_raw_parts(bytes, element.length as usize);
                let signaled = flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0;
                chain.push((raw.wr_id, signaled, bytes.to_vec()));
                request = raw.next;
            }
        }
        DOORBELLS.with_borrow_mut(|doorbells| doorbells.push(chain));
        returned
    }

    /// Posts the chain to a queue pair of the recording driver. Returns the requests of the
    /// doorbell.
    fn post(chain: &mut InlineChain) -> (Vec<Seen>, Result<(), InlineError>) {
        // SAFETY: plain structs of numbers, pointers and optional functions, for which all zeros is
        // a valid value.
        let (mut context, mut qp) = unsafe { std::mem::zeroed::<(ibv_context, ibv_qp)>() };
        context.ops.post_send = Some(record);
        qp.context = &mut context;
        // SAFETY: both structs live until the call returns, and the driver uses nothing else.
        let posted = unsafe { chain.post(NonNull::from(&mut qp)) };
        let seen = DOORBELLS.with_borrow_mut(Vec::pop).expect("it was rung");
        (seen, posted)
    }

    #[test]
    fn requests_wait_for_one_doorbell_and_are_patched_each_time() {
        let mut chain = InlineChain::new(MAX_INLINE, 32);
        for round in 0..3 {
            assert!(chain.is_empty());
            let mut expected = Vec::new();
            for number in 0..CHAIN_LEN - round {
                let id = (round * 100 + number) as u64;
                let (signaled, bytes) = (number % 2 == round % 2, vec![id as u8; number + round]);
                chain.push(WrId::from_raw(id), &bytes, signaled);
                expected.push((id, signaled, bytes));
            }
            assert_eq!(chain.is_full(), round == 0);
            let (seen, posted) = post(&mut chain);
            assert!(posted.is_ok());
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn rejected_requests_are_counted_and_forgotten() {
        let mut chain = InlineChain::new(MAX_INLINE, 32);
        for id in 0..5 {
            chain.push(WrId::from_raw(id), b"bytes", false);
        }
        REJECTED.set(Some(3));
        let (seen, posted) = post(&mut chain);
        REJECTED.set(None);
        let error = posted.unwrap_err();
        assert_eq!((seen.len(), error.rejected), (3, 2));
        assert_eq!(error.reason, PostErrorReason::Refused { errno: EINVAL });
        assert!(chain.is_empty());
        chain.push(WrId::from_raw(9), b"next", true);
        assert_eq!(post(&mut chain).0, [(9, true, b"next".to_vec())]);
    }
}
