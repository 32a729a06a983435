"""Stand-ins of ``rocm.bindings.hip`` and ``hiprtc`` on the simulator.

``binding.json`` holds what the bindings' stubs say; ``test_driver.py`` holds the functions here to
it. Modules are compiled by clang for gfx90a, and what runs is their text.
"""

from __future__ import annotations

import ctypes
import enum
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

from tapml_targets.errors import CompileError, TapmlError
from tapml_targets.library import CodeModule, Kernel
from tapml_targets.rocm import assembly
from tests.targets.gpu_machine import Machine, Refused


class Status(enum.IntEnum):
    """Of ``hipError_t``, with its numbers."""

    hipSuccess = 0
    hipErrorOutOfMemory = 2
    hipErrorNoDevice = 100
    hipErrorNotFound = 500
    hipErrorIllegalAddress = 700


class Handle:
    """A pointer to what HIP made."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __int__(self) -> int:
        return int(self.value)

    def createRef(self) -> Handle:
        return Handle(self)


def code_object(text: bytes) -> bytes:
    """Machine code of gfx90a, by clang; raises CompileError with its words."""
    hip = ("-S", "--offload-arch=gfx90a", "-O1", "-include", str(assembly._HEADER))
    # With -c for HIP clang runs a linker, which the wheel has not.
    target = ("-target", "amdgcn-amd-amdhsa", "-mcpu=gfx90a", "-x", "assembler", "-c")
    return _clang(_clang(text, *assembly._FLAGS, *hip), *target)


def _clang(text: bytes, *flags: str) -> bytes:
    command = [sys.executable, "-m", "ziglang", "clang", *flags, "-o", "-", "-"]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    if done.returncode:
        raise CompileError(done.stderr.decode())
    return done.stdout


def bindings(machine: Machine) -> tuple[Any, Any]:
    """The two modules with one GPU."""
    texts: dict[bytes, bytes] = {}
    return hip(machine, texts), hiprtc(texts)


def hiprtc(texts: dict[bytes, bytes]) -> Any:
    def hiprtcVersion() -> Any:
        return 0, 9, 0

    def hiprtcCreateProgram(
        src: Any, name: Any, numHeaders: int, headers: Any, includeNames: Any
    ) -> Any:
        return 0, Handle(SimpleNamespace(text=src, code=b"", log=b""))

    def hiprtcCompileProgram(prog: Any, numOptions: int, options: Any) -> Any:
        if numOptions != len(options) or not all(isinstance(each, bytes) for each in options):
            raise Refused(f"options {options}")
        if b"--offload-arch=gfx90a:sramecc+:xnack-" not in options:
            raise Refused("another architecture")
        try:
            prog.value.code = code_object(prog.value.text)
        except CompileError as error:
            prog.value.log = str(error).encode() + b"\0"
            return (6,)
        texts[prog.value.code] = prog.value.text
        return (0,)

    def hiprtcGetCodeSize(prog: Any) -> Any:
        return 0, len(prog.value.code)

    def hiprtcGetCode(prog: Any, code: Any) -> Any:
        code[:] = prog.value.code
        return (0,)

    def hiprtcGetProgramLogSize(prog: Any) -> Any:
        return 0, len(prog.value.log)

    def hiprtcGetProgramLog(prog: Any, log: Any) -> Any:
        log[:] = prog.value.log
        return (0,)

    def hiprtcDestroyProgram(prog: Any) -> Any:
        if not isinstance(prog.value, Handle):
            raise Refused("a program, not its address: the process would die")
        return (0,)

    made = {name: each for name, each in locals().items() if name.startswith("hip")}
    return SimpleNamespace(**made)


def hip(machine: Machine, texts: dict[bytes, bytes]) -> Any:
    stream = Handle(1)
    facts = SimpleNamespace(
        name="AMD Instinct MI210", gcnArchName="gfx90a:sramecc+:xnack-", warpSize=64,
        maxThreadsPerBlock=1024, maxThreadsDim=[1024, 1024, 1024],
        maxGridSize=[2147483647, 65536, 65536], sharedMemPerBlock=65536,
        totalGlobalMem=1 << 30, multiProcessorCount=104, clockRate=1700000,
        pciDomainID=0, pciBusID=67, pciDeviceID=0,
    )  # fmt: skip

    def expect(given: Any) -> None:
        if given is not stream:
            raise Refused("another stream")

    def hipGetDeviceCount() -> Any:
        return Status.hipSuccess, 1

    def hipRuntimeGetVersion() -> Any:
        return Status.hipSuccess, 71500001

    def hipGetDeviceProperties(deviceId: int) -> Any:
        return Status.hipSuccess, facts

    def hipSetDevice(deviceId: int) -> Any:
        return (Status(100 if deviceId else 0),)

    def hipStreamCreate() -> Any:
        return Status.hipSuccess, stream

    def hipStreamDestroy(stream: Any) -> Any:
        return (Status.hipSuccess,)

    def hipStreamSynchronize(stream: Any) -> Any:
        expect(stream)
        try:
            machine.wait()
        except TapmlError:
            return (Status.hipErrorIllegalAddress,)
        return (Status.hipSuccess,)

    def hipMalloc(size: int) -> Any:
        return Status.hipSuccess, Handle(machine.allocate(size))

    def hipFree(ptr: Any) -> Any:
        machine.wait()
        machine.free(int(ptr))
        return (Status.hipSuccess,)

    def copied(dst: int, src: int, sizeBytes: int, given: Any, where: tuple[bool, bool]) -> Any:
        expect(given)
        machine.copy(dst, src, sizeBytes, where)
        return (Status.hipSuccess,)

    def hipMemcpyHtoDAsync(dst: int, src: int, sizeBytes: int, stream: Any) -> Any:
        return copied(dst, src, sizeBytes, stream, (True, False))

    def hipMemcpyDtoHAsync(dst: int, src: int, sizeBytes: int, stream: Any) -> Any:
        return copied(dst, src, sizeBytes, stream, (False, True))

    def hipMemcpyDtoDAsync(dst: int, src: int, sizeBytes: int, stream: Any) -> Any:
        return copied(dst, src, sizeBytes, stream, (True, True))

    def hipMemsetD8Async(dest: int, value: int, count: int, stream: Any) -> Any:
        machine.fill(dest, count, value.to_bytes(1, "little"))
        return (Status.hipSuccess,)

    def hipMemsetD16Async(dest: int, value: int, count: int, stream: Any) -> Any:
        machine.fill(dest, 2 * count, value.to_bytes(2, "little"))
        return (Status.hipSuccess,)

    def hipMemsetD32Async(dst: int, value: int, count: int, stream: Any) -> Any:
        # The binding raises OverflowError for what is no C int.
        machine.fill(dst, 4 * count, value.to_bytes(4, "little", signed=True))
        return (Status.hipSuccess,)

    def hipModuleLoadData(image: bytes) -> Any:
        return Status.hipSuccess, Handle(CodeModule("hip-c", texts[image]))

    def hipModuleUnload(module: Any) -> Any:
        return (Status.hipSuccess,)

    def hipModuleGetFunction(module: Any, kname: bytes) -> Any:
        name = kname.decode()
        if f"void {name}(" not in module.value.code.decode():
            return Status.hipErrorNotFound, None
        loaded = machine.driver.load(module.value, [Kernel(name, name, 0)])
        return Status.hipSuccess, Handle(loaded[name])

    def hipFuncGetAttribute(attrib: Any, hfunc: Any) -> Any:
        return Status.hipSuccess, 1024

    def hipModuleLaunchKernel(  # noqa: PLR0917 - as the binding has it
        f: Any, gridDimX: int, gridDimY: int, gridDimZ: int, blockDimX: int, blockDimY: int,
        blockDimZ: int, sharedMemBytes: int, stream: Any, kernelParams: Any, extra: Any,
    ) -> Any:  # fmt: skip
        expect(stream)
        if kernelParams is not None or not all(isinstance(e, ctypes._SimpleCData) for e in extra):
            raise Refused("arguments that the binding does not pack")
        grid, block = (gridDimX, gridDimY, gridDimZ), (blockDimX, blockDimY, blockDimZ)
        machine.run(f.value, [bytes(each) for each in extra], grid, block, sharedMemBytes)
        return (Status.hipSuccess,)

    def hipStreamBeginCapture(stream: Any, mode: Any) -> Any:
        expect(stream)
        machine.capture()
        return (Status.hipSuccess,)

    def hipStreamEndCapture(stream: Any) -> Any:
        expect(stream)
        return Status.hipSuccess, Handle(machine.end_capture())

    def hipGraphInstantiateWithFlags(graph: Any, flags: int) -> Any:
        return Status.hipSuccess, Handle(list(graph.value))

    def hipGraphDestroy(graph: Any) -> Any:
        graph.value = None
        return (Status.hipSuccess,)

    def hipGraphLaunch(graphExec: Any, stream: Any) -> Any:
        expect(stream)
        machine.replay(graphExec.value)
        return (Status.hipSuccess,)

    def hipGraphExecDestroy(graphExec: Any) -> Any:
        return (Status.hipSuccess,)

    def hipEventCreate() -> Any:
        return Status.hipSuccess, Handle(None)

    def hipEventRecord(event: Any, stream: Any) -> Any:
        expect(stream)

        def reached() -> None:
            event.value = machine.milliseconds

        machine.enqueue(reached)
        return (Status.hipSuccess,)

    def hipEventElapsedTime(start: Any, stop: Any) -> Any:
        return Status.hipSuccess, stop.value - start.value

    def hipEventDestroy(event: Any) -> Any:
        return (Status.hipSuccess,)

    functions = {name: each for name, each in locals().items() if name.startswith("hip")}
    return SimpleNamespace(
        **functions,
        hipFunction_attribute=SimpleNamespace(HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK=0),
        hipStreamCaptureMode=SimpleNamespace(hipStreamCaptureModeRelaxed=2),
    )
