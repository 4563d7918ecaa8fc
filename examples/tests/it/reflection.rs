//! Reflection, as clients with the generated stubs see it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proto::interop::{TestService, TestServiceServer};
use rpc_core::Methods;
use tempfile::TempDir;
use verbline::health::Health;
use verbline::message::prost::Message;
use verbline::message::prost_types::{FileDescriptorProto, FileDescriptorSet};
use verbline::reflection::v1::server_reflection_request::MessageRequest as Question;
use verbline::reflection::v1::server_reflection_response::MessageResponse as Answer;
use verbline::reflection::v1::{
    ExtensionRequest, ServerReflectionClient, ServerReflectionRequest, ServerReflectionResponse,
};
use verbline::reflection::{Reflection, v1alpha};
use verbline::server::{ServerBuilder, Service};
use verbline::{CallError, Channel, Code, Device, Server, ServerHandle, block_on};

/// A service with these descriptors, whose methods nobody calls.
struct Described(&'static str, Option<&'static [u8]>);

impl Service for Described {
    fn name(&self) -> &'static str {
        self.0
    }

    fn register(&self, _: &mut Methods) {}

    fn descriptor_set(&self) -> Option<&'static [u8]> {
        self.1
    }
}

/// All methods answer `UNIMPLEMENTED`: only its descriptors count.
struct Unimplemented;

impl TestService for Unimplemented {}

fn device() -> Device {
    Device::open("soft").expect("the software device always exists")
}

fn serve(add: impl FnOnce(ServerBuilder<Device>) -> ServerBuilder<Device>) -> ServerHandle {
    // It is the first one, and knows those that are added later.
    let server = Server::builder(&device()).add_service(Reflection::service());
    let server = add(server).pollers(2).bind("127.0.0.1:0");
    server.expect("the server starts").spawn()
}

fn channel(server: &ServerHandle) -> Channel {
    let address = server.local_addr().to_string();
    block_on(Channel::connect(&device(), &address)).expect("the server accepts")
}

fn request(question: Question) -> ServerReflectionRequest {
    ServerReflectionRequest {
        host: "a.example".to_owned(),
        message_request: Some(question),
    }
}

/// Asks on one stream, and returns all answers.
fn ask_all(
    server: &ServerHandle,
    requests: Vec<ServerReflectionRequest>,
) -> Result<Vec<ServerReflectionResponse>, CallError> {
    let client = ServerReflectionClient::new(channel(server));
    block_on(async {
        let requests = tokio_stream::iter(requests);
        let mut answers = client.server_reflection_info(requests).await?.into_inner();
        let mut all = Vec::new();
        while let Some(answer) = answers.message().await? {
            all.push(answer);
        }
        Ok(all)
    })
}

fn ask(server: &ServerHandle, question: Question) -> Answer {
    let mut answers = ask_all(server, vec![request(question)]).expect("the stream ends well");
    assert_eq!(answers.len(), 1);
    answers.remove(0).message_response.expect("an answer")
}

fn symbol(name: &str) -> Question {
    Question::FileContainingSymbol(name.to_owned())
}

/// Returns the names of the files in an answer.
fn files(answer: &Answer) -> Vec<String> {
    let Answer::FileDescriptorResponse(response) = answer else {
        panic!("no files: {answer:?}");
    };
    let files = response.file_descriptor_proto.iter();
    files
        .map(|file| {
            FileDescriptorProto::decode(file.clone())
                .unwrap()
                .name()
                .to_owned()
        })
        .collect()
}

/// Returns the message of an answer that nothing was found.
fn not_found(answer: &Answer) -> &str {
    let Answer::ErrorResponse(error) = answer else {
        panic!("no error: {answer:?}");
    };
    assert_eq!(Code::from(error.error_code), Code::NotFound);
    &error.error_message
}

