//! One side of unreliable queue pairs, UC or UD: a context with one object of each kind, and memory
//! to send from and receive into.

use std::ops::Range;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use verbline_verbs::{
    Access, AddressHandle, AddressVector, AsyncEvent, CompletionChannel, CompletionOpcode,
    CompletionQueue, CompletionStatus, Context, Element, ExposedMemory, LocalKey, ModifyError, Mtu,
    PostErrorReason, ProtectionDomain, Psn, QpAttributes, QpNum, QpState, QpType, QueuePair,
    QueuePairConfig, ReceiveRequest, SharedReceiveQueue, WorkCompletion, WorkKind, WorkRequest,
};

use super::verbs_side::{self, HANG};

/// Length of a side's memory in bytes: the first half to send from, the second to receive into.
pub(crate) const MEMORY_LEN: usize = 64 << 10;
/// The start of the receives, unless a case says otherwise.
pub(crate) const RECEIVE_OFFSET: usize = MEMORY_LEN / 2;
/// Length of the header before a received datagram.
pub(crate) const HEADER_LEN: usize = 40;
pub(crate) const QKEY: u32 = 0x1111_1111;
const PSN: u32 = 0x00ff_fff0;

/// Returns the remote rights that a side grants if it grants any.
pub(crate) fn all_access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::MW_BIND
}

#[derive(Clone, Copy)]
pub(crate) struct Making {
    pub(crate) qp_type: QpType,
    pub(crate) depth: usize,
    pub(crate) srq_wr: usize,
    pub(crate) cq_depth: usize,
    pub(crate) sq_sig_all: bool,
    /// The access flags of the queue pair.
    pub(crate) access: Access,
}

impl Making {
    pub(crate) fn new(qp_type: QpType) -> Self {
        Self {
            qp_type,
            depth: 16,
            srq_wr: 0,
            cq_depth: 256,
            sq_sig_all: false,
            access: Access::REMOTE_WRITE,
        }
    }
}

/// A completion whose request has been claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) kind: WorkKind,
    pub(crate) status: CompletionStatus,
    pub(crate) opcode: Option<CompletionOpcode>,
    pub(crate) len: usize,
    pub(crate) imm: Option<u32>,
    pub(crate) src_qp: Option<QpNum>,
}

impl Seen {
    /// Returns the completion of a successful send.
    pub(crate) fn sent(opcode: CompletionOpcode) -> Self {
        Self {
            kind: WorkKind::Send,
            status: CompletionStatus::Success,
            opcode: Some(opcode),
            len: 0,
            imm: None,
            src_qp: None,
        }
    }

    pub(crate) fn failed(kind: WorkKind, status: CompletionStatus) -> Self {
        Self {
            kind,
            status,
            opcode: None,
            len: 0,
            imm: None,
            src_qp: None,
        }
    }

    pub(crate) fn flushed(kind: WorkKind) -> Self {
        Self::failed(kind, CompletionStatus::WorkRequestFlushed)
    }

    /// Returns the completion of a message received on a connection.
    pub(crate) fn received(len: usize) -> Self {
        Self {
            kind: WorkKind::Receive,
            opcode: Some(CompletionOpcode::Receive),
            len,
            ..Self::sent(CompletionOpcode::Receive)
        }
    }

    /// Returns the completion of a received datagram of this length.
    pub(crate) fn datagram(len: usize, from: &Party) -> Self {
        Self {
            src_qp: Some(from.qp.qp_num()),
            ..Self::received(HEADER_LEN + len)
        }
    }

    pub(crate) fn with_imm(self, imm: u32) -> Self {
        Self {
            imm: Some(imm),
            ..self
        }
    }
}

pub(crate) struct Party {
    pub(crate) context: Context,
    pub(crate) domain: ProtectionDomain,
    pub(crate) channel: CompletionChannel,
    /// For both sends and receives.
    pub(crate) cq: CompletionQueue,
    pub(crate) srq: Option<SharedReceiveQueue>,
    pub(crate) qp: QueuePair,
    pub(crate) memory: ExposedMemory,
    pub(crate) making: Making,
}

impl Party {
    pub(crate) fn new(making: Making) -> Self {
        Self::in_context(verbs_side::open(), making)
    }

    pub(crate) fn in_context(context: Context, making: Making) -> Self {
        let domain = context.alloc_pd().unwrap();
        let channel = context.create_comp_channel().unwrap();
        let cq = context
            .create_cq_with_channel(making.cq_depth, &channel)
            .unwrap();
        let srq = (making.srq_wr > 0).then(|| domain.create_srq(making.srq_wr, 4).unwrap());
        let qp = domain
            .create_qp(QueuePairConfig {
                qp_type: making.qp_type,
                srq: srq.as_ref(),
                max_send_wr: making.depth,
                max_recv_wr: making.depth,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
                sq_sig_all: making.sq_sig_all,
                ..QueuePairConfig::new(&cq, &cq)
            })
            .unwrap();
        let memory = domain.expose(MEMORY_LEN, all_access()).unwrap();
        Self {
            context,
            domain,
            channel,
            cq,
            srq,
            qp,
            memory,
            making,
        }
    }

