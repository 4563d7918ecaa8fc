//! Every error names the file and, where there is one, the line, and says what to do.

use std::fs;
use std::path::PathBuf;

use rpc_codegen::{Builder, Error, configure};
use tempfile::TempDir;

/// A directory of `.proto` files, of which `a.proto` is compiled.
struct Protos {
    dir: TempDir,
}

impl Protos {
    fn new(files: &[(&str, &str)]) -> Protos {
        let dir = TempDir::new().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        Protos { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn settings(&self) -> Builder {
        configure().out_dir(self.path("out"))
    }

    fn compile(&self, settings: Builder) -> Result<(), Error> {
        settings.compile_protos(&[self.path("a.proto")], &[self.dir.path()])
    }

    fn error(&self) -> Error {
        let error = self.compile(self.settings()).unwrap_err();
        let written = fs::read_dir(self.path("out")).map_or(0, Iterator::count);
        assert_eq!(written, 0, "something was written in spite of the error");
        error
    }

    /// The message, with paths relative to the directory.
    fn message(&self, error: &Error) -> String {
        error
            .to_string()
            .replace(&format!("{}/", self.dir.path().display()), "")
    }

    #[track_caller]
    fn fails_with(&self, expected: &str) -> Error {
        let error = self.error();
        assert_eq!(self.message(&error), expected);
        error
    }
}

#[test]
fn a_mistake_is_shown_where_it_is() {
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\npackage a;\nmessage A {\n  string name 1;\n}\n",
    )]);
    let error = protos.fails_with(
        "a.proto:4:15: expected '=', but found '1'\n  \
           |\n\
         4 |   string name 1;\n  \
           |               ^ found here",
    );
    let Error::Proto { problems } = error else {
        panic!("{error}")
    };
    assert_eq!(problems[0].file, protos.path("a.proto"));
    assert_eq!(
        (problems[0].places[0].line, problems[0].places[0].column),
        (4, 15)
    );
}

#[test]
fn a_build_script_prints_the_readable_form() {
    let protos = Protos::new(&[("a.proto", "message A {")]);
    let error = protos.error();
    assert_eq!(format!("{error:?}"), error.to_string());
    // What the system said follows, since nobody walks the chain of causes.
    let protos = Protos::new(&[("a.proto", "syntax = \"proto3\";")]);
    let error = protos
        .compile(configure().out_dir(protos.path("a.proto")))
        .unwrap_err();
    assert!(
        format!("{error:?}").starts_with(&format!("{error}: ")),
        "the cause is lost: {error:?}"
    );
}

#[test]
fn a_file_that_ends_too_early() {
    let protos = Protos::new(&[("a.proto", "syntax = \"proto3\";\nmessage A {\n\n")]);
    let error = protos.error();
    let message = protos.message(&error);
    assert!(message.starts_with("a.proto:2:12: expected "), "{message}");
    assert!(
        message.ends_with("\n2 | message A {\n  |            ^ the file ends here"),
        "{message}"
    );
}

#[test]
fn a_type_that_is_not_defined() {
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\npackage a;\nmessage B {}\nservice S {\n  rpc Go(B) returns (C);\n}\n",
    )]);
    protos.fails_with(
        "a.proto:5:22: name 'C' is not defined\n  \
           |\n\
         5 |   rpc Go(B) returns (C);\n  \
           |                      ^ found here",
    );
}

#[test]
fn a_thing_defined_twice_is_shown_at_the_second_place_first() {
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\nmessage A {}\n\nmessage A {}\n",
    )]);
    protos.fails_with(
        "a.proto:4:9: name 'A' is defined twice\n  \
           |\n\
         4 | message A {}\n  \
           |         ^ defined again here\n  \
           |\n\
         2 | message A {}\n  \
           |         ^ first defined here",
    );
}

