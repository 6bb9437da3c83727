"""Files: vectors of any format, models, ONNX, and crash-safe writes."""