/// Returns the names in a list of services.
fn services(answer: &Answer) -> Vec<&str> {
    let Answer::ListServicesResponse(list) = answer else {
        panic!("no list: {answer:?}");
    };
    list.service
        .iter()
        .map(|service| service.name.as_str())
        .collect()
}

/// Compiles files, and returns the descriptors of the last one and its imports, as generated code has
/// them.
fn compile(files: &[(&str, &str)]) -> &'static [u8] {
    let dir = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let (name, _) = files.last().unwrap();
    let set = protox::compile([name], [dir.path()]).unwrap();
    set.encode_to_vec().leak()
}

#[test]
fn exactly_the_services_that_are_served_are_listed() {
    let server = serve(|builder| {
        builder
            .add_service(Described("shop.Undescribed", None))
            .add_service(TestServiceServer::new(Unimplemented))
            .add_service(Health::new().service())
    });
    let all = [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "grpc.testing.TestService",
        "shop.Undescribed",
    ];
    let answer = ask(&server, Question::ListServices(String::new()));
    assert_eq!(services(&answer), all);
    // All but one are described.
    for name in all {
        let answer = ask(&server, symbol(name));
        match name {
            "shop.Undescribed" => {
                let why = not_found(&answer);
                assert!(
                    why.contains("rpc_codegen::configure().reflection(true)"),
                    "{why}"
                );
            }
            _ => assert!(files(&answer)[0].starts_with("grpc/"), "{name}"),
        }
    }
    let why = ask(&server, symbol("shop.Undescribed.Method"));
    assert!(not_found(&why).contains("shop.Undescribed is served without descriptors"));
    let why = ask(&server, symbol("shop.UndescribedToo"));
    assert!(!not_found(&why).contains("shop.UndescribedToo"));
    assert!(not_found(&why).contains("1 of the services"));
}

#[test]
fn a_file_comes_with_all_its_imports_as_the_compiler_describes_them() {
    let server = serve(|builder| builder.add_service(TestServiceServer::new(Unimplemented)));
    let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto");
    let compiled = protox::compile(["grpc/testing/test.proto"], [proto]).unwrap();
    let without_comments = |mut file: FileDescriptorProto| {
        file.source_code_info = None;
        (file.name().to_owned(), file)
    };
    let compiled: BTreeMap<_, _> = compiled.file.into_iter().map(without_comments).collect();
    assert_eq!(compiled.len(), 3);

    for question in [
        symbol("grpc.testing.TestService.UnaryCall"),
        Question::FileByFilename("grpc/testing/test.proto".to_owned()),
    ] {
        let answer = ask(&server, question);
        assert_eq!(files(&answer)[0], "grpc/testing/test.proto");
        let Answer::FileDescriptorResponse(response) = answer else {
            panic!("no files");
        };
        let files = response.file_descriptor_proto.into_iter();
        let files = files.map(|file| FileDescriptorProto::decode(file).unwrap());
        let files: BTreeMap<_, _> = files.map(|file| (file.name().to_owned(), file)).collect();
        assert_eq!(files, compiled);
    }
}

/// A question is echoed, and a stream brings an import once.
#[test]
fn a_stream_answers_in_order_and_brings_no_import_twice() {
    let server = serve(|builder| builder.add_service(TestServiceServer::new(Unimplemented)));
    let questions = ["TestService", "Empty", "TestService", "No", "SimpleRequest"];
    let requests: Vec<_> = questions
        .map(|name| request(symbol(&format!("grpc.testing.{name}"))))
        .into();
    let answers = ask_all(&server, requests.clone()).unwrap();
    for (answer, request) in answers.iter().zip(requests) {
        assert_eq!(answer.valid_host, "a.example");
        assert_eq!(answer.original_request.as_ref(), Some(&request));
    }
    let answers: Vec<_> = answers
        .into_iter()
        .map(|answer| answer.message_response.unwrap())
        .collect();
    assert_eq!(files(&answers[0]).len(), 3);
    // What is asked for comes again, without its imports.
    assert_eq!(files(&answers[1]), ["grpc/testing/empty.proto"]);
    assert_eq!(files(&answers[2]), ["grpc/testing/test.proto"]);
    not_found(&answers[3]);
    assert_eq!(files(&answers[4]), ["grpc/testing/messages.proto"]);
}

