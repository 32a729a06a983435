"""Converts a file of ``torch.export.save`` (``.pt2``) to the folder of a recorded module.

The file is a zip archive: the graph as JSON, and the bytes of every tensor as they are. Both are
read here, with bounds. What it holds as pickles, such as its sample inputs, is never read, so
nothing in a file can run; :mod:`tapml.models.program_text` reads the graph.
"""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tapml.models.program_checks import check_extents, check_random, check_results
from tapml.models.program_text import MAX_PROGRAM_BYTES, read_program
from tapml.models.recorded_module import recorded, to_array
from tapml.models.said_by import said_by
from tapml.models.stored import ModuleTensor, StoredModule, SymbolRange
from tapml_targets.errors import InputError, SetupError

Array: TypeAlias = npt.NDArray[Any]

_AGAIN: Final = "torch.export.load it where you trust it, and torch.export.save it with PyTorch "
_DTYPES: Final = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32",
    12: "bool",
}  # fmt: skip
"""PyTorch's numbers of the dtypes that a module may have (``torch._export.serde.schema``)."""
_OTHERS: Final = {8: "float64", 10: "complex64", 13: "bfloat16"}
_SYMBOL: Final = re.compile(r"Symbol\('(s\d{1,6})'(?:, (?:positive|nonnegative|integer)=True)*\)")
# The compiler's fusion fails for an extent that may be 1 or more.
_SHORTEST: Final = 2
_NO_LIMIT: Final = 1 << 31
_SAMPLES: Final = 2
_DEEPEST: Final = 32
# Bytes of all tensors, of a file's and at least.
_MOST_OF_FILE: Final = 16
_MOST_OF_SMALL: Final = 1 << 28
# Numbers of the inputs of one run.
_MOST_NUMBERS: Final = 1 << 27


def convert_exported(path: Path, folder: Path) -> None:
    """Write the folder of a recorded module, with inputs by seed of the extents it was saved with.

    Raises
    ------
    InputError
        If the file is no exported program of this PyTorch, is damaged, or holds what cannot move;
        the message names the part.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            data, state, constants = _read(archive, path)
        _to_processor(data)
        results = _tensors_alone(data["graph_module"])
        signature = _signature(data, results, {**state, **constants}, path)
        program = read_program(json.dumps(data).encode(), state, constants)
        check_random(program, signature.name)
        check_extents(program, signature.name)
        check_results(program, results, signature.name)
        samples = tuple(_by_seed(signature, _hints(data), seed) for seed in range(_SAMPLES))
        expected = _results(program, samples)
        recorded(signature, program, samples, expected, folder).write(folder)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise InputError(
            f"{path} is no whole archive of torch.export.save ({error}): save or fetch it again"
        ) from error
    except (OSError, SetupError):
        raise
    except Exception as error:  # of any class, from zipfile and PyTorch, for a malformed file
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}: {said_by(error)}): {_AGAIN}"
            f"{torch.__version__}"
        ) from error


def _results(
    program: torch.export.ExportedProgram, samples: Sequence[tuple[tuple[Array, ...], str]]
) -> tuple[tuple[Array, ...], ...]:
    """What the program gives for its samples."""
    module = program.module(check_guards=False)
    kept = {name: each.clone() for name, each in module.named_buffers()}
    found = []
    try:
        with torch.no_grad():
            for inputs, _ in samples:
                # A program may change what it is given.
                given = [torch.from_numpy(each.copy()) for each in inputs]
                found.append(tuple(map(to_array, module(*given))))
    except Exception as error:  # an operator may ask anything of its numbers
        raise InputError(
            f"it does not run on numbers by seed ({type(error).__name__}: {said_by(error)}): "
            "record it with inputs of its own (tapml.from_torch)"
        ) from error
    for name, each in module.named_buffers():
        if to_array(each).tobytes() != to_array(kept[name]).tobytes():
            raise _changes(name)
    return tuple(found)


def _to_processor(data: Any) -> None:
    """Make the processor the device of everything, in place, whatever it was exported on."""
    pending = [data]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += each
        elif isinstance(each, dict):
            for key in ("device", "as_device"):
                if isinstance(each.get(key), dict):
                    each[key] = {"type": "cpu", "index": None}
            pending += each.values()


def _changes(name: str) -> InputError:
    return InputError(
        f"it changes {name} when it runs: expected a module without state that survives a call"
    )


def _read(
    archive: zipfile.ZipFile, path: Path
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """The program's JSON, its weights, and its constants."""
    names = archive.namelist()
    root = names[0].partition("/")[0] if names else ""
    programs = [e for e in names if re.fullmatch(rf"{re.escape(root)}/models/[^/]+\.json", e)]
    if not programs:
        raise InputError(_instead(names, root))
    if len(programs) > 1:
        models = ", ".join(Path(each).stem for each in programs)
        raise InputError(f"it holds {len(programs)} programs ({models}): save one of them alone")
    size = path.stat().st_size
    parts = archive.infolist()
    # What is stored has the size that is read; what is compressed may say any.
    if any(each.compress_type != zipfile.ZIP_STORED for each in parts):
        raise InputError("its parts are compressed: save it again with torch.export.save")
    if sum(each.file_size for each in parts) > size:
        raise InputError("its parts are larger than the file: save or fetch it again")
    name = Path(programs[0]).stem
    most = max(_MOST_OF_FILE * size, _MOST_OF_SMALL)
    state = _tensors(archive, f"{root}/data/weights/", f"{name}_weights_config.json", most)
    constants = _tensors(archive, f"{root}/data/constants/", f"{name}_constants_config.json", most)
    return _json(archive, programs[0]), state, constants


