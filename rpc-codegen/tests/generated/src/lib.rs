//! The messages of `rpc-codegen/tests/protos` and of `proto`, and the check that their generated codec
//! and prost agree. The tests of `rpc-codegen` and the fuzz target `codec` use it.

use std::fmt::Debug;

use rpc_core::codegen::v1::bytes::{Buf, Bytes, BytesMut};
use rpc_core::codegen::v1::prost::Message;
use rpc_core::codegen::v1::{GeneratedCodec, GeneratedMessage};
use rpc_core::for_testing::decode_beside;
use rpc_core::transport::MessageMemory;
use rpc_core::{BY_REFERENCE_LEN, BegunDecode, Chunks, Codec, LengthChanged, ProstCodec, block_on};

/// The folder of this package.
pub const DIRECTORY: &str = env!("CARGO_MANIFEST_DIR");

/// The code with default settings.
pub mod plain {
    include!(concat!(env!("OUT_DIR"), "/plain/packages.rs"));
}

/// The code with `Bytes` and `BTreeMap`.
pub mod sorted {
    include!(concat!(env!("OUT_DIR"), "/sorted/packages.rs"));
}

/// The code with the settings that change more than the types of fields: the package `Shop.V1`.
pub mod shop {
    include!(concat!(env!("OUT_DIR"), "/options/Shop.V1.rs"));

    impl std::fmt::Debug for Secret {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Secret")
        }
    }
}

/// One message type.
#[derive(Clone, Copy, Debug)]
pub struct Checked {
    /// Its name in its `.proto`.
    pub name: &'static str,
    /// Compares the codecs for these bytes. See [`Agreed`].
    pub check: fn(&[u8]) -> Agreed,
    /// Decodes these bytes with the generated codec, and drops the message.
    pub decode: fn(&[u8]),
}

/// The result of a comparison that found no difference.
#[derive(Clone, Debug, PartialEq)]
pub enum Agreed {
    /// Neither codec decodes the bytes.
    Invalid,
    /// Both decode them to the same value.
    Valid {
        /// The encoding of the value.
        encoded: Vec<u8>,
        /// Whether the generated code decoded that encoding without prost.
        straight: bool,
    },
}

macro_rules! messages {
    ($($name:literal: $ty:ty,)*) => {
        /// All message types. Those with both settings occur twice.
        pub static MESSAGES: &[Checked] = &[$(Checked {
            name: $name,
            check: check::<$ty>,
            decode: |bytes| drop(<GeneratedCodec as Codec<$ty>>::decode(bytes)),
        },)*];
    };
}

