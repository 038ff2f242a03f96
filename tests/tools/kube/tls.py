#!/usr/bin/env python3
"""tls.py ADDRESS PORT TO CERTIFICATE KEY: TLS at ADDRESS:PORT before the server that listens at ADDRESS:TO."""
import socket, ssl, sys, threading

address, port, to, certificate, key = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)


def pump(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def serve(raw):
    try:
        with context.wrap_socket(raw, server_side=True) as near, socket.create_connection((address, to)) as far:
            back = threading.Thread(target=pump, args=(far, near))
            back.start()
            pump(near, far)
            back.join()
    except OSError:
        pass


listener = socket.create_server((address, port))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
