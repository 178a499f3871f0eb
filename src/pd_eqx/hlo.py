"""What a compiled computation does, read from XLA's text of it: multiplications, collectives, large arrays.

XLA's own cost analysis counts the body of a loop once, however often it runs, and says nothing of collectives; a
transformer that scans over its layers would look thirty times cheaper than it is. So the text is read instead: each
instruction counts as often as the loops around it run. A loop whose number of runs is not known in advance counts once.
"""

import dataclasses
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

_BITS = {
    "pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32,
    "s64": 64, "u64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
}  # fmt: skip

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

# These name an array that is there already.
_NOT_MADE = frozenset({"parameter", "get-tuple-element", "bitcast", "constant"})

_HEADER = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"(calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


@dataclasses.dataclass(frozen=True)
class Large:
    """Arrays of one type that the computation makes: the type, bytes of each, how many instructions make one, of what."""

    type: str
    bytes: int
    count: int
    operation: str


@dataclasses.dataclass(frozen=True)
class Work:
    """What one device does in one run of the computation.

    - `flops`: of matrix products, two for a multiplication and an addition.
    - `collectives`: how many of each kind, and the bytes of the larger of what goes in and comes out.
    - `largest`: the largest arrays that are made, by type.
    """

    flops: float
    collectives: Mapping[str, tuple[int, int]]
    largest: tuple[Large, ...]


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    type: str
    operation: str
    operands: tuple[str, ...]
    rest: str


def work_of(text: str, largest: int = 5) -> Work:
    """Reads the text of an optimised HLO module (`compiled.as_text()`)."""
    computations, entry = _parsed(text)
    times = _times(computations, entry)
    flops = 0.0
    count: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    made: dict[str, list[str]] = defaultdict(list)
    fused = {
        called
        for instructions in computations.values()
        for i in instructions
        if i.operation == "fusion"
        for called in _called(i)
    }
    for name, instructions in computations.items():
        runs = times.get(name, 0)
        if not runs:
            continue
        types = {i.name: i.type for i in instructions}
        for i in instructions:
            if i.operation == "dot":
                flops += runs * _dot_flops(i, types)
            kind = i.operation.removesuffix("-start")
            if kind in COLLECTIVES:
                given = sum(type_bytes(types.get(operand, "")) for operand in i.operands)
                count[kind] += runs
                moved[kind] += runs * max(given, type_bytes(i.type))
            if name not in fused and i.operation not in _NOT_MADE and not i.type.startswith("("):
                told = re.search(r'op_name="([^"]*)"', i.rest)
                made[i.type.partition("{")[0]].append(told.group(1) if told else i.operation)
    sized = sorted(made, key=lambda made_type: -type_bytes(made_type))[:largest]
    return Work(
        flops,
        {kind: (count[kind], moved[kind]) for kind in COLLECTIVES if count[kind]},
        tuple(
            Large(t, type_bytes(t), len(made[t]), Counter(made[t]).most_common(1)[0][0])
            for t in sized
        ),
    )


def type_bytes(hlo_type: str) -> int:
    """Bytes of an HLO type, such as `f32[2,3]{1,0}` or a tuple of them."""
    total = 0
    for dtype, dimensions in _ARRAY.findall(hlo_type):
        if dtype in _BITS:
            total += math.prod(map(int, filter(None, dimensions.split(",")))) * _BITS[dtype] // 8
    return total


def _parsed(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    computations: dict[str, list[_Instruction]] = {}
    entry, here = "", None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            here = computations.setdefault(header.group(1), [])
            entry = header.group(1) if line.startswith("ENTRY") else entry
        elif here is not None and (found := _INSTRUCTION.match(line)) is not None:
            here.append(_instruction(*found.groups()))
    return computations, entry


def _instruction(name: str, told: str) -> _Instruction:
    end = _closing(told, 0) + 1 if told.startswith("(") else told.index(" ")
    made, rest = told[:end], told[end:].lstrip()
    operation = rest.partition("(")[0]
    opened = rest.index("(") if "(" in rest else len(rest) - 1
    closed = _closing(rest, opened)
    operands = tuple(re.findall(r"%([\w.\-]+)", rest[opened : closed + 1]))
    return _Instruction(name, made, operation, operands, rest[closed + 1 :])


def _closing(text: str, start: int) -> int:
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
    return len(text) - 1


def _called(instruction: _Instruction) -> Iterator[str]:
    for _, name in _CALLED.findall(instruction.rest):
        yield name
    for branches in _BRANCHES.findall(instruction.rest):
        yield from re.findall(r"%?([\w.\-]+)", branches)


def _times(computations: Mapping[str, list[_Instruction]], entry: str) -> dict[str, int]:
    """How often each computation runs; a module lists what is called before its callers."""
    times: Counter[str] = Counter({entry: 1})
    for name in reversed(list(computations)):
        for i in computations[name]:
            trips = _TRIPS.search(i.rest)
            runs = int(trips.group(1)) if trips and i.operation == "while" else 1
            for called in _called(i):
                times[called] += times[name] * runs
    return dict(times)


def _dot_flops(instruction: _Instruction, types: Mapping[str, str]) -> float:
    contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.rest)
    found = _ARRAY.search(types.get(instruction.operands[0], "")) if instruction.operands else None
    result = _ARRAY.search(instruction.type)
    if contracted is None or found is None or result is None:
        return 0.0
    sizes = [int(size) for size in found.group(2).split(",") if size]
    summed = math.prod(sizes[int(axis)] for axis in contracted.group(1).split(",") if axis)
    return 2.0 * math.prod(int(size) for size in result.group(2).split(",") if size) * summed
