//! Queue pairs: handles to a context's queue-pair table, and the code that connects and destroys
//! one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::super::limits::in_range;
use super::unsupported::check_extended;
use super::{CompletionQueue, ProtectionDomain, SharedReceiveQueue, all_taken, not_posted};
use crate::hooks::{accepted, point};
use crate::member_list::Listed;
use crate::provider::queue_pair_options::QueuePairOptions;
use crate::provider::soft::capacities::{MAX_INLINE, MAX_SGE, MAX_WR, exhausted};
use crate::provider::soft::context::core::{Core, remote_of};
use crate::provider::soft::context::initiator::Initiator;
use crate::provider::soft::context::link::{Early, Link};
use crate::provider::soft::context::queue_pair::SoftQueuePair;
use crate::provider::soft::context::receive_queue::ReceiveQueue;
use crate::provider::soft::context::state::State;
use crate::provider::soft::context::waiting::Waiting;
use crate::provider::soft::process::link_message::LinkMessage;
use crate::provider::soft::process::node::domain::Domain;
use crate::provider::soft::reliable::connect::Ready;
use crate::provider::soft::shared::announcements::MAX_QUEUE_PAIRS;
use crate::provider::soft::shared::ring::RingReceiver;
use crate::provider::soft::unreliable::send::UnreliableSends;
use crate::provider::soft::wire::hello::LinkAddress;
use crate::provider::work::{
    Operation, ReceiveList, ReceiveWork, SendWork, Sge, WindowBinding, Work,
};
use crate::types::{
    Gid, ModifyError, PostError, PostErrorReason, QpAttributes, QpNum, QpState, QpType,
    QueuePairCapabilities, ReceiveOrder, RemoteKey, VerbsError, WrId,
};

impl ProtectionDomain {
    pub(crate) fn create_qp(
        &self,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        srq: Option<&SharedReceiveQueue>,
        config: &QueuePairOptions,
    ) -> Result<QueuePair, VerbsError> {
        self.domain.node.check()?;
        check_extended(config)?;
        let call = "create_qp";
        let is_ours = |domain: &Arc<Domain>| Arc::ptr_eq(domain, &self.domain);
        for (ours, object) in [
            (is_ours(&send_cq.domain), "send_cq"),
            (is_ours(&recv_cq.domain), "recv_cq"),
            (srq.is_none_or(|srq| is_ours(&srq.domain)), "srq"),
        ] {
            if !ours {
                return Err(VerbsError::ForeignObject { call, object });
            }
        }
        let capabilities = check_sizes(call, config, srq.is_some())?;
        let number = self
            .domain
            .node
            .allocate_qp_num(&self.domain)
            .ok_or_else(|| exhausted(call, "queue-pair numbers", 1 << 24))?;
        let core = Core {
            index: 0,
            number: QpNum(number),
            qp_type: config.qp_type,
            domain: self.number,
            state: QpState::Reset,
            attributes: QpAttributes::default(),
            send_cq: send_cq.index,
            recv_cq: recv_cq.index,
            srq: srq.map(|srq| srq.index),
            sq_sig_all: config.sq_sig_all,
        };
        let qp = SoftQueuePair {
            core,
            initiator: Initiator::new(config.max_send_wr),
            waiting: Waiting::new(),
            receives: ReceiveQueue::new(capabilities.max_recv_wr, ReceiveOrder::OldestFirst),
            link: Link::Down,
            early: Early::default(),
            listed: Listed::default(),
            established: false,
        };
        let qp_index = self
            .insert(qp)
            .inspect_err(|_| self.domain.node.free_qp_num(number))?;
        self.domain.node.set_qp_index(number, qp_index);
        Ok(QueuePair {
            domain: Arc::clone(&self.domain),
            qp_index,
            number: QpNum(number),
            capabilities,
            is_reliable: config.qp_type == QpType::ReliableConnection,
            is_connected: false,
            is_destroyed: false,
        })
    }

