//! The TCP connection that carries the calls of a connection without shared memory and without RDMA.
//!
//! The client dials it at the port at which it has dialed the server before, so nothing is dialed
//! back. It begins with the secret that the server has put into its welcome, which names the queue
//! pair of this client. A secret serves once, and only until the handshake is complete.
//!
//! ```text
//!  0       4         6          8            24
//! ┌───────┬─────────┬──────────┬────────────┐
//! │ magic │ version │ reserved │ secret     │   the client's first bytes on the connection
//! └───────┴─────────┴──────────┴────────────┘
//!  "VBLK"   u16 BE
//! ```
//!
//! The server answers with the first message of its queue pair. Before that, nothing that arrives is
//! taken for a message of a queue pair.
//!
//! Without TLS, nothing is encrypted. With it, TLS begins with the first byte of the connection, so
//! that the hello with its secret is inside. Whoever is on the way could read a secret in the clear,
//! use it first, and have the queue pair of a client that has proved who it is: nothing else says
//! that the two connections are of one client. A hello inside of TLS cannot be looked at while it
//! waits in the socket: records are read, and what was read beyond it goes to the queue
//! pair with the socket and the layer ([`LinkBytes`](verbline_verbs::for_transport::LinkBytes)).

use std::fmt;
use std::io;

/// The first bytes of a link, in every version.
const MAGIC: [u8; 4] = *b"VBLK";

/// The version of the messages on a link. A server refuses another one.
pub(crate) const VERSION: u16 = 1;

/// Length in bytes of the client's first message.
pub(crate) const LINK_HELLO_LEN: usize = 24;

/// Names the queue pair that a link is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LinkSecret(pub(crate) [u8; 16]);

impl fmt::Debug for LinkSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkSecret")
    }
}

/// What the first bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstBytes {
    /// Not those of a link.
    Other,
    /// Perhaps those of a link, of which more have to come.
    Incomplete,
    Link(LinkSecret),
    /// Those of a link of another version.
    OtherVersion(u16),
}

impl LinkSecret {
    pub(crate) fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self(bytes))
    }

    /// Returns the client's first message.
    pub(crate) fn hello(self) -> [u8; LINK_HELLO_LEN] {
        let mut bytes = [0; LINK_HELLO_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_be_bytes());
        bytes[8..].copy_from_slice(&self.0);
        bytes
    }
}

/// Examines the first bytes of a connection.
pub(crate) fn examine(bytes: &[u8]) -> FirstBytes {
    let common = bytes.len().min(MAGIC.len());
    if bytes[..common] != MAGIC[..common] {
        return FirstBytes::Other;
    }
    let Ok(hello) = <[u8; LINK_HELLO_LEN]>::try_from(bytes) else {
        return match bytes.len() < LINK_HELLO_LEN {
            true => FirstBytes::Incomplete,
            // A client says nothing more before the answer.
            false => FirstBytes::Other,
        };
    };
    let [_, _, _, _, high, low, _, _, secret @ ..] = hello;
    match u16::from_be_bytes([high, low]) {
        VERSION => FirstBytes::Link(LinkSecret(secret)),
        other => FirstBytes::OtherVersion(other),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_handshake_is_no_link_from_its_first_difference_on() {
        assert_eq!(examine(b""), FirstBytes::Incomplete);
        assert_eq!(examine(b"VBL"), FirstBytes::Incomplete);
        assert_eq!(examine(b"VBLN"), FirstBytes::Other);
        assert_eq!(
            examine(b"GET / HTTP/1.1\r\nHost: example"),
            FirstBytes::Other
        );
    }

    proptest! {
        #[test]
        fn a_hello_is_recognized_when_it_is_complete(secret: [u8; 16], version: u16) {
            let mut hello = LinkSecret(secret).hello();
            for len in 0..LINK_HELLO_LEN {
                prop_assert_eq!(examine(&hello[..len]), FirstBytes::Incomplete);
            }
            prop_assert_eq!(examine(&hello), FirstBytes::Link(LinkSecret(secret)));
            prop_assert_eq!(examine(&[&hello[..], b"x"].concat()), FirstBytes::Other);
            hello[4..6].copy_from_slice(&version.to_be_bytes());
            if version != VERSION {
                prop_assert_eq!(examine(&hello), FirstBytes::OtherVersion(version));
            }
        }
    }
}
