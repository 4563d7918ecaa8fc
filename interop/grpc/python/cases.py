"""gRPC's interop cases, with the names and the semantics of its `interop-test-descriptions.md`.

A case gets a channel and the address of the server. It returns the sizes that it has used, and raises `Failure`.
"""

import os
import queue
import time

import generated
import grpc
from grpc.testing import empty_pb2, messages_pb2, test_pb2_grpc

from expect import Failure, expect, expect_code, expect_error

REQUEST_LENS = [27182, 8, 1828, 45904]
RESPONSE_LENS = [31415, 9, 2653, 58979]
LONG_REQUEST_LEN = 271828
LONG_RESPONSE_LEN = 314159
# Calls at a time, calls of `rpc_soak`, and channels of `channel_soak`.
CONCURRENT_CALLS = 100
SOAK_CALLS = 100
SOAK_CHANNELS = 20
# Uploads that are cancelled. Some must reach the server before they are.
TORN_UPLOADS = 50
# For every call, so that none hangs, in seconds.
TIMEOUT_S = 60
METADATA = [("x-grpc-test-echo-initial", "test_initial_metadata_value"),
            ("x-grpc-test-echo-trailing-bin", b"\xab\xab\xab")]


def read(variable):
    """The bytes of the file that an environment variable names, if it is set."""
    path = os.environ.get(variable)
    return path and open(path, "rb").read()


def connect(target):
    """Connects: with TLS if TLS_ROOTS names a file, and as the client of TLS_CERTIFICATE and TLS_KEY, if they do."""
    # By default, the channels of a process share their connections.
    options = [("grpc.use_local_subchannel_pool", 1)]
    roots = read("TLS_ROOTS")
    if not roots:
        return grpc.insecure_channel(target, options=options)
    credentials = grpc.ssl_channel_credentials(roots, read("TLS_KEY"), read("TLS_CERTIFICATE"))
    return grpc.secure_channel(target, credentials, options=options)


def test_service(channel):
    return test_pb2_grpc.TestServiceStub(channel)


def zeros(length):
    return messages_pb2.Payload(body=bytes(length))


def length_of(payload):
    expect("bytes of a payload that are not 0", len(payload.body) - payload.body.count(0), 0)
    return len(payload.body)


def long_request():
    return messages_pb2.SimpleRequest(response_size=LONG_RESPONSE_LEN, payload=zeros(LONG_REQUEST_LEN))


def expect_long(response):
    expect("length of the response", length_of(response.payload), LONG_RESPONSE_LEN)


def output(request_len, response_lens):
    parameters = [messages_pb2.ResponseParameters(size=length) for length in response_lens]
    return messages_pb2.StreamingOutputCallRequest(payload=zeros(request_len), response_parameters=parameters)


def expect_messages(responses, lengths):
    """Expects responses of these lengths, and then the end of the stream."""
    expect("lengths of the responses", [length_of(response.payload) for response in responses], lengths)


def expect_message(responses, length):
    response = next(responses, None)
    if response is None:
        raise Failure("the stream has ended early")
    expect("length of the response", length_of(response.payload), length)


def expect_cancelled(channel, call):
    """Cancels a call that must not have ended."""
    # The server has answered this one after it has got what was sent before.
    test_service(channel).EmptyCall(empty_pb2.Empty(), timeout=TIMEOUT_S)
    call.cancel()
    expect_code(call.code(), grpc.StatusCode.CANCELLED)


def empty_unary(channel, _):
    response = test_service(channel).EmptyCall(empty_pb2.Empty(), timeout=TIMEOUT_S)
    expect("length of the response", response.ByteSize(), 0)
    return "0 bytes"


def large_unary(channel, _):
    expect_long(test_service(channel).UnaryCall(long_request(), timeout=TIMEOUT_S))
    return f"request {LONG_REQUEST_LEN}, response {LONG_RESPONSE_LEN} bytes"


def concurrent_large_unary(channel, _):
    call = test_service(channel).UnaryCall
    calls = [call.future(long_request(), timeout=TIMEOUT_S) for _ in range(CONCURRENT_CALLS)]
    for call in calls:
        expect_long(call.result())
    return f"{CONCURRENT_CALLS} calls at a time"


