//! What the library `verbs-shim` uses, which offers libibverbs' functions over the software device:
//! the objects below the safe layer, with memory that the program has already, requests that name it by
//! address, and the program's own request ids.
//!
//! No other crate should use it: any release may change it. Nothing here owns the memory of requests.
//! So what posts or registers is unsafe, with the promise that C programs make.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use crate::provider;
use crate::types::queue_pair_transitions::check_transition;
use crate::types::{
    Access, AddressVector, AsyncEvent, CompletionOpcode, DeviceAttributes, ExtendedConfig, Extras,
    Gid, GidEntry, LocalKey, ModifyError, Mtu, OpenError, PartitionKey, PortAttributes, PostError,
    PostErrorReason, QpAttributes, QpNum, QpState, QpType, QueuePairCapabilities, RemoteKey,
    RemoteMemory, SrqAttributes, SrqNum, VerbsError, WindowType, WrId,
};

/// Returns the rights with these bits, which are libibverbs'.
pub fn access(bits: u32) -> Access {
    Access::from_bits(bits)
}

/// Returns the MTU with this code, which is libibverbs'.
pub fn mtu(code: u32) -> Option<Mtu> {
    Mtu::from_code(code)
}

/// An opened device.
#[derive(Clone, Debug)]
pub struct Context(provider::Context);

impl Context {
    /// Opens a device by its name in this crate.
    ///
    /// # Errors
    ///
    /// As [`crate::Context::open`].
    pub fn open(name: &str) -> Result<Self, OpenError> {
        provider::Context::open(name).map(Self)
    }

    /// Returns the device's attributes.
    pub fn query_device(&self) -> DeviceAttributes {
        self.0.query_device()
    }

    /// Returns a port's attributes.
    ///
    /// # Errors
    ///
    /// If there is no such port.
    pub fn query_port(&self, port: u8) -> Result<PortAttributes, VerbsError> {
        self.0.query_port(port)
    }

    /// Returns a GID of a port.
    ///
    /// # Errors
    ///
    /// If there is no such port, or no such index.
    pub fn query_gid(&self, port: u8, index: u8) -> Result<Gid, VerbsError> {
        self.0.query_gid(port, index)
    }

    /// Returns the GIDs of a port.
    ///
    /// # Errors
    ///
    /// If there is no such port.
    pub fn query_gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        self.0.query_gid_table(port)
    }

    /// Returns a partition key of a port.
    ///
    /// # Errors
    ///
    /// If there is no such port, or no such index.
    pub fn query_pkey(&self, port: u8, index: u16) -> Result<PartitionKey, VerbsError> {
        self.0.query_pkey(port, index)
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    ///
    /// If the device cannot.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        self.0.alloc_pd().map(ProtectionDomain)
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    ///
    /// If the system has no file for it.
    pub fn create_comp_channel(&self) -> Result<CompletionChannel, VerbsError> {
        self.0.create_comp_channel().map(CompletionChannel)
    }

    /// Creates a completion queue.
    ///
    /// # Errors
    ///
    /// If the depth is out of range, or the channel is of another context.
    pub fn create_cq(
        &self,
        depth: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        let cq = self.0.create_cq(depth, channel.map(|channel| &channel.0))?;
        Ok(CompletionQueue(cq, provider::HeldCompletions::default()))
    }

    /// Returns the next asynchronous event; `None` after the timeout, or an interruption.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn get_async_event(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<AsyncEvent>, VerbsError> {
        self.0.get_async_event(timeout)
    }

    /// Interrupts one wait for an event.
    pub fn interrupt_async_events(&self) {
        self.0.interrupt_async_events();
    }
}

/// Pages of the program that peers in shared memory map.
#[derive(Clone, Debug)]
pub struct Pages(Arc<provider::SharedMemory>);

impl Pages {
    /// Turns the pages that contain the bytes into shared memory with the same content.
    ///
    /// # Safety
    ///
    /// The pages are the program's, and are in no other `Pages`. The program neither writes into them
    /// during the call nor unmaps them as long as regions in them are registered.
    ///
    /// # Errors
    ///
    /// If the pages are not mapped, or the system has no memory for the copy.
    pub unsafe fn share(start: NonNull<u8>, len: usize) -> io::Result<Self> {
        // SAFETY: what the caller has promised.
        unsafe { provider::share(start, len) }.map(|memory| Self(Arc::new(memory)))
    }

