"""The object store port and its adapters."""
