"""Lists of very many objects, as compressed JSON: similar objects take a tenth of their size."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypedDict, overload

import msgspec

from controller_runtime.apimachinery.decoding import decode, decoder
from controller_runtime.objects import Object
from virtual_node.examine.objects import Json

_LEVEL, _WINDOW, _MEMORY = 1, -14, 6
"""Parameters of zlib, chosen for speed: a raw stream, and a window of 16 KiB, which two usual pods fit into."""
_WELL = 6
"""If the dictionary makes an object smaller by less than this factor, the object becomes the new dictionary."""
_PATIENCE = 32
"""Minimum number of objects for which a dictionary is kept, because dictionaries are stored, too."""
_TOGETHER = 64
"""Number of heads that are compressed together, because they are only read in order."""


class _Place(TypedDict, total=False):
    nodeName: Any
    phase: Any


class _Head(TypedDict, total=False):
    metadata: Any
    spec: _Place | None
    status: _Place | None
    isServing: Any


_decode_head = decoder(_Head)


class PackedObject(msgspec.Struct, frozen=True, gc=False):
    """One object as compressed JSON."""

    data: bytes
    dictionary: bytes
    """JSON of a similar object, from which ``data`` contains the differences; shared by many objects."""

    def json(self) -> bytes:
        """Return the object's JSON."""
        return zlib.decompressobj(_WINDOW, self.dictionary).decompress(self.data)


class Packer:
    """Packs the objects of one list. Neighbours in a list are usually similar."""

    def __init__(self, to_json: Callable[[Object], bytes]) -> None:
        """Create a packer; ``to_json`` returns the fields to keep."""
        self._to_json = to_json
        self._dictionary = b""
        self._used = _PATIENCE

    def __call__(self, one: Object) -> PackedObject:
        """Return the packed object."""
        whole = self._to_json(one)
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zdict=self._dictionary)
        packed = PackedObject(packer.compress(whole) + packer.flush(), self._dictionary)
        self._used += 1
        if len(packed.data) * _WELL > len(whole) and self._used > _PATIENCE:
            self._dictionary, self._used = whole, 0
        return packed


class PackedObjects(Sequence[dict[str, Any]]):
    """A sequence of objects that are decoded at each access, so changes of them are lost."""

    def __init__(self) -> None:
        self._packed: list[PackedObject] = []
        self._heads: list[bytes] | None = None

    def extend(self, more: Iterable[PackedObject]) -> None:
        """Append packed objects."""
        self._packed.extend(more)
        self._heads = None

    def heads(self) -> Iterator[dict[str, Any]]:
        """Yield the objects with only metadata, node, phase and ``isServing``, in a quarter of the time."""
        if self._heads is None:
            heads = (_decode_head(each.json()) for each in self._packed)
            parts = iter(lambda: [*islice(heads, _TOGETHER)], [])
            self._heads = [zlib.compress(msgspec.json.encode(part), _LEVEL) for part in parts]
        for part in self._heads:
            yield from decode(zlib.decompress(part))

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._packed)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the objects."""
        for each in self._packed:
            yield decode(each.json())

    @overload
    def __getitem__(self, position: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, position: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, position: int | slice) -> Any:
        """Return an object by its position."""
        if isinstance(position, slice):
            return [decode(each.json()) for each in self._packed[position]]
        return decode(self._packed[position].json())


class Selected:
    """The objects of a list that a function selects; each iteration decodes them."""

    def __init__(self, listed: Iterable[Json], is_selected: Callable[[Json], bool]) -> None:
        self._listed, self._is_selected = listed, is_selected

    def __iter__(self) -> Iterator[Json]:
        """Yield the selected objects."""
        return filter(self._is_selected, self._listed)
