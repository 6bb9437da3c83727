"""Models for other runtimes: what a hasher computes, as a graph of ONNX."""
