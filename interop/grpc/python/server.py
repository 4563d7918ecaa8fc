"""A stock gRPC server: gRPC's interop service, the route guide, health and reflection, on grpcio.

    server.py              serves until SIGTERM: sets NOT_SERVING first, and stops a second later
    server.py --abrupt     stops at once on SIGTERM, without saying so
    server.py --contrary   serves each test case at a port of its own, and does wrong what the case looks at

It prints a line for each port: "listening at HOST:PORT", or "contrary CASE HOST:PORT".
"""

import argparse
import json
import math
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import generated
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc.testing import empty_pb2, messages_pb2, test_pb2, test_pb2_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
import routeguide_pb2
import routeguide_pb2_grpc

INITIAL = "x-grpc-test-echo-initial"
TRAILING = "x-grpc-test-echo-trailing-bin"
# How long a server that stops still answers, in seconds.
LAME_DUCK_S = 1.0
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"
# Reflection knows the modules that have been imported.
SERVED = [module.DESCRIPTOR.services_by_name[name].full_name for module, name in
          [(test_pb2, "TestService"), (routeguide_pb2, "RouteGuide"), (health_pb2, "Health")]]


def payload(length):
    return messages_pb2.Payload(body=bytes(length))


def echo_metadata(context):
    for key, value in context.invocation_metadata():
        if key == INITIAL:
            context.send_initial_metadata([(key, value)])
        if key == TRAILING:
            context.set_trailing_metadata([(key, value)])


def fail_if_asked(request, context):
    status = request.response_status
    if status.code:
        codes = {code.value[0]: code for code in grpc.StatusCode}
        context.abort(codes.get(status.code, grpc.StatusCode.UNKNOWN), status.message)


def responses_to(request):
    for parameters in request.response_parameters:
        yield messages_pb2.StreamingOutputCallResponse(payload=payload(parameters.size))


class TestService(test_pb2_grpc.TestServiceServicer):
    """What gRPC's interop cases call. The base class refuses `UnimplementedCall`."""

    def EmptyCall(self, request, context):
        return empty_pb2.Empty()

    def UnaryCall(self, request, context):
        echo_metadata(context)
        fail_if_asked(request, context)
        return messages_pb2.SimpleResponse(payload=payload(request.response_size))

    def CacheableUnaryCall(self, request, context):
        return self.UnaryCall(request, context)

    def StreamingOutputCall(self, request, context):
        echo_metadata(context)
        fail_if_asked(request, context)
        yield from responses_to(request)

    def StreamingInputCall(self, requests, context):
        total = sum(len(request.payload.body) for request in requests)
        return messages_pb2.StreamingInputCallResponse(aggregated_payload_size=total)

    def FullDuplexCall(self, requests, context):
        echo_metadata(context)
        for request in requests:
            fail_if_asked(request, context)
            yield from responses_to(request)

    def HalfDuplexCall(self, requests, context):
        for request in list(requests):
            fail_if_asked(request, context)
            yield from responses_to(request)


class RouteGuide(routeguide_pb2_grpc.RouteGuideServicer):
    """gRPC's route guide, with the features of the examples."""

    def __init__(self):
        with open(os.path.join(generated.ROOT, "examples/data/features.json"), encoding="utf-8") as file:
            features = json.load(file)
        self.names = {(feature["latitude"], feature["longitude"]): feature["name"] for feature in features}
        self.notes = []

    def GetFeature(self, request, context):
        name = self.names.get((request.latitude, request.longitude), "")
        return routeguide_pb2.Feature(name=name, location=request)

    def ListFeatures(self, request, context):
        south, north = sorted((request.lo.latitude, request.hi.latitude))
        west, east = sorted((request.lo.longitude, request.hi.longitude))
        for (latitude, longitude), name in self.names.items():
            if south <= latitude <= north and west <= longitude <= east:
                point = routeguide_pb2.Point(latitude=latitude, longitude=longitude)
                yield routeguide_pb2.Feature(name=name, location=point)

    def RecordRoute(self, requests, context):
        points = [(point.latitude, point.longitude) for point in requests]
        known = sum(point in self.names for point in points)
        meters = int(sum(map(distance, points, points[1:])))
        return routeguide_pb2.RouteSummary(point_count=len(points), feature_count=known, distance=meters)

    def RouteChat(self, requests, context):
        for note in requests:
            earlier = [other for other in self.notes if other.location == note.location]
            self.notes.append(note)
            yield from earlier


