package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// serveShared answers clients of this host until ctx ends.
func (s *Server) serveShared(ctx context.Context, path string) error {
	l, err := listenShared(path)
	if err != nil {
		return fmt.Errorf("serve: WithShared: %s: %w", path, err)
	}
	context.AfterFunc(ctx, func() { _ = l.Close() })
	var clients errgroup.Group
	clients.SetLimit(maxConns)
	for {
		c, err := l.Accept()
		switch {
		case err == nil && ours(c.(*net.UnixConn)):
			clients.Go(func() error { (&local{c: c, queue: newQueue(), s: s}).serve(ctx); return nil })
		case err == nil:
			_ = c.Close()
		case ctx.Err() != nil:
			return clients.Wait() // none of them fails
		default:
			slog.Error("serve: accepting clients of this host fails; trying again", "error", err)
			time.Sleep(time.Second)
		}
	}
}

// A lockedListener has the lock of its socket, PATH.lock, which one server at a time has.
type lockedListener struct {
	net.Listener
	lock *os.File
}

func (l lockedListener) Close() error { return errors.Join(l.Listener.Close(), l.lock.Close()) }

// listenShared listens at a socket that only this user and root can reach, whatever the umask. A socket
// that a killed server left behind is replaced.
func listenShared(path string) (net.Listener, error) {
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another server has the lock, %s.lock: %w", path, err), lock.Close())
	}
	if about, err := os.Lstat(path); err == nil && about.Mode()&os.ModeSocket != 0 {
		_ = os.Remove(path) // or listening says why not
	}
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.Fchmod(int(fd), 0o600) }) // of a socket of one's own: can't fail
	}}
	l, err := private.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // the path may have become another's, if somebody removed the lock
	return lockedListener{l, lock}, nil
}

// ours reports whether the other end of a socket is this user's, or root's.
func ours(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var other *unix.Ucred
	failed := raw.Control(func(fd uintptr) { other, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return errors.Join(failed, err) == nil && isOurs(int(other.Uid), os.Geteuid())
}

// isOurs reports whether a user is this process's, or root. The overflow user is nobody: it stands for all
// whom the kernel can't name in this process's namespace.
func isOurs(user, own int) bool {
	overflow, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	return err == nil && strings.TrimSpace(string(overflow)) != fmt.Sprint(user) && (user == 0 || user == own)
}

// passesMemory reports whether descriptors can be sent through a connection.
func passesMemory(c io.Writer) bool {
	_, is := c.(*net.UnixConn)
	return is
}

// pass sends bytes with a descriptor, and closes the descriptor here.
func pass(c io.Writer, b []byte, fd int) (n int, err error) {
	defer unix.Close(fd)
	n, _, err = c.(*net.UnixConn).WriteMsgUnix(b, unix.UnixRights(fd), nil)
	return n, err
}

func newFile(number, size int) (*file, error) {
	fd, err := unix.MemfdCreate("nwt", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	f := &file{number: number, fd: fd}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		f.mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("shared memory of %d bytes: %w", size, err)
	}
	return f, nil
}

func (f *file) close() {
	_ = unix.Munmap(f.mem) // it is its own
	f.mem = nil            // its address may be another's from now on
	if f.fd >= 0 {
		_ = unix.Close(f.fd)
	}
}
