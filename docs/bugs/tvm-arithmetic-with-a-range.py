"""TVM cannot compile what its importer makes of arithmetic with a Range of a computed length.

apache-tvm 0.27.0.post1: the shape of the Range is not known to it, so that no pass lowers the
`subtract` of two tensors, and the code generator of the virtual machine refuses it. Found by
`tapml compare` on NudeNet's file, whose `/model.22/Sub` takes the places of pixels so. Needs
apache-tvm and onnx.
"""

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

numbers = {name: np.array(each) for name, each in (("zero", 0), ("one", 1))}
graph = helper.make_graph(
    [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["count"]),
        helper.make_node("Range", ["zero", "count", "one"], ["range"]),
        helper.make_node("Cast", ["range"], ["places"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["places", "x"], ["y"]),
    ],
    "places",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    [numpy_helper.from_array(each, name) for name, each in numbers.items()],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.checker.check_model(model)
x = np.ones((1, 4), np.float32)
print("ONNX's reference:", ReferenceEvaluator(model).run(None, {"x": x})[0].tolist())
module = from_onnx(model, shape_dict={"x": [1, 4]}, keep_params_in_input=False)
try:
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    print("TVM:", machine["main"](tvm.runtime.tensor(x)).numpy().tolist())
except tvm.error.InternalError as error:
    print("TVM:", " ".join(str(error).split()))
