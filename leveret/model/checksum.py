"""CRC-32C, from a library. `extend` continues from a checksum, or from any number as a seed."""

from collections.abc import Callable
from typing import Final

import google_crc32c

checksum: Final[Callable[[bytes], int]] = google_crc32c.value
extend: Final[Callable[[int, bytes], int]] = google_crc32c.extend