def client_streaming(channel, _):
    requests = [messages_pb2.StreamingInputCallRequest(payload=zeros(length)) for length in REQUEST_LENS]
    response = test_service(channel).StreamingInputCall(iter(requests), timeout=TIMEOUT_S)
    expect("total length", response.aggregated_payload_size, sum(REQUEST_LENS))
    return f"requests {REQUEST_LENS} bytes"


def server_streaming(channel, _):
    responses = test_service(channel).StreamingOutputCall(output(0, RESPONSE_LENS), timeout=TIMEOUT_S)
    expect_messages(responses, RESPONSE_LENS)
    return f"responses {RESPONSE_LENS} bytes"


def ping_pong(channel, _):
    requests = queue.SimpleQueue()
    responses = test_service(channel).FullDuplexCall(iter(requests.get, None), timeout=TIMEOUT_S)
    try:
        for request_len, response_len in zip(REQUEST_LENS, RESPONSE_LENS):
            requests.put(output(request_len, [response_len]))
            expect_message(responses, response_len)
    finally:
        requests.put(None)
    expect_messages(responses, [])
    return f"requests {REQUEST_LENS}, responses {RESPONSE_LENS} bytes"


def empty_stream(channel, _):
    expect_messages(test_service(channel).FullDuplexCall(iter([]), timeout=TIMEOUT_S), [])
    return "no messages"


def half_duplex(channel, _):
    """Not among those that gRPC describes, but its service has the method: responses after the last request."""
    requests = [output(request_len, [response_len]) for request_len, response_len in zip(REQUEST_LENS, RESPONSE_LENS)]
    expect_messages(test_service(channel).HalfDuplexCall(iter(requests), timeout=TIMEOUT_S), RESPONSE_LENS)
    return f"requests {REQUEST_LENS}, responses {RESPONSE_LENS} bytes"


def custom_metadata(channel, _):
    stub = test_service(channel)
    response, call = stub.UnaryCall.with_call(long_request(), metadata=METADATA, timeout=TIMEOUT_S)
    expect_long(response)
    expect_metadata(call)
    requests = iter([output(LONG_REQUEST_LEN, [LONG_RESPONSE_LEN])])
    responses = stub.FullDuplexCall(requests, metadata=METADATA, timeout=TIMEOUT_S)
    expect_messages(responses, [LONG_RESPONSE_LEN])
    expect_metadata(responses)
    return f"request {LONG_REQUEST_LEN}, response {LONG_RESPONSE_LEN} bytes"


def expect_metadata(call):
    for metadata, (key, value) in zip([call.initial_metadata(), call.trailing_metadata()], METADATA):
        expect(f"metadata {key}", [found for name, found in metadata if name == key], [value])


def echo_status(message):
    return messages_pb2.EchoStatus(code=grpc.StatusCode.UNKNOWN.value[0], message=message)


def status_code_and_message(channel, _):
    message = "test status message"
    stub = test_service(channel)
    request = messages_pb2.SimpleRequest(response_status=echo_status(message))
    error = expect_error(grpc.StatusCode.UNKNOWN, stub.UnaryCall, request, timeout=TIMEOUT_S)
    expect("status message", error.details(), message)
    request = messages_pb2.StreamingOutputCallRequest(response_status=echo_status(message))
    responses = stub.FullDuplexCall(iter([request]), timeout=TIMEOUT_S)
    error = expect_error(grpc.StatusCode.UNKNOWN, next, responses)
    expect("status message", error.details(), message)
    return f"message of {len(message)} characters"


def special_status_message(channel, _):
    message = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
    request = messages_pb2.SimpleRequest(response_status=echo_status(message))
    error = expect_error(grpc.StatusCode.UNKNOWN, test_service(channel).UnaryCall, request, timeout=TIMEOUT_S)
    expect("status message", error.details(), message)
    return f"message of {len(message)} characters"


def unimplemented_method(channel, _):
    call = test_service(channel).UnimplementedCall
    expect_error(grpc.StatusCode.UNIMPLEMENTED, call, empty_pb2.Empty(), timeout=TIMEOUT_S)
    return "0 bytes"


