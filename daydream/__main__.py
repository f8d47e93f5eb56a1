"""`python -m daydream` is the command `daydream`."""

from daydream.cli import main

if __name__ == "__main__":
    main()
