"""The modules that grpcio-tools generates from this repository's protos, in target/grpc/python.

`run.py` generates them. The protos' package `grpc.testing` would lie within grpcio's package `grpc`, which
therefore looks for it there.
"""

import os
import sys

import grpc

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
FOLDER = os.path.join(ROOT, "target/grpc/python")
PROTOS = ["grpc/testing/empty.proto", "grpc/testing/messages.proto", "grpc/testing/test.proto", "routeguide.proto",
          "kinds.proto"]


def generate():
    """Runs protoc, as the package grpcio-tools has it."""
    from grpc_tools import protoc

    os.makedirs(FOLDER, exist_ok=True)
    # The last one has Google's own files.
    includes = [os.path.join(ROOT, "proto"), os.path.join(ROOT, "cli/tests/protos"),
                os.path.join(os.path.dirname(protoc.__file__), "_proto")]
    options = [*(f"-I{folder}" for folder in includes), f"--python_out={FOLDER}", f"--grpc_python_out={FOLDER}"]
    if protoc.main(["protoc", *options, *PROTOS]) != 0:
        sys.exit("!! protoc has failed: see above")


if __name__ == "__main__":
    generate()
else:
    sys.path.insert(0, FOLDER)
    grpc.__path__.append(os.path.join(FOLDER, "grpc"))
