//! What the alerts of a peer say, as sentences for the people who set it up.

use rustls::AlertDescription;

/// Says why a peer has ended the connection, and what to do about it (RFC 8446, section 6).
pub(crate) fn sentence(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::CertificateRequired => {
            "the peer demands a certificate and got none: give this side an identity whose authority the peer trusts"
        }
        AlertDescription::UnknownCA => {
            "the peer does not trust the authority of this side's certificate: add the authority to the peer's roots, or use a certificate of one that it trusts"
        }
        AlertDescription::CertificateExpired => {
            "the peer found this side's certificate expired or not valid yet: renew it, and compare the clocks of both hosts"
        }
        AlertDescription::CertificateRevoked => {
            "the peer's list of revoked certificates has this side's certificate: use another one"
        }
        AlertDescription::BadCertificate | AlertDescription::UnsupportedCertificate => {
            "the peer refused this side's certificate: is it made for this name, and for this side of a connection (extended key usage)? The peer's log has the reason"
        }
        AlertDescription::CertificateUnknown | AlertDescription::AccessDenied => {
            "the peer refused this side's certificate: the peer's log has the reason"
        }
        AlertDescription::ProtocolVersion => {
            "the peer does not speak TLS 1.3, the only version here"
        }
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            "the two sides have no algorithm in common: the peer has to take TLS 1.3 with AES-GCM or ChaCha20, and certificates with ECDSA, Ed25519 or RSA keys"
        }
        AlertDescription::NoApplicationProtocol => {
            "the peer speaks TLS, but is no Verbline server: check the address"
        }
        AlertDescription::UnrecognisedName => "the peer does not serve this name",
        AlertDescription::DecryptError | AlertDescription::BadRecordMac => {
            "the peer could not decrypt or verify what this side sent: it was altered on its way, or the key of this side does not match its certificate"
        }
        AlertDescription::InternalError => {
            "the peer failed in the handshake: the peer's log has the reason"
        }
        AlertDescription::UnexpectedMessage
        | AlertDescription::DecodeError
        | AlertDescription::IllegalParameter
        | AlertDescription::RecordOverflow
        | AlertDescription::MissingExtension
        | AlertDescription::UnsupportedExtension => {
            "the peer found a message of this side's malformed or out of place"
        }
        _ => "the peer ended the connection with an alert of TLS: the peer's log has the reason",
    }
}
