"""``python -m kvsim``: what kvsim is, and which commands use it."""

import kvsim

if __name__ == "__main__":
    print(kvsim.__doc__)
    print("Commands: pagedkv simulate --help, pagedkv plan --help, pagedkv sweep --help")
    print("Speed of the simulator: python -m kvsim.bench --help")
