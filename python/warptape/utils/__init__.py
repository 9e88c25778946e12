"""Helpers around training: data loading, activation checkpointing, removable hooks."""

__all__ = ["checkpoint", "data", "hooks"]
