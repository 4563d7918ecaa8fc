//! [`Sealer`]: seals whatever content a test wants, under the keys of a connection. The libraries seal only
//! what the protocol permits.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ring::aead::{self, AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use rustls::KeyLog;

/// Length of a record's header.
pub const HEADER_LEN: usize = 5;

/// The type of a record with an alert.
pub const ALERT: u8 = 21;
/// The type of a record with messages of the handshake.
pub const HANDSHAKE: u8 = 22;
/// The type of a record with bytes of the application, and of each that is sealed.
pub const APPLICATION_DATA: u8 = 23;

/// The secrets of one connection, which rustls tells to the key log of its configuration.
#[derive(Clone, Default)]
pub struct Secrets(Arc<Mutex<Vec<Told>>>);

/// A label and its secret.
type Told = (String, Vec<u8>);

impl Secrets {
    /// Returns what seals under the secret with this label, from its first record on; `None` if the
    /// handshake has not come so far.
    #[must_use]
    pub fn sealer(&self, label: &str) -> Option<Sealer> {
        let secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, secret) = secrets.iter().find(|(of, _)| of == label)?;
        Some(Sealer::new(secret))
    }
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let mut secrets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        secrets.push((label.to_owned(), secret.to_vec()));
    }
}

/// The keys of one direction. The suite is the first one of Verbline's, TLS_AES_128_GCM_SHA256.
pub struct Sealer {
    secret: Prk,
    key: LessSafeKey,
    iv: Vec<u8>,
    next: u64,
}

impl Sealer {
    /// Seals under the keys of a traffic secret.
    ///
    /// # Panics
    ///
    /// Panics if the secret is one of another suite.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        assert_eq!(secret.len(), 32, "a secret of TLS_AES_128_GCM_SHA256");
        let secret = Prk::new_less_safe(HKDF_SHA256, secret);
        let key = UnboundKey::new(&AES_128_GCM, &expand(&secret, "key", 16)).unwrap();
        Self {
            key: LessSafeKey::new(key),
            iv: expand(&secret, "iv", aead::NONCE_LEN),
            secret,
            next: 0,
        }
    }

    /// Returns the record with this content and its type.
    #[must_use]
    pub fn seal(&mut self, content_type: u8, content: &[u8]) -> Vec<u8> {
        self.seal_inner([content, &[content_type]].concat())
    }

    /// Returns the record with these bytes where the content, its type and the padding are.
    ///
    /// # Panics
    ///
    /// Panics if no record can be so long.
    #[must_use]
    pub fn seal_inner(&mut self, mut inner: Vec<u8>) -> Vec<u8> {
        let len = inner.len() + AES_128_GCM.tag_len();
        let header = header(APPLICATION_DATA, len);
        let nonce = self.nonce();
        let sealed = (self.key).seal_in_place_append_tag(nonce, Aad::from(header), &mut inner);
        sealed.unwrap();
        [&header[..], &inner].concat()
    }

    /// Returns the number of records that were sealed with this key.
    #[must_use]
    pub fn sealed(&self) -> u64 {
        self.next
    }

    /// Returns the record that tells of the next key, and goes on with that key. `is_requested`: the other
    /// side has to change its own one, too.
    #[must_use]
    pub fn seal_key_update(&mut self, is_requested: bool) -> Vec<u8> {
        let message = self.seal(HANDSHAKE, &[24, 0, 0, 1, u8::from(is_requested)]);
        self.update();
        message
    }

    /// Returns the content of the next record of this direction, with its type and the padding.
    #[must_use]
    pub fn open(&mut self, record: &[u8]) -> Option<Vec<u8>> {
        let (header, sealed) = record.split_first_chunk::<HEADER_LEN>()?;
        let mut sealed = sealed.to_vec();
        let nonce = self.nonce();
        let inner = (self.key).open_in_place(nonce, Aad::from(*header), &mut sealed);
        Some(inner.ok()?.to_vec())
    }

    /// Goes on with the next key, as after a KeyUpdate.
    pub fn update(&mut self) {
        *self = Self::new(&expand(&self.secret, "traffic upd", 32));
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce: [u8; aead::NONCE_LEN] = self.iv[..].try_into().unwrap();
        for (byte, number) in nonce[4..].iter_mut().zip(self.next.to_be_bytes()) {
            *byte ^= number;
        }
        self.next += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

/// Returns the header of a record with this many bytes.
///
/// # Panics
///
/// Panics if no record can be so long.
#[must_use]
pub fn header(content_type: u8, len: usize) -> [u8; HEADER_LEN] {
    let [high, low] = u16::try_from(len).unwrap().to_be_bytes();
    [content_type, 3, 3, high, low]
}

/// HKDF-Expand-Label without a context (RFC 8446, section 7.1).
fn expand(secret: &Prk, label: &str, len: usize) -> Vec<u8> {
    struct Len(usize);

    impl KeyType for Len {
        fn len(&self) -> usize {
            self.0
        }
    }

    // Lossless: labels and keys are short.
    let lens = [(len as u16).to_be_bytes(), [6 + label.len() as u8, 0]];
    let [[high, low], [label_len, context_len]] = lens;
    let info = [
        &[high, low, label_len],
        &b"tls13 "[..],
        label.as_bytes(),
        &[context_len],
    ];
    let mut expanded = vec![0; len];
    let okm = secret.expand(&info, Len(len)).unwrap();
    okm.fill(&mut expanded).unwrap();
    expanded
}
