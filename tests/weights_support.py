"""Files of weights with other numbers."""

import numpy as np

from luminal.codegen import weights


def of(file: bytes, payload: bytes) -> bytes:
    """``file`` with ``payload`` for its own, which is as long, and a header that holds its checksum."""
    assert len(file) == weights.PAYLOAD_OFFSET + len(payload)
    source, content = file[16 : 16 + weights.HASH_BYTES], file[72 : 72 + weights.ID_BYTES]
    summed = weights.checksum(np.frombuffer(payload, np.uint64))
    return weights.header(source, content, len(payload), summed) + payload
