//! The messages that processes exchange over their links, at set-up only: one message per packet.

use super::claims::Nonce;
use super::greeting::{Layouts, Limits, Refusal};
use crate::types::Gid;

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
    /// The dialer's first message: its shared-memory layouts, its GID, and what it keeps for the
    /// accepter.
    Hello {
        layouts: Layouts,
        gid: Gid,
        limits: Limits,
    },
    /// The accepter's answer: the layout of the link, and what it keeps for the dialer.
    Welcome { layout: u32, limits: Limits },
    /// The accepter's answer if it does not take the link, which it closes.
    Refused(Refusal),
    /// With one file: an arena that descriptors may name.
    Arena { number: u64 },
    /// The arena was deregistered.
    ArenaGone { number: u64 },
    /// The answer to an `Arena` that the receiver could not map now, for lack of its own resources.
    ArenaRefused { number: u64 },
    /// With three files, by which the receiver notifies the sender's context `number` and reads
    /// from it: the page in which the receiver announces rings, the context's notes, and the
    /// receiver's end of a pair of wake sockets. Sent once per link and context, before the first `Attach` that names the context.
    Context { number: u32 },
    /// The context was closed: no queue pair of it is left.
    ContextGone { number: u32 },
    /// The answer to a `Context` that the receiver could not keep, for lack of its own resources.
    ContextRefused { number: u32 },
    /// Asks the receiver's engine to handle one-sided requests for contexts that no thread polls.
    Wake,
    /// Sends back a number that the receiver has made up for the sender's GID, with the number of
    /// the queue pair that the sender has offered: see `claims`.
    Claim { nonce: Nonce, qp_num: u32 },
    /// With one file: the ring in which the sender's queue pair `from`, of its context `context`,
    /// receives from `to`. The receiver announces it by `from_index`.
    Attach {
        from: u32,
        to: u32,
        context: u32,
        from_index: u32,
    },
    /// The answer to an `Attach` that the receiver could not carry out, for lack of its own
    /// resources or because it does not know the context. It never sends into that ring.
    AttachRefused { from: u32, to: u32 },
}

/// Maximum packet length in bytes; longer packets are garbage.
pub(crate) const MAX_PACKET: usize = 64;
/// Maximum number of files beside one message.
pub(crate) const MAX_FILES: usize = CONTEXT_FILES;
/// Number of files beside [`LinkMessage::Context`].
const CONTEXT_FILES: usize = 3;

const HELLO: u32 = 0x4c42_4556;
const ARENA: u32 = 1;
const ARENA_GONE: u32 = 2;
const ATTACH: u32 = 5;
const CONTEXT: u32 = 6;
const CONTEXT_GONE: u32 = 7;
const WAKE: u32 = 8;
const WELCOME: u32 = 10;
const REFUSED: u32 = 11;
const ARENA_REFUSED: u32 = 12;
const CONTEXT_REFUSED: u32 = 13;
const ATTACH_REFUSED: u32 = 14;
const CLAIM: u32 = 15;

