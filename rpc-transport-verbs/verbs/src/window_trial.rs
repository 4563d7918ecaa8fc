//! Tries whether a device's memory windows protect memory from peers.
//!
//! A device that announces windows may have none: the kernel's driver sets the flag, and the library's
//! driver does not allocate them (bnxt_re), or only newer or older ones do (hns). Others bind windows
//! and do not keep peers to them. So nothing is believed: queue pairs of one context are connected to
//! each other, and each kind of READ that has to be rejected is posted once, beside one that has to
//! succeed.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use super::address::PortAddress;
use super::completion_queue::CompletionQueue;
use super::context::Context;
use super::exposed_memory::ExposedMemory;
use super::memory_window::{Binding, MemoryWindow};
use super::protection_domain::ProtectionDomain;
use super::queue_pair::{QueuePair, QueuePairConfig};
use super::types::access::Access;
use super::types::keys::RemoteMemory;
use super::types::queue_pair_attributes::{Psn, RemoteEndpoint, RtrAttributes, RtsAttributes};
use super::types::window_type::WindowType;
use super::types::work_completion::CompletionStatus;
use super::work_request::WorkRequest;

/// Bytes of the window, which has as many bytes of its region before and after it.
const WINDOW_LEN: usize = 4096;

/// Bytes of a READ.
const READ_LEN: usize = 64;

/// The byte of which the region is full.
const FILL: u8 = 0xa7;