def unimplemented_service(channel, _):
    call = test_pb2_grpc.UnimplementedServiceStub(channel).UnimplementedCall
    expect_error(grpc.StatusCode.UNIMPLEMENTED, call, empty_pb2.Empty(), timeout=TIMEOUT_S)
    return "0 bytes"


def cancel_after_begin(channel, _):
    requests = queue.SimpleQueue()
    call = test_service(channel).StreamingInputCall.future(iter(requests.get, None), timeout=TIMEOUT_S)
    try:
        expect_cancelled(channel, call)
    finally:
        requests.put(None)
    return "no messages"


def cancel_after_first_response(channel, _):
    requests = queue.SimpleQueue()
    responses = test_service(channel).FullDuplexCall(iter(requests.get, None), timeout=TIMEOUT_S)
    try:
        requests.put(output(REQUEST_LENS[0], RESPONSE_LENS[:1]))
        expect_message(responses, RESPONSE_LENS[0])
        expect_cancelled(channel, responses)
    finally:
        requests.put(None)
    return f"request {REQUEST_LENS[0]}, response {RESPONSE_LENS[0]} bytes"


def torn_uploads(channel, _):
    """Uploads that the client cancels: `run.py` asks a Verbline server whether it took one for complete."""
    for _ in range(TORN_UPLOADS):
        requests = queue.SimpleQueue()
        for length in REQUEST_LENS:
            requests.put(messages_pb2.StreamingInputCallRequest(payload=zeros(length)))
        call = test_service(channel).StreamingInputCall.future(iter(requests.get, None), timeout=TIMEOUT_S)
        try:
            expect_cancelled(channel, call)
        finally:
            requests.put(None)
    return f"{TORN_UPLOADS} uploads, requests {REQUEST_LENS} bytes"


def timeout_on_sleeping_server(channel, _):
    # gRPC's deadline, and one that only a server exceeds that does not end the call.
    for timeout_s in [0.001, 0.5]:
        requests = queue.SimpleQueue()
        requests.put(output(REQUEST_LENS[0], []))
        responses = test_service(channel).FullDuplexCall(iter(requests.get, None), timeout=timeout_s)
        try:
            expect_error(grpc.StatusCode.DEADLINE_EXCEEDED, next, responses, None)
        finally:
            requests.put(None)
    return f"request {REQUEST_LENS[0]} bytes, timeouts 1 ms and 500 ms"


def compressed_request(channel, _):
    """A server may lack gzip. Then it must say so with gRPC's status for it, and serve the next call."""
    stub = test_service(channel)
    try:
        expect_long(stub.UnaryCall(long_request(), compression=grpc.Compression.Gzip, timeout=TIMEOUT_S))
        outcome = "was read"
    except grpc.RpcError as error:
        expect_code(error.code(), grpc.StatusCode.UNIMPLEMENTED)
        outcome = f"was refused: {error.details()}"
    expect_long(stub.UnaryCall(long_request(), timeout=TIMEOUT_S))
    return f"the compressed request {outcome}"


def rpc_soak(channel, _):
    for _ in range(SOAK_CALLS):
        large_unary(channel, _)
    return f"{SOAK_CALLS} calls, request {LONG_REQUEST_LEN}, response {LONG_RESPONSE_LEN} bytes"


def channel_soak(_, target):
    for _ in range(SOAK_CHANNELS):
        with connect(target) as channel:
            large_unary(channel, target)
    return f"{SOAK_CHANNELS} channels, request {LONG_REQUEST_LEN}, response {LONG_RESPONSE_LEN} bytes"


CASES = {case.__name__: case for case in [
    empty_unary, large_unary, concurrent_large_unary, client_streaming, server_streaming, ping_pong, empty_stream,
    half_duplex, custom_metadata, status_code_and_message, special_status_message, unimplemented_method,
    unimplemented_service, cancel_after_begin, cancel_after_first_response, timeout_on_sleeping_server, rpc_soak,
    channel_soak, torn_uploads, compressed_request]}
