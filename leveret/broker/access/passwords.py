"""Stored passwords: Argon2id, or RabbitMQ's hashes (imported, or by the setting).

A hash is base64 text with the name of its algorithm, so RabbitMQ can import it (although nobody
can log in there with an Argon2id hash). RabbitMQ's hashes are a 4-byte salt and a digest, which
can be checked in microseconds; they are replaced by Argon2id at the owner's next login, unless the
setting `password_hashing` keeps them. An Argon2id hash is stored in its usual text form,
base64-encoded.

`verify` and `hash_argon2id` take tens of milliseconds and 19 MiB, so they belong on a thread.
Argon2's library is imported there, so start-up does not pay for it. `prepare_thread` makes sure
that the memory is returned to the system after each call.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from leveret.model.errors import PreconditionFailed

ARGON2ID = "leveret_password_hashing_argon2id"
SHA256 = "rabbit_password_hashing_sha256"
RABBITMQ: dict[str, Callable[[bytes], hashlib._Hash]] = {
    SHA256: hashlib.sha256,
    "rabbit_password_hashing_sha512": hashlib.sha512,
    "rabbit_password_hashing_md5": hashlib.md5,
}
"""RabbitMQ's algorithms, by the names used in its definitions."""
KNOWN = (ARGON2ID, *RABBITMQ)
MEMORY_KIB, PASSES, LANES = 19_456, 2, 1
MAX_MEMORY_KIB, MAX_PASSES, MAX_LANES = 1024 * 1024, 16, 16
MAX_PASSWORD_LENGTH = 4096
"""Characters of a password; hashing more would only waste time."""
NICENESS = 5
"""Added to the niceness of hashing threads, which then get a third of the loop's CPU time."""
_SALT_BYTES, _DIGEST_BYTES = 16, 32
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_THRESHOLD_BYTES, _TRIM_THRESHOLD_BYTES = 17 * 1024 * 1024, 8 * 1024 * 1024
"""Larger than the largest message and smaller than a hash; and the free memory that may remain at
the end of the heap."""
_ARGON2ID_TEXT = re.compile(
    rb"\$argon2id\$v=19\$m=(\d{1,9}),t=(\d{1,4}),p=(\d{1,4})\$[A-Za-z0-9+/]{11,86}\$[A-Za-z0-9+/]{16,171}"
)
OUR_COSTS = f"m={MEMORY_KIB},t={PASSES},p={LANES}".encode()
_DECOY = b"$argon2id$v=19$%b$eHh4eHh4eHh4eHh4eHh4eA$JyqejfgZQQ1JiDGNbgYg/pB6xceZ5jPsTCtbORd2/10"


def hash_password(password: str, salt: bytes | None = None, hashing: str = SHA256) -> str:
    """Return RabbitMQ's form: base64 of a 4-byte salt and the digest of salt and password."""
    salt = os.urandom(4) if salt is None else salt
    return base64.b64encode(salt + RABBITMQ[hashing](salt + password.encode()).digest()).decode()


def prepare_thread() -> None:
    """Set up a hashing thread: it returns memory to the system and yields to the event loop."""
    return_freed_memory()
    if sys.platform == "linux":  # elsewhere a thread id may be the id of another process
        thread, niceness = threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, thread, min(niceness + NICENESS, 19))


def return_freed_memory() -> None:
    """Keep glibc from raising its dynamic mmap threshold; call it before the first hash.

    Otherwise glibc would keep two or three blocks of 19 MiB for each thread, and as much free
    memory at the end of its heap. Faulting the pages in again makes a hash a third slower.
    """
    import ctypes

    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def hash_argon2id(password: str) -> str:
    """Return an Argon2id hash. Slow: call it on a thread."""
    from argon2.low_level import Type, hash_secret

    salt = os.urandom(_SALT_BYTES)
    text = hash_secret(password.encode(), salt, PASSES, MEMORY_KIB, LANES, _DIGEST_BYTES, Type.ID)
    return base64.b64encode(text).decode("ascii")


def verify(hashed: str, password: str) -> bool:
    """Check a password against an Argon2id hash. Slow: call it on a thread."""
    from argon2.exceptions import Argon2Error
    from argon2.low_level import Type, verify_secret

    try:
        return verify_secret(base64.b64decode(hashed, validate=True), password.encode(), Type.ID)
    except (Argon2Error, ValueError):
        return False


def costs(hashed: str) -> bytes:
    """Return the cost parameters in the text of an Argon2id hash; ours for any other hash."""
    try:
        text = base64.b64decode(hashed, validate=True)
    except ValueError:
        return OUR_COSTS
    return text.split(b"$")[3] if _ARGON2ID_TEXT.fullmatch(text) else OUR_COSTS


def decoy_hash(model: str) -> str:
    """Return a hash that matches no known password and takes as long to check as `model`."""
    return base64.b64encode(_DECOY % costs(model)).decode()


def is_quick(hashing: str) -> bool:
    """Whether this algorithm is one of RabbitMQ's, which can be checked on the loop."""
    return hashing in RABBITMQ


def verify_quick(hashed: str, hashing: str, password: str) -> bool:
    """Check a password against one of RabbitMQ's hashes."""
    try:
        stored = base64.b64decode(hashed, validate=True)
    except ValueError:
        return False
    if len(stored) <= 4:
        return False
    return hmac.compare_digest(hash_password(password, stored[:4], hashing), hashed)


def check_hash(hashed: str, hashing: str | None) -> str:
    """Reject a hash that no password can be checked against; return the algorithm's name."""
    if hashing is not None and hashing not in KNOWN:
        raise PreconditionFailed(
            f"unknown hashing_algorithm {hashing!r}; use one of {', '.join(KNOWN)}"
        )
    try:
        text = base64.b64decode(hashed, validate=True)
    except ValueError:
        raise PreconditionFailed("password_hash is not base64") from None
    if hashing == ARGON2ID or (hashing is None and text.startswith(b"$argon2id$")):
        _check_argon2id(text)
        return ARGON2ID
    return hashing or SHA256


def _check_argon2id(text: bytes) -> None:
    """Check format and costs: a hash that takes a gigabyte to check would be an attack."""
    if not text:
        return  # no password: login is disabled
    match = _ARGON2ID_TEXT.fullmatch(text)
    if match is None:
        raise PreconditionFailed("password_hash must be an Argon2id text: $argon2id$v=19$...")
    maximums = (MAX_MEMORY_KIB, MAX_PASSES, MAX_LANES)
    for name, value, maximum in zip("mtp", match.groups(), maximums, strict=True):
        if not 1 <= int(value) <= maximum:
            raise PreconditionFailed(
                f"password_hash has cost {name}={int(value)}; allowed are 1 to {maximum}"
            )