/// Time that a request has: more than a device needs to give up an unanswered one.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why the windows of a device are not used.
#[derive(Debug, thiserror::Error)]
pub enum WindowTrialError {
    /// The device does not announce what is needed, or is known not to keep it. Nothing was tried.
    #[error("{0}")]
    Unsuitable(&'static str),
    /// The device gives none.
    #[error("the device announces memory windows of type 2 and gives none ({0})")]
    None(#[source] Box<dyn Error + Send + Sync>),
    /// Something else was refused, so that it is not known.
    #[error("the device's memory windows could not be tried ({0})")]
    Untried(#[source] Box<dyn Error + Send + Sync>),
    /// A request that has to succeed did not.
    #[error("the device's memory windows do not work: {what} ended with {status}")]
    Fails {
        /// The request.
        what: &'static str,
        /// Its status.
        status: CompletionStatus,
    },
    /// A request did not complete.
    #[error("the device's memory windows do not work: {0} does not complete")]
    Endless(&'static str),
    /// A READ that has to be rejected was not.
    #[error("the device lets a peer read {0}")]
    Open(&'static str),
}

/// A READ that has to be rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forbidden {
    Before,
    After,
    OtherQueuePair,
    Invalidated,
}

impl Forbidden {
    const ALL: [Self; 4] = [
        Self::Before,
        Self::After,
        Self::OtherQueuePair,
        Self::Invalidated,
    ];

    fn what(self) -> &'static str {
        match self {
            Self::Before => "in front of a memory window",
            Self::After => "behind a memory window",
            Self::OtherQueuePair => "through a memory window of another queue pair",
            Self::Invalidated => "through a memory window whose key was invalidated",
        }
    }
}

impl Context {
    /// Returns why memory windows of type 2 do not protect memory from peers that are not trusted, if
    /// they do not. `from` is an address of the device.
    ///
    /// The software device is not tried: the conformance suite is.
    #[doc(hidden)]
    pub fn why_windows_do_not_protect(&self, from: &PortAddress) -> Option<WindowTrialError> {
        if let Some(why) = self.raw.why_windows_do_not_protect() {
            return Some(WindowTrialError::Unsuitable(why));
        }
        if !self.raw.has_unknown_windows() {
            return None;
        }
        self.try_windows(from).err()
    }

    /// Tries whether memory windows of type 2 protect memory from peers. Takes some milliseconds.
    ///
    /// # Errors
    ///
    /// [`WindowTrialError`] says what is wrong with them.
    #[doc(hidden)]
    pub fn try_windows(&self, from: &PortAddress) -> Result<(), WindowTrialError> {
        for forbidden in Forbidden::ALL {
            // A READ that is rejected ends its queue pairs.
            Pair::new(self, from)?.attempt(self, from, forbidden)?;
        }
        Ok(())
    }
}

/// Two queue pairs that are connected to each other, and a window of the first.
struct Pair {
    // In the order in which they have to be destroyed.
    target: QueuePair,
    reader: QueuePair,
    completions: CompletionQueue,
    window: MemoryWindow,
    region: ExposedMemory,
    destination: ExposedMemory,
    domain: ProtectionDomain,
}

impl Pair {
    fn new(context: &Context, from: &PortAddress) -> Result<Self, WindowTrialError> {
        let domain = context.alloc_pd().map_err(untried)?;
        Self::of(context, &domain, from)
    }

    fn of(
        context: &Context,
        domain: &ProtectionDomain,
        from: &PortAddress,
    ) -> Result<Self, WindowTrialError> {
        let window = domain
            .alloc_mw(WindowType::Type2)
            .map_err(|error| WindowTrialError::None(error.into()))?;
        let bindable = Access::LOCAL_WRITE | Access::MW_BIND;
        let region = domain.expose(3 * WINDOW_LEN, bindable).map_err(untried)?;
        let filled = region.write(0, &[FILL; 3 * WINDOW_LEN]);
        filled.map_err(untried)?;
        let destination = domain.expose(READ_LEN, Access::LOCAL_WRITE);
        let completions = context.create_cq(8).map_err(untried)?;
        let create = || domain.create_qp(QueuePairConfig::new(&completions, &completions));
        let (mut target, mut reader) = (create().map_err(untried)?, create().map_err(untried)?);
        for queue_pair in [&mut target, &mut reader] {
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
            queue_pair.to_init(from.port, access).map_err(untried)?;
        }
        connect(&mut target, &reader, from)?;
        connect(&mut reader, &target, from)?;
        ready_to_send(&mut target)?;
        ready_to_send(&mut reader)?;
        Ok(Self {
            target,
            reader,
            completions,
            window,
            region,
            destination: destination.map_err(untried)?,
            domain: domain.clone(),
        })
    }

    /// Reads what may be read, and then what may not.
    fn attempt(
        mut self,
        context: &Context,
        from: &PortAddress,
        forbidden: Forbidden,
    ) -> Result<(), WindowTrialError> {
        let range = WINDOW_LEN..2 * WINDOW_LEN;
        let binding = Binding::new(&self.region, range, Access::REMOTE_READ);
        let key = self.window.next_key();
        let remote = binding.remote(key);
        let bind = WorkRequest::bind_window(&self.window, binding, key);
        succeeds(&mut self.target, &mut self.completions, bind, "a binding")?;
        let request = self.read(remote)?;
        succeeds(&mut self.reader, &mut self.completions, request, "a READ")?;
        if self.destination.to_vec(0..READ_LEN).map_err(untried)? != [FILL; READ_LEN] {
            return Err(WindowTrialError::Fails {
                what: "a READ of other bytes",
                status: CompletionStatus::Success,
            });
        }
        let status = match forbidden {
            Forbidden::Before => {
                let addr = remote.addr - READ_LEN as u64;
                let request = self.read(RemoteMemory { addr, ..remote })?;
                run(&mut self.reader, &mut self.completions, request, "a READ")?
            }
            Forbidden::After => {
                let request = self.read(remote.offset(WINDOW_LEN as u64))?;
                run(&mut self.reader, &mut self.completions, request, "a READ")?
            }
            Forbidden::Invalidated => {
                let request = WorkRequest::local_invalidate(key);
                let what = "an invalidation";
                succeeds(&mut self.target, &mut self.completions, request, what)?;
                let request = self.read(remote)?;
                run(&mut self.reader, &mut self.completions, request, "a READ")?
            }
            Forbidden::OtherQueuePair => {
                let mut other = Self::of(context, &self.domain, from)?;
                let request = other.read(remote)?;
                run(&mut other.reader, &mut other.completions, request, "a READ")?
            }
        };
        match status {
            CompletionStatus::RemoteAccess
            | CompletionStatus::RemoteInvalidRequest
            | CompletionStatus::RemoteOperation => Ok(()),
            CompletionStatus::Success => Err(WindowTrialError::Open(forbidden.what())),
            status => Err(WindowTrialError::Fails {
                what: "a READ that has to be rejected",
                status,
            }),
        }
    }

    fn read(&self, from: RemoteMemory) -> Result<WorkRequest, WindowTrialError> {
        let element = self.destination.element(0..READ_LEN).map_err(untried)?;
        Ok(WorkRequest::read(element, from))
    }
}

fn connect(
    queue_pair: &mut QueuePair,
    peer: &QueuePair,
    from: &PortAddress,
) -> Result<(), WindowTrialError> {
    let remote = RemoteEndpoint {
        gid: from.gid,
        lid: from.lid,
        qp_num: peer.qp_num(),
        psn: Psn::new(0),
    };
    let attributes = RtrAttributes {
        max_dest_rd_atomic: 1,
        sgid_index: from.gid_index,
        path_mtu: from.mtu,
        ..RtrAttributes::new(remote)
    };
    queue_pair.to_rtr(attributes).map_err(untried)
}

fn ready_to_send(queue_pair: &mut QueuePair) -> Result<(), WindowTrialError> {
    let attributes = RtsAttributes {
        max_rd_atomic: 1,
        ..RtsAttributes::new(Psn::new(0))
    };
    queue_pair.to_rts(attributes).map_err(untried)
}

fn succeeds(
    queue_pair: &mut QueuePair,
    completions: &mut CompletionQueue,
    request: WorkRequest,
    what: &'static str,
) -> Result<(), WindowTrialError> {
    match run(queue_pair, completions, request, what)? {
        CompletionStatus::Success => Ok(()),
        status => Err(WindowTrialError::Fails { what, status }),
    }
}

/// Posts a request, and waits for its completion.
fn run(
    queue_pair: &mut QueuePair,
    completions: &mut CompletionQueue,
    request: WorkRequest,
    what: &'static str,
) -> Result<CompletionStatus, WindowTrialError> {
    let posted = queue_pair.post_one(request.signaled());
    posted.map_err(|(_, reason)| untried(reason))?;
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(completion) = completions.poll_one().map_err(untried)? {
            let status = completion.status();
            let claimed = queue_pair.complete_send(completion, &mut drop);
            claimed.map_err(untried)?;
            return Ok(status);
        }
        thread::yield_now();
    }
    Err(WindowTrialError::Endless(what))
}

fn untried(error: impl Error + Send + Sync + 'static) -> WindowTrialError {
    WindowTrialError::Untried(Box::new(error))
}
