"""torch.onnx.symbolic_opset11: libraries import it, for an exporter that is not here."""
