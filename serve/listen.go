package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	maxSocket = 103  // bytes of a socket's path, on every system
	maxConns  = 1024 // connections of a server
)

// Listen listens at host:port or unix:PATH. Only root, and the user who runs the server, can reach a
// socket, whatever the umask. A socket that a killed server left behind is replaced.
func Listen(address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix:")
	switch {
	case !ok:
		return net.Listen("tcp", address)
	case strings.HasPrefix(path, "@"):
		return nil, fmt.Errorf("serve: Listen: %s: must be unix:PATH; only WithShared takes a name without a file", address)
	}
	return listenUnix(path)
}

func listenUnix(path string) (net.Listener, error) {
	if err := fitsSocket("Listen", path); err != nil {
		return nil, err
	}
	if strings.HasPrefix(path, "@") {
		return net.Listen("unix", path)
	}
	removeDead(path)
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(makePrivate)
	}}
	l, err := private.Listen(context.Background(), "unix", path)
	if err == nil {
		if err = os.Chmod(path, 0o600); err != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return l, err
}

// fitsSocket returns an error unless a socket may have the path.
func fitsSocket(option, path string) error {
	if path == "" || len(path) > maxSocket || strings.ContainsRune(path, 0) {
		return optionError(option, path, "the path of a socket must have 1 … %d bytes; it has %d", maxSocket, len(path))
	}
	if dir := filepath.Dir(path); path[0] != '@' {
		switch about, err := os.Stat(dir); {
		case err != nil:
			return optionError(option, path, "its folder must exist: %v", err)
		case !about.IsDir():
			return optionError(option, path, "%s must be a folder", dir)
		}
	}
	return nil
}

// removeDead removes a socket at which nobody listens.
func removeDead(path string) {
	if about, err := os.Lstat(path); err != nil || about.Mode()&os.ModeSocket == 0 {
		return
	}
	if c, err := net.Dial("unix", path); err == nil {
		_ = c.Close()
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(path) // or listening says why not
	}
}

// A listener's connections can be found, and closed, by the address of their peer.
type listener struct{ net.Listener }

type conn struct{ net.Conn }

type peerAddr struct {
	net.Addr
	conn net.Conn
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return conn{c}, err
}

func (c conn) RemoteAddr() net.Addr { return peerAddr{c.Conn.RemoteAddr(), c} }
