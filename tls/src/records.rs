//! [`Records`]: the records of one connection after its handshake (RFC 8446, section 5).
//!
//! rustls has the secrets and derives the next ones ([`rustls::kernel`]). What it leaves to others,
//! sealing and opening, happens here, in the memory of the caller: rustls' own records are copied, and
//! allocate. The authenticated encryption is that of the library that rustls uses, too.

use std::fmt;
use std::ops::Range;

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{AlertDescription, ConnectionTrafficSecrets, ExtractedSecrets, SupportedCipherSuite};

#[cfg(feature = "aws-lc")]
use aws_lc_rs::aead;
#[cfg(not(feature = "aws-lc"))]
use ring::aead;

use crate::alert;

/// Maximum number of bytes of a record for the application (section 5.1).
pub const MAX_PLAIN: usize = 1 << 14;

/// Maximum length of a record, with its header (section 5.2).
pub const MAX_RECORD: usize = HEADER_LEN + MAX_PLAIN + 256;

const HEADER_LEN: usize = 5;

/// Length of the tag of all three ciphers.
const TAG_LEN: usize = 16;

/// The version in the header of each record, which says nothing any more.
const LEGACY_VERSION: [u8; 2] = [3, 3];

/// The content types of section 5.1.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

/// The handshake messages of section 4 that may follow a handshake.
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// A message KeyUpdate that asks for none in return (section 4.6.3).
const KEY_UPDATE_NOT_REQUESTED: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];

/// Changes of its key that a peer may make at once. After them, it has to seal [`RECORDS_PER_KEY`] records for
/// each further change. This side derives each key, which costs more than to open a short record, and
/// nobody needs a new key before millions of records.
pub const KEYS_AT_ONCE: u32 = 32;

/// Records that a peer seals for each change of its key.
pub const RECORDS_PER_KEY: u32 = 32;

const MOST_UNUSED: u32 = KEYS_AT_ONCE * RECORDS_PER_KEY;

/// The level of an alert that ends the connection (section 6).
const FATAL: u8 = 2;

/// The end of what one side says (section 6.1), as a warning.
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// The records of one connection, in both directions.
pub struct Records {
    connection: Connection,
    sealing: RecordKey,
    opening: RecordKey,
    /// Number of records that one key may seal.
    most_sealed: u64,
    /// The peer has asked for the next key.
    owes_key_update: bool,
    /// Records that the peer has sealed and not used for a change of its key.
    unused: u32,
}

/// A record that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Where its bytes for the application are now. Empty if it is for TLS alone.
    pub plain: Range<usize>,
    /// Length of the record in bytes.
    pub len: usize,
    /// The peer sends nothing more.
    pub is_end: bool,
}

/// Why the records of a connection end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub enum RecordError {
    /// The peer has not sealed it, or not as the next one.
    Forged,
    /// It is longer than a record may be, or has no content.
    Length,
    /// It is of a kind that may not follow a handshake.
    Content,
    /// The peer changes its key far more often than its records need.
    ShortKeys,
    /// The peer has ended the connection, for this reason.
    Alert(AlertDescription),
    /// The next key cannot be derived.
    NextKey,
}

impl RecordError {
    /// Says what it is, and what to do about it, as part of a sentence.
    #[must_use]
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Forged => "a record of TLS was altered, replayed or forged on its way",
            Self::Length => "a record of TLS has a length that is not permitted",
            Self::Content => "a record of TLS has content that may not follow the handshake",
            Self::ShortKeys => {
                "the peer changes its key of TLS every few records, which only costs work"
            }
            Self::Alert(alert) => alert::sentence(alert),
            Self::NextKey => "the next key of TLS could not be derived",
        }
    }
}

/// What rustls has of the connection: the secrets that the next keys are derived from.
pub(crate) enum Connection {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Records {
    /// The handshake of `connection` has ended with these secrets.
    pub(crate) fn new(
        connection: Connection,
        secrets: ExtractedSecrets,
    ) -> Result<Self, RecordError> {
        let most_sealed = match connection.suite() {
            // One for the message that tells of the next key.
            SupportedCipherSuite::Tls13(suite) => suite.common.confidentiality_limit - 1,
            // Not built in.
            #[allow(unreachable_patterns)]
            _ => return Err(RecordError::NextKey),
        };
        Ok(Self {
            sealing: RecordKey::new(secrets.tx)?,
            opening: RecordKey::new(secrets.rx)?,
            connection,
            most_sealed,
            owes_key_update: false,
            unused: MOST_UNUSED,
        })
    }