def _instead(names: Sequence[str], root: str) -> str:
    """What an archive without a program is, and what to do."""
    if any(each.startswith(f"{root}/data/aotinductor/") for each in names):
        return (
            "it holds compiled code of one machine (AOTInductor) and no graph: torch.export.save "
            "the program that it was made of"
        )
    script = any(each.startswith(f"{root}/code/") for each in names)
    if script or f"{root}/data.pkl" in names:
        kind = "TorchScript" if script else "a pickle of torch.save"
        return (
            f"it is {kind}, which could run code when it is read: build its module in Python, and "
            "torch.export.save what torch.export.export makes of it"
        )
    return f"it holds no exported program: {_AGAIN}{torch.__version__}"


def _json(archive: zipfile.ZipFile, name: str) -> dict[str, Any]:
    if archive.getinfo(name).file_size > MAX_PROGRAM_BYTES:
        raise InputError(f"{name} is larger than {MAX_PROGRAM_BYTES} bytes")
    data = json.loads(archive.read(name))
    if not isinstance(data, dict):
        raise InputError(f"{name} holds no JSON object")
    return data


def _tensors(archive: zipfile.ZipFile, folder: str, config: str, most: int) -> dict[str, Tensor]:
    """Tensors by name, of at most so many bytes; several may lie in one file, as views of it."""
    if folder + config not in archive.namelist():
        raise InputError(
            f"it has no {config}, as files of PyTorch before 2.9: {_AGAIN}{torch.__version__}"
        )
    storages: dict[str, bytearray] = {}
    found: dict[str, Tensor] = {}
    for name, payload in _json(archive, folder + config)["config"].items():
        meta, file = payload["tensor_meta"], str(payload["path_name"])
        if payload["use_pickle"] or meta is None:
            raise InputError(
                f"{name} is a pickle, which can run code when it is read: expected plain tensors"
            )
        if meta["layout"] != _STRIDED:
            raise InputError(f"{name} is sparse or of another layout: expected a dense tensor")
        if file not in storages:
            storages[file] = bytearray(archive.read(folder + file))
        found[name] = _view(storages[file], meta, name, most)
        most -= found[name].nbytes
    return found


# Of PyTorch's layouts, the one that is dense.
_STRIDED: Final = 7


