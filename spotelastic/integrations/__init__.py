"""What a script takes for other libraries: their trainers and experiment trackers.

Each module imports its library, and says what to install where that is missing or too old.
"""
