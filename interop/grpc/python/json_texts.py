"""JSON of messages of `cli/tests/protos/kinds.proto`, and texts that are none.

A zero with a sign is here in fields with presence only. In others prost leaves it out, as it does a zero.
"""

# Each is one message. Together they set every field, each with values at its limits.
GOOD = [
    # Nothing, and null, which is the same.
    "{}",
    '{"aDouble": null, "anInt32": null, "aString": null, "someBytes": null, "color": null, "inner": null}',
    '{"int32s": null, "byString": null, "wrappedInt32": null, "any": null, "timestamp": null, "struct": null}',
    '{"chosenString": null}',
    # Defaults.
    '{"aDouble": 0, "anInt32": 0, "anInt64": "0", "aBool": false, "aString": "", "someBytes": "", "color": 0}',
    '{"maybeInt32": 0, "maybeString": "", "maybeColor": "COLOR_UNSPECIFIED", "maybeDouble": 0, "maybeBytes": ""}',
    # Integers.
    '{"anInt32": -2147483648, "anInt64": "-9223372036854775808", "aUint32": 4294967295}',
    '{"anInt32": 2147483647, "anInt64": "9223372036854775807", "aUint64": "18446744073709551615"}',
    '{"aSint32": -2147483648, "aSint64": "-9223372036854775808", "aFixed32": 4294967295}',
    '{"aFixed64": "18446744073709551615", "aSfixed32": -2147483648, "aSfixed64": "-9223372036854775808"}',
    '{"anInt32": "12", "anInt64": 12, "aUint32": "12", "aUint64": 12}',
    '{"anInt32": 1e5, "anInt64": 1e5, "aUint32": 1.0, "aUint64": 1.0}',
    '{"anInt32": -0, "aUint64": 18446744073709551615, "anInt64": -9223372036854775808}',
    '{"anInt32": 100000.000, "int32s": [1.0, "2", 3e0]}',
    # Numbers.
    '{"aDouble": 1.7976931348623157e308, "aFloat": 3.4e38}',
    '{"aDouble": 5e-324, "aFloat": 1e-45, "maybeDouble": -0.0}',
    '{"aDouble": -1.5, "aFloat": -1.5}',
    '{"aDouble": "NaN", "aFloat": "NaN"}',
    '{"aDouble": "Infinity", "aFloat": "Infinity"}',
    '{"aDouble": "-Infinity", "aFloat": "-Infinity"}',
    '{"aDouble": "1.5", "aFloat": "1.5"}',
    '{"aDouble": 0.1, "aFloat": 0.1}',
    '{"aDouble": 16777217, "aFloat": 16777217}',
    '{"doubles": [1, 2.5, "NaN", "Infinity", "-Infinity", "1e3"], "floats": [0.1, 3.3, "NaN", "-Infinity"]}',
    # Text and bytes.
    '{"aString": "\\u00e4\\u20ac\\ud83d\\ude00\\u0000\\u001f\\u007f\\u0085\\u2028\\"\\\\\\/\\b\\f\\n\\r\\t"}',
    '{"aString": "ä€😀"}',
    '{"someBytes": "AQIDBA=="}',
    '{"someBytes": "AQIDBA"}',
    '{"someBytes": "-_8"}',
    '{"someBytes": "-_8="}',
    '{"someBytes": "+/8="}',
    '{"bytesList": ["", "AA==", "//8="], "strings": ["", "x"], "bools": [true, false]}',
    # Enums.
    '{"aBool": true, "color": "COLOR_RED", "colors": ["COLOR_BLUE", "COLOR_UNSPECIFIED", 1, -3, 12]}',
    '{"color": -3, "maybeColor": 7}',
    # Names.
    '{"an_int32": 1, "some_bytes": "AA==", "wrapped_int32": 1, "by_string": {"a": "b"}, "chosen_string": "x"}',
    '{"otherName": "a", "old": "b", "OddName1": "c"}',
    '{"renamed": "a", "_odd__name_1": "c"}',
    # Messages.
    '{"inner": {}, "inners": [{}, {"name": "x"}, {"again": {"inner": {"again": {}}}}]}',
    # Oneofs.
    '{"chosenInt64": "5"}',
    '{"chosenString": ""}',
    '{"chosenInner": {"name": "x"}}',
    '{"chosenNull": null}',
    '{"chosenNull": "NULL_VALUE"}',
    '{"chosenBool": false}',
    '{"chosenString": "x", "chosenInt64": null}',
    # Maps.
    '{"byString": {"": "", "a": "b", "\\u0000": "c"}, "byInt32": {"-2147483648": "-1", "0": 0, "7": 1}}',
    '{"byInt64": {"-9223372036854775808": {}, "1": {"name": "x"}}, "byUint64": {"18446744073709551615": "AA=="}}',
    '{"byBool": {"true": "COLOR_RED", "false": -3}, "doublesByString": {"a": "NaN", "b": 1, "c": "-Infinity"}}',
    '{"byString": {}, "byInt64": {}, "int32s": [], "inners": []}',
    '{"int64s": ["1", 2, "-9223372036854775808"], "uint64s": ["18446744073709551615", 0]}',
    # Wrappers.
    '{"wrappedDouble": 0, "wrappedFloat": 0, "wrappedInt64": "0", "wrappedUint64": "0", "wrappedInt32": 0}',
    '{"wrappedUint32": 0, "wrappedBool": false, "wrappedString": "", "wrappedBytes": ""}',
    '{"wrappedDouble": 1.5, "wrappedFloat": 0.1, "wrappedInt64": "-9223372036854775808"}',
    '{"wrappedUint64": "18446744073709551615", "wrappedInt32": -1, "wrappedUint32": 4294967295}',
    '{"wrappedBool": true, "wrappedString": "x", "wrappedBytes": "AA==", "wrappedStrings": ["", "x"]}',
    '{"wrappedDouble": "NaN", "wrappedFloat": "-Infinity"}',
    '{"wrappedDouble": null, "wrappedString": null}',
    # Times.
    '{"timestamp": "1970-01-01T00:00:00Z", "duration": "0s"}',
    '{"timestamp": "0001-01-01T00:00:00Z", "duration": "-315576000000s"}',
    '{"timestamp": "9999-12-31T23:59:59.999999999Z", "duration": "315576000000.000s"}',
    '{"timestamp": "2026-01-31T12:00:00.5Z", "duration": "1.5s"}',
    '{"timestamp": "2026-01-31T12:00:00.000001+01:30", "duration": "-0.5s"}',
    '{"timestamp": "1969-12-31T23:59:59.25Z", "duration": "1.000000001s"}',
    '{"timestamps": ["2000-02-29T00:00:00Z", "2016-12-31T23:59:59Z"], "durations": ["1s", "-1.5s", "0.000001s"]}',
    # Struct and its kind.
    '{"struct": {}, "value": {}, "list": []}',
    '{"struct": {"a": null, "b": 1, "c": 1.5, "d": "x", "e": true, "f": [1, [null]], "g": {"h": {}}}}',
    '{"value": null}',
    '{"value": 1}',
    '{"value": -1.5e-7}',
    '{"value": "x"}',
    '{"value": false}',
    '{"value": [null, 1, "x", {}]}',
    '{"list": [null, 1, "x", [], {}], "values": [null, 1, "x", false, [], {}]}',
    '{"nothing": null}',
    '{"nothing": "NULL_VALUE"}',
    # Others.
    '{"mask": "", "empty": {}}',
    '{"mask": "aString,inner.name,aB.cDE"}',
    '{"any": {}}',
    '{"any": {"@type": "type.googleapis.com/verbline.kinds.EveryKind"}}',
    '{"any": {"@type": "type.googleapis.com/verbline.kinds.EveryKind", "anInt64": "5", "inner": {"name": "x"}}}',
    '{"any": {"aString": "x", "@type": "other.example/a/b/verbline.kinds.EveryKind"}}',
    '{"any": {"@type": "type.googleapis.com/verbline.kinds.EveryKind.Inner", "name": "x"}}',
    '{"any": {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "1.5s"}}',
    '{"any": {"@type": "type.googleapis.com/google.protobuf.Any", "value": '
    '{"@type": "type.googleapis.com/google.protobuf.Int64Value", "value": "7"}}}',
    '{"anys": [{"@type": "type.googleapis.com/google.protobuf.Struct", "value": {"a": [1]}}, '
    '{"@type": "type.googleapis.com/google.protobuf.Value", "value": null}, '
    '{"@type": "type.googleapis.com/google.protobuf.StringValue", "value": ""}, '
    '{"@type": "type.googleapis.com/google.protobuf.Timestamp", "value": "2026-01-31T00:00:00Z"}, '
    '{"@type": "type.googleapis.com/google.protobuf.FieldMask", "value": "aB"}]}',
    '{"any": {"@type": "type.googleapis.com/google.protobuf.Empty"}}',
    # Nothing that a method has imports its file.
    '{"any": {"@type": "type.googleapis.com/routeguide.Point", "latitude": 5}}',
]