    pub(crate) fn init(&mut self) {
        let is_datagram = self.making.qp_type == QpType::UnreliableDatagram;
        let attributes = QpAttributes {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(verbs_side::address().port),
            access: (!is_datagram).then_some(self.making.access),
            qkey: is_datagram.then_some(QKEY),
            ..QpAttributes::default()
        };
        self.qp.modify(&attributes).unwrap();
    }

    pub(crate) fn rtr(&mut self, remote: QpNum) {
        self.try_rtr(remote, port_address_vector()).unwrap();
    }

    pub(crate) fn try_rtr(
        &mut self,
        remote: QpNum,
        address: AddressVector,
    ) -> Result<(), ModifyError> {
        let is_connected = self.making.qp_type == QpType::UnreliableConnection;
        self.qp.modify(&QpAttributes {
            state: Some(QpState::Rtr),
            address: is_connected.then_some(address),
            path_mtu: is_connected.then_some(Mtu::Bytes1024),
            dest_qp_num: is_connected.then_some(remote),
            rq_psn: is_connected.then_some(Psn::new(PSN)),
            ..QpAttributes::default()
        })
    }

    pub(crate) fn rts(&mut self) {
        let attributes = QpAttributes {
            state: Some(QpState::Rts),
            sq_psn: Some(Psn::new(PSN)),
            ..QpAttributes::default()
        };
        self.qp.modify(&attributes).unwrap();
    }

    pub(crate) fn go(&mut self, state: QpState) {
        let attributes = QpAttributes {
            state: Some(state),
            ..QpAttributes::default()
        };
        self.qp.modify(&attributes).unwrap();
    }

    /// Returns an address handle for the other queue pairs of this process.
    pub(crate) fn handle(&self) -> AddressHandle {
        self.domain.create_ah(port_address_vector()).unwrap()
    }

    /// Returns a SEND of these bytes, filled with `fill`.
    pub(crate) fn message(&self, range: Range<usize>, fill: u8) -> WorkRequest {
        self.memory
            .write(range.start, &vec![fill; range.len()])
            .unwrap();
        WorkRequest::send(self.memory.element(range).unwrap())
    }

    /// Addresses a request to `to`. Datagrams carry the address; connections do not need it.
    pub(crate) fn aim(&self, request: WorkRequest, to: &Self) -> WorkRequest {
        self.aim_at(request, to.qp.qp_num())
    }

    pub(crate) fn aim_at(&self, request: WorkRequest, to: QpNum) -> WorkRequest {
        if self.making.qp_type == QpType::UnreliableDatagram {
            request.to(&self.handle(), to, QKEY)
        } else {
            request
        }
    }

    /// Returns a message that cannot be read locally, because its key is invalid.
    pub(crate) fn bad_message(&self, to: &Self) -> WorkRequest {
        let key = LocalKey(self.memory.local_key().0 ^ 0x0101);
        // SAFETY: the key is invalid, so the device rejects the element and accesses no memory.
        let bad = unsafe { Element::from_raw(self.at(0), 10, key) };
        self.aim(WorkRequest::send(bad), to)
    }

