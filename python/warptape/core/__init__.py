"""What every other part may use, and which uses none of them: tensors, trees, hooks, printing."""