# Python refuses each, and so must the program.
BAD = [
    "1", '"x"', "null",
    '{"noSuchField": 1}', '{"ANINT32": 1}',
    '{"anInt32": "x"}', '{"anInt32": ""}', '{"anInt32": 1.5}', '{"anInt32": "1.5"}', '{"anInt32": true}',
    '{"anInt32": 2147483648}', '{"anInt32": -2147483649}', '{"anInt32": [1]}', '{"anInt32": {}}',
    '{"aUint32": -1}', '{"aUint32": 4294967296}', '{"aUint64": -1}', '{"aUint64": "18446744073709551616"}',
    '{"anInt64": "9223372036854775808"}', '{"anInt64": 9223372036854775808}', '{"anInt32": " 1"}',
    '{"aDouble": "x"}', '{"aDouble": ""}', '{"aFloat": 3.5e38}', '{"aFloat": -3.5e38}',
    '{"aDouble": "nan"}', '{"aDouble": NaN}',
    '{"aBool": "true"}', '{"aBool": 1}', '{"aBool": 0}',
    '{"aString": 1}', '{"aString": ["x"]}', '{"aString": "\\ud83d"}', '{"someBytes": 1}',
    '{"color": "NO_COLOR"}',
    '{"inner": 1}', '{"inners": {}}', '{"inners": [null]}', '{"int32s": 1}', '{"int32s": [null]}',
    '{"chosenInt64": "1", "chosenString": "x"}',
    '{"anInt32": 1, "anInt32": 2}',
    '{"byString": []}', '{"byString": {"a": null}}', '{"byString": {"a": 1}}', '{"byInt32": {"x": 1}}',
    '{"byInt32": {"2147483648": 1}}', '{"byBool": {"1": 0}}', '{"byInt64": {"1": null}}',
    '{"wrappedInt32": "x"}', '{"wrappedBool": 1}', '{"wrappedString": 1}', '{"wrappedInt32": {"value": 1}}',
    '{"timestamp": "2026-01-31"}', '{"timestamp": "2026-01-31T12:00:00"}', '{"timestamp": 1}', '{"timestamp": ""}',
    '{"timestamp": "0000-01-01T00:00:00Z"}', '{"timestamp": "10000-01-01T00:00:00Z"}',
    '{"timestamp": "2026-02-30T00:00:00Z"}', '{"timestamp": "2026-01-31T25:00:00Z"}',
    '{"timestamp": "2026-01-31t12:00:00z"}', '{"timestamp": "2026-01-31 12:00:00Z"}',
    '{"duration": "1"}', '{"duration": "s"}', '{"duration": 1}', '{"duration": "315576000001s"}',
    '{"duration": "1.5"}',
    '{"struct": []}', '{"struct": 1}', '{"list": {}}', '{"mask": 1}',
    '{"any": {"@type": "type.googleapis.com/no.such.Type"}}', '{"any": {"aString": "x"}}', '{"any": []}',
    '{"any": {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "x"}}',
    '{"any": {"@type": 1}}', '{"any": {"@type": ""}}',
    '{"any": {"@type": "type.googleapis.com/verbline.kinds.EveryKind", "noSuchField": 1}}',
    '{"empty": {"a": 1}}',
]

# Python takes each, though proto3's rules do not have it, and the program refuses them.
LENIENT = [
    "[]", '{"inner": []}', '{"aDouble": true}', '{"aDouble": "infinity"}', '{"aDouble": "inf"}',
    '{"color": 1.5}', '{"color": true}', '{"chosenNull": null, "chosenBool": true}', '{"anInt32": 1, "an_int32": 2}',
]