const BASE: &str = r#"
    syntax = "proto2";
    package base;
    message Extended { extensions 100 to 199; }
    message Plain {}
"#;

const ITEMS: &str = r#"
    syntax = "proto2";
    package items;
    import "base.proto";
    message Outer {
      optional int32 field = 1;
      oneof choice { string text = 2; int32 number = 3; }
      message Inner { optional int32 deep = 1; enum Kind { FIRST = 0; } }
      extend base.Extended { optional string nested_extension = 101; }
    }
    enum Color { RED = 0; }
    extend base.Extended { optional int32 extension = 100; }
    service Store { rpc Get(Outer) returns (Outer.Inner); }
"#;

#[test]
fn every_kind_of_symbol_and_each_extension_is_found() {
    let set = compile(&[("base.proto", BASE), ("items.proto", ITEMS)]);
    let server = serve(|builder| builder.add_service(Described("items.Store", Some(set))));
    for name in [
        "Outer",
        "Outer.field",
        "Outer.choice",
        "Outer.text",
        "Outer.Inner",
        "Outer.Inner.deep",
        "Outer.Inner.Kind",
        "Outer.Inner.FIRST",
        "Outer.nested_extension",
        "Color",
        "RED",
        "extension",
        "Store",
        "Store.Get",
    ] {
        let answer = ask(&server, symbol(&format!("items.{name}")));
        assert_eq!(files(&answer), ["items.proto", "base.proto"], "{name}");
    }
    for name in [
        "items.Outer.Kind",
        "items.Store.Put",
        "items",
        "Outer",
        "",
        ".",
    ] {
        not_found(&ask(&server, symbol(name)));
    }
    let extension = |containing_type: &str, extension_number| {
        ask(
            &server,
            Question::FileContainingExtension(ExtensionRequest {
                containing_type: containing_type.to_owned(),
                extension_number,
            }),
        )
    };
    for number in [100, 101] {
        let answer = extension("base.Extended", number);
        assert_eq!(files(&answer), ["items.proto", "base.proto"]);
    }
    for (name, number) in [
        ("base.Extended", 102),
        ("base.Extended", -1),
        ("base.No", 100),
    ] {
        not_found(&extension(name, number));
    }
    let numbers = |name: &str| {
        ask(
            &server,
            Question::AllExtensionNumbersOfType(name.to_owned()),
        )
    };
    for (name, expected) in [("base.Extended", vec![100, 101]), ("base.Plain", vec![])] {
        let Answer::AllExtensionNumbersResponse(response) = numbers(name) else {
            panic!("no numbers of {name}");
        };
        assert_eq!(response.base_type_name, name);
        assert_eq!(response.extension_number, expected);
    }
    for name in ["base.No", "items.Color"] {
        not_found(&numbers(name));
    }
    let file = |name: &str| ask(&server, Question::FileByFilename(name.to_owned()));
    assert_eq!(files(&file("base.proto")), ["base.proto"]);
    not_found(&file("no.proto"));
}

