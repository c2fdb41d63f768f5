"""`python -m rollart`: the command line, as the program `rollart`."""

from rollart.cli import console

if __name__ == "__main__":
    console()