    fn insert(&self, qp: SoftQueuePair) -> Result<u32, VerbsError> {
        let mut state = self.domain.enter()?;
        let State {
            queue_pairs,
            common,
        } = &mut *state;
        if let Some(srq) = qp.core.srq
            && common.shared_receive_queues[srq].domain != self.number
        {
            return Err(VerbsError::ForeignObject {
                call: "create_qp",
                object: "srq",
            });
        }
        if queue_pairs.len() == MAX_QUEUE_PAIRS {
            return Err(exhausted("create_qp", "queue pairs", MAX_QUEUE_PAIRS));
        }
        let qp_index = queue_pairs.insert(qp);
        common.lists.cold.make_room(qp_index as usize + 1);
        Ok(qp_index)
    }
}

/// Checks the sizes of a new queue pair and returns them as its capabilities.
fn check_sizes(
    call: &'static str,
    config: &QueuePairOptions,
    has_srq: bool,
) -> Result<QueuePairCapabilities, VerbsError> {
    let (max_recv_wr, max_recv_sge) = match has_srq {
        true => (0, 0),
        false => (config.max_recv_wr, config.max_recv_sge),
    };
    in_range(call, "max_send_wr", config.max_send_wr, 1, MAX_WR)?;
    in_range(call, "max_recv_wr", max_recv_wr, 0, MAX_WR)?;
    in_range(call, "max_send_sge", config.max_send_sge, 0, MAX_SGE)?;
    in_range(call, "max_recv_sge", max_recv_sge, 0, MAX_SGE)?;
    let inline = config.max_inline_data;
    in_range(call, "max_inline_data", inline, 0, MAX_INLINE)?;
    Ok(QueuePairCapabilities {
        max_send_wr: config.max_send_wr,
        max_recv_wr,
        max_send_sge: config.max_send_sge,
        max_recv_sge,
        max_inline_data: MAX_INLINE,
    })
}

#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) domain: Arc<Domain>,
    pub(crate) qp_index: u32,
    pub(super) number: QpNum,
    capabilities: QueuePairCapabilities,
    /// True if the queue pair has rings.
    is_reliable: bool,
    /// True if the queue pair is counted in `Node::connected`, which keeps the engine ticking.
    is_connected: bool,
    is_destroyed: bool,
}

impl QueuePair {
    pub(crate) fn qp_num(&self) -> QpNum {
        self.number
    }

    pub(crate) fn capabilities(&self) -> QueuePairCapabilities {
        self.capabilities
    }

    pub(crate) fn state(&self) -> Result<QpState, VerbsError> {
        Ok(self.domain.enter()?.queue_pairs[self.qp_index].core.state)
    }

    pub(crate) fn query(&self) -> Result<QpAttributes, VerbsError> {
        let state = self.domain.enter()?;
        let qp = &state.queue_pairs[self.qp_index];
        Ok(qp.core.query(qp.initiator.draining.is_some()))
    }

    pub(crate) fn modify(
        &mut self,
        from: QpState,
        to: QpState,
        attributes: &QpAttributes,
    ) -> Result<(), ModifyError> {
        let gids = self.domain.gids;
        let state = self.domain.enter()?;
        let qp = &state.queue_pairs[self.qp_index];
        qp.core
            .check_values(attributes, gids.count())
            .and_then(|()| qp.core.check_reach(attributes, gids.first()))
            .map_err(|wrong| wrong.at(from, to))?;
        drop(state);
        let ready = match (from, to) {
            (QpState::Init, QpState::Rtr) if self.is_reliable => Some(self.connect(attributes)?),
            _ => None,
        };
        let mut state = self.domain.enter()?;
        state.modify(self.qp_index, (from, to), attributes, ready)?;
        drop(state);
        match to {
            QpState::Reset => self.set_connected(false),
            QpState::Rtr if self.is_reliable => self.set_connected(true),
            QpState::Rts if !self.is_reliable => self.send_unreliable(),
            _ => {}
        }
        Ok(())
    }

