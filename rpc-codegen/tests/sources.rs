//! Files that protoc takes are taken, and what a file does not import has no influence.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use rpc_codegen::{Error, configure};
use tempfile::TempDir;

/// A directory of `.proto` files.
struct Protos(TempDir);

/// What the generator wrote: the contents of files by their names.
type Generated = BTreeMap<String, Vec<u8>>;

impl Protos {
    fn new<T: AsRef<[u8]>>(files: &[(&str, T)]) -> Protos {
        let dir = TempDir::new().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Protos(dir)
    }

    fn generate(&self, roots: &[&str]) -> Result<Generated, Error> {
        let out = TempDir::new().unwrap();
        let roots: Vec<_> = roots.iter().map(|name| self.0.path().join(name)).collect();
        configure()
            .out_dir(out.path())
            .include_file("all.rs")
            .file_descriptor_set_path(out.path().join("set"))
            .compile_protos(&roots, &[self.0.path()])?;
        let entries = fs::read_dir(out.path()).unwrap().map(Result::unwrap);
        let file = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        };
        Ok(entries.map(file).collect())
    }

    /// Compiles `a.proto` and returns its descriptor.
    #[track_caller]
    fn descriptor(&self) -> FileDescriptorProto {
        let generated = self.generate(&["a.proto"]).unwrap();
        let set = FileDescriptorSet::decode(&*generated["set"]).unwrap();
        let mut files = set.file.into_iter();
        files.find(|file| file.name() == "a.proto").unwrap()
    }
}

