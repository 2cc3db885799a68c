"""Modules that programs for MSCCL++ import by these names."""
