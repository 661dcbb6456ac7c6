"""PTF's packet module for tests that need none: frames are bytes here (wire.py)."""


class Packet:
    """No frame is one of these."""


def ls(_packet) -> None:
    pass


def hexdump(frame) -> None:
    print(bytes(frame).hex(" "))
