//! The first message of each direction of a TCP link that a process dials at another process, and
//! the form of a GID that says where.
//!
//! ```text
//!  GID     fd 76 │ port (2) │ IPv4 address (4) │ secret of the process (8)
//!
//!  dialer                                                    accepter
//!  Hello  { version, secret, GIDs, queue pairs, PSN } ────►  checks the secret, finds the queue pair
//!                                                     ◄────  Answer { accepted or refused, PSN }
//! ```
//!
//! Programs of the verbs layer exchange GIDs by other means, as they do for network cards. Whoever
//! knows a GID of this form can connect to queue pairs that are connected to it: so the secret is
//! for the two programs only. The PSN is the number of the first request that the sender of the
//! message expects.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::types::Gid;

/// The first bytes of both messages.
const MAGIC: [u8; 4] = *b"VBLT";
/// The version of the messages of a link. Both sides have the same. A hello of another version that names
/// this process's GID gets an answer that begins with this version, which refuses the link. So in every
/// version the hello is as long and has that GID at the same place, and the answer begins alike.
pub(crate) const VERSION: u16 = 1;
/// The first bytes of a GID of this form: those of a unique local address (RFC 4193).
const GID_PREFIX: [u8; 2] = [0xfd, 0x76];

/// Length in bytes of a [`Hello`].
pub(crate) const HELLO_LEN: usize = 64;
/// Length in bytes of an [`Answer`].
pub(crate) const ANSWER_LEN: usize = 12;

/// Where a process accepts TCP links, and what proves that it is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkAddress {
    /// The address to dial; port 0 if the process only dials.
    pub(crate) address: SocketAddrV4,
    pub(crate) secret: [u8; 8],
}

impl LinkAddress {
    pub(crate) fn to_gid(self) -> Gid {
        let mut gid = [0; 16];
        gid[..2].copy_from_slice(&GID_PREFIX);
        gid[2..4].copy_from_slice(&self.address.port().to_be_bytes());
        gid[4..8].copy_from_slice(&self.address.ip().octets());
        gid[8..].copy_from_slice(&self.secret);
        Gid(gid)
    }

    /// Returns the address that a GID says; `None` for a GID of another form.
    pub(crate) fn of_gid(gid: Gid) -> Option<Self> {
        let [0xfd, 0x76, p, q, a, b, c, d, secret @ ..] = gid.0 else {
            return None;
        };
        Some(Self {
            address: SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([p, q])),
            secret,
        })
    }

    pub(crate) fn can_be_dialed(self) -> bool {
        self.address.port() != 0
    }
}

/// The dialer's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) from: Gid,
    pub(crate) to: Gid,
    pub(crate) from_qp_num: u32,
    pub(crate) to_qp_num: u32,
    pub(crate) expected_psn: u32,
}

/// The accepter's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) is_accepted: bool,
    pub(crate) expected_psn: u32,
}

/// Why the first bytes of a link are not a greeting of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GreetingError {
    #[error("it did not begin as a link")]
    Magic,
    #[error(
        "it speaks version {0} of links, this side speaks version {VERSION}: run the same version of Verbline on both sides"
    )]
    Version(u16),
    #[error("a field has a value that no version sends")]
    Field,
}

fn begin<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes
}

fn check_beginning<const N: usize>(bytes: &[u8; N]) -> Result<(), GreetingError> {
    if bytes[..4] != MAGIC {
        return Err(GreetingError::Magic);
    }
    match u16::from_le_bytes([bytes[4], bytes[5]]) {
        VERSION => Ok(()),
        other => Err(GreetingError::Version(other)),
    }
}

fn gid(bytes: &[u8; HELLO_LEN], at: usize) -> Gid {
    let mut gid = [0; 16];
    gid.copy_from_slice(&bytes[at..at + 16]);
    Gid(gid)
}