messages! {
    ".Lonely": plain::Lonely,
    ".clashes.Request": plain::clashes::Request,
    ".clashes.Response": plain::clashes::Response,
    ".clashes.Status": plain::clashes::Status,
    ".clashes.Result": plain::clashes::Result,
    ".clashes.Option": plain::clashes::Option,
    ".clashes.Some": plain::clashes::Some,
    ".clashes.None": plain::clashes::None,
    ".clashes.Ok": plain::clashes::Ok,
    ".clashes.Send": plain::clashes::Send,
    ".clashes.Sync": plain::clashes::Sync,
    ".clashes.Future": plain::clashes::Future,
    ".clashes.Service": plain::clashes::Service,
    ".clashes.Methods": plain::clashes::Methods,
    ".clashes.Instances": plain::clashes::Instances,
    ".clashes.Caller": plain::clashes::Caller,
    ".clashes.IntoRequest": plain::clashes::IntoRequest,
    ".clashes.CallError": plain::clashes::CallError,
    ".clashes.MethodSpec": plain::clashes::MethodSpec,
    ".clashes.Arc": plain::clashes::Arc,
    ".clashes.Fn": plain::clashes::Fn,
    ".clashes.Stream": plain::clashes::Stream,
    ".clashes.Streaming": plain::clashes::Streaming,
    ".clashes.Sender": plain::clashes::Sender,
    ".clashes.Messages": plain::clashes::Messages,
    ".clashes.Responses": plain::clashes::Responses,
    ".clashes.IntoStreamingRequest": plain::clashes::IntoStreamingRequest,
    ".clashes.Clone": plain::clashes::Clone,
    ".clashes.Debug": plain::clashes::Debug,
    ".clashes.Default": plain::clashes::Default,
    ".clashes.String": plain::clashes::String,
    ".clashes.Vec": plain::clashes::Vec,
    ".clashes.Box": plain::clashes::Box,
    ".clashes.T": plain::clashes::T,
    ".clashes.C": plain::clashes::C,
    ".clashes.F": plain::clashes::F,
    ".clashes.ClientMethod": plain::clashes::ClientMethod,
    ".clashes.ClientMethod.Nested": plain::clashes::client_method::Nested,
    ".comments.Message": plain::comments::Message,
    ".deep.Tree": plain::deep::Tree,
    ".deep.Tree.Graft": plain::deep::tree::Graft,
    ".deep.Tree.Graft.Bud": plain::deep::tree::graft::Bud,
    ".deep.Tree.Stone": plain::deep::tree::Stone,
    ".deep.Branch": plain::deep::Branch,
    ".deep.Seed": plain::deep::Seed,
    ".deep.Notes": plain::deep::Notes,
    ".deep.Note": plain::deep::Note,
    ".greeter.HelloRequest": plain::greeter::HelloRequest,
    ".greeter.HelloReply": plain::greeter::HelloReply,
    ".keywords.Empty": plain::keywords::Empty,
    ".keywords.Match": plain::keywords::Match,
    ".keywords.Match.Loop": plain::keywords::r#match::Loop,
    ".lists.Parcel": plain::lists::Parcel,
    ".lists.Berth": plain::lists::Berth,
    ".lists.Reading": plain::lists::Reading,
    ".lists.Vessel": plain::lists::Vessel,
    ".lists.Vessel.Papers": plain::lists::vessel::Papers,
    ".lists.Vessel.Plan": plain::lists::vessel::Plan,
    ".lists.Vessel.State": plain::lists::vessel::State,
    ".lists.Cabin": plain::lists::Cabin,
    ".lists.Hold": plain::lists::Hold,
    ".lists.Terms": plain::lists::Terms,
    ".lists.Address": plain::lists::Address,
    ".lists.Lists": plain::lists::Lists,
    ".nested.type.fooBar.v1beta1.Ping": plain::nested::r#type::foo_bar::v1beta1::Ping,
    ".nested.type.fooBar.v1beta1.Pong": plain::nested::r#type::foo_bar::v1beta1::Pong,
    ".services.Key": plain::services::Key,
    ".services.Value": plain::services::Value,
    ".streams.Place": plain::streams::Place,
    ".streams.Reading": plain::streams::Reading,
    ".streams.Summary": plain::streams::Summary,
    ".types.common.Thing": plain::types::common::Thing,
    ".types.common.Thing.Part": plain::types::common::thing::Part,
    ".types.v1.Outer": plain::types::v1::Outer,
    ".types.v1.Outer.Inner": plain::types::v1::outer::Inner,
    ".types.v1.Outer.Inner.Innermost": plain::types::v1::outer::inner::Innermost,
    ".each_well_known.WellKnown": plain::each_well_known::WellKnown,
    ".each_well_known.v2.WellKnown": plain::each_well_known::v2::WellKnown,
    ".fields.v3.Scalars": plain::fields::v3::Scalars,
    ".fields.v3.Fixed": plain::fields::v3::Fixed,
    ".fields.v3.Optional": plain::fields::v3::Optional,
    ".fields.v3.Packed": plain::fields::v3::Packed,
    ".fields.v3.Unpacked": plain::fields::v3::Unpacked,
    ".fields.v3.Maps": plain::fields::v3::Maps,
    ".fields.v3.Oneofs": plain::fields::v3::Oneofs,
    ".fields.v3.Oneofs.Kind": plain::fields::v3::oneofs::Kind,
    ".fields.v3.Recursive": plain::fields::v3::Recursive,
    ".fields.v3.Externs": plain::fields::v3::Externs,
    ".fields.v3.Tags": plain::fields::v3::Tags,
    ".fields.v3.Empty": plain::fields::v3::Empty,
    ".fields.v2.Required": plain::fields::v2::Required,
    ".fields.v2.Defaults": plain::fields::v2::Defaults,
    ".fields.v2.Optional": plain::fields::v2::Optional,
    ".fields.v2.Groups": plain::fields::v2::Groups,
    ".fields.v2.Groups.One": plain::fields::v2::groups::One,
    ".fields.v2.Groups.Many": plain::fields::v2::groups::Many,
    ".fields.v2.Groups.Many.Inner": plain::fields::v2::groups::many::Inner,
    ".fields.v2.Groups.Always": plain::fields::v2::groups::Always,
    ".fields.v2.Grouped": plain::fields::v2::Grouped,
    ".fields.v2.Grouped.Chosen": plain::fields::v2::grouped::Chosen,
    ".fields.v3.Scalars": sorted::fields::v3::Scalars,
    ".fields.v3.Fixed": sorted::fields::v3::Fixed,
    ".fields.v3.Optional": sorted::fields::v3::Optional,
    ".fields.v3.Packed": sorted::fields::v3::Packed,
    ".fields.v3.Unpacked": sorted::fields::v3::Unpacked,
    ".fields.v3.Maps": sorted::fields::v3::Maps,
    ".fields.v3.Oneofs": sorted::fields::v3::Oneofs,
    ".fields.v3.Oneofs.Kind": sorted::fields::v3::oneofs::Kind,
    ".fields.v3.Recursive": sorted::fields::v3::Recursive,
    ".fields.v3.Externs": sorted::fields::v3::Externs,
    ".fields.v3.Tags": sorted::fields::v3::Tags,
    ".fields.v3.Empty": sorted::fields::v3::Empty,
    ".fields.v2.Required": sorted::fields::v2::Required,
    ".fields.v2.Defaults": sorted::fields::v2::Defaults,
    ".fields.v2.Optional": sorted::fields::v2::Optional,
    ".fields.v2.Groups": sorted::fields::v2::Groups,
    ".fields.v2.Groups.One": sorted::fields::v2::groups::One,
    ".fields.v2.Groups.Many": sorted::fields::v2::groups::Many,
    ".fields.v2.Groups.Many.Inner": sorted::fields::v2::groups::many::Inner,
    ".fields.v2.Groups.Always": sorted::fields::v2::groups::Always,
    ".fields.v2.Grouped": sorted::fields::v2::Grouped,
    ".fields.v2.Grouped.Chosen": sorted::fields::v2::grouped::Chosen,
    ".blobs.Blob": sorted::blobs::Blob,
    ".blobs.Header": sorted::blobs::Header,
    ".blobs.Part": sorted::blobs::Part,
    ".blobs.PutReply": sorted::blobs::PutReply,
    ".blobs.GetRequest": sorted::blobs::GetRequest,
    ".chat.ClientEvent": sorted::chat::ClientEvent,
    ".chat.Enter": sorted::chat::Enter,
    ".chat.Say": sorted::chat::Say,
    ".chat.ServerEvent": sorted::chat::ServerEvent,
    ".chat.Entered": sorted::chat::Entered,
    ".chat.Said": sorted::chat::Said,
    ".chat.Left": sorted::chat::Left,
    ".grpc.testing.Empty": sorted::grpc::testing::Empty,
    ".grpc.testing.BoolValue": sorted::grpc::testing::BoolValue,
    ".grpc.testing.Payload": sorted::grpc::testing::Payload,
    ".grpc.testing.EchoStatus": sorted::grpc::testing::EchoStatus,
    ".grpc.testing.SimpleRequest": sorted::grpc::testing::SimpleRequest,
    ".grpc.testing.SimpleResponse": sorted::grpc::testing::SimpleResponse,
    ".grpc.testing.StreamingInputCallRequest": sorted::grpc::testing::StreamingInputCallRequest,
    ".grpc.testing.StreamingInputCallResponse": sorted::grpc::testing::StreamingInputCallResponse,
    ".grpc.testing.ResponseParameters": sorted::grpc::testing::ResponseParameters,
    ".grpc.testing.StreamingOutputCallRequest": sorted::grpc::testing::StreamingOutputCallRequest,
    ".grpc.testing.StreamingOutputCallResponse": sorted::grpc::testing::StreamingOutputCallResponse,
    ".routeguide.Point": sorted::routeguide::Point,
    ".routeguide.Rectangle": sorted::routeguide::Rectangle,
    ".routeguide.Feature": sorted::routeguide::Feature,
    ".routeguide.RouteNote": sorted::routeguide::RouteNote,
    ".routeguide.RouteSummary": sorted::routeguide::RouteSummary,
    ".verbline.bench.Fixed": sorted::verbline::bench::Fixed,
    ".verbline.bench.Blob": sorted::verbline::bench::Blob,
    ".verbline.bench.SubscribeRequest": sorted::verbline::bench::SubscribeRequest,
    ".verbline.bench.CollectReply": sorted::verbline::bench::CollectReply,
    ".verbline.bench.StatsRequest": sorted::verbline::bench::StatsRequest,
    ".verbline.bench.StatsReply": sorted::verbline::bench::StatsReply,
    ".verbline.bulk.PutRequest": sorted::verbline::bulk::PutRequest,
    ".verbline.bulk.PutReply": sorted::verbline::bulk::PutReply,
    ".verbline.bulk.GetRequest": sorted::verbline::bulk::GetRequest,
    ".verbline.bulk.GetReply": sorted::verbline::bulk::GetReply,
    ".verbline.bulk.UploadReply": sorted::verbline::bulk::UploadReply,
    ".verbline.echo.EchoRequest": sorted::verbline::echo::EchoRequest,
    ".verbline.echo.EchoReply": sorted::verbline::echo::EchoReply,
    ".verbline.greeter.HelloRequest": sorted::verbline::greeter::HelloRequest,
    ".verbline.greeter.HelloReply": sorted::verbline::greeter::HelloReply,
    ".verbline.handshake.v1.Handshake": sorted::verbline::handshake::v1::Handshake,
    ".verbline.handshake.v1.Endpoint": sorted::verbline::handshake::v1::Endpoint,
    ".verbline.handshake.v1.Challenge": sorted::verbline::handshake::v1::Challenge,
    ".verbline.handshake.v1.ClientHello": sorted::verbline::handshake::v1::ClientHello,
    ".verbline.handshake.v1.ServerHello": sorted::verbline::handshake::v1::ServerHello,
    ".verbline.handshake.v1.Ready": sorted::verbline::handshake::v1::Ready,
    ".verbline.handshake.v1.Refusal": sorted::verbline::handshake::v1::Refusal,
    ".verbline.session.v1.ClientSession": sorted::verbline::session::v1::ClientSession,
    ".verbline.session.v1.ServerSession": sorted::verbline::session::v1::ServerSession,
    ".verbline.session.v1.NumberedMethod": sorted::verbline::session::v1::NumberedMethod,
    ".watch.PutRequest": sorted::watch::PutRequest,
    ".watch.PutReply": sorted::watch::PutReply,
    ".watch.WatchRequest": sorted::watch::WatchRequest,
    ".watch.Event": sorted::watch::Event,
    ".fields.v3.EachRepeated": plain::fields::v3::EachRepeated,
    ".fields.v3.EachSingle": plain::fields::v3::EachSingle,
    ".fields.v3.EachMap": plain::fields::v3::EachMap,
    ".fields.v3.EachVariant": plain::fields::v3::EachVariant,
    ".fields.v2.EachRepeated": plain::fields::v2::EachRepeated,
    ".fields.v2.EachSingle": plain::fields::v2::EachSingle,
    ".fields.v2.EachMap": plain::fields::v2::EachMap,
    ".fields.v2.EachVariant": plain::fields::v2::EachVariant,
    ".fields.v2.EachRepeated.Part": plain::fields::v2::each_repeated::Part,
    ".fields.v2.EachVariant.Part": plain::fields::v2::each_variant::Part,
    ".fields.v3.EachRepeated": sorted::fields::v3::EachRepeated,
    ".fields.v3.EachSingle": sorted::fields::v3::EachSingle,
    ".fields.v3.EachMap": sorted::fields::v3::EachMap,
    ".fields.v3.EachVariant": sorted::fields::v3::EachVariant,
    ".fields.v2.EachRepeated": sorted::fields::v2::EachRepeated,
    ".fields.v2.EachSingle": sorted::fields::v2::EachSingle,
    ".fields.v2.EachMap": sorted::fields::v2::EachMap,
    ".fields.v2.EachVariant": sorted::fields::v2::EachVariant,
    ".fields.v2.EachRepeated.Part": sorted::fields::v2::each_repeated::Part,
    ".fields.v2.EachVariant.Part": sorted::fields::v2::each_variant::Part,
}

