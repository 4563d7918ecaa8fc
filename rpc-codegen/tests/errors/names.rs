//! Items that would have one Rust name, and items that would have none.

use std::fs;

use rpc_codegen::{Builder, Error};

use super::Protos;

/// Checks that `error` is about `name`, which the item on `line` shares with another.
#[track_caller]
fn is_taken(error: &Error, name: &str, line: usize) {
    let Error::NameTaken {
        name: taken,
        line: Some(at),
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!((taken.as_str(), *at), (name, line));
}

/// Checks that `proto`, which begins on line 2, has a clash.
#[track_caller]
fn clashes(syntax: &str, proto: &str, name: &str, line: usize) {
    let text = format!("syntax = \"{syntax}\";\n{proto}\n");
    is_taken(&Protos::new(&[("a.proto", &text)]).error(), name, line);
}

/// Checks that `proto` has no clash.
#[track_caller]
fn compiles(proto: &str) {
    let protos = Protos::new(&[("a.proto", &format!("syntax = \"proto2\";\n{proto}\n"))]);
    protos.compile(protos.settings()).unwrap();
}

#[test]
fn the_message_names_both_items() {
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\npackage demo;\nmessage GreeterClient { message Nested {} }\nservice Greeter {}\n",
    )]);
    let error = protos.fails_with(
        "a.proto:4: service `demo.Greeter` and the module of message `demo.GreeterClient` would both have the \
         Rust name `greeter_client`: rename one of them",
    );
    is_taken(&error, "greeter_client", 4);
}

#[test]
fn items_of_services() {
    clashes(
        "proto3",
        "message M {}\nservice S {\n  rpc SayHi(M) returns (M);\n  rpc say_hi(M) returns (M);\n}",
        "say_hi",
        5,
    );
    clashes("proto3", "service Foo {}\nservice foo {}", "foo_client", 3);
    // The local trait of `A` is `LocalA` too, but it is in the module `a_server`.
    compiles("service A {}\nservice LocalA {}");
    // `optional` needs a oneof, but that has no type. So the message has no module.
    compiles("message AClient { optional int32 number = 1; }\nservice A {}");
}

#[test]
fn messages_and_enums() {
    for (text, name) in [
        ("message Say {}\nmessage say {}", "Say"),
        ("message Say {}\nenum SAY { ZERO = 0; }", "Say"),
        (
            "message M {\nmessage FooBar {} enum foo_bar { ZERO = 0; } }",
            "FooBar",
        ),
        (
            "message M { enum fooBar { ZERO = 0; }\nenum FooBar { NULL = 0; } }",
            "FooBar",
        ),
        // The type and the module of the types nested in it.
        ("message M {}\nmessage _1 { message Nested {} }", "_1"),
    ] {
        clashes("proto3", text, name, 3);
    }
}

#[test]
fn fields_and_oneofs() {
    for (text, name) in [
        (
            "message M { optional int64 RowCount = 1;\noptional int64 row_count = 2; }",
            "row_count",
        ),
        (
            "message M { map<int32, int32> RowCount = 1;\nrepeated int64 row_count = 2; }",
            "row_count",
        ),
        // The second is the one that stands second, whatever it is.
        (
            "message M { required int32 either = 1;\noneof Either { int32 a = 2; } }",
            "either",
        ),
        (
            "message M { oneof Either { int32 a = 2; }\nrequired int32 either = 1; }",
            "either",
        ),
        (
            "message M { oneof Either { int32 a = 2; }\noneof either { int32 b = 1; } }",
            "either",
        ),
        (
            "message M { oneof either { int32 FooBar = 1;\nint32 foo_bar = 2; } }",
            "FooBar",
        ),
        (
            "message M { required int32 Type = 1;\nrequired int32 type = 2; }",
            "r#type",
        ),
        (
            "message M { required int32 Self = 1;\nrequired int32 self = 2; }",
            "self_",
        ),
        (
            "message M { message Kind {} message KindOneOf {}\noneof kind { int32 a = 1; } }",
            "KindOneOf",
        ),
        // Only the fields have different names.
        (
            "message M { oneof foo1bar { int32 a = 1; }\noneof foo_1bar { int32 b = 2; } }",
            "Foo1bar",
        ),
        (
            "message M { optional group Foo_bar = 1 {}\noptional int32 FooBar = 2; }",
            "foo_bar",
        ),
    ] {
        clashes("proto2", text, name, 3);
    }
    // The variants of different oneofs are different types.
    compiles("message M { oneof a { int32 Foo1bar = 1; } oneof b { int32 foo_1bar = 2; } }");
}

