"""Namespaces of ops: functions that the extension declares, under the modules that PyTorch has for them."""
