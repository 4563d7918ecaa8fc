//! The headers and trailers of gRPC over HTTP/2, and [`Metadata`].

use std::time::Duration;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use verbline::Metadata;

/// Values of keys that end in `-bin`: written without padding, and read with or without it, as gRPC
/// asks.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

pub(crate) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
pub(crate) const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
pub(crate) const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// The most bytes of metadata: of all keys and values. Verbline's has 64 KiB at most. A short header can
/// say more, because each of the values in it has the key.
const MOST_METADATA: usize = 1 << 16;

/// Longer timeouts are none: gRPC's eight digits can say 11,000 years, and clocks end before that.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60 * 60 * 24 * 365);

/// Returns true for keys that belong to HTTP, to gRPC or to this gateway, in either direction. They
/// are not metadata of the application.
fn is_reserved(key: &str) -> bool {
    key.starts_with("grpc-")
        || key.starts_with("verbline-")
        || matches!(
            key,
            "connection"
                | "content-length"
                | "content-type"
                | "host"
                | "keep-alive"
                | "proxy-connection"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
                | "user-agent"
        )
}

/// `application/grpc`, with the name of a codec or parameters. gRPC-Web is another protocol.
pub(crate) fn is_grpc(content_type: Option<&HeaderValue>) -> bool {
    let Some(rest) =
        content_type.and_then(|value| value.as_bytes().strip_prefix(b"application/grpc"))
    else {
        return false;
    };
    matches!(rest.first(), None | Some(b'+' | b';'))
}

/// Reads the metadata of a request.
///
/// # Errors
///
/// Says what cannot be metadata. Nothing is left out in silence.
pub(crate) fn read_metadata(headers: &HeaderMap) -> Result<Metadata, String> {
    let mut metadata = Metadata::new();
    let mut len = 0;
    let mut append = |key: &str, value: Vec<u8>| {
        len += key.len() + value.len();
        if len > MOST_METADATA {
            return Err(format!("the metadata has more than {MOST_METADATA} bytes"));
        }
        let appended = metadata.append(key, value);
        appended.map_err(|error| error.to_string())
    };
    for (name, value) in headers {
        let key = name.as_str();
        if is_reserved(key) {
            continue;
        }
        if key.ends_with("-bin") {
            // Several values of a key may come in one header.
            for part in value.as_bytes().split(|byte| *byte == b',') {
                let bytes = BASE64
                    .decode(part.trim_ascii())
                    .map_err(|_| format!("'{key}' is not base64"))?;
                append(key, bytes)?;
            }
        } else {
            append(key, value.as_bytes().to_vec())?;
        }
    }
    Ok(metadata)
}

/// Writes metadata of the server into the headers or the trailers of a response. A handler cannot set
/// what belongs to HTTP or to gRPC.
pub(crate) fn write_metadata(metadata: &Metadata, headers: &mut HeaderMap) {
    for (key, value) in metadata {
        if is_reserved(key) {
            continue;
        }
        let value = match key.ends_with("-bin") {
            true => HeaderValue::try_from(BASE64.encode(value)),
            false => HeaderValue::from_bytes(value),
        };
        // Keys are lower-case ASCII, and text is printable: both are valid in HTTP.
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(key.as_bytes()), value) {
            headers.append(name, value);
        }
    }
}

/// Reads `grpc-timeout`.
///
/// # Errors
///
/// Says so if the header is malformed.
pub(crate) fn read_timeout(headers: &HeaderMap) -> Result<Option<Duration>, String> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else {
        return Ok(None);
    };
    let timeout = value.to_str().ok().and_then(parse_timeout);
    let timeout = timeout.ok_or("'grpc-timeout' is not a number with a unit")?;
    Ok((timeout <= LONGEST_TIMEOUT).then_some(timeout))
}

fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 16 KiB of headers, each comma of which has a copy of the key.
    #[test]
    fn a_long_key_with_many_values_takes_no_more_memory_than_metadata_may() {
        let mut headers = HeaderMap::new();
        let key = HeaderName::try_from("k".repeat(8000) + "-bin").unwrap();
        headers.insert(key, HeaderValue::try_from(",".repeat(8000)).unwrap());
        let error = read_metadata(&headers).unwrap_err();
        assert!(error.contains("more than 65536 bytes"), "{error}");
    }

    fn metadata(pairs: &[(&'static str, &'static str)]) -> Result<Metadata, String> {
        let mut headers = HeaderMap::new();
        for (key, value) in pairs {
            headers.append(*key, HeaderValue::from_static(value));
        }
        read_metadata(&headers)
    }

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        let cases = [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("99999999S", Some(Duration::from_secs(99_999_999))),
            ("5m", Some(Duration::from_millis(5))),
            ("0n", Some(Duration::ZERO)),
            ("7u", Some(Duration::from_micros(7))),
            ("123456789S", None),
            ("S", None),
            ("", None),
            ("1", None),
            ("-1S", None),
            ("+1S", None),
            ("1s", None),
            ("1é", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_timeout(text), expected, "{text}");
        }
    }

    #[test]
    fn metadata_keeps_repeated_keys_and_bytes_and_leaves_out_reserved_keys() {
        let read = metadata(&[
            ("a", "1"),
            ("a", "2"),
            ("token-bin", "AP8"),
            ("token-bin", "AA==, /w"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("user-agent", "x"),
            ("grpc-timeout", "1S"),
            ("verbline-execution", "never-sent"),
        ])
        .unwrap_or_default();
        assert_eq!(read.get_all("a").collect::<Vec<_>>(), ["1", "2"]);
        let tokens: Vec<_> = read.get_all_bin("token-bin").collect();
        assert_eq!(tokens, [&[0, 255][..], &[0], &[255]]);
        assert_eq!(read.len(), 5);
        let mut headers = HeaderMap::new();
        write_metadata(&read, &mut headers);
        assert_eq!(read_metadata(&headers).unwrap_or_default(), read);
    }

    #[test]
    fn a_handler_cannot_set_the_headers_of_grpc() {
        let mut set = Metadata::new();
        for key in ["grpc-status", "content-type", "connection", "mine"] {
            set.insert(key, "0").unwrap();
        }
        let mut headers = HeaderMap::new();
        write_metadata(&set, &mut headers);
        assert_eq!(
            headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
            ["mine"]
        );
    }

    #[test]
    fn what_cannot_be_metadata_fails_the_call() {
        assert!(metadata(&[("token-bin", "!")]).is_err());
        assert!(metadata(&[("a!", "1")]).is_err());
        let mut headers = HeaderMap::new();
        headers.append("a", HeaderValue::from_bytes(&[0xff]).unwrap());
        assert!(read_metadata(&headers).is_err());
    }
}
