"""Free units of each device of lower nodes, for resources where a pod can take a part of one device. No IO.

A request below one device's units takes a share of a single device; a larger one takes whole devices. Koordinator's
``koordinator.sh/gpu-core`` (100 units) and Alibaba's ``alibabacloud.com/gpu-milli`` (1000 units) are counted this way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MOST_DEVICES = 128
"""Maximum devices counted per node; a lower cluster may report any number."""
Taking = tuple[str, int, Sequence[int]]
"""UID of a pod, its units, and the numbers of its devices; no numbers: unknown."""


def parts(count: int, units: int) -> tuple[int, int]:
    """Return how many devices a request takes, and how many units of each."""
    return (1, count) if count < units else (-(-count // units), units)


class DeviceColumn:
    """Free units of one resource by slot and device."""

    def __init__(self, units: int, slots: int) -> None:
        """Create the column for an index with ``slots``; one device has ``units``."""
        self.units = units
        self.free: list[tuple[int, ...]] = [()] * slots
        """By slot: free units of each device."""
        self._largest = [0] * slots
        self._whole = [0] * slots
        self._taken: list[dict[str, tuple[int, ...]]] = [{} for _ in range(slots)]

    def append(self) -> None:
        """Add an empty slot."""
        self.free.append(())
        self._largest.append(0)
        self._whole.append(0)
        self._taken.append({})

    def reset(self, slot: int, total: int, taken: Iterable[Taking]) -> None:
        """Set a node's devices and the pods that use them."""
        total = min(total, self.units * _MOST_DEVICES)
        rest = total % self.units
        self._taken[slot] = {}
        self._set(slot, [self.units] * (total // self.units) + ([rest] if rest else []))
        for uid, count, devices in taken:
            self.take(slot, uid, count, devices)

    def take(self, slot: int, uid: str, count: int, devices: Sequence[int] = ()) -> None:
        """Take a pod's units from the given devices if they are valid, otherwise from those where they fit most tightly."""
        free = list(self.free[slot])
        number, share = parts(count, self.units)
        if len(devices) != number or not all(0 <= device < len(free) for device in devices):
            fitting = sorted((left, device) for device, left in enumerate(free) if left >= share)
            # If too few fit, the devices with most free units go below zero.
            others = sorted(
                ((left, device) for device, left in enumerate(free) if left < share), reverse=True
            )
            devices = [device for _left, device in (fitting + others)[:number]]
        for device in devices:
            free[device] -= share
        self._taken[slot][uid] = tuple(devices)
        self._set(slot, free)

    def give(self, slot: int, uid: str, count: int) -> None:
        """Release the units of a pod."""
        free = list(self.free[slot])
        share = parts(count, self.units)[1]
        for device in self._taken[slot].pop(uid, ()):
            if device < len(free):
                free[device] += share
        self._set(slot, free)

    def fitting(self, slots: Sequence[int], count: int) -> list[int]:
        """Return the slots with a device, or enough whole devices, for the request."""
        if count < self.units:
            largest = self._largest
            return [slot for slot in slots if largest[slot] >= count]
        number, whole = parts(count, self.units)[0], self._whole
        return [slot for slot in slots if whole[slot] >= number]

    def _set(self, slot: int, free: Sequence[int]) -> None:
        self.free[slot] = tuple(free)
        self._largest[slot] = max(free, default=0)
        self._whole[slot] = sum(left >= self.units for left in free)
