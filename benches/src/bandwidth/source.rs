//! The other side of raw verbs: a process with memory that its peer reads, and with receives for
//! SENDs. It polls all the time, since a device in software may need that to answer READs.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use rpc_transport_verbs::verbs::{
    Access, AddressWish, CompletionQueue, Context, ExposedMemory, PortAddress, Psn, QueuePair,
    QueuePairConfig, RemoteEndpoint, RtrAttributes, RtsAttributes, Slot, WorkCompletion, WorkKind,
};
use serde::{Deserialize, Serialize};

use super::pattern::word_of_each_line;
use crate::raw::{endpoint_of, line_of};
use crate::{Outcome, child, cores};

/// Length in bytes of a SEND.
pub(super) const MESSAGE_LEN: usize = 4096;

/// SENDs that the peer may have in flight: half of the receives.
pub(super) const SEND_WINDOW: usize = 128;

/// One acknowledgement is sent for this many SENDs.
pub(super) const ACKNOWLEDGED_AT_ONCE: usize = 32;

/// An acknowledgement. Its bytes mean nothing.
const ACKNOWLEDGEMENT: [u8; 8] = [1; 8];

/// Completions taken with one poll.
const POLL_BATCH: usize = 32;

/// What the process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceArgs {
    /// Device name.
    pub device: String,
    /// Core to pin to.
    pub core: usize,
    /// Bytes of the memory.
    pub bytes: usize,
}

/// One side's queue pair and what belongs to it.
pub(super) struct End {
    pub(super) queue_pair: QueuePair,
    pub(super) completions: CompletionQueue,
    pub(super) local: RemoteEndpoint,
    address: PortAddress,
    /// READs that both sides allow at a time.
    depth: u8,
    /// Receives that are not posted.
    pub(super) to_post: Vec<Slot>,
    polled: Vec<WorkCompletion>,
}

impl End {
    /// Creates the queue pair with posted receives of `receive_len` bytes.
    pub(super) fn open(
        context: &Context,
        domain: &rpc_transport_verbs::verbs::ProtectionDomain,
        receives: usize,
        receive_len: usize,
    ) -> Outcome<Self> {
        let max_send_wr = 2 * SEND_WINDOW;
        let completions = context.create_cq(max_send_wr + receives)?;
        let queue_pair = domain.create_qp(QueuePairConfig {
            max_send_wr,
            max_recv_wr: receives,
            max_inline_data: ACKNOWLEDGEMENT.len(),
            ..QueuePairConfig::new(&completions, &completions)
        })?;
        let address = context.choose_address(AddressWish::default())?;
        let region = domain.register(receives * receive_len, Access::LOCAL_WRITE)?;
        let mut this = Self {
            local: RemoteEndpoint {
                gid: address.gid,
                lid: address.lid,
                qp_num: queue_pair.qp_num(),
                psn: Psn::new(0),
            },
            depth: context.query_device().max_qp_rd_atomic.min(16),
            address,
            queue_pair,
            completions,
            to_post: region.into_slots(receive_len)?,
            polled: Vec::with_capacity(POLL_BATCH),
        };
        let port = this.address.port;
        this.queue_pair.to_init(port, Access::REMOTE_READ)?;
        this.queue_pair.post_recv(&mut this.to_post, receives)?;
        Ok(this)
    }

    pub(super) fn ready_to_receive(&mut self, remote: RemoteEndpoint) -> Outcome<()> {
        Ok(self.queue_pair.to_rtr(RtrAttributes {
            sgid_index: self.address.gid_index,
            path_mtu: self.address.mtu,
            max_dest_rd_atomic: self.depth,
            ..RtrAttributes::new(remote)
        })?)
    }

    pub(super) fn ready_to_send(&mut self) -> Outcome<()> {
        Ok(self.queue_pair.to_rts(RtsAttributes {
            max_rd_atomic: self.depth,
            ..RtsAttributes::new(self.local.psn)
        })?)
    }

    /// Polls once. Slots of completed sends and READs go to `sent`, those of receives to `received`.
    pub(super) fn poll(
        &mut self,
        mut sent: impl FnMut(Slot),
        mut received: impl FnMut(Slot, usize),
    ) -> Outcome<()> {
        self.completions.poll(&mut self.polled, POLL_BATCH)?;
        for completion in self.polled.drain(..) {
            if !completion.is_success() {
                return Err(completion.status().to_string().into());
            }
            if completion.wr_id().kind() == Some(WorkKind::Receive) {
                let (slot, len) = self.queue_pair.claim_recv(completion)?;
                received(slot, len);
            } else {
                self.queue_pair.complete_send(completion, &mut sent)?;
            }
        }
        Ok(())
    }
}

impl SourceArgs {
    /// Runs the process: prints its endpoint and the remote address and key of its memory, then
    /// writes all of the memory for each line that the parent sends, until it is killed.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint cannot be set up, or if the connection fails.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        let context = Context::open(&self.device)?;
        let domain = context.alloc_pd()?;
        let lines = lines_of_parent();
        cores::pin_current_thread(self.core)?;
        let memory = domain.expose(self.bytes, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
        let mut end = End::open(&context, &domain, 2 * SEND_WINDOW, MESSAGE_LEN)?;
        child::write_line_to_parent(&line_of(&end.local))?;
        let remote = memory.remote(0);
        child::write_line_to_parent(&format!("{} {}", remote.addr, remote.key.0))?;
        end.ready_to_receive(endpoint_of(&lines.recv()?)?)?;
        end.ready_to_send()?;
        child::write_line_to_parent("ready")?;
        let mut received = Vec::new();
        let mut owed = 0;
        loop {
            match lines.try_recv() {
                Ok(line) => {
                    write_all(&memory, line.parse()?)?;
                    child::write_line_to_parent("written")?;
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Ok(()),
            }
            end.poll(drop, |slot, len| received.push((slot, len)))?;
            for (slot, len) in received.drain(..) {
                std::hint::black_box(word_of_each_line(&slot[..len]));
                end.to_post.push(slot);
                owed += 1;
            }
            if owed >= ACKNOWLEDGED_AT_ONCE {
                let count = end.to_post.len();
                end.queue_pair.post_recv(&mut end.to_post, count)?;
                end.queue_pair.post_inline(&ACKNOWLEDGEMENT, true)?;
                end.queue_pair.ring_doorbell()?;
                owed -= ACKNOWLEDGED_AT_ONCE;
            }
        }
    }
}

/// Writes this byte everywhere.
fn write_all(memory: &ExposedMemory, byte: u8) -> Outcome<()> {
    let piece = vec![byte; 1 << 20];
    let mut at = 0;
    while at < memory.len() {
        let len = piece.len().min(memory.len() - at);
        memory.write(at, &piece[..len])?;
        at += len;
    }
    Ok(())
}

/// Starts the thread that reads the parent's lines, which the polling loop cannot wait for.
fn lines_of_parent() -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        while let Ok(line) = child::read_line_from_parent() {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}