def distance(point, other):
    """The distance of two points on a sphere, in meters."""
    (latitude, longitude), (other_latitude, other_longitude) = [
        [math.radians(degrees / 1e7) for degrees in place] for place in [point, other]]
    half_latitude = math.sin((other_latitude - latitude) / 2)
    half_longitude = math.sin((other_longitude - longitude) / 2)
    a = half_latitude**2 + math.cos(latitude) * math.cos(other_latitude) * half_longitude**2
    return 2 * 6371000 * math.asin(math.sqrt(a))


class WithoutEmptyCall(TestService):
    EmptyCall = test_pb2_grpc.TestServiceServicer.EmptyCall


class ShortResponse(TestService):
    def UnaryCall(self, request, context):
        request.response_size -= 1
        return super().UnaryCall(request, context)


class OneByteMore(TestService):
    def StreamingInputCall(self, requests, context):
        response = super().StreamingInputCall(requests, context)
        response.aggregated_payload_size += 1
        return response


class LastIsMissing(TestService):
    def StreamingOutputCall(self, request, context):
        yield from list(super().StreamingOutputCall(request, context))[:-1]

    def HalfDuplexCall(self, requests, context):
        yield from list(super().HalfDuplexCall(requests, context))[:-1]


class OneMore(TestService):
    def FullDuplexCall(self, requests, context):
        yield from super().FullDuplexCall(requests, context)
        yield messages_pb2.StreamingOutputCallResponse()


class WithoutTrailers(TestService):
    def FullDuplexCall(self, requests, context):
        context.set_trailing_metadata = lambda metadata: None
        return super().FullDuplexCall(requests, context)


class OtherMessage(TestService):
    def FullDuplexCall(self, requests, context):
        for request in requests:
            request.response_status.message += "!"
            fail_if_asked(request, context)
            yield from responses_to(request)


class StrippedMessage(TestService):
    def UnaryCall(self, request, context):
        request.response_status.message = request.response_status.message.strip()
        return super().UnaryCall(request, context)


class Implemented(TestService, test_pb2_grpc.UnimplementedServiceServicer):
    def UnimplementedCall(self, request, context):
        return empty_pb2.Empty()


class EndsEarly(TestService):
    """Ends its streams before the client has done so. `EmptyCall` comes after that."""

    def EmptyCall(self, request, context):
        time.sleep(0.5)
        return empty_pb2.Empty()

    def StreamingInputCall(self, requests, context):
        return messages_pb2.StreamingInputCallResponse()

    def FullDuplexCall(self, requests, context):
        yield from responses_to(next(requests))


class OtherRoute(RouteGuide):
    """Forgets the last feature, the last point and the first note."""

    def GetFeature(self, request, context):
        return routeguide_pb2.Feature(location=request)

    def ListFeatures(self, request, context):
        yield from list(super().ListFeatures(request, context))[:-1]

    def RecordRoute(self, requests, context):
        return super().RecordRoute(iter(list(requests)[:-1]), context)

    def RouteChat(self, requests, context):
        return super().RouteChat(iter(list(requests)[1:]), context)


def add_test_service(server, service):
    test_pb2_grpc.add_TestServiceServicer_to_server(service, server)
    if isinstance(service, Implemented):
        test_pb2_grpc.add_UnimplementedServiceServicer_to_server(service, server)


def add_route_guide(server, service):
    routeguide_pb2_grpc.add_RouteGuideServicer_to_server(service, server)


def add_health(server, names):
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    for name in ["", *names]:
        servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    return servicer