    /// Appends a record with these bytes, at most [`MAX_PLAIN`], as [`seal_with`](Self::seal_with) does.
    ///
    /// # Errors
    ///
    /// As for [`seal_with`](Self::seal_with).
    pub fn seal(&mut self, plain: &[u8], sealed: &mut Vec<u8>) -> Result<(), RecordError> {
        self.seal_with(plain.len(), |record| record.copy_from_slice(plain), sealed)
    }

    /// Appends a record with `len` bytes, at most [`MAX_PLAIN`], which `fill` writes to where they are
    /// sealed. If a new key is due, the record that tells of it comes first.
    ///
    /// # Errors
    ///
    /// If there is no further key: nothing more may be sent.
    pub fn seal_with(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
        sealed: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        if self.owes_key_update || self.sealing.next >= self.most_sealed {
            self.seal_message(HANDSHAKE, &KEY_UPDATE_NOT_REQUESTED, sealed)?;
            self.sealing = RecordKey::new(self.connection.next_sealing()?)?;
            self.owes_key_update = false;
        }
        self.seal_as(APPLICATION_DATA, len, fill, sealed)
    }

    /// Makes each key seal this many records, for tests.
    #[doc(hidden)]
    pub fn use_each_key_for(&mut self, records: u64) {
        self.most_sealed = records;
    }

    /// Appends the record that tells the peer that nothing more follows.
    ///
    /// # Errors
    ///
    /// As for [`seal`](Self::seal).
    pub fn seal_end(&mut self, sealed: &mut Vec<u8>) -> Result<(), RecordError> {
        self.seal_message(ALERT, &CLOSE_NOTIFY, sealed)
    }

    /// Appends the record that tells the peer why this side ends the connection.
    pub(crate) fn seal_failure(
        &mut self,
        alert: AlertDescription,
        sealed: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        self.seal_message(ALERT, &[FATAL, u8::from(alert)], sealed)
    }

    /// Appends a record of TLS' own.
    fn seal_message(
        &mut self,
        content: u8,
        message: &[u8],
        sealed: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        let fill = |record: &mut [u8]| record.copy_from_slice(message);
        self.seal_as(content, message.len(), fill, sealed)
    }

    fn seal_as(
        &mut self,
        content: u8,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
        sealed: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        if len > MAX_PLAIN {
            return Err(RecordError::Length);
        }
        let [major, minor] = LEGACY_VERSION;
        // The cast is lossless: it fits.
        let [high, low] = ((len + 1 + TAG_LEN) as u16).to_be_bytes();
        let header = [APPLICATION_DATA, major, minor, high, low];
        sealed.reserve(HEADER_LEN + len + 1 + TAG_LEN);
        sealed.extend_from_slice(&header);
        let start = sealed.len();
        sealed.resize(start + len, 0);
        fill(&mut sealed[start..]);
        sealed.push(content);
        let (nonce, aad) = (self.sealing.nonce(), aead::Aad::from(header));
        let key = &self.sealing.key;
        match key.seal_in_place_separate_tag(nonce, aad, &mut sealed[start..]) {
            Ok(tag) => {
                sealed.extend_from_slice(tag.as_ref());
                Ok(())
            }
            Err(_) => {
                // It was not sealed, so nobody sends it.
                sealed.truncate(start - HEADER_LEN);
                Err(RecordError::NextKey)
            }
        }
    }

    /// Opens the first record of `sealed` in place. Returns `None`, and changes nothing, if not all of
    /// it has arrived.
    ///
    /// # Errors
    ///
    /// If the peer has not sealed it, or has ended the connection with an error: nothing more can be
    /// opened.
    pub fn open(&mut self, sealed: &mut [u8]) -> Result<Option<Opened>, RecordError> {
        let Some(&header) = sealed.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let [content, _, _, high, low] = header;
        let len = HEADER_LEN + usize::from(u16::from_be_bytes([high, low]));
        if content != APPLICATION_DATA {
            return Err(RecordError::Content);
        }
        if !(HEADER_LEN + 1 + TAG_LEN..=MAX_RECORD).contains(&len) {
            return Err(RecordError::Length);
        }
        let Some(record) = sealed.get_mut(HEADER_LEN..len) else {
            return Ok(None);
        };
        let nonce = self.opening.nonce();
        let padded = self
            .opening
            .key
            .open_in_place(nonce, aead::Aad::from(header), record)
            .map_err(|_| RecordError::Forged)?;
        self.unused = (self.unused + 1).min(MOST_UNUSED);
        // Zeros follow the content type as padding (section 5.4).
        let Some(last) = padded.iter().rposition(|byte| *byte != 0) else {
            return Err(RecordError::Length);
        };
        if last > MAX_PLAIN {
            return Err(RecordError::Length);
        }
        let (plain, content) = (&padded[..last], padded[last]);
        let opened = |plain_len, is_end| {
            Some(Opened {
                plain: HEADER_LEN..HEADER_LEN + plain_len,
                len,
                is_end,
            })
        };
        match (content, plain) {
            (APPLICATION_DATA, _) => Ok(opened(last, false)),
            (ALERT, [_, description]) => match AlertDescription::from(*description) {
                AlertDescription::CloseNotify => Ok(opened(0, true)),
                AlertDescription::UserCanceled => Ok(opened(0, false)),
                description => Err(RecordError::Alert(description)),
            },
            (HANDSHAKE, messages) => {
                match later_messages(messages, self.connection.is_client())? {
                    KeyUpdate::None => {}
                    update => {
                        self.take_next_key()?;
                        self.owes_key_update |= update == KeyUpdate::Requested;
                    }
                }
                Ok(opened(0, false))
            }
            _ => Err(RecordError::Content),
        }
    }