impl LinkMessage {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(MAX_PACKET);
        let mut put = |part: &[u8]| bytes.extend_from_slice(part);
        match self {
            Self::Hello {
                layouts,
                gid,
                limits,
            } => {
                put(&HELLO.to_le_bytes());
                put(&layouts.min.to_le_bytes());
                put(&layouts.max.to_le_bytes());
                put(&gid.0);
                put(&encode_limits(limits));
            }
            Self::Welcome { layout, limits } => {
                put(&WELCOME.to_le_bytes());
                put(&layout.to_le_bytes());
                put(&encode_limits(limits));
            }
            Self::Refused(refusal) => {
                let (code, [first, second]) = refusal.encode();
                put(&REFUSED.to_le_bytes());
                put(&code.to_le_bytes());
                put(&first.to_le_bytes());
                put(&second.to_le_bytes());
            }
            Self::Arena { number } => {
                put(&ARENA.to_le_bytes());
                put(&number.to_le_bytes());
            }
            Self::ArenaGone { number } => {
                put(&ARENA_GONE.to_le_bytes());
                put(&number.to_le_bytes());
            }
            Self::ArenaRefused { number } => {
                put(&ARENA_REFUSED.to_le_bytes());
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
            Self::Claim { nonce, qp_num } => {
                put(&CLAIM.to_le_bytes());
                put(&nonce);
                put(&qp_num.to_le_bytes());
            }
            Self::ContextRefused { number } => {
                put(&CONTEXT_REFUSED.to_le_bytes());
                put(&number.to_le_bytes());
            }
            Self::AttachRefused { from, to } => {
                put(&ATTACH_REFUSED.to_le_bytes());
                put(&from.to_le_bytes());
                put(&to.to_le_bytes());
            }
            Self::Attach {
                from,
                to,
                context,
                from_index,
            } => {
                put(&ATTACH.to_le_bytes());
                for field in [from, to, context, from_index] {
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
                layouts: Layouts {
                    min: take_u32(&mut rest)?,
                    max: take_u32(&mut rest)?,
                },
                gid: Gid(take(&mut rest)?),
                limits: take_limits(&mut rest)?,
            },
            WELCOME => Self::Welcome {
                layout: take_u32(&mut rest)?,
                limits: take_limits(&mut rest)?,
            },
            REFUSED => Self::Refused(Refusal::parse(
                take_u32(&mut rest)?,
                [take_u64(&mut rest)?, take_u64(&mut rest)?],
            )),
            ARENA => Self::Arena {
                number: take_u64(&mut rest)?,
            },
            ARENA_GONE => Self::ArenaGone {
                number: take_u64(&mut rest)?,
            },
            ARENA_REFUSED => Self::ArenaRefused {
                number: take_u64(&mut rest)?,
            },
            CONTEXT_REFUSED => Self::ContextRefused {
                number: take_u32(&mut rest)?,
            },
            ATTACH_REFUSED => Self::AttachRefused {
                from: take_u32(&mut rest)?,
                to: take_u32(&mut rest)?,
            },
            CONTEXT => Self::Context {
                number: take_u32(&mut rest)?,
            },
            CONTEXT_GONE => Self::ContextGone {
                number: take_u32(&mut rest)?,
            },
            WAKE => Self::Wake,
            CLAIM => Self::Claim {
                nonce: take(&mut rest)?,
                qp_num: take_u32(&mut rest)?,
            },
            ATTACH => Self::Attach {
                from: take_u32(&mut rest)?,
                to: take_u32(&mut rest)?,
                context: take_u32(&mut rest)?,
                from_index: take_u32(&mut rest)?,
            },
            _ => return None,
        };
        rest.is_empty().then_some(message)
    }

    /// Returns true if the message depends on none before it, and has no files.
    pub(crate) fn may_overtake(self) -> bool {
        matches!(
            self,
            Self::ArenaRefused { .. }
                | Self::ContextRefused { .. }
                | Self::AttachRefused { .. }
                | Self::Claim { .. }
        )
    }

    /// Returns the number of files beside the message.
    pub(crate) fn file_count(self) -> usize {
        match self {
            Self::Arena { .. } | Self::Attach { .. } => 1,
            Self::Context { .. } => CONTEXT_FILES,
            _ => 0,
        }
    }
}

fn encode_limits(limits: Limits) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&limits.max_arenas.to_le_bytes());
    bytes[4..8].copy_from_slice(&limits.max_contexts.to_le_bytes());
    bytes[8..].copy_from_slice(&limits.max_arena_bytes.to_le_bytes());
    bytes
}

fn take_limits(rest: &mut &[u8]) -> Option<Limits> {
    Some(Limits {
        max_arenas: take_u32(rest)?,
        max_contexts: take_u32(rest)?,
        max_arena_bytes: take_u64(rest)?,
    })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*taken)
}

fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    take(rest).map(u32::from_le_bytes)
}

fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    take(rest).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_limits() -> impl Strategy<Value = Limits> {
        (any::<[u32; 2]>(), any::<u64>()).prop_map(|([max_arenas, max_contexts], bytes)| Limits {
            max_arenas,
            max_contexts,
            max_arena_bytes: bytes,
        })
    }

    fn any_message() -> impl Strategy<Value = LinkMessage> {
        prop_oneof![
            (any::<[u32; 2]>(), any::<[u8; 16]>(), any_limits()).prop_map(
                |([min, max], gid, limits)| LinkMessage::Hello {
                    layouts: Layouts { min, max },
                    gid: Gid(gid),
                    limits,
                }
            ),
            (any::<u32>(), any_limits())
                .prop_map(|(layout, limits)| LinkMessage::Welcome { layout, limits }),
            (0_u32..8, any::<[u64; 2]>())
                .prop_map(|(code, numbers)| LinkMessage::Refused(Refusal::parse(code, numbers))),
            any::<u64>().prop_map(|number| LinkMessage::ArenaRefused { number }),
            any::<u32>().prop_map(|number| LinkMessage::ContextRefused { number }),
            any::<[u32; 2]>().prop_map(|[from, to]| LinkMessage::AttachRefused { from, to }),
            any::<u64>().prop_map(|number| LinkMessage::Arena { number }),
            any::<u64>().prop_map(|number| LinkMessage::ArenaGone { number }),
            any::<u32>().prop_map(|number| LinkMessage::Context { number }),
            any::<u32>().prop_map(|number| LinkMessage::ContextGone { number }),
            Just(LinkMessage::Wake),
            (any::<[u8; 16]>(), any::<u32>())
                .prop_map(|(nonce, qp_num)| LinkMessage::Claim { nonce, qp_num }),
            any::<[u32; 4]>().prop_map(|[from, to, context, from_index]| LinkMessage::Attach {
                from,
                to,
                context,
                from_index
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