fn word<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = begin();
        bytes[8..24].copy_from_slice(&self.to.0);
        bytes[24..40].copy_from_slice(&self.from.0);
        bytes[40..44].copy_from_slice(&self.from_qp_num.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.to_qp_num.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.expected_psn.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8; HELLO_LEN]) -> Result<Self, GreetingError> {
        check_beginning(bytes)?;
        let hello = Self {
            to: Self::to_in_every_version(bytes),
            from: gid(bytes, 24),
            from_qp_num: word(bytes, 40),
            to_qp_num: word(bytes, 44),
            expected_psn: word(bytes, 48),
        };
        let is_valid = hello.encode() == *bytes && LinkAddress::of_gid(hello.from).is_some();
        is_valid.then_some(hello).ok_or(GreetingError::Field)
    }

    /// Returns [`to`](Self::to), which stands at the same place in a hello of any version.
    pub(crate) fn to_in_every_version(bytes: &[u8; HELLO_LEN]) -> Gid {
        gid(bytes, 8)
    }
}

impl Answer {
    pub(crate) fn encode(&self) -> [u8; ANSWER_LEN] {
        let mut bytes = begin();
        bytes[6] = u8::from(self.is_accepted);
        bytes[8..12].copy_from_slice(&self.expected_psn.to_le_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: &[u8; ANSWER_LEN]) -> Result<Self, GreetingError> {
        check_beginning(bytes)?;
        let answer = Self {
            is_accepted: bytes[6] == 1,
            expected_psn: word(bytes, 8),
        };
        (answer.encode() == *bytes)
            .then_some(answer)
            .ok_or(GreetingError::Field)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_fits_a_gid_and_other_gids_are_none() {
        let address = LinkAddress {
            address: SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 7), 50_051),
            secret: *b"8 secret",
        };
        assert_eq!(LinkAddress::of_gid(address.to_gid()), Some(address));
        assert!(address.can_be_dialed());
        assert_eq!(LinkAddress::of_gid(Gid([0xfe; 16])), None);
    }

    #[test]
    fn another_version_is_refused_with_both() {
        let error = GreetingError::Version(2);
        assert_eq!(
            error.to_string(),
            "it speaks version 2 of links, this side speaks version 1: run the same version of Verbline on both sides"
        );
        let mut bytes = begin::<HELLO_LEN>();
        bytes[4] = 2;
        assert_eq!(Hello::parse(&bytes), Err(error));
        let answer = Answer {
            is_accepted: true,
            expected_psn: 7,
        };
        let mut bytes = answer.encode();
        bytes[4] = 2;
        assert_eq!(Answer::parse(&bytes), Err(error));
        bytes[0] = b'G';
        assert_eq!(Answer::parse(&bytes), Err(GreetingError::Magic));
    }

    proptest! {
        #[test]
        fn greetings_are_parsed_as_they_were_encoded(
            to: [u8; 16],
            secret: [u8; 8],
            [from_qp_num, to_qp_num, expected_psn]: [u32; 3],
            is_accepted: bool,
        ) {
            let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
            let from = LinkAddress { address, secret }.to_gid();
            let hello = Hello { from, to: Gid(to), from_qp_num, to_qp_num, expected_psn };
            prop_assert_eq!(Hello::parse(&hello.encode()), Ok(hello));
            let answer = Answer { is_accepted, expected_psn };
            prop_assert_eq!(Answer::parse(&answer.encode()), Ok(answer));
        }

        #[test]
        fn garbage_is_refused(
            hello in proptest::array::uniform32(any::<u8>()),
            answer in proptest::array::uniform12(any::<u8>()),
        ) {
            let mut bytes = [0; HELLO_LEN];
            bytes[..32].copy_from_slice(&hello);
            if let Ok(hello) = Hello::parse(&bytes) {
                prop_assert_eq!(hello.encode(), bytes);
            }
            if let Ok(parsed) = Answer::parse(&answer) {
                prop_assert_eq!(parsed.encode(), answer);
            }
        }
    }
}