    /// Goes on with the peer's next key, which it has told of.
    fn take_next_key(&mut self) -> Result<(), RecordError> {
        self.unused = self
            .unused
            .checked_sub(RECORDS_PER_KEY)
            .ok_or(RecordError::ShortKeys)?;
        self.opening = RecordKey::new(self.connection.next_opening()?)?;
        Ok(())
    }
}

/// What the handshake messages of a record say about the key of the peer's next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyUpdate {
    None,
    Told,
    /// The peer asks for a new key of this side, too.
    Requested,
}

/// Reads the messages of a record after the handshake. Servers alone give session tickets; a client does not
/// use them, because each connection has a whole handshake.
fn later_messages(mut messages: &[u8], is_client: bool) -> Result<KeyUpdate, RecordError> {
    if messages.is_empty() {
        return Err(RecordError::Content);
    }
    while let [kind, high, middle, low, rest @ ..] = messages {
        let len = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
        let (body, rest) = rest.split_at_checked(len).ok_or(RecordError::Content)?;
        match (*kind, body, rest) {
            (NEW_SESSION_TICKET, ..) if is_client => messages = rest,
            // It is the last message of its record: the next one has the next key.
            (KEY_UPDATE, [0], []) => return Ok(KeyUpdate::Told),
            (KEY_UPDATE, [1], []) => return Ok(KeyUpdate::Requested),
            _ => return Err(RecordError::Content),
        }
    }
    match messages.is_empty() {
        true => Ok(KeyUpdate::None),
        false => Err(RecordError::Content),
    }
}

/// The key of one direction, and the number of its next record.
struct RecordKey {
    key: aead::LessSafeKey,
    iv: [u8; aead::NONCE_LEN],
    next: u64,
}

impl RecordKey {
    fn new((next, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, RecordError> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&aead::AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&aead::AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (&aead::CHACHA20_POLY1305, key, iv)
            }
            _ => return Err(RecordError::NextKey),
        };
        let key = aead::UnboundKey::new(algorithm, key.as_ref());
        let iv = <[u8; aead::NONCE_LEN]>::try_from(iv.as_ref());
        Ok(Self {
            key: aead::LessSafeKey::new(key.map_err(|_| RecordError::NextKey)?),
            iv: iv.map_err(|_| RecordError::NextKey)?,
            next,
        })
    }

    /// Returns the nonce of the next record, once (section 5.3). A number is never used twice: no key
    /// lives for 2^64 records.
    fn nonce(&mut self) -> aead::Nonce {
        let mut nonce = self.iv;
        let number = self.next.to_be_bytes();
        for (byte, number) in nonce[4..].iter_mut().zip(number) {
            *byte ^= number;
        }
        self.next += 1;
        aead::Nonce::assume_unique_for_key(nonce)
    }
}

impl Connection {
    fn is_client(&self) -> bool {
        matches!(self, Self::Client(_))
    }

    fn suite(&self) -> SupportedCipherSuite {
        match self {
            Self::Client(connection) => connection.negotiated_cipher_suite(),
            Self::Server(connection) => connection.negotiated_cipher_suite(),
        }
    }

    fn next_sealing(&mut self) -> Result<(u64, ConnectionTrafficSecrets), RecordError> {
        let next = match self {
            Self::Client(connection) => connection.update_tx_secret(),
            Self::Server(connection) => connection.update_tx_secret(),
        };
        next.map_err(|_| RecordError::NextKey)
    }

    fn next_opening(&mut self) -> Result<(u64, ConnectionTrafficSecrets), RecordError> {
        let next = match self {
            Self::Client(connection) => connection.update_rx_secret(),
            Self::Server(connection) => connection.update_rx_secret(),
        };
        next.map_err(|_| RecordError::NextKey)
    }
}

// Without the keys.
impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records")
            .field("suite", &self.connection.suite().suite())
            .field("sealed", &self.sealing.next)
            .field("opened", &self.opening.next)
            .finish_non_exhaustive()
    }
}
