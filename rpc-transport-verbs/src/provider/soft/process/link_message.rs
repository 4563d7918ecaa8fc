//! The messages that processes exchange over their links, at set-up only: one message per packet.

use crate::verbs::types::Gid;

/// One message. Where noted, file descriptors accompany the bytes.
///
/// ```text
///  0       4                      all numbers little endian; a packet is exactly this long
/// ┌───────┬──────────────────────────────────────────────────┐
/// │ kind  │ fields, in the order in which they are declared   │
/// └───────┴──────────────────────────────────────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkMessage {
    /// The first message on every link: the sender's GID and its shared-memory layout version.
    Hello { layout_version: u32, gid: Gid },
    /// With one file: an arena that descriptors may name.
    Arena { number: u64 },
    /// The arena was deregistered.
    ArenaGone { number: u64 },
    /// With three files: how the receiver notifies the sender's context `number`. They are the
    /// context's ready bits for the receiver, its sleep note, and the receiver's end of a pair of
    /// wake sockets. Sent once per link and context, before the first `Attach` that names the
    /// context.
    Context { number: u32 },
    /// The context was closed: no queue pair of it is left.
    ContextGone { number: u32 },
    /// Asks the receiver's engine to handle one-sided requests for contexts that no thread polls.
    Wake,
    /// With one file: the ring in which the sender's queue pair `from`, of its context `context`,
    /// receives from `to`.
    Attach {
        from: u32,
        to: u32,
        context: u32,
        ready_index: u32,
    },
}

/// Maximum packet length in bytes; longer packets are garbage.
pub(crate) const MAX_PACKET: usize = 64;
/// Maximum number of files beside one message.
pub(crate) const MAX_FILES: usize = 4;

const HELLO: u32 = 0x4c42_4556;
const ARENA: u32 = 1;
const ARENA_GONE: u32 = 2;
const ATTACH: u32 = 5;
const CONTEXT: u32 = 6;
const CONTEXT_GONE: u32 = 7;
const WAKE: u32 = 8;

impl LinkMessage {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAX_PACKET);
        let mut put = |part: &[u8]| bytes.extend_from_slice(part);
        match self {
            Self::Hello {
                layout_version,
                gid,
            } => {
                put(&HELLO.to_le_bytes());
                put(&layout_version.to_le_bytes());
                put(&gid.0);
            }
            Self::Arena { number } => {
                put(&ARENA.to_le_bytes());
                put(&number.to_le_bytes());
            }
            Self::ArenaGone { number } => {
                put(&ARENA_GONE.to_le_bytes());
                put(&number.to_le_bytes());
            }
            Self::Context { number } => {
                put(&CONTEXT.to_le_bytes());
                put(&number.to_le_bytes());
            }
            Self::ContextGone { number } => {
                put(&CONTEXT_GONE.to_le_bytes());
                put(&number.to_le_bytes());
            }
            Self::Wake => put(&WAKE.to_le_bytes()),
            Self::Attach {
                from,
                to,
                context,
                ready_index,
            } => {
                put(&ATTACH.to_le_bytes());
                for field in [from, to, context, ready_index] {
                    put(&field.to_le_bytes());
                }
            }
        }
        bytes
    }

    /// Parses a packet; `None` unless it is exactly one message.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let mut rest = packet;
        let message = match take_u32(&mut rest)? {
            HELLO => Self::Hello {
                layout_version: take_u32(&mut rest)?,
                gid: Gid(take(&mut rest)?),
            },
            ARENA => Self::Arena {
                number: u64::from_le_bytes(take(&mut rest)?),
            },
            ARENA_GONE => Self::ArenaGone {
                number: u64::from_le_bytes(take(&mut rest)?),
            },
            CONTEXT => Self::Context {
                number: take_u32(&mut rest)?,
            },
            CONTEXT_GONE => Self::ContextGone {
                number: take_u32(&mut rest)?,
            },
            WAKE => Self::Wake,
            ATTACH => Self::Attach {
                from: take_u32(&mut rest)?,
                to: take_u32(&mut rest)?,
                context: take_u32(&mut rest)?,
                ready_index: take_u32(&mut rest)?,
            },
            _ => return None,
        };
        rest.is_empty().then_some(message)
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    take(rest).map(u32::from_le_bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_message() -> impl Strategy<Value = LinkMessage> {
        prop_oneof![
            (any::<u32>(), any::<[u8; 16]>()).prop_map(|(layout_version, gid)| {
                LinkMessage::Hello {
                    layout_version,
                    gid: Gid(gid),
                }
            }),
            any::<u64>().prop_map(|number| LinkMessage::Arena { number }),
            any::<u64>().prop_map(|number| LinkMessage::ArenaGone { number }),
            any::<u32>().prop_map(|number| LinkMessage::Context { number }),
            any::<u32>().prop_map(|number| LinkMessage::ContextGone { number }),
            Just(LinkMessage::Wake),
            any::<[u32; 4]>().prop_map(|[from, to, context, ready_index]| LinkMessage::Attach {
                from,
                to,
                context,
                ready_index
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_was_emitted_is_parsed(message in any_message()) {
            let packet = message.encode();
            prop_assert!(packet.len() <= MAX_PACKET);
            prop_assert_eq!(LinkMessage::parse(&packet), Some(message));
        }

        #[test]
        fn a_packet_that_is_cut_or_continued_is_refused(message in any_message(), extra: u8) {
            let mut packet = message.encode();
            for len in 0..packet.len() {
                prop_assert_eq!(LinkMessage::parse(&packet[..len]), None);
            }
            packet.push(extra);
            prop_assert_eq!(LinkMessage::parse(&packet), None);
        }

        #[test]
        fn garbage_is_refused_or_is_what_it_would_have_been_emitted_as(
            packet in proptest::collection::vec(any::<u8>(), 0..MAX_PACKET),
        ) {
            if let Some(message) = LinkMessage::parse(&packet) {
                prop_assert_eq!(message.encode(), packet);
            }
        }
    }
}
