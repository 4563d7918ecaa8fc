//! The cryptography: the TLS 1.3 suites of one provider.

use std::sync::{Arc, LazyLock};

use rustls::SupportedCipherSuite;
use rustls::crypto::CryptoProvider;

#[cfg(feature = "aws-lc")]
use rustls::crypto::aws_lc_rs as chosen;
#[cfg(not(feature = "aws-lc"))]
use rustls::crypto::ring as chosen;

/// The fastest suite comes first. A server takes the first one of the client's that it has.
static SUITES: [SupportedCipherSuite; 3] = [
    chosen::cipher_suite::TLS13_AES_128_GCM_SHA256,
    chosen::cipher_suite::TLS13_AES_256_GCM_SHA384,
    chosen::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
    Arc::new(CryptoProvider {
        cipher_suites: SUITES.to_vec(),
        ..chosen::default_provider()
    })
});

/// Returns the provider of all configurations. The default provider of the process is not touched.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::clone(&PROVIDER)
}

#[cfg(test)]
mod tests {
    use rustls::CipherSuite;

    use super::*;

    #[test]
    fn the_suites_are_those_of_tls_1_3_with_the_fastest_first() {
        let provider = provider();
        let suites: Vec<_> = provider
            .cipher_suites
            .iter()
            .map(|suite| suite.suite())
            .collect();
        let expected = [
            CipherSuite::TLS13_AES_128_GCM_SHA256,
            CipherSuite::TLS13_AES_256_GCM_SHA384,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        assert_eq!(suites, expected);
        assert!(!provider.kx_groups.is_empty());
    }
}
