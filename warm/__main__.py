"""The program of a warm process."""

import sys
from socket import socket

from warm.process import main

if __name__ == "__main__":
    main(sys.argv[1], socket(fileno=int(sys.argv[2])))
