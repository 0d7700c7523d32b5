"""Worker process of ecCodes, for packings and grids that cannot be checked before.

ecCodes ends the process where they are wrong.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from virtualzarr.codecs.core.base import Buffer
from virtualzarr.errors import CodecError
from virtualzarr.worker import Read, Worker, WorkerCrashError, WorkerRefusalError, serve

QUANTITIES = ("values", "latitudes", "longitudes")
_HEAD = struct.Struct("<BQ")
_MEMORY = 16 << 30

worker = Worker(__name__)


def ask_worker(message: Buffer, quantity: str, size: int) -> NDArray[np.float64]:
    """Return numbers that ecCodes calculates of a message, in a process of its own.

    Parameters
    ----------
    message : bytes
    quantity : str
        "values", "latitudes" or "longitudes".
    size : int
        How many there must be.

    Raises
    ------
    CodecError
        ecCodes finds something wrong with it, or crashes, or does not end.
    """
    # A fixed head and the message: nothing of the other process is unpickled.
    request = _HEAD.pack(QUANTITIES.index(quantity), size) + bytes(message)
    try:
        return np.frombuffer(worker.ask(request), "<f8").astype(np.float64)
    except WorkerRefusalError as error:
        raise CodecError(str(error)) from error
    except WorkerCrashError as error:
        raise CodecError(f"ecCodes crashed: the message is damaged ({error})") from error


def _answer(request: bytes, read: Read) -> bytes:
    from virtualzarr.codecs.grib.eccodes_library import read_coordinates, read_values

    quantity, size = _HEAD.unpack_from(request)
    message = request[_HEAD.size :]
    values = (
        read_coordinates(message, QUANTITIES[quantity], size)
        if quantity
        else read_values(message, size)
    )
    return values.astype("<f8").tobytes()


if __name__ == "__main__":
    serve(_answer, _MEMORY)