/// Calls `run` with every order of `names`.
fn each_order<'a>(names: &mut Vec<&'a str>, from: usize, run: &mut impl FnMut(&[&'a str])) {
    if from == names.len() {
        return run(names);
    }
    for index in from..names.len() {
        names.swap(from, index);
        each_order(names, from + 1, run);
        names.swap(from, index);
    }
}

#[test]
fn the_order_of_the_list_and_files_that_are_not_imported_have_no_influence() {
    // `config` is `shop.config` in user.proto, which does not import the package
    // `shop.plugins.config`: neither itself nor by an import of an import.
    let protos = Protos::new(&[
        (
            "other.proto",
            "syntax = \"proto3\"; package shop.plugins.config; message Other {}",
        ),
        (
            "rates.proto",
            "syntax = \"proto3\"; package shop.config.rates; import \"other.proto\";\n\
             message Rate { shop.plugins.config.Other other = 1; }",
        ),
        (
            "user.proto",
            "syntax = \"proto3\"; package shop.plugins.tax; import \"rates.proto\";\n\
             service Tax { rpc Quote(config.rates.Rate) returns (config.rates.Rate); }",
        ),
    ]);
    let alone = protos.generate(&["user.proto"]).unwrap();
    let mut names = vec!["other.proto", "rates.proto", "user.proto"];
    let mut all = None;
    each_order(&mut names, 0, &mut |order| {
        let generated = protos.generate(order).unwrap();
        assert_eq!(
            generated["shop.plugins.tax.rs"],
            alone["shop.plugins.tax.rs"]
        );
        assert_eq!(
            *all.get_or_insert_with(|| generated.clone()),
            generated,
            "{order:?}"
        );
    });
}

#[test]
fn the_order_of_the_list_decides_nothing_about_mistakes_either() {
    let protos = Protos::new(&[
        (
            "a.proto",
            "syntax = \"proto3\"; message A { Gone gone = 1; }",
        ),
        (
            "b.proto",
            "syntax = \"proto3\"; message B { Gone gone = 1; }",
        ),
    ]);
    let messages = [["a.proto", "b.proto"], ["b.proto", "a.proto"]]
        .map(|order| protos.generate(&order).unwrap_err().to_string());
    assert_eq!(messages[0], messages[1]);
}

#[test]
fn a_name_that_only_an_import_of_an_import_has_is_not_found() {
    let text = |rest: &str| format!("syntax = \"proto3\"; {rest}");
    let files = |import: &str| {
        Protos::new(&[
            (
                "a.proto",
                text("import \"b.proto\"; message A { D d = 1; }"),
            ),
            ("b.proto", text(&format!("{import} \"c.proto\";"))),
            ("c.proto", text(&format!("{import} \"d.proto\";"))),
            ("d.proto", text("message D {}")),
        ])
    };
    let error = files("import").generate(&["a.proto"]).unwrap_err();
    assert!(
        error.to_string().contains("name 'D' is not defined"),
        "{error}"
    );
    // Public imports are passed on.
    let descriptor = files("import public").descriptor();
    assert_eq!(descriptor.dependency, ["b.proto"]);
    assert_eq!(descriptor.message_type[0].field[0].type_name(), ".D");
}

/// A copy of `descriptor.proto` like that of newer releases of protoc, with what the parser rejects.
const VENDORED: &str = r#"
    syntax = "proto2";
    package google.protobuf;
    message FileOptions { extensions 1000 to max; }
    message FieldOptions { optional bool newer = 99; extensions 1000 to max; }
    message FeatureSet { extensions 1000 [declaration = { number: 1000, full_name: ".pb.cpp" }]; }
"#;

#[test]
fn a_copy_of_descriptor_proto_does_no_harm() {
    let protos = Protos::new(&[
        ("google/protobuf/descriptor.proto", VENDORED),
        (
            "a.proto",
            "syntax = \"proto3\"; import \"google/protobuf/descriptor.proto\";\n\
             extend google.protobuf.MessageOptions { string owner = 50000; }\n\
             message A { option (owner) = \"me\"; option deprecated = true; }",
        ),
    ]);
    let descriptor = protos.descriptor();
    assert!(
        descriptor.message_type[0]
            .options
            .as_ref()
            .unwrap()
            .deprecated()
    );
    // Also if it is compiled itself.
    let roots = ["google/protobuf/descriptor.proto", "a.proto"];
    assert_eq!(
        protos.generate(&roots).unwrap()["set"],
        protos.generate(&["a.proto"]).unwrap()["set"]
    );
}

#[test]
fn what_protoc_takes_is_taken() {
    let import = "import \"google/protobuf/descriptor.proto\";";
    for text in [
        // Ranges of extensions with options, and those of a MessageSet.
        "message A { extensions 4 [verification = UNVERIFIED]; extensions 6 to 8, 10[declaration = {number: 6}]; }",
        "message A { option message_set_wire_format = true; extensions 4 to 2147483646; }",
        // Options that newer releases of protoc have.
        "message A { optional int32 a = 1 [debug_redact = true, retention = RETENTION_SOURCE, \
         targets = TARGET_TYPE_FIELD, targets = TARGET_TYPE_FILE, deprecated = true]; }",
        // Numbers that only a `double` can be.
        "extend google.protobuf.FieldOptions { repeated double d = 50000; optional float f = 50001; }\n\
         message A { optional int32 a = 1 [(d) = inf, (d) = -inf, (d) = nan, (d) = - nan, (f) = -inf]; \
         optional double b = 2 [(d) = 18446744073709551616, (d) = -1e400, default = -99999999999999999999]; }",
        // An enum's value may have these names.
        "enum E { inf = 0; nan = 1; } extend google.protobuf.FieldOptions { optional E e = 50000; }\n\
         message A { optional E a = 1 [(e) = nan, default = inf]; }",
        // Names that are equal in JSON.
        "message A { optional int32 foo1 = 1; optional int32 foo_1 = 2; optional int32 foo_1_a = 3; \
         optional int32 foo1_a = 4; }",
    ] {
        let text = format!("syntax = \"proto2\"; {import}\n{text}\n");
        let protos = Protos::new(&[("a.proto", &text)]);
        if let Err(error) = protos.generate(&["a.proto"]) {
            panic!("{text}{error}");
        }
    }
}

#[test]
fn an_option_that_nobody_has_is_a_mistake() {
    let text = "syntax = \"proto3\";\nmessage A { int32 a = 1 [depracated = true]; }\n";
    let error = Protos::new(&[("a.proto", text)])
        .generate(&["a.proto"])
        .unwrap_err();
    assert!(error.to_string().contains("a.proto:2:26: "), "{error}");
}

#[test]
fn byte_order_marks_and_bytes_that_are_not_utf_8() {
    let text = b"\xef\xbb\xbf// Caf\xe9.\r\nsyntax = \"proto2\";\r\nimport \"b.proto\";\r\n\
        // \xe9t\xe9\r\nmessage A { optional bytes raw = 1 [default = \"\xff\\n\"]; optional B b = 2; }\r\n";
    let protos = Protos::new(&[
        ("a.proto", &text[..]),
        (
            "b.proto",
            b"\xef\xbb\xbfsyntax = \"proto2\"; message B {} // \xff",
        ),
    ]);
    let descriptor = protos.descriptor();
    assert_eq!(
        descriptor.message_type[0].field[0].default_value(),
        "\\377\\n"
    );
    let comments = descriptor.source_code_info.unwrap().location;
    let comments = comments
        .iter()
        .filter_map(|location| location.leading_comments.as_deref());
    assert_eq!(
        comments.collect::<Vec<_>>(),
        [" \u{fffd}t\u{fffd}\n", " Caf\u{fffd}.\n"]
    );
}

#[test]
fn other_encodings_are_named() {
    let text = "syntax = \"proto3\";".encode_utf16();
    let text: Vec<_> = text.flat_map(u16::to_le_bytes).collect();
    // With a byte order mark, and without one.
    for text in [[&[0xff, 0xfe], text.as_slice()].concat(), text] {
        let error = Protos::new(&[("a.proto", &text)])
            .generate(&["a.proto"])
            .unwrap_err();
        assert!(format!("{error:?}").contains("UTF-16"), "{error:?}");
    }
}

#[test]
fn imports_that_cannot_be() {
    for (import, message) in [
        (
            "import \"a.proto\";",
            "import cycle detected: a.proto -> b.proto -> a.proto",
        ),
        (
            "import \"b.proto\";",
            "import cycle detected: b.proto -> b.proto",
        ),
        ("import \"gone.proto\";", "import 'gone.proto' not found"),
        ("import \"./a.proto\";", "invalid import"),
        (
            "import \"google/protobuf/any.proto\"; import \"google/protobuf/any.proto\";",
            "import 'google/protobuf/any.proto' was listed twice",
        ),
    ] {
        let protos = Protos::new(&[
            (
                "a.proto",
                "syntax = \"proto3\"; import \"b.proto\";".to_owned(),
            ),
            ("b.proto", format!("syntax = \"proto3\";\n\n {import}\n")),
        ]);
        let error = protos.generate(&["a.proto"]).unwrap_err().to_string();
        let line = error.lines().next().unwrap();
        assert!(
            line.contains("b.proto:3:") && line.ends_with(message),
            "{error}"
        );
    }
}

#[test]
fn a_file_that_another_one_shadows() {
    let protos = Protos::new(&[
        ("first/a.proto", "syntax = \"proto3\"; message First {}"),
        ("second/a.proto", "syntax = \"proto3\"; message Second {}"),
    ]);
    let dir = |name: &str| protos.0.path().join(name);
    let compile = |root: &Path| {
        configure()
            .out_dir(dir("out"))
            .compile_protos(&[root], &[dir("first"), dir("second")])
    };
    let error = compile(&dir("second/a.proto")).unwrap_err();
    assert!(
        matches!(&error, Error::Shadowed { by, .. } if *by == dir("first/a.proto")),
        "{error}"
    );
    compile(&dir("first/a.proto")).unwrap();
}