    /// Returns the first address, and the first after the last.
    pub fn range(&self) -> (usize, usize) {
        let start = self.0.mapping.start().as_ptr().addr();
        (start, start + self.0.mapping.len())
    }

    /// Returns how many there are of this value: regions in the pages, and holders of it.
    pub fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

/// A protection domain.
#[derive(Debug)]
pub struct ProtectionDomain(provider::ProtectionDomain);

impl ProtectionDomain {
    /// Registers memory of the program. `pages`, which contain it, are needed on a device that peers in
    /// shared memory reach.
    ///
    /// # Safety
    ///
    /// The bytes are the program's, readable and writable, and stay mapped as long as the region is
    /// there. They are in `pages`.
    ///
    /// # Errors
    ///
    /// If the rights or the length are not possible.
    pub unsafe fn register(
        &self,
        pages: Option<&Pages>,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, VerbsError> {
        let pages = pages.map(|pages| &pages.0);
        // SAFETY: what the caller has promised.
        unsafe { self.0.register_at(pages, (start, len), access) }.map(MemoryRegion)
    }

    /// Creates a memory window.
    ///
    /// # Errors
    ///
    /// If there are too many.
    pub fn alloc_mw(&self, window_type: WindowType) -> Result<MemoryWindow, VerbsError> {
        self.0.alloc_mw(window_type).map(MemoryWindow)
    }

    /// Creates an address handle.
    ///
    /// # Errors
    ///
    /// If the address cannot be reached by datagrams.
    pub fn create_ah(&self, address: &AddressVector) -> Result<AddressHandle, VerbsError> {
        self.0.create_ah(address).map(AddressHandle)
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// If a size is out of range.
    pub fn create_srq(
        &self,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SharedReceiveQueue, VerbsError> {
        self.0.create_srq(max_wr, max_sge).map(SharedReceiveQueue)
    }

    /// Creates a queue pair of this type. Of the capabilities, those that are granted are in
    /// [`QueuePair::capabilities`].
    ///
    /// # Errors
    ///
    /// If a size is out of range, or an object is of another context.
    pub fn create_qp(
        &self,
        qp_type: QpType,
        (send_cq, recv_cq): (&CompletionQueue, &CompletionQueue),
        srq: Option<&SharedReceiveQueue>,
        sizes: &QueuePairCapabilities,
        sq_sig_all: bool,
    ) -> Result<QueuePair, VerbsError> {
        let config = provider::QueuePairConfig {
            send_cq: &send_cq.0,
            recv_cq: &recv_cq.0,
            srq: srq.map(|srq| &srq.0),
            options: provider::QueuePairOptions {
                qp_type,
                max_send_wr: sizes.max_send_wr,
                max_recv_wr: sizes.max_recv_wr,
                max_send_sge: sizes.max_send_sge,
                max_recv_sge: sizes.max_recv_sge,
                max_inline_data: sizes.max_inline_data,
                sq_sig_all,
                extended: ExtendedConfig::default(),
            },
        };
        let qp = self.0.create_qp(config)?;
        Ok(QueuePair { qp, qp_type })
    }
}

/// A registered region.
#[derive(Debug)]
pub struct MemoryRegion(provider::MemoryRegion);

impl MemoryRegion {
    /// Returns the key for requests of this side.
    pub fn local_key(&self) -> LocalKey {
        self.0.local_key()
    }

    /// Returns the key for peers.
    pub fn remote_key(&self) -> RemoteKey {
        self.0.remote_key()
    }
}

/// A memory window.
#[derive(Debug)]
pub struct MemoryWindow(provider::MemoryWindow);

impl MemoryWindow {
    /// Returns the key that it was created with.
    pub fn first_key(&self) -> RemoteKey {
        self.0.first_key()
    }
}

/// An address handle.
#[derive(Debug)]
pub struct AddressHandle(provider::AddressHandle);

/// A completion channel.
#[derive(Debug)]
pub struct CompletionChannel(provider::CompletionChannel);

impl CompletionChannel {
    /// Returns the number of the next queue that raised an event; `None` after the timeout.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<u32>, VerbsError> {
        self.0.wait(timeout)
    }

    /// Returns the file that is readable when there may be an event.
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.fd()
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct CompletionQueue(provider::CompletionQueue, provider::HeldCompletions);

/// A completion, as the device reports it.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The program's id of the request.
    pub wr_id: u64,
    /// libibverbs' code of the status.
    pub status: u32,
    /// What was done. Says after a failure only whether it was a receive.
    pub opcode: CompletionOpcode,
    /// Bytes that were received.
    pub byte_len: u32,
    /// The immediate or the key that was invalidated, if `has` says so.
    pub data: u32,
    /// The queue pair.
    pub qp_num: QpNum,
    /// The sender of a datagram.
    pub src_qp: u32,
    /// True if `data` is an immediate.
    pub has_immediate: bool,
    /// True if `data` is a key that was invalidated.
    pub has_invalidated: bool,
    /// True if a global routing header precedes the message.
    pub has_route: bool,
}

impl CompletionQueue {
    /// Asks for an event when the next completion arrives.
    ///
    /// # Errors
    ///
    /// If the queue has no channel.
    pub fn arm(&self, solicited_only: bool) -> Result<(), VerbsError> {
        self.0.arm(solicited_only)
    }

    /// Takes the next completion, if there is one.
    ///
    /// # Errors
    ///
    /// If the queue has overrun.
    pub fn poll_one(&mut self) -> Result<Option<Completion>, VerbsError> {
        let Some(found) = self.0.poll_one(&mut self.1)? else {
            return Ok(None);
        };
        let has = |bit| found.extras.0 & bit != 0;
        Ok(Some(Completion {
            wr_id: found.wr_id.to_raw(),
            status: found.status,
            opcode: found.opcode,
            byte_len: found.byte_len,
            data: found.data,
            qp_num: found.qp_num,
            src_qp: found.src_qp,
            has_immediate: has(Extras::IMMEDIATE),
            has_invalidated: has(Extras::INVALIDATED),
            has_route: has(Extras::GLOBAL_ROUTE),
        }))
    }

    /// Changes the depth.
    ///
    /// # Errors
    ///
    /// If the depth is out of range, or less than the completions in the queue.
    pub fn resize(&self, depth: usize) -> Result<(), VerbsError> {
        self.0.resize(depth)
    }

    /// Returns the depth.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Returns the number that events carry.
    pub fn number(&self) -> u32 {
        self.0.number()
    }
}

/// Bytes of this side that a request names.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// The first byte's address.
    pub addr: u64,
    /// The number of bytes.
    pub len: u32,
    /// The key of the region that they are in.
    pub local_key: u32,
}

impl Element {
    fn sge(&self) -> provider::Sge {
        // The device checks it before use. Zero is in no region.
        let addr = std::ptr::with_exposed_provenance_mut(self.addr as usize);
        provider::Sge {
            addr: NonNull::new(addr).unwrap_or(NonNull::dangling()),
            len: self.len,
            local_key: LocalKey(self.local_key),
        }
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedReceiveQueue(provider::SharedReceiveQueue);

impl SharedReceiveQueue {
    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The program leaves the elements' bytes to the device until the receive has completed.
    ///
    /// # Errors
    ///
    /// If the queue is full.
    pub unsafe fn post_recv(&self, wr_id: u64, list: &[Element]) -> Result<(), PostErrorReason> {
        let list: Vec<_> = list.iter().map(Element::sge).collect();
        let posted = match receive(wr_id, &list) {
            Receive::Simple(work) => self.0.post_recv(&[work]),
            Receive::List(work) => self.0.post_recv_lists(&[work], &list),
        };
        posted.map_err(|error| error.reason)
    }

    /// Changes the number of entries.
    ///
    /// # Errors
    ///
    /// If it is out of range.
    pub fn resize(&self, max_wr: usize) -> Result<(), VerbsError> {
        self.0.resize(max_wr)
    }

    /// Asks for an event when fewer receives than this are left.
    ///
    /// # Errors
    ///
    /// If it is out of range.
    pub fn arm_limit(&self, limit: usize) -> Result<(), VerbsError> {
        self.0.arm_limit(limit)
    }

    /// Returns the attributes.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn query(&self) -> Result<SrqAttributes, VerbsError> {
        self.0.query()
    }

    /// Returns the number that events carry.
    pub fn number(&self) -> SrqNum {
        self.0.number()
    }
}

enum Receive {
    Simple(provider::ReceiveWork),
    List(provider::ReceiveList),
}

fn receive(wr_id: u64, list: &[provider::Sge]) -> Receive {
    let wr_id = WrId::from_raw(wr_id);
    match *list {
        [only] => Receive::Simple(provider::ReceiveWork {
            wr_id,
            addr: only.addr,
            len: only.len,
            local_key: only.local_key,
        }),
        _ => Receive::List(provider::ReceiveList {
            wr_id,
            first: 0,
            count: list.len(),
        }),
    }
}

/// A request for the send queue, without its elements.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The program's id.
    pub wr_id: u64,
    /// What to do.
    pub operation: Operation<'a>,
    /// Where a datagram goes: the handle, the queue pair and its Q_Key.
    pub destination: Option<(&'a AddressHandle, QpNum, u32)>,
    /// Generate a completion even on success.
    pub signaled: bool,
    /// Wait for the READs and atomics before it.
    pub fenced: bool,
    /// Raise an event at a peer that waits for solicited ones.
    pub solicited: bool,
    /// Copy the elements while posting, and look at no key.
    pub inline: bool,
}

/// What a request does. The fields are those of `ibv_send_wr`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the names of the verbs, and of the fields of their requests
pub enum Operation<'a> {
    Send,
    SendWithImm(u32),
    SendWithInvalidate(RemoteKey),
    Write(RemoteMemory),
    WriteWithImm(RemoteMemory, u32),
    Read(RemoteMemory),
    CompareAndSwap {
        remote: RemoteMemory,
        compare: u64,
        swap: u64,
    },
    FetchAndAdd {
        remote: RemoteMemory,
        add: u64,
    },
    LocalInvalidate(RemoteKey),
    BindWindow(Binding<'a>),
}

/// The binding of a memory window.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    /// The window.
    pub window: &'a MemoryWindow,
    /// The region that the bytes are in.
    pub region: &'a MemoryRegion,
    /// The first byte's address.
    pub addr: u64,
    /// The number of bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// What peers may do.
    pub access: Access,
    /// The window's new key.
    pub key: RemoteKey,
}

impl Binding<'_> {
    fn raw(&self) -> provider::WindowBinding {
        provider::WindowBinding {
            window: self.window.0.name(),
            region: self.region.0.name(),
            addr: self.addr,
            len: self.len,
            access: self.access,
            key: self.key,
        }
    }
}

impl Operation<'_> {
    fn raw(&self) -> provider::Operation {
        match *self {
            Self::Send => provider::Operation::Send,
            Self::SendWithImm(imm) => provider::Operation::SendWithImm(imm),
            Self::SendWithInvalidate(key) => provider::Operation::SendWithInvalidate(key),
            Self::Write(remote) => provider::Operation::Write(remote),
            Self::WriteWithImm(remote, imm) => provider::Operation::WriteWithImm(remote, imm),
            Self::Read(remote) => provider::Operation::Read(remote),
            Self::CompareAndSwap {
                remote,
                compare,
                swap,
            } => provider::Operation::CompareAndSwap {
                remote,
                expected: compare,
                desired: swap,
            },
            Self::FetchAndAdd { remote, add } => provider::Operation::FetchAndAdd {
                remote,
                addend: add,
            },
            Self::LocalInvalidate(key) => provider::Operation::LocalInvalidate(key),
            Self::BindWindow(ref binding) => provider::Operation::BindWindow(binding.raw()),
        }
    }
}

