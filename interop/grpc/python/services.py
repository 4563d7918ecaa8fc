"""The services that tools and probes call: reflection and health, with grpcio's own clients of them."""

import os
import signal

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from expect import Failure, expect, expect_error

TIMEOUT_S = 60
SERVED = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
          "grpc.reflection.v1alpha.ServerReflection", "grpc.testing.TestService"]
# Only grpcio's server has it beside the others.
ROUTE_GUIDE = "routeguide.RouteGuide"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def reflection_lists(channel, _):
    """Of both versions, which have the same messages: grpcio-reflection has a client of v1alpha only."""
    for version in ["v1alpha", "v1"]:
        responses = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        [response] = responses(iter([request]), timeout=TIMEOUT_S)
        names = sorted(service.name for service in response.list_services_response.service)
        expect(f"services by {version}", [name for name in names if name != ROUTE_GUIDE], SERVED)
    return ", ".join(names)


def reflection_of_imports(channel, _):
    """Makes a call as grpcurl does: all that it knows of the messages comes from the server."""
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    try:
        service = pool.FindServiceByName("grpc.testing.TestService")
    except KeyError as error:
        raise Failure(f"reflection: {error}") from error
    expect("imports", [file.name for file in service.file.dependencies],
           ["grpc/testing/empty.proto", "grpc/testing/messages.proto"])
    method = service.methods_by_name["UnaryCall"]
    request_type, response_type = map(message_factory.GetMessageClass, [method.input_type, method.output_type])
    call = channel.unary_unary(f"/{service.full_name}/{method.name}",
                               request_serializer=request_type.SerializeToString,
                               response_deserializer=response_type.FromString)
    response = call(request_type(response_size=9), timeout=TIMEOUT_S)
    expect("payload", response.payload.body, bytes(9))
    return f"{service.file.name} with {len(service.file.dependencies)} imports"


def reflection_of_unknown(channel, _):
    database = ProtoReflectionDescriptorDatabase(channel)
    # grpcio-reflection's client raises KeyError for NOT_FOUND, and something else for another error.
    for look_up in [database.FindFileContainingSymbol, database.FindFileByName]:
        try:
            look_up("no.such.thing")
        except KeyError:
            continue
        raise Failure("the server knows no.such.thing")
    return "a symbol and a file"


def health_check(channel, _):
    check = health_pb2_grpc.HealthStub(channel).Check
    for name in ["", "grpc.testing.TestService"]:
        response = check(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT_S)
        expect(f"status of '{name}'", response.status, SERVING)
    unknown = health_pb2.HealthCheckRequest(service="no.such.Service")
    expect_error(grpc.StatusCode.NOT_FOUND, check, unknown, timeout=TIMEOUT_S)
    response = next(health_pb2_grpc.HealthStub(channel).Watch(unknown, timeout=TIMEOUT_S))
    expect("status of an unknown service", response.status, SERVICE_UNKNOWN)
    return "the server, a service, and an unknown one"


def health_watch_over_shutdown(channel, _):
    """Stops the server. A watcher must know of it before a call fails, and then see its stream end."""
    stub = health_pb2_grpc.HealthStub(channel)
    watches = [stub.Watch(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT_S)
               for name in ["", "grpc.testing.TestService"]]
    for watch in watches:
        expect("status", next(watch).status, SERVING)
    os.kill(int(os.environ["SERVER_PID"]), signal.SIGTERM)
    for watch in watches:
        expect("status", next(watch).status, NOT_SERVING)
    # In its lame-duck time, it still answers.
    response = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    expect("status", response.status, NOT_SERVING)
    codes = []
    for watch in watches:
        try:
            expect("statuses after NOT_SERVING", list(watch), [])
        except grpc.RpcError:
            pass
        codes.append(watch.code().name)
        if watch.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise Failure("the stream has not ended with the server")
    return f"SERVING, NOT_SERVING, then the streams end with {' and '.join(codes)}"


CASES = {case.__name__: case for case in [
    reflection_lists, reflection_of_imports, reflection_of_unknown, health_check, health_watch_over_shutdown]}
