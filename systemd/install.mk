# From the unpacked tarball: `sudo make install`. DESTDIR and PREFIX (/usr/local) are supported.
PREFIX ?= /usr/local
.PHONY: install uninstall

install:
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" systemd/install.sh etcd-operator

uninstall:
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" systemd/install.sh --uninstall