/// A queue pair. It does not count what is in its send queue: the caller does.
#[derive(Debug)]
pub struct QueuePair {
    qp: provider::QueuePair,
    qp_type: QpType,
}

impl QueuePair {
    /// Returns the number.
    pub fn qp_num(&self) -> QpNum {
        self.qp.qp_num()
    }

    /// Returns the type.
    pub fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Returns what was granted.
    pub fn capabilities(&self) -> QueuePairCapabilities {
        self.qp.capabilities()
    }

    /// Returns the state.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn state(&self) -> Result<QpState, VerbsError> {
        self.qp.state()
    }

    /// Returns the attributes.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn query(&self) -> Result<QpAttributes, VerbsError> {
        self.qp.query()
    }

    /// Changes attributes, and returns the state that the queue pair is in now.
    ///
    /// # Errors
    ///
    /// If the transition does not exist, or an attribute is missing, superfluous or out of range; or if
    /// the peer cannot be reached.
    pub fn modify(&mut self, attributes: &QpAttributes) -> Result<QpState, ModifyError> {
        let from = self.qp.state().map_err(|source| ModifyError::Os {
            action: "tell its state",
            source: io::Error::other(source),
        })?;
        let (claimed, wanted) = (attributes.current_state, attributes.state);
        let to = check_transition(self.qp_type, from, claimed, wanted, attributes.mask())?;
        self.qp.modify(from, to, attributes)?;
        Ok(to)
    }

    /// Posts a request.
    ///
    /// # Safety
    ///
    /// The program leaves the elements' bytes to the device until the request has completed, and the
    /// objects that the request names live as long. An entry of the send queue is free, and elements,
    /// inline bytes and operation are within what the queue pair and its type permit.
    ///
    /// # Errors
    ///
    /// Why the request was not posted.
    pub unsafe fn post(
        &mut self,
        request: &Request<'_>,
        list: &[Element],
    ) -> Result<(), PostErrorReason> {
        let wr_id = WrId::from_raw(request.wr_id);
        let is_reliable = self.qp_type == QpType::ReliableConnection;
        let posted: Result<(), PostError> = match (&request.operation, list) {
            (Operation::Send, [only]) if is_reliable && !request.fenced => {
                let sge = only.sge();
                self.qp.post_send(&[provider::SendWork {
                    wr_id,
                    addr: sge.addr,
                    len: sge.len,
                    local_key: sge.local_key,
                    signaled: request.signaled,
                    inline: request.inline,
                    solicited: request.solicited,
                }])
            }
            _ => {
                let list: Vec<_> = list.iter().map(Element::sge).collect();
                let destination =
                    request
                        .destination
                        .map(|(handle, qp_num, qkey)| provider::Destination {
                            address: handle.0.name(),
                            qp_num,
                            qkey,
                        });
                let work = provider::Work {
                    wr_id,
                    operation: request.operation.raw(),
                    first_element: 0,
                    element_count: list.len(),
                    destination,
                    signaled: request.signaled,
                    fenced: request.fenced,
                    solicited: request.solicited,
                    inline: request.inline,
                };
                self.qp.post(&[work], &list)
            }
        };
        posted.map_err(|error| error.reason)
    }

    /// Posts a receive.
    ///
    /// # Safety
    ///
    /// The program leaves the elements' bytes to the device until the receive has completed.
    ///
    /// # Errors
    ///
    /// If the queue is full, or the queue pair is in RESET.
    pub unsafe fn post_recv(&self, wr_id: u64, list: &[Element]) -> Result<(), PostErrorReason> {
        let list: Vec<_> = list.iter().map(Element::sge).collect();
        let posted = match receive(wr_id, &list) {
            Receive::Simple(work) => self.qp.post_recv(&[work]),
            Receive::List(work) => self.qp.post_recv_lists(&[work], &list),
        };
        posted.map_err(|error| error.reason)
    }

    /// Joins a multicast group.
    ///
    /// # Errors
    ///
    /// If there are too many groups or members.
    pub fn attach_multicast(&mut self, gid: Gid, lid: u16) -> Result<(), VerbsError> {
        self.qp.attach_multicast(gid, lid)
    }

    /// Leaves a multicast group. Returns false if the queue pair was not in it.
    ///
    /// # Errors
    ///
    /// If the device fails.
    pub fn detach_multicast(&mut self, gid: Gid, lid: u16) -> Result<bool, VerbsError> {
        self.qp.detach_multicast(gid, lid)
    }
}
