# Protobuf messages, without the definitions of the protocol.


def varint(number):
    more, low = number >> 7, number & 0x7F
    return bytes([low | 0x80]) + varint(more) if more else bytes([low])


def message(fields):
    """A protobuf message of numbers, texts and messages, by the numbers of its fields."""
    encoded = b""
    for number, value in fields.items():
        if isinstance(value, int):
            encoded += varint(number << 3) + varint(value)
        else:
            value = value.encode() if isinstance(value, str) else value
            encoded += varint(number << 3 | 2) + varint(len(value)) + value
    return encoded


def texts(encoded):
    """The texts and messages in a message, by the numbers of their fields."""
    found, at = {}, 0

    def read():
        nonlocal at
        number = shift = 0
        while True:
            byte = encoded[at]
            at, number, shift = at + 1, number | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return number

    while at < len(encoded):
        key = read()
        length = read()
        if key & 7 == 2:
            found[key >> 3], at = encoded[at : at + length], at + length
    return found


