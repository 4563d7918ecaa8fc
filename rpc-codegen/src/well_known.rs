//! What `prost-types` has of the package `google.protobuf`. prost takes every path below that package
//! for a type of that crate, whether the crate has it or not.

/// The messages without fields that are messages.
const FLAT: [&str; 14] = [
    "Any",
    "BoolValue",
    "BytesValue",
    "DoubleValue",
    "Duration",
    "Empty",
    "FieldMask",
    "FloatValue",
    "Int32Value",
    "Int64Value",
    "StringValue",
    "Timestamp",
    "UInt32Value",
    "UInt64Value",
];

/// The other messages, and the enums. A test compiles a field of each
/// (`tests/protos/each_well_known*.proto`), and so fails if prost-types does not have one.
const OTHERS: [&str; 54] = [
    "Api",
    "DescriptorProto",
    "DescriptorProto.ExtensionRange",
    "DescriptorProto.ReservedRange",
    "Enum",
    "EnumDescriptorProto",
    "EnumDescriptorProto.EnumReservedRange",
    "EnumOptions",
    "EnumValue",
    "EnumValueDescriptorProto",
    "EnumValueOptions",
    "ExtensionRangeOptions",
    "Field",
    "Field.Cardinality",
    "Field.Kind",
    "FieldDescriptorProto",
    "FieldDescriptorProto.Label",
    "FieldDescriptorProto.Type",
    "FieldOptions",
    "FieldOptions.CType",
    "FieldOptions.JSType",
    "FileDescriptorProto",
    "FileDescriptorSet",
    "FileOptions",
    "FileOptions.OptimizeMode",
    "GeneratedCodeInfo",
    "GeneratedCodeInfo.Annotation",
    "ListValue",
    "MessageOptions",
    "Method",
    "MethodDescriptorProto",
    "MethodOptions",
    "MethodOptions.IdempotencyLevel",
    "Mixin",
    "NullValue",
    "OneofDescriptorProto",
    "OneofOptions",
    "Option",
    "ServiceDescriptorProto",
    "ServiceOptions",
    "SourceCodeInfo",
    "SourceCodeInfo.Location",
    "SourceContext",
    "Struct",
    "Syntax",
    "Type",
    "UninterpretedOption",
    "UninterpretedOption.NamePart",
    "Value",
    "compiler.CodeGeneratorRequest",
    "compiler.CodeGeneratorResponse",
    "compiler.CodeGeneratorResponse.Feature",
    "compiler.CodeGeneratorResponse.File",
    "compiler.Version",
];

/// Returns true if prost-types has the type `google.protobuf.<name>`.
pub(crate) fn is_in_prost_types(name: &str) -> bool {
    is_flat(name) || OTHERS.contains(&name)
}

/// Returns true if `google.protobuf.<name>` is a message of prost-types whose fields are not messages.
pub(crate) fn is_flat(name: &str) -> bool {
    FLAT.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_is_compiled_in_a_test() {
        let protos = [
            include_str!("../tests/protos/each_well_known.proto"),
            include_str!("../tests/protos/each_well_known2.proto"),
        ];
        for name in FLAT.iter().chain(&OTHERS) {
            let r#type = format!(" google.protobuf.{name} ");
            assert!(protos.concat().contains(&r#type), "{name}");
        }
    }
}
