"""Object stores: the interface that the checkpoint service needs of them, and its adapters."""