/// Decodes `bytes` with both codecs, and compares values, encodings and errors.
///
/// # Panics
///
/// Panics if there is a difference.
fn check<M: GeneratedMessage + PartialEq + Debug>(bytes: &[u8]) -> Agreed {
    let prost: Result<M, _> = ProstCodec::decode(bytes);
    let generated: Result<M, _> = GeneratedCodec::decode(bytes);
    match (prost, generated) {
        (Ok(prost), Ok(generated)) => {
            assert!(
                is_same(&prost, &generated),
                "{prost:?}\n{generated:?}\n{bytes:02x?}"
            );
            let encoded = generated.encode_to_vec();
            check_encoding(&generated, &encoded);
            check_shared(&generated, bytes);
            let straight: Option<M> = GeneratedMessage::decode(&encoded, 32);
            if let Some(straight) = &straight {
                assert!(is_same(&generated, straight), "{generated:?}\n{straight:?}");
            }
            Agreed::Valid {
                encoded,
                straight: straight.is_some(),
            }
        }
        (Err(prost), Err(generated)) => {
            assert_eq!(prost.to_string(), generated.to_string(), "{bytes:02x?}");
            let shared = GeneratedCodec::decode_shared(&Bytes::copy_from_slice(bytes), 1);
            let shared: Result<M, _> = shared.map(|decoded| decoded.message);
            assert_eq!(shared.unwrap_err().to_string(), prost.to_string());
            Agreed::Invalid
        }
        (prost, generated) => panic!("{prost:?}\n{generated:?}\n{bytes:02x?}"),
    }
}

