"""The storage room: packing, fold, crashes, damage, full disks."""
