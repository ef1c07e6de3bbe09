"""TCP streams to measure a link: `flow.py recv PORT N_STREAMS` and `flow.py send IP PORT BYTES`.

The receiver prints a line for each stream: bytes, seconds between the first and last byte, Mbit/s.
"""

import socket
import sys
import threading
import time


def receive(port: int, n_streams: int) -> None:
    server = socket.create_server(("0.0.0.0", port), backlog=64)
    threads = []
    for _ in range(n_streams):
        connection, _address = server.accept()
        threads.append(threading.Thread(target=_receive_one, args=(connection,)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def _receive_one(connection: socket.socket) -> None:
    buffer = bytearray(1 << 20)
    n_bytes = connection.recv_into(buffer)
    start = time.perf_counter()
    while count := connection.recv_into(buffer):
        n_bytes += count
    seconds = time.perf_counter() - start
    print(f"recv {n_bytes} B {seconds:.3f} s {n_bytes * 8 / seconds / 1e6:.1f} Mbit/s")
    connection.close()


def send(address: str, port: int, n_bytes: int) -> None:
    chunk = memoryview(bytes(1 << 20))
    with socket.create_connection((address, port)) as connection:
        while n_bytes > 0:
            n_bytes -= connection.send(chunk[:n_bytes])


if __name__ == "__main__":
    if sys.argv[1] == "recv":
        receive(int(sys.argv[2]), int(sys.argv[3]))
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
