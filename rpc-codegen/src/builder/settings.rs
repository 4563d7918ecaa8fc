//! The methods that set something.

use std::ffi::OsStr;
use std::path::Path;

use super::Builder;

/// Settings for what is generated.
impl Builder {
    /// Sets whether to generate clients. The default is true.
    pub fn build_client(mut self, enable: bool) -> Self {
        self.build_client = enable;
        self
    }

    /// Sets whether to generate the service traits and their servers. The default is true.
    pub fn build_server(mut self, enable: bool) -> Self {
        self.build_server = enable;
        self
    }

    /// Sets whether to generate a codec: straight-line code that encodes and decodes the messages
    /// faster than prost, to the same bytes and values. The default is true.
    ///
    /// The messages of requests and responses get one, with all messages in their fields. It is made for
    /// the fields that prost generates, with their attributes `#[prost(…)]`. Turn it off if another
    /// [attribute](Self::field_attribute) changes how prost encodes a field, or removes one.
    pub fn build_codec(mut self, enable: bool) -> Self {
        self.build_codec = enable;
        self
    }

    /// Sets whether messages that no method uses get a codec too. The default is false: it would only
    /// be more code.
    ///
    /// Turn it on to call the codec yourself for such a message: to store it in a file, for example.
    pub fn codec_for_all_messages(mut self, enable: bool) -> Self {
        self.codec_for_all_messages = enable;
        self
    }

    /// Sets whether to generate the messages of `google.protobuf` instead of using `prost-types`.
    /// The default is false.
    pub fn compile_well_known_types(mut self, enable: bool) -> Self {
        self.compile_well_known_types = enable;
        self
    }

    /// Sets the longest request that the methods below `path` take, in bytes. A method whose
    /// requests are streamed takes messages up to this length. The default is the connection's
    /// limit, which no method exceeds.
    ///
    /// `.demo.Blobs.Put` is a method, and `.demo.Blobs` all methods of a service. The last setting
    /// that matches a method counts.
    pub fn max_request_len(mut self, path: impl AsRef<str>, len: u32) -> Self {
        self.limits.requests.push((path.as_ref().to_owned(), len));
        self
    }

    /// Sets the longest response of the methods below `path`, in bytes, like
    /// [`max_request_len`](Self::max_request_len).
    pub fn max_response_len(mut self, path: impl AsRef<str>, len: u32) -> Self {
        self.limits.responses.push((path.as_ref().to_owned(), len));
        self
    }

    /// Sets how many bytes of memory each byte of the messages below `path` may take when a message
    /// is decoded, besides 256 KiB for the whole message. It applies to requests and responses, with
    /// everything nested in them.
    ///
    /// A message that would take more is refused with `RESOURCE_EXHAUSTED`: two bytes can be an
    /// element of a repeated field, so short messages could otherwise use up the memory.
    ///
    /// By default, a message may take 48 bytes for each of its bytes, and one of less than 4 MiB up
    /// to 192 MiB, but at most 512 bytes for each of its bytes. That is enough for lists of wide
    /// elements of which each has a name. Set 8 for a request that strangers send, and a high number
    /// for messages with more and wider elements.
    pub fn decode_budget(mut self, path: impl AsRef<str>, bytes_per_byte: usize) -> Self {
        self.decode_budgets
            .push((path.as_ref().to_owned(), bytes_per_byte));
        self
    }

    /// Adds an attribute to the service traits below `path`: `.demo.Greeter` is a service, and `.demo`
    /// all services of a package.
    ///
    /// With `.trait_attribute(".demo.Greeter", "#[mockall::automock]")`, mockall generates
    /// `greeter_server::MockGreeter`. It does not support methods that stream responses.
    pub fn trait_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.services.traits.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to the clients (`GreeterClient`) of the services below `path`.
    pub fn client_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.services.clients.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to the servers (`GreeterServer`) of the services below `path`.
    pub fn server_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.services.servers.push(pair(path, attribute));
        self
    }

    /// Sets whether the methods of the service traits have a default, which answers with
    /// `UNIMPLEMENTED`. Then adding a method to a `.proto` breaks no server. The default is false: a
    /// server implements every method.
    pub fn generate_default_stubs(mut self, enable: bool) -> Self {
        self.services.default_stubs = enable;
        self
    }

    /// Sets whether the methods of the service traits take `self: Arc<Self>` instead of `&self`, for
    /// handlers that share their service with tasks of their own. The default is false. It costs a
    /// reference count for each call.
    pub fn use_arc_self(mut self, enable: bool) -> Self {
        self.services.arc_self = enable;
        self
    }

    /// Sets whether generated servers contain the descriptors of their `.proto` file and of all files
    /// that it imports, for the reflection service of `verbline` (feature `reflection`). The default is
    /// false: a server then lists the service, but cannot describe it.
    ///
    /// The descriptors have custom options, and no comments. Services of one file share them.
    pub fn reflection(mut self, enable: bool) -> Self {
        self.reflection = enable;
        self
    }

    /// Uses existing Rust types for the messages below a Protobuf path instead of generating them.
    ///
    /// The Rust path must be absolute: `(".demo.common", "crate::common")` or `(".b",
    /// "::other::b")`.
    pub fn extern_path(mut self, proto_path: impl AsRef<str>, rust_path: impl AsRef<str>) -> Self {
        self.extern_paths.push(pair(proto_path, rust_path));
        self
    }

    /// Sets the path in generated code of the crate that has the module `codegen`: an absolute path,
    /// or one from `crate`.
    ///
    /// The default is the name under which the package's `Cargo.toml` has `verbline`, or else
    /// `rpc-core`. It is `::rpc_core` if there is neither. Development dependencies count too, so a
    /// package whose library uses `rpc-core` and whose tests use `verbline` must set the path.
    pub fn crate_path(mut self, path: impl AsRef<str>) -> Self {
        self.crate_path = Some(path.as_ref().to_owned());
        self
    }
}

