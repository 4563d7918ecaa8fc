"""Calls a gRPC server as any Python program does, with grpcio.

    client.py CASE@HOST:PORT...              runs these cases
    client.py --must-fail CASE@HOST:PORT...  runs them against servers that they must not accept

It prints a line for each, and ends with exit code 1 if one has not ended as it should. Any other
exit code is an error of this program.
"""

import sys
import time

import cases
import routes
import services
from expect import Failure

import grpc

CASES = cases.CASES | routes.CASES | services.CASES


def run(case, target, must_fail):
    """Runs a case. Returns whether it has ended as it should."""
    begun = time.monotonic()
    try:
        with cases.connect(target) as channel:
            sizes, error = CASES[case](channel, target), None
    except (Failure, grpc.RpcError) as failure:
        error = failure
    took = time.monotonic() - begun
    if isinstance(error, grpc.RpcError):
        error = f"a call ended with {error.code().name}: {error.details()}"
    if must_fail:
        outcome, what = ("refused", error) if error else ("FAILED ", f"it accepts this server: {sizes}")
    else:
        outcome, what = ("FAILED ", error) if error else ("passed ", sizes)
    print(f"{outcome}  python  {case:28} {took:6.2f} s  {what}", flush=True)
    return outcome != "FAILED "


def main():
    arguments = sys.argv[1:]
    must_fail = arguments[:1] == ["--must-fail"]
    pairs = [argument.split("@") for argument in arguments[must_fail:]]
    outcomes = [run(case, target, must_fail) for case, target in pairs]
    sys.exit(0 if all(outcomes) else 1)


main()