/// Returns true if the messages are the same to the bit. A NaN does not equal itself, and two
/// `HashMap`s with the same entries have different orders.
fn is_same<M: Message + PartialEq + Debug>(one: &M, other: &M) -> bool {
    let (mut one_bytes, mut other_bytes) = (one.encode_to_vec(), other.encode_to_vec());
    if one_bytes == other_bytes {
        return true;
    }
    one_bytes.sort_unstable();
    other_bytes.sort_unstable();
    let text = format!("{one:?}");
    one_bytes == other_bytes
        && (one == other || text.contains("NaN"))
        // With `BTreeMap`, equal messages have equal encodings.
        && !std::any::type_name::<M>().contains("::sorted::")
}

/// Checks that the generated codec encodes as prost does.
fn check_encoding<M: GeneratedMessage + Debug>(message: &M, expected: &[u8]) {
    let len = <GeneratedCodec as Codec<M>>::encoded_len(message);
    assert_eq!(len, expected.len(), "{message:?}");
    // One byte too many, so that it shows if the codec writes it.
    let mut out = vec![0xaa; len + 1];
    GeneratedCodec::encode(message, &mut out[..len]).unwrap();
    assert_eq!(&out[..len], expected, "{message:?}");
    assert_eq!(out[len], 0xaa);
    GeneratedCodec::encode(message, &mut out).unwrap_err();
    if let Some(less) = len.checked_sub(1) {
        GeneratedCodec::encode(message, &mut out[..less]).unwrap_err();
        let error = GeneratedCodec::encode_to(message, &mut &mut out[..less]).unwrap_err();
        let expected = Message::encode(message, &mut &mut out[..less]).unwrap_err();
        assert_eq!(error, expected);
    }
    let mut buf = BytesMut::new();
    GeneratedCodec::encode_to(message, &mut buf).unwrap();
    assert_eq!(buf, expected, "{message:?}");
    check_chunks::<GeneratedCodec, M>(message, expected);
    check_chunks::<ProstCodec, M>(message, expected);
}

