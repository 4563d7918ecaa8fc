//! Files in which everything that has a name has, one after the other, each name that Rust or generated
//! code uses.

use std::collections::BTreeSet;
use std::fmt::Write;

/// The names, by the reason for which one could be a mistake.
const WORDS: [&str; 8] = [
    // Keywords of all editions, each kind of them in prost's list and those that are not in it.
    "as box const dyn fn gen impl loop match mod move ref static struct trait true try type use where yield \
     async await abstract self super crate extern union raw auto default",
    // Primitive types, which a module of nested types could hide.
    "bool char str i32 u8 u64 usize f64",
    // The prelude.
    "option some none result ok err vec string drop clone copy send sync sized into from try_from iterator \
     to_string eq ord hash debug future fn_mut panic format derive test",
    // The first names of paths.
    "std core alloc prost bytes rpc_core verbline codegen v1 field fmt encoding",
    // What prost's derive names inside of functions.
    "inner scalar_wrapper key_wrapper value_wrapper map_wrapper struct_name wrapper builder buf tag wire_type \
     ctx value error key k x f t a",
    // The methods of messages, enums and oneofs.
    "encode encode_raw encoded_len decode merge merge_field clear is_valid from_i32 as_str_name from_str_name \
     full_name get set push insert iter",
    // The names in generated stubs and codecs that `names.proto` does not have.
    "method_spec on_poller per_poller codec generated_codec generated_message reader writer scan stop fields \
     number out full_len new register unary client server local",
    // Names that the casing changes, and attributes.
    "_1 _2nd __3rd a1b2 http2_proxy gRPC snake_Case SCREAMING_CASE trailing_ double__underscore ABc allow doc \
     deprecated repr",
];

/// Returns the names. No two have one Rust name.
fn words() -> Vec<&'static str> {
    let plain = |word: &&str| word.replace('_', "").to_lowercase();
    let mut seen = BTreeSet::new();
    let words = WORDS.iter().flat_map(|words| words.split_whitespace());
    words.filter(|word| seen.insert(plain(word))).collect()
}

/// Returns the files, with their names.
pub(crate) fn protos() -> Vec<(String, String)> {
    let mut files = vec![
        ("messages.proto".to_owned(), messages()),
        ("enums.proto".to_owned(), enums()),
        ("oneofs.proto".to_owned(), oneofs()),
        ("fields.proto".to_owned(), fields()),
        ("services.proto".to_owned(), services()),
    ];
    files.extend(packages());
    files
}

fn messages() -> String {
    let mut out = "syntax = \"proto2\";\npackage words.messages;\n".to_owned();
    for word in words() {
        // The module of its nested types would be called `_1` as well, which is an error.
        let nested = match word.starts_with('_') {
            true => String::new(),
            false => {
                format!("message {word} {{}} optional .words.messages.{word}.{word} own_1 = 2;")
            }
        };
        writeln!(
            out,
            "message {word} {{ repeated .words.messages.{word} more = 1; {nested} }}"
        )
        .unwrap();
    }
    out
}

fn enums() -> String {
    let mut out = "syntax = \"proto2\";\npackage words.enums;\n".to_owned();
    for (index, word) in words().iter().enumerate() {
        writeln!(
            out,
            "enum {word} {{ FIRST_{index} = 0; SECOND_{index} = 1; }}"
        )
        .unwrap();
    }
    for (message, label, default) in [
        ("AllRequired", "required", false),
        ("AllOptional", "optional", true),
        ("AllRepeated", "repeated", false),
    ] {
        writeln!(out, "message {message} {{").unwrap();
        for (index, word) in words().iter().enumerate() {
            let default = match default {
                true => format!("[default = SECOND_{index}]"),
                false => String::new(),
            };
            let number = index + 1;
            writeln!(
                out,
                "  {label} .words.enums.{word} field{index} = {number} {default};"
            )
            .unwrap();
        }
        out.push_str("}\n");
    }
    out.push_str("message AllMaps {\n");
    for (index, word) in words().iter().enumerate() {
        let number = index + 1;
        writeln!(
            out,
            "  map<int32, .words.enums.{word}> field{index} = {number};"
        )
        .unwrap();
    }
    out.push_str("}\nmessage AllValues { enum Values {\n");
    for (index, word) in words().iter().enumerate() {
        writeln!(out, "  {} = {index};", word.to_uppercase()).unwrap();
    }
    out.push_str("} }\n");
    out
}

fn oneofs() -> String {
    let mut out = "syntax = \"proto2\";\npackage words.oneofs;\n".to_owned();
    for (index, word) in words().iter().enumerate() {
        writeln!(
            out,
            "message Type{index} {{ oneof {word} {{ int32 first_1 = 1; }} }}"
        )
        .unwrap();
    }
    out.push_str("message Variants { oneof either {\n");
    for (index, word) in words().iter().enumerate() {
        writeln!(out, "  string {word} = {};", index + 1).unwrap();
    }
    out.push_str("} }\n");
    out
}

fn fields() -> String {
    let mut out =
        "syntax = \"proto2\";\npackage words.fields;\nenum Level { LOW = 0; }\n".to_owned();
    for (message, ty) in [
        ("Optional", "optional string"),
        ("Required", "required fixed64"),
        ("Enums", "required Level"),
        ("Messages", "optional Optional"),
        ("Maps", "map<string, Optional>"),
    ] {
        writeln!(out, "message {message} {{").unwrap();
        for (index, word) in words().iter().enumerate() {
            writeln!(out, "  {ty} {word} = {};", index + 1).unwrap();
        }
        out.push_str("}\n");
    }
    out
}

fn services() -> String {
    let mut out = "syntax = \"proto3\";\npackage words.services;\nmessage M {}\n".to_owned();
    for word in words() {
        writeln!(out, "service {word} {{ rpc Go(M) returns (M); }}").unwrap();
    }
    out.push_str("service AllMethods {\n");
    for word in words() {
        writeln!(out, "  rpc {word}(M) returns (M);").unwrap();
    }
    out.push_str("}\n");
    out
}

/// A package for each name. Its message has a field of a type in the package before it.
fn packages() -> Vec<(String, String)> {
    let mut files = Vec::new();
    let mut before = None;
    for word in words() {
        let (import, field) = match before {
            Some(before) => (
                format!("import \"in_{before}.proto\";\n"),
                format!(".words.packages.{before}.M.Inside before = 1;"),
            ),
            None => (String::new(), String::new()),
        };
        let text = format!(
            "syntax = \"proto3\";\npackage words.packages.{word};\n{import}message M {{ message Inside {{}} {field} }}\n"
        );
        files.push((format!("in_{word}.proto"), text));
        before = Some(word);
    }
    files
}