    /// Creates this side's ring and announces it to the peer. Runs without the context's lock, because
    /// dialing the peer may take a while.
    fn connect(&self, attributes: &QpAttributes) -> Result<Ready, ModifyError> {
        let fail = |action| move |source| ModifyError::Os { action, source };
        // Address, destination number and PSN are required for this transition, so they are
        // present.
        let (gid, remote) =
            remote_of(attributes).unwrap_or((self.domain.gids.first(), self.number));
        let psn = attributes.rq_psn.unwrap_or_default();
        let sgid_index = attributes.address.map_or(0, |address| address.sgid_index);
        let own = self.domain.gids.get(sgid_index);
        if let Some(own) = own.filter(|own| LinkAddress::of_gid(*own).is_some()) {
            return self.connect_over_tcp(own, gid, remote, psn).map(Ready::Tcp);
        }
        let link = self.domain.node.connect(gid)?;
        let may_be_read = attributes.max_dest_rd_atomic.unwrap_or(0) > 0;
        let receiver = RingReceiver::new(psn.get(), may_be_read).map_err(fail("make a ring"))?;
        let attach = LinkMessage::Attach {
            from: self.number.0,
            to: remote.0,
            context: self.domain.number,
            from_index: self.qp_index,
        };
        self.domain
            .node
            .attach(&self.domain, &link, attach, receiver.fd())
            .map_err(fail("tell the peer of its ring"))?;
        point!(Attach);
        Ok(Ready::Ring(receiver, Arc::clone(&link.peer)))
    }

    fn set_connected(&mut self, connected: bool) {
        if self.is_connected == connected {
            return;
        }
        self.is_connected = connected;
        let node = &*self.domain.node;
        if connected {
            node.connected.fetch_add(1, Ordering::AcqRel);
            // The engine may be waiting without a tick.
            node.wake_engine();
        } else {
            node.connected.fetch_sub(1, Ordering::AcqRel);
        }
    }

    #[inline]
    pub(crate) fn post_send(&mut self, work: &[SendWork]) -> Result<(), PostError> {
        if !self.is_reliable {
            return self.post_send_unreliable(work);
        }
        let mut state = self.domain.enter().map_err(not_posted)?;
        let (qp, common) = state.split(self.qp_index);
        let posted = qp.post_send(common, work);
        state.settle_overrun();
        posted
    }

    /// Posts an inline send of `bytes`. A peer that polls may receive it at once; `ring_doorbell`
    /// notifies any other peer.
    #[inline]
    pub(crate) fn post_inline(
        &mut self,
        wr_id: WrId,
        bytes: &[u8],
        signaled: bool,
    ) -> Result<(), PostError> {
        if accepted!(Sends, 1, Some(self.number.0)) == 0 {
            return all_taken(0, 1, self.capabilities.max_send_wr);
        }
        let mut state = self.domain.enter().map_err(not_posted)?;
        let (qp, common) = state.split(self.qp_index);
        if qp.try_post_inline(common, wr_id, bytes, signaled) {
            return Ok(());
        }
        if !self.is_reliable {
            drop(state);
            return self.post_send_unreliable(&[SendWork::of_bytes(wr_id, bytes, signaled)]);
        }
        let posted = qp.post_inline_in_order(common, wr_id, bytes, signaled);
        state.settle_overrun();
        posted
    }

    /// Notifies the peer of the inline sends posted since the last doorbell, if it does not poll.
    #[inline]
    pub(crate) fn ring_doorbell(&mut self) -> Result<(), PostError> {
        let mut state = self.domain.enter().map_err(not_posted)?;
        let (qp, common) = state.split(self.qp_index);
        qp.ring_doorbell(common);
        Ok(())
    }

    pub(crate) fn post(&mut self, work: &[Work], elements: &[Sge]) -> Result<(), PostError> {
        let mut state = self.domain.enter().map_err(not_posted)?;
        let (qp, common) = state.split(self.qp_index);
        if self.is_reliable {
            let posted = qp.post(common, work, elements);
            state.settle_overrun();
            return posted;
        }
        let posted = UnreliableSends {
            core: &mut qp.core,
            initiator: &mut qp.initiator,
            waiting: &mut qp.waiting,
            memory: &mut common.memory,
        }
        .post(work, elements);
        if matches!(qp.core.state, QpState::Sqe | QpState::Error) {
            qp.flush_sends(common);
        }
        state.finish_turn();
        drop(state);
        self.send_unreliable();
        posted
    }