def add_reflection(server, names, pool=None):
    """Adds both versions of reflection: their messages are the same."""
    names = [*names, REFLECTION_V1, reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server, pool)
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.ReflectionServicer(names, pool).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString)
    methods = {"ServerReflectionInfo": handler}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(REFLECTION_V1, methods)])


def add_reflection_of(server, name, package, message):
    """Adds reflection that knows one file, without imports: of a service and a message."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package)
    file.message_type.add(name=message)
    file.service.add(name="TestService")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    add_reflection(server, [], pool)


# Each test case, and what is added to the server that it must not accept.
CONTRARY = {
    "empty_unary": (add_test_service, WithoutEmptyCall()),
    "large_unary": (add_test_service, ShortResponse()),
    "concurrent_large_unary": (add_test_service, ShortResponse()),
    "client_streaming": (add_test_service, OneByteMore()),
    "server_streaming": (add_test_service, LastIsMissing()),
    "ping_pong": (add_test_service, OneMore()),
    "empty_stream": (add_test_service, OneMore()),
    "half_duplex": (add_test_service, LastIsMissing()),
    "custom_metadata": (add_test_service, WithoutTrailers()),
    "status_code_and_message": (add_test_service, OtherMessage()),
    "special_status_message": (add_test_service, StrippedMessage()),
    "unimplemented_method": (add_test_service, Implemented()),
    "unimplemented_service": (add_test_service, Implemented()),
    "cancel_after_begin": (add_test_service, EndsEarly()),
    "cancel_after_first_response": (add_test_service, EndsEarly()),
    "timeout_on_sleeping_server": (add_test_service, EndsEarly()),
    "rpc_soak": (add_test_service, ShortResponse()),
    "channel_soak": (add_test_service, ShortResponse()),
    "torn_uploads": (add_test_service, EndsEarly()),
    "compressed_request": (add_test_service, ShortResponse()),
    "get_feature": (add_route_guide, OtherRoute()),
    "list_features": (add_route_guide, OtherRoute()),
    "record_route": (add_route_guide, OtherRoute()),
    "route_chat": (add_route_guide, OtherRoute()),
    "reflection_lists": (add_reflection, [*SERVED, "grpc.testing.UnimplementedService"]),
    "reflection_of_imports": (add_reflection_of, "grpc/testing/test.proto", "grpc.testing", "Empty"),
    "reflection_of_unknown": (add_reflection_of, "no.such.thing", "no.such", "thing"),
    "reflection_of_symbols": (add_reflection_of, "grpc/testing/test.proto", "grpc.testing", "Empty"),
    "health_check": (add_health, [*SERVED, "no.such.Service"]),
}


def new_server():
    """Returns a server and its address, at a free port."""
    # A thread for each stream that is open.
    server = grpc.server(ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
    return server, f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"


def serve(is_abrupt):
    terminated = [signal.SIGTERM, signal.SIGINT]
    signal.pthread_sigmask(signal.SIG_BLOCK, terminated)
    server, address = new_server()
    add_test_service(server, TestService())
    add_route_guide(server, RouteGuide())
    servicer = add_health(server, SERVED)
    add_reflection(server, SERVED)
    server.start()
    print("listening at", address, flush=True)
    signal.sigwait(terminated)
    if is_abrupt:
        server.stop(0).wait()
        return
    servicer.enter_graceful_shutdown()
    time.sleep(LAME_DUCK_S)
    server.stop(0.2).wait()


def serve_contrary():
    servers = []
    for case, (add, *arguments) in CONTRARY.items():
        server, address = new_server()
        add(server, *arguments)
        server.start()
        servers.append(server)
        print("contrary", case, address, flush=True)
    print("listening", flush=True)
    signal.pause()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--abrupt", action="store_true")
    parser.add_argument("--contrary", action="store_true")
    arguments = parser.parse_args()
    if arguments.contrary:
        serve_contrary()
    else:
        serve(arguments.abrupt)


main()