def _view(storage: bytearray, meta: Mapping[str, Any], name: str, most: int) -> Tensor:
    """A tensor as its description places it in a storage, checked against the storage's size."""
    dtype = getattr(torch, _dtype(meta, name))
    sizes = [int(each["as_int"]) for each in meta["sizes"]]
    strides = [int(each["as_int"]) for each in meta["strides"]]
    start = int(meta["storage_offset"]["as_int"])
    if min([start, *sizes, *strides], default=0) < 0 or len(sizes) != len(strides):
        raise InputError(f"{name} has the shape {sizes} with steps {strides} from {start}")
    if 0 in sizes:
        return torch.empty(sizes, dtype=dtype)
    last = start + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))
    if (last + 1) * dtype.itemsize > len(storage):
        raise InputError(
            f"{name} of shape {sizes} takes {(last + 1) * dtype.itemsize} bytes, and the file has "
            f"{len(storage)} of it: save or fetch it again"
        )
    # Views overlap, as those of a step of 0 do, and each becomes a tensor of its own.
    if math.prod(sizes) * dtype.itemsize > most:
        raise InputError(
            f"{name} of shape {sizes} repeats numbers: its tensors are more than {_MOST_OF_FILE} "
            "times the file"
        )
    count = len(storage) // dtype.itemsize
    whole = torch.frombuffer(storage, dtype=dtype, count=count)
    return whole.as_strided(sizes, strides, start).contiguous()


def _dtype(meta: Mapping[str, Any], name: str) -> str:
    number = int(meta["dtype"])
    if number not in _DTYPES:
        raise InputError(
            f"{name} is {_OTHERS.get(number, f'of dtype {number}')}: expected one of "
            f"{', '.join(_DTYPES.values())}; convert the module (module.float()) and export it "
            "again"
        )
    return _DTYPES[number]


def _tensors_alone(module: dict[str, Any]) -> list[str]:
    """Leave out inputs and outputs that are no tensors, which the graph has in it; names results.

    A result's name is its way through dictionaries and tuples.
    """
    graph, signature = module["graph"], module["signature"]
    results = [
        spec["user_output"]["arg"] for spec in signature["output_specs"] if "user_output" in spec
    ]
    names = _result_names(module, len(results))
    names = [n for n, each in zip(names, results, strict=True) if "as_none" not in each]
    for ports, specs in (("inputs", "input_specs"), ("outputs", "output_specs")):
        kept = []
        for port, spec in zip(graph[ports], signature[specs], strict=True):
            ((kind, inner),) = spec.items()
            if kind.endswith("_mutation"):
                changed = inner.get("buffer_name") or inner.get("user_input_name") or "a parameter"
                raise _changes(changed)
            if kind == "constant_input" or "as_none" in port:
                continue
            if kind in ("user_input", "user_output") and "as_tensor" not in port:
                raise InputError(
                    f"one of its {ports} is {next(iter(port)).removeprefix('as_')}: expected "
                    "tensors alone"
                )
            kept.append((port, spec))
        graph[ports] = [port for port, _ in kept]
        signature[specs] = [spec for _, spec in kept]
    return names