/// Two builds of one file: a client could not load both.
#[test]
fn of_two_versions_of_a_file_the_first_counts_and_the_items_of_the_other_say_so() {
    let old = "syntax = \"proto3\"; package shop; message Item { string name = 1; }\
               service Cart { rpc Add(Item) returns (Item); }";
    let new = "syntax = \"proto3\"; package shop; message Item { string title = 1; }\
               service Till { rpc Pay(Item) returns (Item); }";
    let [old, new] = [old, new].map(|text| compile(&[("shop.proto", text)]));
    let server = serve(|builder| {
        builder
            .add_service(Described("shop.Cart", Some(old)))
            .add_service(Described("shop.Till", Some(new)))
    });
    let list = ask(&server, Question::ListServices(String::new()));
    assert!(
        ["shop.Cart", "shop.Till"]
            .iter()
            .all(|name| services(&list).contains(name))
    );
    for name in ["shop.Cart", "shop.Item", "shop.Item.name"] {
        let Answer::FileDescriptorResponse(response) = ask(&server, symbol(name)) else {
            panic!("no file for {name}");
        };
        let file = FileDescriptorProto::decode(response.file_descriptor_proto[0].clone()).unwrap();
        assert_eq!(file.service[0].name(), "Cart");
    }
    for name in ["shop.Till", "shop.Till.Pay", "shop.Item.title"] {
        let answer = ask(&server, symbol(name));
        let why = not_found(&answer);
        assert!(
            why.contains("another version of the file shop.proto"),
            "{why}"
        );
        assert!(why.contains("shop.Cart"), "{why}");
    }
}

/// A set that a program has made itself.
#[test]
fn descriptors_that_are_none_or_lack_imports_harm_nobody() {
    let set = compile(&[("base.proto", BASE), ("items.proto", ITEMS)]);
    let mut incomplete = FileDescriptorSet::decode(set).unwrap();
    incomplete.file.retain(|file| file.name() == "items.proto");
    let incomplete: &'static [u8] = incomplete.encode_to_vec().leak();
    let server = serve(|builder| {
        builder
            .add_service(Described("a.Torn", Some(&set[..set.len() - 1])))
            .add_service(Described("b.Noise", Some(b"\x0a\x02\xff\xff")))
            .add_service(Described("c.Empty", Some(b"")))
            .add_service(Described("items.Store", Some(incomplete)))
    });
    for name in ["a.Torn", "b.Noise", "c.Empty"] {
        assert!(not_found(&ask(&server, symbol(name))).contains("without descriptors"));
    }
    assert_eq!(files(&ask(&server, symbol("items.Store"))), ["items.proto"]);
}

#[test]
fn both_versions_give_the_same_answers() {
    let server = serve(|builder| builder.add_service(TestServiceServer::new(Unimplemented)));
    let questions = vec![
        request(Question::ListServices(String::new())),
        request(symbol("grpc.testing.Empty")),
        request(symbol("no.Such")),
    ];
    let v1 = ask_all(&server, questions.clone()).unwrap();
    let client = v1alpha::ServerReflectionClient::new(channel(&server));
    block_on(async {
        let questions = tokio_stream::iter(questions);
        let mut answers = client.server_reflection_info(questions).await?.into_inner();
        for expected in v1 {
            assert_eq!(answers.message().await?, Some(expected));
        }
        assert_eq!(answers.message().await?, None);
        Ok::<_, CallError>(())
    })
    .unwrap();
}

#[test]
fn requests_that_ask_nothing_too_much_or_too_often_are_answered_or_refused() {
    let server = serve(|builder| builder.add_service(TestServiceServer::new(Unimplemented)));
    let nothing = ServerReflectionRequest::default();
    let mut answers = ask_all(&server, vec![nothing]).unwrap();
    let Some(Answer::ErrorResponse(error)) = answers.remove(0).message_response else {
        panic!("no error");
    };
    assert_eq!(Code::from(error.error_code), Code::InvalidArgument);

    let longest = "x".repeat(4000);
    not_found(&ask(&server, symbol(&longest)));
    let too_long = vec![request(symbol(&"x".repeat(5000)))];
    let error = ask_all(&server, too_long).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);

    // 30,000 bytes ask for 100 times as many, and get the imports once.
    let often = vec![request(symbol("grpc.testing.TestService")); 1000];
    let answers = ask_all(&server, often).unwrap();
    assert_eq!(answers.len(), 1000);
    let again = answers[1..]
        .iter()
        .map(|answer| files(answer.message_response.as_ref().unwrap()));
    assert!(
        again
            .into_iter()
            .all(|files| files == ["grpc/testing/test.proto"])
    );
}
