//! Posts requests of any kind and receives of several elements. Plain messages, which are more
//! frequent, have their own fast path in `post`.

use std::os::raw::c_uint;
use std::ptr::{self, NonNull};

use rdma_sys::{
    atomic_t, bind_mw_t, ibv_post_recv, ibv_post_send, ibv_qp, ibv_send_flags as flag, ibv_send_wr,
    ibv_sge, ibv_wr_opcode as opcode, rdma_t, ud_t,
};

use super::super::names;
use super::super::work::{Destination, Operation, ReceiveList, Sge, Work};
use super::binding::bind_info;
use super::known_windows::{Windows, touched_once, touches_window};
use super::post_results::{index_of, of_same_context, reason};
use super::queue_pair::QueuePair;
use super::receives::{post_receive_lists, raw_element};
use super::request_lists::RequestLists;
use crate::types::{PostError, PostErrorReason, QpState, RemoteMemory, RemoteOperation};

impl QueuePair {
    pub(crate) fn post(&mut self, work: &[Work], elements: &[Sge]) -> Result<(), PostError> {
        let refuse = |reason| PostError { taken: 0, reason };
        let raw = self.ready_to_send().map_err(refuse)?;
        let mut taken = 0;
        while taken < work.len() {
            let rest = &work[taken..];
            let list = &rest[..touched_once(rest)];
            self.post_list(raw, list, elements)
                .map_err(|error| PostError {
                    taken: taken + error.taken,
                    ..error
                })?;
            taken += list.len();
        }
        Ok(())
    }

    /// Checks whether sends may be posted: some drivers accept a send in any state and execute it
    /// later.
    pub(super) fn ready_to_send(&self) -> Result<NonNull<ibv_qp>, PostErrorReason> {
        self.domain
            .handle
            .fork_guard
            .check()
            .map_err(PostErrorReason::Forked)?;
        let state = match self.raw {
            Some(raw) => match self.state {
                QpState::Reset | QpState::Init | QpState::Rtr => self.state,
                QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Error => return Ok(raw),
            },
            None => QpState::Reset,
        };
        Err(PostErrorReason::State { state })
    }

    /// Posts one chain with one doorbell. No window occurs twice in it.
    fn post_list(
        &mut self,
        raw: NonNull<ibv_qp>,
        work: &[Work],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        let RequestLists {
            requests,
            elements: raw_elements,
        } = &mut self.lists;
        requests.clear();
        raw_elements.clear();
        raw_elements.extend(elements.iter().map(raw_element));
        let first_element = raw_elements.as_mut_ptr();
        let windows = work
            .iter()
            .any(touches_window)
            .then(|| self.domain.handle.windows.lock());
        let mut wrong = None;
        for work in work {
            let too_long = match work.destination {
                Some(_) => longer_than(self.datagram_len, work.elements(elements)),
                None => None,
            };
            let first = first_element.wrapping_add(work.first_element);
            let known = windows.as_ref();
            match too_long.map_or_else(|| request(raw, work, first, known), Err) {
                Ok(request) => requests.push(request),
                Err(reason) => {
                    wrong = Some(reason);
                    break;
                }
            }
        }
        let count = requests.len();
        let first = requests.as_mut_ptr();
        for index in 1..count {
            // SAFETY: both indexes are inside the vector, which from here on is accessed only
            // through `first`.
            unsafe { (*first.add(index - 1)).next = first.add(index) };
        }
        let mut taken = 0;
        if count > 0 {
            let work = &work[..count];
            let mut refused = ptr::null_mut();
            // SAFETY: the queue pair is alive while `self` holds it, and the chain is complete and
            // null-terminated. The memory that it names belongs to the device until the requests
            // complete (see the module `provider`).
            let errno = unsafe { ibv_post_send(raw.as_ptr(), first, &mut refused) };
            taken = match errno {
                0 => count,
                _ => index_of(first, refused, count),
            };
            if let Some(mut windows) = windows {
                windows.note_taken(&work[..taken]);
            }
            if errno != 0 {
                let capacity = self.capabilities.max_send_wr;
                let reason = match work.get(taken).and_then(misaligned) {
                    Some(named) if errno == rustix::io::Errno::INVAL.raw_os_error() => named,
                    _ => reason(errno, capacity),
                };
                return Err(PostError { taken, reason });
            }
        }
        match wrong {
            Some(reason) => Err(PostError { taken, reason }),
            None => Ok(()),
        }
    }

    pub(crate) fn post_recv_lists(
        &self,
        work: &[ReceiveList],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        let raw = self
            .ready_to_receive()
            .map_err(|reason| PostError { taken: 0, reason })?;
        let capacity = self.capabilities.max_recv_wr;
        let posted = post_receive_lists(work, elements, capacity, |first, refused| {
            // SAFETY: the queue pair is alive while `self` holds it, and `post_receives` passes a
            // complete, null-terminated chain.
            unsafe { ibv_post_recv(raw.as_ptr(), first, refused) }
        });
        self.after_receives(raw);
        posted
    }
}

