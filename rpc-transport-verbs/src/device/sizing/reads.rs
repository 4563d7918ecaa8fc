//! Chooses how messages that are longer than a slot travel over a device: by RDMA READ, and with
//! which numbers, or in fragments.

use rpc_core::Limits;
use verbline_verbs::{CopyRule, DeviceAttributes, LinkLayer};

use super::Sizing;
use crate::transport::plan::ReadPlan;

/// READs that a queue pair has outstanding, if the device supports as many: enough that READs of
/// the usual length cover the round trip of a network.
const READ_DEPTH: u8 = 16;

/// READs that all connections of a lane have outstanding together, on a device that ends a
/// connection when its peer does not answer.
const MAX_READING: usize = 64;

/// Bytes that are copied into registered memory at a time, and of a READ, on a device that moves
/// them by itself. Not measured: no network card has been tried.
const PIECE_LEN: usize = 256 * 1024;

/// Bytes of a READ on the software device, where this thread copies them, one READ between two polls:
/// the calls of other connections wait meanwhile, some 3 microseconds.
const SOFT_READ_LEN: usize = 32 * 1024;

/// As `SOFT_READ_LEN`, while such calls arrive. Shorter READs would cost more than they copy: a
/// READ costs about as much as the copy of these bytes.
const SHORT_SOFT_READ_LEN: usize = 8 * 1024;

/// Part of the memory for messages that a piece may have.
const SHARE_OF_MEMORY: u64 = 16;

/// The properties of a device that decide how long messages travel.
#[derive(Clone, Debug)]
pub(crate) struct ReadSupport {
    /// The link layer of its port.
    pub(crate) link_layer: LinkLayer,
    /// Why its memory windows do not protect memory, if they do not.
    pub(crate) why_unprotected: Option<String>,
}

/// Decides whether and how messages are read. Sets the numbers of the limits that depend on it.
pub(super) fn choose(
    limits: &mut Limits,
    sizing: &Sizing,
    attributes: &DeviceAttributes,
    support: ReadSupport,
) -> ReadPlan {
    let most = attributes
        .max_qp_rd_atomic
        .min(attributes.max_qp_init_rd_atomic);
    let depth = sizing.read_depth.unwrap_or(READ_DEPTH).min(most);
    let why_not = match (depth, support.why_unprotected) {
        (0, _) if most > 0 => Some("`read_depth` is 0".to_owned()),
        (0, _) => Some("the device has no RDMA READ".to_owned()),
        (_, Some(_)) if sizing.trusted_peers => None,
        (_, why) => why,
    };
    let is_soft = support.link_layer == LinkLayer::Memory;
    let rule = CopyRule::of_this_machine();
    let wanted = match is_soft {
        // This thread copies them, and the calls of other connections wait meanwhile.
        true => rule.piece_len,
        false => PIECE_LEN,
    };
    if let Some(why) = why_not {
        limits.read_depth = 0;
        limits.piece_len = limits.slot_len;
        limits.long_messages = format!("in fragments through the slots, because {why}");
        return ReadPlan::default();
    }
    let share = usize::try_from(limits.message_memory / SHARE_OF_MEMORY).unwrap_or(usize::MAX);
    limits.piece_len = sizing.piece_len.unwrap_or(wanted).min(share).max(1);
    limits.read_depth = depth;
    let travel = match sizing.trusted_peers {
        true => "by RDMA READ, with the keys of whole regions, because peers are trusted",
        false if is_soft => {
            "by RDMA READ through memory windows; the poller's thread copies the bytes, and its other calls wait meanwhile"
        }
        false => "by RDMA READ through memory windows of type 2",
    };
    limits.long_messages = match support.link_layer {
        LinkLayer::Tcp => {
            format!("{travel}, in which the kernel takes long fields from where they lie")
        }
        _ => format!("{travel}; {rule}"),
    };
    let (max_read_len, short_read_len) = match is_soft {
        true => (SOFT_READ_LEN, SHORT_SOFT_READ_LEN),
        false => (wanted, wanted),
    };
    ReadPlan {
        depth,
        uses_windows: !sizing.trusted_peers,
        max_read_len,
        short_read_len,
        // On the software device, a READ is executed where it is posted.
        reads_per_poll: if is_soft { 1 } else { usize::from(depth) },
        // There, a READ with a key that is not published waits for the peer's process, which may be
        // stopped, and no retry ends it. The READs of such peers are not to use up what others need.
        max_reading: if is_soft { usize::MAX } else { MAX_READING },
    }
}