#[test]
fn a_mistake_in_an_imported_file_is_shown_there() {
    let protos = Protos::new(&[
        ("a.proto", "syntax = \"proto3\";\nimport \"b.proto\";\n"),
        (
            "b.proto",
            "syntax = \"proto3\";\nmessage B { strin s = 1; }\n",
        ),
    ]);
    let error = protos.error();
    let message = protos.message(&error);
    assert!(
        message.starts_with("b.proto:2:13: name 'strin' is not defined\n"),
        "{message}"
    );
}

#[test]
fn an_import_that_is_not_there() {
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\nimport \"gone/b.proto\";\n",
    )]);
    let error = protos.error();
    let message = protos.message(&error);
    assert!(
        message.starts_with("a.proto:2:1: import 'gone/b.proto' not found\n"),
        "{message}"
    );
    let includes = protos.dir.path().display();
    assert!(
        message.ends_with(&format!("= help: the include directories are: {includes}")),
        "{message}"
    );
}

#[test]
fn a_file_that_is_not_there() {
    let protos = Protos::new(&[]);
    let error = protos
        .fails_with("a.proto: no such file (relative paths start in the package's directory)");
    assert!(matches!(error, Error::FileNotFound { path } if path == protos.path("a.proto")));

    let error = rpc_codegen::compile_protos("nowhere.proto").unwrap_err();
    assert!(matches!(error, Error::FileNotFound { .. }), "{error}");
}

#[test]
fn a_file_outside_the_include_directories() {
    let protos = Protos::new(&[("a.proto", "syntax = \"proto3\";")]);
    let elsewhere = TempDir::new().unwrap();
    let error = protos
        .settings()
        .compile_protos(&[protos.path("a.proto")], &[elsewhere.path()])
        .unwrap_err();
    assert!(
        matches!(&error, Error::NotIncluded { includes, .. } if includes == &[elsewhere.path()]),
        "{error}"
    );
    // A relative path is one from here, or from an include directory, and this is neither.
    let error = protos
        .settings()
        .compile_protos(&["tests/golden/greeter.proto"], &["src"])
        .unwrap_err();
    assert!(matches!(&error, Error::NotIncluded { .. }), "{error}");
}

#[test]
fn a_stream_is_refused_in_one_sentence() {
    let file = "syntax = \"proto3\";\npackage demo;\nmessage M {}\n\nservice Watcher {\n  rpc Get(M) returns (M);\n  \
                // Endless.\n  rpc Watch(M) returns (stream M);\n}\n";
    let protos = Protos::new(&[("a.proto", file)]);
    protos.fails_with(
        "a.proto:8: method `Watch` of service `demo.Watcher` streams its responses, which is not supported yet: \
         only unary methods are",
    );
    // Whoever wants the messages alone can have them.
    protos
        .compile(protos.settings().build_client(false).build_server(false))
        .unwrap();

    for (signature, what) in [
        ("(stream M) returns (M)", "requests"),
        ("(stream M) returns (stream M)", "requests and responses"),
    ] {
        let protos = Protos::new(&[(
            "a.proto",
            &file.replace("(M) returns (stream M)", signature),
        )]);
        let error = protos.error();
        assert!(
            error.to_string().contains(&format!("streams its {what}, ")),
            "{error}"
        );
    }
}

#[test]
fn an_edition_is_refused_in_one_sentence() {
    let protos = Protos::new(&[(
        "a.proto",
        "// Newer.\nedition = \"2023\";\npackage a;\nmessage A {}\n",
    )]);
    let error = protos.fails_with(
        "a.proto:2: edition \"2023\" is not supported yet: write `syntax = \"proto3\";` instead",
    );
    assert!(matches!(error, Error::Edition { line: Some(2), .. }));
}

#[test]
fn an_edition_is_refused_in_descriptors_too() {
    let file = prost_types::FileDescriptorProto {
        name: Some("a.proto".to_owned()),
        syntax: Some("editions".to_owned()),
        ..Default::default()
    };
    let dir = TempDir::new().unwrap();
    let set = prost_types::FileDescriptorSet { file: vec![file] };
    let error = configure()
        .out_dir(dir.path())
        .compile_fds(set)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "a.proto: editions are not supported yet: write `syntax = \"proto3\";` instead"
    );
}

