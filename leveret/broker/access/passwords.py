"""Passwords at rest: Argon2id for new ones, RabbitMQ's hashes as they come.

A hash is a base64 text and the name of its algorithm, so that RabbitMQ can import it (though nobody
can log in there with an Argon2id hash). RabbitMQ's are of a 4-octet salt and a digest, checked in
microseconds and therefore only until their owner logs in again: then they are made anew with
Argon2id, whose usual text form it is of. `verify` and `make` take tens of milliseconds and 19 MiB;
they belong on a thread. Argon2's library is imported there, so that a start does not pay for it.
The memory goes back to the system after each (`prepare_thread`).
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
"""By the names its definitions use."""
KNOWN = (ARGON2ID, *RABBITMQ)
MEMORY_KIB, PASSES, LANES = 19_456, 2, 1
MOST_MEMORY_KIB, MOST_PASSES, MOST_LANES = 1024 * 1024, 16, 16
LONGEST = 4096
"""Octets of a password; hashing more would only be work for us."""
STEPS_BACK = 5
"""By so much is a thread that hashes nicer than the loop: it gets a third of what the loop gets."""
_SALT_OCTETS, _DIGEST_OCTETS = 16, 32
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_OWN_MAPPING_OCTETS, _SPARE_OCTETS = 17 * 1024 * 1024, 8 * 1024 * 1024
"""More than the largest message, less than a hash; and what may stay free at the heap's end."""
_ARGON2ID = re.compile(
    rb"\$argon2id\$v=19\$m=(\d{1,9}),t=(\d{1,4}),p=(\d{1,4})\$[A-Za-z0-9+/]{11,86}\$[A-Za-z0-9+/]{16,171}"
)
OURS = f"m={MEMORY_KIB},t={PASSES},p={LANES}".encode()
_NOBODYS = b"$argon2id$v=19$%b$eHh4eHh4eHh4eHh4eHh4eA$JyqejfgZQQ1JiDGNbgYg/pB6xceZ5jPsTCtbORd2/10"


def hash_password(password: str, salt: bytes | None = None, hashing: str = SHA256) -> str:
    """RabbitMQ's own form: base64 of a 4-octet salt and the digest of salt and password."""
    salt = os.urandom(4) if salt is None else salt
    return base64.b64encode(salt + RABBITMQ[hashing](salt + password.encode()).digest()).decode()


def prepare_thread() -> None:
    """For a thread that hashes: it keeps no memory, and the loop goes first where cores are few."""
    give_memory_back()
    if sys.platform == "linux":  # elsewhere the number of a thread may be that of a process
        thread, nice = threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, thread, min(nice + STEPS_BACK, 19))


def give_memory_back() -> None:
    """Once, before the first hash. The GNU C library would learn from it to keep blocks of 19 MiB,
    two or three for each thread, and as much free memory at the end of its heap. Faulting them in
    anew makes a hash a third slower."""
    import ctypes

    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_OCTETS)
        mallopt(_M_TRIM_THRESHOLD, _SPARE_OCTETS)


def make(password: str) -> str:
    """An Argon2id hash. Slow: for a thread."""
    from argon2.low_level import Type, hash_secret

    salt = os.urandom(_SALT_OCTETS)
    raw = hash_secret(password.encode(), salt, PASSES, MEMORY_KIB, LANES, _DIGEST_OCTETS, Type.ID)
    return base64.b64encode(raw).decode("ascii")


def verify(hashed: str, password: str) -> bool:
    """Does the password fit this Argon2id hash? Slow: for a thread."""
    from argon2.exceptions import Argon2Error
    from argon2.low_level import Type, verify_secret

    try:
        return verify_secret(base64.b64decode(hashed, validate=True), password.encode(), Type.ID)
    except (Argon2Error, ValueError):
        return False


def costs(hashed: str) -> bytes:
    """What checking this hash takes, as its text has it; ours, if it is none of Argon2id's."""
    try:
        octets = base64.b64decode(hashed, validate=True)
    except ValueError:
        return OURS
    return octets.split(b"$")[3] if _ARGON2ID.fullmatch(octets) else OURS


def nobodys(like: str) -> str:
    """A hash that no password is known to fit, and that takes as long to check as this one."""
    return base64.b64encode(_NOBODYS % costs(like)).decode()


def is_quick(hashing: str) -> bool:
    return hashing in RABBITMQ


def verify_quick(hashed: str, hashing: str, password: str) -> bool:
    """Does the password fit this hash of RabbitMQ's?"""
    try:
        stored = base64.b64decode(hashed, validate=True)
    except ValueError:
        return False
    if len(stored) <= 4:
        return False
    return hmac.compare_digest(hash_password(password, stored[:4], hashing), hashed)


def check_hash(hashed: str, hashing: str | None) -> str:
    """Refuse what no password can be checked against; the name of the algorithm."""
    if hashing is not None and hashing not in KNOWN:
        raise PreconditionFailed(
            f"unknown hashing_algorithm {hashing!r}; known are {', '.join(KNOWN)}"
        )
    try:
        octets = base64.b64decode(hashed, validate=True)
    except ValueError:
        raise PreconditionFailed("password_hash is not base64") from None
    if hashing == ARGON2ID or (hashing is None and octets.startswith(b"$argon2id$")):
        _check_argon2id(octets)
        return ARGON2ID
    return hashing or SHA256


def _check_argon2id(octets: bytes) -> None:
    """Also its costs: a hash that takes a gigabyte to check would be an attack on ourselves."""
    if not octets:
        return  # nobody can log in
    found = _ARGON2ID.fullmatch(octets)
    if found is None:
        raise PreconditionFailed("password_hash is not of the text $argon2id$v=19$...")
    for value, most in zip(found.groups(), (MOST_MEMORY_KIB, MOST_PASSES, MOST_LANES), strict=True):
        if not 1 <= int(value) <= most:
            raise PreconditionFailed(
                f"password_hash costs too much: {int(value)} is not from 1 to {most}"
            )