/// Settings for messages.
impl Builder {
    /// Adds an attribute to the messages, enums and oneofs below `path`.
    pub fn type_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.type_attributes.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to the messages below `path`.
    pub fn message_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.message_attributes.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to the enums and oneofs below `path`.
    pub fn enum_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.enum_attributes.push(pair(path, attribute));
        self
    }

    /// Adds an attribute to the fields below `path`.
    pub fn field_attribute(mut self, path: impl AsRef<str>, attribute: impl AsRef<str>) -> Self {
        self.field_attributes.push(pair(path, attribute));
        self
    }

    /// Uses `bytes::Bytes` instead of `Vec<u8>` for the `bytes` fields below `path`.
    ///
    /// Such a field goes by reference. A long value is sent without a copy, and a received one is a
    /// slice of the memory that the message arrived in. Short values are copied.
    ///
    /// A path that matches no field is an error of the build, unless it is `.`.
    pub fn bytes(mut self, path: impl AsRef<str>) -> Self {
        self.bytes.push(path.as_ref().to_owned());
        self
    }

    /// Uses `BTreeMap` instead of `HashMap` for the `map` fields below `path`.
    pub fn btree_map(mut self, path: impl AsRef<str>) -> Self {
        self.btree_map.push(path.as_ref().to_owned());
        self
    }

    /// Implements `prost::Name` for the messages, which have their full names then, and a type URL.
    /// `prost_types::Any` needs it (`Any::from_msg`, `to_msg`).
    pub fn enable_type_names(mut self) -> Self {
        self.type_names = true;
        self
    }

    /// Sets the domain of the type URLs of the messages below `path`: `type.googleapis.com`, for
    /// example. The default is none: a URL begins with its slash. Needs
    /// [`enable_type_names`](Self::enable_type_names).
    pub fn type_name_domain(mut self, path: impl AsRef<str>, domain: impl AsRef<str>) -> Self {
        self.type_name_domains.push(pair(path, domain));
        self
    }

    /// Leaves the comments of the items below `path` out of the documentation: messages, fields,
    /// services and methods.
    pub fn disable_comments(mut self, path: impl AsRef<str>) -> Self {
        self.disable_comments.push(path.as_ref().to_owned());
        self
    }

    /// Does not derive `Debug` for the messages, enums and oneofs below `path`. Implement it yourself:
    /// every message has to be `Debug`.
    pub fn skip_debug(mut self, path: impl AsRef<str>) -> Self {
        self.skip_debug.push(path.as_ref().to_owned());
        self
    }

    /// Keeps the name of an enum at the beginning of its values' names: `Color::ColorRed` for
    /// `COLOR_RED`. By default it is removed: `Color::Red`.
    pub fn retain_enum_prefix(mut self) -> Self {
        self.retain_enum_prefix = true;
        self
    }

    /// Boxes the message fields below `path`.
    pub fn boxed(mut self, path: impl AsRef<str>) -> Self {
        self.boxed.push(path.as_ref().to_owned());
        self
    }
}

/// Settings for input and output.
impl Builder {
    /// Sets the directory to write to, which is created if it does not exist. The default is
    /// cargo's `OUT_DIR`.
    pub fn out_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.out_dir = Some(dir.as_ref().to_owned());
        self
    }

    /// Also writes a file of this name in the output directory, which includes all packages in
    /// modules named and nested like them. Packages that use one another's messages need it. Include
    /// it with `verbline::include_protos!("shop.rs")`.
    pub fn include_file(mut self, path: impl AsRef<Path>) -> Self {
        self.include_file = Some(path.as_ref().to_owned());
        self
    }

    /// Also writes the descriptors of all files to `path`, like `protoc -o`.
    pub fn file_descriptor_set_path(mut self, path: impl AsRef<Path>) -> Self {
        self.file_descriptor_set_path = Some(path.as_ref().to_owned());
        self
    }

    /// Compiles the `.proto` files with the `protoc` at this path, or of this name, instead of
    /// protox.
    pub fn protoc(mut self, protoc: impl AsRef<Path>) -> Self {
        self.protoc = Some(protoc.as_ref().to_owned());
        self
    }

    /// Adds an argument for [`protoc`](Self::protoc), and is an error without it.
    pub fn protoc_arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.protoc_args.push(arg.as_ref().to_owned());
        self
    }

    /// Sets whether a build script prints `cargo:rerun-if-changed` for the files that were read.
    /// The default is true. Without it, cargo runs the script again if any file of its package has
    /// changed.
    pub fn emit_rerun_if_changed(mut self, enable: bool) -> Self {
        self.emit_rerun_if_changed = enable;
        self
    }
}

fn pair(first: impl AsRef<str>, second: impl AsRef<str>) -> (String, String) {
    (first.as_ref().to_owned(), second.as_ref().to_owned())
}