/// prost's derive gives a message methods for some of its fields.
#[test]
fn methods_of_messages() {
    for (field, other, name) in [
        ("required Level a", "optional int32 set_a", "set_a"),
        ("optional Level a", "optional string set_a", "set_a"),
        ("optional Level a", "repeated Level set_a", "set_a"),
        ("repeated Level a", "required Level push_a", "push_a"),
        ("map<int32, Level> a", "optional bytes get_a", "get_a"),
        ("map<int32, Level> a", "optional Level insert_a", "insert_a"),
        ("required Level set_a", "required Level a", "set_a"),
        ("optional Level type", "optional bool set_type", "set_type"),
        ("optional Level self", "optional bool set_self", ""),
    ] {
        let text =
            format!("enum Level {{ LOW = 0; }}\nmessage M {{ {field} = 1;\n  {other} = 2; }}");
        match name {
            "" => compiles(&text),
            _ => clashes("proto2", &text, name, 4),
        }
    }
    let level = "enum Level { LOW = 0; }\nmessage M { Level a = 1;\n";
    clashes(
        "proto3",
        &format!("{level}  optional int32 set_a = 2; }}"),
        "set_a",
        4,
    );
    // Fields that are always there, messages and variants have no methods.
    for other in [
        "required int32 set_a",
        "repeated int32 set_a",
        "optional M set_a",
        "map<int32, int32> set_a",
    ] {
        compiles(&format!(
            "enum Level {{ LOW = 0; }}\nmessage M {{ optional Level a = 1; {other} = 2; oneof o {{ Level s = 3; }} }}"
        ));
    }
}

#[test]
fn values_of_enums() {
    for (text, name) in [
        (
            "message M {\n  enum E { FOO_BAR = 0;\n FooBar = 1; } }",
            "FooBar",
        ),
        ("\nenum E { E_ONE = 0;\n ONE = 1; }", "One"),
        ("\nenum E { E_Self = 0;\n SELF = 1; }", "Self_"),
    ] {
        clashes("proto3", text, name, 4);
    }
    let with_prefix = |text: &str| {
        let protos = Protos::new(&[("a.proto", &format!("syntax = \"proto3\";\n{text}\n"))]);
        protos.compile(protos.settings().retain_enum_prefix())
    };
    with_prefix("enum E { E_ONE = 0; ONE = 1; }").unwrap();
    is_taken(
        &with_prefix("enum E { E_ONE = 0;\n EOne = 1; }").unwrap_err(),
        "EOne",
        3,
    );
    // An alias gets no variant, and the entry of a map gets no type.
    compiles(
        "message M { map<int32, int32> e = 1; }\nenum E { option allow_alias = true; A = 0; a = 0; }",
    );
    // Nothing is left of the name, or no name.
    compiles("enum Color { COLOR = 0; COLOR_1 = 1; COLORLESS = 2; }");
}

#[test]
fn packages_and_modules() {
    let files = |other: &str| {
        Protos::new(&[
            (
                "a.proto",
                "syntax = \"proto3\";\npackage a;\nimport \"b.proto\";\nmessage A {}\nservice X {}\n",
            ),
            ("b.proto", other),
        ])
    };
    let error = files("syntax = \"proto3\";\npackage a.x_client;\nmessage B {}\n").error();
    is_taken(&error, "x_client", 5);
    // Nothing is generated for this package, so it has no module.
    let protos = files("syntax = \"proto3\";\npackage a.x_client;\n");
    protos.compile(protos.settings()).unwrap();
    // Two packages with one module.
    let error = files("syntax = \"proto3\";\npackage A;\n\nmessage a {}\n").error();
    is_taken(&error, "A", 4);
    // Types nested in a message, and a package with the name of the message.
    let nested =
        "syntax = \"proto3\";\npackage b;\nimport \"b.proto\";\nmessage Foo { message Bar {} }\n";
    let package = "syntax = \"proto3\";\npackage b.foo;\n\nenum bar { ZERO = 0; }\n";
    let protos = Protos::new(&[("a.proto", nested), ("b.proto", package)]);
    let error = protos.fails_with(
        "a.proto:4: message `b.Foo.Bar` and enum `b.foo.bar` would both have the Rust name `Bar`: rename one of \
         them",
    );
    is_taken(&error, "Bar", 4);
    let service =
        "syntax = \"proto3\";\npackage b.foo;\nservice S {}\nmessage SServer { message N {} }\n";
    let protos = Protos::new(&[("a.proto", nested), ("b.proto", service)]);
    protos.compile(protos.settings()).unwrap();
    let error = protos
        .settings()
        .compile_protos(
            &[protos.path("a.proto"), protos.path("b.proto")],
            &[protos.path("")],
        )
        .unwrap_err();
    is_taken(&error, "s_server", 4);
}

