"""What torch.onnx has for the names alone."""
