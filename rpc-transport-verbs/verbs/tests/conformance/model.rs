//! The model of the random walk: the bytes of two ends, the posted receives and the bound windows.
//! From them it derives the completions that have to arrive, with their statuses, in order.
//!
//! In each round, one end posts a list of requests, and all of them complete before the next round.
//! So the model has no notion of time, except for two rules. A request may not send bytes that an
//! earlier READ in the list is still fetching (it is fenced in that case). A later request may not
//! overwrite bytes that an earlier one sends.

use std::collections::VecDeque;
use std::ops::Range;

use verbline_verbs::{
    Access, Binding, CompletionOpcode as O, CompletionStatus as C, MemoryWindow, QpState,
    RemoteKey, RemoteMemory, WindowType, WorkKind, WorkRequest,
};

use super::end::{End, connect, pair, rc};
use super::rounds::{Kind, RECEIVES, Request, Round, WINDOWS};

/// The memory that peers write, read and count in.
const SHARED: Range<usize> = 0..4096;
/// The memory from which messages and WRITEs are sent.
const SOURCES: Range<usize> = 4096..8192;
/// The memory into which READs and atomics store their results.
const RESULTS: Range<usize> = 8192..12_288;
/// The start of the receives, which follow one another.
const RECEIVE_OFFSET: usize = 12_288;
const RECEIVE_LEN: usize = 2048;
const MODELLED: usize = RECEIVE_OFFSET + RECEIVES * RECEIVE_LEN;

/// A type 2 window over all shared memory.
struct Window {
    window: MemoryWindow,
    /// The window's key, while it is bound.
    key: Option<RemoteKey>,
    /// The window's last key.
    last: RemoteKey,
}

/// One end, and the expected contents of its memory.
struct Half {
    // First, so that the windows are dropped first: some devices wait for the windows when they
    // destroy the queue pair that bound them.
    windows: Vec<Window>,
    end: End,
    bytes: Vec<u8>,
    /// The addresses of the posted receives.
    receives: VecDeque<usize>,
    /// The index of the next receive.
    next: usize,
}

/// The expected completion of a request or a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expected {
    kind: WorkKind,
    status: C,
    opcode: Option<O>,
    len: usize,
    imm: Option<u32>,
}

pub(crate) struct Model {
    left: Half,
    right: Half,
    may_be_late: bool,
}

impl Half {
    fn new(end: End) -> Self {
        let mut half = Self {
            windows: Vec::new(),
            end,
            bytes: vec![0; MODELLED],
            receives: VecDeque::new(),
            next: 0,
        };
        half.renew_windows();
        half
    }

    fn renew_windows(&mut self) {
        self.windows = (0..WINDOWS)
            .map(|_| {
                let window = self.end.domain.alloc_mw(WindowType::Type2).unwrap();
                let last = window.key();
                Window {
                    window,
                    key: None,
                    last,
                }
            })
            .collect();
    }

    /// Reserves the next receive in the model and returns its address.
    fn reserve_receive(&mut self) -> usize {
        let start = RECEIVE_OFFSET + self.next * RECEIVE_LEN;
        self.next = (self.next + 1) % RECEIVES;
        self.receives.push_back(start);
        start
    }

    fn post_receives(&mut self, starts: &[usize]) {
        for &start in starts {
            self.end.recv(start..start + RECEIVE_LEN);
        }
    }

    fn binding(&self) -> Binding {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        Binding::new(&self.end.memory, SHARED, access)
    }

    fn number(&self, offset: usize) -> u64 {
        let bytes = self.bytes[offset..offset + 8].try_into();
        u64::from_ne_bytes(bytes.expect("eight bytes"))
    }

    fn set(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Fills the sources with new bytes in each round.
    fn refill(&mut self, value: u8) {
        let bytes: Vec<u8> = SOURCES
            .map(|index| (index as u8).wrapping_mul(31).wrapping_add(value))
            .collect();
        self.end.memory.write(SOURCES.start, &bytes).unwrap();
        self.set(SOURCES.start, &bytes);
    }

    fn check_bytes(&self) {
        let bytes = self.end.bytes(0..MODELLED);
        let first = bytes
            .iter()
            .zip(&self.bytes)
            .position(|(is, has)| is != has);
        assert_eq!(first, None, "the first byte that differs");
    }
}

impl Model {
    /// Creates two connected ends. With `may_be_late`, messages may be posted before their
    /// receives.
    pub(crate) fn new(may_be_late: bool) -> Self {
        let (left, right) = pair(rc());
        Self {
            left: Half::new(left),
            right: Half::new(right),
            may_be_late,
        }
    }