    /// Returns the address of a byte in the side's memory.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        let address = self.memory.address() as usize + offset;
        NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap()
    }

    /// Returns the expected completion of a message of `len` bytes on this side.
    pub(crate) fn arrived(&self, len: usize, from: &Self) -> Seen {
        if self.making.qp_type == QpType::UnreliableDatagram {
            Seen::datagram(len, from)
        } else {
            Seen::received(len)
        }
    }

    pub(crate) fn post(&mut self, request: WorkRequest) {
        self.try_post(request).unwrap();
    }

    pub(crate) fn try_post(&mut self, request: WorkRequest) -> Result<(), PostErrorReason> {
        let mut list = vec![request];
        self.qp
            .post(&mut list, &mut drop)
            .map_err(|error| error.reason)
    }

    pub(crate) fn post_list(
        &mut self,
        mut list: Vec<WorkRequest>,
    ) -> Result<(), (usize, PostErrorReason)> {
        self.qp
            .post(&mut list, &mut drop)
            .map_err(|error| (error.taken, error.reason))
    }

    /// Posts a receive into these bytes.
    pub(crate) fn receive(&mut self, range: Range<usize>) {
        let request = ReceiveRequest::new(self.memory.element(range).unwrap());
        self.receive_into(request);
    }

    pub(crate) fn receive_into(&mut self, request: ReceiveRequest) {
        let mut list = vec![request];
        match &self.srq {
            Some(srq) => srq.post_recv_elements(&mut list),
            None => self.qp.post_recv_elements(&mut list),
        }
        .unwrap();
    }

    pub(crate) fn poll(&mut self) -> Vec<Seen> {
        let mut completions = Vec::new();
        self.cq.poll(&mut completions, 64).unwrap();
        completions
            .into_iter()
            .map(|completion| self.claim(completion))
            .collect()
    }

    pub(crate) fn claim(&mut self, completion: WorkCompletion) -> Seen {
        assert_eq!(completion.qp_num(), self.qp.qp_num());
        let kind = completion.wr_id().kind().expect("a completion of no kind");
        let seen = Seen {
            kind,
            status: completion.status(),
            opcode: completion.opcode(),
            len: completion.byte_len(),
            imm: completion.imm(),
            src_qp: completion.src_qp(),
        };
        match kind {
            WorkKind::Send => self.qp.complete_send(completion, &mut drop).unwrap(),
            WorkKind::Receive => {
                let claimed = match &self.srq {
                    Some(srq) => srq.claim_elements(completion),
                    None => self.qp.claim_recv_elements(completion),
                };
                claimed.unwrap();
            }
        }
        seen
    }

    pub(crate) fn wait(&mut self, count: usize) -> Vec<Seen> {
        let start = Instant::now();
        let mut seen = Vec::new();
        while seen.len() < count {
            seen.extend(self.poll());
            assert!(
                start.elapsed() < HANG,
                "{} of {count} completions came: {seen:?}",
                seen.len()
            );
            std::thread::yield_now();
        }
        assert_eq!(seen.len(), count, "{seen:?}");
        seen
    }

    pub(crate) fn wait_one(&mut self) -> Seen {
        self.wait(1)[0]
    }

    /// Checks that nothing arrives for a while. If the wait is too short, the test misses a fault,
    /// but it never fails wrongly.
    pub(crate) fn assert_quiet(&mut self) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) {
            assert_eq!(self.poll(), []);
            std::thread::yield_now();
        }
    }

    /// Returns the contents of these bytes.
    pub(crate) fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        self.memory.to_vec(range).unwrap()
    }

    pub(crate) fn state(&self) -> QpState {
        self.qp.state().unwrap()
    }

    pub(crate) fn event(&self) -> AsyncEvent {
        let event = self.context.get_async_event(Some(HANG)).unwrap();
        event.expect("an event")
    }

    pub(crate) fn assert_no_event(&self) {
        let short = Some(Duration::from_millis(30));
        assert_eq!(self.context.get_async_event(short).unwrap(), None);
    }
}

/// Returns the address of this port, to send from the port to itself.
pub(crate) fn port_address_vector() -> AddressVector {
    let address = verbs_side::address();
    AddressVector {
        gid: address.gid,
        lid: address.lid,
        sgid_index: address.gid_index,
        is_global: address.lid == 0,
        port: address.port,
        ..AddressVector::default()
    }
}

/// Creates two sides in one process, in two contexts, in RTS, with nothing posted. UC sides are
/// connected to each other.
pub(crate) fn pair(making: Making) -> (Party, Party) {
    let (mut left, mut right) = (Party::new(making), Party::new(making));
    connect(&mut left, &mut right);
    (left, right)
}

pub(crate) fn connect(left: &mut Party, right: &mut Party) {
    left.init();
    right.init();
    let (left_num, right_num) = (left.qp.qp_num(), right.qp.qp_num());
    left.rtr(right_num);
    right.rtr(left_num);
    left.rts();
    right.rts();
}

/// The types for cases that apply to both.
pub(crate) const TYPES: [QpType; 2] = [QpType::UnreliableConnection, QpType::UnreliableDatagram];

pub(crate) fn sent() -> Seen {
    Seen::sent(CompletionOpcode::Send)
}

/// Returns a message of ten bytes.
pub(crate) fn message(from: &Party, to: &Party, fill: u8) -> WorkRequest {
    from.aim(from.message(0..10, fill), to)
}

/// Sends ten bytes and checks that they arrive.
pub(crate) fn assert_arrives(from: &mut Party, to: &mut Party, fill: u8) {
    to.receive(RECEIVE_OFFSET..RECEIVE_OFFSET + 100);
    let request = message(from, to, fill).signaled();
    from.post(request);
    assert_eq!(from.wait_one(), sent());
    assert_eq!(to.wait_one(), to.arrived(10, from));
}
