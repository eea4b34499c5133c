"""The checkpoint service of spotelastic: a daemon on each node, without torch, and its clients.

Workers copy their state into slots, files in shared memory, and seal them. The daemon uploads
sealed slots as shards to an object store, and writes a commit record once all shards of a step are
there. It also serves sealed slots to other nodes.
"""