    pub(crate) fn bind_mw(
        &mut self,
        wr_id: WrId,
        binding: WindowBinding,
        signaled: bool,
    ) -> Result<RemoteKey, PostError> {
        let key = binding.key;
        let work = Work {
            wr_id,
            operation: Operation::BindWindow(binding),
            first_element: 0,
            element_count: 0,
            destination: None,
            signaled,
            fenced: false,
            solicited: false,
            inline: false,
        };
        self.post(&[work], &[]).map(|()| key)
    }

    pub(crate) fn post_recv_lists(
        &self,
        work: &[ReceiveList],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        let mut state = self.domain.enter().map_err(not_posted)?;
        let (qp, common) = state.split(self.qp_index);
        if qp.core.state == QpState::Reset {
            let reason = PostErrorReason::State {
                state: qp.core.state,
            };
            return Err(PostError { taken: 0, reason });
        }
        let capacity = qp.receives.capacity();
        let taken = qp.receives.push_lists(work, elements);
        if qp.core.state == QpState::Error {
            qp.flush_receives(common);
            state.settle_overrun();
        }
        all_taken(taken, work.len(), capacity)
    }

    #[inline]
    pub(crate) fn post_recv(&self, work: &[ReceiveWork]) -> Result<(), PostError> {
        let mut state = self.domain.enter().map_err(not_posted)?;
        let (qp, common) = state.split(self.qp_index);
        if qp.core.state == QpState::Reset {
            let reason = PostErrorReason::State {
                state: qp.core.state,
            };
            return Err(PostError { taken: 0, reason });
        }
        let capacity = qp.receives.capacity();
        let taken = qp.receives.push(work);
        if qp.core.state == QpState::Error {
            qp.flush_receives(common);
            state.settle_overrun();
        }
        all_taken(taken, work.len(), capacity)
    }

    pub(crate) fn destroy(&mut self) {
        if std::mem::replace(&mut self.is_destroyed, true) {
            return;
        }
        // In the child of a fork there is nothing to destroy.
        let Ok(mut state) = self.domain.enter() else {
            return;
        };
        state.destroy(self.qp_index);
        drop(state);
        self.set_connected(false);
        self.domain.node.free_qp_num(self.number.0);
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}

impl QueuePair {
    #[cold]
    pub(crate) fn post_send_unreliable(&mut self, list: &[SendWork]) -> Result<(), PostError> {
        let (work, elements): (Vec<_>, Vec<_>) = list
            .iter()
            .enumerate()
            .map(|(index, send)| {
                let element = Sge {
                    addr: send.addr,
                    len: send.len,
                    local_key: send.local_key,
                };
                (send.general(index), element)
            })
            .unzip();
        self.post(&work, &elements)
    }

    /// Carries out all unreliable sends that can begin, and delivers them: inside one context at a
    /// time.
    pub(crate) fn send_unreliable(&self) {
        let mut has_more = true;
        while has_more {
            // In the child of a fork, nothing is sent.
            let Ok(mut state) = self.domain.enter() else {
                return;
            };
            let (qp, common) = state.split(self.qp_index);
            let (queues, pending) = (&mut common.completion_queues, &mut common.pending);
            let send_cq = qp.core.send_cq;
            let started = UnreliableSends {
                core: &mut qp.core,
                initiator: &mut qp.initiator,
                waiting: &mut qp.waiting,
                memory: &mut common.memory,
            }
            .start(|completion| {
                queues.push(pending, send_cq, completion);
                !queues.has_overrun()
            });
            common.counters.sends += started.messages.len() as u64;
            common.counters.doorbells += u64::from(!started.messages.is_empty());
            if qp.core.state == QpState::Sqe {
                qp.flush_sends(common);
            }
            state.finish_turn();
            drop(state);
            for message in &started.messages {
                message.deliver(&self.domain.node);
            }
            has_more = started.has_more;
        }
    }
}

impl QueuePair {
    /// Joins a multicast group. The LID is ignored: the device has none.
    pub(crate) fn attach_multicast(&mut self, gid: Gid, _lid: u16) -> Result<(), VerbsError> {
        self.domain.node.check()?;
        self.domain.node.groups.join(gid, self.qp_num())
    }

    pub(crate) fn detach_multicast(&mut self, gid: Gid, _lid: u16) -> Result<bool, VerbsError> {
        self.domain.node.check()?;
        Ok(self.domain.node.groups.leave(gid, self.qp_num()))
    }
}
