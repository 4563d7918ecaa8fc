//! [`records`]: the records of TLS 1.3 on both ends of a connection, without a handshake between them.
//!
//! Each end performs the whole handshake with itself, in memory, and keeps the half of its role. All its
//! random bytes follow from a seed that both ends know: so they come to the same keys, even in two processes. What
//! follows the handshake is as always. Such keys protect nothing.

use std::cell::Cell;
use std::sync::{Arc, LazyLock};

use rcgen::{CertificateParams, KeyPair};
use rustls::client::Resumption;
use rustls::crypto::{
    ActiveKeyExchange, CryptoProvider, GetRandomFailed, SecureRandom, SharedSecret,
    SupportedKxGroup, ring,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, NamedGroup, RootCertStore, ServerConfig};
use verbline_tls::{ALPN, Handshake, Progress, Records};

/// Returns the records of the client's end, and those of the server's, as the seed says.
///
/// # Panics
///
/// Panics if the handshake fails.
#[must_use]
pub fn records(seed: u64) -> (Records, Records) {
    SEED.set(seed);
    let (client, server) = &*BOTH;
    let name = "localhost".try_into().unwrap();
    let mut client =
        Progress::Waits(Handshake::of_client_config(Arc::clone(client), name).unwrap());
    let mut server = Progress::Waits(Handshake::of_server_config(Arc::clone(server)).unwrap());
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    loop {
        match (client, server) {
            (Progress::Done(client), Progress::Done(server)) => {
                return (client.records, server.records);
            }
            (before_client, before_server) => {
                client = advance(before_client, &mut to_client, &mut to_server);
                server = advance(before_server, &mut to_server, &mut to_client);
            }
        }
    }
}

fn advance(side: Progress, arrived: &mut Vec<u8>, to_send: &mut Vec<u8>) -> Progress {
    match side {
        Progress::Waits(handshake) => handshake.advance(arrived, to_send).unwrap(),
        done @ Progress::Done(_) => done,
    }
}

/// The configurations of both sides. The key and the certificate are the same in each process: signatures
/// of Ed25519 are not random.
static BOTH: LazyLock<(Arc<ClientConfig>, Arc<ServerConfig>)> = LazyLock::new(|| {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(KEY.to_vec()));
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params
        .self_signed(&KeyPair::try_from(KEY).unwrap())
        .unwrap();
    let provider = Arc::new(CryptoProvider {
        kx_groups: vec![&Exchange],
        secure_random: &Seeded,
        ..ring::default_provider()
    });
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(&[&TLS13]).unwrap();
    let mut client = builder.with_root_certificates(roots).with_no_client_auth();
    client.resumption = Resumption::disabled();
    client.enable_secret_extraction = true;
    client.alpn_protocols = vec![ALPN.to_vec()];
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder.with_protocol_versions(&[&TLS13]).unwrap();
    let builder = builder.with_no_client_auth();
    let mut server = builder
        .with_single_cert(vec![certificate.into()], key)
        .unwrap();
    server.send_tls13_tickets = 0;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.enable_secret_extraction = true;
    server.alpn_protocols = vec![ALPN.to_vec()];
    (Arc::new(client), Arc::new(server))
});

/// A key of Ed25519 (RFC 8410, section 7) that everybody knows.
static KEY: &[u8] = &{
    let mut key = [0x42; 48];
    let prefix = [
        0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04,
        0x20,
    ];
    let mut at = 0;
    while at < prefix.len() {
        key[at] = prefix[at];
        at += 1;
    }
    key
};

thread_local! {
    /// Of the handshake that this thread performs.
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// Bytes that follow from the seed, by SplitMix64.
#[derive(Debug)]
struct Seeded;

impl SecureRandom for Seeded {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        for piece in bytes.chunks_mut(8) {
            let seed = SEED.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
            SEED.set(seed);
            let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let mixed = (mixed ^ (mixed >> 31)).to_le_bytes();
            piece.copy_from_slice(&mixed[..piece.len()]);
        }
        Ok(())
    }
}

/// A key exchange that takes the name of X25519, and always comes to the same secret. The keys of two
/// connections differ by the random bytes of their hellos.
#[derive(Debug)]
struct Exchange;

impl SupportedKxGroup for Exchange {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Ok(Box::new(Self))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, _: &[u8]) -> Result<SharedSecret, Error> {
        Ok(SharedSecret::from(&[7; 32][..]))
    }

    fn pub_key(&self) -> &[u8] {
        &[9; 32]
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_with_the_same_seed_have_the_same_keys_and_others_do_not() {
        let sealed = |seed| {
            let mut sealed = Vec::new();
            records(seed).0.seal(b"hello", &mut sealed).unwrap();
            sealed
        };
        let mut record = sealed(1);
        let opened = records(1).1.open(&mut record).unwrap().unwrap();
        assert_eq!(record[opened.plain], *b"hello");
        assert!(records(1).1.open(&mut sealed(2)).is_err());
    }
}