    /// Posts a list, and compares all its effects with the model.
    pub(crate) fn run(&mut self, round: &Round) {
        let (active, peer) = match round.is_left {
            true => (&mut self.left, &mut self.right),
            false => (&mut self.right, &mut self.left),
        };
        active.refill(round.requests[0].value);
        let needed = round.requests.iter().filter(|one| one.takes_receive());
        let missing = needed.count().saturating_sub(peer.receives.len());
        let starts: Vec<_> = (0..missing).map(|_| peer.reserve_receive()).collect();
        let is_late = round.is_late && self.may_be_late;
        if !is_late {
            peer.post_receives(&starts);
        }
        let mut walk = Walk {
            active,
            peer,
            list: Vec::new(),
            sends: Vec::new(),
            receives: Vec::new(),
            has_failed: false,
            sends_results: false,
        };
        for (index, request) in round.requests.iter().enumerate() {
            let is_last = index + 1 == round.requests.len();
            walk.request(*request, is_last);
        }
        let Walk {
            mut list,
            sends,
            mut receives,
            has_failed,
            ..
        } = walk;
        active.end.qp.post(&mut list, &mut drop).unwrap();
        if is_late {
            peer.post_receives(&starts);
        }
        if has_failed {
            let flushed = Expected::failed(WorkKind::Receive, C::WorkRequestFlushed);
            receives.extend(peer.receives.drain(..).map(|_| flushed));
        }
        assert_eq!(seen(&mut active.end, sends.len()), sends);
        assert_eq!(seen(&mut peer.end, receives.len()), receives);
        active.check_bytes();
        peer.check_bytes();
        if has_failed {
            self.begin_again();
        } else {
            let depth = active.end.qp.capabilities().max_send_wr;
            assert_eq!(active.end.qp.send_slots_free(), depth);
        }
    }

    /// Connects both ends again after a failure, with unbound windows.
    fn begin_again(&mut self) {
        let (left, right) = (&mut self.left, &mut self.right);
        for half in [&mut *left, &mut *right] {
            half.end.wait_for_state(QpState::Error);
            // The active end had posted receives too.
            half.end.wait(half.receives.len());
            half.receives.clear();
            half.windows.clear();
            half.end.qp.reclaim(&mut drop).unwrap();
            half.renew_windows();
        }
        let (left, right) = (&mut left.end, &mut right.end);
        connect((&mut left.qp, rc()), (&mut right.qp, rc()));
    }
}

/// Waits for completions, and returns them in the model's form.
fn seen(end: &mut End, count: usize) -> Vec<Expected> {
    let seen = end.wait(count);
    seen.iter()
        .map(|seen| Expected {
            kind: seen.kind,
            status: seen.status,
            opcode: seen.opcode,
            len: match seen.kind {
                WorkKind::Receive => seen.len,
                WorkKind::Send => 0,
            },
            imm: seen.imm,
        })
        .collect()
}

impl Expected {
    fn failed(kind: WorkKind, status: C) -> Self {
        Self {
            kind,
            status,
            opcode: None,
            len: 0,
            imm: None,
        }
    }

    fn sent(opcode: O) -> Self {
        Self {
            status: C::Success,
            opcode: Some(opcode),
            ..Self::failed(WorkKind::Send, C::Success)
        }
    }
}

/// The state of the model while it goes through one list.
struct Walk<'a> {
    active: &'a mut Half,
    peer: &'a mut Half,
    list: Vec<WorkRequest>,
    /// Expected completions of the list.
    sends: Vec<Expected>,
    /// Expected completions at the peer.
    receives: Vec<Expected>,
    has_failed: bool,
    /// True if a request sends a fetched result, so that no later request may fetch.
    sends_results: bool,
}

