"""The route guide: a method of each kind, against the features of the examples."""

import random

import generated
import routeguide_pb2
import routeguide_pb2_grpc

from expect import expect

TIMEOUT_S = 60
EIGER = routeguide_pb2.Point(latitude=465776000, longitude=80053000)
NOWHERE = routeguide_pb2.Point(latitude=1, longitude=1)
OBERLAND = routeguide_pb2.Rectangle(lo=routeguide_pb2.Point(latitude=465000000, longitude=75000000),
                                    hi=routeguide_pb2.Point(latitude=468000000, longitude=81000000))
IN_THE_OBERLAND = ["Jungfraujoch", "Eiger", "Lauterbrunnen church", "Harder Kulm", "Thun castle"]
# Along these, in meters.
ROUTE_LENGTH = 41723


def route_guide(channel):
    return routeguide_pb2_grpc.RouteGuideStub(channel)


def get_feature(channel, _):
    for point, name in [(EIGER, "Eiger"), (NOWHERE, "")]:
        feature = route_guide(channel).GetFeature(point, timeout=TIMEOUT_S)
        expect("feature", (feature.name, feature.location), (name, point))
    return "a feature, and none"


def features_of_the_oberland(channel):
    return list(route_guide(channel).ListFeatures(OBERLAND, timeout=TIMEOUT_S))


def list_features(channel, _):
    expect("features", [feature.name for feature in features_of_the_oberland(channel)], IN_THE_OBERLAND)
    return f"{len(IN_THE_OBERLAND)} features"


def record_route(channel, _):
    points = [feature.location for feature in features_of_the_oberland(channel)]
    summary = route_guide(channel).RecordRoute(iter(points), timeout=TIMEOUT_S)
    found = (summary.point_count, summary.feature_count, summary.distance)
    expect("points, features and meters", found, (len(points), len(IN_THE_OBERLAND), ROUTE_LENGTH))
    return f"{len(points)} points"


def route_chat(channel, _):
    # Where nobody has left a note.
    point = routeguide_pb2.Point(latitude=random.randrange(2**31), longitude=random.randrange(2**31))
    notes = [routeguide_pb2.RouteNote(location=point, message=text) for text in ["first", "second", "third"]]
    earlier = route_guide(channel).RouteChat(iter(notes), timeout=TIMEOUT_S)
    expect("earlier notes", [note.message for note in earlier], ["first", "first", "second"])
    return "3 notes"


CASES = {case.__name__: case for case in [get_feature, list_features, record_route, route_chat]}