def _ports(data: Mapping[str, Any], way: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Name and description of each ``user_input`` or ``user_output``."""
    module = data["graph_module"]
    names = [
        spec[way]["arg"]["as_tensor"]["name"]
        for spec in module["signature"][f"{way.removeprefix('user_')}_specs"]
        if way in spec
    ]
    return [(name, module["graph"]["tensor_values"][name]) for name in names]


def _signature(
    data: dict[str, Any], results: list[str], tensors: Mapping[str, Tensor], path: Path
) -> StoredModule:
    inputs, outputs = _ports(data, "user_input"), _ports(data, "user_output")
    if not inputs or not outputs:
        raise InputError("it has no input or no output: expected tensors in and out")
    ports = tuple(
        ModuleTensor(name, _dtype(meta, name), tuple(_extent(each, name) for each in meta["sizes"]))
        for name, meta in inputs
    )
    used = dict.fromkeys(e for port in ports for e in port.shape if isinstance(e, str))
    floats = {str(each.dtype).removeprefix("torch.") for each in tensors.values()}
    floats = {each for each in (*floats, *(port.dtype for port in ports)) if "float" in each}
    if len(floats) > 1:
        raise InputError(
            f"it computes in {' and '.join(sorted(floats))}: expected one, the same for weights "
            "and inputs"
        )
    signature = StoredModule(
        name=path.stem,
        dtype=next(iter(floats), "float32"),
        inputs=ports,
        outputs=tuple(
            ModuleTensor(name, _dtype(meta, name))
            for name, (_, meta) in zip(results, outputs, strict=True)
        ),
        measure="values",
        labels=(),
        weights_hash="-",
        symbols=tuple(_range(data, each) for each in used),
    )
    return StoredModule.from_json(signature.to_json())


def _extent(size: Mapping[str, Any], name: str) -> int | str:
    if "as_int" in size:
        return int(size["as_int"])
    found = _SYMBOL.fullmatch(size["as_expr"]["expr_str"])
    if found is None:
        raise InputError(
            f"an extent of {name} is computed from others: expected numbers, or extents of their "
            "own; export it with other dynamic shapes"
        )
    return found[1]


def _range(data: Mapping[str, Any], symbol: str) -> SymbolRange:
    limits = data["range_constraints"].get(symbol) or {}
    largest = limits.get("max_val")
    return SymbolRange(
        symbol,
        max(int(limits.get("min_val") or _SHORTEST), _SHORTEST),
        None if largest is None or not 0 < int(largest) < _NO_LIMIT else int(largest),
    )


def _hints(data: Mapping[str, Any]) -> dict[str, int]:
    """The extents that the program was exported with, by symbol."""
    found: dict[str, int] = {}
    for name, meta in _ports(data, "user_input"):
        for size in meta["sizes"]:
            extent = _extent(size, name)
            hint = (size.get("as_expr") or {}).get("hint") or {}
            if isinstance(extent, str):
                least = _range(data, extent).least
                found.setdefault(extent, max(int(hint.get("as_int", least)), least))
    return found


def _result_names(module: Mapping[str, Any], count: int) -> list[str]:
    calls = module.get("module_call_graph") or [{}]
    tree = json.loads((calls[0].get("signature") or {}).get("out_spec", "[1, null]"))
    names = _leaves(tree[1], (), 0)
    if len(names) != count or len(set(names)) != count:
        return ["result"] if count == 1 else [f"result.{at}" for at in range(count)]
    return names


def _leaves(tree: Any, way: tuple[str, ...], depth: int) -> list[str]:
    if depth > _DEEPEST or not isinstance(tree, dict):
        return []
    children = tree.get("children_spec") or []
    if tree.get("type") is None:
        name = re.sub(r"[^A-Za-z0-9_.]", "_", ".".join(way)) or "result"
        return [f"result.{name}" if name[0].isdigit() else name]
    try:
        keys = json.loads(tree.get("context") or "null")
    except ValueError:
        keys = None
    if not isinstance(keys, list) or len(keys) != len(children):
        keys = list(range(len(children)))
    found = []
    for key, child in zip(keys, children, strict=True):
        found += _leaves(child, (*way, str(key)), depth + 1)
    return found


def _by_seed(
    signature: StoredModule, hints: Mapping[str, int], seed: int
) -> tuple[tuple[Array, ...], str]:
    """Normal numbers; 0 and 1 for whole numbers, which every table has."""
    random = np.random.default_rng(seed)
    shapes = [
        tuple(hints[size] if isinstance(size, str) else size for size in each.shape)
        for each in signature.inputs
    ]
    if sum(map(math.prod, shapes)) > _MOST_NUMBERS:
        raise InputError(
            f"its inputs are {signature.signature}: expected at most {_MOST_NUMBERS} numbers; "
            "export it for smaller ones"
        )
    arrays = []
    for each, shape in zip(signature.inputs, shapes, strict=True):
        real = "float" in each.dtype
        made = random.standard_normal(shape) if real else random.integers(0, 2, shape)
        arrays.append(made.astype(each.dtype))
    return signature.fitted(arrays), f"numbers by seed {seed}"
