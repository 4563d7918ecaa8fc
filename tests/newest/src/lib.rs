//! Code for `.proto` files of the kinds on which the generator once failed: it compiles, and what
//! cannot be is refused by the generator.

include!(concat!(env!("OUT_DIR"), "/cases.rs"));

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use prost::Message;
    use rpc_codegen::Error;
    use rpc_core::Codec;
    use rpc_core::codegen::v1::GeneratedCodec;

    use super::*;

    fn compile(folder: &str) -> Result<(), Error> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("protos")
            .join(folder);
        let files = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let out = PathBuf::from(env!("OUT_DIR")).join("refused");
        rpc_codegen::configure()
            .out_dir(out)
            .compile_protos(&files.collect::<Vec<_>>(), &[folder])
    }

    #[test]
    fn names_that_are_equal_in_rust_are_refused() {
        for (folder, name) in [
            ("07-fields-same-after-snake", "row_count"),
            ("17-methods-same-after-snake", "get_url"),
            ("18-enum-values-same", "Red"),
        ] {
            let error = compile(folder).unwrap_err();
            assert!(
                matches!(&error, Error::NameTaken { .. }),
                "{folder}: {error}"
            );
            assert!(
                error.to_string().contains(&format!("`{name}`")),
                "{folder}: {error}"
            );
        }
    }

    /// protoc refuses them too.
    #[test]
    fn names_that_are_equal_in_json_are_refused() {
        let error = compile("24-aliased-enum-proto3-json").unwrap_err();
        assert!(matches!(&error, Error::Proto { .. }), "{error}");
    }

    #[test]
    fn an_edition_says_what_to_do() {
        let error = compile("05-edition-2023").unwrap_err();
        assert!(
            error.to_string().contains("set `.protoc(\"protoc\")`"),
            "{error}"
        );
    }

    #[test]
    fn a_number_with_another_option_has_the_bytes_of_prost() {
        #[allow(deprecated)]
        let message = case_28_packed_with_another_option::pk::Filter {
            kinds: vec![1, -1, 300],
            plain: vec![-7, 7],
        };
        let mut encoded = Vec::new();
        GeneratedCodec::encode_to(&message, &mut encoded).unwrap();
        assert_eq!(encoded, message.encode_to_vec());
        assert_eq!(GeneratedCodec::decode(&encoded), Ok(message));
    }
}
