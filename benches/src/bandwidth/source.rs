//! The other side of raw verbs: a process with memory that its peer reads, and with receives for
//! SENDs. It polls all the time, since a device in software may need that to answer READs.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use rpc_transport_verbs::verbs::{Access, ExposedMemory};
use serde::{Deserialize, Serialize};

use super::pattern::word_of_each_line;
use crate::endpoint::{Endpoint, Queues};
use crate::{Outcome, child, cores};

/// Length in bytes of a SEND.
pub(super) const MESSAGE_LEN: usize = 4096;

/// SENDs that the peer may have in flight: half of the receives.
pub(super) const SEND_WINDOW: usize = 128;

/// One acknowledgement is sent for this many SENDs.
pub(super) const ACKNOWLEDGED_AT_ONCE: usize = 32;

/// An acknowledgement. Its bytes mean nothing.
const ACKNOWLEDGEMENT: [u8; 8] = [1; 8];

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

/// Returns the queues of a side that receives messages of this length.
pub(super) fn queues(receive_len: usize) -> Queues {
    Queues {
        receives: 2 * SEND_WINDOW,
        receive_len,
        sends: 2 * SEND_WINDOW,
        max_inline_len: ACKNOWLEDGEMENT.len(),
    }
}

impl SourceArgs {
    /// Runs the process: connects, prints the remote address and key of its memory, then writes all of
    /// the memory for each line that the parent sends, until it is killed.
    ///
    /// # Errors
    ///
    /// Fails if the endpoint cannot be set up, or if the connection fails.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        let mut endpoint = Endpoint::open(&self.device, &queues(MESSAGE_LEN))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let memory = endpoint.domain.expose(self.bytes, access)?;
        let remote = memory.remote(0);
        endpoint.connect_to_parent(&serde_json::to_string(&(remote.addr, remote.key.0))?)?;
        // On any core, so started before this thread is pinned.
        let lines = lines_of_parent();
        cores::pin_current_thread(self.core)?;
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
            endpoint.poll(drop, |message| {
                std::hint::black_box(word_of_each_line(message));
                owed += 1;
                Ok(())
            })?;
            if owed >= ACKNOWLEDGED_AT_ONCE {
                endpoint.queue_pair.post_inline(&ACKNOWLEDGEMENT, true)?;
                endpoint.queue_pair.ring_doorbell()?;
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