#[test]
fn names_that_meet_in_rust() {
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\npackage demo;\nmessage GreeterClient {}\nservice Greeter {}\n",
    )]);
    protos.fails_with(
        "a.proto:4: service `demo.Greeter` needs the Rust name `GreeterClient`, which message `demo.GreeterClient` has \
         already: rename one of the two",
    );
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\nmessage M {}\nservice S {\n  rpc SayHi(M) returns (M);\n  rpc say_hi(M) returns (M);\n}\n",
    )]);
    protos.fails_with(
        "a.proto:5: method `say_hi` of service `S` needs the Rust name `say_hi`, which method `SayHi` of service `S` has already: \
         rename one of the two",
    );
    // `a_client` is the module of `M` and of the client.
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\nmessage a_client { message M {} }\nservice A {}\n",
    )]);
    assert!(matches!(
        protos.error(),
        Error::NameTaken { line: Some(3), .. }
    ));
    // `LocalA` is also the local trait of `A`, which is in a module of its own.
    let protos = Protos::new(&[(
        "a.proto",
        "syntax = \"proto3\";\nservice A {}\nservice LocalA {}\n",
    )]);
    protos.compile(protos.settings()).unwrap();
}

#[test]
fn names_of_messages_that_meet_in_rust() {
    for (text, name) in [
        ("message Say {}\nmessage say {}\n", "Say"),
        (
            "message M {\n  enum E { FOO_BAR = 0; FooBar = 1; } }\n",
            "FooBar",
        ),
        ("message M {}\nenum E { E_ONE = 0; ONE = 1; }\n", "One"),
    ] {
        let protos = Protos::new(&[("a.proto", &format!("syntax = \"proto3\";\n{text}"))]);
        let error = protos.error();
        assert!(
            matches!(&error, Error::NameTaken { name: taken, line: Some(3), .. } if taken == name),
            "{error}"
        );
    }
    // A second name for a number gets no variant, and a map's entry no type.
    let text = "syntax = \"proto3\";\nmessage M { map<int32, int32> e = 1; }\n\
                enum E { option allow_alias = true; A = 0; a = 0; }\n";
    let protos = Protos::new(&[("a.proto", text)]);
    protos.compile(protos.settings()).unwrap();
}

#[test]
fn protoc_is_not_installed() {
    let protos = Protos::new(&[("a.proto", "syntax = \"proto3\";")]);
    let error = protos
        .compile(protos.settings().protoc("no-such-protoc"))
        .unwrap_err();
    assert!(matches!(&error, Error::ProtocNotFound { .. }));
    assert!(
        error.to_string().contains("apt install protobuf-compiler"),
        "{error}"
    );
}

#[test]
fn a_setting_that_contradicts_itself() {
    let protos = Protos::new(&[("a.proto", "syntax = \"proto3\";\nmessage A {}\n")]);
    let settings = protos
        .settings()
        .extern_path(".b", "::b")
        .extern_path(".b", "::c");
    let error = protos.compile(settings).unwrap_err();
    assert_eq!(error.to_string(), "duplicate extern Protobuf path: .b");
}

#[test]
fn a_descriptor_set_without_the_imports() {
    let file = prost_types::FileDescriptorProto {
        name: Some("a.proto".to_owned()),
        dependency: vec!["b.proto".to_owned()],
        ..Default::default()
    };
    let dir = TempDir::new().unwrap();
    let set = prost_types::FileDescriptorSet { file: vec![file] };
    let error = configure()
        .out_dir(dir.path())
        .compile_fds(set)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "the descriptor set has a.proto, but not b.proto, which it imports"
    );
}

#[test]
fn outside_of_a_build_script_there_is_nowhere_to_write() {
    let protos = Protos::new(&[("a.proto", "syntax = \"proto3\";\nmessage A {}\n")]);
    let error = protos.compile(configure()).unwrap_err();
    assert!(matches!(error, Error::NoOutDir), "{error}");
}