/// What is generated elsewhere has no name here.
#[test]
fn messages_of_other_crates() {
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\npackage a;\nmessage M { int32 fooBar = 1; }\nmessage XClient { message N {} }\n\
         enum xClient { A = 0; a = 1; }\nservice X { rpc Go(M) returns (XClient); }\n",
    )]);
    let settings = protos
        .settings()
        .extern_path(".a.XClient", "::other::XClient");
    let code = code_of(
        &protos,
        settings.extern_path(".a.xClient", "::other::X"),
        "a.rs",
    );
    assert!(code.contains("pub use self::{x_client::XClient, x_server::{X, XServer}};"));
}

#[test]
fn what_is_not_reexported() {
    let text = "syntax = \"proto3\";\npackage a;\nservice LogClient {}\nmessage LogServer {}\nservice Log {}\n";
    let protos = Protos::new(&[("a.proto", text)]);
    let code = code_of(&protos, protos.settings(), "a.rs");
    assert!(code.contains("pub use self::log_server::Log;"), "{code}");
    for docs in [
        "/// Client for the service `a.Log`.\n///\n/// `LogClient` is not re-exported in the module of the \
         package, because service `a.LogClient` has that name there. Its path is `log_client::LogClient`.\n",
        "/// Server for the service `a.Log`.\n///\n/// `LogServer` is not re-exported in the module of the \
         package, because message `a.LogServer` has that name there. Its path is `log_server::LogServer`.\n",
    ] {
        assert!(code.contains(docs), "{code}");
    }
    // The names are those that a crate with servers has.
    let code = code_of(&protos, protos.settings().build_server(false), "a.rs");
    let reexports = code.lines().filter(|line| line.contains("pub use"));
    let reexports: Vec<_> = reexports.collect();
    assert_eq!(
        reexports,
        ["pub use self::log_client_client::LogClientClient;"]
    );
}

#[test]
fn the_order_of_files_does_not_matter() {
    let a = (
        "a.proto",
        "syntax = \"proto3\";\npackage a;\nservice Log {}\nservice Foo_1bar {}\n",
    );
    let b = (
        "b.proto",
        "syntax = \"proto3\";\npackage a;\nservice LogClient {}\nservice Foo1bar {}\n",
    );
    let reexports = |files: [&str; 2]| {
        let protos = Protos::new(&[a, b]);
        let paths = files.map(|file| protos.path(file));
        protos
            .settings()
            .compile_protos(&paths, &[protos.path("")])
            .unwrap();
        let code = fs::read_to_string(protos.path("out/a.rs")).unwrap();
        let uses = code.split("pub use self::").skip(1);
        let uses = uses.filter_map(|rest| rest.split_once(';'));
        let mut uses: Vec<_> = uses
            .map(|(items, _)| {
                items
                    .split_whitespace()
                    .collect::<String>()
                    .replace(",}", "}")
            })
            .collect();
        uses.sort();
        uses
    };
    let expected = [
        "log_server::{Log,LogServer}",
        "{foo1bar_client::Foo1barClient,foo1bar_server::{Foo1bar,Foo1barServer}}",
        "{log_client_client::LogClientClient,log_client_server::{LogClient,LogClientServer}}",
    ];
    assert_eq!(reexports(["a.proto", "b.proto"]), expected);
    assert_eq!(reexports(["b.proto", "a.proto"]), expected);
}

fn code_of(protos: &Protos, settings: Builder, file: &str) -> String {
    protos.compile(settings).unwrap();
    fs::read_to_string(protos.path("out").join(file)).unwrap()
}

#[test]
fn names_of_underscores_only() {
    for (text, what) in [
        ("message _ {}", "message `_`"),
        ("message A { message __ {} }", "message `A.__`"),
        ("message A { int32 _ = 1; }", "field `_` of message `A`"),
        (
            "message A { oneof a { int32 _ = 1; } }",
            "field `_` of message `A`",
        ),
        (
            "message A { oneof _ { int32 a = 1; } }",
            "oneof `_` of message `A`",
        ),
        ("package a._; message M {}", "package `a._`"),
        ("enum _ { ZERO = 0; }", "enum `_`"),
        ("enum E { _ = 0; }", "value `_` of enum `E`"),
        ("service _ {}", "service `_`"),
        (
            "message M {} service S { rpc _(M) returns (M); }",
            "method `_` of service `S`",
        ),
        // prost's derive would call it `get_r#type`.
        (
            "enum E { ZERO = 0; } message M { map<int32, E> type = 1; }",
            "a method for field `type` of message `M`",
        ),
    ] {
        let protos = Protos::new(&[("a.proto", &format!("syntax = \"proto3\";\n{text}\n"))]);
        let error = protos.error();
        assert!(
            matches!(&error, Error::NoRustName { what: found, line: Some(2), .. } if found == what),
            "{error}"
        );
    }
}