/// Memory that ends with the message, on the heap.
struct Memory(Vec<u8>);

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl MessageMemory for Memory {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn freeze(self: Box<Self>, len: usize) -> Bytes {
        Bytes::from(self.0).slice(..len)
    }
}

/// Checks that a codec encodes in parts as prost does in one, into memory and onto the heap.
fn check_chunks<C: Codec<M>, M: Debug>(message: &M, expected: &[u8]) {
    let encode = |len, has_memory: bool| -> Result<Chunks, LengthChanged> {
        C::encode_chunks(message, len, &mut |len| {
            let memory = || Box::new(Memory(vec![0xaa; len + 1])) as Box<dyn MessageMemory>;
            has_memory.then(memory)
        })
    };
    let len = expected.len();
    for has_memory in [true, false] {
        let mut chunks = encode(len, has_memory).unwrap();
        assert_eq!(chunks.len(), len, "{message:?}");
        let references = chunks.by_reference_len();
        assert!(references == 0 || references >= BY_REFERENCE_LEN);
        assert_eq!(chunks.copy_to_bytes(len), expected, "{message:?}");
        encode(len + 1, has_memory).unwrap_err();
        if let Some(less) = len.checked_sub(1) {
            encode(less, has_memory).unwrap_err();
        }
    }
}

