"""TVM cannot compile what its importer makes of ConstantOfShape where the shape is computed.

apache-tvm 0.27.0.post1: the operator becomes `broadcast_to` of a number and a shape that a tensor
holds. No pass lowers that, and the code generator of the virtual machine refuses it. Found by
`tapml compare` on files of NudeNet and Silero. Needs apache-tvm and onnx.
"""

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

value = helper.make_tensor("value", TensorProto.FLOAT, [1], [8.0])
node = helper.make_node("ConstantOfShape", ["wanted"], ["y"], value=value)
wanted = helper.make_tensor_value_info("wanted", TensorProto.INT64, [2])
y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])
graph = helper.make_graph([node], "alone", [wanted], [y])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
onnx.checker.check_model(model)
shape = np.array([2, 3])
print("reference:", ReferenceEvaluator(model).run(None, {"wanted": shape})[0].tolist())
module = from_onnx(model, shape_dict={"wanted": [2]}, keep_params_in_input=False)
try:
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    print("TVM:", machine["main"](tvm.runtime.tensor(shape)).numpy().tolist())
except tvm.error.InternalError as error:
    print("TVM:", str(error).partition("\n")[0])
