"""Import of ONNX models (path, ModelProto, external data) into a core Graph."""