impl Walk<'_> {
    fn request(&mut self, request: Request, is_last: bool) {
        let kind = match request.kind {
            Kind::Read | Kind::FetchAndAdd | Kind::CompareAndSwap if self.sends_results => {
                Kind::Write
            }
            kind => kind,
        };
        let (work, opcode, status) = self.carry_out(kind, request);
        let limit = self.active.end.qp.capabilities().max_inline_data;
        let can_be_inline = usize::from(request.len) <= limit
            && matches!(opcode, O::Send | O::RdmaWrite)
            // An inline request would copy the bytes when it is posted, before they are fetched.
            && kind != Kind::WriteFetched;
        let work = match request.inline && can_be_inline {
            true => work.inline(),
            false => work,
        };
        let is_signaled = request.signaled || is_last;
        self.list.push(match is_signaled {
            true => work.signaled(),
            false => work,
        });
        match status {
            C::Success if is_signaled => self.sends.push(Expected::sent(opcode)),
            C::Success => {}
            failed => self.sends.push(Expected::failed(WorkKind::Send, failed)),
        }
        self.has_failed |= status != C::Success;
    }

    /// Applies a request to the model's bytes. Returns the work request, its opcode on success, and
    /// its status.
    fn carry_out(&mut self, kind: Kind, request: Request) -> (WorkRequest, O, C) {
        let len = usize::from(request.len);
        let source = Request::place(request.from, len, SOURCES);
        let imm = u32::from(request.value);
        let lives = !self.has_failed;
        let status = |is_permitted: bool| match (lives, is_permitted) {
            (true, true) => C::Success,
            (true, false) => C::RemoteAccess,
            (false, _) => C::WorkRequestFlushed,
        };
        match kind {
            Kind::Send | Kind::SendImm | Kind::SendInvalidate => {
                let elements = self.active.end.at(source.clone());
                let own = usize::from(request.value) % WINDOWS;
                let (work, imm) = match (kind, self.peer.windows[own].key) {
                    (Kind::SendImm, _) => (WorkRequest::send_with_imm(elements, imm), Some(imm)),
                    (Kind::SendInvalidate, Some(key)) => {
                        if lives {
                            self.peer.windows[own].key = None;
                        }
                        (WorkRequest::send_with_invalidate(elements, key), None)
                    }
                    _ => (WorkRequest::send(elements), None),
                };
                if lives {
                    self.receive(source, imm, O::Receive);
                }
                (work, O::Send, status(true))
            }
            Kind::Write | Kind::WriteImm => {
                let to = Request::place(request.to, len, SHARED);
                let (remote, is_permitted) = self.remote(&request, to.start);
                let is_permitted = is_permitted || len == 0;
                let elements = self.active.end.at(source.clone());
                if lives && is_permitted {
                    let bytes = self.active.bytes[source.clone()].to_vec();
                    self.peer.set(to.start, &bytes);
                }
                if kind == Kind::Write {
                    let work = WorkRequest::write(elements, remote);
                    return (work, O::RdmaWrite, status(is_permitted));
                }
                if lives && is_permitted {
                    self.receive(source.start..source.start, Some(imm), O::ReceiveRdmaWithImm);
                    let last = self.receives.last_mut().expect("it was just pushed");
                    last.len = len;
                }
                let work = WorkRequest::write_with_imm(elements, remote, imm);
                (work, O::RdmaWrite, status(is_permitted))
            }
            Kind::WriteFetched => {
                let from = Request::place(request.from, len, RESULTS);
                let to = Request::place(request.to, len, SHARED);
                let (remote, is_permitted) = self.remote(&request, to.start);
                let is_permitted = is_permitted || len == 0;
                if lives && is_permitted {
                    let bytes = self.active.bytes[from.clone()].to_vec();
                    self.peer.set(to.start, &bytes);
                }
                self.sends_results = true;
                let work = WorkRequest::write(self.active.end.at(from), remote).fenced();
                (work, O::RdmaWrite, status(is_permitted))
            }
            Kind::Read => {
                let from = Request::place(request.to, len, SHARED);
                let to = Request::place(request.from, len, RESULTS);
                let (remote, is_permitted) = self.remote(&request, from.start);
                let is_permitted = is_permitted || len == 0;
                if lives && is_permitted {
                    let bytes = self.peer.bytes[from].to_vec();
                    self.active.set(to.start, &bytes);
                }
                let work = WorkRequest::read(self.active.end.at(to), remote);
                (work, O::RdmaRead, status(is_permitted))
            }
            Kind::FetchAndAdd | Kind::CompareAndSwap => self.atomic(kind, request, status),
            Kind::Bind | Kind::Invalidate => self.manage(kind, request, status),
        }
    }

    fn atomic(
        &mut self,
        kind: Kind,
        request: Request,
        status: impl Fn(bool) -> C,
    ) -> (WorkRequest, O, C) {
        let place = Request::place(request.to, 8, SHARED).start & !7;
        let to = Request::place(request.from, 8, RESULTS);
        let (remote, is_permitted) = self.remote(&request, place);
        let was = self.peer.number(place);
        let value = u64::from(request.value) << 30 | 1;
        // Every other comparison succeeds.
        let expected = was.wrapping_add(u64::from(request.value & 1));
        let is = match kind {
            Kind::FetchAndAdd => was.wrapping_add(value),
            _ if was == expected => value,
            _ => was,
        };
        if status(is_permitted) == C::Success {
            self.peer.set(place, &is.to_ne_bytes());
            self.active.set(to.start, &was.to_ne_bytes());
        }
        let result = self.active.end.at(to);
        let (work, opcode) = match kind {
            Kind::FetchAndAdd => {
                let work = WorkRequest::fetch_and_add(result, remote, value);
                (work, O::FetchAndAdd)
            }
            _ => {
                let work = WorkRequest::compare_and_swap(result, remote, expected, value);
                (work, O::CompareAndSwap)
            }
        };
        (work, opcode, status(is_permitted))
    }

    /// Binds an unbound window of this end, or invalidates a bound one.
    fn manage(
        &mut self,
        kind: Kind,
        request: Request,
        status: impl Fn(bool) -> C,
    ) -> (WorkRequest, O, C) {
        let lives = status(true) == C::Success;
        let binding = self.active.binding();
        let own = &mut self.active.windows[usize::from(request.value) % WINDOWS];
        match (kind, own.key) {
            (Kind::Invalidate, Some(key)) => {
                if lives {
                    own.key = None;
                }
                let work = WorkRequest::local_invalidate(key);
                (work, O::LocalInvalidate, status(true))
            }
            (Kind::Invalidate, None) => {
                let work = WorkRequest::read(vec![], self.peer.end.remote(0));
                (work, O::RdmaRead, status(true))
            }
            (_, None) => {
                // The layer chooses a key from what was posted before, but this list has not been
                // posted yet.
                let last = own.last.0;
                let next = RemoteKey(last & !0xff | last.wrapping_add(1) & 0xff);
                if lives {
                    own.key = Some(next);
                    own.last = next;
                }
                let work = WorkRequest::bind_window(&own.window, binding, next);
                (work, O::BindWindow, status(true))
            }
            // The window is already bound: do nothing, with a READ of no bytes.
            (_, Some(_)) => {
                let work = WorkRequest::read(vec![], self.peer.end.remote(0));
                (work, O::RdmaRead, status(true))
            }
        }
    }

    /// Returns a location in the peer's memory, and whether the request may access it.
    fn remote(&self, request: &Request, offset: usize) -> (RemoteMemory, bool) {
        let place = self.peer.end.remote(offset);
        // The specification does not say what a rejected WRITE with immediate does to the receive.
        if request.is_wrong && request.kind != Kind::WriteImm {
            let key = RemoteKey(place.key.0 ^ 1 << (request.value % 32));
            return (RemoteMemory { key, ..place }, false);
        }
        let window = request
            .window
            .map(|one| &self.peer.windows[usize::from(one)]);
        match window.and_then(|window| window.key) {
            Some(key) => (RemoteMemory { key, ..place }, true),
            None => (place, true),
        }
    }

    /// Receives these bytes of this end in the peer's oldest receive.
    fn receive(&mut self, source: Range<usize>, imm: Option<u32>, opcode: O) {
        let start = self.peer.receives.pop_front().expect("enough are posted");
        let bytes = self.active.bytes[source].to_vec();
        self.peer.set(start, &bytes);
        self.receives.push(Expected {
            kind: WorkKind::Receive,
            status: C::Success,
            opcode: Some(opcode),
            len: bytes.len(),
            imm,
        });
    }
}