/// Returns the error of a misaligned atomic. Some drivers reject it when posted, others leave it to
/// the peer's device.
fn misaligned(work: &Work) -> Option<PostErrorReason> {
    match work.operation.remote()? {
        RemoteOperation::CompareAndSwap { remote, .. }
        | RemoteOperation::FetchAndAdd { remote, .. } => {
            let addr = remote.addr;
            (!addr.is_multiple_of(8)).then_some(PostErrorReason::AtomicAlignment { addr })
        }
        _ => None,
    }
}

/// Returns the error of a datagram that exceeds one packet. By the specification such a datagram is
/// dropped silently.
fn longer_than(limit: usize, elements: &[Sge]) -> Option<PostErrorReason> {
    let len = elements.iter().map(|element| element.len as usize).sum();
    (len > limit).then_some(PostErrorReason::DatagramTooLong { len, limit })
}

/// Builds one request of a chain, not yet linked to the next.
fn request(
    qp: NonNull<ibv_qp>,
    work: &Work,
    elements: *mut ibv_sge,
    windows: Option<&Windows<'_>>,
) -> Result<ibv_send_wr, PostErrorReason> {
    let mut flags: c_uint = 0;
    for (is_set, bit) in [
        (work.fenced, flag::IBV_SEND_FENCE),
        (work.signaled, flag::IBV_SEND_SIGNALED),
        (work.solicited, flag::IBV_SEND_SOLICITED),
        (work.inline, flag::IBV_SEND_INLINE),
    ] {
        if is_set {
            flags |= bit.0;
        }
    }
    // SAFETY: a struct of numbers, pointers and unions of them, for which all zeros is a valid
    // value.
    let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
    request.wr_id = work.wr_id.to_raw();
    request.sg_list = elements;
    // Cannot truncate: the count is at most the granted number, which has 32 bits.
    request.num_sge = work.element_count as i32;
    request.send_flags = flags;
    let rdma = |remote: RemoteMemory| rdma_t {
        remote_addr: remote.addr,
        rkey: remote.key.0,
    };
    let data = &mut request.imm_data_invalidated_rkey_union;
    request.opcode = match work.operation {
        Operation::Remote(RemoteOperation::Send) => opcode::IBV_WR_SEND,
        Operation::Remote(RemoteOperation::SendWithImm(imm)) => {
            data.imm_data = imm.to_be();
            opcode::IBV_WR_SEND_WITH_IMM
        }
        Operation::Remote(RemoteOperation::SendWithInvalidate(key)) => {
            data.invalidated_rkey = key.0;
            opcode::IBV_WR_SEND_WITH_INV
        }
        Operation::Remote(RemoteOperation::Write(remote)) => {
            request.wr.rdma = rdma(remote);
            opcode::IBV_WR_RDMA_WRITE
        }
        Operation::Remote(RemoteOperation::WriteWithImm(remote, imm)) => {
            request.wr.rdma = rdma(remote);
            data.imm_data = imm.to_be();
            opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        }
        Operation::Remote(RemoteOperation::Read(remote)) => {
            request.wr.rdma = rdma(remote);
            opcode::IBV_WR_RDMA_READ
        }
        Operation::Remote(RemoteOperation::CompareAndSwap {
            remote,
            expected,
            desired,
        }) => {
            request.wr.atomic = atomic(remote, expected, desired);
            opcode::IBV_WR_ATOMIC_CMP_AND_SWP
        }
        Operation::Remote(RemoteOperation::FetchAndAdd { remote, addend }) => {
            request.wr.atomic = atomic(remote, addend, 0);
            opcode::IBV_WR_ATOMIC_FETCH_AND_ADD
        }
        Operation::LocalInvalidate(key) => {
            if let Some(windows) = windows {
                windows.check_invalidate(key)?;
            }
            data.invalidated_rkey = key.0;
            opcode::IBV_WR_LOCAL_INV
        }
        Operation::BindWindow(binding) => {
            let (window, bind_info) = bind_info(qp, &binding)?;
            if let Some(windows) = windows {
                windows.check_key(window, binding.key)?;
            }
            request.bind_mw_tso_union.bind_mw = bind_mw_t {
                mw: window.0.as_ptr(),
                rkey: binding.key.0,
                bind_info,
            };
            opcode::IBV_WR_BIND_MW
        }
    };
    if let Some(destination) = &work.destination {
        request.wr.ud = datagram(qp, destination)?;
    }
    Ok(request)
}

fn atomic(remote: RemoteMemory, compare_add: u64, swap: u64) -> atomic_t {
    atomic_t {
        remote_addr: remote.addr,
        compare_add,
        swap,
        rkey: remote.key.0,
    }
}

fn datagram(qp: NonNull<ibv_qp>, destination: &Destination) -> Result<ud_t, PostErrorReason> {
    let object = "the address handle";
    let names::AddressName::Rdma(address) = destination.address else {
        return Err(PostErrorReason::ForeignObject { object });
    };
    // SAFETY: the request holds the handle until it has completed, and the handle's context never
    // changes.
    of_same_context(qp, unsafe { (*address.0.as_ptr()).context }, object)?;
    Ok(ud_t {
        ah: address.0.as_ptr(),
        remote_qpn: destination.qp_num.0,
        remote_qkey: destination.qkey,
    })
}
