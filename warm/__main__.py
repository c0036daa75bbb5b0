"""The program of a warm process."""

import sys
from socket import socket

from warm.process import main

if __name__ == "__main__":
    main(socket(fileno=int(sys.argv[1])))
