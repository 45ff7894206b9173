"""``python -m kvsim``: a description of kvsim and the commands that use it."""

import kvsim

if __name__ == "__main__":
    print(kvsim.__doc__)
    print("Commands: pagedkv simulate --help, pagedkv plan --help, pagedkv sweep --help")
    print("Speed of the simulator: python -m kvsim.bench --help")