/// Checks that both codecs decode the same value from shared bytes, whatever is shared.
fn check_shared<M: GeneratedMessage + PartialEq + Debug>(expected: &M, bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    for share_from in [1, 20, usize::MAX] {
        let generated = GeneratedCodec::decode_shared(&bytes, share_from).unwrap();
        assert!(generated.copied_len <= bytes.len());
        let prost = ProstCodec::decode_shared(&bytes, share_from).unwrap();
        let messages: [M; 2] = [generated.message, prost.message];
        for message in &messages {
            assert!(is_same(expected, message), "{expected:?}\n{message:?}");
        }
        drop(messages);
        assert!(is_unshared(&bytes));
    }
    check_beside::<GeneratedCodec, M>(expected, &bytes);
    // Fields that are copied keep nothing.
    let copied: M = GeneratedCodec::decode_shared(&bytes, usize::MAX)
        .unwrap()
        .message;
    assert!(is_unshared(&bytes));
    drop(copied);
}

/// Checks that a message has the same value wherever it is decoded: at once, or beside a poller.
fn check_beside<C: Codec<M>, M: GeneratedMessage + PartialEq + Debug>(expected: &M, bytes: &Bytes) {
    // Some encodings take more than the second one, and some less.
    for most_work in [0, 300_000] {
        decode_beside(most_work);
        let decoded = match C::begin_decode(bytes, 20) {
            BegunDecode::Done(decoded) => decoded,
            BegunDecode::Beside(decode) => block_on(decode),
        };
        let message = decoded.unwrap().message;
        assert!(is_same(expected, &message), "{expected:?}\n{message:?}");
    }
}

/// Returns true if no field shares the bytes. An empty `Bytes` is never unique.
fn is_unshared(bytes: &Bytes) -> bool {
    bytes.is_empty() || bytes.is_unique()
}

/// Checks the message that the first byte chooses, encoded in the rest.
///
/// # Panics
///
/// Panics if the codecs differ.
pub fn fuzz(input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else {
        return;
    };
    let message = MESSAGES[usize::from(*choice) % MESSAGES.len()];
    if let Agreed::Valid { encoded, .. } = (message.check)(bytes) {
        (message.check)(&encoded);
    }
}
